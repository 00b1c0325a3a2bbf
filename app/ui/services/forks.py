"""Where a prompt can be forked: its text up to each token, and the most probable ways to go on from there."""

from dataclasses import dataclass

import streamlit as st

import interp
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT


@dataclass(frozen=True)
class Fork:
    """A place in a prompt."""

    before: str | None
    """The prompt up to and with the token; None where the tokens before it are no whole characters of it."""
    following: tuple[tuple[str, float, str], ...]
    """The most probable next tokens: label, probability, text to add."""


def fork(prompt: str, pos: int, k: int = 8) -> Fork:
    """How the prompt can go on after the token at `pos`.

    Raises:
        ValueError: a prompt that cannot be analysed.
    """
    return _fork(engine().fingerprint, token_ids(prompt)[: pos + 1], prompt, k)


@st.cache_data(**KEPT)
def _fork(fingerprint: str, ids: tuple[int, ...], prompt: str, k: int) -> Fork:
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        tokenizer = model.tokenizer
        before = _start(tokenizer, ids, prompt)
        top = model(list(ids))[0, -1].float().softmax(-1).topk(min(k, model.cfg.d_vocab))
        found = []
        for token, probability in zip(top.indices.tolist(), top.values.tolist()):
            view = tokenizer.views([token])[0]
            found.append((view.display, probability, view.text))
    return Fork(before, tuple(found))


def _start(tokenizer: interp.Tokenizer, ids: tuple[int, ...], prompt: str) -> str | None:
    """The text of the tokens, without one that the tokenizer puts in front, where the prompt begins with it."""
    views = tokenizer.views(list(ids))
    for first in (0, 1):
        text = "".join(view.text for view in views[first:])
        if text and prompt.startswith(text):
            return text
    return None
