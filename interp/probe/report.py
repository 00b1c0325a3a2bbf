"""`ProbeReport`: what a sweep found, as tables, sentences, probes and a folder on the disk.

folder/
  report.json            card, selected figures, baselines
  figures.parquet        a row per site and kind
  parts.parquet          the selected figure by polarity, topic and language
  predictions.parquet    a row per kind and text: held-out probabilities of the selected procedure
  probe-<kind>.safetensors
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from interp import artifact, plot
from interp.probe.figures import Figure
from interp.probe.fit import Probe, load_probe
from interp.probe.labelled import BY_ROWS, BY_TEXTS, tied_sentence
from interp.probe.reading import place_layer, place_name

FORMAT = 2
"""Format 1 had neither `parts` nor a control task."""


@dataclass(frozen=True)
class Selected(Figure):
    """The figure of a whole procedure: the site was chosen inside each training part."""

    site: str
    """The site that most folds chose."""
    sites: tuple[str, ...]
    """The site of each outer fold."""
    strengths: tuple[float | None, ...]
    """C of each outer fold; None for kinds without one."""
    permuted: float
    """Mean AUROC of the same procedure's probes fitted to permuted labels: 1/2 but for leaks."""
    permuted_max: float
    """The largest of them."""
    p_permuted: float
    """(1 + number of permutations that do as well) / (1 + number of permutations)."""
    control_accuracy: float | None = None
    """Accuracy in the control task, random labels of the entities: how much the probe can memorise."""

    @property
    def selectivity(self) -> float | None:
        """Accuracy minus that of the control task (Hewitt & Liang 2019)."""
        return None if self.control_accuracy is None else self.accuracy - self.control_accuracy


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """Figures by nested cross-validation over groups; see `probe_sweep`."""

    figures: pd.DataFrame = field(repr=False)
    """A row per site and kind, without the baselines that are the same in every row."""
    selected: dict[str, Selected]
    """Kind -> the figure to quote."""
    baselines: dict[str, Figure]
    """bag_of_words, text_length, majority: what needs no model; and the numbers given as `text_scores`."""
    parts: pd.DataFrame = field(repr=False)
    """The selected figure by polarity, topic and language, where the data has these columns: kind, part, value, figure. A
    part of fewer than 5 groups has no interval (NaN)."""
    predictions: pd.DataFrame = field(repr=False)
    """Held-out predictions of the selected procedure: kind, row, text, label, group, fold, site, logit, probability,
    threshold, and polarity, topic and language where the data has them."""
    probes: dict[str, Probe] = field(repr=False)
    """Kind -> the probe fitted on all rows at the selected place."""
    card: dict[str, Any] = field(repr=False)
    """Sites, folds, seeds, counts, store, provenance."""

    def probe(self, kind: str = "logistic") -> Probe:
        """The probe fitted on all rows at the site that most folds chose; its card quotes the nested figure."""
        if kind not in self.probes:
            raise ValueError(f"this report has no {kind!r} probe: it has {', '.join(self.probes)}")
        return self.probes[kind]

    def to_frame(self) -> pd.DataFrame:
        """A row per site and kind. The figure to quote is not the largest `auroc` of the table but `selected`.

        Columns: site, layer, kind, auroc, low, high, accuracy, brier, n, n_groups, smooth_ece; C (median over the folds);
        permuted, permuted_max, random_direction, random_direction_max: mean and largest AUROC of the controls at that
        site; p_permuted: rank of the AUROC among them; control_accuracy: of the control task; selectivity: accuracy
        minus that; bag_of_words, text_length and the text scores that were given (AUROC), majority_accuracy: the same
        in every row.
        """
        others = {name: figure.auroc for name, figure in self.baselines.items() if name != "majority"}
        return self.figures.assign(**others, majority_accuracy=self.baselines["majority"].accuracy)

    def errors(self, kind: str | None = None) -> pd.DataFrame:
        """Groups by how often the selected procedure is wrong about their rows: group, n, wrong, texts; worst first."""
        kind = next(iter(self.selected)) if kind is None else kind
        if kind not in self.selected:
            raise ValueError(f"this report has no {kind!r} probe: it has {', '.join(self.selected)}")
        rows = self.predictions[self.predictions["kind"] == kind]
        if "says" not in rows:
            raise ValueError("this report is older than the column `says` of its predictions: run the sweep again")
        wrong = rows["says"] != rows["label"]
        table = rows.assign(wrong=wrong).groupby("group", sort=False)
        found = table.agg(n=("wrong", "size"), wrong=("wrong", "sum"), text=("text", "first")).reset_index()
        return found.assign(share=found["wrong"] / found["n"]).sort_values("share", ascending=False, ignore_index=True)

    def summary(self) -> str:
        """A sentence per kind, and what the figures must be read beside."""
        lines = []
        for kind, found in self.selected.items():
            counts = Counter(place_name(site) for site in found.sites)
            where = ", ".join(f"{site} in {count}" for site, count in counts.most_common())
            chosen = (
                "the site was chosen on the selection part"
                if len(found.sites) == 1
                else f"the site was chosen inside each of {len(found.sites)} training parts"
            )
            lines.append(
                f"{kind}: AUROC {_interval(found)}, accuracy {found.accuracy:.3f}, Brier {found.brier:.3f}, smooth ECE "
                f"{found.smooth_ece:.3f}, n = {found.n:,} in {found.n_groups:,} groups; {chosen} ({where}); permuted labels "
                f"give {found.permuted:.3f} (largest of {self.card['n_controls']}: {found.permuted_max:.3f}; p = "
                f"{found.p_permuted:.2f})"
                + ("." if found.control_accuracy is None else f"; control task {found.control_accuracy:.3f}.")
            )
        words = self.baselines["bag_of_words"]
        without = [
            f"{name.replace('_', ' ')} {_interval(figure)}"
            for name, figure in self.baselines.items()
            if name != "majority"
        ]
        lines.append(
            f"Without a probe: {', '.join(without)}; always the larger class is right in "
            f"{self.baselines['majority'].accuracy:.3f}."
        )
        lines += self._inverted() + self._memorised()
        best = max(found.auroc for found in self.selected.values())
        if words.low > 0.5 and words.high >= best:
            lines.append("The wording alone does as well as the probes: they show nothing about the model.")
        elif words.low > 0.5:
            lines.append("The wording alone tells part of the labels: only what is above it can come from the model.")
        if self.card["groups_from"] in (BY_ROWS, BY_TEXTS):
            what = self.card["groups_from"].split()[1].capitalize() + "s"
            lines.append(
                f"{what} were split one by one, on purpose: {what.lower()} about the same entity may stand on both sides."
            )
        if tied := tied_sentence(self.card):
            lines.append(tied)
        return "\n".join(lines)

    def _memorised(self) -> list[str]:
        """A sentence for each kind that learns labels without meaning as well as the real ones."""
        return [
            f"{kind} gets labels that were dealt out to the groups at random right as often ({found.control_accuracy:.3f}) as "
            f"the real ones ({found.accuracy:.3f}; selectivity {found.accuracy - found.control_accuracy:.3f}): it can memorise "
            "as well as it reads, so its accuracy is no evidence. The AUROC on unseen groups is."
            for kind, found in self.selected.items()
            if found.control_accuracy is not None and found.control_accuracy >= found.accuracy
        ]

    def _inverted(self) -> list[str]:
        """A sentence for each part of the data on which a probe says the opposite of what is so."""
        wrong = pd.DataFrame(self.parts[self.parts["high"] < 0.5])
        return [
            f"{row['kind']} is the wrong way round where {row['part']} is {row['value']} (AUROC {row['auroc']:.3f}): it reads "
            "something else that goes with the label elsewhere."
            for row in wrong.to_dict("records")
        ]

    def plot(self) -> alt.LayerChart:
        """AUROC over layers with intervals, the text baselines as dashed lines, the selected layer marked."""
        frame = self.figures.dropna(subset=["layer"]).astype({"layer": int})
        if frame.empty:
            raise ValueError("none of the swept sites lies in a layer: to_frame() has the figures")
        marked = {kind: place_layer(found.site) for kind, found in self.selected.items()}
        return plot.layer_curve(
            frame,
            "auroc",
            low="low",
            high="high",
            colour="kind",
            baselines={"bag of words": self.baselines["bag_of_words"].auroc, "chance": 0.5},
            selected={kind: layer for kind, layer in marked.items() if layer is not None},
            title="AUROC on groups that no choice saw",
        )

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; `load_probe_report` reads it. ValueError where it exists already."""
        with artifact.atomic_folder(folder) as place:
            self.figures.to_parquet(place / "figures.parquet", index=False)
            self.predictions.to_parquet(place / "predictions.parquet", index=False)
            self.parts.to_parquet(place / "parts.parquet", index=False)
            for kind, probe in self.probes.items():
                probe.save(place / f"probe-{kind}.safetensors")
            artifact.write_json(
                place / "report.json",
                {
                    "kind": "probe report",
                    "format": FORMAT,
                    "card": self.card,
                    "selected": {kind: as_json(found) for kind, found in self.selected.items()},
                    "baselines": {name: as_json(figure) for name, figure in self.baselines.items()},
                },
            )
        return Path(folder)


def load_probe_report(folder: str | Path) -> ProbeReport:
    """Read what `ProbeReport.save` wrote.

    Raises:
        ValueError: no such report, a newer format, or files that are missing or damaged.
    """
    folder = Path(folder)
    content = artifact.read_json(folder / "report.json")
    if not isinstance(content, dict) or content.get("kind") != "probe report":
        raise ValueError(f"{folder} holds no probe report")
    if content.get("format", FORMAT + 1) > FORMAT:
        raise ValueError(f"{folder} has format {content.get('format')!r}, newer than {FORMAT}: update interp")
    selected = {
        kind: Selected.of_json({**found, "sites": tuple(found["sites"]), "strengths": tuple(found["strengths"])})
        for kind, found in content["selected"].items()
    }
    try:
        names = ("figures", "predictions", "parts") if content["format"] > 1 else ("figures", "predictions")
        tables = [pd.read_parquet(folder / f"{name}.parquet") for name in names]
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a whole probe report ({error}): run the sweep again") from None
    kinds = content["card"]["kinds"]
    return ProbeReport(
        figures=tables[0],
        selected={kind: selected[kind] for kind in kinds},
        baselines={name: Figure.of_json(figure) for name, figure in content["baselines"].items()},
        parts=tables[2] if len(tables) > 2 else pd.DataFrame(columns=["kind", "part", "value", "auroc", "high"]),
        predictions=tables[1],
        probes={kind: load_probe(folder / f"probe-{kind}.safetensors") for kind in kinds},
        card=content["card"],
    )


def as_json(figure: Figure) -> dict[str, Any]:
    """A figure as JSON holds it."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(figure).items()}


def _interval(figure: Figure) -> str:
    return f"{figure.auroc:.3f} (95 % {figure.low:.3f} to {figure.high:.3f})"
