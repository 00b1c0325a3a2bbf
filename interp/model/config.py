"""ModelConfig: everything that decides what a transformer computes, as one frozen, checked value."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ACTIVATIONS = ("silu", "gelu", "gelu_new", "relu")
NORMS = ("rms", "layer", "none")
POSITIONS = ("rope", "learned", "sinusoidal", "alibi", "none")
PLACEMENTS = ("pre", "post", "sandwich", "post_ln")
ROPE_SCALINGS = ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True)
class RopeScaling:
    """Stretching of the rotary frequencies for contexts longer than the training one."""

    kind: str
    """`linear` divides every frequency by `factor`; `ntk` raises the base instead; `dynamic` is ntk by the length of the
    text; `yarn` (arXiv 2309.00071) and `llama3` (Llama 3.1's rule) stretch long waves only; `longrope` (arXiv 2402.13753)
    has a factor for each frequency."""
    factor: float
    """How many times longer the new context is."""
    low_freq_factor: float = 1.0
    """`llama3`: wavelengths above original_n_ctx / low_freq_factor are divided by `factor`."""
    high_freq_factor: float = 4.0
    """`llama3`: wavelengths below original_n_ctx / high_freq_factor stay as they are."""
    original_n_ctx: int = 8192
    """`llama3`, `yarn`, `dynamic`, `longrope`: the context length of the pre-training."""
    beta_fast: float = 32.0
    """`yarn`: pairs with more turns than this in the original context stay as they are."""
    beta_slow: float = 1.0
    """`yarn`: pairs with fewer turns than this are divided by `factor`."""
    attention_factor: float | None = None
    """`yarn`, `longrope`: what cos and sin are multiplied by; None takes the paper's rule."""
    mscale: float | None = None
    """`yarn` as DeepSeek writes it: the strength of that rule, with `mscale_all_dim`."""
    mscale_all_dim: float | None = None
    """`yarn` as DeepSeek writes it: cos and sin get the quotient of the two rules."""
    truncate: bool = True
    """`yarn`: the bounds between stretched and kept pairs are whole numbers."""
    short_factor: tuple[float, ...] = ()
    """`longrope`: a divisor for each frequency in texts up to the original context."""
    long_factor: tuple[float, ...] = ()
    """`longrope`: the same in longer texts."""

    def __post_init__(self) -> None:
        if self.kind not in ROPE_SCALINGS:
            raise ValueError(
                f"rope scaling {self.kind!r} is not supported ({', '.join(ROPE_SCALINGS)} are); a model loaded without it "
                "would be silently wrong beyond its first tokens, so it is refused"
            )
        if self.factor < 1.0:
            raise ValueError(f"rope scaling factor must be at least 1, got {self.factor}")
        if self.original_n_ctx < 1:
            raise ValueError(f"rope scaling original_n_ctx must be at least 1, got {self.original_n_ctx}")
        for field in ("short_factor", "long_factor"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if self.kind == "longrope" and not (self.short_factor and self.long_factor):
            raise ValueError("longrope needs short_factor and long_factor")


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP: a router sends each token to a few of many small MLPs."""

    n_experts: int
    """MLPs that the router chooses from."""
    top_k: int
    """How many of them a token goes to."""
    d_expert: int
    """Hidden width of one expert."""
    n_shared: int = 0
    """Experts that every token goes to, as one MLP of n_shared x d_expert."""
    score: str = "softmax"
    """`softmax` over all experts, or `sigmoid` of each (DeepSeek-V3)."""
    normalize: bool = True
    """The chosen experts' weights are divided by their sum."""
    scale: float = 1.0
    """The weights are multiplied by this in the end."""
    bias: bool = False
    """A bias for each expert that the choice sees and the weights do not: balancing without an auxiliary loss
    (arXiv 2408.15664)."""
    n_groups: int = 1
    """Groups of experts, of which a token may use `top_groups` (DeepSeek-V3)."""
    top_groups: int = 1
    """Groups that a token may use; the best two experts of a group make its score."""
    layers: tuple[int, ...] | None = None
    """Layers that have experts; None means all. The others have a plain MLP of width d_mlp."""

    def __post_init__(self) -> None:
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
        if not 1 <= self.top_k <= self.n_experts:
            raise ValueError(f"top_k must lie in 1..{self.n_experts} (n_experts), got {self.top_k}")
        if self.d_expert < 1 or self.n_shared < 0:
            raise ValueError(f"d_expert={self.d_expert}, n_shared={self.n_shared}: at least 1 and 0")
        if self.score not in ("softmax", "sigmoid"):
            raise ValueError(f"score={self.score!r} is unknown; known are softmax and sigmoid")
        if self.n_groups < 1 or self.n_experts % self.n_groups or not 1 <= self.top_groups <= self.n_groups:
            raise ValueError(
                f"{self.n_experts} experts in {self.n_groups} groups, {self.top_groups} of them open: the groups must be "
                "equal, and open at least one"
            )
        if self.top_k > self.top_groups * (self.n_experts // self.n_groups):
            raise ValueError(f"top_k={self.top_k} experts do not fit into {self.top_groups} groups")


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values come from one small vector a token."""

    kv_rank: int
    """Width of the vector that keys and values are made from, and that the cache keeps."""
    d_rope: int
    """Rotated dimensions of a query and key; the key's are shared by all heads."""
    d_v: int
    """Width of a value head."""
    q_rank: int | None = None
    """Width of the vector that queries are made from; None makes them from the stream itself."""

    def __post_init__(self) -> None:
        for field in ("kv_rank", "d_rope", "d_v"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.d_rope % 2:
            raise ValueError(f"d_rope must be even, got {self.d_rope}")


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
        for field in ("n_layers", "d_model", "n_heads", "d_head", "d_vocab", "n_ctx"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.d_mlp < 0:
            raise ValueError(f"d_mlp must be at least 0, got {self.d_mlp}")
        if self.window_layers is not None:
            object.__setattr__(self, "window_layers", tuple(self.window_layers))
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.kv_heads < 1 or self.n_heads % self.kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        for field, known in CHOICES.items():
            if getattr(self, field) not in known:
                raise ValueError(f"{field}={getattr(self, field)!r} is unknown; known are {', '.join(known)}")
        self._check_positions()
        self._check_parts()

    def _check_positions(self) -> None:
        if self.positional == "rope" and (self.rotary % 2 or not 0 < self.rotary <= self.d_head):
            raise ValueError(f"rotary positions need an even number of dimensions up to d_head, got {self.rotary}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
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

    def kv_cache_bytes(self, n_tokens: int, batch: int = 1, dtype: Any = None) -> int:
        """Bytes that the KV cache of a generation takes.

        Args:
            n_tokens: prompt and new tokens.
            batch: texts.
            dtype: a torch dtype or its name ("float32"); None means float32.
        """
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
        """The inverse of `to_dict`; an unknown key is an error."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown model configuration keys {unknown}; known are {sorted(known)}")
        rest = _tuples(values)
        for field, kind in (("rope_scaling", RopeScaling), ("latent", Latent), ("experts", Experts)):
            if isinstance(rest.get(field), Mapping):
                rest[field] = kind(**_tuples(rest[field]))
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
