"""What goes into a pass and what comes out: token ids in every form that people pass, padding, and the logits."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model.config import ModelConfig
from interp.tokens import Tokens


class Logits(Tensor):
    """Logits [batch pos d_vocab] that remember their tokens, so that rows of pads are not read by mistake."""

    # Results of operations are plain tensors: they are no longer the logits of these tokens.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    tokens: Tokens

    @property
    def last(self) -> Float[Tensor, "batch d_vocab"]:
        """The logits at each text's last real token."""
        rows = torch.arange(self.shape[0], device=self.device)
        return self.as_subclass(Tensor)[rows, self.tokens.last.to(self.device)]


def refuse_encoder(cfg: ModelConfig, what: str) -> None:
    """ValueError if the model is an encoder: `what`, which needs the prediction of a next token, means nothing there."""
    if not cfg.causal:
        raise ValueError(
            f"{cfg.name} is an encoder: its tokens see those after them and predict themselves, so {what} means nothing"
        )


def refuse_not_finite(resid: Float[Tensor, "batch pos d_model"], tokens: Tokens) -> None:
    """ValueError if the last stream of a real token is NaN or infinite: every figure made from it would be wrong."""
    bad = ~torch.isfinite(resid.detach()).all(-1) & tokens.mask
    if bad.any():
        row, pos = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the residual stream is NaN or infinite at text {row}, position {pos}: a hook or an intervention wrote it, the "
            "weights are damaged or were never set (HookedTransformer(cfg, seed=0) draws them), or "
            f"{str(resid.dtype).removeprefix('torch.')} is too narrow"
        )


def refuse_broken_scores(sums: list[Tensor], resid: Float[Tensor, "batch pos d_model"], tokens: Tokens) -> None:
    """ValueError if a query or key is NaN or infinite and the stream does not show it: a fused kernel hides it in finite
    values. Where the stream shows it, whoever reads the stream can say at which token."""
    broken = (~torch.isfinite(torch.stack(sums))).nonzero()
    if len(broken) and bool(torch.isfinite(resid.detach())[tokens.mask].all()):
        raise ValueError(
            f"queries or keys are NaN or infinite in attention layer {int(broken[0])} of this pass: a hook or an intervention "
            "wrote it, the weights are damaged or were never set (HookedTransformer(cfg, seed=0) draws them), or "
            f"{str(resid.dtype).removeprefix('torch.')} is too narrow"
        )


def tokens_from_ids(x: Any) -> Tokens:
    if isinstance(x, list | tuple) and len({len(row) for row in x if isinstance(row, list | tuple)}) > 1:
        raise ValueError(
            "rows of token ids must have one length; pad them and say which are real: interp.Tokens(ids, mask)"
        )
    try:
        ids = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected text, texts, token ids or Tokens, got {type(x).__name__}: {error}") from error
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim not in (1, 2):
        raise ValueError(
            f"token ids must be integers of shape [pos] or [batch pos], got {ids.dtype} {tuple(ids.shape)}"
            if ids.numel()
            else "the text is empty: there is no token to run the model on"
        )
    ids = ids.long() if ids.ndim == 2 else ids.long()[None]
    return Tokens(ids, torch.ones_like(ids, dtype=torch.bool), False, None)


def left_padded(tokens: Tokens) -> Tokens:
    """The same texts with their pads on the left, so that every row's next token is the last place."""
    if tokens.documents is not None or tokens.parents is not None:
        raise ValueError("joined texts cannot be continued: generate from each text on its own")
    if bool(tokens.mask[:, -1].all()):
        return tokens
    order = tokens.mask.int().argsort(dim=1, stable=True)
    return Tokens(tokens.ids.gather(1, order), tokens.mask.gather(1, order), tokens.bos_added, tokens.texts)
