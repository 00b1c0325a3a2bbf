"""Options that several families share, from config.json to keyword arguments of ModelConfig: rotary positions, windows.

transformers 5 keeps everything about rotation in `rope_parameters`, for some families once for each kind of layer; older
files have `rope_scaling` and `rope_theta` side by side. Both mean the same here, and where a file has both (a user added
a `rope_scaling`, as many model cards say), it is taken for the whole, as transformers does. What cannot be computed is
refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interp.model import RopeScaling
from interp.weights.config_file import check_numbers
from interp.weights.family import need, refuse_unsupported

SLIDING, FULL = "sliding_attention", "full_attention"
"""The two kinds of layers, in config.json's `layer_types`."""

ROPE_HARMLESS = {"mrope_section": (), "mrope_interleaved": (False,)}
"""Rotary options that change the computation -> the values with which they do nothing."""


def rope_options(
    config: Mapping[str, Any],
    *,
    family: str,
    d_head: int,
    default_theta: float = 10000.0,
    partial: bool = False,
    default_share: float = 1.0,
    layer_type: str | None = None,
) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and `rotary_dim` of a ModelConfig.

    Args:
        config: config.json.
        family: for messages.
        d_head: width of a head.
        default_theta: the base where config.json names none.
        partial: the family may turn a part of each head (`partial_rotary_factor`); otherwise a part is refused.
        default_share: that part where config.json does not say.
        layer_type: read the rotation of this kind of layer, where the file tells them apart.

    Raises:
        ValueError: a kind of scaling that is not supported, or that lacks a number; a part of the head that the family
            does not compute; several rotations where the family has one; a `rope_scaling` beside `rope_parameters` that
            does not say what those alone say.
    """
    rope = rope_dictionary(config, family, layer_type)
    refuse_unsupported(rope, ROPE_HARMLESS, family)
    share = rope.get("partial_rotary_factor")
    share = config.get("partial_rotary_factor") if share is None else share
    share = default_share if share is None else float(share)
    if not partial and share != 1.0:
        raise ValueError(f"config.json sets partial_rotary_factor={share}; the {family} family turns whole heads")
    width = int(d_head * share)
    theta = rope.get("rope_theta")
    theta = config.get("rope_theta") if theta is None else theta
    theta = float(default_theta if theta is None else theta)
    _refuse_dropped(config, rope, {"rope_theta": theta, "partial_rotary_factor": share})
    return {
        "rope_theta": theta,
        "rope_scaling": _scaling(rope, config),
        "rotary_dim": None if width == d_head else width,
    }


def rope_dictionary(config: Mapping[str, Any], family: str, layer_type: str | None = None) -> Mapping[str, Any]:
    """What config.json says about rotation, of one kind of layer where it tells them apart; empty where it is silent."""
    rope = rope_of(config)
    nested = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    if layer_type is not None:
        return nested.get(layer_type) or {}
    if nested:
        raise ValueError(
            f"config.json has rotary parameters per kind of layer ({', '.join(nested)}); the {family} family has one for all"
        )
    return rope


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json's `rope_scaling`, or where it has none its `rope_parameters`, or else nothing.

    Raises:
        ValueError: one of them is no object, or holds a number that is none.
    """
    keys = ("rope_scaling", "rope_parameters")
    for key in keys:
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            raise ValueError(
                f"config.json sets {key}={config[key]!r}: it must be an object such as "
                '{"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}, or be left out'
            )
    rope = next((config[key] for key in keys if config.get(key)), {})
    check_numbers(rope, "rope_scaling in config.json" if config.get(keys[0]) else "rope_parameters in config.json")
    return rope


def _refuse_dropped(config: Mapping[str, Any], rope: Mapping[str, Any], taken: Mapping[str, float]) -> None:
    """Where `rope_scaling` stands for the whole, transformers would fall back to a default for what it leaves out."""
    if not config.get("rope_scaling") or not isinstance(config.get("rope_parameters"), Mapping):
        return
    for key, value in taken.items():
        other = config["rope_parameters"].get(key)
        if other not in (None, value) and rope.get(key) is None and config.get(key) is None:
            raise ValueError(
                f"config.json has {key}={other} in rope_parameters, and a rope_scaling beside it that stands for the "
                f'whole and says nothing of {key}, so that {value} would count: write "{key}": {other} into '
                "rope_scaling too, or put the scaling into rope_parameters"
            )


def _scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    """The scaling of one rotation. `RopeScaling` refuses kinds that it does not know."""
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind == "default":
        return None
    if kind in ("linear", "dynamic"):
        # transformers takes the context that dynamic scaling starts from out of max_position_embeddings alone.
        original: dict[str, Any] = (
            {"original_n_ctx": int(need(config, "max_position_embeddings"))} if kind == "dynamic" else {}
        )
        return RopeScaling(kind, float(need(rope, "factor")), **original)
    if kind == "llama3":
        bounds: dict[str, Any] = {key: float(need(rope, key)) for key in ("low_freq_factor", "high_freq_factor")}
        return RopeScaling(kind, float(need(rope, "factor")), original_n_ctx=_original(rope, config), **bounds)
    if kind in ("yarn", "longrope"):
        original_n_ctx = _original(rope, config)
        factor = rope.get("factor")
        factor = float(need(config, "max_position_embeddings")) / original_n_ctx if factor is None else float(factor)
        given = {key: rope[key] for key in _OPTIONAL[kind] if rope.get(key) is not None}
        given |= {key: tuple(map(float, given[key])) for key in ("short_factor", "long_factor") if key in given}
        return RopeScaling(kind, factor, original_n_ctx=original_n_ctx, **given)
    if kind == "ntk":  # ours alone: no checkpoint has it
        raise ValueError(f"config.json sets rope_type={kind!r}, which transformers does not know")
    return RopeScaling(kind, 1.0)


_OPTIONAL = {
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor", "short_factor", "long_factor"),
}
"""Numbers of a scaling that a file may leave out, of the same name here and there."""


def _original(rope: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Context of the pre-training: beside the rotary parameters (Phi-3), among them, or else the model's own."""
    beside = config.get("original_max_position_embeddings")
    return int(beside or rope.get("original_max_position_embeddings") or need(config, "max_position_embeddings"))


def context_length(config: Mapping[str, Any], default: int | None = None) -> int:
    """`n_ctx`: max_position_embeddings, which dynamic scaling (where the file has it) multiplies."""
    n_ctx = int(need(config, "max_position_embeddings", default))
    rope = rope_of(config)
    kind = rope.get("rope_type") or rope.get("type")
    return int(n_ctx * float(need(rope, "factor"))) if kind == "dynamic" else n_ctx


def window_options(window: int | None, layer_types: Sequence[str], family: str) -> dict[str, Any]:
    """`window` and `window_layers` of a ModelConfig.

    Args:
        window: tokens that a sliding layer sees.
        layer_types: for each layer `sliding_attention` or `full_attention`.
        family: for messages.

    Raises:
        ValueError: another kind of layer, or sliding layers without a window.
    """
    unknown = sorted(set(layer_types) - {SLIDING, FULL})
    if unknown:
        raise ValueError(f"config.json has layers of kind {unknown}; the {family} family has {SLIDING} and {FULL} only")
    layers = tuple(index for index, kind in enumerate(layer_types) if kind == SLIDING)
    if not layers:
        return {"window": None, "window_layers": None}
    if window is None:
        raise ValueError("config.json's layer_types has sliding_attention, but no sliding_window says how far it sees")
    return {"window": int(window), "window_layers": None if len(layers) == len(layer_types) else layers}


def layer_types_of(config: Mapping[str, Any], n_layers: int, default: Sequence[str]) -> list[str]:
    """config.json's `layer_types`, or else the family's own pattern; ValueError where there is not one for each layer."""
    kinds = list(config.get("layer_types") or default)
    if len(kinds) != n_layers:
        raise ValueError(f"config.json's layer_types has {len(kinds)} entries for {n_layers} layers")
    return kinds
