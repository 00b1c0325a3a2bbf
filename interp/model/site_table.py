"""The table of a model's sites: shapes, what each value is in this architecture, and why some kinds are absent."""

from collections.abc import Mapping

import pandas as pd

from interp import sites
from interp.model.config import ModelConfig

COLUMNS = ("site", "shorthand", "layer", "shape", "size", "meaning", "on_request")


def site_table(
    cfg: ModelConfig, names: list[str], own_sizes: Mapping[str, Mapping[str, int]] | None = None
) -> pd.DataFrame:
    """A row for each site, in the order of computation.

    Args:
        cfg: the architecture.
        names: full names of the sites.
        own_sizes: site -> lengths of axes that the configuration does not say: those of an SAE.
    """
    size = {
        "d_model": cfg.d_model,
        "head": cfg.n_heads,
        "kv_head": cfg.kv_heads,
        "d_head": cfg.d_head,
        "d_v": cfg.d_value,
        "d_mlp": cfg.d_mlp,
        "expert": cfg.experts.n_experts if cfg.experts else 0,
        "k": cfg.experts.top_k if cfg.experts else 0,
    }
    own, rows = meanings(cfg), []
    for name in names:
        kind = sites.kind_of(name)
        shape = kind.shape
        if cfg.latent is not None and kind.kind in ("v", "z"):
            shape = shape.replace("d_head", "d_v")
        known = size | dict((own_sizes or {}).get(name, {}))
        sizes = " ".join(str(known.get(axis, axis)) for axis in shape.split())
        meaning = own.get(kind.kind, kind.meaning)
        rows.append((name, sites.short_name(name), sites.layer_of(name), shape, sizes, meaning, kind.on_request))
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS)).astype({"layer": "Int64"})


def missing_table(cfg: ModelConfig, names: list[str]) -> pd.DataFrame:
    """A row for each kind of site that this model lacks, in all layers or some: kind, layers, why."""
    rows = []
    for kind in sites.KINDS:
        wanted = [kind.template.format(l=layer) for layer in range(cfg.n_layers if "{l}" in kind.template else 1)]
        absent = [name for name in wanted if name not in set(names)]
        if absent:
            layers = "all" if len(absent) == len(wanted) else ", ".join(str(sites.layer_of(name)) for name in absent)
            rows.append((kind.kind, layers if "{l}" in kind.template else "", why_missing(cfg, absent[0])))
    return pd.DataFrame(rows, columns=pd.Index(("kind", "layers", "why")))


def meanings(cfg: ModelConfig) -> dict[str, str]:
    """What differs from the table in `interp/sites.py`: the identities of this kind of block."""
    found: dict[str, str] = {}
    if cfg.parallel:
        found["attn_out"] = "added to the stream beside mlp_out"
        found["mlp_out"] = "added to the stream beside attn_out"
        found["mlp_in"] = "resid_pre as the MLP reads it"
        found["resid_post"] = "resid_pre + attn_out + mlp_out; = resid_pre of the next"
        found["ln2.scale"] = "what the MLP's own norm of resid_pre divides by"
    if cfg.norm_placement in ("post", "sandwich"):
        found["attn_out"] = "ln1_post of (sum of result + b_O); resid_pre + it = resid_mid"
        found["mlp_out"] = "ln2_post of the MLP's output; resid_mid + it = resid_post"
        found["result"] = "z through W_O, before ln1_post"
    if cfg.norm_placement == "post_ln":
        found["ln1.scale"] = "what the norm of resid_mid divides by"
        found["ln2.scale"] = "what the norm of resid_post divides by"
        found["mlp_in"] = "norm of resid_mid, as the MLP reads it"
        found["mlp_out"] = "added to the norm of resid_mid; the sum is resid_post"
        found["resid_pre"] = "stream into the block; = normalized_resid_post before"
        found["resid_post"] = "norm of resid_mid + mlp_out, before its own norm"
    if not cfg.d_mlp and cfg.experts is None:
        found["attn_out"] = "added to the stream; resid_pre + it = resid_post"
    if cfg.embed_scale is not None:
        found["embed"] = f"token embedding times {cfg.embed_scale:g}"
    if cfg.embed_norm == "token":
        found["embed"] = "norm of the token embedding"
    if cfg.latent is not None:
        found |= {"k": "keys made from the latent vector, before rotation", "v": "values made from the latent vector"}
    return found


def why_missing(cfg: ModelConfig, name: str) -> str | None:
    """Why a model of this configuration lacks a site that others have; None for no reason known."""
    kind = sites.kind_of(name).kind
    if kind in sites.SAE_KINDS:
        return "no SAE stands there; inside `with model.splice(sae):` its parts are sites"
    norm = kind.partition(".")[0]
    attention_only = not cfg.d_mlp and cfg.experts is None
    mlp_kinds = ("resid_mid", "mlp_in", "pre", "pre_linear", "post", "mlp_out", "router_logits", "expert_weights")
    reasons = {
        "pos_embed": f"positions are {cfg.positional}: nothing is added to the embedding",
        "token_type_embed": "there are no token types",
        "full_embed": "the sum of the embeddings has no norm",
        "rot_q": f"positions are {cfg.positional}: queries are not rotated",
        "rot_k": f"positions are {cfg.positional}: keys are not rotated",
        "resid_mid": "attention and MLP run in parallel: there is no stream between them",
        "pre_linear": "the MLP is not gated",
        "normalized_resid_post": "the stream itself is not normed",
        "router_logits": "the MLP is dense",
        "expert_weights": "the MLP is dense",
        "expert_indices": "the MLP is dense",
    }
    if attention_only and (kind in (*mlp_kinds, "expert_indices") or norm in ("ln2", "ln2_post")):
        return "the model has no MLPs"
    layer = sites.layer_of(name)
    if kind in ("pre", "pre_linear", "post") and layer is not None and cfg.has_experts(layer):
        return "the layer has experts: a token's neurons lie in the few experts that it goes to"
    if kind in ("attn_in", "q_input", "k_input", "v_input") and cfg.latent is not None:
        return "latent attention makes all heads' keys and values from one vector"
    if norm in sites.NORM_PARTS and cfg.norm == "none":
        return "the model has no norms"
    if norm in ("ln1_post", "ln2_post"):
        return "nothing is normed after attention and MLP"
    if norm == "ln2" and cfg.shared_norm:
        return "attention and MLP read one norm: see ln1"
    if norm in ("ln1", "ln2"):
        return "attention and MLP are normed after, not before: see ln1_post and ln2_post"
    if norm == "ln_final":
        return "there is no norm before the unembedding"
    return reasons.get(kind)


def computed(name: str, from_stream: bool, start: int, stop: int | None) -> bool:
    """Whether a pass computes a site: from a given stream at block `start`, or from the tokens, to before block `stop`."""
    layer = sites.layer_of(name)
    final = name.startswith("ln_final")
    if stop is not None and (final or (layer is not None and layer >= stop)):
        return False
    return not from_stream or final or (layer is not None and layer >= start)
