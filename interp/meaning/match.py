"""Three ways to say that two texts mean the same: by their words, by their embeddings, by inference.

Which one? `ExactMatch` for short answers, such as names and numbers: it never takes Paris for Rome. `NLIMatch` for sentences,
where there is an inference model. `EmbeddingMatch` only where answers differ in what they are about: an embedding hardly sees
which of two names, numbers or roles a text has, nor a negation; its docstring has the figures.

All three: a text without content (empty, "...") is the same as another such text and as no other.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from interp.meaning.encoder import SentenceEncoder
from interp.meaning.grading import normalised, text_pairs
from interp.meaning.nli import NLIModel

CACHED = 20_000
"""Most texts whose vector is kept."""
CHOSEN: dict[str, Any] = {
    "encoder": "all-minilm-l6-v2",
    "fingerprint": "13c147212608e33d457531238c5fff94",
    "threshold": 0.6,
    "data": "paraphrases",
    "data_hash": "21bffd9ba508f10a1337f7fed2e1b2d5",
    "chosen_on": {"pairs": 156, "groups": 26, "balanced_accuracy": 0.737},
    "judged_on": {
        "pairs": 156,
        "groups": 26,
        "balanced_accuracy": {
            "all": [0.667, 0.618, 0.715],
            "short answers": [0.690, 0.595, 0.786],
            "sentences": [0.639, 0.590, 0.671],
        },
        "same_found": [0.936, 0.840, 1.0],
        "different_told_apart": {"all": [0.397, 0.315, 0.480], "other content": [0.923, 0.799, 1.0]},
        "each": "figure, then its 95 % interval by resampling groups",
    },
}
"""What `embedding_threshold(load_sentence_encoder())` gave, on the data of that hash; a test runs it again."""


class ExactMatch:
    """Same by `normalised`: case, punctuation, articles and spaces do not count, every word does.

    On the bundled `paraphrases` it takes none of the 156 different pairs for the same, and finds 2 of the 84 pairs of short
    answers that mean the same (they are worded differently on purpose: "8" and "eight legs") and none of the 72 pairs of
    sentences. So it makes too many classes where answers are worded freely, and hardly ever too few.
    """

    def same(self, pairs: Sequence[tuple[str, str]] | Any) -> list[bool]:
        """One verdict a pair."""
        return [normalised(one) == normalised(other) for one, other in text_pairs(pairs)]

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"match": "exact", "rule": "equal once case, punctuation, articles and spaces are taken away"}

    def __repr__(self) -> str:
        return "ExactMatch()"


class EmbeddingMatch:
    """Same where the cosine of two embeddings is at least a threshold.

    What it can and cannot do, by all-MiniLM-L6-v2 at its threshold of 0.60 on 156 pairs of 26 groups that the threshold was not
    chosen on (bundled `paraphrases`, split `judge`; 95 % intervals by group): balanced accuracy 0.67 [0.62, 0.71], for short
    answers 0.69 [0.60, 0.79], for sentences 0.64 [0.59, 0.67]. It finds 0.94 [0.84, 1.00] of the pairs that mean the same, and
    tells 0.92 [0.80, 1.00] of those apart that say something else altogether. Of those that differ in a name, number, unit,
    time or role, or by a negation, it tells 7 of 28 short answers apart and none of 24 sentences: for these it is no better
    than taking all for the same.

    Args:
        encoder: from `load_sentence_encoder`.
        threshold: cosine; None for the one that was chosen for all-MiniLM-L6-v2. For another encoder, and better for answers like
            yours, choose one: `embedding_threshold(encoder, pairs).threshold`.

    A text of signs that the encoder does not know is compared by `normalised` alone. Vectors are kept, so that each text is
    embedded once.

    Raises:
        ValueError: something that is no encoder, no threshold for an encoder that none was chosen for, or one outside -1 .. 1.
    """

    def __init__(self, encoder: SentenceEncoder | Any, threshold: float | Any = None) -> None:
        if not isinstance(encoder, SentenceEncoder):
            raise ValueError(
                f"EmbeddingMatch needs a sentence encoder, got {encoder!r:.80}: load_sentence_encoder('minilm') gives one, "
                "EmbeddingMatch(load_sentence_encoder())"
            )
        if threshold is None and encoder.fingerprint != CHOSEN["fingerprint"]:
            raise ValueError(
                f"the threshold that is built in was chosen for {CHOSEN['encoder']} in fp32, and {encoder.name} has other "
                "weights: choose one, embedding_threshold(encoder).threshold, and pass it"
            )
        value = CHOSEN["threshold"] if threshold is None else threshold
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
            raise ValueError(f"threshold is a cosine, -1 .. 1, got {value!r}")
        self.encoder = encoder
        self.threshold = float(value)
        self._own = threshold is not None
        self._kept: dict[str, Tensor | None] = {}

    def prepare(self, texts: Sequence[str]) -> None:
        """Embed texts at once that will be compared."""
        wanted = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if len(self._kept) + len(wanted) > CACHED:
            self._kept.clear()
            wanted = list(dict.fromkeys(texts))
        known = [text for text in wanted if normalised(text) and self.encoder.knows(text)]
        # The encoder first: it may refuse a text, which must then not count as one without a vector.
        vectors = dict(zip(known, self.encoder(known))) if known else {}
        self._kept |= {text: vectors.get(text) for text in wanted}

    def same(self, pairs: Sequence[tuple[str, str]] | Any) -> list[bool]:
        """One verdict a pair; ValueError for a text that is longer than the encoder reads."""
        listed = text_pairs(pairs)
        self.prepare([text for pair in listed for text in pair])
        verdicts = []
        for one, other in listed:
            first, second = self._kept[one], self._kept[other]
            if first is None or second is None or normalised(one) == normalised(other):
                verdicts.append(normalised(one) == normalised(other))
            else:
                verdicts.append(float(first.double() @ second.double()) >= self.threshold)
        return verdicts

    def describe(self) -> dict[str, Any]:
        """JSON-ready: encoder, threshold, and how the built-in one was chosen and did on other pairs."""
        found = {"match": "embedding", "threshold": self.threshold, **self.encoder.describe()}
        if self._own:
            return {**found, "chosen": "by the caller"}
        keys = ("data", "data_hash", "chosen_on", "judged_on")
        return {**found, "chosen": {key: CHOSEN[key] for key in keys}}

    def __repr__(self) -> str:
        return f"EmbeddingMatch({self.encoder.name!r}, threshold={self.threshold})"


class NLIMatch:
    """Same by natural language inference, asked in both directions.

    Args:
        nli: from `load_nli`.
        strict: False (default): neither direction contradicts, and not both are neutral; the rule of Farquhar et al. 2024's
            code. True: both directions entail; the rule in the text of Kuhn et al. 2023 (arXiv 2302.09664).

    Each direction's label is the most probable one. `meaning_classes` puts the question before both texts, as in the papers: bare
    answers such as "Paris" are no statements that could entail anything.
    """

    wants_question = True

    def __init__(self, nli: NLIModel, strict: bool = False) -> None:
        self.nli = nli
        self.strict = strict

    def same(self, pairs: Sequence[tuple[str, str]] | Any) -> list[bool]:
        """One verdict a pair; the same for (a, b) and (b, a). ValueError for a pair longer than the model reads."""
        listed = text_pairs(pairs)
        keys = [(normalised(one), normalised(other)) for one, other in listed]
        asked = [pair for pair, (one, other) in zip(listed, keys) if one and other and one != other]
        labels = {}
        if asked:
            both_ways = [*asked, *((other, one) for one, other in asked)]
            labels = dict(zip(both_ways, self.nli(both_ways).argmax(-1).tolist()))
        return [
            self._equivalent(labels[pair], labels[pair[1], pair[0]]) if pair in labels else one == other
            for pair, (one, other) in zip(listed, keys)
        ]

    def _equivalent(self, forth: int, back: int) -> bool:
        entails, neutral, contradicts = 0, 1, 2
        if self.strict:
            return forth == back == entails
        return contradicts not in (forth, back) and not forth == back == neutral

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        lenient = "neither direction contradicts, and not both are neutral"
        return {"match": "nli", "rule": "both directions entail" if self.strict else lenient, **self.nli.describe()}

    def __repr__(self) -> str:
        return f"NLIMatch({self.nli.name!r}, strict={self.strict})"
