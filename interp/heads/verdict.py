"""One word for each head, from its score and its effect.

- *induction*: a score over the null, and an effect alone over the band.
- *redundant*: a score over the null and no effect alone, but the set of induction heads loses more with it than without:
  others stand in for it.
- *upstream*: an effect and no score. What it does besides is its role: attention to the previous token, to the first
  occurrence of the same one ...
- *none*: neither.

Three rules say what "over" means:

1. A score is over its null if the lower end of its interval is, and over the floor of all heads too. The null is the
   largest mean attention of the head to any other fixed offset; the floor is the mean attention to other offsets of the
   head where that is largest, for the null of a head that hardly looks anywhere is next to nothing.
2. An effect is over the band if its mean is, and the lower end of its interval is above 0. The band of a head ends at
   median + 3 standard deviations of the *other* heads of its layer, the deviation estimated by their median absolute
   deviation: a second head in the layer that matters must not hide the first one, as a maximum would let it.
3. No effect counts below one percent of the model's in-context gain (first-copy loss less second-copy loss); where the
   other heads do nothing at all the band would otherwise have no width.
4. What a head adds to the set counts if it is over the band of heads without a score, taken from the same layers at random
   and tried in the same way: any few heads more cost something.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

VERDICTS = ("induction", "redundant", "upstream", "none")
ROLES = ("previous_token", "duplicate_token", "current_token")
"""Scores that name the role of a head upstream."""
FLOOR = 0.01
"""Least effect, as a share of the in-context gain."""
WIDTH = 3.0
"""Half width of the band in standard deviations."""
ROLE_FROM = 0.2
"""Least score that names a role."""


def over_null(frame: pd.DataFrame) -> Bool[np.ndarray, "head"]:
    """Whether each head's induction score is over its null (rule 1)."""
    bar = frame["induction_null"].to_numpy(float)
    bar = np.maximum(bar, frame["induction_floor"].to_numpy(float)) if "induction_floor" in frame else bar
    return frame["induction_low"].to_numpy(float) > bar


def floor_of(gain: float) -> float:
    """Least effect that counts, nats (rule 3)."""
    return max(0.0, FLOOR * gain)


def band_end(effects: Float[np.ndarray, "head"], floor: float) -> float:
    """Median + 3 standard deviations of some effects, at least the floor."""
    if not len(effects):
        return floor
    middle = np.median(effects)
    return max(floor, float(middle + WIDTH * 1.4826 * np.median(np.abs(effects - middle))))


def effect_band(
    layers: Float[np.ndarray, "head"], effects: Float[np.ndarray, "head"], floor: float
) -> Float[np.ndarray, "head"]:
    """Upper end of each head's band (rules 2 and 3), NaN-free also where a layer has one head."""
    band = np.full(len(effects), floor)
    for index, layer in enumerate(layers):
        band[index] = band_end(np.delete(effects, index)[np.delete(layers, index) == layer], floor)
    return band


def head_verdicts(frame: pd.DataFrame, gain: float) -> pd.DataFrame:
    """Band, verdict and role of each head.

    Args:
        frame: a line for each head: `layer`, `head`, `induction`, `induction_low`, `induction_null`, the other scores,
            `effect`, `effect_low`, and where the set was tried `in_set` and `in_set_low` (missing elsewhere), and
            `in_set_band`, the end of the band of rule 4.
        gain: in-context gain of the model, nats.

    Returns:
        `band` (nats), `verdict` (one of `VERDICTS`) and `role` (a name of a score, empty where none stands out).
    """
    layers, effects = frame["layer"].to_numpy(float), frame["effect"].to_numpy(float)
    floor = floor_of(gain)
    if np.isnan(frame["effect_low"].to_numpy(float)).all():
        raise ValueError("the effects have no interval: a verdict needs at least two sequences")
    band = effect_band(layers, effects, floor)
    scored = over_null(frame)
    matters = (effects > band) & (frame["effect_low"].to_numpy() > 0)
    # A comparison with a missing value is False: a head that was not tried in the set is not called redundant.
    least = np.maximum(floor, frame["in_set_band"].to_numpy(float)) if "in_set_band" in frame else floor
    adds = (frame["in_set"].to_numpy(float) > least) & (frame["in_set_low"].to_numpy(float) > 0)
    verdict = np.select([scored & matters, scored & adds, matters & ~scored], VERDICTS[:3], "none")
    roles = [_role(line, word) for line, word in zip(frame.to_dict("records"), verdict, strict=True)]
    return pd.DataFrame({"band": band, "verdict": verdict, "role": roles}, index=frame.index)


def _role(line: dict[str, float], verdict: str) -> str:
    """The score that says best what a head does."""
    if verdict in ("induction", "redundant"):
        return "induction"
    known = {role: line[role] for role in ROLES if line[role] >= max(ROLE_FROM, line.get(f"{role}_null", 0.0))}
    return max(known, key=lambda role: known[role]) if known else ""
