"""The demo's report: what each step found, with its figures, the caveats, and the code that does the same again."""

from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact, plot
from interp.plot.steering import steering_damage
from interp.report import Figure, Section, Spans, Table, write_report
from interp.steering import SteeringReport


def write_summary(folder: Path, books: dict[str, Any]) -> Path:
    """Write `folder/report.html` from the files that the steps wrote."""
    others = [build(folder) for build in (_heads, _probes, _sae, _steering, _calibration)]
    sections = [_found(books), _lens(folder, books), *others]
    model = books["model"]
    summary = (
        f"{model['name']} ({model['note']}): {model['n_layers']} layers, d_model {model['d_model']}, {model['n_heads']} heads. "
        "Its residual stream was recorded into a store, and every analysis read the store. Each figure stands with its n and, "
        "where sampling makes one, a 95 % interval."
    )
    card = {"model": model, "prompt": books["prompt"], "seconds": books["seconds"], **books["provenance"]}
    return write_report(folder / "report.html", "What the model shows of itself", sections, card, summary=summary)


def _svg(chart: Any) -> str:
    return plot.to_svg(chart, ink="currentColor")


def _found(books: dict[str, Any]) -> Section:
    frame = pd.DataFrame(books["findings"], columns=pd.Index(["what", "figure", "where"]))
    return Section("What was found", tables=[Table(frame, "Each line names the file of the run that holds it.")])


def _lens(folder: Path, books: dict[str, Any]) -> Section:
    frame = pd.read_parquet(folder / "lens.parquet")
    caption = "The top prediction after each layer, shaded by its probability; the leftmost column is the embedding."
    return Section(
        "The prediction forms",
        "The residual stream after each layer is read through the final norm, recomputed for each row, and the unembedding.",
        [Figure(_svg(plot.lens_grid(frame, "p_top1")), caption)],
        code=f'model = interp.load("{books["model"]["loads_as"]}")\ninterp.logit_lens(model, {books["prompt"]!r}).plot()',
    )


def _heads(folder: Path) -> Section:
    frame = pd.read_parquet(folder / "heads.parquet")
    columns = ["layer", "head", "induction", "induction_low", "induction_high", "induction_null", "previous_token", "n"]
    best = frame.nlargest(8, "induction").loc[:, columns]
    return Section(
        "Heads that copy from context",
        "Random tokens, repeated: only the first copy can predict the second. The induction score is the mean attention from a "
        "token of the second copy to the one after its first occurrence. A score is no proof of an effect.",
        [Figure(_svg(plot.head_grid(frame, "induction")), "Induction score of every head.")],
        [Table(best, "The eight highest scores. The null is the largest attention to any other offset.")],
        code="interp.head_scores(model).top('induction', 8)",
    )  # fmt: skip


def _probes(folder: Path) -> Section:
    frame = pd.read_parquet(folder / "probes.parquet")
    told = artifact.read_json(folder / "probes.json")["datasets"]
    figures = []
    for name, part in frame.groupby("dataset", sort=False):
        baselines = {"bag of words": told[name]["baselines"]["bag_of_words"]["auroc"], "chance": 0.5}
        chart = plot.layer_curve(
            part.dropna(subset=["layer"]), "auroc", low="low", high="high", colour="kind", baselines=baselines
        )
        figures.append(
            Figure(_svg(chart), f"{name}: AUROC on groups that no choice saw, n = {int(part['n'].iloc[0]):,}.")
        )
    text = "\n\n".join(f"{name}. {told[name]['summary']}" for name in frame["dataset"].unique())
    return Section(
        "Truth is decodable",
        "Statements are split by entity, never by row: each entity stands once in a true and once in a false statement, so a "
        "split by rows hands the answer to the probe. Layer and strength are chosen inside the training part. Decodable does "
        f"not mean that the model uses it.\n\n{text}",
        figures,
        code=f"interp.probe_sweep(interp.open_store({str(folder / 'stores' / frame['dataset'].iloc[0])!r})).summary()",
    )


def _sae(folder: Path) -> Section:
    found = artifact.read_json(folder / "sae.json")
    chart = plot.fvu_curve(pd.DataFrame(found["pca"]), fvu=found["fvu"], l0=found["l0"])
    text = (
        f"{found['width']:,} latents, {found['k']} active, trained on {found['n_train']:,} rows and measured on "
        f"{found['n_rows']:,} rows of documents that training never saw. Position 0, special tokens and rows of outlying norm "
        f"({found['n_left_out']:,}) are left out for all: few as they are, they hold most of the variance. With them in, the FVU "
        f"would read {found['fvu_unmasked']:.3f} and speak of them alone."
    )
    caption = "Fraction of variance unexplained on held-out rows: the autoencoder at its L0, PCA at its rank."
    return Section(
        "A sparse dictionary",
        text,
        [Figure(_svg(chart), caption)],
        code=f"interp.load_sae({str(folder / 'sae.safetensors')!r})",
    )


def _steering(folder: Path) -> Section:
    found = artifact.read_json(folder / "steering.json")
    report = SteeringReport.from_dict(found)
    text = (
        f"A mean difference of {found['concept']} pairs at {found['site']}. The effect is the change of the log-probability of a "
        "held-out positive response against a negative one, whose words the vector never saw. Random directions of the same "
        f"norm stand beside it; so does the rise of the loss on other text.\n\n{report.summary()}"
    )
    texts = report.generations
    written = [Spans([(same, "quiet"), (differs, "")]) for same, differs in zip(texts["same"], texts["differs"])]
    return Section(
        "Steering",
        text,
        [
            Figure(_svg(report.plot()), "Effect with its 95 % interval; the grey ticks are random directions."),
            Figure(_svg(steering_damage(report.damage)), "What each strength costs."),
        ],
        [
            Table(
                texts.loc[:, ["prompt", "direction", "strength"]].assign(text=written),
                "Greedy continuations; 0 is the model as it is. What others share with it is grey; an instruction's text is "
                "compared with that of the same conversation without it.",
            ),
            Table(report.band.drop(columns="measure"), "Random directions; p = (1 + as large) / (n + 1), z in their sd."),
        ],
        code=f"v = interp.load_steering_vector({str(folder / 'steering.safetensors')!r})\n"
        "with model.intervene(interp.Steer(v, 0.1)):\n    model.generate('My week at work has been', 30).text",
    )  # fmt: skip


def _calibration(folder: Path) -> Section:
    found = artifact.read_json(folder / "calibration.json")
    figures = []
    for key, words in (("before", "As the model is"), ("after", f"After temperature {found['temperature']:.2f}")):
        report = found[key]
        chart = plot.reliability(pd.DataFrame(report["bins"]))
        figures.append(
            Figure(_svg(chart), f"{words}: ECE {report['ece']:.3f}, n = {report['n']:,}, {report['n_bins']} bins.")
        )
    text = (
        "Next-token predictions on documents: how often the most probable token is right, against its probability. The "
        "temperature is fitted on other documents. A perfectly calibrated source would also show some error at this n: the "
        "null band says how much."
    )
    tokens = pd.read_parquet(folder / "tokens.parquet")
    shown = [column for column in ("pos", "token", "logprob", "entropy", "top1", "p_top1", "rank") if column in tokens]
    return Section(
        "Does it know when it is wrong?", text, figures, [Table(tokens.loc[:, shown], "Surprise and entropy in nats.")],
        code="interp.token_uncertainty(model, 'a text').to_frame()",
    )  # fmt: skip
