"""Feature absorption: a latent for "begins with s" that is silent on `snake`, since the latent for snakes says it already.

The task is the first letter of a word, for which there is a truth:

1. Words are divided into two parts, letters in proportion. On the first a logistic probe learns each letter from the
   activations, one letter against the others. Its penalty is the same in every direction: features standardised one by one
   would turn the direction towards the quiet ones. A letter that the probe cannot read on the second part (F1 below
   `min_f1`) is not informative: nothing is said about it.
2. Main latents of a letter, on the first part: the latents with the largest (mean with the letter - mean without), first
   one, then two ... at most ten, as long as a probe on them gains 0.03 of F1.
3. A word of the second part that begins with the letter, and of which the probe says so, is *absorbed* where no main latent
   fires, and the latent that writes most along the probe's direction has a cosine of at least 0.025 with it and writes at
   least 0.4 of the projection of the activation. The rate is absorbed / read.
4. The fraction counts partial absorption as well: where at most three other latents with a cosine of at least 0.1 write 0.4
   of the projection together, their share of what they and the main latents write, else 0.

Chanin et al. 2024, A is for absorption, https://arxiv.org/abs/2409.14507; the thresholds and the fraction are those of
Karvonen et al. 2025, SAEBench, https://arxiv.org/abs/2503.09532. Two things are otherwise here. Projections are those of x -
b_dec, not of x: the constant part of all activations is no latent's work, and in most models it is the larger one. And main
latents are ranked by differences of means, not by an L1 probe. In models below a billion parameters the probe reads few
letters well: look at `informative` first.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int
from scipy.stats import binomtest
from torch import Tensor

from interp import artifact
from interp.dataset import grouped_split
from interp.model import HookedTransformer
from interp.model.splicing import check_model
from interp.probe.figures import auroc
from interp.probe.inputs import check_activations
from interp.probe.methods import fit_logistic
from interp.probe.solver import Design, log_loss
from interp.sae.evaluate import METRIC_VERSION
from interp.sae.model import SAE
from interp.sae.words import LETTERS, PROMPT, first_letters, vocabulary_words, word_activations

MIN_COSINE = 0.025
"""Cosine with the probe that an absorbing latent needs."""
MIN_SHARE = 0.4
"""Share of the projection that it needs."""
PARTIAL_COSINE, PARTIAL_LATENTS = 0.1, 3
"""For the fraction: cosine that each absorbing latent needs, and how many may do it together."""
SPLIT_GAIN, MAX_MAIN = 0.03, 10
"""F1 that another main latent must gain, and the most main latents."""
STRENGTHS = (1e-2, 1e-1, 1.0, 10.0)
"""Of the letters' probes to choose from: scikit-learn's C, on activations of mean variance 1."""
MIN_WORDS = 30
"""Words of a letter that each part needs: with fewer, the latent of a single word gains enough F1 to pass for a main one."""


@dataclass(frozen=True, eq=False)
class AbsorptionReport:
    """Absorption of first letters, on words that neither the probes nor the choice of latents saw."""

    letters: pd.DataFrame = field(repr=False)
    """A row per letter: letter, n_words (in the second part), f1 and auroc of the probe there, informative, main (latents),
    main_f1 (of a probe on them, first part), n_read (words that the probe reads rightly), n_silent (of those, no main latent
    fires), n_absorbed, rate, low, high (95 %, Wilson), fraction. The last seven are null where it is not informative."""
    words: pd.DataFrame = field(repr=False)
    """A row per word of the second part with an informative letter: word, letter, read, projection (raw units), main (summed
    activation of the main latents), latent (the one that writes most along the probe), cosine, share, absorbed, fraction."""
    rate: float | None
    """Absorbed / read, over all informative letters; None without any."""
    low: float | None
    """Lower end of the 95 % interval (Wilson), words drawn."""
    high: float | None
    mean_rate: float | None
    """Mean of the letters' rates: each letter counts the same."""
    mean_fraction: float | None
    """Mean of the letters' fractions."""
    n: int
    """Words that were read."""
    card: dict[str, Any] = field(repr=False)
    """Site, prompt, thresholds, counts, seed, provenance."""

    def to_frame(self) -> pd.DataFrame:
        """`letters`."""
        return self.letters.copy()

    def summary(self) -> str:
        """One sentence on what could be measured, and one on what came out."""
        good = self.letters.loc[self.letters["informative"], "letter"].tolist()
        first = (
            f"The probe reads {len(good)} of {len(self.letters)} letters (F1 at least {self.card['min_f1']} on words that it "
            f"did not see){': ' if good else ''}{' '.join(good)}."
        )
        if self.rate is None:
            return f"{first} Nothing can be said about absorption at this site of this model."
        return (
            f"{first} Absorbed: {self.rate:.3f} (95 % {self.low:.3f} to {self.high:.3f}) of n = {self.n:,} words; mean over "
            f"letters {self.mean_rate:.3f}, mean fraction {self.mean_fraction:.3f}."
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a folder, whole or not at all; `load_absorption_report` reads it. ValueError where it exists already."""
        with artifact.atomic_folder(folder) as place:
            self.letters.to_parquet(place / "letters.parquet", index=False)
            self.words.to_parquet(place / "words.parquet", index=False)
            figures = {name: getattr(self, name) for name in _FIGURES}
            content = {"kind": "absorption_report", "card": self.card, "figures": figures}
            artifact.write_json(place / "report.json", content)
        return Path(folder)


_FIGURES = ("rate", "low", "high", "mean_rate", "mean_fraction", "n")
_COUNTS, _SHARES = ("n_read", "n_silent", "n_absorbed"), ("rate", "low", "high", "fraction")
_WORD_COLUMNS = ("word", "letter", "read", "projection", "main", "latent", "cosine", "share", "absorbed", "fraction")


def load_absorption_report(folder: str | os.PathLike[str]) -> AbsorptionReport:
    """Read what `AbsorptionReport.save` wrote. ValueError for any other folder, or a damaged one."""
    folder = Path(folder)
    content = artifact.read_json(folder / "report.json")
    if not isinstance(content, dict) or content.get("kind") != "absorption_report":
        raise ValueError(f"{folder} holds no report on absorption")
    try:
        letters, words = (pd.read_parquet(folder / f"{name}.parquet") for name in ("letters", "words"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a whole report ({error}): measure again") from None
    letters["main"] = [[int(latent) for latent in main] for main in letters["main"]]
    return AbsorptionReport(letters=letters, words=words, card=content["card"], **content["figures"])


def feature_absorption(
    sae: SAE,
    model: HookedTransformer,
    *,
    words: Sequence[str] | None = None,
    per_letter: int = 100,
    prompt: str = PROMPT,
    min_f1: float = 0.6,
    batch_size: int = 64,
    seed: int = 0,
) -> AbsorptionReport:
    """Measure how often a latent for a first letter is silent where a more special latent says the letter.

    Args:
        sae: an SAE of one or several sites that have a row per token.
        model: the model that it was trained on.
        words: words of ASCII letters, None for `vocabulary_words`.
        per_letter: most words of one letter, where `words` is None; at least 2 MIN_WORDS.
        prompt: what each word is read behind.
        min_f1: what the probe of a letter must reach on words that it did not see.
        batch_size: words at a time.
        seed: of the choice of words and their split.

    Raises:
        ValueError: a transcoder, an SAE without sites or of another model, an encoder, a model without such words, and what
            `absorption_of_rows` refuses.
    """
    if not sae.sites:
        raise ValueError("the SAE does not say its site: give it one in its card, or use absorption_of_rows")
    if sae.is_transcoder or sae.d_in != sae.d_out:
        raise ValueError(_WRITES_ELSEWHERE)
    check_model(model, [sae])
    # What follows is said here, and not after the model has run.
    _check_f1(min_f1)
    if words is None and isinstance(per_letter, int) and 0 < per_letter < 2 * MIN_WORDS:
        raise ValueError(f"per_letter={per_letter} is too few: each letter needs {2 * MIN_WORDS} words or more")
    listed = vocabulary_words(model, per_letter, seed) if words is None else list(words)
    _letters_with_words(first_letters(listed))
    rows = word_activations(model, listed, sae.sites, prompt=prompt, batch_size=batch_size)
    more = {"prompt": prompt, "model": model.fingerprint}
    return absorption_of_rows(sae, torch.cat(list(rows.values()), dim=1), listed, min_f1=min_f1, seed=seed, card=more)


def absorption_of_rows(
    sae: SAE,
    x: Tensor | np.ndarray,
    words: Sequence[str],
    *,
    min_f1: float = 0.6,
    seed: int = 0,
    card: dict[str, Any] | None = None,
) -> AbsorptionReport:
    """`feature_absorption` of activations that are there already.

    Args:
        sae: the SAE.
        x: [word d_in], the activation in which each word was read.
        words: words of ASCII letters, none of them twice (upper and lower case are one).
        min_f1: as in `feature_absorption`.
        seed: of the split.
        card: what the report's card says beside its own.

    Raises:
        ValueError: a transcoder; words that are not such, or another number of them than rows; NaN; another width; or not
            two letters with 60 words.
    """
    if sae.is_transcoder or sae.d_in != sae.d_out:
        raise ValueError(_WRITES_ELSEWHERE)
    _check_f1(min_f1)
    letter, rows = first_letters(words), check_activations(x, "the activations")
    if len(rows) != len(words):
        raise ValueError(f"there are {len(words)} words for {len(rows)} rows")
    kept = _letters_with_words(letter)
    chosen = np.flatnonzero([c in kept for c in letter])
    y = np.array([kept.index(letter[i]) for i in chosen])
    task = _Task(sae, rows[torch.from_numpy(chosen)], [words[int(i)] for i in chosen], kept, y, seed)
    lines, parts = zip(*(task.letter(number, min_f1) for number in range(len(kept))), strict=True)
    own = {
        "sites": list(sae.sites),
        "min_f1": float(min_f1),
        "n_words": len(words),
        "n_used": len(chosen),
        "n_test": len(task.test),
        "thresholds": {"cosine": MIN_COSINE, "share": MIN_SHARE, "split_gain": SPLIT_GAIN},
        "metric_version": METRIC_VERSION,
        "provenance": artifact.provenance(seed=seed),
    }
    return _report(pd.DataFrame(lines), [part for part in parts if part is not None], {**(card or {}), **own})


_WRITES_ELSEWHERE = "absorption compares what is written with what is read: a transcoder writes another site"


def _letters_with_words(letter: Sequence[str]) -> list[str]:
    """The letters of which there are enough words for both parts. ValueError where they are not two."""
    kept = [c for c in LETTERS if letter.count(c) >= 2 * MIN_WORDS]
    if len(kept) < 2:
        raise ValueError(f"at least two letters need {2 * MIN_WORDS} words or more: give more words=")
    return kept


def _check_f1(min_f1: float) -> None:
    if not 0 <= min_f1 <= 1:
        raise ValueError(f"min_f1 is an F1 score between 0 and 1, got {min_f1}")


class _EvenDesign(Design):
    """One scale for all features: directions stay what they are in raw space."""

    @cached_property
    def scale(self) -> Float64[Tensor, "d"]:
        """Root of the mean variance, for every feature."""
        return (self.X - self.mean).square().mean().sqrt().expand(self.X.shape[1])


class _Task:
    """The split, the letters' probes, and the latents of every word."""

    def __init__(self, sae: SAE, x: Float64[Tensor, "word d"], words: list[str], names: list[str], y: Any, seed: int):
        self.sae, self.x, self.words, self.names, self.y = sae, x, words, names, y
        self.train, self.test = grouped_split([word.lower() for word in words], (0.5, 0.5), seed, y)
        self.targets = torch.nn.functional.one_hot(torch.from_numpy(y)).T.double()  # [letter word]
        with torch.no_grad():
            self.latents = sae.encode(x.to(sae.W_enc)).double().cpu()
        self.direction, self.logit = self._probes(seed)

    def _probes(self, seed: int) -> tuple[Float64[Tensor, "letter d"], Float64[Tensor, "letter word"]]:
        """Unit direction of each letter's probe, and its log-odds of every word; strengths chosen inside the first part."""
        inner, held = (self.train[part] for part in grouped_split(self.train, (0.7, 0.3), seed, self.y[self.train]))
        n = len(self.names)
        C = torch.tensor(STRENGTHS, dtype=torch.float64).repeat_interleave(n)
        target = self.targets[:, inner].repeat(len(STRENGTHS), 1)
        logit = fit_logistic(_EvenDesign(self.x[inner]), target, torch.ones_like(target), C).logit(self.x[held])
        truth = self.targets[:, held].repeat(len(STRENGTHS), 1)
        loss = log_loss(logit, truth, torch.ones_like(truth)).view(len(STRENGTHS), n)
        best = torch.tensor(STRENGTHS, dtype=torch.float64)[loss.argmin(0)]
        target = self.targets[:, self.train]
        readers = fit_logistic(_EvenDesign(self.x[self.train]), target, torch.ones_like(target), best)
        return torch.nn.functional.normalize(readers.direction, dim=1), readers.logit(self.x)

    def letter(self, number: int, min_f1: float) -> tuple[dict[str, Any], pd.DataFrame | None]:
        """The line of a letter, and its words."""
        truth = self.y == number
        logit = self.logit[number].numpy()
        cut, _ = best_f1(logit[self.train], truth[self.train])
        f1 = _f1(logit[self.test] > cut, truth[self.test])
        line = {
            "letter": self.names[number],
            "n_words": int(truth[self.test].sum()),
            "f1": f1,
            "auroc": float(auroc(logit[self.test], truth[self.test].astype(int))[0]),
            "informative": f1 >= min_f1,
        }
        main, main_f1 = self._main(truth)
        line |= {"main": main, "main_f1": main_f1}
        words = None
        if line["informative"]:
            of_letter = self.test[truth[self.test]]
            words = self._words(number, of_letter, main, logit[of_letter] > cut)
        return line, words

    def _main(self, truth: Bool[np.ndarray, " word"]) -> tuple[list[int], float]:
        """Main latents of a letter and the F1 of a probe on them, both of the first part."""
        latents, y = self.latents[self.train], truth[self.train]
        positive = torch.from_numpy(y)
        difference = latents[positive].mean(0) - latents[~positive].mean(0)
        order = difference.topk(min(MAX_MAIN, self.sae.n_latents)).indices
        target = positive.double()[None]
        reached = 0.0
        for k in range(1, len(order) + 1):
            chosen = latents[:, order[:k]]
            reader = fit_logistic(Design(chosen), target, torch.ones_like(target), target.new_ones(1))
            _, f1 = best_f1(reader.logit(chosen)[0].numpy(), y)
            if k > 1 and f1 - reached <= SPLIT_GAIN:
                return order[: k - 1].tolist(), reached
            reached = f1
        return order.tolist(), reached

    def _words(
        self, number: int, rows: Int[np.ndarray, " word"], main: list[int], read: Bool[np.ndarray, " word"]
    ) -> pd.DataFrame:
        """What writes the letter's direction in each of these words."""
        direction = self.direction[number]
        W_dec, b_dec = self.sae.W_dec.double().cpu(), self.sae.b_dec.double().cpu()
        projection, along = (self.x[rows] - b_dec) @ direction, W_dec @ direction
        written, cosine = self.latents[rows] * along, along / W_dec.norm(dim=1).clamp_min(1e-30)
        latent = written.argmax(1)
        share = written.gather(1, latent[:, None])[:, 0] / projection
        firing = self.latents[rows][:, main].sum(1)
        absorbed = (firing == 0) & (projection > 0) & (cosine[latent] >= MIN_COSINE) & (share >= MIN_SHARE)
        return pd.DataFrame(
            {
                "word": [self.words[i] for i in rows],
                "letter": self.names[number],
                "read": read,
                "projection": projection.numpy(),
                "main": firing.numpy(),
                "latent": latent.numpy(),
                "cosine": cosine[latent].numpy(),
                "share": share.numpy(),
                "absorbed": absorbed.numpy() & read,
                "fraction": _fraction(written, projection, cosine, main).numpy(),
            }
        )


def _fraction(
    written: Float64[Tensor, "word latent"],
    projection: Float64[Tensor, " word"],
    cosine: Float64[Tensor, " latent"],
    main: list[int],
) -> Float64[Tensor, " word"]:
    """Share of the absorbing latents in what they and the main latents write along the probe; 0 without absorption."""
    by_main = written[:, main].sum(1)
    able = cosine >= PARTIAL_COSINE
    able[main] = False
    others = (written * able).clamp_min(0.0).topk(min(PARTIAL_LATENTS, written.shape[1])).values.sum(1)
    counted = torch.minimum(others, projection - by_main)
    share = torch.where(by_main > 0, counted / (counted + by_main), 1.0)
    there = (projection > 0) & (by_main < projection) & (others >= MIN_SHARE * projection)
    return torch.where(there, share, 0.0)


def _report(letters: pd.DataFrame, parts: list[pd.DataFrame], card: dict[str, Any]) -> AbsorptionReport:
    of_letter = {part["letter"].iloc[0]: _line([part]) for part in parts}
    nothing = {**dict.fromkeys(_COUNTS, pd.NA), **dict.fromkeys(_SHARES, float("nan"))}
    found = pd.DataFrame([of_letter.get(name, nothing) for name in letters["letter"]])
    found = found.astype({**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(_SHARES, "float64")})
    letters = pd.concat([letters, found], axis=1)
    words = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(_WORD_COLUMNS))
    total = _line(parts)
    if not total["n_read"]:
        return AbsorptionReport(letters, words, None, None, None, None, None, 0, card)
    return AbsorptionReport(
        letters,
        words,
        rate=total["rate"],
        low=total["low"],
        high=total["high"],
        mean_rate=float(np.nanmean(found["rate"].to_numpy())),
        mean_fraction=float(np.nanmean(found["fraction"].to_numpy())),
        n=total["n_read"],
        card=card,
    )


def _line(parts: list[pd.DataFrame]) -> dict[str, Any]:
    """Counts and rates over the words that the probe reads."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(part[name].to_numpy(dtype)[part["read"]] for part in parts)])

    absorbed = column("absorbed", bool)
    n, n_absorbed = len(absorbed), int(absorbed.sum())
    counts = {"n_read": n, "n_silent": int((column("main", float) == 0).sum()), "n_absorbed": n_absorbed}
    if n == 0:
        return {**counts, **dict.fromkeys(_SHARES, float("nan"))}
    ends = binomtest(n_absorbed, n).proportion_ci(0.95, "wilson")
    shares = (n_absorbed / n, ends.low, ends.high, column("fraction", float).mean())
    return {**counts, **dict(zip(_SHARES, map(float, shares)))}


def best_f1(score: Float[np.ndarray, " row"], y: Bool[np.ndarray, " row"]) -> tuple[float, float]:
    """The cut with the largest F1 of `score > cut`, half-way between two scores, and that F1."""
    order = np.argsort(-score, kind="stable")
    ordered, hits = score[order], np.cumsum(y[order])
    f1 = 2 * hits / (np.arange(1, len(y) + 1) + y.sum())
    f1[:-1][ordered[:-1] == ordered[1:]] = -1.0  # a cut cannot part equal scores
    best = int(f1.argmax())
    below = ordered[best + 1] if best + 1 < len(y) else ordered[best] - 1.0
    return float((ordered[best] + below) / 2), float(f1[best])


def _f1(guess: Bool[np.ndarray, " row"], y: Bool[np.ndarray, " row"]) -> float:
    together = guess.sum() + y.sum()
    return float(2 * (guess & y).sum() / together) if together else 0.0
