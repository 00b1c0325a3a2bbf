"""What the wording tells of the label: words, length, punctuation. None of it needs a model.

The words are measured twice: by group, which is the baseline that a probe must beat, and by row, where on paired
statements (an entity once with each label) the partner of a test row is trained on with the other label. That figure is
far below 1/2, and far above it for whoever chooses the sign afterwards.
"""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.feature_extraction.text import CountVectorizer

from interp.probe.controls import WORD
from interp.probe.figures import Figure
from interp.probe.linting.findings import WORD_COLUMNS, Finding
from interp.probe.linting.table import Table, told

_MOST_WORDS = 20
_SHOWN_WORDS = 8
_LEAST_GROUPS = 5  # that hold a word, or its odds say nothing
_LEAK = 0.05  # difference of AUROC by row and by group that is one
_STOPS = (".", "!", "?", "…", "。")


def find_wording(table: Table) -> tuple[list[Finding], pd.DataFrame]:
    """Findings about words, length and form, and the most label-telling words."""
    if not table.both:
        return [], pd.DataFrame(columns=WORD_COLUMNS)
    words = telling_words(table)
    return [*_words(table, words), *_length(table), *_form(table)], words


def _words(table: Table, words: pd.DataFrame) -> list[Finding]:
    grouped = table.grouped
    by_row = table.fitted("words", "row")
    by_group = table.fitted("words") if grouped else None
    best = by_group if grouped else by_row
    findings = []
    if best is not None and told((best.auroc, best.low, best.high)) and (best.low > 0.5 or grouped):
        findings.append(_skew(best, words, "groups" if grouped else "rows"))
    elif not words.empty:
        findings.append(
            Finding(
                code="telling_words",
                severity="note",
                what=f"{len(words)} words stand more often with one label than chance allows.",
                count=len(table.texts),
                effect="Together they do not tell the label on rows that were not trained on, but a probe trained on few "
                "rows can learn them.",
                mend="Let each of them be as often true as false.",
                examples=_word_lines(words),
            )
        )
    return findings if by_row is None else findings + _leak(table, by_row, by_group)


def _skew(figure: Figure, words: pd.DataFrame, unseen: str) -> Finding:
    figures = {"auroc": figure.auroc, "low": figure.low, "high": figure.high}
    what = f"The words alone tell the label on unseen {unseen}: AUROC {_said(figure)}, accuracy {figure.accuracy:.3f}."
    if figure.auroc > 0.5:
        effect = "A probe shows something about the model only as far as it is above this."
        mend = "Let each of the telling words be as often true as false, and quote this figure beside every probe."
        return Finding("wording_skew", "warning", what, figure.n, effect, mend, _word_lines(words), figures)
    effect = (
        "Nothing that a probe could use, and no sign to be turned: what is more often true in the training part is less often "
        "true in the rest, since groups share words. A probe that reads words starts below 1/2."
    )
    mend = "Group by what is shared (see shared_entities), or quote this figure beside every probe."
    return Finding("wording_below_chance", "note", what, figure.n, effect, mend, _word_lines(words), figures)


def _leak(table: Table, by_row: Figure, by_group: Figure | None) -> list[Finding]:
    """Whether a split by row says something else than one by group; without groups, whether it is below 1/2."""
    if by_group is not None:
        apart = by_row.high < by_group.low or by_row.low > by_group.high
        if not apart or abs(by_row.auroc - by_group.auroc) < _LEAK:
            return []
    elif not told((by_row.auroc, by_row.low, by_row.high)) or by_row.low > 0.5:
        return []
    honest = "" if by_group is None else f" Unseen groups give {_said(by_group)}."
    turned = f", or {1 - by_row.auroc:.3f} where the sign is chosen afterwards" if by_row.high < 0.5 else ""
    return [
        Finding(
            code="row_leak",
            severity="error" if table.groups is None else "note",
            what=f"Rows share words with rows of the {'other' if by_row.auroc < 0.5 else 'same'} label.",
            count=len(table.texts),
            effect=f"Split by row, the words alone give AUROC {_said(by_row)}{turned}; a probe would be credited with the "
            f"same.{honest}",
            mend="Split by group, as the sweep does." if by_group else "Say which rows are about the same thing.",
            figures={"by_row": by_row.auroc} | ({} if by_group is None else {"by_group": by_group.auroc}),
        )
    ]


def _said(figure: Figure) -> str:
    return f"{figure.auroc:.3f} (95 % {figure.low:.3f} to {figure.high:.3f})"


def _word_lines(words: pd.DataFrame) -> tuple[str, ...]:
    return tuple(
        f"{row['word']!r}: in {row['true']} true and {row['false']} false groups, odds ratio {row['odds']:.2f}"
        for row in words.head(_SHOWN_WORDS).to_dict("records")
    )


def telling_words(table: Table, most: int = _MOST_WORDS) -> pd.DataFrame:
    """Words whose odds of standing in true and in false rows differ, by Bonferroni's bound at 5 % over all words.

    A word counts once for each group and label, as rows of a group repeat each other; 1/2 is added to every count
    (Haldane 1956). Columns: word, true, false (groups that hold it), odds (ratio), low, high (95 %), z.
    """
    assert table.y is not None
    vectors = CountVectorizer(token_pattern=WORD, binary=True)
    counts: Any = vectors.fit_transform(table.texts)
    row, word = counts.nonzero()
    _, label, word = np.unique(np.stack([table.codes[row], table.y[row], word]), axis=1)  # once a group and label
    names = vectors.get_feature_names_out()
    true, false = (np.bincount(word[label == one], minlength=len(names)) for one in (1, 0))
    n_true, n_false = (len(np.unique(table.codes[table.y == one])) for one in (1, 0))
    cells = np.stack([true, n_true - true, false, n_false - false]) + 0.5
    log_odds = np.log(cells[0] * cells[3] / (cells[1] * cells[2]))
    error = np.sqrt((1 / cells).sum(0))
    z, wide = log_odds / error, norm.isf(0.025) * error
    values = [names, true, false, np.exp(log_odds), np.exp(log_odds - wide), np.exp(log_odds + wide), z]
    order = np.argsort(-np.abs(z), kind="stable")
    sure = (true + false >= _LEAST_GROUPS) & (np.abs(z) > norm.isf(0.025 / len(names)))
    best = order[sure[order]][:most]
    return pd.DataFrame({name: column[best] for name, column in zip(WORD_COLUMNS, values)})


# ------------------------------------------------------------------------------------------------------- length, form


def _length(table: Table) -> list[Finding]:
    assert table.y is not None
    lengths = np.array([len(text) for text in table.texts])
    found = table.direct("length in characters", lengths)
    if not told(found):
        return []
    value, low, high = found
    means = [lengths[table.y == label].mean() for label in (1, 0)]
    return [
        Finding(
            code="length_skew",
            severity="warning",
            what=f"True rows have {means[0]:.1f} characters and false ones {means[1]:.1f}.",
            count=len(lengths),
            effect=f"The length alone has AUROC {value:.3f} (95 % {low:.3f} to {high:.3f}; 1/2 is none). A last token's "
            "activations know their position, so a probe can read the length.",
            mend="Trade the answers of true and false rows, so that both have the same lengths.",
            figures={"auroc": value, "low": low, "high": high},
        )
    ]


def _form(table: Table) -> list[Finding]:
    """Final punctuation, capitals, digits and stray spaces, by label; and whether the last token is of one kind."""
    assert table.y is not None
    ends = [_end(text) for text in table.texts]
    features: dict[str, list[bool]] = {f"an end in {end!r}": [e == end for e in ends] for end in _STOPS}
    features |= {
        "an end without punctuation": [end == "word" for end in ends],
        "a space at an end": [text != text.strip() for text in table.texts],
        "a double space": ["  " in text.strip() for text in table.texts],
        "a capital at the start": [text.lstrip()[:1].isupper() for text in table.texts],
        "a digit": [any(character.isdigit() for character in text) for text in table.texts],
    }
    findings, number = [], len(table.texts)
    for name, held in features.items():
        flags = np.array(held)
        if not flags.any() or flags.all():
            continue
        shares = [float(flags[table.y == label].mean()) for label in (1, 0)]
        if abs(shares[0] - shares[1]) < 0.1:  # an AUROC within 0.05 of 1/2
            continue
        value, low, high = found = table.direct(name, flags)
        if not told(found):
            continue
        rows = np.flatnonzero(flags if flags.mean() < 0.5 else ~flags)
        findings.append(
            Finding(
                code="form_skew",
                severity="warning",
                what=f"{name[0].upper()}{name[1:]} has {shares[0]:.1%} of the true and {shares[1]:.1%} of the false rows.",
                count=len(rows),
                effect=f"It alone has AUROC {value:.3f} (95 % {low:.3f} to {high:.3f}), and the tokenizer shows it to every "
                "probe.",
                mend="Write all rows in one form.",
                examples=table.show(rows),
                figures={"auroc": value, "low": low, "high": high},
            )
        )
    counts = Counter(ends)
    if len(counts) > 1:
        common = counts.most_common(1)[0][0]
        rows = np.flatnonzero([end != common for end in ends])
        some = ", ".join(f"{end} {count:,}" for end, count in counts.most_common(5))
        findings.append(
            Finding(
                code="mixed_ends",
                severity="note",
                what=f"The texts do not end alike: {some} of {number:,}.",
                count=len(rows),
                effect="Probes that read the last token read a full stop in some rows and a word in others.",
                mend="End all texts alike, or read another token.",
                examples=table.show(rows),
            )
        )
    return findings


def _end(text: str) -> str:
    """The final character that is punctuation, as it is; "word" for anything else."""
    last = text.rstrip()[-1]
    return "word" if last.isalnum() else last
