"""ModelConfig: everything that decides what a transformer computes, as one frozen, checked value."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ACTIVATIONS = ("silu", "gelu", "gelu_new", "relu")
NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned", "none")


@dataclass(frozen=True)
class RopeScaling:
    """Stretching of the rotary frequencies for contexts longer than the training one."""

    kind: str
    """`linear` divides every frequency by `factor`; `llama3` only the low ones (Llama 3.1's rule)."""
    factor: float
    """How many times longer the new context is."""
    low_freq_factor: float = 1.0
    """`llama3`: wavelengths above original_n_ctx / low_freq_factor are divided by `factor`."""
    high_freq_factor: float = 4.0
    """`llama3`: wavelengths below original_n_ctx / high_freq_factor stay as they are."""
    original_n_ctx: int = 8192
    """`llama3`: the context length of the pre-training."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ValueError(
                f"rope scaling {self.kind!r} is not supported (linear and llama3 are); a model loaded without it would "
                "be silently wrong beyond its first tokens, so it is refused"
            )
        if self.factor < 1.0:
            raise ValueError(f"rope scaling factor must be at least 1, got {self.factor}")


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of one decoder. Sizes are counts, never derived from the weights in silence."""

    n_layers: int
    """Number of blocks."""
    d_model: int
    """Width of the residual stream."""
    n_heads: int
    """Query heads in each block."""
    d_head: int
    """Width of one head."""
    d_mlp: int
    """Hidden width of the MLP."""
    d_vocab: int
    """Rows of the embedding."""
    n_ctx: int
    """Longest text, in tokens."""
    n_kv_heads: int | None = None
    """Key and value heads: n_heads is multi-head, 1 multi-query, in between grouped-query. None means n_heads."""
    act_fn: str = "silu"
    """silu, gelu (erf), gelu_new (tanh approximation) or relu."""
    gated_mlp: bool = True
    """SwiGLU-style MLP: act(gate(x)) * up(x)."""
    norm: str = "rms"
    """`rms` (RMSNorm) or `layer` (LayerNorm)."""
    norm_eps: float = 1e-5
    """Added to the variance."""
    positional: str = "rope"
    """`rope` (half pairing), `learned` or `none`."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Stretching of the rotary frequencies, None for none."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    """Biases in the MLP."""
    tie_embeddings: bool = True
    """The unembedding is the embedding's transpose."""
    family: str = "custom"
    """Which loader the weights came from."""
    name: str = "custom"
    """What people call the model; stands in every card."""

    def __post_init__(self) -> None:
        for field in ("n_layers", "d_model", "n_heads", "d_head", "d_mlp", "d_vocab", "n_ctx"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.kv_heads < 1 or self.n_heads % self.kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        for field, known in (("act_fn", ACTIVATIONS), ("norm", NORMS), ("positional", POSITIONS)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown; known are {', '.join(known)}")
        if self.positional == "rope" and self.d_head % 2:
            raise ValueError(f"rotary positions need an even d_head, got {self.d_head}")

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, never None."""
        return self.n_kv_heads if self.n_kv_heads is not None else self.n_heads

    @property
    def n_params(self) -> int:
        """Number of weights, the tied embedding counted once."""
        d, h, k, m = self.d_model, self.n_heads * self.d_head, self.kv_heads * self.d_head, self.d_mlp
        norm = d * (2 if self.norm == "layer" else 1)
        attn = d * (h + 2 * k) + h * d + (h + 2 * k) * self.qkv_bias + d * self.out_bias
        mlp = (3 if self.gated_mlp else 2) * d * m
        mlp += ((2 if self.gated_mlp else 1) * m + d) * self.mlp_bias
        embed = self.d_vocab * d * (1 if self.tie_embeddings else 2)
        embed += self.n_ctx * d if self.positional == "learned" else 0
        return self.n_layers * (attn + mlp + 2 * norm) + norm + embed

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `ModelConfig.from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The inverse of `to_dict`; an unknown key is an error."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown model configuration keys {unknown}; known are {sorted(known)}")
        rest = dict(values)
        scaling = rest.pop("rope_scaling", None)
        return cls(**rest, rope_scaling=RopeScaling(**scaling) if isinstance(scaling, Mapping) else scaling)
