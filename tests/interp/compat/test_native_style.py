"""TransformerLens-style calls on our native model, against TransformerLens' own answers from the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from interp import HookedTransformer
from interp.compat import from_transformer_lens

TEXT = "The cat sat on the mat."


def ids(seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def both(make: Any, hf_tokenizer: Any) -> tuple[Any, HookedTransformer]:
    """(TransformerLens' model, our native one): six layers, norms with gains and biases."""
    theirs = make(hf_tokenizer, n_layers=6)
    return theirs, from_transformer_lens(theirs)


def close(value: Tensor | None, reference: Tensor) -> bool:
    assert value is not None
    return value.shape == reference.shape and bool(
        (value - reference).abs().max() < 1e-5 * max(1.0, float(reference.abs().max()))
    )


@pytest.mark.parametrize(
    "names_filter",
    [
        "blocks.5.hook_resid_post",
        ["blocks.5.hook_resid_post", "blocks.0.attn.hook_z"],
        lambda name: name.endswith(("hook_pattern", "hook_scale")),
    ],
    ids=["name", "names", "predicate"],
)
def test_names_filter(both: Any, names_filter: Any) -> None:
    theirs, ours = both
    with torch.no_grad():
        expected, reference = theirs.run_with_cache(ids(), names_filter=names_filter)
        logits, cache = ours.run_with_cache(ids(), names_filter=names_filter)
    assert close(logits, expected)
    assert list(cache) == [name for name in ours.site_names if name in reference]
    assert all(close(cache[name], reference[name]) for name in cache)


def test_cache_keys(both: Any) -> None:
    theirs, ours = both
    with torch.no_grad():
        _, reference = theirs.run_with_cache(TEXT, remove_batch_dim=True)
        _, cache = ours.run_with_cache(ours.to_tokens(TEXT), remove_batch_dim=True)
    for key in (("resid_post", 5), ("resid_post", -1), ("pattern", 0, "attn"), ("scale", 3, "ln1"), ("embed",), "k4"):
        assert close(cache[key], reference[key]), key
    assert close(cache["blocks.2.mlp.hook_post"], reference["blocks.2.mlp.hook_post"])


def test_text_to_tokens_and_back(both: Any) -> None:
    theirs, ours = both
    for options in ({}, {"prepend_bos": False}, {"prepend_bos": True}):
        assert torch.equal(ours.to_tokens(TEXT, **options), theirs.to_tokens(TEXT, **options))
        assert ours.to_str_tokens(TEXT, **options) == theirs.to_str_tokens(TEXT, **options)
        assert ours.get_token_position("m", TEXT, **options) == theirs.get_token_position("m", TEXT, **options)
    assert torch.equal(ours.to_tokens(["a", "bcd"]), theirs.to_tokens(["a", "bcd"]))
    assert ours.to_string(ours.to_tokens(TEXT)) == theirs.to_string(theirs.to_tokens(TEXT))
    assert ours.to_string(ids()[0]) == theirs.to_string(ids()[0])
    assert ours.to_single_token("a") == theirs.to_single_token("a")


def test_act_names(both: Any, lens: Any) -> None:
    name = lens.utilities.get_act_name
    for given in (("resid_post", 5), ("k", 6, "a"), ("pre", 2), ("embed",), ("normalized", 4, "ln2"), ("scale4ln1",)):
        assert both[1].get_act_name(*given) == name(*given)


def test_hooks_by_name_and_predicate(both: Any) -> None:
    theirs, ours = both

    def double(value: Tensor, hook: Any) -> Tensor:
        assert hook.name == f"blocks.{hook.layer()}.attn.hook_z"
        return value * 2

    def zero(value: Tensor, hook: Any) -> None:
        value[:, 0] = 0.0

    pairs = [(lambda name: name.endswith("hook_z"), double), ("blocks.2.hook_mlp_out", zero)]
    with torch.no_grad():
        expected = theirs.run_with_hooks(ids(), fwd_hooks=[pairs[0]])
        assert close(ours.run_with_hooks(ids(), fwd_hooks=[pairs[0]]), expected)
        with ours.hooks(fwd_hooks=pairs):
            inside = ours(ids())
    assert not close(inside, expected)


def test_gradients_by_backward_hooks(both: Any) -> None:
    theirs, ours = both
    found: list[dict[str, Tensor]] = []
    for model in (theirs, ours):
        gradients: dict[str, Tensor] = {}
        keep = lambda gradient, hook, into=gradients: into.__setitem__(hook.name, gradient.clone())  # noqa: E731
        sites = ("blocks.0.hook_resid_post", "blocks.3.attn.hook_pattern", "blocks.5.attn.hook_q")
        with model.hooks(bwd_hooks=[(site, keep) for site in sites]):
            model(ids())[:, -1, 7].sum().backward()
        found.append(gradients)
    theirs.zero_grad()
    assert set(found[0]) == set(found[1])
    assert all(close(found[1][site], found[0][site]) for site in found[0])


def test_start_and_stop(both: Any) -> None:
    theirs, ours = both
    with torch.no_grad():
        stream = theirs(ids(), stop_at_layer=3)
        assert close(ours(ids(), stop_at_layer=3), stream)
        assert close(ours(stream, start_at_layer=3), theirs(stream, start_at_layer=3))
        logits, cache = ours.run_with_cache(ids(), stop_at_layer=3)
    assert logits is None
    assert max(int(name.split(".")[1]) for name in cache if name.startswith("blocks.")) == 2


def test_stream_methods(both: Any) -> None:
    theirs, ours = both
    with torch.no_grad():
        _, reference = theirs.run_with_cache(ids())
        _, cache = ours.run_with_cache(ids())
        for method, options in (
            ("accumulated_resid", {"layer": -1, "incl_mid": True}),
            ("decompose_resid", {"layer": 4, "mode": "attn"}),
            ("stack_head_results", {"layer": 2, "pos_slice": -1}),
        ):
            assert close(getattr(cache, method)(**options), getattr(reference, method)(**options)), method
