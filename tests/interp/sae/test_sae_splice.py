"""The SAE in place in the model: a perfect one costs nothing, one that says zero costs what the zero ablation costs."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.artifact import read_json
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.sae import SAE, evaluate_in_model
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


def identity_sae(width: int) -> SAE:
    both = torch.cat([torch.eye(width), -torch.eye(width)])
    return SAE(both.T.contiguous(), torch.zeros(2 * width), both, torch.zeros(width), k=2 * width)


def constant_sae(value: Tensor, card: dict | None = None) -> SAE:
    width = len(value)
    return SAE(torch.zeros(width, 8), torch.full((8,), -1.0), torch.zeros(8, width), value, k=2, card=card)


def test_the_identity_recovers_all_and_zero_nothing(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    perfect = evaluate_in_model(identity_sae(32), tiny_llama, texts, site=SITE)
    assert perfect.recovered_zero == pytest.approx(1.0, abs=1e-6)
    assert perfect.recovered_mean == pytest.approx(1.0, abs=1e-6)
    assert perfect.delta_loss == pytest.approx(0.0, abs=1e-6)
    assert perfect.kl == pytest.approx(0.0, abs=1e-6)
    empty = evaluate_in_model(constant_sae(torch.zeros(32)), tiny_llama, texts, site=SITE)
    assert empty.recovered_zero == 0.0
    assert empty.loss_sae == empty.loss_zero
    assert empty.kl > 0.1
    assert empty.loss_zero > empty.loss_clean + 0.1


def test_the_mean_recovers_nothing_of_the_mean_ablation(
    tiny_llama: HookedTransformer, texts: list[str], store: Store
) -> None:
    """The mean over typical rows of these texts, which is what the store says."""
    stats = store.stats(SITE)
    card = {"typical_norm": stats.typical_norm}
    report = evaluate_in_model(constant_sae(stats.typical.mean.float(), card), tiny_llama, texts, site="resid_post:1")
    assert report.recovered_mean == pytest.approx(0.0, abs=1e-3)
    assert (report.n_replaced, report.n_kept) == (stats.typical.count, stats.left_out)


def test_losses_are_those_of_a_plain_loop(
    tiny_llama: HookedTransformer, texts: list[str], store: Store, sae: SAE
) -> None:
    """One text at a time, without padding, the rows to keep taken from the store."""
    typical, text_of_row = torch.tensor(store.typical(SITE)), torch.tensor(store.tokens["text"].to_list())
    totals, n_tokens = torch.zeros(2, dtype=torch.float64), 0
    for number, text in enumerate(texts):
        chosen = typical[text_of_row == number]

        def splice(value: Tensor, _ctx: HookContext, chosen: Tensor = chosen) -> Tensor:
            return torch.where(chosen[None, :, None], sae(value), value)

        with torch.no_grad():
            losses = [tiny_llama.loss(text, per_token=True)]
            with tiny_llama.hooks({SITE: splice}):
                losses.append(tiny_llama.loss(text, per_token=True))
        totals += torch.stack([loss.double().sum() for loss in losses])
        n_tokens += losses[0].numel()
    report = evaluate_in_model(sae, tiny_llama, texts)
    assert report.n_tokens == n_tokens
    assert report.loss_clean == pytest.approx(totals[0].item() / n_tokens, rel=1e-5)
    assert report.loss_sae == pytest.approx(totals[1].item() / n_tokens, rel=1e-5)
    assert report.delta_loss == report.loss_sae - report.loss_clean


def test_the_batch_size_does_not_matter(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    whole, cut = (evaluate_in_model(sae, tiny_llama, texts, batch_size=size) for size in (60, 7))
    for name, value in vars(whole).items():
        assert getattr(cut, name) == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name


def test_a_site_with_heads_is_flattened(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    assert evaluate_in_model(identity_sae(32), tiny_llama, texts, site="z:0").delta_loss == pytest.approx(0.0, abs=1e-6)


def test_an_ablation_that_costs_nothing_leaves_nothing_to_recover(texts: list[str]) -> None:
    """A random model with large weights is worse than one that says nothing."""
    report = evaluate_in_model(constant_sae(torch.zeros(32)), tiny_model("llama", scale=20.0), texts, site=SITE)
    assert report.loss_zero < report.loss_clean
    assert report.recovered_zero is None
    assert report.delta_loss < 0


def test_the_model_is_left_as_it_was(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    before = tiny_llama.fingerprint
    evaluate_in_model(sae, tiny_llama, texts[:3])
    assert tiny_llama.fingerprint == before
    assert not any(point.handles for point in tiny_llama.hook_dict.values())


def test_a_report_is_a_row_and_a_file(
    tiny_llama: HookedTransformer, texts: list[str], sae: SAE, tmp_path: Path
) -> None:
    report = evaluate_in_model(sae, tiny_llama, texts[:5])
    assert report.to_frame()["kl"].tolist() == [report.kl]
    assert read_json(report.save(tmp_path / "splice.json"))["site"] == SITE


def test_what_cannot_be_spliced_is_refused(tiny_llama: HookedTransformer, sae: SAE) -> None:
    nameless = identity_sae(32)
    for given, texts, site, message in (
        (sae, [], None, "at least one"),
        (sae, "a text", None, "give a list of texts"),
        (nameless, ["a text"], None, "does not say its site"),
        (sae, ["a text"], "resid_post:*", "names 2 sites"),
        (sae, ["a text"], "mlp.post:0", "width 64, the SAE reads 32"),
        (sae, ["a"], None, "no row of these texts is typical"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_in_model(given, tiny_llama, texts, site=site)
