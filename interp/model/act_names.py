"""Site names from their parts, as TransformerLens' `utils.get_act_name` takes them.

`get_act_name("k", 6, "attn")`, `("k", 6, "a")`, `("scale", 3, "ln1")`, `"k6"`, `"scale4ln1"` and `"pre5"` all work. The
names come from the table in `interp/sites.py`, so a name that no model has is an error, and never a made-up string.
"""

import re
from typing import Any

import numpy as np

from interp import sites

_KINDS = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "scores": "attn_scores",
    "mlp_pre": "pre",
    "mlp_post": "post",
    "mlp.pre": "pre",
    "mlp.pre_linear": "pre_linear",
    "mlp.post": "post",
}
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}


def get_act_name(name: Any, layer: Any = None, layer_type: Any = None) -> str:
    """The full name of a site.

    Args:
        name: what stands after `hook_`, an alias of it (`attn` is the pattern), or name, layer and part in one: `k6`,
            `scale4ln1`. A full name stays.
        layer: block, from 0, as a number or its digits; None for sites outside the blocks.
        layer_type: part of the block, where the name alone leaves a choice: `ln1` or `ln2` for `scale`.

    Raises:
        ValueError: no site, or several, have this name; a layer that is no number from 0 on; a part without such a site.
    """
    if not isinstance(name, str) or not isinstance(layer_type, str | None):
        raise ValueError(f"get_act_name takes words such as ('scale', 3, 'ln1'), got {name!r} and {layer_type!r}")
    layer = _layer(layer)
    if layer is None and layer_type is None and ("." in name or name.startswith("hook_")):
        return sites.full_name(name)
    if name in sites.SAE_KINDS:
        return sites.act_name(name, layer)
    compact = re.fullmatch(r"([a-z_]+?)(\d+)([a-z]\w*)?", name)
    if compact is not None and layer is None:
        name, layer, layer_type = compact[1], int(compact[2]), compact[3] or layer_type
    kind = _KINDS.get(name, name)
    part = _PARTS.get(layer_type or "", layer_type)
    rows = [
        row
        for row in sites.KINDS
        if (row.template.endswith(f"hook_{kind}") or row.kind == kind)
        and row.template.startswith("blocks.") == (layer is not None)
    ]
    if len(rows) > 1:  # a part is needed where several have the name, as of norms; elsewhere the name decides
        wanted = part or ("ln_final" if layer is None else "")
        rows = [row for row in rows if f"{wanted}." in row.template.removeprefix(sites.BLOCK)]
    elif part:
        rows = [row for row in rows if row.template.removeprefix(sites.BLOCK).startswith(f"{part}.")]
    if len(rows) != 1:
        given = ", ".join(repr(value) for value in (name, layer, layer_type) if value is not None)
        what = "several sites; name the part, such as 'ln1'" if rows else "no site; model.sites() lists them"
        raise ValueError(f"get_act_name({given}) names {what}")
    return rows[0].template.format(l=layer)


def _layer(layer: Any) -> int | None:
    if layer is None:
        return None
    if isinstance(layer, str) and layer.isdecimal():
        return int(layer)
    if not isinstance(layer, int | np.integer) or isinstance(layer, bool) or layer < 0:
        raise ValueError(
            f"get_act_name: layer={layer!r} is no layer; give a number from 0 on. Only a cache can count from the end: "
            "cache['k', -1]"
        )
    return int(layer)
