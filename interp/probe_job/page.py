"""The page of a job: the question, the verdict, and only then the figures behind it."""

import json
import shlex
from typing import Any

import numpy as np
import pandas as pd

from interp import plot
from interp.plot.probe_parts import part_intervals
from interp.plot.probes import transfer_matrix
from interp.probe.reading import place_name
from interp.probe_job.fields import JobTables, rows_where, rows_words
from interp.probe_job.spec import job_names
from interp.report import Figure, Section, Table

MOST_LINES = 6
"""Kinds that one chart can tell apart."""
MOST_ROWS = 20
"""Places that a table lists."""


def title(report: JobTables) -> str:
    """Of the page."""
    return report.job["question"]


def header(report: JobTables) -> str:
    """The paragraphs before the first section."""
    job, card = report.job, report.card
    asked = f"What would count as an answer, written before: {job['criterion']}\n\n" if job["criterion"] else ""
    return (
        f"{asked}{card['model']['name']} read {rows_words(card, card)} ({', '.join(card['sets'])}); "
        f"{_tokens(job['tokens'])} at {len(card['places'])} places."
    )


def _tokens(rule: str) -> str:
    """What is read of each text, in words."""
    pick, _, span = rule.partition(":")
    within = f" of {span}" if span else ""
    words = {"every": "every token", "mean": "the mean over tokens", "all": "all tokens"}
    return words.get(pick, f"the {pick} token") + within


def facts(report: JobTables) -> dict[str, Any]:
    """What stands at the end of the page."""
    job, card = report.job, report.card
    controls = f"{job['controls']['n']} random directions and permutations of the labels"
    return {
        "job": job["name"], "model": f"{card['model']['name']} ({card['model']['fingerprint']})", "texts": card["texts"],
        "protocol": protocol(report), "kinds": job["kinds"], "C": job["C"], "seeds": job["seeds"], "folds": job["folds"],
        "bootstrap": job["n_boot"], "controls": controls, **dict(sorted(card["provenance"].items())),
    }  # fmt: skip


def protocol(report: JobTables) -> str:
    """How the figures were made, in a sentence."""
    nested = (
        "groups were divided into outer folds; C, threshold, sign and place were chosen inside each training part, and each "
        "row was scored once, by probes that saw neither it nor its group"
    )
    split = "groups were divided once into a train, a select and a test part; the figures are of the test part alone"
    return nested if report.job["protocol"] == "nested" else split


def sections(report: JobTables) -> list[Section]:
    """Verdict, figures, layers, parts, transfer, causal check, and how to run it again."""
    found = [
        _verdict(report),
        _selected(report),
        *_places(report),
        *_parts(report),
        *_transfer(report),
        *_causal(report),
    ]
    return [*found, _again(report)]


def _verdict(report: JobTables) -> Section:
    notes = [f"Note: {line}" for line in report.notes.get("data", ())]
    return Section("The answer", "\n\n".join([*report.verdict, *notes]))


def _selected(report: JobTables) -> Section:
    table = brief_table(report)
    seeds = report.job["seeds"]
    tables = [
        Table(
            table,
            f"Seed {seeds[0]}: probes, and what needs no probe, on the same {rows_words(report.table().iloc[0], report.card)}. "
            "Intervals (95 %) resample groups; p is the rank among permuted labels.",
        )
    ]
    if len(seeds) > 1:
        columns = [
            name for name in ("seed", "kind", "auroc", "low", "high", "accuracy", "n") if name in report.selected
        ]
        tables.append(Table(_with_interval(report.selected.loc[:, columns]), "Every seed: how much the folds decide."))
    controls = _controls(report)
    if not controls.empty:
        caption = (
            "Controls at the place that most folds chose: AUROC of random directions and of probes fitted to permuted labels, "
            "typical and highest; accuracy on labels dealt out to groups at random, and the accuracy beyond it (selectivity)."
        )
        tables.append(Table(controls.rename(columns=_HEADS), caption))
    text = (
        f"These are figures of a whole procedure: {protocol(report)}. The largest figure of a layer table is partly luck and is "
        "not among them."
    )
    return Section("Beside what it must beat", text, tables=tables)


def brief_table(report: JobTables) -> pd.DataFrame:
    """The table of figures, narrow enough for a page: the interval is one column."""
    table = report.table()
    columns: dict[str, Any] = {
        "what": [str(what).replace("_", " ") for what in table["what"]],
        "AUROC": table["auroc"],
        "interval": [_interval(row) for row in table.to_dict("records")],
        "accuracy": table["accuracy"],
        "Brier": table["brier"],
    }
    if "site" in table:
        columns["place"] = [place_name(site) if isinstance(site, str) else None for site in table["site"]]
    if "p_permuted" in table:
        columns["p"] = table["p_permuted"]
    return pd.DataFrame(columns)


def _interval(row: Any) -> str | None:
    return f"{row['low']:.3f} to {row['high']:.3f}" if row["low"] == row["low"] else None


def _with_interval(table: pd.DataFrame) -> pd.DataFrame:
    """Low and high as one column behind the AUROC, and short heads."""
    intervals = [_interval(row) for row in table.to_dict("records")]
    table = table.drop(columns=["low", "high"])
    table.insert(int(table.columns.get_indexer(["auroc"])[0]) + 1, "interval", pd.Series(intervals, index=table.index))
    return table.rename(columns=_HEADS)


_HEADS = {
    "auroc": "AUROC", "brier": "Brier", "smooth_ece": "ECE", "n_groups": "groups", "p_permuted": "p", "bag_of_words": "words",
    "random_direction": "random", "random_direction_max": "max", "permuted": "permuted", "permuted_max": "max ",
    "control_accuracy": "control task", "random_low": "random from", "random_high": "to", "loss_rise": "loss",
    "random_loss_rise": "random loss", "wrong_way": "wrong way", "n_random": "directions",
}  # fmt: skip
"""Heads of columns; what they mean the caption says."""


def _controls(report: JobTables) -> pd.DataFrame:
    """Random directions, permuted labels and the control task where the selected probe reads."""
    names = ["random_direction", "random_direction_max", "permuted", "permuted_max", "control_accuracy", "selectivity"]
    names = [name for name in names if name in report.figures]
    seed = report.job["seeds"][0]
    chosen = rows_where(report.selected, seed=seed)
    rows = [
        rows_where(report.figures, seed=seed, kind=kind, site=site).loc[:, ["kind", *names]]
        for kind, site in zip(chosen["kind"], chosen["site"], strict=True)
    ]
    return pd.concat(rows, ignore_index=True)


def _places(report: JobTables) -> list[Section]:
    """AUROC over layers, a chart for each kind of place; a table where places are no layers."""
    seed = report.job["seeds"][0]
    frame = rows_where(report.figures, seed=seed)
    frame["where"] = [place_name(place) for place in frame["site"]]
    frame["sort"] = [name.partition(":")[0] for name in frame["where"]]
    beside = rows_where(report.baselines, seed=seed)
    drawn = {"bag_of_words": "bag of words", "log_likelihood": "log-likelihood"}
    baselines = {"chance": 0.5}
    for name, auroc in zip(beside["name"], beside["auroc"], strict=True):
        if name in drawn:
            baselines[drawn[name]] = float(auroc)
    figures, tables = [], []
    for sort in dict.fromkeys(frame["sort"]):
        part = rows_where(frame, sort=sort)
        if _is_curve(part):
            layers = part.astype({"layer": int})
            chart = plot.layer_curve(layers, "auroc", low="low", high="high", colour="kind", baselines=baselines)
            caption = f"{sort}: AUROC on groups that no choice saw, by layer; n = {int(part['n'].iloc[0]):,}."
            figures.append(Figure(plot.to_svg(chart, ink="currentColor"), caption))
        else:
            best = part.sort_values("auroc", ascending=False, kind="stable").head(MOST_ROWS)
            columns = ["where", "kind", "auroc", "low", "high", "n", "p_permuted"]
            caption = f"{sort}: the highest of {len(part):,} figures; a maximum is partly luck."
            tables.append(Table(_with_interval(best.loc[:, columns]), caption))
    text = "A curve says where something can be read. Its peak is no result of its own: the place is chosen inside the folds."
    return [Section("Where", text, figures, tables)]


def _is_curve(part: pd.DataFrame) -> bool:
    """Whether figures are one a layer and kind, of several layers, in few enough lines."""
    layers, kinds = len(set(part["layer"].dropna())), len(set(part["kind"]))
    whole = len(part["layer"].dropna()) == len(part) == layers * kinds
    return whole and layers > 1 and kinds <= MOST_LINES


def _parts(report: JobTables) -> list[Section]:
    kind, seed = report.job["kinds"][0], report.job["seeds"][0]
    own = rows_where(report.parts, seed=seed)
    own = own.take(np.flatnonzero(np.isfinite(own[["auroc", "low", "high"]].to_numpy(float)).all(1)))
    if own.empty:
        return []
    text = "One figure can hide two: a probe that inverts on negations can look fair on average."
    figures = []
    if len(set(own["kind"])) <= MOST_LINES:
        caption = "The held-out predictions of the table above, by part; AUROC with its 95 % interval."
        figures.append(Figure(plot.to_svg(part_intervals(own), ink="currentColor"), caption))
    columns = ["part", "value", "auroc", "low", "high", "accuracy", "brier", "n", "n_groups"]
    table = _with_interval(rows_where(own, kind=kind).loc[:, columns])
    return [Section("By polarity and topic", text, figures, [Table(table, f"{kind}, part by part.")])]


def _transfer(report: JobTables) -> list[Section]:
    if report.transfer is None:
        return []
    figures = []
    for by in dict.fromkeys(report.transfer["by"]):
        part = rows_where(report.transfer, by=by)
        for kind in dict.fromkeys(part["kind"]):
            cells = rows_where(part, kind=kind)
            chart = transfer_matrix(
                cells, train_order=list(dict.fromkeys(cells["train"])), test_order=list(dict.fromkeys(cells["test"]))
            )
            caption = f"{kind}, by {by}: trained on the rows, tested on the columns; AUROC on groups that were not trained on."
            figures.append(Figure(plot.to_svg(chart, ink="currentColor"), caption))
    text = "\n\n".join(report.notes.get("transfer", ()))
    columns = ["by", "kind", "train", "test", "auroc", "low", "high", "n", "bag_of_words", "recovered"]
    table = report.transfer.loc[:, [name for name in columns if name in report.transfer]]
    return [
        Section(
            "Does it transfer?",
            text,
            figures,
            [
                Table(
                    _with_interval(table), "Every cell, with a bag of words beside it (words) and the share recovered."
                )
            ],
        )
    ]


def _causal(report: JobTables) -> list[Section]:
    if report.causal is None:
        return []
    text = "\n\n".join(["Decodable is not used. " + report.verdict[0], *report.notes.get("causal", ())])
    return [Section("Is it used?", text, tables=[Table(_effects(report.causal), _EFFECTS)])]


_EFFECTS = "Adding the direction, and random ones beside it (95 % of them); changes in nats."


def _effects(table: pd.DataFrame) -> pd.DataFrame:
    """The band of the causal check with its intervals as one column each."""
    found = table.copy()
    for low, high, name in (("low", "high", "interval"), ("random_low", "random_high", "random directions")):
        if low in found and high in found:
            spans = [f"{a:+.3f} to {b:+.3f}" for a, b in zip(found[low], found[high], strict=True)]
            found.insert(int(found.columns.get_indexer([low])[0]), name, pd.Series(spans, index=found.index))
            found = found.drop(columns=[low, high])
    shown = [name for name in found if name not in ("n_groups", "n_random", "random_loss_rise")]
    return found.loc[:, shown].rename(columns=_HEADS)


def _again(report: JobTables) -> Section:
    job = report.job
    bundled = job["name"] in job_names()
    source = job["name"] if bundled else f"{job['name']}.toml"
    files = [str(each["path"]) for each in job["datasets"] if each["path"]] if bundled else []
    settings = report.card.get("settings") or {}
    words = [
        *(f"--data {file}" for file in files),
        *(f"--set {_quoted(key, value)}" for key, value in settings.items()),
    ]
    call = " ".join(["interp probe train", source, *words, "--out FOLDER"])
    text = (
        f"On the command line, with the folder that holds this page as FOLDER: {call}\n\nThe whole specification, with what was "
        "changed by --set, stands in report.json under job. The same call in the same folder goes on where it was, and does "
        "nothing where all is done; another job is refused there."
    )
    given = f", {settings!r}" if settings else ""
    code = f'spec = interp.load_probe_spec("{source}"{given})\n'
    code += "".join(f'spec = spec.with_data("{file}")\n' for file in files)
    code += 'report = interp.run_probe_job(spec, "FOLDER")\nreport.table()'
    if report.probes:
        kind = next(iter(report.probes))
        code += f'\nprobe = interp.load_probe("FOLDER/probes/{kind}.safetensors")'
    return Section("Again", text, code=code)


def _quoted(key: str, value: Any) -> str:
    """KEY=VALUE for a shell; the value as JSON, which TOML reads alike for texts, numbers and lists."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
