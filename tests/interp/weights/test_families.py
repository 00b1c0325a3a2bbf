"""What all families share: the list of them, which one a checkpoint belongs to, and that nothing is ignored in silence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import byte_backend, random_llama
from parity import IDS, assert_equal, edit_config, our_layers, run_reference
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from interp.model import Experts, ModelConfig
from interp.weights.families import FAMILIES, families, family_of
from interp.weights.family import Family, Rule, expand, fill
from interp.weights.load import load


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------------------------------------------- the list


def test_each_family_is_one_of_transformers() -> None:
    known = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    for family in FAMILIES:
        assert known[family.model_type] == family.architecture
        assert family.model_type in CONFIG_MAPPING


def test_names_are_unique() -> None:
    words = [word for family in FAMILIES for word in family.names]
    assert len(words) == len(set(words))
    assert len({family.name for family in FAMILIES}) == len({family.model_type for family in FAMILIES}) == len(FAMILIES)


def test_the_table_says_what_each_can_do() -> None:
    frame = families()
    assert list(frame["family"]) == [family.name for family in FAMILIES]
    assert {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"} <= set(frame.loc[frame["gguf"], "family"])
    for column in ("members", "attention", "positions", "norm"):
        assert frame[column].astype(bool).all(), f"a family says nothing of its {column}"


def test_unknown_architectures_name_the_families(tmp_path: Path) -> None:
    folder = edit_config(saved(random_llama(), tmp_path), {"architectures": ["MambaForCausalLM"]})
    with pytest.raises(ValueError, match=r"'MambaForCausalLM'; supported are .*LlamaForCausalLM.*family\.py"):
        load(folder)
    assert load(edit_config(folder, {"architectures": None})).cfg.family == "llama", "model_type says it as well"


def test_a_word_for_the_same_weights() -> None:
    assert family_of({"architectures": ["LlamaModel"]}, "tiny").name == "llama"
    assert family_of({"architectures": ["Gemma3ForConditionalGeneration"]}, "tiny").name == "gemma3"
    assert family_of({"model_type": "qwen3"}, "tiny").name == "qwen3"


# ------------------------------------------------------------------------------------------------------- strictness


def changed_state(folder: Path, change: dict[str, Tensor | None]) -> Path:
    path = folder / "model.safetensors"
    state = {**load_file(path), **change}
    save_file({name: weight for name, weight in state.items() if weight is not None}, path)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model.layers.1.self_attn.q_norm.weight": torch.ones(16)},
            r"1 unknown tensors: layers\.1\.self_attn\.q_norm",
        ),
        ({"model.norm.weight": None}, r"1 parameters not filled: ln_final\.weight"),
        ({"model.norm.weight": torch.ones(63)}, r"model\.norm\.weight is \[63\], expected \[64\]"),
        ({"model.norm.weight": torch.ones(64, dtype=torch.int8)}, r"holds torch\.int8: quantised"),
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)},
            r"unknown tensors: layers\.0\.self_attn\.q_proj\.bias",
        ),
        ({"norm.weight": torch.ones(64)}, r"both .*norm\.weight and .*norm\.weight: one of them is not this model's"),
    ],
)
def test_every_tensor_counts(change: dict[str, Tensor | None], words: str, tmp_path: Path) -> None:
    changed_state(saved(random_llama(), tmp_path), change)
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


def test_a_tied_head_that_is_in_the_file(tmp_path: Path) -> None:
    theirs = random_llama(tie_word_embeddings=True)
    path = saved(theirs, tmp_path) / "model.safetensors"
    state = load_file(path)
    assert "lm_head.weight" not in state
    save_file({**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}, path)
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)
    save_file({**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1}, path)
    with pytest.raises(ValueError, match='"tie_word_embeddings": false'):
        load(tmp_path)


def test_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(random_llama(vocab_size=259), tmp_path)
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="260 tokens, but the embedding only 259 rows"):
        load(tmp_path)


# ----------------------------------------------------------------------------------------------- tables with experts

EXPERTS = ModelConfig(n_layers=2, d_model=4, n_heads=1, d_head=4, d_mlp=6, d_vocab=8, n_ctx=8, experts=Experts(3, 1, 6))


def family(*rules: Rule, ignorable: tuple[str, ...] = ()) -> Family:
    def configure(_config: Any, _name: str) -> ModelConfig:
        return EXPERTS

    return Family("tiny", "Tiny", "tiny", "model.", configure, rules, ignorable)


def test_rules_are_written_out_for_layers_and_experts() -> None:
    rows = expand([Rule("a.{l}.{e}", "b.{l}.{e}"), Rule("c.{l}", "d.{l}"), Rule("e", "f")], 2, 3)
    assert [(row.theirs, row.ours) for row in rows[:4]] == [
        ("a.0.0", "b.0.0"), ("a.0.1", "b.0.1"), ("a.0.2", "b.0.2"), ("a.1.0", "b.1.0"),
    ]  # fmt: skip
    assert len(rows) == 6 + 2 + 1


def test_a_tensor_that_holds_all_experts_is_split_by_views() -> None:
    joint = torch.arange(2 * 3 * 12 * 4, dtype=torch.float32).view(2, 3, 12, 4)
    rules = (
        Rule("{l}.gate_up", "{l}.{e}.gate", lambda weight, cfg: weight[: cfg.d_mlp]),
        Rule("{l}.gate_up", "{l}.{e}.up", lambda weight, cfg: weight[cfg.d_mlp :]),
    )
    shapes = {f"{layer}.{e}.{part}": (6, 4) for layer in range(2) for e in range(3) for part in ("gate", "up")}
    tensors = {f"model.{layer}.gate_up": joint[layer] for layer in range(2)}
    state = fill(family(*rules), EXPERTS, tensors, shapes, torch.float32)
    for name, weight in state.items():
        layer, expert, part = name.split(".")
        whole = joint[int(layer), int(expert)]
        assert torch.equal(weight, whole[:6] if part == "gate" else whole[6:])
        assert weight.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()


def test_a_tensor_with_another_number_of_experts_is_refused() -> None:
    tensors = {"model.0.down": torch.ones(4, 4, 6)}
    with pytest.raises(ValueError, match=r"model\.0\.down holds 4 experts, but config\.json says 3"):
        fill(family(Rule("{l}.down", "{l}.{e}.down")), EXPERTS, tensors, {"0.0.down": (4, 6)}, torch.float32)


def test_what_is_no_weight_may_have_an_open_end_or_lie_behind_the_last_layer() -> None:
    tensors = {"model.w": torch.ones(2), "tower.0.x": torch.ones(1), "model.layers.2.y": torch.ones(1)}
    table = family(Rule("w", "w"), ignorable=("tower.*", "layers.{n}.*"))
    assert list(fill(table, EXPERTS, tensors, {"w": (2,)}, torch.float32)) == ["w"]
    with pytest.raises(ValueError, match=r"1 unknown tensors: layers\.1\.y"):
        fill(table, EXPERTS, {**tensors, "model.layers.1.y": torch.ones(1)}, {"w": (2,)}, torch.float32)
