"""Steering: decoding against our own without, and a sweep over strengths against the steering-vectors package.

- decoding: tokens a second with a vector applied at every token, over those of the unsteered model. Greedy, no stop.
- sweep: logits after the last token of 64 prompts at 9 strengths, 0 among them, the stream after a middle block steered. A
  figure is the whole job. Ours runs the blocks before the vector once; the peer has no way to. Both in fp32, in the same
  batches, on as many threads, each contestant once a round, and both must give the same logits.

The peer needs transformers below 5 and runs in a process of its own (see `steering_peer.py`), which waits while we run:

    python -m venv peer && peer/bin/pip install 'steering-vectors==0.12.*' torch
    python benchmarks/steering.py --peer-python peer/bin/python                                  # 5 minutes on two cores
    python benchmarks/steering.py --peer-python peer/bin/python --rounds 2 --prompts 16          # to try it: a minute
    python benchmarks/steering.py --only decoding                                                # needs no peer
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peers
import torch
from measure import alternate, ratio, report
from safetensors.torch import load_file, save_file
from torch import Tensor

import interp
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.steering import steering_vector
from interp.steering.formats import from_steering_vectors
from interp.steering.vectors import SteeringVectors

SITE, LAYER = "resid_post:15", 15
STRENGTHS = torch.linspace(-0.2, 0.2, 9)
"""In typical norms; the middle one is 0."""
PROMPT, NEW = "Once upon a time there was a small town", 48


def main() -> None:
    """Both cases, or what the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64, help="of the sweep")
    parser.add_argument("--batch-size", type=int, default=16, help="of the sweep")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has steering-vectors")
    parser.add_argument("--only", choices=("decoding", "sweep"))
    options = parser.parse_args()
    model = interp.load("smollm2-135m")
    rows = []
    if options.only != "sweep":
        rows += [decoding_row(model, n_rows, options.rounds) for n_rows in (1, 8)]
    if options.only != "decoding":
        rows.append(sweep_row(model, options))
    report("steering", rows)


# ---------------------------------------------------------------------------------------------------------- decoding


def decoding_row(model: HookedTransformer, n_rows: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of `n_rows` prompts at once, with and without the vector."""
    vector = steering_vector(interp.load_pairs("sentiment"), model=model, site=SITE)

    def plain() -> list[Any]:
        return list(model.generate([PROMPT] * n_rows, NEW, stop_at_eos=False).tokens)

    def steered() -> list[Any]:
        with model.intervene(Steer(vector, 0.1)):
            return plain()

    before, after = plain(), steered()
    assert before != after, "the vector changed nothing"
    assert all(len(row) == NEW for row in before + after)
    seconds = alternate({"steered": steered, "unsteered": plain}, rounds)
    speeds = {f"{name}_tokens_per_s": n_rows * NEW / statistics.median(values) for name, values in seconds.items()}
    return {
        "case": f"steered decoding, {n_rows} prompts, {NEW} tokens", **speeds,
        "steered_over_unsteered": ratio(seconds, "steered", "unsteered"), "rounds": rounds,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- sweep


@dataclass(frozen=True, eq=False)
class Job:
    """What both contestants are given."""

    prompts: list[str]
    """Texts, shortest first."""
    ids: Tensor
    """[prompt pos], right-padded, shortest prompts first."""
    lengths: Tensor
    """Tokens of each prompt."""
    row: Tensor
    """[d_model] What multiplier 1 adds: one typical norm along a fitted direction."""
    batch_size: int


def job_of(model: HookedTransformer, n_prompts: int, batch_size: int) -> Job:
    """Questions of the bundled set, spread over all its topics."""
    questions = interp.load_questions("questions")
    assert len(questions) >= n_prompts, f"there are {len(questions)} questions"
    chosen = questions[:: len(questions) // n_prompts][:n_prompts]
    assert model.tokenizer is not None
    prompts = sorted((each.prompt for each in chosen), key=lambda prompt: len(model.tokenizer.encode(prompt)))  # pyright: ignore[reportOptionalMemberAccess]
    rows = [model.tokenizer.encode(prompt) for prompt in prompts]
    width = len(rows[-1])
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    vector = steering_vector(interp.load_pairs("sentiment"), model=model, site=SITE)
    return Job(
        prompts, ids, torch.tensor([len(row) for row in rows]), vector.direction * vector.typical_norm, batch_size
    )


def our_sweep(model: HookedTransformer, vectors: SteeringVectors, job: Job) -> Tensor:
    """Logits [strength prompt d_vocab]."""
    return interp.steered_logits(model, vectors, job.prompts, STRENGTHS.tolist(), unit="raw", batch_size=job.batch_size)


class Peer:
    """The other process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout
        self.versions = self._answer()

    def tell(self, command: str) -> None:
        """Say a command and wait until it is carried out."""
        self._to.write(command + "\n")
        self._to.flush()
        self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._from.readline()
        assert line, (
            "the peer ended; what it said is above. Give --peer-python an environment that has steering-vectors"
        )
        return json.loads(line)


@contextmanager
def peer_process(python: str, job: Job, folder: Path) -> Iterator[Peer]:
    """The peer with the model and the job loaded."""
    path = folder / "job.safetensors"
    save_file({"ids": job.ids, "lengths": job.lengths, "vector": job.row, "multipliers": STRENGTHS}, path)
    arguments = [str(peers.folder()), str(path), str(LAYER), str(job.batch_size), str(torch.get_num_threads())]
    script = str(Path(__file__).with_name("steering_peer.py"))
    with subprocess.Popen(
        [python, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends with its input


def sweep_row(model: HookedTransformer, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of both, the ratio, and how far their logits are apart."""
    job = job_of(model, options.prompts, options.batch_size)
    reference = [example.prompt for example in interp.load_questions("questions")[:16]]
    vectors = from_steering_vectors({LAYER: job.row}, model, reference=reference)
    found: dict[str, Tensor] = {}

    def ours() -> None:
        found["ours"] = our_sweep(model, vectors, job)

    with tempfile.TemporaryDirectory() as name, peer_process(options.peer_python, job, Path(name)) as peer:
        seconds = alternate({"ours": ours, "steering_vectors": lambda: peer.tell("run")}, options.rounds)
        peer.tell(f"save {name}/logits.safetensors")
        theirs = load_file(f"{name}/logits.safetensors")["logits"]
    apart = float((found["ours"] - theirs).abs().max())
    changed = float((theirs - theirs[len(STRENGTHS) // 2]).abs().amax((1, 2)).topk(len(STRENGTHS) - 1).values.min())
    assert apart < 1e-3 < changed, f"the logits are {apart} apart, and steering changed them by {changed}"
    return {
        "case": f"sweep of {len(STRENGTHS)} strengths over {len(job.ids)} prompts",
        "tokens": f"{int(job.lengths.min())} to {int(job.lengths.max())}", "batch_size": job.batch_size,
        **{f"{name}_s": statistics.median(values) for name, values in seconds.items()},
        "steering_vectors_over_ours": ratio(seconds, "ours", "steering_vectors"), "rounds": options.rounds,
        "largest_difference": apart, "peer": peer.versions,
    }  # fmt: skip


if __name__ == "__main__":
    main()
