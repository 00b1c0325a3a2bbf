"""Likely and unlikely texts without truth: the control for probes that read how probable a text is.

Somebody buttered the bread or tuned a guitar: nobody knows who, so nothing here is true or false. Three relations:

1. `scene`: two sentences trade their last words (She spread butter on the guitar).
2. `wording`: two set phrases trade a word (strong rain, heavy tea); what is meant stays plausible.
3. `order`: a set pair is turned round (pepper and salt), in two sentences; the words are the same.

As in the statements, every word of a group stands as often in likely as in unlikely rows. The label comes from the table,
from no model; `MEASURED` says how far a small model agrees.
"""

from .facts import table
from .statements import COLUMNS, Row

NAME = "likelihood"
MEASURED = {
    "model": "smollm2-135m",
    "score": "sum of the tokens' log-probabilities in fp32, behind one start token",
    "auroc": {
        "all": [0.759, 0.733, 0.789],
        "scene": [0.804, 0.766, 0.845],
        "wording": [0.760, 0.710, 0.817],
        "order": [0.751, 0.699, 0.811],
    },
    "auroc_mean_of_tokens": [0.717, 0.696, 0.743],
    "likely_above_unlikely_in_the_same_frame": [0.953, 0.922, 0.977],
    "frames": 256,
    "each": "figure, then its 95 % interval by resampling groups",
}
"""How far a small model's log-likelihood of the texts agrees with the label. Measured once; the build runs no model."""


def likelihood() -> list[Row]:
    """Four rows a group: two frames, each with the likely and the unlikely words."""
    rows = []
    for line in table(NAME):
        frames, ends = (line["frame_one"], line["frame_two"]), (line["one"], line["two"])
        group = f"{NAME}: {' | '.join(frames)}"
        for place, frame in enumerate(frames):
            # In `order` the first words are the usual ones in both frames; elsewhere each frame has its own.
            likely = ends[0 if line["relation"] == "order" else place]
            for end in ends:
                text, pair = frame.format(end), f"{NAME}-{len(rows):04d}"
                values = (text, int(end == likely), group, NAME, "affirmative", pair, line["relation"], frame, end)
                rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
