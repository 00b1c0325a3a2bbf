"""The parts of a ModelConfig that only some models have: stretched rotations, experts, latent attention."""

from dataclasses import dataclass

from interp.model.config_checks import check_kinds, refuse_unused, require

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
        check_kinds(self, "RopeScaling.")
        at_least_one = {"factor": self.factor, "original_n_ctx": self.original_n_ctx}
        for field, value in at_least_one.items():
            require(value >= 1, f"RopeScaling.{field}", value, "at least 1")
        for field in ("low_freq_factor", "beta_slow", "attention_factor"):
            value = getattr(self, field)
            require(value is None or value > 0, f"RopeScaling.{field}", value, "above 0")
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            least, value = getattr(self, low), getattr(self, high)
            require(value > least, f"RopeScaling.{high}", value, f"above {low}, which is {least}")
        self._check_use()

    def _check_use(self) -> None:
        """Nothing that is given may go unread, and `longrope` must have its factors."""
        for kind, fields in _OF_KIND.items():
            if self.kind != kind:
                refuse_unused(self, fields, f"kind={kind!r}", "RopeScaling.")
        if self.kind not in ("yarn", "longrope") and self.attention_factor != 1:  # 1 is what the others do
            refuse_unused(self, ("attention_factor",), "kind='yarn' or 'longrope'", "RopeScaling.")
        if self.kind == "longrope" and not (self.short_factor and self.long_factor):
            raise ValueError("longrope needs short_factor and long_factor")
        for field in ("short_factor", "long_factor"):
            factors = getattr(self, field)
            require(all(each > 0 for each in factors), f"RopeScaling.{field}", factors, "divisors above 0")


_OF_KIND = {
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("short_factor", "long_factor"),
}
"""Fields that one kind of scaling reads and no other."""


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
        check_kinds(self, "Experts.")
        require(self.scale > 0, "Experts.scale", self.scale, "above 0")
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
        check_kinds(self, "Latent.")
        for field in ("kv_rank", "d_rope", "d_v", "q_rank"):
            value = getattr(self, field)
            require(value is None or value >= 1, f"Latent.{field}", value, "at least 1")
        require(self.d_rope % 2 == 0, "Latent.d_rope", self.d_rope, "even")
