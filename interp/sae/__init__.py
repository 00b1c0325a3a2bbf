"""Sparse dictionaries: train them on activations, measure them honestly, look at their latents, use them in the model.

Training: `config` holds the choices, `rows` and `live` know where rows come from, `kinds`, `step` and `sparse` do the
arithmetic, `train` is the run, `trained` folds it into `model`, the value.
Measuring: `evaluate` says what it explains, `splice` what the model does with it in place, `probing` and `absorption` how
well single latents stand for something, `stability` whether another seed finds the same; `planted` makes data with a
known answer.
Looking: `features` is what the latents fire on, `search` finds some, `labels` puts them into words.
Using: `edit` steers by a latent; `formats` reads and writes other projects' files.
"""

from interp.sae.absorption import AbsorptionReport, absorption_of_rows, feature_absorption, load_absorption_report
from interp.sae.calibrate import calibrate_l0
from interp.sae.config import (
    BatchTopKConfig,
    GatedConfig,
    JumpReLUConfig,
    MatryoshkaConfig,
    SAEConfig,
    StandardConfig,
    TopKConfig,
)
from interp.sae.edit import SteerLatent, latent_direction
from interp.sae.evaluate import SAEReport, evaluate_sae, load_sae_report, pca_baseline
from interp.sae.features import LatentPage, SAEFeatures, load_sae_features, sae_features
from interp.sae.formats import export_sae, import_sae, load_saelens, save_saelens
from interp.sae.formats.neuronpedia import NeuronpediaSource, export_neuronpedia
from interp.sae.labels import (
    DetectionScores,
    SAELabels,
    detection_score,
    endpoint_explainer,
    endpoint_judge,
    label_latents,
    load_detection_scores,
    load_sae_labels,
    statistics_explainer,
)
from interp.sae.latent_store import LatentStore, latent_store, latents_to_stream, widened_probe
from interp.sae.live import LiveRows, live_rows
from interp.sae.model import SAE, ActiveLatents, load_sae
from interp.sae.planted import PlantedDictionary, planted_dictionary
from interp.sae.probing import SparseProbing, load_sparse_probing, sparse_probing
from interp.sae.rows import split_rows
from interp.sae.search import search_by_direction, search_by_prompt, search_by_token
from interp.sae.splice import SpliceReport, evaluate_in_model, load_splice_report
from interp.sae.stability import DictionaryMatch, load_dictionary_match, matched_cosine, seed_stability
from interp.sae.train import train_sae, train_saes

__all__ = [
    "SAE", "AbsorptionReport", "ActiveLatents", "BatchTopKConfig", "DetectionScores", "DictionaryMatch", "GatedConfig",
    "JumpReLUConfig", "LatentPage", "LatentStore", "LiveRows", "MatryoshkaConfig", "NeuronpediaSource", "PlantedDictionary",
    "SAEConfig", "SAEFeatures", "SAELabels", "SAEReport", "SparseProbing", "SpliceReport", "StandardConfig", "SteerLatent",
    "TopKConfig", "absorption_of_rows", "calibrate_l0", "detection_score", "endpoint_explainer", "endpoint_judge",
    "evaluate_in_model", "evaluate_sae", "export_neuronpedia", "export_sae", "feature_absorption", "import_sae",
    "label_latents", "latent_direction", "latent_store", "latents_to_stream", "live_rows", "load_absorption_report",
    "load_detection_scores", "load_dictionary_match", "load_sae", "load_sae_features", "load_sae_labels", "load_sae_report",
    "load_saelens", "load_sparse_probing", "load_splice_report", "matched_cosine", "pca_baseline", "planted_dictionary",
    "sae_features", "save_saelens", "search_by_direction", "search_by_prompt", "search_by_token", "seed_stability",
    "sparse_probing", "split_rows", "statistics_explainer", "train_sae", "train_saes", "widened_probe",
]  # fmt: skip
