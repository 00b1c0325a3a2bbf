"""What is measured on a few questions in one piece of work: scores of options, free answers, samples, and every signal.

Each signal is raw here; `SIGNALS` says what it is and which way it points. Probes are fitted later, over all questions:
a piece keeps the streams that they read.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.behavior.questions.asking import bare, grade, of_json, prompt_of
from interp.dataset import Question
from interp.meaning import ExactMatch, load_sentence_encoder, meaning_classes
from interp.model import HookedTransformer
from interp.uncertainty.answers import SIGNALS as OF_ANSWERS
from interp.uncertainty.answers import answer_signals
from interp.uncertainty.knowing import prompt_streams
from interp.uncertainty.questions import score_options
from interp.uncertainty.sample_spread import answer_eigenscores
from interp.uncertainty.samples import GREEDY, AnswerSamples, sample_answers
from interp.uncertainty.semantic import semantic_entropies
from interp.uncertainty.truth_question import p_true

TEXT, FREE = "text", "free"
"""Tasks that have every signal: the option with the most probable text, and the model's own greedy answer."""
SIGNALS: dict[str, tuple[int, str]] = {
    **{name: (info.sign, info.text) for name, info in OF_ANSWERS.items()},
    "option_entropy": (1, "entropy of the softmax over the options' scores, nats"),
    "option_margin": (-1, "probability of the best option less that of the second"),
    "semantic_entropy": (1, "entropy over classes of meaning of the samples, by their counts, nats"),
    "semantic_entropy_rao": (
        1,
        "entropy over classes of meaning, by the model's probability of each distinct sample, nats",
    ),
    "self_consistency": (-1, "share of samples that mean what the answer says"),
    "eigenscore": (1, "mean log eigenvalue of the covariance of the samples' middle-layer streams"),
    "p_true": (-1, "P(True) when asked whether the answer is true"),
    "p_ik": (-1, "probe on the prompt's last token for whether the answer will be right, fitted on other groups"),
    "words": (-1, "control: words of the question alone, fitted on other groups"),
}
"""Name -> sign (1: higher is more doubtful) and what it is."""
OPTIONS = ("question", "option", "format", "logprob_sum", "logprob_mean", "logprob_bare", "n_tokens")


def question_piece(
    model: HookedTransformer, settings: Mapping[str, Any], inputs: Sequence[dict[str, Any]]
) -> tuple[dict[str, np.ndarray], Any]:
    """What is measured on a few questions.

    Returns:
        Arrays: streams [question site d] at the last token of the prompt that was answered, by task (text_streams,
        free_streams), and option_streams [option site d] at the last token of each option. Values: `options` (a row per
        option and format) and `answers` (a row per task and question).
    """
    questions = [of_json(each) for each in inputs]
    text = score_options(model, questions, bare=settings["pmi"], batch_size=settings["batch_size"])
    letter = score_options(model, questions, format="letter", batch_size=settings["batch_size"])
    best = text.loc[text["chosen"]].sort_values("question")
    prompts, chosen = [question.prompt for question in questions], [str(option) for option in best["text"]]
    answers = [_choice_rows(model, questions, text, prompts, chosen, settings)]
    sites = list(settings["sites"])
    behind = [question.prompt + option for question in questions for option in question.options]
    arrays = {"text_streams": _stacked(model, prompts, sites), "option_streams": _stacked(model, behind, sites)}
    if settings["free"]:
        samples = _samples(model, questions, settings)
        answers.append(_free_rows(model, questions, samples, settings))
        arrays["free_streams"] = _stacked(model, samples.prompts, sites)
        answers[0]["self_consistency"] = [
            _agreement(samples.texts(index), option, question.prompt, settings)
            for index, (question, option) in enumerate(zip(questions, chosen))
        ]
    rows = pd.concat([text, letter], ignore_index=True).reindex(columns=list(OPTIONS))
    table = pd.concat(answers, ignore_index=True)
    return arrays, {"options": artifact.records(rows), "answers": artifact.records(table)}


def _stacked(model: HookedTransformer, texts: Sequence[str], sites: Sequence[str]) -> np.ndarray:
    found = prompt_streams(model, texts, sites)
    return np.stack([np.asarray(found[site], dtype=np.float32) for site in sites], axis=1)


def _choice_rows(
    model: HookedTransformer, questions: Sequence[Question], text: pd.DataFrame, prompts: list[str], chosen: list[str],
    settings: Mapping[str, Any],
) -> pd.DataFrame:  # fmt: skip
    """The option with the most probable text, and how sure the model was of it."""
    frame = answer_signals(model, prompts, chosen, joint="", batch_size=settings["batch_size"])
    frame = frame[[name for name in OF_ANSWERS if name in frame]].copy()
    shape = [_shape(options["logprob_sum"].to_numpy(dtype=float)) for _, options in text.groupby("question")]
    frame["option_entropy"], frame["option_margin"] = [entropy for entropy, _ in shape], [margin for _, margin in shape]
    frame["sequence_probability"] = np.exp(text.loc[text["chosen"]].sort_values("question")["logprob_sum"].to_numpy())
    if settings["p_true"]:
        frame["p_true"] = p_true(model, [bare(prompt) for prompt in prompts], chosen, batch_size=settings["batch_size"])
    best = text.loc[text["chosen"]].sort_values("question")["option"].tolist()
    right = [place in question.meta["right"] for question, place in zip(questions, best)]
    return frame.assign(
        task=TEXT,
        question=range(len(questions)),
        answer=[a.strip() for a in chosen],
        right=right,
        empty=False,
        cut=False,
    )


def _shape(scores: np.ndarray) -> tuple[float, float]:
    """Entropy of the softmax, and the lead of its first over its second."""
    p = np.exp(scores - scores.max())
    p /= p.sum()
    first, second = np.sort(p)[::-1][:2]
    return float(-(p * np.log(np.where(p > 0, p, 1.0))).sum()), float(first - second)


def _samples(model: HookedTransformer, questions: Sequence[Question], settings: Mapping[str, Any]) -> AnswerSamples:
    asked = [prompt_of(settings["shots"], question.prompt) for question in questions]
    return sample_answers(
        model, asked, settings["n_samples"], max_new_tokens=settings["max_new_tokens"], temperature=1.0, stop="\n",
        seed=settings["seed"],
    )  # fmt: skip


def _free_rows(
    model: HookedTransformer, questions: Sequence[Question], samples: AnswerSamples, settings: Mapping[str, Any]
) -> pd.DataFrame:
    """The greedy answer in the model's own words, and every signal of it; signals of an empty answer are missing."""
    greedy = [str(text) for text in samples.greedy["text"]]
    said = [index for index, text in enumerate(greedy) if text]
    frame = pd.DataFrame({name: np.full(len(greedy), np.nan) for name in OF_ANSWERS})
    asked = list(samples.prompts)
    if said:
        found = answer_signals(
            model,
            [asked[i] for i in said],
            [samples.token_ids(i, GREEDY) for i in said],
            batch_size=settings["batch_size"],
        )
        for name in OF_ANSWERS:
            if name in found:
                frame.loc[said, name] = found[name].to_numpy(dtype=float)
    frame["sequence_probability"] = np.exp(samples.greedy["logprob"].to_numpy(dtype=float))
    meanings = semantic_entropies(
        samples, _match(settings), questions=[bare(question.prompt) for question in questions]
    )
    frame["semantic_entropy"] = [each.discrete for each in meanings]
    frame["semantic_entropy_rao"] = [each.rao for each in meanings]
    frame["self_consistency"] = [each.greedy_share for each in meanings]
    if settings["eigenscore"]:
        frame["eigenscore"] = answer_eigenscores(model, samples)
    if settings["p_true"] and said:
        asks = [bare(questions[i].prompt) for i in said]
        others = [[text for text in samples.texts(i) if text] for i in said]
        frame.loc[said, "p_true"] = p_true(
            model, asks, [greedy[i] for i in said], others=others, batch_size=settings["batch_size"]
        )
    encoder = None if settings["grader"] == "match" else _encoder(settings["encoder"])
    right = [grade(question, text, settings["grader"], encoder) for question, text in zip(questions, greedy)]
    empty, cut = [not text for text in greedy], ~samples.greedy["ended"].to_numpy(dtype=bool)
    return frame.assign(task=FREE, question=range(len(greedy)), answer=greedy, right=right, empty=empty, cut=cut)


def _agreement(texts: Sequence[str], answer: str, prompt: str, settings: Mapping[str, Any]) -> float:
    """Share of samples in the class of the answer."""
    classes = meaning_classes([answer.strip(), *texts], _match(settings), bare(prompt))
    return float(np.mean([each == classes[0] for each in classes[1:]]))


def _match(settings: Mapping[str, Any]) -> Any:
    return settings["match"] if settings["match"] is not None else ExactMatch()


@lru_cache(maxsize=1)
def _encoder(name: str) -> Any:
    return load_sentence_encoder(name)
