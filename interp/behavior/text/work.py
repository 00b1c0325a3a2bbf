"""The two steps of a text calibration that need the model.

1. `read_streams`: one pass over some texts; of the streams only the rows that are scored are kept.
2. `read_place`: at one place, fit the temperature on rows of the fitting documents, and read what the others say before and
   after. Logits are made a chunk of rows at a time; those that a fit reads again and again are held where they are small.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor

from interp import sites as site_names
from interp.calibration import Temperature, fit_temperature_chunks
from interp.lens.places import EMBED, FIRST
from interp.model import HookedTransformer
from interp.uncertainty.forward import final_stream, logit_chunks, right_padded

HELD_BYTES = 256 << 20
"""Most logits of one fit that are held between its passes."""
TOLERANCE = 1e-5
"""Of a temperature, relative: a thousandth of its sampling error."""


def read_streams(
    model: HookedTransformer, settings: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The last stream at the places `whole` of each text, and the streams of all sites at the places `layers`.

    Args:
        model: the model.
        settings: `sites`, full names, the final one last.
        inputs: of each text its `ids`, and the two lists of places.
    """
    tokens = right_padded(model, [item["ids"] for item in inputs])
    whole, layered = (_places(inputs, key) for key in ("whole", "layers"))
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Any:
        def keep(value: Tensor, _: Any) -> None:
            kept[name] = value[layered].detach().float().cpu()

        return keep

    sites = settings["sites"][:-1] if len(layered[0]) else []
    with model.hooks({FIRST if name == EMBED else name: keeper(name) for name in sites}):
        stream = final_stream(model, tokens)
    layers = [*(kept[name] for name in sites), stream[layered].float().cpu()]
    return {"whole": stream[whole].float().cpu().numpy(), "layers": torch.stack(layers, 1).numpy()}, {}


def _places(inputs: Sequence[Mapping[str, Any]], key: str) -> tuple[Tensor, Tensor]:
    text = [index for index, item in enumerate(inputs) for _ in item[key]]
    place = [place for item in inputs for place in item[key]]
    return torch.tensor(text, dtype=torch.int64), torch.tensor(place, dtype=torch.int64)


def read_place(
    model: HookedTransformer, settings: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What one place says of the next token, before and after its own temperature.

    Args:
        model: the model.
        settings: of each part (`whole`, `layers`) its stream [row (site) d_model], target, fits and group; `sites`, `lens`,
            and `members` [class id] for the part `whole`.
        inputs: `part`, and the `site`.

    Returns:
        Of the reported rows: right, top (ids); p, nll and class_p [.., class] with _before and, where a temperature
        exists, _after. The fit as values: temperature (None where there is none, with `note`), low, high, n_fit, n_fit_groups.
    """
    rows, site = settings[inputs["part"]], inputs["site"]
    members = torch.tensor(settings["members"], dtype=torch.float32).T if inputs["part"] == "whole" else None
    stream = rows["stream"]
    if inputs["part"] == "layers":
        stream = stream[:, settings["sites"].index(site)]
    stream = torch.tensor(stream).to(model.device, model.dtype)
    if settings["lens"] is not None and site != settings["sites"][-1]:
        with torch.inference_mode():
            stream = settings["lens"].translate(stream, site)
    fits, target = torch.tensor(rows["fits"]), torch.tensor(rows["target"])
    at = fits.to(stream.device)
    fit = _fit(model, stream[at], target[fits], rows["group"][rows["fits"]], site)
    found = _said(model, stream[~at], target[~fits], fit["temperature"], members)
    return found, fit


def _fit(
    model: HookedTransformer,
    stream: Float[Tensor, "row d_model"],
    target: Int[Tensor, " row"],
    group: Int[np.ndarray, " row"],
    site: str,
) -> dict[str, Any]:
    """The temperature with its interval by document; None, with the reason, where the NLL has no least value."""
    held: list[tuple[slice, Tensor]] | None = None
    if len(stream) * model.cfg.d_vocab * 4 <= HELD_BYTES:
        held = list(logit_chunks(model, stream))
    for _, logits in held or logit_chunks(model, stream):
        _refuse_not_finite(logits, site)

    def chunks() -> Iterator[tuple[Tensor, Tensor]]:
        for rows, logits in held or logit_chunks(model, stream):
            yield logits, target[rows]

    known = {"n_fit": len(target), "n_fit_groups": len(np.unique(group))}
    try:
        fitted = fit_temperature_chunks(chunks, tolerance=TOLERANCE)
    except ValueError as error:  # the logits are finite: what is left is that no temperature is the best
        return {"temperature": None, "low": None, "high": None, **known, "note": f"no temperature: {error}"}
    low, high = _interval(chunks(), fitted, group)
    note = "" if low is not None else "no interval of the temperature: a single document fits it"
    return {"temperature": fitted.temperature, "low": low, "high": high, **known, "note": note}


def _interval(
    chunks: Iterator[tuple[Tensor, Tensor]], fitted: Temperature, group: Int[np.ndarray, " row"]
) -> tuple[float | None, float | None]:
    """95 %, by the sandwich estimate with documents as clusters (Liang & Zeger 1986) and Student's quantile; (None, None)
    for a single document.

    In b = 1/T the slope of a row's NLL is E[z] - z_target and the curvature Var(z), both under softmax(b z).
    """
    slopes, curvature, start = np.empty(len(group)), 0.0, 0
    for logits, target in chunks:
        p = (logits / fitted.temperature).softmax(-1)
        mean = (p * logits).sum(-1, keepdim=True)
        slope = (mean - logits.gather(-1, target[:, None].to(logits.device)))[:, 0]
        slopes[start : start + len(slope)] = slope.double().cpu().numpy()
        start += len(slope)
        curvature += float((p * (logits - mean) ** 2).sum(-1).double().sum())
    clusters = np.bincount(np.unique(group, return_inverse=True)[1], slopes)
    n = len(clusters)
    if n < 2:
        return None, None
    spread = math.sqrt(n / (n - 1) * float((clusters**2).sum()))
    half = float(student.ppf(0.975, n - 1)) * spread / curvature * fitted.temperature**2
    return max(fitted.temperature - half, 0.0), fitted.temperature + half


def _refuse_not_finite(logits: Float[Tensor, "row d_vocab"], site: str) -> None:
    if bool((logits.isnan() | (logits == math.inf)).any()):
        raise ValueError(
            f"the logits at {site_names.short_name(site)} hold NaN or infinity: the lens is damaged, or a hook wrote them"
        )


def _said(
    model: HookedTransformer,
    stream: Float[Tensor, "row d_model"],
    target: Int[Tensor, " row"],
    temperature: float | None,
    members: Float[Tensor, "id class"] | None,
) -> dict[str, np.ndarray]:
    states = {"before": 1.0} | ({} if temperature is None else {"after": temperature})
    found: dict[str, Tensor] = {}
    if members is not None:
        members = members.to(stream.device)
    for rows, logits in logit_chunks(model, stream):
        goal = target[rows, None].to(logits.device)
        top = logits.argmax(-1, keepdim=True)
        values = {"right": (top == goal)[:, 0], "top": top[:, 0]}
        for state, scale in states.items():
            logp = (logits / scale).log_softmax(-1)
            values[f"p_{state}"] = logp.gather(-1, top)[:, 0].double().exp().clamp(max=1.0)
            values[f"nll_{state}"] = -logp.gather(-1, goal)[:, 0].double()
            if members is not None:
                values[f"class_p_{state}"] = (logp.exp() @ members).double().clamp(0.0, 1.0)
        for key, value in values.items():
            if key not in found:
                # Whole at once: small tensors that live on between the large ones of each chunk leave holes in memory.
                found[key] = torch.empty(len(target), *value.shape[1:], dtype=value.dtype)
            found[key][rows] = value.cpu()
    return {key: value.numpy() for key, value in found.items()}
