"""What interp.compat.transformer_lens does not offer and says so, and the small functions of its `utils`."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import tiny_model

from interp.compat import from_transformer_lens, transformer_lens
from interp.compat.transformer_lens import absent


def wrapped() -> transformer_lens.HookedTransformer:
    return transformer_lens.HookedTransformer.from_native(tiny_model("gpt2"))


def tiny_lens_config(**changes: Any) -> transformer_lens.HookedTransformerConfig:
    sizes = {"n_layers": 2, "d_model": 16, "n_ctx": 32, "d_head": 4, "d_vocab": 20, "act_fn": "relu", "device": "cpu"}
    return transformer_lens.HookedTransformerConfig(**{**sizes, **changes})


# ----------------------------------------------------------------------------------------------------- what is not offered


def test_names_that_are_not_offered_say_what_to_use(lens: ModuleType) -> None:
    model = wrapped()
    _, cache = model.run_with_cache(torch.arange(5)[None])
    for place, table in ((transformer_lens, absent.MODULE), (transformer_lens.utils, absent.UTILS)):
        for name, mend in table.items():
            with pytest.raises(ImportError, match=f"TransformerLens' {name} is not offered here; use "):
                getattr(place, name)
            assert mend
        with pytest.raises(AttributeError, match="has no attribute 'foo'"):
            _ = place.foo
    for place, table in ((model, absent.MODEL), (cache, absent.CACHE)):
        for name in table:
            with pytest.raises(AttributeError, match=f"TransformerLens' {name} is not offered here; use "):
                getattr(place, name)
            assert not hasattr(place, name)
        with pytest.raises(AttributeError, match="has no attribute 'foo'"):
            _ = place.foo
    for theirs, table in ((lens.HookedTransformer, absent.MODEL), (lens.ActivationCache, absent.CACHE)):
        assert [name for name in table if not hasattr(theirs, name)] == []
    with pytest.raises(ImportError, match=r"SVDInterpreter is not offered here; use model\.OV"):
        from interp.compat.transformer_lens import SVDInterpreter  # noqa: F401  # pyright: ignore


def test_configurations_with_fields_of_transformerlens_that_there_are_not(make: Any) -> None:
    with pytest.raises(ValueError, match="HookedTransformerConfig has no num_experts here"):
        tiny_lens_config(num_experts=4)
    with pytest.raises(ValueError, match="HookedTransformerConfig has no bar, foo here"):
        transformer_lens.HookedTransformerConfig.from_dict({**tiny_lens_config().to_dict(), "foo": 1, "bar": 2})
    theirs = make()
    theirs.cfg.num_experts = 4
    with pytest.raises(ValueError, match=r"our transformer does not compute a mixture of experts \(num_experts\)"):
        from_transformer_lens(theirs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_devices_that_are_not_there() -> None:
    model = wrapped()
    for move in (
        lambda: model.to("cuda"),
        lambda: model.to(device="cuda"),
        model.cuda,
        lambda: transformer_lens.HookedTransformer(tiny_lens_config(device="cuda")),
    ):
        with pytest.raises(ValueError, match="device 'cuda' cannot be used here"):
            move()
    assert model.to(torch.float64).native.dtype == torch.float64
    assert model.to("cpu", torch.float32).native.dtype == torch.float32


# ------------------------------------------------------------------------------------------------------- small functions


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("prepend_bos", [True, False])
@pytest.mark.parametrize("bos", [0, 7])
def test_attention_masks_are_transformerlens(side: str | None, prepend_bos: bool, bos: int, lens: ModuleType) -> None:
    tokenizer = SimpleNamespace(pad_token_id=0, bos_token_id=bos, padding_side="left")
    tokens = torch.tensor([[0, 0, 3, 0, 4], [0, 5, 6, 0, 0], [0, 0, 0, 0, 9]])
    mine = transformer_lens.utils.get_attention_mask(tokenizer, tokens, prepend_bos, side)
    assert torch.equal(mine, lens.utilities.get_attention_mask(tokenizer, tokens, prepend_bos, side))
    assert transformer_lens.utils.get_attention_mask(None, tokens, prepend_bos).all()


def test_a_row_without_pads_has_no_pad() -> None:
    tokenizer = SimpleNamespace(pad_token_id=0, bos_token_id=0, padding_side="left")
    tokens = torch.tensor([[3, 4], [0, 4]])
    assert transformer_lens.utils.get_attention_mask(tokenizer, tokens, True).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="padding_side must be"):
        transformer_lens.utils.get_attention_mask(tokenizer, tokens, True, "top")


def test_defaults_for_the_length_of_a_block(lens: ModuleType) -> None:
    utils, model = transformer_lens.utils, wrapped()
    assert utils.override_or_use_default_value(True) is True
    assert utils.override_or_use_default_value(True, False) is False
    for bos in ("<s>", None):
        for text in ("a", ["a", "b"]):
            theirs = lens.utilities.get_input_with_manually_prepended_bos(bos, text)
            assert utils.get_input_with_manually_prepended_bos(bos, text) == theirs
    with utils.LocallyOverridenDefaults(model, padding_side="left"):
        assert (model.cfg.default_prepend_bos, model.padding_side) == (True, "left")
    with utils.LocallyOverridenDefaults(model, prepend_bos=False):
        assert (model.cfg.default_prepend_bos, model.padding_side) == (False, "right")
        assert model.to_tokens("a").shape == (1, 1)
    assert (model.cfg.default_prepend_bos, model.padding_side) == (True, "right")
    with pytest.raises(ValueError, match="padding_side must be"):
        utils.LocallyOverridenDefaults(model, padding_side="top")
