"""Do two texts mean the same? Normalised words, sentence embeddings, inference; classes of answers; and the grader of short
answers.

1. `grading`: `normalised` says what does not change a short answer; `answers_match` says when an answer is right.
2. `encoder`: `load_sentence_encoder` reads a sentence encoder, `nli`: `load_nli` a classifier of entailment.
3. `match`: `ExactMatch`, `EmbeddingMatch` and `NLIMatch` judge pairs of texts; `threshold` chooses an embedding's threshold on
   labelled pairs and judges it on others.
4. `classes`: `meaning_classes` puts answers into classes of meaning, by any match.
5. `passages` divides documents, and `retrieval` finds the passages that a question needs, by words, by vectors or by both.
"""

from interp.meaning.classes import Match, meaning_classes
from interp.meaning.encoder import SentenceEncoder, load_sentence_encoder
from interp.meaning.grading import answers_match, normalised
from interp.meaning.match import EmbeddingMatch, ExactMatch, NLIMatch
from interp.meaning.nli import NLIModel, load_nli
from interp.meaning.passages import Passage, passages_of
from interp.meaning.retrieval import BM25Retriever, DenseRetriever, HybridRetriever, Retriever, load_retriever
from interp.meaning.threshold import EmbeddingThreshold, embedding_threshold

__all__ = [
    "BM25Retriever",
    "DenseRetriever",
    "EmbeddingMatch",
    "EmbeddingThreshold",
    "ExactMatch",
    "HybridRetriever",
    "Match",
    "NLIMatch",
    "NLIModel",
    "Passage",
    "Retriever",
    "SentenceEncoder",
    "answers_match",
    "embedding_threshold",
    "load_nli",
    "load_retriever",
    "load_sentence_encoder",
    "meaning_classes",
    "normalised",
    "passages_of",
]
