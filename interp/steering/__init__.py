"""Steering: a direction from contrasts, applied where it says, and what it did and broke.

1. `contrast`, `rows`, `methods`, `fit`: contrast pairs, labelled texts or a store become rows of activations, and a method
   makes a direction of them. `steering_vector` is one site, `steering_vectors` several; a probe or a latent of an SAE gives its
   own. `heads`: directions of single heads with their spread (ITI). `candidates`: the direction of a position and layer that
   changes a behaviour and nothing else.
2. `vector`, `vectors`: the values, with arithmetic, cosines and files; `formats`: control vectors of other tools.
3. `Steer(v, strength)` applies any of them; strength 1 is one typical norm of the site.
4. `plan`, `runner`, `measures`, `damage`, `randoms`, `experiment`: `steering_experiment` measures effect and damage on one grid
   of strengths, beside random directions of the same norm and an instruction; `strength_map` looks over layers first.
5. `figures`, `report`, `page`: the statistics, and the report as tables, text, charts and a page.
"""

from interp.steering.candidate_report import CandidateReport, load_candidate_report
from interp.steering.candidates import candidate_direction
from interp.steering.contrast import show_tokens
from interp.steering.cosines import cosine_table
from interp.steering.experiment import steering_experiment, steering_experiment_again
from interp.steering.fit import steering_vector, steering_vectors
from interp.steering.formats import from_repeng, from_steering_vectors, load_control_vectors, save_control_vectors
from interp.steering.head_value import HeadVectors, load_head_vectors
from interp.steering.heads import head_vectors
from interp.steering.measures import OwnMeasure, PairPreference, PhraseRate, ProbeScore, TargetTokens, TextScore
from interp.steering.report import SteeringReport, load_steering_report
from interp.steering.seen import SharedGroupsWarning
from interp.steering.strength_map import StrengthMap, load_strength_map, steering_map
from interp.steering.sweep import steered_logits
from interp.steering.vector import SteeringVector, load_steering_vector
from interp.steering.vectors import SteeringVectors, load_steering_vectors

__all__ = [
    "CandidateReport", "HeadVectors", "OwnMeasure", "PairPreference", "PhraseRate", "ProbeScore",
    "SharedGroupsWarning", "SteeringReport", "SteeringVector", "SteeringVectors", "StrengthMap", "TargetTokens",
    "TextScore", "candidate_direction", "cosine_table", "from_repeng", "from_steering_vectors", "head_vectors",
    "load_candidate_report", "load_control_vectors", "load_head_vectors", "load_steering_report",
    "load_steering_vector", "load_steering_vectors", "load_strength_map", "save_control_vectors", "show_tokens",
    "steered_logits", "steering_experiment", "steering_experiment_again", "steering_map", "steering_vector",
    "steering_vectors",
]  # fmt: skip
