"""Which sites an SAE reads and which it writes: names, shorthand, and what a card says of them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interp import sites as site_names
from interp.sae.model import SAE

UNNAMED = ""
"""Name of the site of rows that come without one."""


def sites_and_targets(
    names: Sequence[str], site: str | Sequence[str] | None, target: str | None, find: Callable[[str], str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(sites, targets) as full names.

    Args:
        names: the sites that the data has.
        site: the one or the ones to read, None for all but the target.
        target: the one to write, None for those that are read.
        find: name or shorthand -> full name; None compares with `names`.

    Raises:
        ValueError: a site that is not there, or one that is to be read and to be written.
    """
    find = find or functools.partial(_found, names)
    targets = () if target is None else (find(target),)
    wanted = (
        [name for name in names if name not in targets] if site is None else [site] if isinstance(site, str) else site
    )
    sites = tuple(dict.fromkeys(map(find, wanted)))
    if not sites or set(sites) & set(targets):
        raise ValueError(
            f"a transcoder reads one site and writes another, got site={site!r} and target={target!r} of "
            f"{', '.join(names)}: for an SAE, leave target= out"
        )
    return sites, targets or sites


def site_card(sites: Sequence[str], targets: Sequence[str], widths: Mapping[str, int]) -> dict[str, Any]:
    """What a card says of the sites: `site` is the one that is read, None where there are several or none is named."""
    named = UNNAMED not in sites
    return {
        "site": sites[0] if named and len(sites) == 1 else None,
        "sites": list(sites) if named else [],
        "targets": list(targets) if named else [],
        "widths": dict(widths) if named else {},
    }


def plain_card(sites: Sequence[str], targets: Sequence[str], widths: Mapping[str, int]) -> dict[str, Any]:
    """The card of rows that say nothing of where they come from."""
    unknown = dict.fromkeys(("model", "typical_norm", "typical_norms", "n_rows_of_store", "left_out"))
    return {**site_card(sites, targets, widths), **unknown}


def known_targets(sae: SAE) -> tuple[str, ...]:
    """What an SAE writes, as its card says. ValueError for a transcoder whose card does not: it would pass for an SAE that
    writes what it reads."""
    if sae.is_transcoder and sae.targets == sae.sites:
        raise ValueError(
            "this is a transcoder whose card does not say what it writes: put the places into the card, SAE(..., "
            "card={'sites': [...], 'targets': [...], 'widths': {...}}), or give site= and target= where they are taken"
        )
    return sae.targets


def full_name(name: str) -> str:
    """The full name that a shorthand stands for; any other name stays, for rows need not be of a known place."""
    try:
        return site_names.full_name(name)
    except ValueError:
        return name


def _found(names: Sequence[str], name: str) -> str:
    """The one of `names` that a name or shorthand means."""
    found = name if name in names else full_name(name)
    if found not in names:
        raise ValueError(f"the batches are of {', '.join(names)}, not of {name}")
    return found


def one_name(site: str | Sequence[str] | None, target: str | None) -> str:
    """The full name of rows that come alone. ValueError where several sites are asked for."""
    several = site is not None and not isinstance(site, str) and len(site) != 1
    if several or target is not None:
        asked = f"site={site!r}" + (f" and target={target!r}" if target is not None else "")
        raise ValueError(
            f"{asked}: that takes the rows of each, but the data is of one; give {{site: tensor}} or a store"
        )
    return UNNAMED if site is None else full_name(site if isinstance(site, str) else site[0])
