"""The calls that users of TransformerLens know, on our own model: text to tokens and back, directions, a prompt's test.

They follow TransformerLens' defaults where those differ from ours, and say so: `to_tokens` puts a BOS before a text unless
told otherwise, and cuts it to the context; `model.tokenize` follows the tokenizer's own rule and refuses what does not fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model.act_names import get_act_name
from interp.model.inputs import refuse_encoder
from interp.model.named_weights import NamedWeights
from interp.model.norm import accumulate
from interp.tokens import Tokenizer

WITHOUT_BOS = ("bloom", "gpt_neox", "qwen2", "qwen3")
"""Families that were trained on texts without a BOS: TransformerLens' defaults put none before their texts."""
TokenLike = str | int | Sequence[str] | Sequence[int] | Tensor
"""One token or several: a text that is one token, an id, or a list or tensor of them."""


@dataclass(frozen=True, eq=False)
class PromptTest:
    """How well a model answers a prompt."""

    prompt: list[str]
    """Tokens of the prompt, the BOS with them."""
    answers: pd.DataFrame
    """A row for each token of the answer, or for the first token of each of several: `answer, position, rank, token, id,
    logit, probability`. Rank 0 is the model's first choice; an answer's later tokens are judged after its earlier ones."""
    top: pd.DataFrame
    """The model's own choices at the same places: `position, rank, token, id, logit, probability`."""

    @property
    def rank(self) -> int:
        """Of the first answer's first token."""
        return int(self.answers["rank"].iloc[0])


class LensStyle(NamedWeights):
    """The part of HookedTransformer that reads like TransformerLens."""

    tokenizer: Tokenizer | None
    get_act_name = staticmethod(get_act_name)

    # ------------------------------------------------------------------------------------------------ text and tokens

    def to_tokens(
        self,
        input: str | Sequence[str],  # TransformerLens' name
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        move_to_device: bool = True,
        truncate: bool = True,
    ) -> Int[Tensor, "batch pos"]:
        """Token ids of a text or several, always with a batch axis.

        Args:
            input: the text or texts.
            prepend_bos: put a BOS before each, where it does not stand there already. None means yes where the tokenizer
                has one, or an end-of-text token that serves as one (GPT-2); families trained without it (`WITHOUT_BOS`) get none.
            padding_side: "right" (None), or "left" for texts of one length: ids alone do not say which of them are pads,
                and left pads would shift every position. `model.tokenize(texts, pad="left")` keeps the mask.
            move_to_device: to the model's device; else they stay on the CPU.
            truncate: cut each text to the context, from its end.

        Raises:
            ValueError: no tokenizer, no BOS to prepend, no text, or left padding of texts of unequal length.
        """
        tokenizer, texts = self._need_tokenizer(), [input] if isinstance(input, str) else list(input)
        if not texts:
            raise ValueError("there is no text: the list is empty")
        if padding_side not in (None, "left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {padding_side!r}")
        bos = self._bos(prepend_bos)
        rows = [tokenizer.encode(text, bos=False) for text in texts]
        rows = [row if bos is None or row[:1] == [bos] else [bos, *row] for row in rows]
        rows = [row[: self.cfg.n_ctx] for row in rows] if truncate else rows
        width = max(map(len, rows))
        if padding_side == "left" and any(len(row) < width for row in rows):
            raise ValueError(
                "left padding makes ids that no mask goes with, and every position after a pad would be wrong; "
                "model.tokenize(texts, pad='left') gives ids with their mask"
            )
        ids = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in rows], dtype=torch.long)
        return ids.to(next(self.parameters()).device) if move_to_device else ids

    def to_string(self, tokens: int | Sequence[Any] | Tensor | np.ndarray) -> str | list[str]:
        """Text of ids: one for an id or a row of them, a list for a batch. Special tokens are spelled out."""
        tokenizer, ids = self._need_tokenizer(), _ids(tokens)
        if ids.ndim > 2:
            raise ValueError(f"tokens must be [pos] or [batch pos], got shape {tuple(ids.shape)}")
        return [tokenizer.decode(row) for row in ids] if ids.ndim == 2 else tokenizer.decode(ids.reshape(-1))

    def to_str_tokens(
        self,
        input: str | Sequence[Any] | Tensor | np.ndarray,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> list[str] | list[list[str]]:
        """Each token as text: of a text, of ids [pos] or [1 pos], or of each of a list of those.

        Args:
            input: text or ids.
            prepend_bos: as in `to_tokens`, for texts.
            padding_side: as in `to_tokens`.
        """
        if isinstance(input, list | tuple) and not all(isinstance(entry, int) for entry in input):
            return [self.to_str_tokens(entry, prepend_bos, padding_side) for entry in input]  # pyright: ignore[reportReturnType]
        ids = self.to_tokens(input, prepend_bos, padding_side) if isinstance(input, str) else _ids(input)
        if ids.ndim > 2 or (ids.ndim == 2 and ids.shape[0] != 1):
            raise ValueError(f"tokens must be those of one text, got shape {tuple(ids.shape)}; pass a list of rows")
        return self._need_tokenizer().to_str_tokens(ids.reshape(-1))

    def to_single_token(self, string: str) -> int:
        """The id of a text that is exactly one token; mind the space before a word."""
        return self._need_tokenizer().to_single_token(string)

    def to_single_str_token(self, int_token: int) -> str:
        """The text of one id."""
        return self._need_tokenizer().to_str_tokens([int_token])[0]

    def get_token_position(
        self,
        single_token: str | int | Tensor,
        input: str | Sequence[int] | Tensor,
        mode: str = "first",
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> int:
        """Where a token stands in a text, or in ids [pos] or [1 pos].

        Args:
            single_token: a text that is one token, or an id.
            input: text or ids.
            mode: "first" or "last" of several places.
            prepend_bos: as in `to_tokens`; a BOS counts as a position.
            padding_side: as in `to_tokens`.

        Raises:
            ValueError: it does not occur.
        """
        if mode not in ("first", "last"):
            raise ValueError(f"mode must be 'first' or 'last', got {mode!r}")
        ids = self.to_tokens(input, prepend_bos, padding_side) if isinstance(input, str) else _ids(input)
        if ids.ndim > 2 or (ids.ndim == 2 and ids.shape[0] != 1):
            raise ValueError(f"tokens must be those of one text, got shape {tuple(ids.shape)}")
        wanted = self.to_single_token(single_token) if isinstance(single_token, str) else int(single_token)
        places = (ids.reshape(-1) == wanted).nonzero()[:, 0].tolist()
        if not places:
            raise ValueError(f"token {single_token!r} does not occur in {self.to_str_tokens(ids)}")
        return places[0] if mode == "first" else places[-1]

    # ----------------------------------------------------------------------------------------------- loss, directions

    def loss_fn(
        self,
        logits: Float[Tensor, "batch pos d_vocab"],
        tokens: Int[Tensor, "batch pos"],
        attention_mask: Tensor | None = None,
        per_token: bool = False,
    ) -> Tensor:
        """Mean next-token loss in nats of given logits; `per_token` gives [batch, pos - 1], 0 where there is none.

        Args:
            logits: of every place.
            tokens: the ids at these places.
            attention_mask: 1 or True for real tokens; None for all.
            per_token: no mean.
        """
        wide = accumulate(logits.as_subclass(Tensor)[:, :-1]).transpose(1, 2)
        losses = torch.nn.functional.cross_entropy(wide, tokens[:, 1:].to(wide.device), reduction="none")
        if attention_mask is None:
            return losses if per_token else losses.mean()
        real = attention_mask.bool().to(losses.device)
        real = real[:, 1:] & real[:, :-1]
        if not bool(real.any()):
            raise ValueError("attention_mask leaves no token that follows another: there is nothing to predict")
        losses = losses.masked_fill(~real, 0.0)
        return losses if per_token else losses.sum() / real.sum()

    def tokens_to_residual_directions(self, tokens: TokenLike, gain: bool = True) -> Float[Tensor, "*shape d_model"]:
        """The direction in the final stream whose product, over the final norm's scale, is a token's logit.

        Args:
            tokens: one token, or a list or tensor of any shape.
            gain: count the gain of the final norm. TransformerLens leaves it out, which is right on models that have it
                folded in (`model.processed()`), where both are one.

        Returns:
            Columns of W_U, [*shape d_model]; the shape of one token is that of a vector.
        """
        if isinstance(tokens, str):
            ids = torch.tensor(self.to_single_token(tokens))
        elif isinstance(tokens, list | tuple) and any(isinstance(token, str) for token in tokens):
            ids = torch.tensor([self.to_single_token(t) if isinstance(t, str) else int(t) for t in tokens])
        else:
            ids = _ids(tokens)
        ids = ids.reshape(()) if ids.numel() == 1 else ids
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.cfg.d_vocab:
            raise ValueError(f"token ids must lie in 0..{self.cfg.d_vocab - 1}, got {int(ids.min())}..{int(ids.max())}")
        directions = self.unembedding()[ids.to(next(self.parameters()).device)]
        multiplier = self.ln_final.multiplier() if gain and self.ln_final is not None else None
        return directions if multiplier is None else directions * multiplier

    # ---------------------------------------------------------------------------------------------------------- prompt

    @torch.no_grad()
    def test_prompt(
        self,
        prompt: str,
        answer: str | Sequence[str],
        prepend_space_to_answer: bool = True,
        prepend_bos: bool | None = None,
        top_k: int = 10,
    ) -> PromptTest:
        """Rank, logit and probability of an answer, and what the model would rather say. Nothing is printed.

        Args:
            prompt: the text before the answer.
            answer: one answer, of one token or several; or several, whose first tokens are compared.
            prepend_space_to_answer: put a space before an answer that has none.
            prepend_bos: as in `to_tokens`, for the prompt.
            top_k: how many of the model's choices to list.
        """
        refuse_encoder(self.cfg, "the next token after a prompt")
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        answers = [answer] if isinstance(answer, str) else list(answer)
        if not answers or not all(answers):
            raise ValueError(f"an answer is empty: {answer!r}")
        if prepend_space_to_answer:
            answers = [text if text.startswith(" ") else " " + text for text in answers]
        start = self.to_tokens(prompt, prepend_bos)
        rows = [self.to_tokens(text, prepend_bos=False) for text in answers]
        if len(answers) > 1:
            rows = [row[:, :1] for row in rows]
            places = self(start)[0, -1:].as_subclass(Tensor).float()
        else:
            places = self(torch.cat([start, rows[0]], 1))[0, start.shape[1] - 1 : -1].as_subclass(Tensor).float()
        found, top = [], []
        for text, row in zip(answers, rows):
            for place, token in enumerate(row[0].tolist()):
                rank = int((places[place] > places[place, token]).sum())
                found.append((text, start.shape[1] + place, rank, *self._choice(places[place], token)))
        for place, logits in enumerate(places):
            best = logits.topk(min(top_k, self.cfg.d_vocab)).indices.tolist()
            top += [(start.shape[1] + place, rank, *self._choice(logits, token)) for rank, token in enumerate(best)]
        columns = ["position", "rank", "token", "id", "logit", "probability"]
        return PromptTest(
            self._need_tokenizer().to_str_tokens(start[0]),
            pd.DataFrame(found, columns=pd.Index(["answer", *columns])),
            pd.DataFrame(top, columns=pd.Index(columns)),
        )

    def _choice(self, logits: Float[Tensor, "d_vocab"], token: int) -> tuple[str, int, float, float]:
        """(text, id, logit, probability) of one token at one place."""
        return self.to_single_str_token(token), token, float(logits[token]), float(logits.softmax(-1)[token])

    # ---------------------------------------------------------------------------------------------------------- checks

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer; load it with one, or work with token ids")
        return self.tokenizer

    def _bos(self, prepend_bos: bool | None) -> int | None:
        """The token to put before a text, None for none."""
        tokenizer = self._need_tokenizer()
        if prepend_bos is False or (prepend_bos is None and self.cfg.family in WITHOUT_BOS):
            return None
        bos = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
        if bos is None and prepend_bos:
            raise ValueError(f"prepend_bos=True, but {tokenizer.name} has neither a BOS nor an end-of-text token")
        return bos


def _ids(tokens: Any) -> Int[Tensor, "..."]:
    """Ids as a tensor, whatever holds them."""
    ids = torch.stack(list(tokens)) if isinstance(tokens, list) and tokens and isinstance(tokens[0], Tensor) else tokens
    ids = torch.as_tensor(ids)
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"token ids must be integers, got {ids.dtype}")
    return ids.long()
