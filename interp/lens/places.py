"""Where a lens reads: the places of the residual stream that the final norm and the unembedding can take as their own.

Attention and MLP outputs are not among them: they are parts of a stream, and dividing a part by its own size says nothing
of what it adds. Direct logit attribution, with the stream's frozen scale, is for them.
"""

from collections.abc import Sequence
from typing import Any

from interp import sites as site_names
from interp.lens.translate import Translator
from interp.model import HookedTransformer, ModelConfig
from interp.sites import kind_of

ALL = "all"
"""What `sites` may be for the embedding and the stream in the middle and at the end of every block."""
EMBED, POSITIONS, TOKEN_TYPES = "hook_embed", "hook_pos_embed", "hook_token_type_embed"
FULL = "hook_full_embed"
"""Norm of the sum of the three above, in models that have it."""
FIRST = "blocks.0.hook_resid_pre"
"""The stream into the first block, which is what a lens reads as the embedding."""


def end_kind(cfg: ModelConfig) -> str:
    """The kind of place at the end of a block. Where blocks norm the stream itself, it is the normed one that the next
    block and the unembedding read."""
    return "normalized_resid_post" if cfg.norm_placement == "post_ln" else "resid_post"


def final_site(cfg: ModelConfig) -> str:
    """Full name of the stream that the model itself unembeds."""
    return site_names.full_name(f"{end_kind(cfg)}:{cfg.n_layers - 1}")


def lens_sites(model: HookedTransformer, wanted: Any, available: Sequence[str], lens: Translator | None) -> list[str]:
    """Full names of the places to read, in the order of computation, the final stream last.

    Args:
        model: the model.
        wanted: what the caller of `logit_lens` asked for.
        available: full names of what there is, in the model or in a store.
        lens: what translates; None for the logit lens.

    Raises:
        ValueError: a place outside the residual stream, one that is not there, or one that the lens does not translate.
    """
    end, final = end_kind(model.cfg), final_site(model.cfg)
    kinds = ("embed", "resid_pre", end) if end != "resid_post" else ("embed", "resid_pre", "resid_mid", end)
    if wanted is None and lens is not None:
        names = [name for name in available if name in lens.sites]
    elif wanted is None or wanted == ALL:
        shown = kinds if wanted == ALL else ("embed", end)
        names = [name for name in available if kind_of(name).kind in shown and kind_of(name).kind != "resid_pre"]
    else:
        names = site_names.expand(wanted, available)
    odd = [name for name in names if kind_of(name).kind not in kinds]
    if odd:
        raise ValueError(
            f"{site_names.short_name(odd[0])} is not the residual stream as the lens reads it, with the final norm; use "
            f"{', '.join(kinds)}. What a part adds to a logit is said by direct logit attribution"
        )
    if lens is not None:
        untranslated = [site_names.short_name(name) for name in names if name not in (*lens.sites, final)]
        if untranslated:
            raise ValueError(
                f"the {lens.name} lens does not translate {', '.join(untranslated)}; it has "
                f"{', '.join(map(site_names.short_name, lens.sites))}"
            )
    return [*(name for name in names if name != final), final]
