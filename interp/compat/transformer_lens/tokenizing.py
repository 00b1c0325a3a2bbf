"""Text to ids by TransformerLens' rules, and a tokenizer with the attributes that notebooks read of transformers' one."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.compat.transformer_lens.config import HookedTransformerConfig
from interp.model import HookedTransformer as NativeTransformer
from interp.tokens import Tokenizer, Tokens


@runtime_checkable
class Sided(Protocol):
    """What holds the side of the pads."""

    padding_side: str


class LensTokenizer:
    """Our tokenizer, read as one of transformers: ids and texts of special tokens, encode, decode, call."""

    def __init__(self, native: Tokenizer, model: Sided) -> None:
        self.native, self.model = native, model

    @property
    def padding_side(self) -> str:
        """Side of the pads of several texts."""
        return self.model.padding_side

    @padding_side.setter
    def padding_side(self, side: str) -> None:
        if side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
        self.model.padding_side = side

    @property
    def bos_token_id(self) -> int | None:
        """As TransformerLens sets it: the end-of-text token where there is no other."""
        return self.native.eos_id if self.native.bos_id is None else self.native.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self.native.eos_id

    @property
    def pad_token_id(self) -> int:
        """What fills padded places."""
        return self.native.pad_id

    @property
    def bos_token(self) -> str | None:
        """Text of the BOS."""
        return self._text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-text token."""
        return self._text(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        """Text of the pad."""
        return self._text(self.pad_token_id)

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self.native.backend.id_to_token(token)

    @property
    def name_or_path(self) -> str:
        """Name, for messages."""
        return self.native.name

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.native.vocab_size

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens that stand for no text."""
        return sorted(self.native.special_ids)

    @property
    def vocab(self) -> dict[str, int]:
        """Spelling of every token -> id."""
        return self.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        """Spelling of every token -> id."""
        return self.native.backend.get_vocab()

    def __len__(self) -> int:
        return self.native.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, with a BOS by the tokenizer's own rule."""
        return self.native.encode(text, bos=None if add_special_tokens else False)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_ignored: Any) -> str:
        """Text of an id or several."""
        return self.native.decode(torch.as_tensor(token_ids).reshape(-1), skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **_ignored: Any) -> list[str]:
        """Text of each row."""
        return [self.decode(row, skip_special_tokens) for row in sequences]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Spelling in the vocabulary of an id or several."""
        if isinstance(ids, int):
            return self.native.backend.id_to_token(ids)
        return [self.native.backend.id_to_token(int(i)) for i in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The inverse."""
        if isinstance(tokens, str):
            return self.native.backend.token_to_id(tokens)
        return [self.native.backend.token_to_id(token) for token in tokens]

    def __call__(self, text: str | list[str], return_tensors: str | None = None, **options: Any) -> dict[str, Any]:
        """`{"input_ids", "attention_mask"}`: lists, or padded tensors with return_tensors="pt"."""
        special = options.pop("add_special_tokens", True)
        unknown = sorted(set(options) - {"padding", "truncation"})
        if unknown or options.get("truncation") or return_tensors not in (None, "pt"):
            raise ValueError(
                f"this tokenizer takes text, return_tensors='pt', add_special_tokens and padding, not "
                f"{', '.join(unknown) or 'truncation, or other tensors'}; model.to_tokens cuts texts to the context"
            )
        if return_tensors == "pt":
            tokens = self.native.tokenize(text, None if special else False, self.padding_side)
            return {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
        rows = [self.encode(each, special) for each in ([text] if isinstance(text, str) else text)]
        ids = rows[0] if isinstance(text, str) else rows
        ones = [1] * len(rows[0]) if isinstance(text, str) else [[1] * len(row) for row in rows]
        return {"input_ids": ids, "attention_mask": ones}

    def __repr__(self) -> str:
        return f"LensTokenizer({self.native!r})"


class Tokenizing:
    """The part of HookedTransformer that takes texts."""

    native: NativeTransformer
    cfg: HookedTransformerConfig
    padding_side: str

    def _bos(self, prepend_bos: bool | None) -> bool | None:
        """None leaves the choice to the family's rule."""
        return (None if self.cfg.default_prepend_bos else False) if prepend_bos is None else prepend_bos

    def to_tokens(
        self,
        input: str | Sequence[str],
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        move_to_device: bool = True,
        truncate: bool = True,
    ) -> Int[Tensor, "batch pos"]:
        """Ids of a text or several, padded; a BOS before each unless prepend_bos=False."""
        side = self._side(padding_side)
        texts = [input] if isinstance(input, str) else list(input)
        if side == "right" or len(texts) == 1:
            return self.native.to_tokens(texts, self._bos(prepend_bos), None, move_to_device, truncate)
        ids = self.padded(texts, prepend_bos, side, truncate).ids
        return ids if move_to_device else ids.cpu()

    def padded(
        self, texts: str | list[str], prepend_bos: bool | None, padding_side: str | None, truncate: bool = True
    ) -> Tokens:
        """Texts as ids with their mask."""
        texts = [texts] if isinstance(texts, str) else texts
        bos, side = self._bos(prepend_bos), self._side(padding_side)
        rows = [self.native.to_tokens(text, bos, None, True, truncate)[0] for text in texts]
        assert self.native.tokenizer is not None
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self.native.tokenizer.pad_id, device=self.native.device)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for number, row in enumerate(rows):
            place = slice(len(row)) if side == "right" else slice(width - len(row), width)
            ids[number, place], mask[number, place] = row, True
        return Tokens(ids, mask, texts=texts)

    def _side(self, padding_side: str | None) -> str:
        side = self.padding_side if padding_side is None else padding_side
        if side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
        return side

    def real_tokens(self, ids: Int[Tensor, "batch pos"], prepend_bos: bool | None) -> Bool[Tensor, "batch pos"]:
        """Which of some ids are real: all, unless pads stand on the left.

        Then a row's pads are its first tokens that are the pad; where the pad is the BOS too, the last of them is the
        BOS. Pads on the right need no mask: nothing real sees them.
        """
        real = torch.ones_like(ids, dtype=torch.bool)
        tokenizer = self.tokenizer
        if self.padding_side == "right" or tokenizer is None:
            return real
        pads = ids == tokenizer.pad_token_id
        leading = pads.int().cumprod(1).sum(1)
        if tokenizer.bos_token_id == tokenizer.pad_token_id and self._bos(prepend_bos) is not False:
            leading = (leading - 1).clamp(min=0)
        return torch.arange(ids.shape[1], device=ids.device) >= leading[:, None]

    @property
    def tokenizer(self) -> LensTokenizer | None:
        """Our tokenizer, with the attributes that transformers gives one."""
        return None if self.native.tokenizer is None else LensTokenizer(self.native.tokenizer, self)

    def to_str_tokens(
        self,
        input: Any,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> list[str] | list[list[str]]:
        """Each token as text."""
        return self.native.to_str_tokens(input, self._bos(prepend_bos), padding_side)

    def get_token_position(
        self,
        single_token: Any,
        input: Any,
        mode: str = "first",
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> int:
        """Where a token stands in a text or in ids."""
        return self.native.get_token_position(single_token, input, mode, self._bos(prepend_bos), padding_side)

    def tokens_to_residual_directions(self, tokens: Any) -> Tensor:
        """Columns of W_U as [*shape d_model]; the gain of the final norm is left out, as TransformerLens does."""
        return self.native.tokens_to_residual_directions(tokens, gain=False)
