"""Sampling answers: 10 to each of 64 questions against transformers' generate, in fp32, on as many threads.

- calls: a loop of single generate calls, 10 a prompt. It is slow, so it has every eighth prompt in a round; the ratio is that
  of seconds a prompt. Every prompt takes about as long, since all have 11 to 19 tokens.
- num_return_sequences: one call a prompt, on all prompts, or on every n-th with --every n.

At most 8 new tokens, temperature 1, nothing cut, and on both sides an answer ends at end-of-text or with a token that holds
a newline. Draws differ, so what is compared is: transformers' log-probability of every answer that we drew for the prompts
of `calls`, its end included, must be ours within 1e-3, and the greedy answers must be equal. An answer's length is random on
both sides; the mean lengths are printed. One prompt's answers take one batch in the loop, so the gain is of sharing:
prefills, batches across prompts, and rows that leave the batch once they have ended.

    python benchmarks/uncertainty.py                             # 5 rounds: 20 minutes on two cores
    python benchmarks/uncertainty.py --rounds 2 --every 8        # to try it
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from measure import alternate, report
from peers import reference

import interp
from interp.model import HookedTransformer
from interp.uncertainty.samples import AnswerSamples, sample_answers

N, NEW, PROMPTS = 10, 8, 64


def main() -> None:
    """A row for each peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=1, help="num_return_sequences has every n-th prompt")
    parser.add_argument("--singles-every", type=int, default=8, help="the loop of single calls has every n-th prompt")
    parser.add_argument("--batch-rows", type=int, default=320, help="ours: answers decoded together")
    options = parser.parse_args()
    model = interp.load("smollm2-135m")
    questions = interp.load_questions("questions")
    prompts = [question.prompt for question in questions[:: len(questions) // PROMPTS][:PROMPTS]]
    assert len(prompts) == PROMPTS
    peer = Peer.of(model)

    def ours() -> AnswerSamples:
        return sample_answers(model, prompts, N, max_new_tokens=NEW, greedy=False, batch_rows=options.batch_rows)

    singles, several = prompts[:: options.singles_every], prompts[:: options.every]
    apart = largest_difference(model, peer, prompts, ours(), range(0, PROMPTS, options.singles_every))
    lengths: dict[str, list[int]] = {"calls": [], "num_return_sequences": []}

    def run(name: str, texts: Sequence[str], n_calls: int, n: int) -> Callable[[], None]:
        def peers_turn() -> None:
            for text in texts:
                for _ in range(n_calls):
                    lengths[name] += [len(row) for row in peer.sampled(text, n)]

        return peers_turn

    contestants = {
        "ours": ours,
        "calls": run("calls", singles, N, 1),
        "num_return_sequences": run("num_return_sequences", several, 1, N),
    }
    seconds = alternate(contestants, options.rounds)
    n_prompts = {"ours": PROMPTS, "calls": len(singles), "num_return_sequences": len(several)}
    each = {name: [s / n_prompts[name] for s in values] for name, values in seconds.items()}
    drawn = ours().rows
    rows = []
    for name in ("calls", "num_return_sequences"):
        ratios = [theirs / own for own, theirs in zip(each["ours"], each[name], strict=True)]
        rows.append({
            "case": f"{N} samples for each of {PROMPTS} prompts against {name}", "peer_prompts": n_prompts[name],
            "ours_s_a_prompt": statistics.median(each["ours"]), "peer_s_a_prompt": statistics.median(each[name]),
            "peer_over_ours": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
            "our_mean_tokens": statistics.mean((drawn["n_tokens"] + drawn["n_end"]).tolist()),
            "peer_mean_tokens": statistics.mean(lengths[name]), "batch_rows": options.batch_rows,
            "rounds": options.rounds, "largest_logprob_difference": apart,
        })  # fmt: skip
    report("uncertainty", rows)


@dataclass(frozen=True)
class Peer:
    """transformers' model and how it is asked."""

    model: Any
    tokenizer: Any
    ends: list[int]
    """End-of-text and every token that holds a newline."""

    @classmethod
    def of(cls, ours: HookedTransformer) -> "Peer":
        """The same weights and the same ends."""
        tokenizer = ours.tokenizer
        assert tokenizer is not None
        newlines = [i for i in range(ours.cfg.d_vocab) if b"\n" in tokenizer.token_bytes(i)]
        assert tokenizer.eos_id is not None
        return cls(reference(torch.float32), tokenizer, sorted({tokenizer.eos_id, *newlines}))

    def sampled(self, prompt: str, n: int) -> list[list[int]]:
        """New token ids of n answers, their end included."""
        return self._made(prompt, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=n)

    def greedy(self, prompt: str) -> list[int]:
        """New token ids of the greedy answer, its end included."""
        return self._made(prompt, do_sample=False)[0]

    def _made(self, prompt: str, **options: Any) -> list[list[int]]:
        ids = torch.tensor([self.tokenizer.encode(prompt)])
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, eos_token_id=self.ends, pad_token_id=0, **options
            )  # fmt: skip
        return [self._until_end(row) for row in out[:, ids.shape[1] :].tolist()]

    def _until_end(self, row: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(row) if token in self.ends), len(row) - 1)
        return row[: end + 1]

    def logprob(self, prompt: str, ids: list[int]) -> float:
        """Of these tokens after the prompt, in nats."""
        before = self.tokenizer.encode(prompt)
        with torch.inference_mode():
            logp = self.model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1].double().log_softmax(-1)
        return float(logp.gather(-1, torch.tensor(ids)[:, None]).sum())


def largest_difference(
    model: HookedTransformer, peer: Peer, prompts: Sequence[str], drawn: AnswerSamples, places: Sequence[int]
) -> float:
    """Of log-probabilities of our answers, ours against transformers'; greedy answers must be equal."""
    greedy = sample_answers(model, [prompts[place] for place in places], 1, max_new_tokens=NEW)
    apart = 0.0
    for index, place in enumerate(places):
        ours, theirs = greedy.token_ids(index, -1, end=True), peer.greedy(prompts[place])
        assert ours == theirs, f"the greedy answers to prompt {place} differ: {ours} and {theirs}"
        own = drawn.logprobs(place)
        for number in range(N):
            ids = drawn.token_ids(place, number, end=True)
            apart = max(apart, abs(peer.logprob(prompts[place], ids) - float(own[number])))
    assert apart < 1e-3, f"log-probabilities differ by {apart}"
    return apart


if __name__ == "__main__":
    main()
