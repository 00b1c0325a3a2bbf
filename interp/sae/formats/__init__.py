"""SAEs of other libraries: read them, and write SAELens folders.

| format              | what it is                                | what can be read                                         |
|---------------------|-------------------------------------------|----------------------------------------------------------|
| saelens             | folder: cfg.json, sae_weights.safetensors | standard, topk, jumprelu, gated; transcoder, skip_,      |
|                     |                                           | jumprelu_ and jumprelu_skip_transcoder; checkpoints of   |
|                     |                                           | all trainings, also batchtopk and matryoshka_batchtopk   |
| dictionary_learning | folder: config.json, ae.pt                | standard (p-anneal and April update too), gated, topk,   |
|                     |                                           | batch topk, matryoshka, jumprelu                         |
| sparsify            | folder: cfg.json, sae.safetensors         | topk; transcoders, with and without a skip path          |
| gemma_scope         | params.npz, params.safetensors            | jumprelu SAEs and transcoders of both releases           |
| openai              | a .pt file                                | relu; topk as an SAE of normalised rows                  |
| circuit_tracer      | layer_N.safetensors                       | relu, jumprelu and topk transcoders of one layer         |
| interp              | a .safetensors file of `SAE.save`         | all                                                      |

`import_sae` finds the format out; `export_sae` writes SAELens 6 folders. All of them hand over one `SAE` in float32 on
raw rows, whose reconstruction of a row is that of the library it comes from. What it cannot be is refused by name:
crosscoders and cross-layer transcoders of others, groupmax, signed latents, matching pursuit, temporal SAEs. SAEs that
normalise each row by itself are read as SAEs of normalised rows, where that is asked for (`normalize_rows`).

The card's `imported` keeps the format, the file's hash, its dtype and the settings that came with it. Sites are the
file's where it names them in words that this library knows, else none: give `site` (and `target`) then. Nothing is
run that a file holds, and nothing is downloaded.
"""

from interp.sae.formats.circuit_tracer import load_circuit_tracer
from interp.sae.formats.detect import FORMATS, detect_format, export_sae, import_sae
from interp.sae.formats.dictionary_learning import load_dictionary_learning
from interp.sae.formats.gemma_scope import load_gemma_scope
from interp.sae.formats.normalized import NormalizedRows, normalize_rows
from interp.sae.formats.openai_sae import load_openai_sae
from interp.sae.formats.saelens import load_saelens, saelens_density
from interp.sae.formats.saelens_save import save_saelens
from interp.sae.formats.sparsify import load_sparsify

__all__ = [
    "FORMATS",
    "NormalizedRows",
    "detect_format",
    "export_sae",
    "import_sae",
    "load_circuit_tracer",
    "load_dictionary_learning",
    "load_gemma_scope",
    "load_openai_sae",
    "load_saelens",
    "load_sparsify",
    "normalize_rows",
    "saelens_density",
    "save_saelens",
]
