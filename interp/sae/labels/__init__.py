"""Labels: what a latent fires on, in words, and whether the words are right.

`passages` cuts stretches of text with a latent's activations out of a store, `page` is what an explainer may read of a
latent. `statistics` explains by counting, `endpoint` asks a language model. `labelling` explains many latents, and
`scoring` measures their labels by detection.
"""

from interp.sae.labels.endpoint import (
    Endpoint,
    EndpointError,
    EndpointExplainer,
    EndpointJudge,
    endpoint_explainer,
    endpoint_judge,
)
from interp.sae.labels.labelling import Explainer, SAELabels, label_latents, load_sae_labels
from interp.sae.labels.page import ExplainerPage, explainer_page, explainer_pages
from interp.sae.labels.passages import Context, Passage, PassageReader
from interp.sae.labels.scoring import DetectionScores, Judge, detection_score, load_detection_scores
from interp.sae.labels.statistics import Rule, rule_from_json, statistics_explainer

__all__ = [
    "Context",
    "DetectionScores",
    "Endpoint",
    "EndpointError",
    "EndpointExplainer",
    "EndpointJudge",
    "Explainer",
    "ExplainerPage",
    "Judge",
    "Passage",
    "PassageReader",
    "Rule",
    "SAELabels",
    "detection_score",
    "endpoint_explainer",
    "endpoint_judge",
    "explainer_page",
    "explainer_pages",
    "label_latents",
    "load_detection_scores",
    "load_sae_labels",
    "rule_from_json",
    "statistics_explainer",
]
