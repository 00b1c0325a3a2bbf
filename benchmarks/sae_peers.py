"""Sparse autoencoders of SAELens and dictionary_learning: their own training loops on our batches, read back as our value.

dictionary_learning pins an old nnsight, which its trainers do not need; the benchmarks' environment takes it with
`pip install --no-deps dictionary-learning==0.1.0`. Without it, its rows are left out, and the script says so.
"""

import contextlib
import io
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import torch
from sae_lens.config import SAETrainerConfig  # pyright: ignore[reportMissingImports]
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig  # pyright: ignore[reportMissingImports]
from sae_lens.saes.jumprelu_sae import JumpReLUTrainingSAE, JumpReLUTrainingSAEConfig  # pyright: ignore[reportMissingImports]
from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig  # pyright: ignore[reportMissingImports]
from sae_lens.training.sae_trainer import SAETrainer  # pyright: ignore[reportMissingImports]
from torch import Tensor

from interp.sae import SAE
from interp.sae.config import BatchTopKConfig, JumpReLUConfig, SAEConfig, TopKConfig
from interp.sae.step import TrainState

NEVER = 10**9
"""A dead window that no run is long enough for: AuxK is then never computed."""


# --------------------------------------------------------------------------------------------------------- SAELens


class Timed:
    """Batches without an end for a trainer; keeps when each was asked for."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.asked: list[float] = []
        self._batches = _again_and_again(batches)

    def __iter__(self) -> "Timed":
        return self

    def __next__(self) -> Tensor:
        self.asked.append(time.perf_counter())
        return next(self._batches)


def saelens_twin(
    config: SAEConfig,
    state: TrainState,
    batches: Iterable[Tensor],
    n_steps: int,
    *,
    aux: bool = False,
    sparse: bool = False,
) -> SAETrainer[Any, Any]:
    """SAELens' trainer for what `train_sae` does with `config`, begun with the parameters of `state`.

    Its defaults stay where the two do not share a choice: decoder norms are free and multiplied into the activations
    (`rescale_acts_by_decoder_norm`), the loss is summed over dimensions, so that its clipping at 1 is one at 1 / d of ours.
    """
    n_latents, d = state.W_dec.shape
    common: dict[str, Any] = {"d_in": d, "d_sae": n_latents, "dtype": "float32", "device": "cpu"}
    sae: Any
    if isinstance(config, JumpReLUConfig):
        assert config.l0_coefficient is not None, "the penalty that both have is the one of L0 itself"
        chosen = JumpReLUTrainingSAEConfig(
            **common,
            jumprelu_init_threshold=config.initial_threshold,
            jumprelu_bandwidth=config.bandwidth,
            l0_coefficient=config.l0_coefficient * d,
        )
        sae = JumpReLUTrainingSAE(chosen)
    elif isinstance(config, BatchTopKConfig):
        sae = BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(**common, k=config.k))
    else:
        assert isinstance(config, TopKConfig)
        # On a CPU its sparse form has no backward pass through the product with the norms.
        forms: dict[str, Any] = {"use_sparse_activations": sparse, "rescale_acts_by_decoder_norm": not sparse}
        sae = TopKTrainingSAE(TopKTrainingSAEConfig(**common, k=config.k, **forms))
    with torch.no_grad():
        sae.W_dec.copy_(state.W_dec)
        sae.W_enc.copy_(state.encoder.T)
        sae.b_enc.copy_(state.b_enc)
        sae.b_dec.copy_(state.b_dec)
    return _saelens_trainer(
        sae, batches, n_steps, config.batch_size, config.peak_lr(n_latents, n_steps), 1000 if aux else NEVER
    )


def _saelens_trainer(
    sae: Any, batches: Iterable[Tensor], n_steps: int, batch_size: int, lr: float, dead_window: int, decay: float = 0.0
) -> SAETrainer[Any, Any]:
    cfg = SAETrainerConfig(
        total_training_samples=n_steps * batch_size,
        train_batch_size_samples=batch_size,
        lr=lr,
        lr_end=lr / 10,
        lr_decay_steps=round(decay * n_steps),
        dead_feature_window=dead_window,
        n_batches_for_norm_estimate=100,
    )
    return SAETrainer(cfg=cfg, sae=sae, data_provider=Timed(batches))


def saelens_fit(trainer: SAETrainer[Any, Any]) -> float:
    """Run the trainer's own loop. Seconds of a step, without the first one."""
    asked = trainer.data_provider.asked  # pyright: ignore[reportAttributeAccessIssue]
    with quiet():
        trainer.fit()
    done = time.perf_counter()
    return (done - asked[1]) / (len(asked) - 1)


def saelens_topk(batches: Iterable[Tensor], n_steps: int, *, k: int, n_latents: int, lr: float, seed: int) -> SAE:
    """A TopK SAE by SAELens' recipe.

    Its defaults: Adam (0.9, 0.999), clipping at 1, AuxK of weight 1 after 1,000 steps without firing, decoder rows that
    begin with norm 0.1 and are free, the encoder tied at the start, biases 0. With what its tutorial adds: rows scaled to
    mean norm sqrt(d) (`expected_average_only_in`), and a decay over the last fifth.
    """
    torch.manual_seed(seed)
    first = next(iter(batches))
    cfg = TopKTrainingSAEConfig(
        d_in=first.shape[1], d_sae=n_latents, k=k, normalize_activations="expected_average_only_in", device="cpu"
    )
    trainer = _saelens_trainer(TopKTrainingSAE(cfg), batches, n_steps, len(first), lr, 1000, decay=0.2)
    saelens_fit(trainer)
    theirs = trainer.sae
    weights = dict(theirs.state_dict())
    theirs.process_state_dict_for_saving_inference(weights)  # as it is saved: decoder norms go into the encoder
    ours = SAE(weights["W_enc"], weights["b_enc"], weights["W_dec"], weights["b_dec"], k=k)
    with torch.no_grad():
        return _checked(ours, first, theirs(first))


# --------------------------------------------------------------------------------------------- dictionary_learning


def has_dictionary_learning() -> bool:
    """Whether it is installed."""
    return find_spec("dictionary_learning") is not None


def dictionary_learning_topk(
    batches: Iterable[Tensor], n_steps: int, *, k: int, n_latents: int, lr: float | None, seed: int
) -> SAE:
    """A TopK SAE by dictionary_learning's recipe, trained by its `trainSAE`.

    Its defaults: lr 2e-4 / sqrt(F / 2^14) (unless one is given), Adam (0.9, 0.999), clipping at 1, decoder rows of unit
    norm with projected gradients, the encoder tied at the start, b_dec from the geometric median of the first batch, AuxK
    of weight 1/32 and k_aux d / 2 for latents that did not fire for 10M rows. With what its demo adds: rows scaled to a
    mean square norm of 1, warm-up over 1,000 steps, or 5 % of a run that is shorter than 20,000, decay over the last fifth.
    """
    from dictionary_learning.trainers.top_k import TopKTrainer  # pyright: ignore[reportMissingImports]
    from dictionary_learning.training import trainSAE  # pyright: ignore[reportMissingImports]

    made: list[Any] = []

    def trainer(**options: Any) -> Any:
        made.append(TopKTrainer(**options))
        return made[-1]

    first = next(iter(batches))
    options = {
        "trainer": trainer, "steps": n_steps, "activation_dim": first.shape[1], "dict_size": n_latents, "k": k, "lr": lr,
        "layer": 0, "lm_name": "", "device": "cpu", "seed": seed,
        "warmup_steps": min(1000, round(0.05 * n_steps)), "decay_start": round(0.8 * n_steps),
    }  # fmt: skip
    with quiet():
        trainSAE(_Copies(batches), [options], steps=n_steps, normalize_activations=True, device="cpu")
    theirs = made[0].ae
    with torch.no_grad():
        ours = SAE(
            theirs.encoder.weight.T.clone(), theirs.encoder.bias.clone(), theirs.decoder.weight.T.clone(),
            theirs.b_dec.clone(), k=k,
        )  # fmt: skip
        return _checked(ours, first, theirs(first))


class _Copies:
    """Batches without an end, each a copy: its loop scales them in place."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        return (batch.clone() for batch in _again_and_again(self.batches))


# ------------------------------------------------------------------------------------------------------------ shared


def _again_and_again(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    while True:
        yield from batches


def _checked(ours: SAE, x: Tensor, theirs: Tensor) -> SAE:
    """Our value, if it reconstructs as the peer does."""
    apart = float((ours(x) - theirs).norm() / theirs.norm())
    assert apart < 1e-4, f"read back, the peer's SAE reconstructs something else: {apart} apart"
    return ours


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the peers' bars and prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class FirstBatches:
    """The first `n` of some batches, as often as they are asked for."""

    def __init__(self, batches: Iterable[Tensor], n: int) -> None:
        self.batches, self.n = batches, n

    def __iter__(self) -> Iterator[Tensor]:
        return islice(iter(self.batches), self.n)
