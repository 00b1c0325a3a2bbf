"""Tiny checkpoints as other programs write them: transformers folders, GGUF files as llama.cpp's, and wheels."""

import base64
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

Model = TypeVar("Model", bound=PreTrainedModel)

LLAMA = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT2 = {"vocab_size": 260, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def random_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A random Llama of transformers, its biases and gains far from 0 and 1."""
    torch.manual_seed(seed)
    return _shaken(LlamaForCausalLM(LlamaConfig(**{**LLAMA, "attn_implementation": "eager", **changes})))


def random_gpt2(seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    """A random GPT-2 of transformers."""
    torch.manual_seed(seed)
    return _shaken(GPT2LMHeadModel(GPT2Config(**{**GPT2, "attn_implementation": "eager", **changes})))


def _shaken(model: Model) -> Model:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def byte_backend() -> tokenizers.Tokenizer:
    """Three special tokens, 256 bytes and one merge: as many as the tiny models' rows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|start|>", "<|end|>", "<|user|>"]
    vocab = {piece: index for index, piece in enumerate([*special, *alphabet, "th"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return backend


# -------------------------------------------------------------------------------------------------------------- GGUF

Q = gguf.GGMLQuantizationType
_PROJECTIONS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
_PRE = {**_PROJECTIONS, "post_attention_layernorm": "ffn_norm"}
_SANDWICH = {
    **_PROJECTIONS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
HF_TO_GGUF = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma"), _PRE),
    **dict.fromkeys(("gemma2", "gemma3"), _SANDWICH),
    "gpt2": {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
}
"""Architecture in the file -> transformers' names -> llama.cpp's (gguf-py's `tensor_mapping.py`)."""


def permute(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows (convert_hf_to_gguf.py, LlamaModel.permute)."""
    rest = weight.shape[1:]
    return weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *rest).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    quant: gguf.GGMLQuantizationType = Q.F32,
    tokenizer: bool = True,
    **extra: Any,
) -> dict[str, torch.Tensor]:
    """Write a model of transformers as llama.cpp would; returns its state after the rounding of the quantisation.

    `extra` are further metadata (`llama__rope__scaling__type`: the double underscores are dots) or whole tensors.
    """
    config = model.config
    kind = architecture_of(model)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        _add_options(writer, config, kind)
    if tokenizer:
        add_tokenizer(writer, byte_backend(), pre="gpt-2")
    for key, value in extra.items():
        _add(writer, key.replace("__", "."), value)
    rounded: dict[str, torch.Tensor] = {}
    tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            rounded[name] = _add_weight(writer, model, name, weight, quant)
    if tied:
        rounded["lm_head.weight"] = rounded["transformer.wte.weight" if kind == "gpt2" else "model.embed_tokens.weight"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def architecture_of(model: PreTrainedModel) -> str:
    """llama.cpp's word for it."""
    return model.config.model_type.removesuffix("_text")


def _add_options(writer: gguf.GGUFWriter, config: Any, kind: str) -> None:
    """What convert_hf_to_gguf.py writes for the architecture beyond the sizes."""
    rope = config.rope_parameters
    if kind == "gemma3":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        if rope["full_attention"]["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
    elif kind != "gemma":
        writer.add_rope_freq_base(rope["rope_theta"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    elif kind != "qwen2":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind in ("gemma2", "gemma3") and "sliding_attention" in config.layer_types:
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if kind in ("gemma2", "gemma3") and config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        writer.add_tensor(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_weight(
    writer: gguf.GGUFWriter, model: PreTrainedModel, name: str, weight: torch.Tensor, quant: gguf.GGMLQuantizationType
) -> torch.Tensor:
    kind, config, values = architecture_of(model), model.config, weight.numpy()
    matrix, conv1d = values.ndim == 2 and "wpe" not in name, "c_" in name and values.ndim == 2
    renamed = name.replace("model.layers.", "blk.").replace("transformer.h.", "blk.")
    for theirs, ours in HF_TO_GGUF[kind].items():
        renamed = renamed.replace(theirs, ours)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    n_heads = next((n for part, n in heads.items() if part in name and kind == "llama"), None)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        values = values + 1
    values = values if n_heads is None else permute(values, n_heads)
    values = np.ascontiguousarray(values.T if conv1d else values)
    if not matrix or quant == Q.F32:
        writer.add_tensor(renamed, values)
        return weight.clone()
    packed = gguf.quantize(values, quant)
    writer.add_tensor(renamed, packed, raw_dtype=quant)
    values = gguf.dequantize(packed, quant)
    if n_heads is not None:
        rest = values.shape[1:]
        values = values.reshape(n_heads, -1, 2, *rest).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.array(values.T if conv1d else values, dtype=np.float32))


def add_tokenizer(writer: gguf.GGUFWriter, backend: tokenizers.Tokenizer, *, pre: str, kind: str = "gpt2") -> None:
    """The metadata that llama.cpp writes for a byte-level BPE (merges) or a SentencePiece one (scores)."""
    model = json.loads(backend.to_str())["model"]
    tokens = [piece for piece, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    added = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    normal = {token: 6 if token.startswith("<0x") else 1 for token in tokens}
    kinds = [normal[token] if token not in added else (3 if added[token] else 4) for token in tokens]
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if kind == "gpt2":
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    else:
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
    special = [token for token, is_special in added.items() if is_special]
    if special:
        writer.add_bos_token_id(tokens.index(special[-2] if kind == "llama" else special[0]))
        writer.add_eos_token_id(tokens.index(special[-1] if kind == "llama" else special[1]))


# ------------------------------------------------------------------------------------------------------------- wheels


def write_wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> tuple[Path, str]:
    """A wheel that pip accepts, and its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in content.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**content, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(member, data)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
