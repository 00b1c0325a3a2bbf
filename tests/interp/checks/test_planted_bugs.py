"""Twelve bugs that implementations of transformers really had, planted one at a time in models that pass.

Each model comes from a transformers folder, so parity can see the bug as well; the verdicts of all other checks do not
depend on transformers, so one examination says both what is caught with it and what is caught without.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import byte_backend, random_gpt2, random_llama
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM

import interp
from interp.checks import doctor
from interp.checks.examine import CHECKS
from interp.hooks import HookPoint
from interp.model import HookedTransformer
from interp.model import attention as attention_module
from interp.model.attention import Attention
from interp.model.norm import Norm
from interp.model.passes import ForwardPass
from interp.tokens import Tokenizer, Tokens

Plant = Callable[[HookedTransformer, pytest.MonkeyPatch], None]
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|user|>{% endif %}"
)
QUICK = [name for name in CHECKS if name not in ("memory flat", "bf16")]
PARITY = "parity with transformers"


def random_gemma2() -> Gemma2ForCausalLM:
    torch.manual_seed(2)
    config = Gemma2Config(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=6, query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: random_llama(tie_word_embeddings=True, hidden_size=260, head_dim=16),
    "gpt2": random_gpt2,
    "gemma2": random_gemma2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each kind of model, with a tokenizer that adds a BOS and has a chat template."""
    tokenizer = Tokenizer(
        byte_backend(), bos_id=0, eos_id=1, pad_id=1, special_ids=[0, 1, 2], add_bos=True, chat_template=CHAT
    )
    found = {}
    for name, make in MAKERS.items():
        found[name] = tmp_path_factory.mktemp(name)
        make().save_pretrained(found[name])
        tokenizer.save(found[name])
    return found


def mask_off_by_one(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """A query sees one token too many."""
    right = ForwardPass._inputs

    def inputs(self: ForwardPass, tokens: Tokens, kv: Any, window: int | None) -> Any:
        found = right(self, tokens, kv, window)
        if kv is not None:
            return found
        n = tokens.ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).tril(1) & tokens.mask[:, None, None] & tokens.mask[:, None, :, None]
        return replace(found, mask=mask, causal=False)

    patch.setattr(ForwardPass, "_inputs", inputs)


def left_pad_positions(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Positions count from the first column, not from the first real token."""
    patch.setattr(Tokens, "positions", property(lambda self: torch.arange(self.ids.shape[1]).expand(self.ids.shape)))


def rope_pairing(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Neighbouring dimensions turn together in a model that was trained with halves."""
    assert model.rope is not None
    patch.setattr(model.rope, "pairing", "adjacent")


def kv_repeat_order(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Query heads 0, 1, 2, 3 read keys 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    fused = attention_module.fused_attention

    def tiled(self: Attention, x: Tensor) -> Tensor:
        return x.repeat(1, self.n_heads // self.kv_heads, 1, 1)

    def mixed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor | None:
        times = q.shape[1] // k.shape[1]
        return fused(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), **options)

    patch.setattr(Attention, "_for_queries", tiled)
    patch.setattr(attention_module, "fused_attention", mixed)


def norm_without_its_one(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """The gain of a Gemma norm is its weight, not 1 + its weight."""
    for module in model.modules():
        if isinstance(module, Norm):
            patch.setattr(module, "offset", False)


def missing_bias(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """One projection leaves its bias out."""
    query = model.blocks[1].attn.q
    patch.setattr(query, "forward", lambda x: nn.functional.linear(x, query.weight))


def lens_with_the_final_scale(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """The lens divides early layers by what the final norm divided the last one by."""
    right, scales = ForwardPass._head, []

    def head(self: ForwardPass, resid: Tensor) -> Tensor:
        scales[:] = [self.ln_final.scale(resid).flatten()]
        return right(self, resid)

    def unembed_logits(resid: Tensor) -> Tensor:
        return model._unembedded(model.ln_final.gain(resid / scales[0][: len(resid), None]))

    patch.setattr(ForwardPass, "_head", head)
    patch.setattr(model, "unembed_logits", unembed_logits, raising=False)


def attention_softcap_dropped(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Scores go to the softmax uncapped."""
    for block in model.iter_blocks():
        patch.setattr(block.attn, "softcap", None)


def final_softcap_dropped(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Logits come out uncapped."""
    patch.setattr(ForwardPass, "_unembedded", lambda self, normed: self.embed.project(normed))


def cache_offset(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """Decoded tokens stand one place further on than they should."""
    right = ForwardPass._begin

    def begin(self: Any, tokens: Any, phase: str, step: int, prompt_len: Any, start: Any = None, *rest: Any) -> None:
        right(self, tokens, phase, step, prompt_len, None if start is None else start + 1, *rest)

    patch.setattr(ForwardPass, "_begin", begin)


class DeadPoint(HookPoint):
    """Calls its functions and drops what they return."""

    def __call__(self, value: Tensor) -> Tensor:
        super().__call__(value)
        return value


class DeafPoint(HookPoint):
    """Says of every edit that there was none."""

    def edited(self, value: Tensor) -> Tensor | None:
        super().edited(value)
        return None


def dead_hook(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.hook_dict["blocks.1.hook_mlp_out"], "__class__", DeadPoint)


def deaf_hook(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.hook_dict["blocks.1.attn.hook_pattern"], "__class__", DeafPoint)


def double_bos(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """The BOS is added to texts that begin with one."""

    def with_bos(self: Tokenizer, ids: list[int], bos: bool | None) -> list[int]:
        return [self.bos_id, *ids] if (self.add_bos if bos is None else bos) else ids

    patch.setattr(Tokenizer, "_with_bos", with_bos)


def transposed_unembedding(model: HookedTransformer, patch: pytest.MonkeyPatch) -> None:
    """As many tokens as dimensions, so nothing but the numbers says that the matrix lies the wrong way."""
    patch.setattr(model.embed, "project", lambda x, bias: x @ model.embed.weight, raising=False)


PLANTS: list[tuple[str, Plant, str, str]] = [
    ("llama", mask_off_by_one, "leaks", "causal leaks"),
    ("llama", left_pad_positions, "single = padded", "single = padded"),
    ("llama", rope_pairing, "recomputed", "recomputed: attention"),
    ("llama", kv_repeat_order, "recomputed", "recomputed: attention"),
    ("gemma2", norm_without_its_one, "recomputed", "recomputed: attention"),
    ("gpt2", missing_bias, "recomputed", "recomputed: attention"),
    ("llama", lens_with_the_final_scale, "lens", "lens"),
    ("gemma2", attention_softcap_dropped, "recomputed", "recomputed: attention"),
    ("gemma2", final_softcap_dropped, "recomputed", "recomputed: unembedding"),
    ("gpt2", cache_offset, "KV cache = none", "KV cache = none"),
    ("llama", cache_offset, "KV cache = none", "KV cache = none"),
    ("llama", dead_hook, "edits reach the output", "edits reach the output"),
    ("gpt2", deaf_hook, "edits reach the output", "edits reach the output"),
    ("llama", double_bos, "one BOS", "one BOS"),
    ("llama", transposed_unembedding, "recomputed", "recomputed: unembedding"),
]
"""Model, bug, the check that is run (parity beside it), and the line that must fail."""
SEEN_BY_PARITY = (
    mask_off_by_one, rope_pairing, kv_repeat_order, norm_without_its_one, missing_bias, attention_softcap_dropped,
    final_softcap_dropped, double_bos, transposed_unembedding,
)  # fmt: skip
"""What stands in a pass over one text; the others change batches, decoding, hooks or the lens alone."""


@pytest.mark.parametrize("name", MAKERS)
def test_a_sound_model_passes_with_transformers_beside_it(name: str, folders: dict[str, Path]) -> None:
    report = doctor(interp.load(str(folders[name])), folder=folders[name], only=QUICK)
    assert report.ok, "\n".join(map(str, report.failed))
    assert {"parity: logits", "parity: every layer", "parity: tokenizer"} <= {check.name for check in report.checks}


@pytest.mark.parametrize(
    ("name", "plant", "check", "line"), PLANTS, ids=[f"{plant.__name__} in {name}" for name, plant, _, _ in PLANTS]
)
def test_a_planted_bug_is_caught(
    name: str, plant: Plant, check: str, line: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = interp.load(str(folders[name]))
    plant(model, monkeypatch)
    report = doctor(model, folder=folders[name], only=[check, PARITY])
    failed = {found.name for found in report.failed}
    assert line in failed, str(report)  # without transformers
    assert not report.ok
    if plant in SEEN_BY_PARITY:
        assert any(found.startswith("parity") for found in failed)


def test_the_bugs_are_twelve() -> None:
    kinds = {plant for _, plant, _, _ in PLANTS} - {final_softcap_dropped, deaf_hook}  # second forms of two others
    assert len(kinds) == 12
