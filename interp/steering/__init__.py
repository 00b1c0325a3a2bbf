"""Steering vectors: a direction from contrasts, applied at a strength that means the same everywhere, and what it did.

1. `steering_vector` takes the mean difference of the activations of two sets (Turner et al. 2023; Rimsky et al. 2024,
   arXiv 2312.06681) and keeps a unit direction, the length of the fitted difference, and the site's *typical norm*.
2. `Steer(v, strength)` adds strength x typical norm along it.
3. `steering_experiment` measures the effect on prompts and continuations that the vector never saw, the damage to the
   loss on other text, and the same for random directions of the same norm, half of them isotropic and half with the
   activations' own covariance: without that band a large effect may be nothing but a large push.
"""

from interp.steering.experiment import steering_experiment
from interp.steering.fit import steering_vector
from interp.steering.report import SteeringReport, load_steering_report
from interp.steering.vector import SteeringVector, load_steering_vector

__all__ = [
    "SteeringReport",
    "SteeringVector",
    "load_steering_report",
    "load_steering_vector",
    "steering_experiment",
    "steering_vector",
]
