"""Absorption that was planted word by word, its limits, and the words of a model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from tiny import tiny_model
from torch import Tensor
from torch.nn import functional

from interp.model import HookedTransformer
from interp.sae import SAE
from interp.sae.absorption import absorption_of_rows, best_f1, feature_absorption, load_absorption_report
from interp.sae.words import vocabulary_words, word_activations

ENDINGS = "bcdfghjklmnpqrtv"
LETTERS = "asrt"


def planted(absorbed: set[str], *, own: float = 1.0) -> tuple[SAE, Tensor, list[str]]:
    """A direction for each letter and one for each word; the row of a word is 3 of its letter and `own` of its own.

    Latents 0 to 3 read the letters. Each absorbed word has a latent of its own, which reads and writes the whole row; and
    the letter's latent does not fire on it.
    """
    words = [f"{letter}{x}{y}" for letter in LETTERS for x in "aeiou" for y in ENDINGS]
    basis = torch.eye(len(LETTERS) + len(words))
    letter = torch.tensor([LETTERS.index(word[0]) for word in words])
    rows = 3.0 * basis[letter] + own * basis[len(LETTERS) :]
    special = [i for i, word in enumerate(words) if word in absorbed]
    directions = functional.normalize(rows[special], dim=1)
    W_enc = torch.cat([basis[: len(LETTERS)], directions]).T.clone()
    for i in special:  # the letter's latent is switched off by the word's own direction
        W_enc[len(LETTERS) + i, letter[i]] = -100.0
    b_enc = torch.cat([torch.full((len(LETTERS),), -0.1), -0.98 * rows[special].norm(dim=1)])
    W_enc[:, len(LETTERS) :] *= 50.0  # a word's own latent fires on it with the length of its row
    b_enc[len(LETTERS) :] *= 50.0
    W_dec = torch.cat([basis[: len(LETTERS)], directions])
    return SAE(W_enc, b_enc, W_dec, torch.zeros(len(basis)), architecture="relu"), rows, words


def test_the_rate_is_that_of_the_planted_words() -> None:
    absorbed = {f"s{x}{y}" for x in "ei" for y in ENDINGS[:5]} | {"reb"}
    sae, rows, words = planted(absorbed)
    report = absorption_of_rows(sae, rows, words)
    letters = report.letters.set_index("letter")
    assert letters["informative"].all()
    assert [letters.loc[c, "main"] for c in LETTERS] == [[0], [1], [2], [3]]
    found = set(report.words.loc[report.words["absorbed"], "word"])
    tested = set(report.words["word"])
    assert found == absorbed & tested
    assert 2 <= len(found) < len(absorbed)
    of_s = report.words[report.words["letter"] == "s"]
    assert letters.loc["s", "rate"] == of_s["absorbed"].sum() / of_s["read"].sum()
    assert letters.loc["a", "rate"] == 0.0
    assert letters.loc["s", "n_silent"] == letters.loc["s", "n_absorbed"] == of_s["absorbed"].sum()
    assert report.rate == len(found) / report.n
    assert report.low < report.rate < report.high
    assert report.mean_rate == pytest.approx(letters["rate"].mean())
    assert f"n = {report.n}" in report.summary()


def test_an_sae_without_such_latents_absorbs_nothing() -> None:
    report = absorption_of_rows(*planted(set()))
    assert (report.rate, report.mean_fraction) == (0.0, 0.0)
    assert report.words["share"].to_numpy() == pytest.approx(2.9 / 3.0, abs=0.05)


def test_a_latent_that_writes_too_little_is_no_absorption() -> None:
    """The same silent latents, but the words' own latents write a tenth."""
    absorbed = {f"s{x}{y}" for x in "ei" for y in ENDINGS[:5]}
    sae, rows, words = planted(absorbed)
    sae.W_dec[len(LETTERS) :] *= 0.1
    report = absorption_of_rows(sae, rows, words)
    assert report.rate == 0.0
    assert report.letters.set_index("letter").loc["s", "n_silent"] > 0


def test_partial_absorption_counts_in_the_fraction_only() -> None:
    """The letter's latent still fires, and the words' own latents write half of the letter."""
    absorbed = {f"s{x}{y}" for x in "ei" for y in ENDINGS[:6]}
    sae, rows, words = planted(absorbed)
    sae.W_enc[len(LETTERS) :, : len(LETTERS)] = 0.0
    report = absorption_of_rows(sae, rows, words)
    assert report.rate == 0.0
    # The letter's own latent writes all but a thirtieth, and only the rest can be the others'.
    assert report.words.set_index("word")["fraction"].max() < 0.05
    sae.W_dec[1] *= 0.5
    fractions = absorption_of_rows(sae, rows, words).words.set_index("word")["fraction"]
    some = fractions[[word for word in fractions.index if word in absorbed]]
    assert len(some) > 0
    assert ((some > 0.3) & (some < 0.7)).all()
    assert (fractions.drop(some.index) == 0).all()


def test_a_letter_that_cannot_be_read_is_left_out() -> None:
    """Words with r and t have a direction of either at random."""
    sae, rows, words = planted(set())
    rng = np.random.default_rng(0)
    for row, word in zip(rows, words):
        if word[0] in "rt":
            row[: len(LETTERS)] = 3.0 * torch.eye(len(LETTERS))[LETTERS.index(rng.choice(["r", "t"]))]
    report = absorption_of_rows(sae, rows, words, min_f1=0.8)
    letters = report.letters.set_index("letter")
    assert letters["informative"].to_dict() == {"a": True, "r": False, "s": True, "t": False}
    assert np.isnan(letters.loc["r", "rate"])
    assert set(report.words["letter"]) == {"a", "s"}
    generator = torch.Generator().manual_seed(0)
    none = absorption_of_rows(sae, torch.randn(rows.shape, generator=generator), words, min_f1=0.9)
    assert (none.rate, none.n, len(none.words)) == (None, 0, 0)
    assert "Nothing can be said" in none.summary()


def test_the_cut_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        score, y = rng.integers(0, 12, 30).astype(float), rng.random(30) < 0.3
        y[0] = True
        cut, f1 = best_f1(score, y)
        assert f1 == pytest.approx(f1_score(y, score > cut))
        assert f1 == pytest.approx(max(f1_score(y, score > c) for c in np.arange(-1, 12) + 0.5))


def test_a_report_is_a_folder(tmp_path: Path) -> None:
    report = absorption_of_rows(*planted({"reb", "ren"}), seed=3, card={"prompt": "x"})
    back = load_absorption_report(report.save(tmp_path / "report"))
    assert back.summary() == report.summary()
    assert back.card == report.card
    assert back.card["prompt"] == "x"
    assert back.letters.equals(report.letters)
    assert back.words.equals(report.words)
    again = absorption_of_rows(*planted({"reb", "ren"}), seed=3)
    assert again.words.equals(report.words)
    (tmp_path / "report" / "words.parquet").unlink()
    with pytest.raises(ValueError, match="not a whole report"):
        load_absorption_report(tmp_path / "report")


def test_rows_are_those_of_the_word_behind_its_prompt() -> None:
    model = tiny_model()
    words = ["stone", "ant", "river"]
    found = word_activations(model, words, ["resid_post:0", "z:1"], prompt="Say", batch_size=2)
    assert list(found) == ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z"]
    for number, word in enumerate(words):
        _, cache = model.run_with_cache(f"Say {word}", list(found))
        for name, rows in found.items():
            assert torch.allclose(rows[number], cache[name][0, -1].flatten(), atol=1e-4)


def test_a_model_is_measured_end_to_end() -> None:
    """Bytes as tokens: the last byte of each word decides little, so hardly a letter is read; but all of it runs."""
    model = tiny_model()
    words = [f"{a}{b}{c}" for a in "as" for b in ENDINGS for c in "eiou"]
    W_dec = functional.normalize(torch.randn(64, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    sae = SAE(
        W_dec.T.contiguous(), torch.zeros(64), W_dec, torch.zeros(32), k=4, card={"site": "blocks.1.hook_resid_post"}
    )
    report = feature_absorption(sae, model, words=words, min_f1=0.0)
    assert report.card["model"] == model.fingerprint
    assert report.letters["n_words"].sum() == report.card["n_test"] == len(words) // 2
    with pytest.raises(ValueError, match="no token that is a space"):
        feature_absorption(sae, model)


def test_what_can_be_refused_is_refused_before_the_model_runs() -> None:
    model, site = tiny_model(), "blocks.1.hook_resid_post"
    W_dec = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    tensors = (W_dec.T.contiguous(), torch.zeros(64), W_dec, torch.zeros(32))
    sae = SAE(*tensors, k=4, card={"site": site})
    foreign = SAE(*tensors, k=4, card={"site": site, "model": "0123"})
    transcoder = SAE(*tensors, k=4, card={"sites": [site], "targets": ["blocks.1.hook_mlp_out"]})
    with model.hooks({site: lambda value, ctx: pytest.fail("the model ran")}):
        for call, message in (
            (
                lambda: feature_absorption(sae, model, per_letter=40),
                "per_letter=40 is too few: each letter needs 60 words",
            ),
            (lambda: feature_absorption(sae, model, words=["ant", "bee"]), "at least two letters need 60 words"),
            (lambda: feature_absorption(sae, model, min_f1=2.0), "between 0 and 1, got 2"),
            (lambda: feature_absorption(transcoder, model), "a transcoder writes another site"),
            (lambda: feature_absorption(foreign, model), "fingerprint 0123"),
        ):
            with pytest.raises(ValueError, match=message):
                call()


def test_what_cannot_be_measured_is_refused() -> None:
    sae, rows, words = planted(set())
    transcoder = SAE(
        sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, architecture="relu", card={"sites": ["a"], "targets": ["b"]}
    )
    for call, message in (
        (lambda: absorption_of_rows(sae, rows[:3], words), "words for 3 rows"),
        (lambda: absorption_of_rows(sae, rows, ["a b", *words[1:]]), "first is 'a b'"),
        (lambda: absorption_of_rows(sae, rows, [*words[:-1], words[0].upper()]), "more than once"),
        (lambda: absorption_of_rows(sae, rows[:90], words[:90]), "at least two letters"),
        (lambda: absorption_of_rows(transcoder, rows, words), "a transcoder writes another site"),
        (lambda: absorption_of_rows(sae, rows, words, min_f1=1.5), "between 0 and 1, got 1.5"),
        (lambda: feature_absorption(sae, tiny_model()), "does not say its site"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_first_letters_of_a_real_vocabulary(smollm: HookedTransformer) -> None:
    """The words are tokens, the model knows how they begin, and a dictionary with a latent for each word absorbs it."""
    site = "blocks.6.hook_resid_post"
    words = vocabulary_words(smollm, per_letter=70)
    assert smollm.tokenizer is not None
    assert all(len(smollm.tokenizer.encode(f" {word}", bos=False)) == 1 for word in words)
    assert len({word.lower() for word in words}) == len(words) > 1200
    assert words == vocabulary_words(smollm, per_letter=70)
    words = [word for word in words if word[0].lower() in "agjsy"]
    x = word_activations(smollm, words, [site])[site]
    centre = x.mean(0)
    W_dec = functional.normalize(x - centre, dim=1)
    sae = SAE(W_dec.T.contiguous(), torch.zeros(len(W_dec)), W_dec, centre, k=32, card={"site": site})
    report = absorption_of_rows(sae, x, words)
    assert report.letters["informative"].sum() >= 3
    assert report.letters["auroc"].median() > 0.9
    assert report.n > 50
    assert report.rate > 0.2  # a latent for each word is what absorbs letters
