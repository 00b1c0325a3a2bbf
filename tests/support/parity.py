"""One comparison for all families: our model against transformers' eager one that it was saved from.

1. The reference is saved with `save_pretrained` and loaded with `interp.load`, in fp32 and in fp64.
2. Logits and the output of every layer agree: 1e-5 in fp32, absolute and by each row's norm, and 1e-10 in fp64.
3. So do the attention patterns.
4. A batch with pads on the left agrees with transformers' own, given its attention mask.
5. Decoding with the KV cache agrees with the pass over the whole text, with hooks and without.

transformers casts to fp32 inside an fp64 model (RMSNorm, softmax, rotary tables); `LiftedCasts` takes these casts away, for
otherwise two right implementations differ by 1e-7.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import interp
from interp.model import HookedTransformer
from interp.tokens import Tokens

Model = TypeVar("Model", bound=PreTrainedModel)

N_VOCAB = 120
"""Rows of the embedding that the tiny models need at least."""
IDS = torch.randint(0, N_VOCAB, (2, 24), generator=torch.Generator().manual_seed(0))
DECODER: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
"""Sizes of a tiny Llama, and of all families that use its words."""
N_NEW = 20
"""Tokens that are decoded: enough for a small window's buffer to go round. The context must hold 24 and these."""


def shaken(model: Model, seed: int = 0, gains: float = 0.1, matrices: float = 0.15) -> Model:
    """Move every parameter off its first value: zeros, ones and flat attention would hide a mistake.

    Args:
        model: changed in place.
        seed: of the noise.
        gains: size of the noise on vectors (gains and biases).
        matrices: size of the noise on everything else.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * (gains if weight.ndim == 1 else matrices))
    return model.eval()


class LiftedCasts(TorchDispatchMode):
    """Turns every cast to fp32 into one to fp64. Works under no_grad, not in inference mode."""

    lifting = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.lifting and kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def lifted_casts() -> Iterator[None]:
    """transformers without its casts to fp32, but for the rotary frequencies: every checkpoint was trained with fp32 ones."""
    mode = LiftedCasts()

    def plain(make: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mode.lifting = False
            if isinstance(
                kwargs.get("seq_len"), Tensor
            ):  # as a number: else the base of dynamic scaling is an fp32 tensor
                kwargs["seq_len"] = int(kwargs["seq_len"])
            try:
                return make(*args, **kwargs)
            finally:
                mode.lifting = True

        return wrapped

    makers = {kind: plain(make) for kind, make in ROPE_INIT_FUNCTIONS.items()}
    with patch.dict(ROPE_INIT_FUNCTIONS, makers), mode:
        yield


def run_reference(reference: PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """(logits, output of every layer) of transformers, taken at the layers themselves: its last hidden state is normed."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        outputs.append(output if isinstance(output, Tensor) else output[0])

    handles = [layer.register_forward_hook(keep) for layer in reference_layers(reference)]
    try:
        with torch.no_grad():
            logits = reference(ids, **_mask_arguments(reference, mask)).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits, outputs


def reference_layers(reference: PreTrainedModel) -> nn.ModuleList:
    """The list of a transformers model's blocks: the outermost one with an entry for each layer."""
    n_layers = reference.config.get_text_config().num_hidden_layers
    lists = (module for module in reference.modules() if isinstance(module, nn.ModuleList))
    return next(found for found in lists if len(found) == n_layers)


def _mask_arguments(reference: PreTrainedModel, mask: Tensor | None) -> dict[str, Tensor]:
    """What transformers needs to see pads as we do; families with ALiBi take positions from the mask alone."""
    if mask is None:
        return {}
    arguments = {"attention_mask": mask.long()}
    if "position_ids" in inspect.signature(reference.forward).parameters:
        arguments["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    return arguments


def layer_output(model: HookedTransformer) -> str:
    """Our shorthand of what a block of transformers gives back."""
    return "normalized_resid_post" if model.cfg.norm_placement == "post_ln" else "resid_post"


def our_layers(model: HookedTransformer, x: Any) -> tuple[Tensor, list[Tensor]]:
    """(logits, output of every layer) of our model."""
    sites = [f"blocks.{layer}.hook_{layer_output(model)}" for layer in range(model.cfg.n_layers)]
    with torch.no_grad():
        logits, cache = model.run_with_cache(x, sites=sites)
    assert logits is not None
    return logits.as_subclass(Tensor), [cache[site] for site in sites]


def assert_equal(
    found: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], atol: float, mask: Tensor | None = None
) -> None:
    """Logits within atol; each row of each layer within atol, and within atol of its own norm (a cosine hides a scale)."""
    mask = torch.ones_like(found[0][..., 0], dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[0][mask], expected[0][mask], atol=atol, rtol=0, msg=lambda text: f"logits: {text}")
    assert len(found[1]) == len(expected[1]), f"{len(expected[1])} layers in transformers, {len(found[1])} in ours"
    for layer, (own, theirs) in enumerate(zip(found[1], expected[1])):
        error, norm = (own - theirs)[mask], theirs[mask].norm(dim=-1)
        assert float(error.abs().max()) <= atol, f"layer {layer}: {float(error.abs().max()):.2e} absolute"
        worst = float((error.norm(dim=-1) / norm).max())
        assert worst <= atol, f"layer {layer}: {worst:.2e} of the row's norm"


def check_parity(
    reference: PreTrainedModel,
    folder: Path,
    *,
    casts: bool,
    experts: bool = False,
    encoder: bool = False,
    decode: bool = True,
    config_changes: Mapping[str, Any] | None = None,
) -> HookedTransformer:
    """Assert all that the module docstring says.

    Args:
        reference: a tiny random model of transformers, `shaken`, eager, in fp32; it is changed to fp64.
        folder: an empty folder.
        casts: the family casts to fp32; then the check that lifting the casts changes the result is made, too.
        experts: the family has experts, which transformers must run eagerly as well.
        encoder: no causal mask, so nothing is generated.
        decode: also decode; False where the rotation changes with each token, so that a cache cannot be exact.
        config_changes: keys of config.json to write over, to try other spellings of the same model; None removes one.

    Returns:
        Our model in fp32, for what else a test wants of it.
    """
    reference = reference.eval()
    assert reference.config._attn_implementation == "eager", "pass attn_implementation='eager'"
    if experts:
        reference.set_experts_implementation("eager")
    reference.save_pretrained(folder)
    if config_changes:
        edit_config(folder, config_changes)
    ours = interp.load(str(folder))
    assert_equal(our_layers(ours, IDS), run_reference(reference, IDS), 1e-5)
    _check_patterns(ours, reference)
    _check_padding(ours, reference)
    if decode and not encoder:
        check_decoding(ours)
    _check_fp64(reference, folder, casts)
    return ours


def edit_config(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Write over keys of config.json; None removes one."""
    path = folder / "config.json"
    config = {**interp.artifact.read_json(path), **changes}
    interp.artifact.write_json(path, {key: value for key, value in config.items() if value is not None})
    return folder


def left_padded(n_pads: int = 5) -> Tokens:
    """IDS with pads before the first text."""
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, :n_pads] = False
    return Tokens(IDS, mask, False, None)


def _check_patterns(ours: HookedTransformer, reference: PreTrainedModel) -> None:
    """Attention patterns, which take another path than the fused one that the layers were compared on."""
    with torch.no_grad():
        expected = reference(IDS, output_attentions=True).attentions
        logits, cache = ours.run_with_cache(IDS, sites="pattern:*")
        fused = ours(IDS)
    for layer, theirs in enumerate(expected):
        error = float((cache["pattern", layer] - theirs).abs().max())
        assert error <= 1e-5, f"pattern of layer {layer}: {error:.2e}"
    torch.testing.assert_close(logits.as_subclass(Tensor), fused.as_subclass(Tensor), atol=1e-5, rtol=0)


def _check_padding(ours: HookedTransformer, reference: PreTrainedModel) -> None:
    tokens = left_padded()
    logits, layers = our_layers(ours, tokens)
    scaling = ours.cfg.rope_scaling
    if scaling is None or scaling.kind not in ("dynamic", "longrope"):
        assert_equal((logits, layers), run_reference(reference, IDS, tokens.mask), 1e-5, tokens.mask)
        return
    # transformers takes such frequencies from the longest text of a batch, so that a text's result depends on the others.
    for row, mask in enumerate(tokens.mask):
        own = logits[row : row + 1, mask], [layer[row : row + 1, mask] for layer in layers]
        assert_equal(own, run_reference(reference, IDS[row : row + 1, mask]), 1e-5)


def check_decoding(model: HookedTransformer, n_new: int = N_NEW) -> None:
    """Greedy continuations of a padded batch with the KV cache: tokens and log-probabilities of a pass without it.

    Once plainly, once with the stream pushed aside at its first layer and the last layer's heads weakened.
    """
    tokens = left_padded()
    plain = _assert_cache_is_exact(model, tokens, n_new)
    push = torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    last = model.cfg.n_layers - 1
    with model.hooks({"resid_post:0": lambda value, ctx: value + push, f"z:{last}": lambda value, ctx: value * 0.5}):
        assert _assert_cache_is_exact(model, tokens, n_new) != plain, "the hooks changed nothing"


def _assert_cache_is_exact(model: HookedTransformer, tokens: Tokens, n_new: int) -> list[list[float]]:
    out = model.generate(tokens, n_new, stop_at_eos=False)
    for row, (new, logprobs) in enumerate(zip(out.tokens, out.logprobs)):
        assert isinstance(new, list)
        with torch.no_grad():
            logits = model(torch.tensor([[*tokens.row(row), *new]])).as_subclass(Tensor)
        expected = logits[0, -n_new - 1 : -1].log_softmax(-1)
        assert expected.argmax(-1).tolist() == new, f"row {row}: another token than without the cache"
        chosen = expected.gather(-1, torch.tensor(new)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), chosen, atol=2e-5, rtol=0)
    return out.logprobs


def _check_fp64(reference: PreTrainedModel, folder: Path, casts: bool) -> None:
    ours = interp.load(str(folder), dtype="float64")
    nn.Module.double(reference)
    plain, _ = run_reference(reference, IDS)
    _remake_constants(reference)
    with lifted_casts():
        expected = run_reference(reference, IDS)
    assert torch.equal(plain, expected[0]) != casts, "casts=True, and lifting them did nothing, or the other way round"
    assert_equal(our_layers(ours, IDS), expected, 1e-10)


def _remake_constants(reference: PreTrainedModel) -> None:
    """What the model worked out in fp32 before it was one of fp64: Gemma's embedding scale, dynamic frequencies."""
    for module in reference.modules():
        values = vars(module)
        if "scalar_embed_scale" in values:
            module.get_buffer("embed_scale").fill_(values["scalar_embed_scale"])
        if "max_seq_len_cached" in values:
            values["max_seq_len_cached"] = values["original_max_seq_len"]
