"""Path patches against runs in which everything off the path is held by hand."""

import pytest
import torch
from pairs import telling_pairs
from tiny import FAMILIES, shaken_model

from interp.model import HookedTransformer
from interp.patching import path_patch
from interp.task import PairMetric, pair_metric

SUMS = [name for name in FAMILIES if name not in ("bert",)]


def by_hand(
    model: HookedTransformer, measured: PairMetric, sender: tuple[str, int, int], receiver: str
) -> torch.Tensor:
    """Hold every part's output at the clean run but the sender's, read the receiver, and put that into a clean run."""
    pairs = measured.pairs
    _, old = model.run_with_cache(pairs.clean, ["z:*", "attn_out:*", *([] if not model.cfg.d_mlp else ["mlp_out:*"])])
    _, new = model.run_with_cache(pairs.corrupted, old.keys())
    part, at, head = sender
    hooks = {}
    for name in old:
        if "hook_z" not in name and name.endswith(("hook_attn_out", "hook_mlp_out")):
            hooks[name] = lambda value, ctx: old[ctx.name]
    own = f"blocks.{at}.hook_{'mlp_out' if part == 'mlp' else 'attn_out'}"
    if part == "mlp":
        hooks[own] = lambda value, ctx: new[own]
    else:
        del hooks[own]

        def replaced(value: torch.Tensor, ctx: object) -> torch.Tensor:
            value[:] = old["z", at]
            value[:, :, head] = new["z", at][:, :, head]
            return value

        hooks[f"blocks.{at}.attn.hook_z"] = replaced
    rows = torch.arange(len(pairs)), pairs.clean.last
    if receiver == "logits":
        with model.hooks(hooks):
            return measured.raw(model(pairs.clean)[rows].as_subclass(torch.Tensor))
    with model.hooks(hooks):
        _, seen = model.run_with_cache(pairs.clean, [receiver.split(".")[0]])
    (name,) = seen

    def read(value: torch.Tensor, ctx: object) -> torch.Tensor:
        index = (slice(None), slice(None), int(receiver.split(".")[1])) if "." in receiver else slice(None)
        value[index] = seen[name][index]
        return value

    with model.hooks({name: read}):
        return measured.raw(model(pairs.clean)[rows].as_subclass(torch.Tensor))


@pytest.mark.parametrize("family", SUMS)
def test_paths_are_what_holding_everything_else_gives(family: str) -> None:
    model = shaken_model(family, n_layers=3)
    measured = pair_metric(model, telling_pairs(model))
    mlp = not model.missing_site("mlp_out:0")
    cases = [("logits", "all"), ("q:2.1", "heads"), ("k:2.0", "heads"), ("v:2.0", "all" if mlp else "heads")]
    if model.cfg.latent is not None:
        cases = cases[:1]
    for receiver, senders in cases:
        found = path_patch(model, measured.pairs, receivers=receiver, senders=senders, batch_size=4)
        for number in range(0, len(found.places), 3):
            sender = tuple(found.places.loc[number, ["part", "layer", "head"]])
            expected = by_hand(model, measured, sender, receiver)
            torch.testing.assert_close(found.raw[number], expected, rtol=1e-4, atol=3e-4)


def test_the_mlp_hears_the_attention_of_its_own_layer() -> None:
    model = shaken_model("llama")
    measured = pair_metric(model, telling_pairs(model))
    found = path_patch(model, measured.pairs, receivers="mlp_in:0")
    assert found.places["layer"].tolist() == [0] * 4
    for number, place in found.places.iterrows():
        _, old = model.run_with_cache(measured.pairs.clean, ["z:0", "resid_mid:0"])
        _, new = model.run_with_cache(measured.pairs.corrupted, ["z:0"])
        head = place["head"]
        said = (new["z", 0] - old["z", 0])[:, :, head] @ model.blocks[0].attn.W_O[head]
        rows = torch.arange(2), measured.pairs.clean.last
        with model.hooks({"mlp_in:0": lambda value, ctx, said=said: value + said}):
            expected = measured.raw(model(measured.pairs.clean)[rows].as_subclass(torch.Tensor))
        torch.testing.assert_close(found.raw[number], expected, rtol=1e-4, atol=1e-4)


def test_nothing_before_a_receiver_and_names_that_cannot_send_or_receive_are_refused() -> None:
    model = shaken_model("llama")
    pairs = telling_pairs(model)
    with pytest.raises(ValueError, match="no sender comes before"):
        path_patch(model, pairs, receivers="q:0.1")
    with pytest.raises(ValueError, match="cannot receive"):
        path_patch(model, pairs, receivers="resid_post:1")
    with pytest.raises(ValueError, match="cannot send"):
        path_patch(model, pairs, receivers="logits", senders="q:0.1")
    with pytest.raises(ValueError, match="empty"):
        path_patch(model, pairs, receivers=[])
    with pytest.raises(ValueError, match="post-LN"):
        path_patch(shaken_model("bert"), pairs, receivers="logits")
    with pytest.raises(ValueError, match="position 99"):
        path_patch(model, pairs, receivers="logits", positions=[99])


def test_several_receivers_read_together_and_positions_limit_the_sender() -> None:
    model = shaken_model("llama", n_layers=3)
    pairs = telling_pairs(model)
    whole = path_patch(model, pairs, receivers=["q:1.0", "q:2.1", "logits"], senders=["z:0"])
    last = path_patch(model, pairs, receivers="logits", senders=["z:0"], positions=[-1])
    logits = path_patch(model, pairs, receivers="logits", senders=["z:0"])
    torch.testing.assert_close(last.raw, logits.raw)  # the logits are read at the last position
    assert not torch.allclose(whole.raw, logits.raw)
    early = path_patch(model, pairs, receivers="logits", senders=["z:0"], positions=[0])
    torch.testing.assert_close(early.raw, early.clean.expand_as(early.raw), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("receivers", ["logits", ["q:1.0", "v:1.0", "mlp_in:1"]])
def test_a_model_in_half_precision_gives_what_its_weights_give_in_full(receivers: object) -> None:
    model = shaken_model("llama").to(torch.bfloat16)
    wide = shaken_model("llama").to(torch.bfloat16).to(torch.float32)
    found, expected = (path_patch(m, telling_pairs(wide), receivers=receivers, senders="all") for m in (model, wide))
    assert expected.raw.std() > 0
    torch.testing.assert_close(found.raw, expected.raw, rtol=0.05, atol=0.05 * float(expected.raw.abs().max()))


def test_a_later_receiver_reads_what_an_earlier_one_set_off() -> None:
    model = shaken_model("llama", n_layers=3)
    pairs = telling_pairs(model)
    both, first, second = (
        path_patch(model, pairs, receivers=ends, senders=["z:0"]).raw
        for ends in (["mlp_in:1", "logits"], "mlp_in:1", "logits")
    )
    one = path_patch(model, pairs, receivers="mlp_in:1", senders=["z:0"])
    assert not torch.allclose(both - one.clean, (first - one.clean) + (second - one.clean), atol=1e-2)
