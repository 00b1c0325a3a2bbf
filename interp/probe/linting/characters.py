"""Characters and sizes that a tokenizer meets: invisible ones, damaged ones, foreign scripts, texts that are too long."""

import codecs
import os
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from interp.probe.linting.findings import Finding
from interp.probe.linting.table import Table

LONG = 8000
"""Characters, about 2,000 tokens, from which on a small model's context ends before the text."""
_OUTLIER = 10  # times the median length
_ODD = {
    "replacement character U+FFFD": re.compile("\ufffd"),
    "doubly encoded UTF-8 (such as Ã©)": re.compile("[ÃÂ][\u0080-\u00bf]|â€[\u0080-\uffff]"),
    "control character": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"),
    "invisible character": re.compile("[\u200b-\u200f\u202a-\u202e\u2060\u00ad\ufeff]"),
    "unusual space": re.compile("[\u00a0\u2000-\u200a\u202f\u3000]"),
    "line break": re.compile("[\n\r\u2028\u2029]"),
}
_DAMAGE = tuple(_ODD)[:3]


def find_characters(table: Table, source: object) -> list[Finding]:
    """Odd characters, scripts, and sizes."""
    return [*_odd(table), *_scripts(table), *_sizes(table), *_byte_order_mark(source)]


def _odd(table: Table) -> list[Finding]:
    findings = []
    for damage in (True, False):
        rows_of = {
            name: [row for row, text in enumerate(table.texts) if pattern.search(text)]
            for name, pattern in _ODD.items()
            if (name in _DAMAGE) == damage
        }
        rows = sorted({row for found in rows_of.values() for row in found})
        if rows:
            some = ", ".join(f"{name} in {len(found):,}" for name, found in rows_of.items() if found)
            findings.append(
                Finding(
                    code="damaged_characters" if damage else "odd_characters",
                    severity="warning" if damage else "note",
                    what=f"{len(rows):,} rows hold characters that {'show damage' if damage else 'are seldom meant'}: {some}.",
                    count=len(rows),
                    effect=f"They become tokens of their own that the model seldom saw{_by_label(table, rows)}.",
                    mend="Read the source with its true encoding."
                    if damage
                    else "Replace them, unless they are meant.",
                    examples=table.show(rows),
                )
            )
    return findings


def _scripts(table: Table) -> list[Finding]:
    """Texts of another script than most, and words that mix two (a Cyrillic letter in a Latin word)."""
    findings = []
    scripts = [_script(text) for text in table.texts]
    counts = Counter(script for script in scripts if script is not None)
    if len(counts) > 1:
        main = counts.most_common(1)[0][0]
        rows = [row for row, script in enumerate(scripts) if script not in (main, None)]
        some = ", ".join(f"{script.title()} {count:,}" for script, count in counts.most_common(5))
        findings.append(
            Finding(
                code="mixed_scripts",
                severity="note",
                what=f"The texts are in several scripts: {some}.",
                count=len(rows),
                effect=f"A pooled figure mixes languages{_by_label(table, rows)}.",
                mend="Give the rows a column 'language', balance the labels in each, and read the figures by language.",
                examples=table.show(rows),
            )
        )
    mixed = [
        row for row, text in enumerate(table.texts) if any(_mixes(word) for word in re.findall(r"[^\W\d_]+", text))
    ]
    if mixed:
        findings.append(
            Finding(
                code="mixed_words",
                severity="warning",
                what=f"{len(mixed):,} rows hold words with letters of two alphabets that look alike.",
                count=len(mixed),
                effect=f"They fall into rare tokens, and equal words are not equal{_by_label(table, mixed)}.",
                mend="Write each word in one alphabet.",
                examples=table.show(mixed),
            )
        )
    return findings


def _script(text: str) -> str | None:
    """The script of most letters, by their Unicode names; None without letters."""
    counts = Counter(_script_of(character) for character in text if character.isalpha())
    return counts.most_common(1)[0][0] if counts else None


def _script_of(letter: str) -> str:
    return "LATIN" if letter.isascii() else unicodedata.name(letter, "UNKNOWN").split(" ")[0]


def _mixes(word: str) -> bool:
    return not word.isascii() and len({_script_of(letter) for letter in word} & {"LATIN", "CYRILLIC", "GREEK"}) > 1


def _sizes(table: Table) -> list[Finding]:
    lengths = np.array([len(text) for text in table.texts])
    limit = min(LONG, _OUTLIER * float(np.median(lengths)))
    rows = np.flatnonzero(lengths > limit)
    if not len(rows):
        return []
    return [
        Finding(
            code="long_texts",
            severity="warning" if lengths.max() > LONG else "note",
            what=f"{len(rows):,} texts are far longer than the rest: up to {lengths.max():,} characters, the median is "
            f"{np.median(lengths):,.0f}.",
            count=len(rows),
            effect="Beyond the model's context recording refuses or cuts them; a mean over their tokens is another thing "
            f"than over a sentence's{_by_label(table, rows)}.",
            mend="Cut them to what carries the label, or give them a set of their own.",
            examples=table.show(rows),
        )
    ]


def _by_label(table: Table, rows: list[int] | np.ndarray) -> str:
    """How the rows divide into labels, as the end of a sentence."""
    if table.y is None:
        return ""
    return f"; {table.y[np.asarray(rows)].mean():.0%} of these rows are true, of all rows {table.y.mean():.0%}"


def _byte_order_mark(source: object) -> list[Finding]:
    if not isinstance(source, str | os.PathLike) or not Path(source).expanduser().is_file():
        return []
    with Path(source).expanduser().open("rb") as file:
        if not file.read(3).startswith(codecs.BOM_UTF8):
            return []
    what = "The file begins with a byte order mark."
    effect = "None here; a reader that does not know it calls the first column '\\ufeff...'."
    return [Finding("byte_order_mark", "note", what, 1, effect, "Save the file as UTF-8 without it.")]
