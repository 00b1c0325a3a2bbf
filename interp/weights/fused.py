"""Parts of projections that checkpoints keep as one matrix: query, key and value, or gate and up.

A matrix in Linear layout has its outputs as rows, so a part is a choice of rows. Neighbouring rows are a view of the
file; rows that alternate from head to head have to be copied.
"""

from torch import Tensor

from interp.model import ModelConfig
from interp.weights.family import View

PARTS = ("q", "k", "v")


def check_size(joint: Tensor, axis: int, size: int, cfg: ModelConfig) -> None:
    """ValueError where a joint query, key and value has another size than the configuration gives it."""
    if joint.shape[axis] != size:
        raise ValueError(
            f"has {joint.shape[axis]} outputs, where config.json's {cfg.n_heads} query and {cfg.kv_heads} key heads of "
            f"{cfg.d_head} need {size}"
        )


def grouped(part: str) -> View:
    """Rows [kv_head, queries of it, then its key and its value, d_head] -> those of `part`, for a weight or a bias.

    With a key for each query this is the [head, 3, d_head] of Megatron (GPT-NeoX, BLOOM), with one key for all it is
    Falcon's multi-query layout, and in between that of Falcon 40B.
    """
    assert part in PARTS

    def view(joint: Tensor, cfg: ModelConfig) -> Tensor:
        queries = cfg.n_heads // cfg.kv_heads
        check_size(joint, 0, cfg.kv_heads * (queries + 2) * cfg.d_head, cfg)
        blocks = joint.unflatten(0, (cfg.kv_heads, queries + 2, cfg.d_head))
        start, width = {"q": (0, queries), "k": (queries, 1), "v": (queries + 1, 1)}[part]
        return blocks.narrow(1, start, width).flatten(0, 2)

    return view


def joined(part: str) -> View:
    """All rows of the queries, then all of the keys, then all of the values -> those of `part`, as a view (Phi-3)."""
    assert part in PARTS

    def view(joint: Tensor, cfg: ModelConfig) -> Tensor:
        q, kv = cfg.n_heads * cfg.d_head, cfg.kv_heads * cfg.d_head
        check_size(joint, 0, q + 2 * kv, cfg)
        start, width = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}[part]
        return joint.narrow(0, start, width)

    return view


def half(index: int) -> View:
    """The first (0) or second (1) half of the rows, as a view: the gate or the up projection of a gated MLP."""

    def view(joint: Tensor, _cfg: ModelConfig) -> Tensor:
        width = joint.shape[0] // 2
        if joint.shape[0] % 2:
            raise ValueError(f"has {joint.shape[0]} rows, which two equal parts cannot have")
        return joint.narrow(0, index * width, width)

    return view
