"""Two processes that train together make the steps of one process with their joint batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from interp.sae import SAEConfig, load_sae, train_sae
from interp.sae.rows import training_rows

CHOICES = {"k": 3, "width": 32, "lr": 2e-3, "batch_size": 128, "epochs": 2, "dead_window": 300, "checkpoint_every": 3}
SCRIPT = """
import json
import os
import sys
import torch
from safetensors.torch import load_file
from interp.sae import SAEConfig, train_sae

folder, stop = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)


def progress(done, total):
    if done == stop:
        sys.exit(7)


choices = json.loads(sys.argv[3])
rows = load_file(f"{folder}/rows.safetensors")["rows"]
sae = train_sae(rows, SAEConfig(**choices), checkpoint=f"{folder}/run.safetensors", log=f"{folder}/log.jsonl",
                progress=progress)
if torch.distributed.is_initialized():
    raise SystemExit("the processes are still joined")
sae.save(f"{folder}/sae-{os.environ['RANK']}.safetensors")
"""


def run(folder: Path, stop: int) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder / "train.py"), str(folder), str(stop), json.dumps(CHOICES)],
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode


@pytest.mark.slow
def test_two_processes_equal_one_with_their_joint_batches(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1024, 24, generator=generator) @ torch.randn(24, 16, generator=generator) + 2
    save_file({"rows": rows}, tmp_path / "rows.safetensors")
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(tmp_path, stop=5) != 0  # both stop in the middle
    assert run(tmp_path, stop=-1) == 0
    parts = [training_rows(rows, SAEConfig(**CHOICES), rank=rank, world_size=2).batches for rank in (0, 1)]
    joint = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    whole = train_sae(joint, SAEConfig(**CHOICES))
    together = [load_sae(tmp_path / f"sae-{rank}.safetensors") for rank in (0, 1)]
    for name, value in whole.state_dict().items():
        assert torch.equal(together[0].state_dict()[name], together[1].state_dict()[name]), name
        torch.testing.assert_close(together[0].state_dict()[name], value, atol=2e-4, rtol=2e-3)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 0
