"""The record of interventions against the change of recorded activations, and the model under it bit for bit."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene import Ablate, Knockout, Steer
from interp.intervene.condition import Condition
from interp.intervene.targets import Target
from interp.intervene.watch import COLUMNS, TOKEN_COLUMNS, Applied, watch_interventions
from interp.model import HookedTransformer
from interp.tokens import Tokens

PROMPTS = ["The river is", "a much longer stone", "x"]
SITE = "blocks.0.hook_resid_post"


def vector(site: str = SITE, seed: int = 0) -> Target:
    generator = torch.Generator().manual_seed(seed)
    return Target(site, torch.nn.functional.normalize(torch.randn(32, generator=generator), dim=0), 1.0, norm=2.0)


def value_at(model: HookedTransformer, ids: list[int], site: str = SITE) -> Tensor:
    """What stands at a site of one text without interventions, [token d]."""
    return model.run_with_cache([ids], site)[1][site][0].double()


# ----------------------------------------------------------------------------------------------- what the record says


def test_the_record_is_the_change_of_the_value(tiny: HookedTransformer) -> None:
    ids, v = tiny.tokenizer.encode(PROMPTS[0]), vector()
    with watch_interventions(tiny, Steer(v, -0.3, positions=[2, 4])) as applied:
        tiny([ids])
    frame = applied.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["position"].tolist() == [2, 4]
    assert frame["token_id"].tolist() == [ids[2], ids[4]]
    assert set(frame["site"]) == {"resid_post:0"}
    assert set(frame["kind"]) == {"steer add"}
    np.testing.assert_allclose(frame["size"], 0.6, rtol=1e-5)
    np.testing.assert_allclose(frame["along"], -0.6, rtol=1e-5)
    np.testing.assert_allclose(frame["share"], 0.6 / value_at(tiny, ids)[[2, 4]].norm(dim=1), rtol=1e-5)


def test_ablation_moves_each_coordinate_to_zero(tiny: HookedTransformer) -> None:
    ids, v = tiny.tokenizer.encode(PROMPTS[1]), vector()
    with watch_interventions(tiny, Steer(v, kind="ablate")) as applied:
        tiny([ids])
    coordinates = value_at(tiny, ids) @ v.direction.double()
    np.testing.assert_allclose(applied.to_frame()["along"], -coordinates, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(applied.to_frame()["size"], coordinates.abs(), rtol=1e-4, atol=1e-6)


def test_interventions_without_a_direction(tiny: HookedTransformer) -> None:
    ids = tiny.tokenizer.encode(PROMPTS[0])
    with watch_interventions(tiny, Ablate(heads=[(1, 2)], kind="zero"), Knockout([5], [1], layers=[0])) as applied:
        tiny([ids])
    frame = applied.to_frame()
    ablated = frame[frame["kind"] == "ablate zero"]
    assert len(ablated) == len(ids)
    assert frame["along"].isna().all()
    cut = frame[frame["kind"] == "knockout"]
    assert cut["position"].tolist() == [5]
    assert cut["size"].tolist() == [np.inf]
    assert cut["share"].isna().all()
    z = tiny.run_with_cache([ids], "z:1")[1]["z", 1][0].double()
    # The knockout below changes position 5 and those after it.
    np.testing.assert_allclose(ablated["size"][:5], z[:5, 2].norm(dim=-1), rtol=1e-5)
    np.testing.assert_allclose(ablated["share"][:5], z[:5, 2].norm(dim=-1) / z[:5].flatten(1).norm(dim=-1), rtol=1e-5)


def test_each_sees_what_the_one_before_left(tiny: HookedTransformer) -> None:
    v, w = vector(), vector(seed=1)
    with watch_interventions(tiny, Steer(v, 0.5), Steer(v, kind="ablate"), Steer(w, 0.1, site="mlp_out:*")) as applied:
        tiny(PROMPTS[0])
    frame = applied.to_frame()
    added, ablated = (frame[frame["intervention"] == i].reset_index() for i in (0, 1))
    ids = tiny.tokenizer.encode(PROMPTS[0])
    with tiny.intervene(Steer(w, 0.1, site="mlp_out:*")):
        before = (value_at(tiny, ids) @ v.direction.double()).numpy()
    np.testing.assert_allclose(ablated["along"], -(before + added["along"]), rtol=1e-4)
    by_token = applied.to_frame("token")
    assert list(by_token.columns) == list(TOKEN_COLUMNS)
    assert by_token["n_changes"].tolist() == [4] * len(ids)
    for column, how in (("size", "sum"), ("along", "sum"), ("share", "max")):
        np.testing.assert_allclose(by_token[column], frame.groupby("position")[column].agg(how))


def test_writes_to_the_stream_are_recorded_site_by_site(tiny: HookedTransformer) -> None:
    with watch_interventions(tiny, Steer(vector(), kind="ablate", site="writes")) as applied:
        tiny(PROMPTS[0])
    sites = applied.to_frame()["site"].unique().tolist()
    assert [site for site in sites if "out" in site] == ["attn_out:0", "mlp_out:0", "attn_out:1", "mlp_out:1"]
    assert "embed" in sites


def test_strength_0_and_untouched_tokens(tiny: HookedTransformer) -> None:
    with watch_interventions(tiny, Steer(vector(), 0.0)) as applied:
        tiny(PROMPTS[0])
    assert applied.to_frame().empty
    assert list(applied.to_frame().columns) == list(COLUMNS)
    by_token = applied.to_frame("token")
    assert by_token["n_changes"].tolist() == [0] * len(by_token)
    assert by_token["along"].isna().all()
    assert by_token["condition"].isna().all()
    assert applied.text() == PROMPTS[0]


def test_functions_that_write_into_the_value(tiny: HookedTransformer) -> None:
    class InPlace:
        def hook_functions(self, model: HookedTransformer) -> list[tuple[str, Any]]:
            return [(SITE, self.change)]

        def change(self, value: Tensor, ctx: HookContext) -> None:
            value[:, 1] += 1

    with watch_interventions(tiny, InPlace()) as applied:
        tiny(PROMPTS[0])
    frame = applied.to_frame()
    assert frame["position"].tolist() == [1]
    assert frame["kind"].tolist() == ["inplace"]
    assert frame["size"][0] == pytest.approx(32**0.5, rel=1e-5)


def test_conditions(tiny: HookedTransformer) -> None:
    reads = vector(seed=3)
    steer = Steer(vector(), 0.1, when=Condition(reads, above=0.0, over="token"))
    with watch_interventions(tiny, steer, Steer(vector(), 0.1, site="mlp_out:1", positions=[0])) as applied:
        tiny(PROMPTS)
    held = torch.cat([value_at(tiny, tiny.tokenizer.encode(text)) @ reads.direction.double() > 0 for text in PROMPTS])
    frame = applied.to_frame("token")
    assert frame["condition"].tolist() == held.tolist()
    assert frame["n_changes"].tolist() == (held + (torch.tensor(frame["position"]) == 0).int()).tolist()
    assert 0 < held.sum() < len(held)


# --------------------------------------------------------------------------------------------------- the model under it


def interventions() -> list[Any]:
    return [
        Steer(vector(), 0.4, where="generated"),
        Steer(vector(seed=1), kind="ablate", site="writes"),
        Ablate(heads=[(0, 1)], kind="zero"),
        Steer(vector(seed=2), 0.2, site="resid_post:0-1", kind="rotate"),
    ]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "mixtral"])
def test_logits_are_the_same_bit_for_bit(family: str) -> None:
    model = tiny_model(family)
    with model.intervene(*interventions()):
        logits, out = model(PROMPTS, prompt_len=1), model.generate(PROMPTS, 5, stop_at_eos=False)
    with watch_interventions(model, *interventions()) as applied:
        assert torch.equal(model(PROMPTS, prompt_len=1), logits)
        again = model.generate(PROMPTS, 5, stop_at_eos=False)
    assert again.tokens == out.tokens
    assert [row.logprobs for row in again.rows] == [row.logprobs for row in out.rows]
    assert not any(point.handles for point in model.hook_dict.values())
    assert applied.to_frame()["call"].unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("family", "n_samples"), [("llama", 2), ("gpt2", None), ("mistral", None), ("dynamic", None), ("dynamic", 2)]
)
def test_generation_is_recorded_as_one_pass_is(family: str, n_samples: int | None) -> None:
    model, steer = tiny_model(family), Steer(vector(), 0.4, where="generated")
    sampled = {} if n_samples is None else {"temperature": 1.0, "n_samples": n_samples}
    with watch_interventions(model, steer, Ablate(heads=[(1, 1)], kind="zero"), stop_at_eos=False) as applied:
        out = model.generate(PROMPTS, 6, stop_at_eos=False, **sampled)
    found = applied.to_frame("change", out)
    assert found["row"].nunique() == len(PROMPTS) * (n_samples or 1)
    for number, row in enumerate(out.rows):
        with watch_interventions(model, steer, Ablate(heads=[(1, 1)], kind="zero")) as whole:
            model([row.all_tokens[:-1]], prompt_len=len(row.prompt_tokens))
        mine, wanted = found[found["row"] == number], whole.to_frame()
        assert mine["token_id"].tolist() == wanted["token_id"].tolist()
        columns = ["position", "intervention", "site", "size", "share", "along"]
        pd.testing.assert_frame_equal(
            mine[columns].reset_index(drop=True), wanted[columns], rtol=1e-3, atol=1e-5, check_dtype=False
        )
        if family != "dynamic":  # there the whole text passes again when it grows beyond its context
            phases = np.where(mine["position"] < len(row.prompt_tokens), "prefill", "decode")
            assert mine["phase"].tolist() == phases.tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_are_left_out(tiny: HookedTransformer, side: str) -> None:
    rows, pad = [[70, 71, 72, 73], [80, 81]], [257, 257]
    ids = torch.tensor([rows[0], pad + rows[1] if side == "left" else rows[1] + pad])
    with watch_interventions(tiny, Steer(vector(), 0.2)) as applied:
        tiny(Tokens(ids, ids != 257))
    for frame in (applied.to_frame(), applied.to_frame("token")):
        assert [group["token_id"].tolist() for _, group in frame.groupby("row")] == rows
        assert [group["position"].tolist() for _, group in frame.groupby("row")] == [[0, 1, 2, 3], [0, 1]]


def test_what_passes_after_the_end_of_a_row_is_left_out(tiny: HookedTransformer) -> None:
    free = tiny.generate(PROMPTS[:2], 6, stop_at_eos=False)
    assert tiny.tokenizer is not None
    tiny.tokenizer.eos_id = free.tokens[0][2]
    with watch_interventions(tiny, Steer(vector(), 1e-4)) as applied:
        out = tiny.generate(PROMPTS[:2], 6)
    lengths = [len(row.all_tokens) for row in out.rows]
    assert out.rows[0].stop_reason == "eos"
    assert lengths[0] < len(free.rows[0].all_tokens)
    assert (applied.to_frame("token")["row"] == 0).sum() == lengths[0]
    assert applied.to_frame("token", out).groupby("row").size()[0] == lengths[0]


def test_packed_texts_and_streams(tiny: HookedTransformer) -> None:
    with watch_interventions(tiny, Steer(vector(), 0.2)) as applied:
        packed = Tokens(
            torch.tensor([[70, 71, 72, 80, 81]]),
            torch.ones(1, 5, dtype=torch.bool),
            documents=torch.tensor([[0, 0, 0, 1, 1]]),
        )
        tiny(packed)
        stream = tiny(PROMPTS[0], stop_at_layer=0)
        tiny(stream, start_at_layer=0)
    frame = applied.to_frame("token")
    first = frame[frame["call"] == 0]
    assert first["position"].tolist() == [0, 1, 2, 0, 1]
    assert first["token_id"].tolist() == [70, 71, 72, 80, 81]
    last = frame[frame["call"] == 1]
    assert set(last["token_id"]) == {-1}
    assert set(last["token"]) == {""}
    with pytest.raises(ValueError, match="not told its tokens"):
        applied.text()


# --------------------------------------------------------------------------------------------------------- as a text


def test_touched_tokens_are_marked(tiny: HookedTransformer) -> None:
    with watch_interventions(
        tiny,
        Steer(vector(), 0.2, positions=[1, 2]),
        Steer(vector(), -0.2, positions=[4]),
        Ablate(heads=[(1, 0)], kind="zero", positions=[5]),
    ) as applied:
        tiny(["abcdefg", "hi"])
    assert applied.text() == "a[+bc]d[-e][~f]g"
    assert applied.text(1) == "h[+i]"
    lines = str(applied).splitlines()
    assert lines[0].startswith("0 steer add: 3 of 9 tokens at 1 site, median size 0.4")
    assert lines[-2:] == ["row 0: a[+bc]d[-e][~f]g", "row 1: h[+i]"]


def test_a_generation_as_a_text(tiny: HookedTransformer) -> None:
    with watch_interventions(tiny, Steer(vector(), 0.2, where="generated"), stop_at_eos=False) as applied:
        out = tiny.generate("né", 3, stop_at_eos=False)
    text = applied.text(generation=out)
    assert text.startswith("né[+") or text.startswith("n[+é"), "a split character stands where it begins"
    assert text.replace("[+", "").replace("]", "") == tiny.tokenizer.decode(out.all_tokens)
    assert applied.text().count("[+") == 1


def test_without_a_tokenizer() -> None:
    model = tiny_model("llama")
    model.tokenizer = None
    with watch_interventions(model, Steer(vector(), 0.2, positions=[1])) as applied:
        model([[5, 6, 7]])
    assert applied.text() == " 5[+ 6] 7"
    assert applied.to_frame()["token"].tolist() == ["6"]


# ------------------------------------------------------------------------------------------------------------- errors


def test_errors(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="no intervention"), watch_interventions(tiny):
        pass
    with pytest.raises(ValueError, match="takes Steer, Ablate"), watch_interventions(tiny, vector()):
        pass
    with watch_interventions(tiny, Steer(vector(), 0.2)) as applied:
        pass
    assert isinstance(applied, Applied)
    for read in (applied.to_frame, applied.text):
        with pytest.raises(ValueError, match="no pass has run"):
            read()
    assert str(applied) == "Applied(steer add: 0 passes)"
    with watch_interventions(tiny, Steer(vector(), 0.2)) as applied:
        tiny(PROMPTS[0])
        out = tiny.generate(PROMPTS, 3)
    with pytest.raises(ValueError, match="by='site' is unknown"):
        applied.to_frame("site")
    with pytest.raises(ValueError, match="nothing was recorded of row 7"):
        applied.text(7)
    with pytest.raises(ValueError, match="nothing was recorded of row 1 in call 0"):
        applied.text(1, call=0)
    assert applied.to_frame("token", out)["call"].unique().tolist() == [1]
    with pytest.raises(ValueError, match="1 generations ran"):
        applied.to_frame("token", tiny.generate(PROMPTS[:2], 3))
    with (
        pytest.raises(ValueError, match="found no token"),
        watch_interventions(tiny, Steer(vector(), 0.2, positions=[99])),
    ):
        tiny(PROMPTS[0])


def test_an_exception_leaves_the_model_as_it_was_and_keeps_the_record(tiny: HookedTransformer) -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), watch_interventions(tiny, Steer(vector(), 0.2)) as applied:
        [tiny(PROMPTS[0]), fail()]
    assert not any(point.handles for point in tiny.hook_dict.values())
    assert len(applied.to_frame()) == len(PROMPTS[0])
