"""`interp.doctor`: self-checks of a loaded model, each with what it compared, its figure and its bound.

1. *Definitions*: every value of a pass is computed once more in fp64 from weights and configuration (`recompute`,
   `plain`, `plain_attention`), and the identities between sites are added up (`identities`).
2. *Behaviour*: hooks fire and reach the output (`hooks_fire`); tokens see what they may (`masks`); decoding with a cache
   is the pass over the whole text (`cache`); text goes in and out unharmed, and a trained model speaks (`text`).
3. *Numbers*: fp32, fp64 and bf16 agree as rounding allows (`precision`); memory stays flat (`memory`); massive activations
   are listed (`outliers`).
4. *Others*: where transformers and the checkpoint are there, logits and every layer agree with it (`parity`).
"""

from interp.checks.examine import doctor
from interp.checks.report import Check, DoctorReport, load_doctor_report

__all__ = ["Check", "DoctorReport", "doctor", "load_doctor_report"]
