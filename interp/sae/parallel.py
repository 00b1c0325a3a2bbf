"""Several processes that train one dictionary together, each on its own rows.

`torchrun --nproc-per-node 2 -m interp sae train ...` starts them. Gradients and figures are averaged, and a latent has fired
when it fired anywhere, so every process makes the same step. For TopK, gated and standard dictionaries it is the step of
one process with the joint batch. Elsewhere a process looks at its own rows first: BatchTopK and Matryoshka choose the
largest of each process' rows, the L0 of JumpReLU's penalty and the variance in AuxK are those of each process' rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Peers:
    """The processes of a run; alone by default."""

    rank: int = 0
    world_size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in place."""
        if self.world_size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.world_size
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))

    def any_(self, flags: Tensor) -> None:
        """Replace flags by whether they are set in any process, in place."""
        if self.world_size == 1:
            return
        counts = flags.to(torch.int32)
        distributed.all_reduce(counts)
        flags.copy_(counts > 0)

    def agree(self, asked: bool) -> bool:
        """Whether any process is asked to stop. All leave at the same step, or one would wait for the others forever."""
        flag = torch.tensor([asked])
        self.any_(flag)
        return bool(flag)

    def wait(self) -> None:
        """Go on when all processes have come here."""
        if self.world_size > 1:
            distributed.barrier()


@contextmanager
def peers() -> Iterator[Peers]:
    """The processes that `torchrun` started, or this one alone. Joins them, and leaves them at the end."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Peers()
        return
    joins = not distributed.is_initialized()
    if joins:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Peers(distributed.get_rank(), distributed.get_world_size())
    finally:
        if joins:
            distributed.destroy_process_group()
