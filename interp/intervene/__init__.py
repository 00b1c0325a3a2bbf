"""Interventions: frozen values that say what is changed where, applied by `with model.intervene(...)`.

- `Ablate` replaces heads, neurons, layers or whole sites by zero, by a mean, or by values of other texts;
- `Patch` puts in values that another run recorded;
- `Erase` takes a concept out with a fitted eraser;
- `Steer` adds a direction, with a strength in units of the site's typical norm;
- `Knockout` cuts attention from some tokens to others;
- `Noise` adds Gaussian noise to chosen tokens.

`where` is `"all"`, `"prompt"` (positions below the prompt's length) or `"generated"` (positions from the last prompt
token on, whose output chooses the first new token). Positions are absolute, so an intervention means the same in one
teacher-forced pass, in a prefill and in cached decoding. Pads are never touched.
"""

from interp.intervene.ablate import Ablate
from interp.intervene.condition import Condition
from interp.intervene.erase import Erase
from interp.intervene.knockout import Knockout
from interp.intervene.noise import Noise
from interp.intervene.patch import Patch
from interp.intervene.place import PHASES, PLACES, HookFunction, Where, chosen_tokens
from interp.intervene.reference import reference_means, special_tokens, typical_rows
from interp.intervene.steer import Steer
from interp.intervene.targets import Direction, Directions, Target
from interp.intervene.watch import watch_interventions
from interp.intervene.writes import orthogonalise_weights, write_sites

__all__ = [
    "PHASES", "PLACES", "Ablate", "Condition", "Direction", "Directions", "Erase", "HookFunction", "Knockout", "Noise", "Patch",
    "Steer", "Target", "Where", "chosen_tokens", "orthogonalise_weights", "reference_means", "special_tokens", "typical_rows",
    "watch_interventions", "write_sites",
]  # fmt: skip
