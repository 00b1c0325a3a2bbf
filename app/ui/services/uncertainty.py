"""How sure the model is: along a prompt, over sampled answers, and on the run's documents and questions."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

import interp
from ui.services.kept import shelf
from ui.services.live import checked, engine, model_name, token_ids
from ui.services.runs import KEPT, run_json

MOST_SAMPLE_TOKENS = 512
"""Longest prompt that a page samples answers to."""
SAMPLES = (4, 20)
MATCHES = {"exact": "Same words", "embedding": "Sentence vectors"}
TEMPERATURES = tuple(round(0.5 * 2 ** (step / 6), 4) for step in range(13))
"""0.5 to 2, with 1 among them, evenly spaced on a logarithmic scale."""
DOCUMENTS, DOCUMENT_TOKENS = 8, 64
"""What a page reads for the temperature slider: so many documents of the corpus, and so many tokens of each."""
CORPUS = "python_docs"


# -------------------------------------------------------------------------------------------------------- this prompt


def along(frame: pd.DataFrame) -> dict[str, Any]:
    """What the tokens of a prompt say together (a frame of `interp.token_uncertainty`): n, surprisal (mean, nats), perplexity,
    entropy (mean, nats), strangest (its row as a dict, None where no token is predicted)."""
    known = frame.dropna(subset=["logprob"])
    if known.empty:
        return {
            "n": 0,
            "surprisal": None,
            "perplexity": None,
            "entropy": float(frame["entropy"].to_numpy(float).mean()),
            "strangest": None,
        }
    surprisal = -known["logprob"].to_numpy(dtype=float)
    mean, at = float(surprisal.mean()), int(surprisal.argmax())
    row = known.iloc[at].to_dict()
    return {
        "n": len(known),
        "surprisal": mean,
        "perplexity": math.exp(mean),
        "entropy": float(frame["entropy"].to_numpy(float).mean()),
        "strangest": {"pos": int(row["pos"]), "token": str(row["token"]), "surprisal": float(surprisal[at])},
    }


# ------------------------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class Asked:
    """How answers are sampled: hashable, so that it names its result."""

    prompt: str
    n: int = 8
    temperature: float = 1.0
    max_new_tokens: int = 8
    match: str = "exact"
    seed: int = 0


@dataclass(frozen=True)
class Answers:
    """Sampled answers to one prompt, as frames."""

    classes: pd.DataFrame
    """A row per class of meaning (`SemanticEntropy.to_frame`), with `greedy`: it holds the greedy answer."""
    rows: pd.DataFrame
    """A row per answer: sample (-1 greedy), text, class, n_tokens, logprob, logprob_mean, ended."""
    figures: pd.DataFrame
    """figure, value, unit, meaning."""
    signals: pd.DataFrame
    """Of the greedy answer (`interp.answer_signals`): signal, value, doubt ("higher", "lower"), meaning."""
    greedy: str
    matched_by: str
    """The rule that put answers into classes."""
    notes: tuple[str, ...]


def matches() -> dict[str, str]:
    """Key -> what a reader sees, of the ways to say that two answers mean the same, as far as their files are here."""
    there = interp.models()
    encoder = "kind" in there and bool(((there["kind"] == "sentence encoder") & there["cached"]).any())
    return {key: name for key, name in MATCHES.items() if key == "exact" or encoder}


def answers(asked: Asked) -> Answers | None:
    """The result of `sample`, None where it was not run."""
    return shelf().get((engine().fingerprint, asked))


def sample(asked: Asked) -> None:
    """Sample answers and put what they say on the shelf.

    Raises:
        ValueError: a long prompt, another number of samples, an unknown match, or what `interp.sample_answers` refuses.
    """
    if not SAMPLES[0] <= asked.n <= SAMPLES[1]:
        raise ValueError(f"{asked.n} samples: a page takes {SAMPLES[0]} to {SAMPLES[1]}")
    if asked.match not in matches():
        raise ValueError(f"{asked.match[:40]!r} is no match that is here: choose one of {', '.join(matches())}")
    n = len(token_ids(asked.prompt))
    if n > MOST_SAMPLE_TOKENS:
        raise ValueError(
            f"the prompt has {n:,} tokens; a page samples answers to at most {MOST_SAMPLE_TOKENS}: shorten it, or use "
            "interp.sample_answers in Python"
        )
    fingerprint = engine().fingerprint
    with checked(fingerprint) as model:
        found = interp.sample_answers(
            model,
            asked.prompt,
            asked.n,
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            seed=asked.seed,
        )
        match = interp.EmbeddingMatch(_encoder()) if asked.match == "embedding" else None
        meant = interp.semantic_entropies(found, match)[0]
        spread = float(interp.answer_eigenscores(model, found)[0])
        greedy = found.greedy.iloc[0]
        signals = interp.answer_signals(model, [asked.prompt], [found.token_ids(0, -1)])
    shelf().put((fingerprint, asked), _answers(asked, found, meant, spread, str(greedy["text"]), signals))


def _answers(asked: Asked, found: Any, meant: Any, spread: float, greedy: str, signals: pd.DataFrame) -> Answers:
    rows = found.rows.loc[:, ["sample", "text", "n_tokens", "logprob", "logprob_mean", "ended"]].copy()
    number = dict(enumerate(meant.classes)) | {-1: meant.greedy_class}
    rows.insert(2, "class", pd.array([number[sample] for sample in rows["sample"]], dtype="Int64"))
    classes = meant.to_frame()
    classes["greedy"] = classes["class"] == (-1 if meant.greedy_class is None else meant.greedy_class)
    top = math.log(asked.n)
    figures = [
        ("semantic entropy", meant.discrete, "nats", f"By counts; 0 is one meaning, {top:.2f} as many as samples."),
        (
            "semantic entropy (corrected)",
            meant.discrete_corrected,
            "nats",
            "With the Miller-Madow term for few samples.",
        ),
        ("semantic entropy (model)", meant.rao, "nats", "By the model's own probabilities of the distinct answers."),
        ("self-consistency", meant.self_consistency, "share", "Of the samples in the largest class."),
        ("agrees with greedy", meant.greedy_share, "share", "Of the samples that mean the same as the greedy answer."),
        (
            "EigenScore",
            spread,
            "nats",
            "Spread of the answers inside the model, middle layer; compare it within one model.",
        ),
    ]
    from interp.uncertainty.answers import SIGNALS as info

    told = [
        (name, float(signals[name].iloc[0]), "higher" if info[name].sign > 0 else "lower", info[name].text)
        for name in info
    ]
    described = meant.match
    rule = str(described.get("rule") or described.get("match"))
    if "threshold" in described:
        rule = (
            f"cosine of sentence vectors at least {described['threshold']:.2f} ({described.get('encoder', 'encoder')})"
        )
    return Answers(
        classes.sort_values("count", ascending=False, kind="stable").reset_index(drop=True),
        rows.reset_index(drop=True),
        pd.DataFrame(figures, columns=pd.Index(["figure", "value", "unit", "meaning"])),
        pd.DataFrame(told, columns=pd.Index(["signal", "value", "doubt", "meaning"])),
        greedy,
        rule,
        tuple(meant.notes),
    )


@st.cache_resource(max_entries=1, show_spinner=False)
def _encoder() -> Any:
    return interp.load_sentence_encoder()


# ------------------------------------------------------------------------------------------------------------ the run


def of_the_run() -> dict[str, Any]:
    """calibration.json of the run. ValueError where there is none."""
    return run_json("calibration")


def figures(
    report: dict[str, Any], names: tuple[str, ...] = ("ece", "ece_mass", "smooth_ece", "brier", "auroc")
) -> pd.DataFrame:
    """A row per figure of a report's dictionary: figure, value, low, high (95 %), null_low, null_high, n, n_groups."""
    rows = []
    for name in names:
        if report.get(name) is None:
            continue
        low, high = report.get("intervals", {}).get(name, (None, None))
        null_low, null_high = report.get("null_bands", {}).get(name, (None, None))
        rows.append((name, report[name], low, high, null_low, null_high, report.get("n"), report.get("n_groups")))
    columns = ["figure", "value", "low", "high", "null_low", "null_high", "n", "n_groups"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def question_rows(found: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Format -> a row per question (confidence, right, group), of the formats whose rows the run kept."""
    kept = {}
    for each in found.get("questions") or []:
        rows = each.get("choices")
        if isinstance(rows, dict) and {"confidence", "right"} <= set(rows):
            kept[str(each["format"])] = pd.DataFrame(
                {name: rows[name] for name in ("confidence", "right", "group") if name in rows}
            )
    return kept


@st.cache_data(**KEPT)
def reliability(rows: pd.DataFrame, by: str, n_bins: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(smooth curve, bins) of rows with `confidence` and `right`, and `group` where rows belong together."""
    from interp.calibration.curve import reliability_bins, reliability_curve  # torch comes with it

    p, y = rows["confidence"], rows["right"].astype(int)
    groups = rows.get("group")
    return reliability_curve(p, y, groups=groups), reliability_bins(p, y, n_bins, by)


def scaled() -> Any:
    """The result of `read_temperatures`, None where it was not run."""
    return shelf().get((engine().fingerprint, "temperatures", CORPUS))


def read_temperatures() -> None:
    """Read the last documents of the corpus at every one of `TEMPERATURES`; the rows go on the shelf."""
    from interp.uncertainty.temperatures import temperature_rows

    fingerprint = engine().fingerprint
    documents = interp.load_corpus(CORPUS)
    last = documents.take(range(max(0, len(documents) - DOCUMENTS), len(documents)))
    with checked(fingerprint) as model:
        limit = min(DOCUMENT_TOKENS, model.cfg.n_ctx)
        found = temperature_rows(model, last, TEMPERATURES, max_tokens=limit)
    shelf().put((fingerprint, "temperatures", CORPUS), found)


def temperatures_code(temperature: float) -> str:
    """Python that makes what `read_temperatures` gives."""
    return f"""
import interp
from interp.plot.uncertainty import temperature_curve
from interp.uncertainty.temperatures import temperature_rows

model = interp.load({model_name()!r})
documents = interp.load_corpus({CORPUS!r})
last = documents.take(range(len(documents) - {DOCUMENTS}, len(documents)))
rows = temperature_rows(model, last, {list(TEMPERATURES)!r}, max_tokens={DOCUMENT_TOKENS})
chart = temperature_curve(rows.to_frame(), chosen={temperature!r})
print(rows.report({temperature!r}).verdict)
"""


@st.cache_data(**KEPT)
def at_temperature(fingerprint: str, temperature: float) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(bins with `state` "T = 1" and the chosen T, report at T as a dictionary) of what `read_temperatures` made."""
    from interp.calibration.curve import reliability_bins

    found = shelf().get((fingerprint, "temperatures", CORPUS))
    if found is None:
        raise ValueError("the temperatures are no longer at hand: read them again")
    report = found.report(temperature, n_boot=300, n_null=300)
    states = dict.fromkeys((1.0, temperature))
    bins = [reliability_bins(found.p_at(each), found.right).assign(state=f"T = {each:.2f}") for each in states]
    return pd.concat(bins, ignore_index=True), report.to_dict()
