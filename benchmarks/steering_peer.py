"""The steering-vectors package as a contestant of `steering.py`: a process of its own, told to run by a line each.

It needs transformers below 5, which this library's `hf` extra does not take, so that it lives in an environment of its own
(`python -m venv peer; peer/bin/pip install 'steering-vectors==0.12.*' torch`) and imports nothing of `interp`.

1. It loads the model's Hugging Face folder and the job: token ids of the prompts, and the vector as a tensor.
2. A line `run` runs the whole sweep; a line `save PATH` writes the logits of the last sweep. Each is answered by a line.

What its user can choose is chosen for speed: `inference_mode`, sdpa attention, no KV cache, logits of the last tokens alone.
Padding stands on the right, so that attention needs no mask; that is a little faster than pads on the left with
`logits_to_keep=1`, and gives the same.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file, save_file
from steering_vectors import SteeringVector  # pyright: ignore[reportMissingImports]
from torch import Tensor


class Sweep:
    """All prompts at every multiplier; `logits` [multiplier prompt d_vocab] of each prompt's last token."""

    def __init__(self, model_folder: str, job: dict[str, Tensor], layer: int, batch_size: int) -> None:
        config = transformers.AutoConfig.from_pretrained(model_folder)
        config.rope_theta = config.rope_parameters["rope_theta"]  # transformers 4 does not look where 5 writes it
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model_folder, config=config, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.vector = SteeringVector({layer: job["vector"]}, "decoder_block")
        self.ids, self.lengths, self.multipliers = job["ids"], job["lengths"], job["multipliers"].tolist()
        self.batch_size = batch_size
        self.logits = torch.empty(0)

    def batches(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, ids right-padded to the longest of the batch, and the place of each last token."""
        for start in range(0, len(self.ids), self.batch_size):
            rows = slice(start, start + self.batch_size)
            lengths = self.lengths[rows]
            yield rows, self.ids[rows, : int(lengths.max())], lengths - 1

    @torch.inference_mode()
    def run(self) -> None:
        """One sweep."""
        found = []
        for multiplier in self.multipliers:
            with self.vector.apply(self.model, multiplier=multiplier):
                found.append(torch.cat([self.last_logits(ids, last) for _, ids, last in self.batches()]))
        self.logits = torch.stack(found)

    def last_logits(self, ids: Tensor, last: Tensor) -> Tensor:
        """Logits after each row's last token. No mask: in a causal model no real token sees the padding behind it."""
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden[torch.arange(len(ids)), last])


def main() -> None:
    """`steering_peer.py MODEL_FOLDER JOB.safetensors LAYER BATCH_SIZE THREADS`."""
    folder, job, layer, batch_size, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    sweep = Sweep(folder, load_file(job), int(layer), int(batch_size))
    answer({"transformers": transformers.__version__, "torch": str(torch.__version__)})
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        if command == "run":
            sweep.run()
        else:
            assert command == "save", f"unknown command {command!r}"
            save_file({"logits": sweep.logits}, Path(path))
        answer({"done": command})


def answer(value: dict[str, Any]) -> None:
    """A line of JSON."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
