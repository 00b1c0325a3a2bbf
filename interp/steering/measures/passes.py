"""Measures that read a teacher-forced pass: preferences between continuations, next tokens, what a probe says."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from interp import artifact
from interp.dataset import ContrastPair
from interp.model.inputs import refuse_encoder
from interp.probe.value import Probe
from interp.steering.contrast import encode_responses
from interp.steering.measures.base import Setup, Values, own_prompts, prompt_ids
from interp.steering.runner import Sheet, last_logprobs, response_logprobs

PREFERENCE = "preference"
"""Name of the measure that an experiment's own pairs make."""
KINDS = ("logit", "log_odds", "log_probability", "probability")


@dataclass(frozen=True)
class PairPreference:
    """log p(positive | prompt) - log p(negative | prompt) of contrast pairs, summed over the responses' tokens.

    The pairs must not be those that the vector was fitted on, nor share their words.
    """

    pairs: Any
    """ContrastPairs."""
    name: str = PREFERENCE
    """In the report."""
    unit: str = "nats"
    """Of a value."""
    reads_text: bool = False
    """It reads log-probabilities."""

    def __post_init__(self) -> None:
        if not len(self.pairs) or not all(isinstance(pair, ContrastPair) for pair in self.pairs):
            raise ValueError("PairPreference needs contrast pairs: interp.load_pairs(...), or a list of ContrastPair")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:  # noqa: ARG002 (the pairs' own)
        """(prompt, group) of each pair."""
        return [(pair.prompt, pair.group) for pair in self.pairs]

    def prepare(self, setup: Setup) -> "_Preference":
        """Run the pairs once."""
        return _Preference(preference_sheet(setup, self.pairs, [setup.layer]), setup.layer)

    def describe(self) -> dict[str, Any]:
        """As JSON; `measure_of` makes it again."""
        pairs = [[pair.prompt, pair.positive, pair.negative, pair.group] for pair in self.pairs]
        return {"measure": "pair_preference", "name": self.name, "pairs": pairs}


@dataclass(frozen=True, eq=False)
class _Preference:
    sheet: Sheet
    layer: int

    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:  # noqa: ARG002
        return preferences(self.sheet, self.layer, interventions)


def preference_sheet(setup: Setup, pairs: Sequence[ContrastPair], layers: Sequence[int]) -> Sheet:
    """Both sides of the pairs, after a run without interventions: first all positive, then all negative ones."""
    model = setup.model
    refuse_encoder(model.cfg, "a preference between continuations")
    prompts = [setup.frame(pair.prompt) for pair in pairs] * 2
    responses = [pair.positive for pair in pairs] + [pair.negative for pair in pairs]
    tokens, before = encode_responses(model, prompts, responses)
    ids = [row[mask].tolist() for row, mask in zip(tokens.ids, tokens.mask)]
    short = [index for index, each in enumerate(ids) if len(each) < 2]
    if short:
        raise ValueError(f"{responses[short[0]]!r} is a single token without a prompt: nothing predicts it")
    # Without a prompt the first token is given, not predicted.
    return Sheet(model, ids, before.clamp(min=1).tolist(), layers, setup.batch_size)


def preferences(sheet: Sheet, layer: int, interventions: Sequence[Any]) -> Values:
    """log p(positive | prompt) - log p(negative | prompt) of each pair of a `preference_sheet`."""
    positive, negative = np.split(response_logprobs(sheet, layer, interventions), 2)
    return positive - negative


@dataclass(frozen=True)
class TargetTokens:
    """How much the model holds by some tokens as the next one after each prompt.

    `logit`: mean logit of the tokens (minus that of `against`; logits are centred over the vocabulary where there is none);
    `log_probability`, `probability`: of any of them; `log_odds`: their probability p as log p/(1 - p), or against the
    probability of `against`.
    """

    tokens: Any
    """Texts of one token each, with their space: " good"."""
    against: Any = ()
    """The same for what they are measured against."""
    kind: str = "log_odds"
    """One of `logit`, `log_odds`, `log_probability`, `probability`."""
    prompts: Any = None
    """Texts; None for those of the experiment."""
    name: str = "target tokens"
    """In the report."""
    reads_text: bool = False
    """It reads logits."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if not self._of(self.tokens):
            raise ValueError("TargetTokens needs at least one token, such as ' good'")
        for side in (self._of(self.tokens), self._of(self.against)):
            twice = [token for token in side if side.count(token) > 1]
            if twice:
                raise ValueError(f"{twice[0]!r} is named twice: its probability would count twice")
        both = set(self._of(self.tokens)) & set(self._of(self.against))
        if both:
            raise ValueError(f"{sorted(both)[0]!r} stands on both sides: a token cannot be measured against itself")
        if self._of(self.against) and self.kind in ("log_probability", "probability"):
            raise ValueError(f"kind={self.kind!r} is of the tokens alone; against= goes with logit or log_odds")

    @staticmethod
    def _of(tokens: Any) -> list[str]:
        return [tokens] if isinstance(tokens, str) else [str(each) for each in tokens]

    @property
    def unit(self) -> str:
        """Of a value."""
        return {"probability": "probability", "logit": "logits"}.get(self.kind, "nats")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:
        """(prompt, None) of each prompt."""
        return [(prompt, None) for prompt in own_prompts(self.prompts, prompts)]

    def prepare(self, setup: Setup) -> "_Targets":
        """Run the prompts once."""
        prompts = [setup.frame(prompt) for prompt in own_prompts(self.prompts, setup.prompts)]
        ids = prompt_ids(setup.model, prompts)
        sides = [[setup.model.to_single_token(each) for each in self._of(side)] for side in (self.tokens, self.against)]
        sheet = Sheet(setup.model, ids, list(map(len, ids)), [setup.layer], setup.batch_size)
        return _Targets(sheet, setup.layer, self.kind, *(torch.tensor(side, dtype=torch.long) for side in sides))

    def describe(self) -> dict[str, Any]:
        """As JSON; `measure_of` makes it again."""
        prompts = None if self.prompts is None else own_prompts(self.prompts, ())
        sides = {"tokens": self._of(self.tokens), "against": self._of(self.against)}
        return {"measure": "target_tokens", "name": self.name, "kind": self.kind, "prompts": prompts, **sides}


@dataclass(frozen=True, eq=False)
class _Targets:
    sheet: Sheet
    layer: int
    kind: str
    tokens: Tensor
    against: Tensor

    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:  # noqa: ARG002
        found = np.zeros(self.sheet.n)
        for rows, logp in last_logprobs(self.sheet, self.layer, interventions):
            found[rows] = self._values(logp.double()).cpu().numpy()
        return found

    def _values(self, logp: Float64[Tensor, "read d_vocab"]) -> Float64[Tensor, " read"]:
        own = logp[:, self.tokens]
        if self.kind == "logit":
            other = logp[:, self.against] if len(self.against) else logp
            return own.mean(1) - other.mean(1)
        whole = own.logsumexp(1)
        if self.kind == "log_odds":
            others = logp[:, self.against] if len(self.against) else logp.index_fill(1, self.tokens, -torch.inf)
            rest = others.logsumexp(1)
            return whole - rest
        return whole if self.kind == "log_probability" else whole.exp()


@dataclass(frozen=True, eq=False)
class ProbeScore:
    """What a probe reads at each prompt's last token, as log-odds: has the steering changed what the model represents?

    A probe before the first steered layer cannot see it and is refused; one at the steered site sees the push itself.
    """

    probe: Any
    """A `Probe` that reads a site of single tokens."""
    prompts: Any = None
    """Texts; None for those of the experiment."""
    name: str = "probe"
    """In the report."""
    unit: str = "log-odds"
    """Of a value."""
    reads_text: bool = False
    """It reads activations."""

    def __post_init__(self) -> None:
        if not isinstance(self.probe, Probe):
            raise ValueError(f"ProbeScore takes a probe, got {type(self.probe).__name__}: see fit_probe and load_probe")
        if self.probe.site is None:
            raise ValueError("this probe does not know the site that it reads: fit it with site=")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:
        """(prompt, None) of each prompt."""
        return [(prompt, None) for prompt in own_prompts(self.prompts, prompts)]

    def prepare(self, setup: Setup) -> "_Probed":
        """Find the probe's place.

        Raises:
            ValueError: a probe of another model, or one that reads before the steered layer.
        """
        self.probe.check_model(setup.model)
        names = setup.model.expand_sites(self.probe.site)
        from_layer = setup.model.hook_dict[names[0]].layer()
        if from_layer < setup.layer:
            raise ValueError(
                f"the probe reads layer {from_layer}, and the steering begins at layer {setup.layer}: it cannot see it. Take a "
                "probe of a later layer"
            )
        ids = prompt_ids(setup.model, [setup.frame(prompt) for prompt in own_prompts(self.prompts, setup.prompts)])
        sheet = Sheet(setup.model, ids, list(map(len, ids)), [setup.layer], setup.batch_size)
        return _Probed(sheet, setup.layer, self.probe, names[0])

    def describe(self) -> dict[str, Any]:
        """As JSON. The probe itself is not in it, but its hash: `measure_of` needs the probe."""
        prompts = None if self.prompts is None else own_prompts(self.prompts, ())
        about = {"site": self.probe.site, "kind": self.probe.kind, "hash": probe_hash(self.probe)}
        return {"measure": "probe", "name": self.name, "prompts": prompts, **about}


def probe_hash(probe: Probe) -> str:
    """Of everything that decides what it reads."""
    known = {
        each.name: getattr(probe, each.name)
        for each in dataclasses.fields(probe)
        if each.name not in ("card", "tensors")
    }
    plain = {name: value.tolist() if isinstance(value, Tensor) else str(value) for name, value in known.items()}
    return artifact.hash_json([plain, {name: value.tolist() for name, value in probe.tensors.items()}])


@dataclass(frozen=True, eq=False)
class _Probed:
    sheet: Sheet
    layer: int
    probe: Probe
    site: str

    @torch.inference_mode()
    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:  # noqa: ARG002
        model, found = self.sheet.model, np.zeros(self.sheet.n)
        stop = model.hook_dict[self.site].layer() + 1
        with model.intervene(*interventions):
            for batch in self.sheet.batches:
                lengths = batch.prompt_len
                options = {"stop_at_layer": stop, "prompt_len": lengths}
                if self.layer == 0:
                    _, cache = model.run_with_cache(batch.tokens, self.site, **options)
                else:
                    stream, tokens = batch.streams[self.layer], batch.tokens
                    _, cache = model.run_with_cache(
                        stream, self.site, start_at_layer=self.layer, tokens=tokens, **options
                    )
                rows = cache[self.site][torch.arange(len(lengths), device=lengths.device), lengths - 1]
                rows = rows if self.probe.head is None else rows[:, self.probe.head]
                scores = torch.as_tensor(self.probe.score(rows.flatten(1)))
                found[batch.texts] = scores.double().cpu().numpy()
        return found
