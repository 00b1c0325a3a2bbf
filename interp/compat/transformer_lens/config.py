"""HookedTransformerConfig: TransformerLens' configuration by its own names, and the way between it and ModelConfig.

`architecture` reads a configuration of TransformerLens 2.x or 3.x, or this module's own, which has the same attributes.
Whatever our transformer does not compute is refused by name: a model that is converted computes the same.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from interp.model import HookedTransformer, ModelConfig, RopeScaling

ACTIVATIONS = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
POSITIONS = {"standard": "learned", "rotary": "rope", "alibi": "alibi", "none": "none"}
NORMS = {"LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms", None: "none"}
POST_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
"""Architectures whose norms stand behind attention and MLP."""
FULL_QK_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoeForCausalLM")
"""Architectures that norm queries and keys over all heads at once."""


# Not frozen: notebooks set its flags on a running model, as TransformerLens lets them.
@dataclass
class HookedTransformerConfig:
    """The architecture by TransformerLens' names. Fields that our transformer has no use for do not exist."""

    n_layers: int
    """Number of blocks."""
    d_model: int
    """Width of the residual stream."""
    n_ctx: int
    """Longest text, in tokens."""
    d_head: int
    """Width of one head."""
    model_name: str = "custom"
    """What people call the model."""
    n_heads: int = -1
    """Query heads; -1 means d_model // d_head."""
    d_mlp: int | None = None
    """Hidden width of the MLP; None means 4 * d_model."""
    act_fn: str | None = None
    """relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh or silu."""
    d_vocab: int = -1
    """Rows of the embedding; -1 takes the tokenizer's size."""
    d_vocab_out: int = -1
    """Columns of the unembedding; must equal d_vocab. -1 takes it."""
    eps: float = 1e-5
    """Added to the variance in norms."""
    normalization_type: str | None = "LN"
    """LN, RMS, None, or LNPre and RMSPre, whose gains and biases are folded into the weights that read them."""
    positional_embedding_type: str = "standard"
    """standard (learned), rotary, alibi or none."""
    attn_only: bool = False
    """No MLPs."""
    gated_mlp: bool = False
    """act(gate(x)) * in(x)."""
    parallel_attn_mlp: bool = False
    """Attention and MLP both read the block's input."""
    n_key_value_heads: int | None = None
    """Key and value heads; None means n_heads."""
    attention_dir: str = "causal"
    """causal or bidirectional."""
    use_attn_scale: bool = True
    """Scores are divided by attn_scale."""
    attn_scale: float = -1.0
    """-1 means sqrt(d_head)."""
    scale_attn_by_inverse_layer_idx: bool = False
    """Not supported."""
    attn_scores_soft_cap: float = -1.0
    """Scores become cap * tanh(scores / cap) where it is above 0."""
    output_logits_soft_cap: float = -1.0
    """The same for logits."""
    rotary_dim: int | None = None
    """Dimensions of a head that turn; None means all."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    rotary_adjacent_pairs: bool = False
    """Dimension 2i turns with 2i + 1 (GPT-J), not i with i + rotary_dim / 2."""
    use_local_attn: bool = False
    """Some layers see a window only."""
    window_size: int | None = None
    """Tokens that a windowed layer sees back."""
    attn_types: list[str] | None = None
    """global or local, for every layer."""
    use_normalization_before_and_after: bool = False
    """A norm before and one behind attention and MLP (Gemma 2)."""
    use_qk_norm: bool = False
    """RMSNorm over each query and key head."""
    post_embedding_ln: bool = False
    """LayerNorm of the token embedding (BLOOM)."""
    final_rms: bool = False
    """An RMSNorm in the end of a model with LayerNorms; not supported."""
    original_architecture: str | None = None
    """Class of the Hugging Face model."""
    tokenizer_name: str | None = None
    """Folder of a tokenizer.json, read where no tokenizer is given."""
    default_prepend_bos: bool = True
    """Texts begin with a BOS unless a call says otherwise."""
    init_weights: bool = True
    """Draw N(0, initializer_range)."""
    initializer_range: float = -1.0
    """-1 means 0.8 / sqrt(d_model)."""
    seed: int | None = None
    """Of that draw; None means 0."""
    device: str | None = None
    """Where the model lives; None means cuda where there is one, else cpu."""
    dtype: torch.dtype = torch.float32
    """Of the parameters."""
    use_attn_result: bool = False
    """`hook_result` is recorded when no site is named."""
    use_split_qkv_input: bool = False
    """`hook_q_input`, `hook_k_input` and `hook_v_input` are recorded when no site is named."""
    use_hook_mlp_in: bool = False
    """`hook_mlp_in` is recorded when no site is named."""
    use_attn_in: bool = False
    """`hook_attn_in` is recorded when no site is named."""

    def __new__(cls, *_args: Any, **options: Any) -> "HookedTransformerConfig":
        """ValueError, not TypeError, for a field that there is not: notebooks pass those of TransformerLens."""
        _refuse_unknown(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.n_heads == -1:
            if self.d_model % self.d_head:
                raise ValueError(f"d_model={self.d_model} is no multiple of d_head={self.d_head}; pass n_heads")
            self.n_heads = self.d_model // self.d_head
        if self.act_fn is None and not self.attn_only:
            raise ValueError(f"act_fn is missing; choose one of {', '.join(ACTIVATIONS)}, or attn_only=True")
        self.d_mlp = 4 * self.d_model if self.d_mlp is None else self.d_mlp
        self.d_vocab_out = self.d_vocab if self.d_vocab_out == -1 else self.d_vocab_out
        if self.use_attn_scale and self.attn_scale == -1.0:
            self.attn_scale = self.d_head**0.5
        if self.initializer_range < 0:
            self.initializer_range = 0.8 / self.d_model**0.5
        if self.positional_embedding_type == "rotary" and self.rotary_dim is None:
            self.rotary_dim = self.d_head
        if self.device is None:
            self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def n_params(self) -> int:
        """Weights of the blocks' matrices, as TransformerLens counts: no embeddings, norms or biases."""
        assert self.d_mlp is not None
        mlp = 0 if self.attn_only else self.d_model * self.d_mlp * (2 + self.gated_mlp)
        return self.n_layers * (4 * self.d_model * self.d_head * self.n_heads + mlp)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HookedTransformerConfig":
        """The inverse of `to_dict`; an unknown field is an error."""
        return cls(**values)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(HookedTransformerConfig)})
    if unknown:
        raise ValueError(
            f"HookedTransformerConfig has no {', '.join(unknown)} here: our transformer does not compute it by "
            "TransformerLens' conventions, or has no use for it; leave it out, or build an interp.model.ModelConfig"
        )


def architecture(cfg: Any) -> ModelConfig:
    """A TransformerLens configuration as ours, with all the biases that TransformerLens keeps, zero or not.

    Args:
        cfg: TransformerLens' HookedTransformerConfig, or ours.

    Raises:
        ValueError: something that our transformer does not compute, by its name.
    """
    _refuse_unsupported(cfg)
    attn_only, norm = bool(cfg.attn_only), NORMS[cfg.normalization_type]
    rotary = cfg.positional_embedding_type == "rotary"
    soft_cap, final_cap = _get(cfg, "attn_scores_soft_cap", -1.0), _get(cfg, "output_logits_soft_cap", -1.0)
    windowed = _windowed(cfg)
    qk_norm = "full" if cfg.original_architecture in FULL_QK_NORM else "head" if _get(cfg, "use_qk_norm") else "none"
    return ModelConfig(
        n_layers=cfg.n_layers,
        d_model=cfg.d_model,
        n_heads=cfg.n_heads,
        n_kv_heads=_get(cfg, "n_key_value_heads"),
        d_head=cfg.d_head,
        d_mlp=0 if attn_only else cfg.d_mlp,
        d_vocab=cfg.d_vocab,
        n_ctx=cfg.n_ctx,
        act_fn="relu" if attn_only else ACTIVATIONS[cfg.act_fn],
        gated_mlp=bool(cfg.gated_mlp) and not attn_only,
        norm=norm,
        norm_eps=float(cfg.eps),
        norm_placement=_placement(cfg),
        final_norm=norm != "none",
        parallel=bool(cfg.parallel_attn_mlp) and not attn_only,
        positional=POSITIONS[cfg.positional_embedding_type],
        rope_theta=float(_get(cfg, "rotary_base", 10000.0)) if rotary else 10000.0,
        rope_scaling=_rope_scaling(cfg) if rotary else None,
        rope_pairing="adjacent" if rotary and _get(cfg, "rotary_adjacent_pairs") else "half",
        rotary_dim=cfg.rotary_dim if rotary and cfg.rotary_dim != cfg.d_head else None,
        rope_theta_local=_get(cfg, "rotary_base_local") if rotary and windowed else None,
        window=cfg.window_size if windowed else None,
        window_layers=windowed or None,
        causal=cfg.attention_dir == "causal",
        qk_norm=qk_norm,
        attn_scale=1.0 / float(cfg.attn_scale) if cfg.use_attn_scale else 1.0,
        attn_softcap=soft_cap if soft_cap > 0 else None,
        final_softcap=final_cap if final_cap > 0 else None,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        unembed_bias=True,
        embed_norm="token" if _get(cfg, "post_embedding_ln") else "none",
        tie_embeddings=False,
        family="transformer_lens",
        name=cfg.model_name,
    )


def lens_config(model: HookedTransformer) -> HookedTransformerConfig:
    """What notebooks read of `model.cfg`, for a model that was not made from a TransformerLens configuration."""
    cfg = model.cfg
    norm = {"layer": "LN", "rms": "RMS", "none": None}[cfg.norm]
    norm = f"{norm}Pre" if norm is not None and _folded(model) else norm
    local = [layer for layer in range(cfg.n_layers) if cfg.has_window(layer)]
    return HookedTransformerConfig(
        n_layers=cfg.n_layers,
        d_model=cfg.d_model,
        n_ctx=cfg.n_ctx,
        d_head=cfg.d_head,
        model_name=cfg.name,
        n_heads=cfg.n_heads,
        d_mlp=cfg.d_mlp or None,
        act_fn=cfg.act_fn,
        d_vocab=cfg.d_vocab,
        eps=cfg.norm_eps,
        normalization_type=norm,
        positional_embedding_type={"learned": "standard", "rope": "rotary"}.get(cfg.positional, cfg.positional),
        attn_only=cfg.d_mlp == 0,
        gated_mlp=cfg.gated_mlp,
        parallel_attn_mlp=cfg.parallel,
        n_key_value_heads=cfg.kv_heads if cfg.kv_heads != cfg.n_heads else None,
        attention_dir="causal" if cfg.causal else "bidirectional",
        attn_scale=1.0 / cfg.scaling,
        attn_scores_soft_cap=cfg.attn_softcap or -1.0,
        output_logits_soft_cap=cfg.final_softcap or -1.0,
        rotary_dim=cfg.rotary if cfg.positional == "rope" else None,
        rotary_base=cfg.rope_theta,
        rotary_adjacent_pairs=cfg.rope_pairing == "adjacent",
        use_local_attn=bool(local),
        window_size=cfg.window,
        attn_types=["local" if layer in local else "global" for layer in range(cfg.n_layers)] if local else None,
        use_normalization_before_and_after=cfg.norm_placement == "sandwich",
        use_qk_norm=cfg.qk_norm == "head",
        post_embedding_ln=cfg.embed_norm == "token",
        device=str(model.device),
        dtype=model.dtype,
    )


def _folded(model: HookedTransformer) -> bool:
    """Whether no norm has a gain or bias of its own any more."""
    norms = {name: weight for name, weight in model.named_parameters() if ".ln" in f".{name}"}
    one = 0.0 if model.cfg.norm_offset else 1.0
    return all(bool((weight == (one if name.endswith("weight") else 0.0)).all()) for name, weight in norms.items())


def _get(cfg: Any, name: str, default: Any = None) -> Any:
    """An option that older versions of TransformerLens lack."""
    return getattr(cfg, name, default)


def _refuse_unsupported(cfg: Any) -> None:
    heads, wide = cfg.n_heads, _get(cfg, "d_vocab_out", -1)
    unsupported = {
        f"positional_embedding_type={cfg.positional_embedding_type!r}": cfg.positional_embedding_type not in POSITIONS,
        f"normalization_type={cfg.normalization_type!r}": cfg.normalization_type not in NORMS,
        f"act_fn={cfg.act_fn!r}": not cfg.attn_only and cfg.act_fn not in ACTIVATIONS,
        f"d_vocab_out={wide} beside d_vocab={cfg.d_vocab}": wide not in (-1, cfg.d_vocab),
        f"ALiBi with {heads} heads, which is no power of two": cfg.positional_embedding_type == "alibi"
        and heads & (heads - 1) != 0,
        "final_rms=True beside LayerNorms": bool(_get(cfg, "final_rms")) and cfg.normalization_type in ("LN", "LNPre"),
        "a mixture of experts (num_experts)": bool(_get(cfg, "num_experts")),
        "4-bit weights (load_in_4bit)": bool(_get(cfg, "load_in_4bit")),
        "scale_attn_by_inverse_layer_idx": bool(_get(cfg, "scale_attn_by_inverse_layer_idx")),
        "use_attention_sinks": bool(_get(cfg, "use_attention_sinks")),
        "use_logn_attn": bool(_get(cfg, "use_logn_attn")),
        "use_dynamic_ntk_rope": bool(_get(cfg, "use_dynamic_ntk_rope")),
        "clip_qkv": _get(cfg, "clip_qkv") is not None,
        f"the architecture {_get(cfg, 'original_architecture')}": _get(cfg, "original_architecture")
        in ("OlmoeForCausalLM",),
    }
    found = [name for name, there in unsupported.items() if there]
    if found:
        raise ValueError(
            f"{cfg.model_name}: our transformer does not compute {'; '.join(found)}. The model would compute something else, so "
            "it is not converted; if its family is among interp.models(), take the checkpoint itself: interp.load(folder)"
        )


def _placement(cfg: Any) -> str:
    if _get(cfg, "original_architecture") in POST_NORM:
        return "post"
    return "sandwich" if _get(cfg, "use_normalization_before_and_after") else "pre"


def _windowed(cfg: Any) -> tuple[int, ...]:
    """The layers that see a window."""
    if not _get(cfg, "use_local_attn"):
        return ()
    return tuple(layer for layer, kind in enumerate(cfg.attn_types) if kind == "local")


def _rope_scaling(cfg: Any) -> RopeScaling | None:
    if _get(cfg, "use_NTK_by_parts_rope"):
        return RopeScaling(
            kind="llama3",
            factor=cfg.NTK_by_parts_factor,
            low_freq_factor=cfg.NTK_by_parts_low_freq_factor,
            high_freq_factor=cfg.NTK_by_parts_high_freq_factor,
            original_n_ctx=_get(cfg, "NTK_original_ctx_len", 8192),
        )
    if _get(cfg, "use_yarn_rope"):
        return RopeScaling(
            kind="yarn",
            factor=cfg.yarn_factor,
            original_n_ctx=cfg.yarn_original_max_position_embeddings,
            beta_fast=cfg.yarn_beta_fast,
            beta_slow=cfg.yarn_beta_slow,
            attention_factor=cfg.yarn_attention_factor,
            truncate=_get(cfg, "yarn_truncate", True),
        )
    factor = _get(cfg, "rotary_scaling_factor", 1.0)
    return RopeScaling(kind="linear", factor=factor) if factor != 1.0 else None
