"""The steps of the demo. Each reads the model and what earlier steps wrote, writes its files, and says what it found."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.calibration import CalibrationReport
from interp.dataset import Dataset, grouped_split, load_corpus, load_dataset, load_pairs, load_questions
from interp.demo.spec import DemoSpec
from interp.heads import head_scores
from interp.lens import logit_lens
from interp.model import HookedTransformer
from interp.probe import probe_sweep
from interp.recording import record
from interp.sae import SAEConfig, evaluate_sae, pca_baseline, split_rows, train_sae
from interp.sae.evaluate import METRIC_VERSION
from interp.sites import short_name
from interp.steering import steering_experiment, steering_vector
from interp.store import Store, open_store
from interp.uncertainty import (
    AnswerReport,
    answer_report,
    next_token_calibration,
    score_options,
    token_uncertainty,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Finding:
    """One line of the table that the demo prints."""

    what: str
    """What was measured."""
    figure: str
    """The number, with its interval and n."""
    where: str
    """File that holds it."""


@dataclass(frozen=True)
class Outcome:
    """What a step did."""

    headline: str
    """One line."""
    files: list[str]
    """Relative to the run's folder."""
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where the demo works and on what."""

    folder: Path
    model: HookedTransformer
    spec: DemoSpec

    def store(self, name: str) -> Path:
        """Folder of a store."""
        return self.folder / "stores" / name


@dataclass(frozen=True)
class Step:
    """A named part of the demo."""

    name: str
    title: str
    seconds: float
    """Expected on two cores."""
    depends: Any
    """The part of the specification that decides the result; a change makes the step run again."""
    run: Callable[[Place, Progress], Outcome]


def all_steps(spec: DemoSpec) -> list[Step]:
    """The demo in order."""
    truth, corpus, sae, steering, unsure = spec.truth, spec.corpus, spec.sae, spec.steering, spec.uncertainty
    said, texts, statements = [spec.prompt, spec.answer], _inputs(asdict(corpus)), _inputs(asdict(truth))
    seconds = truth.seconds
    return [
        Step("lens", "Logit lens on the prompt", 2, said, _lens),
        Step("heads", "Head scores on repeated random tokens", 8, spec.seed, _heads),
        Step("truth", "Record true and false statements", seconds["record"], statements, _truth),
        Step("probes", "Truthfulness probes at every layer", seconds["probes"], [statements, spec.seed], _probes),
        Step("corpus", "Record a text corpus", corpus.seconds, [texts, spec.seed], _corpus),
        Step("sae", "Sparse autoencoder", sae.seconds, [texts, _inputs(asdict(sae)), METRIC_VERSION, spec.seed], _sae),
        Step("steering", "Steering", steering.seconds, [_inputs(asdict(steering)), texts, spec.seed], _steering),
        Step(
            "calibration",
            "Calibration",
            unsure.seconds,
            [_inputs(asdict(unsure)), texts, said, spec.seed],
            _calibration,
        ),
    ]


def _inputs(values: dict[str, Any]) -> dict[str, Any]:
    """A table without the key that decides no result."""
    return {key: value for key, value in values.items() if key != "seconds"}


def _write_frame(frame: pd.DataFrame, path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    frame.to_parquet(temporary, index=False)
    temporary.replace(path)


def _lens(place: Place, progress: Progress) -> Outcome:
    result = logit_lens(place.model, place.spec.prompt, answer=place.spec.answer)
    result.save(place.folder / "lens.safetensors")
    _write_frame(result.to_frame(), place.folder / "lens.parquet")
    progress(1, 1)
    settle, p = int(result.settle_layer[-1]), float(result.target_probs[-1, -1])
    headline = f"{place.spec.answer.strip()!r} has probability {p:.3f} and is settled from layer {settle} on"
    files = ["lens.parquet", "lens.safetensors"]
    return Outcome(
        headline, files, [Finding("Probability of the answer", f"{p:.3f}; settled at layer {settle}", "lens.parquet")]
    )


def _heads(place: Place, progress: Progress) -> Outcome:
    scores = head_scores(place.model, seed=place.spec.seed)
    scores.save(place.folder / "heads.safetensors")
    _write_frame(scores.to_frame(), place.folder / "heads.parquet")
    progress(1, 1)
    best = scores.top("induction", 1).iloc[0]
    previous = scores.top("previous_token", 1).iloc[0]
    name = f"L{best.layer:.0f}H{best['head']:.0f}"
    figure = f"{name} {best.induction:.3f} ({best.induction_low:.3f} to {best.induction_high:.3f}), n = {best.n:.0f}"
    second = f"L{previous.layer:.0f}H{previous['head']:.0f} {previous.previous_token:.3f}"
    findings = [
        Finding("Strongest induction head", figure, "heads.parquet"),
        Finding("Strongest previous-token head", second, "heads.parquet"),
        Finding(
            "Loss on repeated random tokens",
            f"first copy {scores.losses['first_copy']:.2f}, second {scores.losses['second_copy']:.2f} nats",
            "heads.safetensors",
        ),
    ]
    return Outcome(
        f"{name} is the strongest induction head, {best.induction:.3f}",
        ["heads.parquet", "heads.safetensors"],
        findings,
    )


def _truth(place: Place, progress: Progress) -> Outcome:
    spec, stores = place.spec.truth, []
    sets = [load_dataset(name) for name in spec.datasets]
    total, before = sum(map(len, sets)), 0
    for data in sets:
        done = before
        stores.append(
            record(
                place.model, data, spec.sites, tokens="last", path=place.store(data.name),
                progress=lambda texts, _all, _tokens, done=done: progress(done + texts, total),
            )
        )  # fmt: skip
        before += len(data)
    n = sum(len(store.examples) for store in stores)
    headline = f"{n:,} statements at {len(stores[0].sites)} sites"
    return Outcome(headline, [f"stores/{data.name}/store.json" for data in sets])


def _probes(place: Place, progress: Progress) -> Outcome:
    spec = place.spec.truth
    frames, told, findings = [], {}, []
    for index, name in enumerate(spec.datasets):
        name = load_dataset(name).name
        store = open_store(place.store(name))
        report = probe_sweep(
            store, spec.sites, spec.kinds, seed=place.spec.seed,
            progress=lambda done, total, index=index: progress(index * total + done, len(spec.datasets) * total),
        )  # fmt: skip
        frames.append(report.to_frame().assign(dataset=name))
        told[name] = {
            "selected": {kind: asdict(found) for kind, found in report.selected.items()},
            "baselines": {key: asdict(figure) for key, figure in report.baselines.items()},
            "summary": report.summary(),
        }
        if not index:
            report.probe(spec.kinds[0]).save(place.folder / "probe.safetensors")
        best = report.selected[spec.kinds[0]]
        words = report.baselines["bag_of_words"]
        figure = (
            f"AUROC {best.auroc:.3f} ({best.low:.3f} to {best.high:.3f}), n = {best.n:,}; words alone {words.auroc:.3f}"
        )
        findings.append(Finding(f"Truth of {name}, probe at {short_name(best.site)}", figure, "probes.parquet"))
    _write_frame(pd.concat(frames, ignore_index=True), place.folder / "probes.parquet")
    artifact.write_json(place.folder / "probes.json", {"datasets": told})
    files = ["probes.parquet", "probes.json", "probe.safetensors"]
    return Outcome("; ".join(finding.figure.split(",")[0] for finding in findings), files, findings)


def _documents(place: Place) -> Dataset:
    """The corpus, as much of it as the specification asks for; documents lie spread over the file's groups."""
    data = load_corpus(place.spec.corpus.name)
    n = min(place.spec.corpus.max_documents, len(data))
    chosen = np.random.default_rng(place.spec.seed).permutation(len(data))[:n]
    return Dataset(data.name, tuple(data.examples[i] for i in sorted(chosen)), data.card)


def _corpus(place: Place, progress: Progress) -> Outcome:
    spec = place.spec.corpus
    data = _documents(place)
    store = record(
        place.model, data, spec.site, path=place.store(data.name), long="chunk", max_length=spec.max_length,
        progress=lambda done, total, _tokens: progress(done, total),
    )  # fmt: skip
    left_out = store.stats(store.sites[0]).left_out
    headline = f"{len(store.tokens):,} tokens of {len(data):,} documents; {left_out:,} first and outlier rows set apart"
    return Outcome(headline, [f"stores/{data.name}/store.json"])


def _corpus_store(place: Place) -> Store:
    return open_store(place.store(load_corpus(place.spec.corpus.name).name))


def _sae(place: Place, progress: Progress) -> Outcome:
    spec, store = place.spec.sae, _corpus_store(place)
    site = store.sites[0]
    train, held = split_rows(store, spec.held_out, place.spec.seed)
    config = SAEConfig(
        k=spec.k, width=spec.width, batch_size=spec.batch_size, epochs=spec.epochs, lr=spec.lr, seed=place.spec.seed
    )
    checkpoint = place.folder / "sae.checkpoint.safetensors"
    sae = train_sae(store, config, site=site, rows=train, checkpoint=checkpoint, progress=progress)
    sae.save(place.folder / "sae.safetensors")
    checkpoint.unlink(missing_ok=True)
    report = evaluate_sae(sae, store, site=site, rows=held)
    typical = store.typical(site)
    pca = pca_baseline(store.rows(site, train[typical[train]]), store.rows(site, held[typical[held]]), spec.pca_ranks)
    figures = asdict(report) | {
        "fvu_unmasked": report.fvu_all,
        "pca": pca.to_dict("records"),
        "n_train": int(typical[train].sum()),
        "k": spec.k,
        "width": int(sae.W_dec.shape[0]),
    }
    artifact.write_json(place.folder / "sae.json", figures)
    rival = dict(zip(pca["rank"], pca["fvu"], strict=True))
    beside = ", ".join(f"PCA-{rank} {fvu:.3f}" for rank, fvu in rival.items())
    figure = f"FVU {report.fvu:.3f} at L0 {report.l0:.0f}, n = {report.n_rows:,} held-out rows; {beside}"
    finding = Finding(f"Sparse autoencoder at {short_name(site)}", figure, "sae.json")
    return Outcome(
        f"held-out FVU {report.fvu:.3f} at L0 {report.l0:.0f}; {beside}", ["sae.safetensors", "sae.json"], [finding]
    )


def _steering(place: Place, progress: Progress) -> Outcome:
    spec = place.spec.steering
    pairs = load_pairs(spec.concept)
    fit, held = grouped_split([pair.group for pair in pairs], (1 - spec.held_out, spec.held_out), seed=place.spec.seed)
    vector = steering_vector([pairs[i] for i in fit], model=place.model, site=spec.site)
    vector.save(place.folder / "steering.safetensors")
    neutral = [example.text[:400] for example in _documents(place).examples[:4]]
    report = steering_experiment(
        place.model, vector, spec.prompts, strengths=spec.strengths, pairs=[pairs[i] for i in held], texts=neutral,
        n_random=spec.n_random, instruction=spec.instruction, max_new_tokens=spec.max_new_tokens, seed=place.spec.seed,
        progress=progress,
    )  # fmt: skip
    artifact.write_json(
        place.folder / "steering.json", {"concept": spec.concept, "site": spec.site, **report.to_dict()}
    )
    strongest = max(spec.strengths, key=lambda strength: (abs(strength), strength))
    own = report.effects.query("direction == 'vector' and strength == @strongest").iloc[0]
    band = report.band.set_index("strength").loc[strongest]
    figure = (
        f"{own.effect:+.2f} nats ({own.low:+.2f} to {own.high:+.2f}), n = {own.n} held-out pairs; random directions "
        f"{band.low:+.2f} to {band.high:+.2f}; loss {own.loss_rise:+.3f}"
    )
    finding = Finding(f"Steering {spec.concept} at strength {strongest}", figure, "steering.json")
    return Outcome(figure, ["steering.safetensors", "steering.json"], [finding])


def _calibration(place: Place, progress: Progress) -> Outcome:
    spec, model = place.spec.uncertainty, place.model
    prompt = token_uncertainty(model, place.spec.prompt + place.spec.answer)
    _write_frame(prompt.to_frame(), place.folder / "tokens.parquet")
    documents = _documents(place)
    some = Dataset(documents.name, documents.examples[: spec.documents], documents.card)
    found = next_token_calibration(
        model, some, max_tokens=spec.max_tokens, seed=place.spec.seed,
        progress=lambda done, total: progress(done, 2 * total),
    )  # fmt: skip
    questions = load_questions(spec.questions)
    chosen = np.random.default_rng(place.spec.seed).permutation(len(questions))[: spec.n_questions]
    asked = [questions[i] for i in sorted(chosen)]
    answers = []
    for number, style in enumerate(("text", "letter")):
        answers.append(answer_report(score_options(model, asked, format=style), seed=place.spec.seed))
        progress(3 + number, 4)
    artifact.write_json(
        place.folder / "calibration.json", {**found.to_dict(), "questions": [report.to_dict() for report in answers]}
    )
    by_text = answers[0]
    findings = [
        Finding("Next-token calibration", _ece(found.before), "calibration.json"),
        Finding(f"After temperature {found.temperature.temperature:.2f}", _ece(found.after), "calibration.json"),
        *(Finding(f"Multiple choice by {report.format}", _answers(report), "calibration.json") for report in answers),
    ]
    headline = f"next-token ECE {found.before.ece:.3f} before, {found.after.ece:.3f} after temperature; "
    return Outcome(
        headline + f"{by_text.accuracy:.2f} of the questions right", ["tokens.parquet", "calibration.json"], findings
    )


def _answers(report: AnswerReport) -> str:
    low, high = report.interval
    told = "" if report.informative else "; not informative"
    return f"{report.accuracy:.2f} right ({low:.2f} to {high:.2f}), n = {report.n}, chance {report.chance:.2f}{told}"


def _ece(report: CalibrationReport) -> str:
    low, high = report.null_band or (float("nan"), float("nan"))
    return f"ECE {report.ece:.3f}, a calibrated source gives {low:.3f} to {high:.3f}; n = {report.n:,}, {report.n_bins} bins"
