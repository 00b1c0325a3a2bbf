"""The activation store: recorded activations on the disk, written shard by shard and read by every analysis.

    runs/a/
      store.json             written once: format, model, tokenizer, sites with shapes, dtype, token rule, how it is cut
      shards/000000/         a fixed count of texts: the unit of work, commit and resume
        shard.json           rows, size and xxh3 of each file, a summary of the statistics; written last
        examples.parquet     a row per text: text_index, text, label, group, split, the caller's columns; document,
                             chunk and start of pieces; prompt_tokens where it was generated or is a chat; token_ids
        tokens.parquet       a row per kept token: text, position, token_id (both -1 for an average), is_bos,
                             is_special, is_first; averaged (positions) and rule:<name> where there are several;
                             logprob, entropy, top1, rank where asked for; is_outlier; is_outlier:<site> and norm:<site>
        stats.safetensors    <site>/<all|typical>/<mean|M2|norm_bins|norm_counts>
        head_stats.safetensors   where asked for: blocks.<layer>/<entropy|first> [rows, heads]
        blocks.6.hook_resid_post.safetensors     {"acts": [rows, d]}
      parts/0001/            what was added later, texts or sites, as a store of its own (`parts`)

Any safetensors, parquet or pandas user can read it without this library. A shard is there whole or not at all; nothing
central is rewritten; recording again goes on where it stopped and gives the same bytes.

A store lies in a folder, or wherever fsspec reaches: `memory://runs/a`, `s3://bucket/runs/a` (with `pip install s3fs`)
and so on. There rows are read by their bytes, never a whole file for some of them. There are no locks there, so let one
process write at a time; two that record the same write the same bytes. What lies in `memory://` is seen by one process
only, and ends with it.

Format 2 added norms, head statistics, token_ids and parts; stores of format 1 are read as before.

`place` knows where, `files` bytes, `stats` numbers, `shard` one folder, `joined` what was added to its rows, `writer`
and `reader` the whole, `parts` what was added, `fitting` which texts go together, `batches` the shuffling; `merge` and
`remove` handle whole stores.
"""

from interp.store.batches import Batches
from interp.store.files import DTYPES
from interp.store.joined import JoinedShard
from interp.store.merge import merge_stores
from interp.store.opening import open_store
from interp.store.place import Place, as_place
from interp.store.reader import Store
from interp.store.remove import remove_store
from interp.store.shard import FORMAT, ShardData
from interp.store.stats import OUTLIER_FACTOR, Moments, NormHistogram, SiteStats
from interp.store.temporary import temporary_store
from interp.store.writer import StoreWriter, require_room

__all__ = [
    "DTYPES",
    "FORMAT",
    "OUTLIER_FACTOR",
    "Batches",
    "JoinedShard",
    "Moments",
    "NormHistogram",
    "Place",
    "ShardData",
    "SiteStats",
    "Store",
    "StoreWriter",
    "as_place",
    "merge_stores",
    "open_store",
    "remove_store",
    "require_room",
    "temporary_store",
]
