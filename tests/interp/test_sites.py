"""Site names: shorthand, patterns, and what an unknown name is told."""

import pytest
from tiny import tiny_model

from interp import sites

NAMES = tiny_model("llama", n_layers=3).site_names


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("resid_post:1", ["blocks.1.hook_resid_post"]),
        ("resid_post:-1", ["blocks.2.hook_resid_post"]),
        ("resid_post:1-2", ["blocks.1.hook_resid_post", "blocks.2.hook_resid_post"]),
        ("pattern:*", [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]),
        ("mlp.post:0", ["blocks.0.mlp.hook_post"]),
        ("ln1.scale:2", ["blocks.2.ln1.hook_scale"]),
        ("embed", ["hook_embed"]),
        ("ln_final.normalized", ["ln_final.hook_normalized"]),
        ("blocks.*.hook_resid_mid", [f"blocks.{layer}.hook_resid_mid" for layer in range(3)]),
        (("resid_post", 2), ["blocks.2.hook_resid_post"]),
        (["resid_post:2", "embed", "resid_post:2"], ["hook_embed", "blocks.2.hook_resid_post"]),
    ],
)
def test_expand(wanted: object, expected: list[str]) -> None:
    assert sites.expand(wanted, NAMES) == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("resid_pots:1", "resid_post:1"),
        ("blocks.1.hook_resid_pots", "blocks.1.hook_resid_post"),
        ("resid_post:3", "layers 0 to 2"),
        ("blocks.9.hook_resid_post", "layers 0 to"),
        ("resid_post:2-1", "write 1-2"),
        ("resid_post", "resid_post:6"),
        ("resid_post:x", "is no layer"),
        ("pos_embed", "does not compute it"),
        ("resid_post:1.3", "neither heads nor neurons"),
        ("blocks.*.hook_nope", "unknown site"),
        ("embed:3", "has no layer"),
    ],
)
def test_unknown_names_say_what_to_write(wanted: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sites.expand(wanted, NAMES)


def test_a_star_means_the_layers_that_are_there() -> None:
    stored = ["blocks.1.hook_resid_post", "blocks.2.hook_resid_post"]
    assert sites.expand("resid_post:*", stored) == stored
    with pytest.raises(ValueError, match="resid_mid"):
        sites.expand("resid_mid:*", stored)
    with pytest.raises(ValueError, match=r"blocks\.0"):
        sites.expand("resid_post:0-2", stored)


def test_component() -> None:
    assert sites.select("z:1.3", NAMES) == [sites.Selector("blocks.1.attn.hook_z", 3)]
    with pytest.raises(
        ValueError, match=r"a whole site is needed here: .z:1. \(.*value\[:, :, 3\]; Ablate, Patch and paths"
    ):
        sites.expand("z:1.3", NAMES)


def test_every_name_round_trips() -> None:
    for name in NAMES:
        assert sites.full_name(sites.short_name(name)) == name
        assert sites.select(sites.short_name(name), NAMES) == [sites.Selector(name)]


def test_a_site_that_the_family_lacks_is_not_offered() -> None:
    gpt2 = tiny_model("gpt2").site_names
    assert "hook_pos_embed" in gpt2
    assert not any("rot_q" in name or "pre_linear" in name for name in gpt2)
