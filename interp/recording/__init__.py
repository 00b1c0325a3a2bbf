"""Record a model's activations into a store.

    data -> `iter_examples` -> plan -> texts of a shard -> passes -> rows -> shard -> store

1. `prepare` checks the call; `plan` reads and tokenises the texts, asks the `rules` for the rows, and keeps all that in
   temporary files. How the work is cut is decided from the inputs alone.
2. `batching` lays the texts of a shard out in passes: texts that begin alike as a tree, others by length. `forward` runs
   them up to the deepest site that was asked for; `rows` and `signals` take what is kept.
3. `write` hands finished shards to `interp.store`, whose thread writes one while the next is computed; `distributed` does
   the same on the workers of a Ray cluster. Finished shards are never computed again.
4. `stored` adds sites or texts to a store that is there; `estimate` says what a recording will take.
"""

from interp.recording.estimate import RecordingPlan, recording_plan
from interp.recording.recorder import record
from interp.recording.stored import RecordedStore, open_store

__all__ = ["RecordedStore", "RecordingPlan", "open_store", "record", "recording_plan"]
