"""The fused mixing of values: PyTorch's kernels, or flash-attn where it does more.

PyTorch's scaled_dot_product_attention is exact and everywhere; on CUDA it has flash kernels of its own. What it lacks
are soft-caps and windows without a dense mask: those go to flash-attn on CUDA in half precision, where the `cuda` extra is
installed. A soft-cap anywhere else has no fused kernel, and the caller computes the pattern.
"""

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def fused_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: Bool[Tensor, "batch 1 query key"] | None,
    causal: bool,
    bias: Float[Tensor, "batch head 1 key"] | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    dropout: float,
) -> Float[Tensor, "batch head query d_v"] | None:
    """softmax(q k^T * scale + bias) v over the allowed keys, None where no fused kernel can do it.

    Args:
        mask: True where a query may attend to a key; None for all keys, or for the causal triangle.
        causal: with mask None, cut the triangle.
        bias: added to the scaled scores.
        softcap: cap on the scores.
        window: the layer's window; already in `mask`, if there is one.
        dropout: share of the pattern that is dropped.
    """
    if softcap is not None:
        plain = mask is None and bias is None and q.shape[2] == k.shape[2]
        if not (plain and causal and _flash_attn(q.device.type, q.dtype)):
            return None
        from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]

        back = (-1 if window is None else window - 1, 0)
        mixed = flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p=dropout, softmax_scale=scale, causal=True,
            window_size=back, softcap=softcap,
        )  # fmt: skip
        return mixed.transpose(1, 2)
    allowed: Tensor | None = mask
    if bias is not None:
        allowed, causal = _biased(bias, mask, causal, q.shape[2], k.shape[2]), False
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


@contextmanager
def products_of(n_rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Inside the block, products of a single bfloat16 row on a CPU run in PyTorch's own kernel.

    oneDNN, which PyTorch takes for all bfloat16 products, reads the weights at half the speed where there is one row to
    multiply; both sum in fp32 and round once. The switch is the process's: products of other threads are as right
    meanwhile, and slower if they have many rows.
    """
    alone = n_rows == 1 and dtype == torch.bfloat16 and device.type == "cpu"
    if not (alone and torch.backends.mkldnn.enabled):
        yield
        return
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


def _biased(bias: Tensor, mask: Tensor | None, causal: bool, n_queries: int, n_keys: int) -> Tensor:
    """The bias with -inf where a query may not look."""
    if mask is None and causal:
        mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=bias.device).tril()
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)


@functools.cache
def _flash_attn(device: str, dtype: torch.dtype) -> bool:
    """Whether flash-attn can be used."""
    half = dtype in (torch.float16, torch.bfloat16)
    return device == "cuda" and half and importlib.util.find_spec("flash_attn") is not None
