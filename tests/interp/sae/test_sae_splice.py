"""The SAE in place in the model: a perfect one costs nothing, one that says zero costs what the zero ablation costs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.artifact import read_json
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.sae import SAE, evaluate_in_model
from interp.sae.splice import load_splice_report
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


def identity_sae(width: int) -> SAE:
    both = torch.cat([torch.eye(width), -torch.eye(width)])
    return SAE(both.T.contiguous(), torch.zeros(2 * width), both, torch.zeros(width), k=2 * width)


def constant_sae(value: Tensor, card: dict | None = None) -> SAE:
    width = len(value)
    return SAE(torch.zeros(width, 8), torch.full((8,), -1.0), torch.zeros(8, width), value, k=2, card=card)


def test_the_identity_recovers_all_and_zero_nothing(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    texts = texts[:20]
    perfect = evaluate_in_model(identity_sae(32), tiny_llama, texts, site=SITE)
    assert perfect.recovered_zero == pytest.approx(1.0, abs=1e-6)
    assert perfect.recovered_mean == pytest.approx(1.0, abs=1e-6)
    assert perfect.delta_loss == pytest.approx(0.0, abs=1e-6)
    assert perfect.kl == pytest.approx(0.0, abs=1e-6)
    empty = evaluate_in_model(constant_sae(torch.zeros(32)), tiny_llama, texts, site=SITE)
    assert empty.recovered_zero == empty.recovered_zero_all == 0.0
    assert perfect.kl_score == pytest.approx(1.0, abs=1e-6)
    assert (empty.kl_score, empty.kl_score_all) == (0.0, 0.0)
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
    for number, text in enumerate(texts[:24]):
        chosen = typical[text_of_row == number]

        def splice(value: Tensor, _ctx: HookContext, chosen: Tensor = chosen) -> Tensor:
            return torch.where(chosen[None, :, None], sae(value), value)

        with torch.no_grad():
            losses = [tiny_llama.loss(text, per_token=True)]
            with tiny_llama.hooks({SITE: splice}):
                losses.append(tiny_llama.loss(text, per_token=True))
        totals += torch.stack([loss.double().sum() for loss in losses])
        n_tokens += losses[0].numel()
    report = evaluate_in_model(sae, tiny_llama, texts[:24])
    assert report.n_tokens == n_tokens
    assert report.loss_clean == pytest.approx(totals[0].item() / n_tokens, rel=1e-5)
    assert report.loss_sae == pytest.approx(totals[1].item() / n_tokens, rel=1e-5)
    assert report.delta_loss == report.loss_sae - report.loss_clean


def test_figures_with_every_row_replaced_stand_beside(
    tiny_llama: HookedTransformer, texts: list[str], sae: SAE
) -> None:
    """The same as a splice without the error; they are not the figures of typical rows."""
    report = evaluate_in_model(sae, tiny_llama, texts[:16])
    tokens = [tiny_llama.tokenize(text) for text in texts[:16]]
    n_tokens = sum(len(each.ids[0]) - 1 for each in tokens)
    with torch.no_grad(), tiny_llama.splice(sae, error=False):
        total = sum(tiny_llama.loss(each, per_token=True).double().sum().item() for each in tokens)
    assert report.loss_sae_all == pytest.approx(total / n_tokens, rel=1e-4)
    assert report.delta_loss_all == pytest.approx(report.loss_sae_all - report.loss_clean)
    assert abs(report.loss_sae_all - report.loss_sae) > 1e-3


def test_intervals_are_drawn_over_texts(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    """A bootstrap by hand of the texts' own reports; one text alone has no interval."""
    alone = [evaluate_in_model(sae, tiny_llama, [text]) for text in texts[:12]]
    assert alone[0].delta_loss_low is alone[0].kl_high_all is None
    report = evaluate_in_model(sae, tiny_llama, texts[:12], seed=3)
    n = np.array([each.n_tokens for each in alone])
    draws = np.random.default_rng(0).integers(0, 12, (4000, 12))
    for name in ("delta_loss", "kl"):
        values = np.array([getattr(each, name) for each in alone])
        middle = (values * n).sum() / n.sum()
        assert getattr(report, name) == pytest.approx(middle, rel=1e-3)
        spread = ((values * n)[draws].sum(1) / n[draws].sum(1)).std()
        low, high = (getattr(report, f"{name}_{end}") for end in ("low", "high"))
        assert low < middle < high
        assert (high - low) / spread == pytest.approx(2 * 2.2 * (12 / 11) ** 0.5, rel=0.15)  # t(11) = 2.2


def test_transcoders_and_crosscoders(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    """A transcoder that computes nothing is the zero ablation of the MLP; a perfect crosscoder costs nothing."""
    sites, target = ["blocks.1.hook_mlp_in"], ["blocks.1.hook_mlp_out"]
    silent = SAE(
        torch.zeros(32, 8), torch.full((8,), -1.0), torch.zeros(8, 32), torch.zeros(32), k=2,
        card={"sites": sites, "targets": target},
    )  # fmt: skip
    report = evaluate_in_model(silent, tiny_llama, texts[:20])
    assert (report.site, report.target) == (sites[0], target[0])
    assert report.recovered_zero == 0.0
    assert report.delta_loss > 0
    by_hand = evaluate_in_model(
        constant_sae(torch.zeros(32)), tiny_llama, texts[:20], site="mlp_in:1", target="mlp_out:1"
    )
    assert by_hand.kl == pytest.approx(report.kl)
    with pytest.raises(ValueError, match="give target= as well"):
        evaluate_in_model(silent, tiny_llama, texts[:1], site="mlp_in:0")
    unplaced = constant_sae(torch.zeros(32), {"imported": {"transcoder": True}})
    with pytest.raises(ValueError, match="give target= as well"):
        evaluate_in_model(unplaced, tiny_llama, texts[:1], site="mlp_in:1")
    with pytest.raises(ValueError, match="whose card does not say what it writes"):
        evaluate_in_model(unplaced, tiny_llama, texts[:1])
    placed = evaluate_in_model(unplaced, tiny_llama, texts[:20], site="mlp_in:1", target="mlp_out:1")
    assert placed.kl == pytest.approx(report.kl)
    both = ["blocks.0.hook_resid_post", SITE]
    crosscoder = identity_sae(64)
    crosscoder.sites = crosscoder.targets = tuple(both)
    perfect = evaluate_in_model(crosscoder, tiny_llama, texts[:20])
    assert perfect.delta_loss == pytest.approx(0.0, abs=1e-6)
    assert perfect.delta_loss_all == pytest.approx(0.0, abs=1e-5)
    assert perfect.site == ", ".join(both)


def test_every_architecture(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    """The same dictionary in other words: a threshold of 0, a gate that is always right."""
    weights = [tensor.detach() for tensor in (sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec)]
    zeros = torch.zeros(sae.n_latents)
    plain, *same = (
        evaluate_in_model(SAE(*weights, **options, card=sae.card), tiny_llama, texts[:6])
        for options in (
            {"architecture": "relu"},
            {"threshold": zeros},
            {"b_mag": weights[1], "r_mag": zeros},
            {"k": sae.n_latents},
        )
    )
    for report in same:
        assert report.loss_sae == pytest.approx(plain.loss_sae, rel=1e-5)
        assert report.kl == pytest.approx(plain.kl, rel=1e-4)


def test_the_batch_size_does_not_matter(tiny_llama: HookedTransformer, texts: list[str], sae: SAE) -> None:
    whole, cut = (evaluate_in_model(sae, tiny_llama, texts[:20], batch_size=size) for size in (20, 7))
    for name, value in vars(whole).items():
        assert getattr(cut, name) == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name


def test_a_site_with_heads_is_flattened(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    assert evaluate_in_model(identity_sae(32), tiny_llama, texts[:9], site="z:0").delta_loss == pytest.approx(
        0.0, abs=1e-6
    )


def test_an_ablation_that_costs_nothing_leaves_nothing_to_recover(texts: list[str]) -> None:
    """A random model with large weights is worse than one that says nothing."""
    report = evaluate_in_model(constant_sae(torch.zeros(32)), tiny_model("llama", scale=20.0), texts[:9], site=SITE)
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
    path = report.save(tmp_path / "splice.json")
    assert load_splice_report(path) == report
    path.write_text(json.dumps({**read_json(path), "metric_version": "sae-0"}))
    with pytest.raises(ValueError, match="version 'sae-0'"):
        load_splice_report(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no splice report"):
        load_splice_report(path)


def test_a_typical_norm_is_that_of_its_own_site(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    """Moved to another site, the SAE's typical norm means nothing there: the texts' own median does."""
    plain = evaluate_in_model(constant_sae(torch.zeros(32)), tiny_llama, texts[:12], site=SITE)
    elsewhere, own = (
        constant_sae(torch.zeros(32), {"site": site, "typical_norm": 1e-6})
        for site in ("blocks.0.hook_resid_post", SITE)
    )
    assert evaluate_in_model(elsewhere, tiny_llama, texts[:12], site=SITE) == plain
    with pytest.raises(ValueError, match="no row of these texts is typical"):
        evaluate_in_model(own, tiny_llama, texts[:12], site=SITE)


def test_what_cannot_be_spliced_is_refused(tiny_llama: HookedTransformer, sae: SAE) -> None:
    nameless, foreign = identity_sae(32), identity_sae(32)
    foreign.card, foreign.sites, foreign.targets = {"model": "0" * 32}, (SITE,), (SITE,)
    for given, texts, site, message in (
        (sae, [], None, "at least one"),
        (sae, "a text", None, "give a list of texts"),
        (nameless, ["a text"], None, "does not say its site"),
        (sae, ["a text"], "resid_post:*", "names 2 sites"),
        (sae, ["a text"], "mlp.post:0", "width 64, the SAE reads 32"),
        (sae, ["a"], None, "no row of these texts is typical"),
        (foreign, ["a text"], None, "fingerprint 0000"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_in_model(given, tiny_llama, texts, site=site)
