"""Natural language inference: does one text entail the other, contradict it, or neither?

Any sequence classifier of the `transformers` package whose labels are entailment, neutral and contradiction can be read from a
folder. None is bundled. The labels are read by name, since released models have them in different orders.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.meaning.grading import text_pairs

LABELS = ("entailment", "neutral", "contradiction")
CACHED = 100_000
"""Most pairs whose answer is kept."""


class NLIModel:
    """`nli(pairs)`: probabilities [pair 3] of entailment, neutral and contradiction, in that order.

    Args:
        classifier: a transformers sequence classifier in evaluation mode.
        tokenizer: its tokenizer (transformers).
        name: for messages and cards.

    Raises:
        ValueError: labels other than entailment, neutral and contradiction, each once, in any order and case.
    """

    def __init__(self, classifier: Any, tokenizer: Any, name: str) -> None:
        self.columns = _columns(classifier.config, name)
        self.classifier = classifier
        self.tokenizer = tokenizer
        self.name = name
        self._kept: dict[tuple[str, str], Float[Tensor, " 3"]] = {}

    @property
    def max_length(self) -> int:
        """Most tokens of a pair, those around and between the texts included."""
        # A tokenizer without a limit of its own says 10^30.
        positions = getattr(self.classifier.config, "max_position_embeddings", None) or 10**9
        # RoBERTa counts positions from behind its padding id; its tokenizer has the true length.
        return int(min(self.tokenizer.model_max_length, positions))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the classifier's weights, taken once: two of one name can judge differently."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(self.classifier.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """JSON-ready: name, a hash of the weights, labels as the model has them, and the most tokens of a pair."""
        labels = {str(key): value for key, value in self.classifier.config.id2label.items()}
        return {"nli": self.name, "fingerprint": self.fingerprint, "labels": labels, "max_length": self.max_length}

    def __repr__(self) -> str:
        return f"NLIModel({self.name!r})"

    def __call__(
        self, pairs: Sequence[tuple[str, str]] | Any, *, batch_size: int | Any = 16
    ) -> Float[Tensor, "pair 3"]:
        """Classify pairs (premise, hypothesis); each distinct pair is run once and kept.

        Args:
            pairs: what is given, and what may follow from it; the order counts.
            batch_size: pairs in one pass. Pads are masked: it changes nothing but time and memory.

        Returns:
            Rows that sum to 1, in the order of the pairs; float32 on the CPU.

        Raises:
            ValueError: no pairs, one that is not two texts, or one that is longer than the model reads.
        """
        listed = text_pairs(pairs)
        if not listed:
            raise ValueError("there are no pairs to compare: the list is empty")
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of 1 or more, got {batch_size!r}")
        known = {pair: self._kept[pair] for pair in set(listed) if pair in self._kept}
        known |= self._run([pair for pair in dict.fromkeys(listed) if pair not in known], batch_size)
        if len(self._kept) + len(known) > CACHED:
            self._kept.clear()
        self._kept |= known
        return torch.stack([known[pair] for pair in listed])

    def _run(self, pairs: list[tuple[str, str]], batch_size: int) -> dict[tuple[str, str], Float[Tensor, " 3"]]:
        lengths = [len(self.tokenizer(one, other)["input_ids"]) for one, other in pairs]
        for (one, other), length in zip(pairs, lengths):
            if length > self.max_length:
                raise ValueError(
                    f"a pair has {length} tokens, and {self.name} reads {self.max_length}: shorten the texts or the question "
                    f"(they begin {one[:40]!r} and {other[:40]!r})"
                )
        order, found = sorted(range(len(pairs)), key=lengths.__getitem__), {}
        for start in range(0, len(order), batch_size):
            part = [pairs[index] for index in order[start : start + batch_size]]
            batch = self.tokenizer([p[0] for p in part], [p[1] for p in part], padding=True, return_tensors="pt")
            with torch.inference_mode():
                logits = self.classifier(**batch.to(self.classifier.device)).logits
            p = logits.to("cpu", torch.float32).softmax(-1)[:, self.columns].clone()
            if not bool(torch.isfinite(p).all()):
                raise ValueError(
                    f"{self.name} gives NaN for a pair: its weights are damaged or its dtype is too narrow"
                )
            found |= dict(zip(part, p))
        return found


def load_nli(folder: str | os.PathLike[str]) -> NLIModel:
    """A transformers sequence classifier with the labels entailment, neutral and contradiction.

    Args:
        folder: with config.json, safetensors and a tokenizer, for example a DeBERTa that was trained on MNLI. No code of the
            folder runs, and pickled weights are refused.

    Raises:
        ValueError: no such folder, one that transformers cannot read so, or other labels.
        ImportError: transformers is not installed (`pip install 'interp-workbench[hf]'`).
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json: pass the folder of a transformers sequence classifier")
    config = artifact.read_json(path / "config.json")
    if not any("ForSequenceClassification" in str(name) for name in config.get("architectures") or []):
        # transformers would draw a new head at random, and only log it.
        raise ValueError(
            f"{path} holds {config.get('architectures')}, no sequence classifier: its answers would come from a random head"
        )
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer  # costs seconds, for few ask for it
    except ImportError as error:
        raise ImportError("load_nli needs transformers: pip install 'interp-workbench[hf]'") from error
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        classifier: Any = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True, **options)
    except (OSError, ValueError, ImportError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"transformers cannot read {path} as a sequence classifier ({first})") from None
    return NLIModel(classifier.eval(), tokenizer, path.resolve().name)


def _columns(config: Any, name: str) -> list[int]:
    """Places of entailment, neutral and contradiction among the classifier's labels."""
    places: dict[str, list[int]] = {}
    for place, label in dict(config.id2label).items():
        places.setdefault(str(label).strip().casefold(), []).append(int(place))
    if set(places) != set(LABELS) or any(len(found) > 1 for found in places.values()):
        raise ValueError(
            f"{name} has the labels {', '.join(map(str, dict(config.id2label).values()))}; needed are "
            f"{', '.join(LABELS)}, each once. If you know which is which, write them as id2label into its config.json"
        )
    return [places[label][0] for label in LABELS]
