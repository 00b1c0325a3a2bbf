"""`transformer_lens.utils`: the small functions that notebooks call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from torch.nn import functional

from interp.compat.transformer_lens.absent import UTILS, not_offered
from interp.model.act_names import get_act_name
from interp.model.factored import FactoredMatrix
from interp.model.factored import composition_scores as _composition_scores

__getattr__ = not_offered(UTILS, __name__)

__all__ = [
    "LocallyOverridenDefaults",
    "Output",
    "Slice",
    "composition_scores",
    "filter_dict_by_prefix",
    "gelu_fast",
    "gelu_new",
    "get_act_name",
    "get_attention_mask",
    "get_corner",
    "get_cumsum_along_dim",
    "get_device",
    "get_input_with_manually_prepended_bos",
    "get_nested_attr",
    "is_lower_triangular",
    "is_square",
    "lm_accuracy",
    "lm_cross_entropy_loss",
    "override_or_use_default_value",
    "remove_batch_dim",
    "repeat_along_head_dimension",
    "sample_logits",
    "set_nested_attr",
    "solu",
    "test_prompt",
    "to_numpy",
    "transpose",
]


class Output(NamedTuple):
    """What `return_type="both"` gives; a tuple, as TransformerLens returns it."""

    logits: Tensor
    """[batch pos d_vocab]"""
    loss: Tensor
    """A scalar, or [batch, pos - 1]."""


# ---------------------------------------------------------------------------------------------------------------- arrays


def to_numpy(tensor: Any) -> np.ndarray:
    """A tensor on any device, a list, an array or a number as a numpy array."""
    if isinstance(tensor, Tensor):
        return tensor.detach().cpu().numpy()
    if isinstance(tensor, np.ndarray | list | tuple | int | float | bool):
        return np.array(tensor)
    raise ValueError(f"to_numpy takes tensors, arrays, lists and numbers, got {type(tensor).__name__}")


def get_corner(tensor: Any, n: int = 3) -> Any:
    """The first n entries along every axis."""
    if isinstance(tensor, FactoredMatrix):
        return tensor.get_corner(n)
    return tensor[tuple(slice(n) for _ in range(tensor.ndim))]


def remove_batch_dim(tensor: Tensor) -> Tensor:
    """Without a first axis of size 1; others stay."""
    return tensor[0] if tensor.shape[0] == 1 else tensor


def transpose(tensor: Float[Tensor, "... a b"]) -> Float[Tensor, "... b a"]:
    """The last two axes exchanged."""
    return tensor.transpose(-1, -2)


def is_square(x: Tensor) -> bool:
    """A matrix with as many rows as columns."""
    return x.ndim == 2 and x.shape[0] == x.shape[1]


def is_lower_triangular(x: Tensor) -> bool:
    """A square matrix with zeros above the diagonal."""
    return is_square(x) and bool((x == x.tril()).all())


def get_cumsum_along_dim(tensor: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """Running sums along an axis, from its end if `reverse`."""
    return tensor.flip(dim).cumsum(dim).flip(dim) if reverse else tensor.cumsum(dim)


def repeat_along_head_dimension(tensor: Float[Tensor, "batch pos d"], n_heads: int) -> Tensor:
    """[batch pos d] -> [batch pos head d], a copy for each head."""
    return tensor[:, :, None].repeat(1, 1, n_heads, 1)


def filter_dict_by_prefix(dictionary: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries below `prefix`, without it."""
    start = prefix if prefix.endswith(".") else prefix + "."
    return {name.removeprefix(start): value for name, value in dictionary.items() if name.startswith(start)}


def get_nested_attr(obj: Any, attr_str: str) -> Any:
    """`get_nested_attr(model, "blocks.0.attn.W_Q")`: attributes, and indices of lists."""
    for name in attr_str.split("."):
        obj = obj[int(name)] if name.isdigit() else getattr(obj, name)
    return obj


def set_nested_attr(obj: Any, attr_str: str, value: Any) -> None:
    """Assign what `get_nested_attr` reads."""
    parent, _, name = attr_str.rpartition(".")
    setattr(get_nested_attr(obj, parent) if parent else obj, name, value)


def get_device() -> torch.device:
    """cuda where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def composition_scores(left: FactoredMatrix, right: FactoredMatrix, broadcast_dims: bool = True) -> Tensor:
    """|left right| / (|left| |right|), Frobenius norms (Elhage et al. 2021).

    Args:
        left: circuits of earlier heads.
        right: circuits of later heads.
        broadcast_dims: every pair of the leading axes, [*left *right]; otherwise the leading axes go together.
    """
    if broadcast_dims:
        return _composition_scores(left, right)
    product = left @ right
    assert isinstance(product, FactoredMatrix)
    return product.norm() / left.norm() / right.norm()


class Slice:
    """Part of one axis, in words: a number drops the axis, a tuple is (start, stop, step), a list picks, None keeps all."""

    def __init__(self, input_slice: Any = None) -> None:
        self.mode = "identity"
        self.slice: Any = slice(None)
        if isinstance(input_slice, int | np.integer):
            self.mode, self.slice = "int", int(input_slice)
        elif isinstance(input_slice, tuple | slice):
            self.mode, self.slice = "slice", slice(*input_slice) if isinstance(input_slice, tuple) else input_slice
        elif isinstance(input_slice, list | Tensor | np.ndarray):
            self.mode, self.slice = "array", to_numpy(input_slice)
        elif input_slice is not None:
            raise ValueError(f"a slice is a number, a tuple, a list of indices or None, got {input_slice!r}")

    @classmethod
    def unwrap(cls, slice_input: Any) -> "Slice":
        """A Slice of anything that makes one. A number keeps its axis, as `run_with_cache(pos_slice=)` needs it."""
        if isinstance(slice_input, Slice):
            return slice_input
        return cls([int(slice_input)] if isinstance(slice_input, int | np.integer) else slice_input)

    def apply(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensor with this part of axis `dim`."""
        index: list[Any] = [slice(None)] * tensor.ndim
        index[dim] = torch.as_tensor(self.slice, device=tensor.device) if self.mode == "array" else self.slice
        return tensor[tuple(index)]

    def indices(self, max_ctx: int | None = None) -> np.ndarray:
        """The positions that it picks of an axis of size `max_ctx`."""
        if self.mode == "int":
            return np.array([self.slice], dtype=np.int64)
        if max_ctx is None:
            raise ValueError("max_ctx is needed for a slice that is not a number")
        return np.arange(max_ctx, dtype=np.int64)[self.slice]

    def __repr__(self) -> str:
        return f"Slice({self.slice!r}, {self.mode})"


# ------------------------------------------------------------------------------------------------------- language models


def gelu_new(input: Tensor) -> Tensor:
    """GPT-2's GELU, by tanh."""
    return functional.gelu(input, approximate="tanh")


def gelu_fast(input: Tensor) -> Tensor:
    """The same function under another name."""
    return functional.gelu(input, approximate="tanh")


def solu(input: Tensor) -> Tensor:
    """x * softmax(x) over the last axis."""
    return input * input.softmax(-1)


def lm_cross_entropy_loss(
    logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Tensor | None = None,
    per_token: bool = False,
) -> Tensor:
    """Next-token loss in nats: the mean over real tokens, or [batch, pos - 1] with zeros where there is none.

    Args:
        logits: of every place.
        tokens: the ids at these places.
        attention_mask: 1 for real tokens; None for all.
        per_token: no mean.
    """
    logprobs = logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    if attention_mask is None:
        return -logprobs if per_token else -logprobs.mean()
    real = attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()
    logprobs = logprobs.masked_fill(~real, 0.0)
    return -logprobs if per_token else -logprobs.sum() / real.sum()


def lm_accuracy(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"], per_token: bool = False
) -> Float[Tensor, ""] | Bool[Tensor, "batch next_pos"]:
    """Share of next tokens that are the most probable one, or whether each is."""
    right = logits.argmax(-1)[:, :-1] == tokens[:, 1:]
    return right if per_token else right.sum() / right.numel()


def get_attention_mask(
    tokenizer: Any, tokens: Int[Tensor, "batch pos"], prepend_bos: bool, padding_side: str | None = None
) -> Int[Tensor, "batch pos"]:
    """1 for real tokens, 0 for a row's pads, which stand at the tokenizer's side of it.

    Args:
        tokenizer: `model.tokenizer`; None where there are no pads.
        tokens: ids.
        prepend_bos: the rows begin with a BOS. Where it is the pad too, the last pad on the left is the BOS.
        padding_side: "left" or "right"; None takes the tokenizer's.
    """
    if tokenizer is None:
        return torch.ones_like(tokens)
    side = tokenizer.padding_side if padding_side is None else padding_side
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
    left = side == "left"
    pads = get_cumsum_along_dim((tokens != tokenizer.pad_token_id).int(), -1, reverse=not left) == 0
    if left and prepend_bos and tokenizer.bos_token_id == tokenizer.pad_token_id:
        # The last pad of a row stays; a row without pads is whole already.
        pads = pads & torch.cat([pads[:, 1:], torch.zeros_like(pads[:, :1])], 1)
    return (~pads).to(tokens.dtype)


def get_input_with_manually_prepended_bos(bos_token: str | None, input: str | list[str]) -> str | list[str]:
    """A text or texts behind the BOS; as they are where there is none."""
    if bos_token is None:
        return input
    return bos_token + input if isinstance(input, str) else [bos_token + text for text in input]


def override_or_use_default_value(default_flag: Any, override: Any = None) -> Any:
    """The override unless it is None."""
    return default_flag if override is None else override


class LocallyOverridenDefaults:
    """`with LocallyOverridenDefaults(model, prepend_bos=False):` other defaults for the length of the block.

    Args:
        model: of this module.
        prepend_bos: texts begin with a BOS; None leaves the model's.
        padding_side: "left" or "right"; None leaves the model's.
    """

    def __init__(self, model: Any, *, prepend_bos: bool | None = None, padding_side: str | None = None) -> None:
        if padding_side not in ("left", "right", None):
            raise ValueError(f"padding_side must be 'left' or 'right', got {padding_side!r}")
        self.model, self.wanted = model, (prepend_bos, padding_side)

    def __enter__(self) -> None:
        model = self.model
        self.before = model.cfg.default_prepend_bos, model.padding_side
        prepend_bos, padding_side = map(override_or_use_default_value, self.before, self.wanted)
        model.cfg.default_prepend_bos, model.padding_side = prepend_bos, padding_side

    def __exit__(self, *_error: object) -> None:
        self.model.cfg.default_prepend_bos, self.model.padding_side = self.before


def sample_logits(
    final_logits: Float[Tensor, "batch d_vocab"],
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    freq_penalty: float = 0.0,
    tokens: Int[Tensor, "batch pos"] | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch"]:
    """Draw a token for each row; the most probable one at temperature 0.

    Args:
        final_logits: of the last place.
        top_k: draw from the k most probable tokens.
        top_p: draw from the smallest set with this probability.
        temperature: logits are divided by it.
        freq_penalty: taken off a token's logit for every time that it stands in `tokens`.
        tokens: the text so far.
        generator: None draws from torch's global state, as TransformerLens does.
    """
    if temperature == 0:
        return final_logits.argmax(-1)
    logits = final_logits / temperature
    if freq_penalty:
        if tokens is None:
            raise ValueError("freq_penalty needs tokens=, the text so far")
        counts = torch.zeros_like(logits).scatter_add_(-1, tokens, torch.ones_like(tokens, dtype=logits.dtype))
        logits = logits - freq_penalty * counts
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.masked_fill(
            torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p), -torch.inf
        )
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def show_answer(
    prompt: str,
    answer: str | Sequence[str],
    model: Any,
    prepend_space_to_answer: bool = True,
    print_details: bool = True,
    prepend_bos: bool | None = None,
    top_k: int = 10,
) -> None:
    """Print rank, logit and probability of an answer, and what the model would rather say.

    `model.native.test_prompt` returns the same as tables.
    """
    native = getattr(model, "native", model)
    found = native.test_prompt(prompt, answer, prepend_space_to_answer, prepend_bos, top_k)
    console = Console(highlight=False, soft_wrap=True)
    if print_details:
        console.print(escape(f"Tokenized prompt: {found.prompt}"))
        console.print(escape(f"Tokenized answer: {found.answers.token.tolist()}"))
        for position, answers in found.answers.groupby("position"):
            for row in answers.itertuples():
                console.print(f"Rank: {row.rank:<8} {_choice(row)}", style="bold")
            for choice in found.top[found.top.position == position].itertuples():
                console.print(f"Top {choice.rank}th token. {_choice(choice)}")
    ranks = list(zip(found.answers.token, found.answers["rank"].tolist()))
    console.print(escape(f"Ranks of the answer tokens: {ranks}"))


show_answer.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]  # pytest must not take it for a test
test_prompt = show_answer


def _choice(row: Any) -> str:
    return escape(f"Logit: {row.logit:5.2f} Prob: {row.probability:6.2%} Token: |{row.token}|")
