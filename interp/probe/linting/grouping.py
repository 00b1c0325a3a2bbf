"""Groups and pairs: whether there are any, whether they are whole, and what they share."""

import re
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np

from interp.dataset.group_rule import QUOTED, groups_by_rule
from interp.dataset.rows import FIXED, plain
from interp.probe.inputs import MIN_GROUPS, fold
from interp.probe.linting.balance import PARTS
from interp.probe.linting.findings import Finding
from interp.probe.linting.table import Table, told

_LARGE = 0.2  # share of the rows in one group that makes folds uneven
_PAIRED = 0.5  # share of the groups with both labels from which on a set is taken for a paired one
_ENTITY = re.compile(r"(?<!^)(?<![.!?] )\b[^\W\d_][\w'-]+|\b\d[\d.,]*\d\b|\b\d\b")
"""Words that do not begin a sentence, of which the capitalised ones are taken, and numbers."""


def find_groups(table: Table) -> list[Finding]:
    """Missing, few, large and one-sided groups, broken pairs, and entities that several groups share."""
    if table.groups is None:
        return [_missing(table), *_pairs(table)]
    sizes, n = Counter(table.groups).most_common(), len(table.texts)
    largest, rows = sizes[0]
    findings = []
    if len(sizes) < MIN_GROUPS:
        what = f"There are {len(sizes)} groups ({', '.join(repr(name) for name, _ in sizes)})."
        effect = f"The sweep refuses fewer than {MIN_GROUPS}: a figure over unseen groups would rest on a few draws."
        mend = "Gather more entities, or name a finer group."
        findings.append(Finding("few_groups", "error", what, n, effect, mend))
    elif rows > _LARGE * n:
        what = f"The group {largest!r} holds {rows:,} of {n:,} rows."
        effect = (
            f"A fold that tests it trains on {1 - rows / n:.0%} of the rows; the interval rests on few draws of groups."
        )
        findings.append(Finding("large_group", "warning", what, rows, effect, "Name a finer group."))
    findings += _spelling(dict(sizes))
    if table.both:
        findings += [*_one_sided(table), *_pairs(table), *_shared(table)]
    return findings


# ------------------------------------------------------------------------------------------------------------ missing


def _missing(table: Table) -> Finding:
    rules = suggested_rules(table)
    could = f"This table allows {', '.join(rules)}." if rules else "Nothing in this table offers itself."
    return Finding(
        code="no_groups",
        severity="error",
        what="No column and no rule says which rows are about the same thing.",
        count=len(table.texts),
        effect="The sweep refuses the set: split by row, the partner of a test row can stand in the training part.",
        mend=f"{could} A column is named by group=, a rule by group_rule= (columns, 'quoted' or a regular expression with "
        "the entity in brackets); group_rule='rows' says on purpose that no two rows share anything. "
        "`frame.assign(group=groups_by_rule(frame, rule))` writes it into the table.",
    )


def suggested_rules(table: Table, most: int = 3) -> list[str]:
    """Columns and rules whose groups would hold both labels, the finest first, as they are written in a call."""
    frame = table.frame
    names = [name for name in map(str, frame.columns) if name not in (*FIXED, *PARTS)]
    numeric = [name for name in names if all(isinstance(plain(value), int) for value in frame[name])]
    of_texts = [rule for rule in (QUOTED, _template(table.texts)) if rule is not None]
    tried = [(f"group={name!r}", name) for name in names]
    tried += [(f"group_rule='{a},{b}'", f"{a},{b}") for a, b in combinations(numeric[:6], 2)]
    tried += [(f"group_rule={rule!r}", rule) for rule in of_texts]
    found = []
    for call, rule in tried:
        try:
            groups = groups_by_rule(frame, rule)
        except ValueError:
            continue  # a rule that does not fit this table is no suggestion
        known = [(group, row) for row, group in enumerate(groups) if group is not None]
        rows_of: dict[str, list[int]] = defaultdict(list)
        for group, row in known:
            rows_of[group].append(row)
        several = [rows for rows in rows_of.values() if len(rows) > 1]
        both = [rows for rows in several if table.y is not None and len(set(table.y[rows])) == 2]
        covered, fits = sum(map(len, both)) / len(groups), len(known) / len(groups)
        # A rule about the texts is taken even where few rows share an entity: what it finds is one.
        if len(rows_of) >= MIN_GROUPS and (covered >= 0.5 or (rule in of_texts and fits >= 0.9)):
            found.append((-round(covered, 1), -len(rows_of), call))
    return [call for *_, call in sorted(found)[:most]]


def _template(texts: list[str]) -> str | None:
    """The pattern of texts that begin with the same words and go on with the same word: `^The city of (.+?) is`."""
    left, prefix, most = [text.split() for text in texts], list[str](), 0.8 * len(texts)
    while common := _most_common([one[len(prefix)] for one in left if len(one) > len(prefix)], most):
        prefix.append(common)
        left = [one for one in left if one[: len(prefix)] == prefix]
    behind = _most_common([word for one in left for word in dict.fromkeys(one[len(prefix) + 1 :])], most)
    if not prefix or behind is None:
        return None
    return f"^{re.escape(' '.join(prefix))} (.+?) {re.escape(behind)}".replace(r"\ ", " ")


def _most_common(words: list[str], least: float) -> str | None:
    """The most frequent word, if it is there at least so many times."""
    counted = Counter(words).most_common(1)
    return counted[0][0] if counted and counted[0][1] >= least else None


# ------------------------------------------------------------------------------------------------------------- broken


def _spelling(sizes: dict[str, int]) -> list[Finding]:
    spelt: dict[str, list[str]] = defaultdict(list)
    for name in sizes:
        spelt[fold(name)].append(name)
    several = [names for names in spelt.values() if len(names) > 1]
    if not several:
        return []
    count = sum(sizes[name] for names in several for name in names)
    what = f"{len(several):,} groups are written in more than one way, by case or spacing: {several[0]}."
    effect = "Each way of writing is a group of its own, so one entity can stand on both sides of a split."
    return [Finding("group_spelling", "error", what, count, effect, "Write each group in one way.")]


def _one_sided(table: Table) -> list[Finding]:
    assert table.y is not None
    share = np.bincount(table.codes, weights=table.y) / np.bincount(table.codes)
    one = np.flatnonzero((share == 0) | (share == 1))
    promised = "pair" in table.frame
    if len(one) == 0 or not (promised or 1 - len(one) / len(share) >= _PAIRED):
        return []
    rows = np.flatnonzero(np.isin(table.codes, one))
    why = "the column 'pair' promises both" if promised else "most groups hold both"
    return [
        Finding(
            code="one_label_groups",
            severity="error" if promised else "warning",
            what=f"{len(one):,} of {len(share):,} groups hold one label only, where {why}.",
            count=len(rows),
            effect=f"In {len(rows) / len(table.y):.1%} of the rows the entity tells the label, and flipping whole groups "
            "is no longer a control without a signal.",
            mend="Add the missing rows, or remove these groups.",
            examples=table.show(rows),
        )
    ]


def _pairs(table: Table) -> list[Finding]:
    """A pair is an affirmative row and its negation: two rows, both labels, one group."""
    if "pair" not in table.frame or table.y is None:
        return []
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(map(plain, table.frame["pair"])):
        if name not in (None, ""):
            rows_of[str(name)].append(row)
    polarity = table.frame["polarity"].astype(str).to_numpy() if "polarity" in table.frame else None
    alone = [rows for rows in rows_of.values() if len(rows) < 2]
    whole = [rows for rows in rows_of.values() if len(rows) > 1]
    unflipped = [rows for rows in whole if len(set(table.y[rows])) == 1]
    divided = [] if table.groups is None else [rows for rows in whole if len(set(table.codes[rows])) > 1]
    same = [] if polarity is None else [rows for rows in whole if len(set(polarity[rows])) == 1]
    total, out = len(rows_of), []
    for code, severity, bad, what, effect, mend in (
        ("pairs_not_flipped", "error", unflipped, "have the same label on all rows",
         f"A perfect probe flips on {1 - len(unflipped) / max(total, 1):.3f} of the pairs at most.",
         "A negation turns the label: mend it, or give the rows other pairs."),
        ("pairs_divided", "error", divided, "stand in more than one group",
         "The negation of a test row is trained on, with the other label.", "Give both rows of a pair one group."),
        ("pairs_same_polarity", "error", same, "have one polarity on all rows",
         "Truth and polarity cannot be told apart in them.", "Mend the column 'polarity', or the pairs."),
        ("pairs_alone", "warning", alone, "have one row only",
         "They are left out of the pair-wise flips.", "Add the other row, or empty the row's pair."),
    ):  # fmt: skip
        if bad:
            rows = [row for one in bad for row in one]
            text = f"{len(bad):,} of {total:,} pairs {what}."
            out.append(Finding(code, severity, text, len(rows), effect, mend, table.show(rows)))
    return out


# ------------------------------------------------------------------------------------------------------------- shared


def _shared(table: Table) -> list[Finding]:
    """Names and numbers that stand in several groups, and how much they alone tell of the label."""
    entities = [sorted({one for one in _ENTITY.findall(text) if not one[0].islower()}) for text in table.texts]
    groups_of: dict[str, set[int]] = defaultdict(set)
    for code, found in zip(table.codes, entities):
        for entity in found:
            groups_of[entity].add(int(code))
    # What stands in most groups is the sentence around the entity, not the entity.
    n_groups = int(table.codes.max()) + 1
    shared = {entity for entity, codes in groups_of.items() if 1 < len(codes) <= n_groups / 2}
    rows = [row for row, found in enumerate(entities) if shared & set(found)]
    if not rows:
        return []
    # One word each, so that the bag of words takes them apart nowhere.
    code_of = {entity: f"entity{number}" for number, entity in enumerate(sorted(shared))}
    only = [" ".join(code_of[one] for one in found if one in shared) or "none" for found in entities]
    found = table.fitted("names and numbers that groups share", texts=only)
    most = sorted(shared, key=lambda entity: (-len(groups_of[entity]), entity))[:5]
    skewed = found is not None and told((found.auroc, found.low, found.high))
    effect = "The folds keep groups apart, not these: what is learnt about them in one group is met again in another."
    if found is not None:
        effect += (
            f" They alone give AUROC {found.auroc:.3f} (95 % {found.low:.3f} to {found.high:.3f}) on unseen groups."
        )
    some = ", ".join(f"{entity} ({len(groups_of[entity])})" for entity in most)
    return [
        Finding(
            code="shared_entities",
            severity="warning" if skewed else "note",
            what=f"{len(shared):,} names or numbers stand in several groups, in {len(rows):,} rows: {some} groups.",
            count=len(rows),
            effect=effect,
            mend="Where the figure is away from 1/2, group by what is shared, or let each name be as often true as false.",
            examples=table.show(rows),
            figures={} if found is None else {"auroc": found.auroc, "low": found.low, "high": found.high},
        )
    ]
