"""EigenScore: how far apart sampled answers lie inside the model (Chen et al. 2024, INSIDE, arXiv 2402.03744).

1. Each sampled answer is read where it ends: the stream at its last token, in a middle layer.
2. The K answers of a prompt give a matrix Z [K, d]. With J = I - 11'/d, which takes each row's own mean away, the score is
   log det(Z J Z' + alpha I) / K: large where the answers point in many directions.

Conventions differ: this is the paper's formula, with the natural logarithm and without division by d - 1, both of which the
authors' program has. They move and stretch all scores alike only where alpha matters little, so compare scores of one
convention, one model and one site. Streams have another size in every layer, and alpha does not follow it.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp import sites
from interp.model import HookedTransformer
from interp.uncertainty.forward import last_streams
from interp.uncertainty.samples import AnswerSamples

ALPHA = 1e-3
"""The paper's: keeps the determinant of equal answers above zero."""


def eigenscore(embeddings: Any, alpha: float | Any = ALPHA) -> float:
    """log det(Z J Z' + alpha I) / K of K answers, in nats; the order of the answers makes no difference.

    Args:
        embeddings: Z [answer d_model].
        alpha: added to every eigenvalue.

    Raises:
        ValueError: fewer than two answers, NaN or infinity, another shape, or an alpha that is not above 0.
    """
    z = np.asarray(embeddings.detach().cpu() if isinstance(embeddings, Tensor) else embeddings, dtype=np.float64)
    if z.ndim != 2 or 0 in z.shape:
        raise ValueError(f"embeddings must be [answer, d_model], got shape {z.shape}")
    if len(z) < 2:
        raise ValueError("one answer has no spread: give the embeddings of at least two")
    if not np.isfinite(z).all():
        raise ValueError("the embeddings hold NaN or infinity: record them again")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be a number above 0, got {alpha!r}")
    # Singular values, since squares of large streams would drown alpha in rounding.
    values = np.linalg.svd(z - z.mean(1, keepdims=True), compute_uv=False) ** 2
    eigenvalues = np.concatenate((values, np.zeros(max(len(z) - len(values), 0))))
    return float(np.log(eigenvalues + alpha).mean())


def sample_embeddings(
    model: HookedTransformer, samples: AnswerSamples, site: str | Any = None
) -> list[Float[Tensor, "sample d_model"]]:
    """The stream at the last token of each sampled answer, by prompt; of an empty answer, at the prompt's last token.

    Args:
        model: the one that was sampled.
        samples: the greedy answers among them are left out.
        site: a site with one vector a token; None for `resid_post` of the middle layer.

    Raises:
        ValueError: samples of another model, a site that is unknown or has another shape.
    """
    made, here = samples.card["provenance"].get("fingerprint"), model.fingerprint
    if made != here:
        raise ValueError(
            f"the samples are of another model ({samples.card['provenance'].get('model')}) than {model.cfg.name}: sample "
            "this one"
        )
    name = _site(model, site)
    prompts = [model.tokenize(prompt, close=False).row(0) for prompt in samples.prompts]
    rows = [
        (*prompt, *samples.token_ids(index, number))
        for index, prompt in enumerate(prompts)
        for number in range(samples.n)
    ]
    found = last_streams(model, rows, [name])[name]
    return list(found.split(samples.n))


def answer_eigenscores(
    model: HookedTransformer, samples: AnswerSamples, site: str | Any = None, *, alpha: float | Any = ALPHA
) -> Float[np.ndarray, " prompt"]:
    """EigenScore of each prompt's sampled answers; higher is more doubtful.

    Raises:
        ValueError: fewer than two samples of a prompt; and as in `sample_embeddings`.
    """
    if samples.n < 2:
        raise ValueError("EigenScore needs at least two samples of each prompt: sample with n=10")
    return np.array([eigenscore(each, alpha) for each in sample_embeddings(model, samples, site)])


def _site(model: HookedTransformer, site: Any) -> str:
    """The full name."""
    wanted = f"resid_post:{model.cfg.n_layers // 2}" if site is None else site
    names = model.expand_sites(wanted)
    if len(names) != 1:
        raise ValueError(f"site={wanted!r} stands for {len(names)} sites: give one")
    shape = sites.kind_of(names[0]).shape.split()
    if len(shape) != 3 or shape[1] != "pos":
        raise ValueError(
            f"{wanted!r} has shape [{' '.join(shape)}], not one vector a token: choose a stream, resid_post:5"
        )
    return names[0]
