"""ModelConfig: everything that decides what a transformer computes, as one frozen, checked value."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interp.model.config_checks import check_keys, check_kinds, of_kind, refuse_unused, require
from interp.model.config_parts import Experts, Latent, RopeScaling

ACTIVATIONS = ("silu", "gelu", "gelu_new", "relu")
NORMS = ("rms", "layer", "none")
POSITIONS = ("rope", "learned", "sinusoidal", "alibi", "none")
PLACEMENTS = ("pre", "post", "sandwich", "post_ln")


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of one transformer. Sizes are counts, never derived from the weights in silence."""

    n_layers: int
    """Number of blocks."""
    d_model: int
    """Width of the residual stream."""
    n_heads: int
    """Query heads in each block."""
    d_head: int
    """Width of one head: of its queries and keys where latent attention has values of another width."""
    d_mlp: int
    """Hidden width of the MLP; 0 for a model of attention alone."""
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
    """`rms` (RMSNorm), `layer` (LayerNorm) or `none`."""
    norm_eps: float = 1e-5
    """Added to the variance."""
    norm_offset: bool = False
    """The gain of an RMSNorm is 1 + weight (Gemma)."""
    norm_placement: str = "pre"
    """`pre`: x + f(norm(x)). `post`: x + norm(f(x)) (OLMo-2). `sandwich`: x + norm(f(norm(x))) (Gemma 2).
    `post_ln`: norm(x + f(x)) (BERT)."""
    final_norm: bool = True
    """A norm before the unembedding."""
    parallel: bool = False
    """Attention and MLP both read the block's input: x + attn(norm(x)) + mlp(norm(x)) (GPT-J)."""
    shared_norm: bool = False
    """With `parallel`: attention and MLP read one norm (GPT-J), not one each (GPT-NeoX)."""
    positional: str = "rope"
    """`rope`, `learned`, `sinusoidal`, `alibi` or `none`."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Stretching of the rotary frequencies, None for none."""
    rope_pairing: str = "half"
    """`half` turns dimension i with i + rotary_dim/2 (GPT-NeoX, Llama), `adjacent` 2i with 2i + 1 (GPT-J)."""
    rotary_dim: int | None = None
    """Leading dimensions of a head that turn; None means all."""
    rope_theta_local: float | None = None
    """Another base, without scaling, in the layers that have a window (Gemma 3)."""
    alibi_scaled: bool = False
    """ALiBi's bias is added before the division by sqrt(d_head), and is rounded to bfloat16 (Falcon)."""
    window: int | None = None
    """A query sees this many tokens back, itself counted; None for all."""
    window_layers: tuple[int, ...] | None = None
    """Layers that have the window; None means all."""
    causal: bool = True
    """A query sees no later token. False in encoders."""
    qk_norm: str = "none"
    """RMSNorm of queries and keys before rotation: `head` over each head (Qwen3, Gemma 3), `full` over all of them
    (OLMo-2), or `none`."""
    attn_scale: float | None = None
    """What scores are multiplied by; None means 1/sqrt(d_head)."""
    attn_softcap: float | None = None
    """Scores become cap * tanh(scores / cap) (Gemma 2)."""
    attention_dropout: float = 0.0
    """Share of the pattern's entries that are dropped while training."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    """Biases in the MLP."""
    latent: Latent | None = None
    """Multi-head latent attention, None for the usual kinds."""
    experts: Experts | None = None
    """Mixture of experts, None for plain MLPs."""
    embed_scale: float | None = None
    """The token embedding is multiplied by this (Gemma: sqrt(d_model), rounded to the weights' precision)."""
    embed_norm: str = "none"
    """LayerNorm of the embedding: `token` before positions are added (BLOOM), `sum` after (BERT), or `none`."""
    n_token_types: int = 0
    """Rows of the token-type embedding (BERT: 2); every token is of type 0."""
    tie_embeddings: bool = True
    """The unembedding is the embedding's transpose."""
    unembed_bias: bool = False
    """A bias on the logits."""
    mlm_head: bool = False
    """Dense layer, activation and LayerNorm before the unembedding (BERT's masked language model)."""
    final_softcap: float | None = None
    """Logits become cap * tanh(logits / cap) (Gemma 2)."""
    family: str = "custom"
    """Which loader the weights came from."""
    name: str = "custom"
    """What people call the model; stands in every card."""

    def __post_init__(self) -> None:
        check_kinds(self)
        for field in ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
        for field in ("d_mlp", "n_token_types", "norm_eps"):
            require(getattr(self, field) >= 0, field, getattr(self, field), "at least 0")
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.kv_heads < 1 or self.n_heads % self.kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        for field, known in CHOICES.items():
            if getattr(self, field) not in known:
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown; known are {', '.join(known)}")
        self._check_use()
        self._check_positions()
        self._check_window()
        self._check_parts()

    def _check_use(self) -> None:
        """Nothing that is given may go unread."""
        if self.positional != "rope":
            rotary = ("rope_theta", "rope_scaling", "rope_pairing", "rotary_dim", "rope_theta_local")
            refuse_unused(self, rotary, "positional='rope'")
        if self.positional != "alibi":
            refuse_unused(self, ("alibi_scaled",), "positional='alibi'")
        if self.window is None:
            refuse_unused(self, ("window_layers", "rope_theta_local"), "a window")

    def _check_positions(self) -> None:
        if self.positional != "rope":
            return
        if self.rotary % 2 or not 0 < self.rotary <= self.d_head:
            raise ValueError(f"rotary positions need an even number of dimensions up to d_head, got {self.rotary}")
        for field in ("rope_theta", "rope_theta_local"):
            value = getattr(self, field)
            require(value is None or value > 0, field, value, "above 0")
        scaling = self.rope_scaling
        if scaling is None:
            return
        if scaling.kind in ("ntk", "dynamic") and self.rotary < 4:
            raise ValueError(f"{scaling.kind} scaling needs at least 4 rotated dimensions, got {self.rotary}")
        if scaling.kind == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"yarn scaling needs rope_theta above 1, got {self.rope_theta}")
        for field in ("short_factor", "long_factor"):
            factors = getattr(scaling, field)
            if factors and len(factors) != self.rotary // 2:
                raise ValueError(
                    f"longrope has {len(factors)} factors in {field} for {self.rotary // 2} frequencies: give one for each"
                )

    def _check_window(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        require(self.window_layers != (), "window_layers", self.window_layers, "some layers, or None for all")
        layers = {"window_layers": self.window_layers, "experts.layers": self.experts and self.experts.layers}
        for field, chosen in layers.items():
            if chosen and not all(0 <= layer < self.n_layers for layer in chosen):
                raise ValueError(f"{field}={chosen} must lie in 0..{self.n_layers - 1}")
        if not self.causal and self.window is not None:
            raise ValueError("a window without a causal mask is not supported")

    def _check_parts(self) -> None:
        if self.parallel and (self.norm_placement != "pre" or not self.d_mlp):
            raise ValueError("parallel blocks need norm_placement='pre' and an MLP")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm=True needs parallel=True")
        if self.norm_offset and self.norm != "rms":
            raise ValueError("norm_offset=True needs norm='rms'")
        if not 0 <= self.attention_dropout < 1:
            raise ValueError(f"attention_dropout must lie in [0, 1), got {self.attention_dropout}")
        for field in ("attn_softcap", "final_softcap", "attn_scale", "embed_scale"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ValueError(f"{field} must be greater than 0, got {value}")
        if self.latent is not None:
            if self.latent.d_rope >= self.d_head or self.positional != "rope" or self.kv_heads != self.n_heads:
                raise ValueError("latent attention needs rotary positions, d_rope below d_head, and n_kv_heads=n_heads")
            if self.qk_norm != "none" or self.rotary_dim is not None:
                raise ValueError("latent attention has norms and rotated dimensions of its own")

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, never None."""
        return self.n_kv_heads if self.n_kv_heads is not None else self.n_heads

    @property
    def rotary(self) -> int:
        """Dimensions of a head that turn, where positions are rotary."""
        if self.latent is not None:
            return self.latent.d_rope
        return self.d_head if self.rotary_dim is None else self.rotary_dim

    @property
    def d_value(self) -> int:
        """Width of a value head."""
        return self.d_head if self.latent is None else self.latent.d_v

    @property
    def scaling(self) -> float:
        """What scores are multiplied by."""
        return self.d_head**-0.5 if self.attn_scale is None else self.attn_scale

    def has_window(self, layer: int) -> bool:
        """Whether a layer's queries see `window` tokens only."""
        return self.window is not None and (self.window_layers is None or layer in self.window_layers)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of its MLP."""
        return self.experts is not None and (self.experts.layers is None or layer in self.experts.layers)

    def cache_capacity(self, layer: int, n_tokens: int) -> int:
        """Places that a layer's cache has for a text of n_tokens: a window's keys and some slack, or all."""
        if not self.has_window(layer):
            return n_tokens
        assert self.window is not None
        # The slack lets keys lie in order: they are moved to the front once in `slack` tokens, not at each.
        return min(n_tokens, self.window + max(16, self.window // 8))

    def kv_cache_bytes(self, n_tokens: Any, batch: Any = 1, dtype: Any = None) -> int:
        """Bytes that the KV cache of a generation takes.

        Args:
            n_tokens: prompt and new tokens.
            batch: texts.
            dtype: a torch dtype or its name ("float32"); None means float32.

        Raises:
            ValueError: n_tokens or batch is no whole number from 1 on, or an unknown dtype.
        """
        n_tokens, batch = of_kind("n_tokens", n_tokens, int), of_kind("batch", batch, int)
        if n_tokens < 1 or batch < 1:
            raise ValueError(f"n_tokens and batch must be at least 1, got {n_tokens} and {batch}")
        if self.latent is not None:
            width = self.latent.kv_rank + self.latent.d_rope
        else:
            width = 2 * self.kv_heads * self.d_head
        places = sum(self.cache_capacity(layer, n_tokens) for layer in range(self.n_layers))
        return places * batch * width * _itemsize(dtype)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `ModelConfig.from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The inverse of `to_dict`. ValueError for an unknown key, a missing one, and what the constructor refuses."""
        rest = _tuples(values)
        for field, kind in (("rope_scaling", RopeScaling), ("latent", Latent), ("experts", Experts)):
            if isinstance(rest.get(field), Mapping):
                check_keys(kind, rest[field], f"{field} of the model configuration")
                rest[field] = kind(**_tuples(rest[field]))
        check_keys(cls, rest, "the model configuration")
        return cls(**rest)


CHOICES: dict[str, tuple[str, ...]] = {
    "act_fn": ACTIVATIONS,
    "norm": NORMS,
    "norm_placement": PLACEMENTS,
    "positional": POSITIONS,
    "rope_pairing": ("half", "adjacent"),
    "qk_norm": ("none", "head", "full"),
    "embed_norm": ("none", "token", "sum"),
}


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where the configuration has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _itemsize(dtype: Any) -> int:
    sizes = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in sizes:
        raise ValueError(f"dtype {dtype!r} is unknown; known are {', '.join(sizes)}")
    return sizes[name]
