"""The activation store: recorded activations on the disk, written shard by shard and read by every analysis.

    runs/a/
      store.json             written once: format, model, tokenizer, sites with shapes, dtype, token rule, how it is cut
      shards/000000/         a fixed count of texts: the unit of work, commit and resume
        shard.json           rows, size and xxh3 of each file, a summary of the statistics; written last
        examples.parquet     a row per text: text_index, text, label, group, split, the caller's columns
        tokens.parquet       a row per kept token: text, position, token_id, is_bos, is_special, is_first, is_outlier,
                             is_outlier:<site> for each site; logprob, entropy, top1 where asked for
        stats.safetensors    <site>/<all|typical>/<mean|M2|norm_bins|norm_counts>
        blocks.6.hook_resid_post.safetensors     {"acts": [rows, d]}

Any safetensors, parquet or pandas user can read it without this library. A shard is there whole or not at all; nothing
central is rewritten; recording again goes on where it stopped and gives the same bytes.

`files` knows bytes, `stats` numbers, `shard` one folder, `writer` and `reader` the whole, `batches` the shuffling.
"""

from interp.store.batches import Batches
from interp.store.files import DTYPES
from interp.store.opening import open_store
from interp.store.reader import Store
from interp.store.shard import FORMAT, ShardData
from interp.store.stats import OUTLIER_FACTOR, Moments, NormHistogram, SiteStats
from interp.store.temporary import temporary_store
from interp.store.writer import StoreWriter, require_room

__all__ = [
    "DTYPES",
    "FORMAT",
    "OUTLIER_FACTOR",
    "Batches",
    "Moments",
    "NormHistogram",
    "ShardData",
    "SiteStats",
    "Store",
    "StoreWriter",
    "open_store",
    "require_room",
    "temporary_store",
]
