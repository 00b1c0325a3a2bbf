"""Words that are one token each, and the activations in which a model reads them.

1. Of the vocabulary every token that is a space and three or more ASCII letters; of one word in several spellings the
   lower-case one. So no word stands in two parts of a split.
2. A sample of them, drawn letter by letter, so that rare first letters are not lost.
3. Each is read behind the same prompt, and its rows are those at its own position. In a causal model they do not depend on
   what would come after; the examples in the prompt tell the model what is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from interp import sites as site_names
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROMPT = "First letters: stone S, apple A, river R,"
"""What stands before each word."""


def vocabulary_words(model: HookedTransformer, per_letter: int | Any = 100, seed: int = 0) -> list[str]:
    """Lower-case-first words of at least three letters that are one token behind a space, sorted.

    Args:
        model: the model.
        per_letter: most words of one first letter.
        seed: of the choice.

    Raises:
        ValueError: a model without a tokenizer, fewer than one word a letter wanted, or a vocabulary without such words.
    """
    if not isinstance(per_letter, int) or per_letter < 1:
        raise ValueError(f"per_letter is a number of words, at least 1; got {per_letter!r}")
    words: dict[str, str] = {}
    for text in _token_texts(model):
        word = text[1:]
        if text[:1] == " " and len(word) >= 3 and word.isascii() and word.isalpha():
            # of `Stone` and `stone` the second: it sorts last
            words[word.lower()] = max(words.get(word.lower(), ""), word)
    if not words:
        raise ValueError("the vocabulary has no token that is a space and a word of three letters: give words=")
    rng = np.random.default_rng(seed)
    chosen = []
    for letter in LETTERS:
        mine = sorted(word for key, word in words.items() if key[0] == letter)
        chosen += [mine[i] for i in rng.permutation(len(mine))[:per_letter]]
    return sorted(chosen, key=lambda word: (word.lower(), word))


def first_letters(words: Sequence[str]) -> list[str]:
    """Lower-case first letter of each word. ValueError for other signs than ASCII letters, or a word that stands twice."""
    bad = [word for word in words if not (isinstance(word, str) and word.isascii() and word.isalpha())]
    if bad:
        raise ValueError(
            f"{len(bad)} words are not made of ASCII letters alone (the first is {bad[0]!r}): leave them out"
        )
    lowered = [word.lower() for word in words]
    if len(set(lowered)) < len(lowered):
        twice = next(word for word in lowered if lowered.count(word) > 1)
        raise ValueError(f"{twice!r} stands more than once in the words, which would leak between the parts")
    return [word[0] for word in lowered]


def _token_texts(model: HookedTransformer) -> list[str]:
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it has no words: load it with one")
    tokenizer = model.tokenizer
    return [tokenizer.decode([i]) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]


@torch.no_grad()
def word_activations(
    model: HookedTransformer,
    words: Sequence[str],
    sites: Sequence[str],
    *,
    prompt: str = PROMPT,
    batch_size: int = 64,
) -> Mapping[str, Float32[Tensor, "word d"]]:
    """Rows of each site at the last token of each word, read behind the prompt.

    Args:
        model: a causal model.
        words: without their space.
        sites: full names or shorthand.
        prompt: what stands before.
        batch_size: words at a time.

    Returns:
        Full site name -> rows in the order of the words.

    Raises:
        ValueError: an encoder, an unknown site, a site without a row per token, or a text that does not fit the context.
    """
    refuse_encoder(model.cfg, "what a model reads of a word before it sees what comes after")
    names = [name for site in sites for name in model.expand_sites([site])]
    layers = [site_names.layer_of(name) for name in names]
    stop = max(layer for layer in layers if layer is not None) + 1 if None not in layers else None
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for start in range(0, len(words), batch_size):
        tokens = model.tokenize([f"{prompt} {word}" for word in words[start : start + batch_size]])
        last = tokens.mask.sum(1) - 1
        _, cache = model.run_with_cache(tokens, names, stop_at_layer=stop)
        for name in names:
            value = cache[name]
            if value.shape[:2] != tokens.ids.shape:
                raise ValueError(f"{name} has the shape {list(value.shape)}: it has no row for each token")
            parts[name].append(value[torch.arange(len(last), device=last.device), last].flatten(1).float().cpu())
    return {name: torch.cat(rows) for name, rows in parts.items()}
