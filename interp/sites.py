"""Names of places in a model: one table, shorthand, and an answer for a name that does not exist.

Full names and shapes are those of TransformerLens 2.x (`blocks.6.hook_resid_post`). Shorthand names the kind and the
layers: `resid_post:6`, `resid_post:4-12` (both ends included), `resid_post:-1` (the last layer), `pattern:*`, `z:5.3`
(head 3 of layer 5). Layer l means `resid_post:l`, the stream after block l.

Where an SAE stands in the model (`model.splice`) its parts are sites too, named after the place that it writes to:
`blocks.6.hook_resid_post.hook_sae_acts_post`, `resid_post.sae_acts_post:6`, and `resid_post.sae_acts_post:6.1234` for one
latent.
"""

import difflib
import fnmatch
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SiteKind:
    """One row of the table: a kind of place, the same in every block."""

    kind: str
    """Shorthand, for example `resid_post`."""
    template: str
    """Full name with `{l}` for the layer."""
    shape: str
    """Axes of the value."""
    meaning: str
    """What the value is, and the identity that it fulfils."""
    on_request: bool = False
    """Left out when all sites are recorded, since it is large or a copy; computed when asked for by name."""
    component: int | None = None
    """The axis that an index such as `z:5.3` selects: heads or neurons."""


BLOCK = "blocks.{l}."
KINDS: tuple[SiteKind, ...] = (
    SiteKind("embed", "hook_embed", "batch pos d_model", "token embedding"),
    SiteKind("pos_embed", "hook_pos_embed", "batch pos d_model", "position embedding; embed + pos_embed = resid_pre:0"),
    SiteKind("token_type_embed", "hook_token_type_embed", "batch pos d_model", "token-type embedding"),
    SiteKind("full_embed", "hook_full_embed", "batch pos d_model", "norm of the summed embeddings; = resid_pre:0"),
    SiteKind("resid_pre", BLOCK + "hook_resid_pre", "batch pos d_model", "stream into the block; = resid_post before"),
    SiteKind("attn_in", BLOCK + "hook_attn_in", "batch pos head d_model", "resid_pre, a copy for each head", True, 2),
    SiteKind("q_input", BLOCK + "hook_q_input", "batch pos head d_model", "resid_pre as the queries read it", True, 2),
    SiteKind("k_input", BLOCK + "hook_k_input", "batch pos kv_head d_model", "resid_pre as the keys read it", True, 2),
    SiteKind(
        "v_input", BLOCK + "hook_v_input", "batch pos kv_head d_model", "resid_pre as the values read it", True, 2
    ),
    SiteKind("ln1.scale", BLOCK + "ln1.hook_scale", "batch pos 1", "what the norm before attention divides by"),
    SiteKind("ln1.normalized", BLOCK + "ln1.hook_normalized", "batch pos d_model", "x / scale, before gain and bias"),
    SiteKind("q", BLOCK + "attn.hook_q", "batch pos head d_head", "queries before rotation", False, 2),
    SiteKind("k", BLOCK + "attn.hook_k", "batch pos kv_head d_head", "keys before rotation", False, 2),
    SiteKind("v", BLOCK + "attn.hook_v", "batch pos kv_head d_head", "values", False, 2),
    SiteKind("rot_q", BLOCK + "attn.hook_rot_q", "batch pos head d_head", "queries after rotation", False, 2),
    SiteKind("rot_k", BLOCK + "attn.hook_rot_k", "batch pos kv_head d_head", "keys after rotation", False, 2),
    SiteKind(
        "attn_scores", BLOCK + "attn.hook_attn_scores", "batch head query key", "scaled, masked with -inf", False, 1
    ),
    SiteKind(
        "pattern",
        BLOCK + "attn.hook_pattern",
        "batch head query key",
        "softmax of the scores; real rows sum to 1",
        False,
        1,
    ),
    SiteKind("z", BLOCK + "attn.hook_z", "batch pos head d_head", "values mixed by the pattern", False, 2),
    SiteKind(
        "result", BLOCK + "attn.hook_result", "batch pos head d_model", "z through W_O; sum + b_O = attn_out", True, 2
    ),
    SiteKind(
        "ln1_post.scale", BLOCK + "ln1_post.hook_scale", "batch pos 1", "what the norm after attention divides by"
    ),
    SiteKind(
        "ln1_post.normalized", BLOCK + "ln1_post.hook_normalized", "batch pos d_model", "x / scale, before the gain"
    ),
    SiteKind(
        "attn_out", BLOCK + "hook_attn_out", "batch pos d_model", "added to the stream; resid_pre + it = resid_mid"
    ),
    SiteKind("resid_mid", BLOCK + "hook_resid_mid", "batch pos d_model", "stream between attention and MLP"),
    SiteKind("mlp_in", BLOCK + "hook_mlp_in", "batch pos d_model", "resid_mid as the MLP reads it", True),
    SiteKind("ln2.scale", BLOCK + "ln2.hook_scale", "batch pos 1", "what the norm before the MLP divides by"),
    SiteKind("ln2.normalized", BLOCK + "ln2.hook_normalized", "batch pos d_model", "x / scale, before gain and bias"),
    SiteKind("pre", BLOCK + "mlp.hook_pre", "batch pos d_mlp", "before the activation (the gate, if gated)", False, 2),
    SiteKind("pre_linear", BLOCK + "mlp.hook_pre_linear", "batch pos d_mlp", "what the gate multiplies", False, 2),
    SiteKind("post", BLOCK + "mlp.hook_post", "batch pos d_mlp", "neurons: what W_out reads", False, 2),
    SiteKind(
        "router_logits", BLOCK + "mlp.hook_router_logits", "batch pos expert", "a logit for each expert", False, 2
    ),
    SiteKind(
        "expert_weights", BLOCK + "mlp.hook_expert_weights", "batch pos expert", "scores before the choice", False, 2
    ),
    SiteKind("expert_indices", BLOCK + "mlp.hook_expert_indices", "batch pos k", "the chosen experts, best first"),
    SiteKind("ln2_post.scale", BLOCK + "ln2_post.hook_scale", "batch pos 1", "what the norm after the MLP divides by"),
    SiteKind(
        "ln2_post.normalized", BLOCK + "ln2_post.hook_normalized", "batch pos d_model", "x / scale, before the gain"
    ),
    SiteKind(
        "mlp_out", BLOCK + "hook_mlp_out", "batch pos d_model", "added to the stream; resid_mid + it = resid_post"
    ),
    SiteKind(
        "resid_post", BLOCK + "hook_resid_post", "batch pos d_model", "stream after the block; = resid_pre of the next"
    ),
    SiteKind(
        "normalized_resid_post",
        BLOCK + "hook_normalized_resid_post",
        "batch pos d_model",
        "norm of resid_post; = resid_pre of the next block",
    ),
    SiteKind("ln_final.scale", "ln_final.hook_scale", "batch pos 1", "what the final norm divides by"),
    SiteKind("ln_final.normalized", "ln_final.hook_normalized", "batch pos d_model", "x / scale, before gain and bias"),
)
SAE_PARTS: tuple[tuple[str, str, str, bool], ...] = (
    ("sae_input", "batch pos d_in", "what the SAE reads, heads joined", True),
    ("sae_acts_post", "batch pos latent", "the SAE's latents", False),
    ("sae_recons", "batch pos d_out", "the latents decoded, heads joined", False),
    ("sae_error", "", "what the SAE leaves out: the value less its reconstruction; only with error=True", False),
    ("sae_output", "", "what goes on from here: the value, changed by as much as the parts of the SAE were", False),
)
"""Parts of a spliced SAE: name, axes ("" for those of the place where it stands), meaning, whether only on request."""


def _sae_kinds() -> list[SiteKind]:
    """A row for each part of an SAE at each kind of place where one can stand: a vector a token, computed in any case."""
    found = []
    for host in KINDS:
        if host.on_request or not re.fullmatch(r"batch pos (\w+ )?d_\w+", host.shape):
            continue
        for part, shape, meaning, on_request in SAE_PARTS:
            component = 2 if part == "sae_acts_post" else None if shape else host.component
            template = f"{host.template}.hook_{part}"
            found.append(SiteKind(f"{host.kind}.{part}", template, shape or host.shape, meaning, on_request, component))
    return found


SAE_KINDS = {row.kind: row for row in _sae_kinds()}
"""The parts of an SAE at every kind of place, by shorthand. No model has them outside `model.splice`."""
_BY_KIND = {row.kind: row for row in KINDS} | SAE_KINDS
_ALIASES = {
    "mlp.post": "post",
    "mlp.pre": "pre",
    "mlp.pre_linear": "pre_linear",
    "attn": "pattern",
    "scores": "attn_scores",
}
_SHOWN = 8  # places that a message names
NORM_PARTS = ("ln1", "ln1_post", "ln2", "ln2_post", "ln_final")
_BY_TEMPLATE = {row.template: row for row in _BY_KIND.values()}


class MissingSite(ValueError):
    """A kind of place that exists, but not here: `name` is its full name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Selector:
    """A resolved site, and the head or neuron of it, if one was named."""

    name: str
    """Full name."""
    component: int | None = None
    """Index on the kind's component axis, None for all."""


@functools.cache
def layer_of(name: str) -> int | None:
    """The layer of a full name, None for places outside the blocks."""
    found = re.match(r"blocks\.(\d+)\.", name)
    return int(found[1]) if found else None


def kind_of(name: str) -> SiteKind:
    """The table's row for a full name; ValueError if there is none."""
    row = _BY_TEMPLATE.get(re.sub(r"^blocks\.\d+\.", BLOCK, name))
    if row is None:
        raise ValueError(f"{name!r} is no site name; see model.sites()")
    return row


def short_name(name: str) -> str:
    """`blocks.6.hook_resid_post` -> `resid_post:6`; names outside the blocks have no layer."""
    layer = layer_of(name)
    return kind_of(name).kind if layer is None else f"{kind_of(name).kind}:{layer}"


def full_name(site: str) -> str:
    """`resid_post:6` -> `blocks.6.hook_resid_post`; a full name stays. One layer only, and not counted from the end."""
    if site in _BY_TEMPLATE or re.sub(r"^blocks\.\d+\.", BLOCK, site) in _BY_TEMPLATE:
        return site
    kind, _, layer = site.partition(":")
    row = _BY_KIND.get(_ALIASES.get(kind, kind))
    if row is None or ("{l}" in row.template) != bool(layer) or (layer and not layer.isdigit()):
        raise ValueError(f"{site!r} does not name one site; write for example 'resid_post:6' or 'embed'")
    return row.template.format(l=layer)


def act_name(kind: str, layer: int | None = None, part: str | None = None) -> str:
    """The full name from its parts, as `cache["resid_post", 5]` and `cache["scale", 3, "ln1"]` write them."""
    joined = f"{part}.{kind}" if part in NORM_PARTS else kind
    return full_name(joined if layer is None else f"{joined}:{layer}")


def select(site: object, available: Sequence[str]) -> list[Selector]:
    """Resolve one name, shorthand, pattern or tuple against the sites of a model, in the model's order.

    Args:
        site: full name, shorthand (`resid_post:4-12`, `z:5.3`), glob over full names, or a tuple (kind, layer).
        available: every full name of the model.

    Raises:
        ValueError: nothing fits; the message holds the nearest names.
    """
    if isinstance(site, tuple):
        kind, layer, *part = (*site, None) if len(site) == 1 else site
        if isinstance(layer, int) and layer < 0:
            layer += _n_layers(available)
        return [Selector(_existing(act_name(kind, layer, *part), available))]
    if not isinstance(site, str):
        raise ValueError(f"a site is a string such as 'resid_post:6', got {type(site).__name__}: {site!r}")
    if site in available:
        return [Selector(site)]
    if ":" not in site and any(sign in site for sign in "*?["):
        found = [name for name in available if fnmatch.fnmatchcase(name, site)]
        if found:
            return [Selector(name) for name in found]
        raise ValueError(_unknown(site, available))
    kind, _, where = site.partition(":")
    row = _BY_KIND.get(_ALIASES.get(kind, kind))
    if row is None:
        raise ValueError(_unknown(site, available))
    if "{l}" not in row.template:
        if where:
            raise ValueError(f"{kind!r} lies outside the blocks and has no layer; write {kind!r}")
        return [Selector(_existing(row.template, available))]
    if not where:
        raise ValueError(f"{site!r} needs a layer: '{kind}:6', '{kind}:4-12', '{kind}:-1' or '{kind}:*' for all")
    layers, component = _layers(site, where, available)
    if component is not None and row.component is None:
        raise ValueError(f"{site!r} asks for a component, but {kind!r} ({row.shape}) has neither heads nor neurons")
    names = [row.template.format(l=layer) for layer in layers]
    if where.startswith("*"):  # all that there are: a store may hold some of the layers only
        names = [name for name in names if name in available] or names
    return [Selector(_existing(name, available), component) for name in names]


def expand(sites: object, available: Sequence[str]) -> list[str]:
    """Resolve names, shorthand and patterns to full names in the model's order, each once.

    Raises:
        ValueError: a name that fits nothing (with the nearest ones), or one that selects a head or neuron.
    """
    if not isinstance(sites, str | Iterable):
        raise ValueError(f"sites are names such as 'resid_post:6', got {sites!r}")
    wanted = [sites] if isinstance(sites, str) or (isinstance(sites, tuple) and _is_pair(sites)) else list(sites)
    found: set[str] = set()
    for site in wanted:
        for selector in select(site, available):
            if selector.component is not None:
                axis = kind_of(selector.name).component
                index = ", ".join([":"] * (axis or 0) + [str(selector.component)])
                raise ValueError(
                    f"{site!r} selects one component; a whole site is needed here: {short_name(selector.name)!r} (a function "
                    f"finds the one at value[{index}]; Ablate, Patch and paths take one by its number"
                    f"{', and SteerLatent a latent' if kind_of(selector.name).kind in SAE_KINDS else ''})"
                )
            found.add(selector.name)
    return [name for name in available if name in found]


def _is_pair(sites: tuple) -> bool:
    return len(sites) in (2, 3) and isinstance(sites[0], str) and isinstance(sites[1], int)


def _n_layers(available: Sequence[str]) -> int:
    return 1 + max((layer for name in available if (layer := layer_of(name)) is not None), default=-1)


def _layers_here(available: Sequence[str]) -> str:
    """`layers 0 to 11`; where some are missing, each of them."""
    layers = sorted({layer for name in available if (layer := layer_of(name)) is not None})
    if not layers:
        return "no layers"
    whole = layers == list(range(layers[0], layers[-1] + 1))
    return f"layers {layers[0]} to {layers[-1]}" if whole else f"layers {', '.join(map(str, layers))}"


def _layers(site: str, where: str, available: Sequence[str]) -> tuple[list[int], int | None]:
    n_layers = _n_layers(available)
    found = re.fullmatch(r"(\*|-?\d+|(\d+)-(\d+))(?:\.(\d+))?", where)
    if not found:
        raise ValueError(
            f"{site!r}: {where!r} is no layer; write a number, a range such as 4-12, -1 for the last, or *"
        )
    component = int(found[4]) if found[4] else None
    if found[1] == "*":
        return list(range(n_layers)), component
    if found[2]:
        low, high = int(found[2]), int(found[3])
        if low > high:
            raise ValueError(f"{site!r}: the range {where} is empty; write {high}-{low}")
    else:
        low = int(found[1]) + (n_layers if int(found[1]) < 0 else 0)
        high = low
    if not (low >= 0 and high < n_layers):
        raise ValueError(f"{site!r}: there are {_layers_here(available)} here")
    return list(range(low, high + 1)), component


def _existing(name: str, available: Sequence[str]) -> str:
    if name in available:
        return name
    layer = layer_of(name)
    if layer is not None and layer >= _n_layers(available):
        raise ValueError(f"{name!r}: there are {_layers_here(available)} here; {_instead(name, available)}")
    raise MissingSite(
        name,
        f"there is no {name!r} ({kind_of(name).meaning}) here: the architecture does not compute it, or the store does not "
        f"hold it; {_instead(name, available)}",
    )


def _instead(name: str, available: Sequence[str]) -> str:
    """What there is in place of a full name: other layers of its kind, else a few of all places."""
    kind = re.sub(r"^blocks\.\d+\.", BLOCK, name)
    same = [one for one in available if re.sub(r"^blocks\.\d+\.", BLOCK, one) == kind]
    listed = [
        short_name(one) if re.sub(r"^blocks\.\d+\.", BLOCK, one) in _BY_TEMPLATE else one for one in same or available
    ]
    some = ", ".join(listed if len(listed) <= _SHOWN else [*listed[: _SHOWN - 1], "...", listed[-1]])
    return f"there are {some or 'none'}" + ("" if same else "; model.sites() and store.sites list all")


def _unknown(site: str, available: Sequence[str]) -> str:
    named = re.fullmatch(r"blocks\.(\d+)\.(.*)", site)
    if named and BLOCK + named[2] in _BY_TEMPLATE:
        here = "" if int(named[1]) in map(layer_of, available) else f"there are {_layers_here(available)} here; "
        return f"{site!r} is not here: {here}{_instead(site, available)}"
    kind, colon, where = site.partition(":")
    known = [*_ALIASES, *(name for name in _BY_KIND if "sae" in kind or name not in SAE_KINDS)]
    near = [hit + colon + where for hit in difflib.get_close_matches(kind, known, 3, 0.5)]
    near += difflib.get_close_matches(site, available, 3, 0.6)
    hint = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else "model.sites() lists what there is"
    return f"unknown site {site!r}; {hint}"
