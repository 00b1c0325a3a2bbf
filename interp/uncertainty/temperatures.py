"""Next-token calibration at any of several temperatures: what temperature scaling does to a model's confidence.

Dividing logits by T changes how sure the model is, never which token comes first. Every scored token is read once, and its
top probability kept at each T, so that a reader can move along T without the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from interp import artifact
from interp.calibration import CalibrationReport, calibration_report
from interp.dataset import Dataset
from interp.model import HookedTransformer
from interp.uncertainty.corpus import _scored, encoded_texts, text_documents
from interp.uncertainty.forward import logit_chunks


@dataclass(frozen=True, eq=False)
class TemperatureRows:
    """The top token's probability at several temperatures; made by `temperature_rows`."""

    temperatures: tuple[float, ...]
    """Rising."""
    p_top: Float[np.ndarray, "temperature row"]
    """Probability of the most probable token."""
    right: Bool[np.ndarray, " row"]
    """Whether that token came."""
    groups: tuple[str, ...]
    """The document of each row."""
    nll: Float[np.ndarray, " temperature"]
    """-log p of the true token, nats a token, mean over rows."""
    card: dict[str, Any]
    """Provenance, texts and tokens."""

    def p_at(self, temperature: float) -> Float[np.ndarray, " row"]:
        """The top probabilities at one of the temperatures. ValueError for another one."""
        return self.p_top[self._place(temperature)]

    def report(self, temperature: float, **options: Any) -> CalibrationReport:
        """`calibration_report` at one of the temperatures, over documents; options as there."""
        return calibration_report(p_top=self.p_at(temperature), y=self.right, groups=self.groups, **options)

    def to_frame(self) -> pd.DataFrame:
        """A row per temperature: temperature, nll (nats), ece and smooth_ece (no noise taken away), confidence, accuracy, n."""
        rows = []
        for place, temperature in enumerate(self.temperatures):
            found = calibration_report(p_top=self.p_top[place], y=self.right, n_boot=0, n_null=0)
            rows.append(
                {
                    "temperature": temperature,
                    "nll": float(self.nll[place]),
                    "ece": found.ece,
                    "smooth_ece": found.smooth_ece,
                    "confidence": found.mean_p,
                    "accuracy": found.mean_y,
                    "n": found.n,
                }
            )
        return pd.DataFrame(rows)

    def _place(self, temperature: float) -> int:
        places = np.flatnonzero(np.isclose(self.temperatures, temperature, rtol=1e-6))
        if not len(places):
            known = ", ".join(f"{each:.3g}" for each in self.temperatures)
            raise ValueError(f"temperature {temperature:g} was not read: there are {known}")
        return int(places[0])


def temperature_rows(
    model: HookedTransformer,
    texts: Dataset | Sequence[str],
    temperatures: Sequence[float],
    *,
    groups: Sequence[Any] | None = None,
    max_tokens: int | None = None,
    batch_size: int = 8,
) -> TemperatureRows:
    """Read texts once and keep the top probability of every scored token at each temperature.

    Args:
        texts: a `Dataset`, or texts; scored as in `next_token_calibration`.
        temperatures: any above 0; equal ones count once.
        groups: the document of each text; by default the data set's groups, else every text is its own.
        max_tokens: score only the first so many tokens of each text.
        batch_size: texts in a forward pass.

    Raises:
        ValueError: no temperature or one that is not above 0, fewer than two documents, no token to score, or a text
            longer than the context.
    """
    asked = sorted({float(each) for each in temperatures})
    if not asked or not 0 < asked[0] <= asked[-1] < np.inf:
        raise ValueError(f"temperatures are numbers above 0, at least one, got {list(temperatures)!r:.80}")
    plain, documents = text_documents(texts, groups)
    rows, left_out = encoded_texts(model, plain, max_tokens)
    stream, targets, text = _scored(model, rows, batch_size, None)
    n = len(targets)
    p = torch.empty(len(asked), n, dtype=torch.float64)
    nll, right = torch.zeros(len(asked), dtype=torch.float64), torch.empty(n, dtype=torch.bool)
    with torch.inference_mode():
        for part, logits in logit_chunks(model, stream):
            target = targets[part, None].to(logits.device)
            top = logits.argmax(-1, keepdim=True)
            right[part] = (top == target)[:, 0].cpu()
            for place, temperature in enumerate(asked):
                scaled = logits / temperature
                total = scaled.logsumexp(-1, keepdim=True)
                p[place, part] = (scaled.gather(-1, top) - total)[:, 0].to("cpu", torch.float64).exp().clamp(max=1.0)
                nll[place] -= (scaled.gather(-1, target) - total).to("cpu", torch.float64).sum()
    card = {"texts": len(rows), "tokens": n, "tokens_left_out": left_out}
    card |= {"texts_hash": artifact.hash_texts(plain)}
    card |= {"provenance": artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)}
    places = [documents[i] for i in text.tolist()]
    return TemperatureRows(tuple(asked), p.numpy(), right.numpy(), tuple(places), (nll / n).numpy(), card)
