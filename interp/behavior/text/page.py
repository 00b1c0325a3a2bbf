"""What a text calibration says: its summary, notes, charts and page."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.behavior.text.figures import FEW_GROUPS
from interp.plot import Chart, reliability, to_svg
from interp.plot.style import INK
from interp.plot.token_calibration import STATES, calibration_by_layer, calibration_by_part, reliability_panels
from interp.report import Figure, Section, Table

if TYPE_CHECKING:
    from interp.behavior.text.run import TextCalibrationReport

CHARTS = ("layers", "reliability", "positions", "predicted", "events")
SHOWN = ("accuracy", "ece_before", "null_before_high", "ece_after", "null_after_high", "nll_before", "nll_after")
"""Columns of the page's tables; the file holds all."""
WITH_INTERVAL = {"temperature": ".2f", "ece_before": ".3f", "ece_after": ".3f"}
"""Columns that are shown with their interval, and their format."""
CODE = """from interp.behavior.text import TextCalibrationReport, text_calibration

report = TextCalibrationReport.load("report.json")
report.to_frame(), report.tables["layers"]
report.plot("layers")"""


# ------------------------------------------------------------------------------------------------------------ sentences


def summary(report: "TextCalibrationReport") -> str:
    """The finding, its n and interval; by layer and by part; and what this n can show."""
    row = _line(report.tables["overall"], 0)
    return "\n\n".join(
        filter(None, [_overall(report, row), _by_layer(report), _by_part(report), _can_show(report, row)])
    )


def _overall(report: "TextCalibrationReport", row: Mapping[str, Any]) -> str:
    where = f"{row['n']:,.0f} tokens of {row['n_groups']:,.0f} documents"
    text = (
        f"Next token of {report.card['model']} ({where}): right in {_span(row, 'accuracy', '.3f')}, said with probability "
        f"{row['stated_before']:.3f} on average. ECE {_span(row, 'ece_before', '.4f')} at T = 1: {_against(row, 'before')}."
    )
    if math.isnan(row["temperature"]):
        return f"{text} {_sentence(row['note'])}"
    return (
        f"{text} A temperature of {_span(row, 'temperature', '.3f')}, fitted on {row['n_fit']:,.0f} tokens of other documents, "
        f"gives ECE {_span(row, 'ece_after', '.4f')}: {_against(row, 'after')}. NLL {row['nll_before']:.4f} nats a token before, "
        f"{row['nll_after']:.4f} after (gain {_span(row, 'nll_gain', '+.4f')}; {_gain(row)})."
    )


def _gain(row: Mapping[str, Any]) -> str:
    low, high = row["nll_gain_low"], row["nll_gain_high"]
    if math.isnan(low):
        return "no interval"
    return "a gain" if low > 0 else "a loss" if high < 0 else "not told from none"


def _against(row: Mapping[str, Any], state: str) -> str:
    """The error against the band of a calibrated source."""
    low, high = row[f"null_{state}_low"], row[f"null_{state}_high"]
    if math.isnan(high):
        return "no band of a calibrated source was drawn, so it cannot be told from chance"
    band = f"the {low:.4f} to {high:.4f} of a calibrated source"
    value = row[f"ece_{state}"]
    if value > high:
        stated, found = row[f"stated_{state}"], row["accuracy"]
        return f"above {band}, {'too sure' if stated > found else 'not sure enough'} on average"
    if value < low:
        return f"below {band}, closer than chance allows: look for texts that repeat"
    return f"within {band}, so not told from calibrated"


def _by_layer(report: "TextCalibrationReport") -> str:
    frame = report.tables["layers"]
    if frame.empty:
        return ""
    rows = report.card["layer_rows"]
    lens = str(report.card["settings"]["lens"]).split()[0]
    worst = _line(frame, int(np.argmax(frame["ece_before"])))
    text = (
        f"By layer, through the {lens} lens ({rows['reported']:,} tokens reported, {rows['fitted']:,} fitted; "
        f"{report.card['settings']['layer_positions']} of each text): ECE at T = 1 is largest at {worst['site']} "
        f"({_span(worst, 'ece_before', '.3f')})"
    )
    known = frame.dropna(subset=["temperature"])
    if known.empty:
        return f"{text}. No layer has a temperature that is best within 0.05 to 20."
    furthest = int(np.argmax(np.abs(np.log(known["temperature"]))))
    widest = _line(known, furthest)
    inside = int(np.sum(known["ece_after"].to_numpy() <= known["null_after_high"].to_numpy()))
    told = "" if math.isnan(widest["null_after_high"]) else (
        f" After its own temperature {inside} of {len(known)} places are not told from calibrated."
    )  # fmt: skip
    lacking = len(frame) - len(known)
    none = f" {lacking} of {len(frame)} places have no best temperature." if lacking else ""
    far = f"; the temperature furthest from 1 is {_span(widest, 'temperature', '.2f')} at {widest['site']}"
    return f"{text}{far}.{told}{none} Calibrated does not mean useful: accuracy there is {_range(frame, 'accuracy')}."


def _range(frame: pd.DataFrame, column: str) -> str:
    low, high = _line(frame, 0), _line(frame, -1)
    return f"{low[column]:.3f} at {low['site']} and {high[column]:.3f} at {high['site']}"


def _by_part(report: "TextCalibrationReport") -> str:
    found = []
    state = "before" if report.temperature is None else "after"
    for table, column, what in (
        ("positions", "band", "position band"),
        ("predicted", "token_class", "predicted class"),
    ):
        frame = report.tables[table]
        above = frame.loc[frame[f"ece_{state}"] > frame[f"null_{state}_high"]]
        names = ", ".join(
            f"{name} ({ece:.3f}, n = {n:,.0f})"
            for name, ece, n in zip(above[column], above[f"ece_{state}"], above["n"])
        )
        found.append(f"by {what} {names or 'none'}")
    when = "at T = 1" if state == "before" else "after the one temperature"
    return f"ECE above a calibrated source's band {when}: {'; '.join(found)}."


def _can_show(report: "TextCalibrationReport", row: Mapping[str, Any]) -> str:
    if math.isnan(row["null_before_high"]):
        return ""
    text = f"What this n can show: over all tokens an ECE above {row['null_before_high']:.4f}"
    layers = report.tables["layers"]
    if len(layers):
        text += (
            f", at a layer one above {layers['null_before_high'].min():.3f} to {layers['null_before_high'].max():.3f}"
        )
    parts = pd.concat([report.tables["positions"], report.tables["predicted"]])
    return f"{text}, in the smallest part (n = {int(np.min(parts['n']))}) above {parts['null_before_high'].max():.3f}."


def notes(tables: Mapping[str, pd.DataFrame], card: Mapping[str, Any]) -> list[str]:
    """Reasons to be careful."""
    found = []
    if card["tokens_left_out"]:
        found.append(
            f"{card['tokens_left_out']:,} tokens beyond max_tokens={card['settings']['max_tokens']} of their text are left out."
        )
    lacking = tables["layers"].loc[tables["layers"]["temperature"].isna()]
    if len(lacking):
        found.append(
            f"No best temperature at {', '.join(lacking['site'])}: the table says why; after is not measured there."
        )
    row = _line(tables["overall"], 0)
    if row["n_groups"] < FEW_GROUPS or row["n_fit_groups"] < FEW_GROUPS:
        found.append(
            f"{row['n_groups']:.0f} documents are reported and {row['n_fit_groups']:.0f} fit: intervals by document of fewer "
            f"than {FEW_GROUPS} are guesses."
        )
    return found


def _line(frame: pd.DataFrame, place: int) -> dict[str, Any]:
    """A row as a dictionary."""
    return frame.iloc[place].to_dict()


def _span(row: Mapping[str, Any], name: str, spec: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    text = format(value, spec)
    return text if math.isnan(low) else f"{text} [{format(low, spec)}, {format(high, spec)}]"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


# --------------------------------------------------------------------------------------------------------------- charts


def chart(report: "TextCalibrationReport", name: str | None) -> Chart:
    """A chart by name. ValueError for one that is not there, with those that are."""
    have = [each for each in CHARTS if each != "layers" or len(report.tables["layers"])]
    wanted = have[0] if name is None else name
    if wanted not in have:
        raise ValueError(f"there is no chart {wanted!r}; this report has {', '.join(have)}")
    if wanted == "layers":
        return calibration_by_layer(report.tables["layers"])
    if wanted == "positions":
        return calibration_by_part(report.tables["positions"], "band")
    bins = report.tables["bins"]
    if wanted == "reliability":
        part = bins.loc[bins["table"] == "overall"]
        return reliability(
            part.assign(state=[STATES[state] for state in part["state"]]), state="state", null_band=_band(report)
        )
    return reliability_panels(bins.loc[bins["table"] == wanted])


def _band(report: "TextCalibrationReport") -> tuple[float, float] | None:
    row = _line(report.tables["overall"], 0)
    low, high = row["null_before_low"], row["null_before_high"]
    return None if math.isnan(low) else (float(low), float(high))


# ----------------------------------------------------------------------------------------------------------------- page


def sections(report: "TextCalibrationReport") -> list[Section]:
    """Those that have something to show; the last one says how to make it again."""
    layers = [_layers(report)] if len(report.tables["layers"]) else []
    return [_all(report), *layers, _positions(report), _predicted(report), _coming(report), _again(report)]


def _figure(report: "TextCalibrationReport", name: str, caption: str) -> Figure:
    return Figure(to_svg(chart(report, name), ink=INK), caption)


def _all(report: "TextCalibrationReport") -> Section:
    caption = (
        f"How often the most probable token was right, by the probability it was said with; {report.card['tokens_reported']:,} "
        "tokens of documents that the temperature never saw. Bars: 95 % of tokens taken as independent."
    )
    rows = _shown(report.tables["overall"], ["part", "temperature"])
    table = Table(rows, _counted(report.tables["overall"]))
    return Section(
        "All tokens",
        "Documents are halved: one half fits the temperature, the other is reported. The 95 % band of a calibrated source is "
        "what the error would be by chance alone; an error within it shows no miscalibration. Intervals draw documents. "
        "Chance, in the tables, is the upper end of that band; before is T = 1.",
        [_figure(report, "reliability", caption)],
        [table],
    )


def _layers(report: "TextCalibrationReport") -> Section:
    settings, rows = report.card["settings"], report.card["layer_rows"]
    caption = (
        f"{rows['reported']:,} tokens reported and {rows['fitted']:,} fitted, {settings['layer_positions']} of each text drawn "
        f"by seed {settings['seed']}. Coloured: 95 % interval by document. Grey: a calibrated source with these probabilities."
    )
    frame = report.tables["layers"]
    shown = _shown(frame, ["site", "temperature"])
    text = (
        "Each layer is read as if the model stopped there, and gets a temperature of its own. A layer that knows little can be "
        "calibrated by saying little: read the error beside accuracy and NLL."
    )
    text += _remarks(frame, "site")
    return Section("By layer", text, [_figure(report, "layers", caption)], [Table(shown, _counted(frame))])


def _positions(report: "TextCalibrationReport") -> Section:
    caption = "By the number of tokens before the predicted one, all with the one temperature."
    frame = report.tables["positions"]
    shown = _shown(frame, ["band", "n"])
    text = "Bands of the number of tokens that stand before the predicted one." + _remarks(frame, "band")
    return Section("By position", text, [_figure(report, "positions", caption)], [Table(shown, _counted(frame))])


def _predicted(report: "TextCalibrationReport") -> Section:
    text = (
        "By the class of the token that was held for the most probable: a calibrated model is calibrated in each of these. Word "
        "start: letters after a space; continuation: letters without one."
    )
    caption = "Reliability by class of the predicted token; larger points are more tokens."
    frame = report.tables["predicted"]
    shown = _shown(frame, ["token_class", "n"])
    text += _remarks(frame, "token_class")
    return Section("By predicted token", text, [_figure(report, "predicted", caption)], [Table(shown, _counted(frame))])


def _coming(report: "TextCalibrationReport") -> Section:
    values = report.values
    text = (
        "Does a kind of token come as often as the model says? The probabilities of all tokens of a class are summed, and set "
        f"against whether the next token was of it. Counted on the {values['counted']:,} tokens of the fitting documents, a "
        f"frequent token comes at least {values['frequent_from']:,} times there (half of all tokens), a rare one at most "
        f"{values['rare_to']:,} times (a tenth, and all that never come).\n\n"
        "By the token that came, only accuracy and NLL are given: of rare tokens fewer are right than was said even by a "
        "calibrated model, since they are chosen by what came."
    )
    caption = "Probability that the next token is of the class, and how often it was; larger points are more tokens."
    events = report.tables["events"]
    columns = [
        "token_class",
        "n",
        "share",
        "stated_before",
        "ece_before",
        "null_before_high",
        "ece_after",
        "null_after_high",
    ]
    targets = report.tables["targets"].loc[
        :, ["token_class", "n", "accuracy", "stated_before", "stated_after", "nll_before", "nll_after"]
    ]
    tables = [
        Table(_bare(events.loc[:, columns]), "Share of tokens of the class, and the mean probability of the class."),
        Table(_bare(targets), "By the token that came; no test of calibration."),
    ]
    return Section("By kind of token that comes", text, [_figure(report, "events", caption)], tables)


def _again(report: "TextCalibrationReport") -> Section:
    settings = report.card["settings"]
    names = ("max_tokens", "fit_rows", "layer_positions", "bands", "n_bins", "n_boot", "n_null", "seed")
    given = ", ".join(f"{name}={settings[name]!r}" for name in names)
    if settings["layers"] is None:
        given += ", layers=None"
    elif len(settings["layers"]) <= report.card.get("n_layers", 0):  # the embedding and all layers are one more
        given += f", layers={[int(layer) for layer in report.tables['layers']['layer']]}"
    if settings["lens"] != "logit":
        given += ", lens=lens"
    text = "The same texts and settings give the same figures. With `out=` a run that was stopped goes on where it was."
    make = f"report = text_calibration(model, texts, {given})"
    return Section("How to make it again", text, code=f"{CODE}\n\n{make}")


def _shown(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The columns that a page shows, a figure and its interval in one cell."""
    found = frame.loc[:, [*keys, *SHOWN]].copy()
    for name, spec in WITH_INTERVAL.items():
        if name in found:
            ends = zip(frame[name], frame[f"{name}_low"], frame[f"{name}_high"])
            found[name] = [_cell(value, low, high, spec) for value, low, high in ends]
    return _bare(found)


def _cell(value: float, low: float, high: float, spec: str) -> str:
    """Signs that do not break keep it on one line."""
    if math.isnan(value):
        return "–"
    text = format(value, spec)
    return text if math.isnan(low) else f"{text}\u00a0({low:.2f}\u2011{high:.2f})"


def _counted(frame: pd.DataFrame) -> str:
    """How many tokens and documents stand behind the rows of a table."""
    sizes = [sorted({int(value) for value in frame[name]}) for name in ("n", "n_groups", "n_bins")]
    tokens, documents, bins = (f"{v[0]:,}" if len(v) == 1 else f"{v[0]:,} to {v[-1]:,}" for v in sizes)
    return f"{tokens} tokens of {documents} documents, {bins} bins; in brackets 95 % by document, nll in nats a token."


def _remarks(frame: pd.DataFrame, key: str) -> str:
    """What the rows have to say, as a paragraph."""
    said = [f"{name}: {note}" for name, note in zip(frame[key], frame["note"]) if note]
    return "\n\n" + ". ".join(said) + "." if said else ""


def _bare(frame: pd.DataFrame) -> pd.DataFrame:
    names = {
        "n_groups": "documents",
        "token_class": "class",
        "null_before_high": "chance",
        "accuracy": "right",
        "temperature": "T",
    }
    names |= {
        "null_after_high": "chance\u00a0",
        "nll_before": "NLL",
        "nll_after": "NLL after",
        "ece_before": "ECE before",
        "ece_after": "ECE after",
    }
    return frame.rename(columns=names)
