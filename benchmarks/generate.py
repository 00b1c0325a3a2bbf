"""Greedy decoding of one prompt against transformers' generate and a bare loop of the same products.

fp32 and bf16 against both, and int8 weights against our own fp32. At batch 1 every weight is read once a token, so memory
sets the limit. python benchmarks/generate.py
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from measure import alternate, ratio, report
from peers import reference
from torch.nn import functional

import interp
from interp.model import HookedTransformer
from interp.model.int8 import quantize_int8

PROMPT, NEW, ROUNDS = "Once upon a time there was a small town", 48, 5


def main() -> None:
    """A row for each precision."""
    full = interp.load("smollm2-135m")
    rows = []
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            ours = full if dtype == torch.float32 else interp.load("smollm2-135m", dtype=dtype)
            rows.append(against_peers(ours, dtype))
        small = quantize_int8(full)
        contestants = {
            "ours": lambda: small.model.generate(PROMPT, NEW, stop_at_eos=False),
            "fp32": lambda: full.generate(PROMPT, NEW, stop_at_eos=False),
        }
        rows.append(row("int8 weights", contestants, max_logit_error=small.max_error, mean_kl=small.mean_kl))
    report("generate", rows)


def against_peers(ours: HookedTransformer, dtype: torch.dtype) -> dict[str, Any]:
    """Ours, transformers and the bare loop at one precision; in fp32 all three must write the same tokens."""
    assert ours.tokenizer is not None
    theirs, prompt = reference(dtype), ours.tokenizer.encode(PROMPT)
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    contestants: dict[str, Callable[[], list[int]]] = {
        "ours": lambda: list(ours.generate(prompt, NEW, stop_at_eos=False).tokens),
        "transformers": lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist(),
        "bare_loop": lambda: bare_loop(ours, ids),
    }  # fmt: skip
    if dtype == torch.float32:  # in bf16 two orders of adding part after some tokens
        texts = [run() for run in contestants.values()]
        assert all(text == texts[0] for text in texts), "the contestants wrote different text"
    return row(str(dtype).removeprefix("torch."), contestants)


def bare_loop(model: HookedTransformer, ids: torch.Tensor) -> list[int]:
    """The least Python that decodes a Llama with a cache: products, norms, rotation, attention, argmax; no sites."""
    cfg, blocks, found = model.cfg, list(model.iter_blocks()), []
    n_tokens, dtype = ids.shape[1] + NEW, model.dtype
    assert model.rope is not None
    cos, sin = model.rope.angles(torch.arange(n_tokens)[None], dtype)
    cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    caches = [torch.empty(2, 1, cfg.kv_heads, n_tokens, cfg.d_head, dtype=dtype) for _ in blocks]
    state = dict(model.named_parameters())
    names = ("ln1", "attn.q", "attn.k", "attn.v", "attn.o", "ln2", "mlp.gate", "mlp.up", "mlp.down")
    weights = [[state[f"blocks.{layer}.{name}.weight"] for name in names] for layer in range(cfg.n_layers)]
    done, new, final, unembedding = 0, ids, state["ln_final.weight"], model.unembedding()

    def turned(x: torch.Tensor) -> torch.Tensor:
        now = slice(done, done + x.shape[2])
        return torch.addcmul(x * cos[:, :, now], x.roll(cfg.d_head // 2, -1), sin[:, :, now])

    for _ in range(NEW):
        x = functional.embedding(new, state["embed.weight"])
        n = new.shape[1]
        for (n1, q, k, v, o, n2, gate, up, down), cache in zip(weights, caches, strict=True):
            h = functional.rms_norm(x, (cfg.d_model,), n1, cfg.norm_eps)
            query = turned(functional.linear(h, q).view(1, n, -1, cfg.d_head).transpose(1, 2))
            cache[0, :, :, done : done + n] = turned(functional.linear(h, k).view(1, n, -1, cfg.d_head).transpose(1, 2))
            cache[1, :, :, done : done + n] = functional.linear(h, v).view(1, n, -1, cfg.d_head).transpose(1, 2)
            keys, values = cache[0, :, :, : done + n], cache[1, :, :, : done + n]
            z = functional.scaled_dot_product_attention(query, keys, values, is_causal=n > 1, enable_gqa=True)
            x = x + functional.linear(z.transpose(1, 2).reshape(1, n, -1), o)
            h = functional.rms_norm(x, (cfg.d_model,), n2, cfg.norm_eps)
            x = x + functional.linear(functional.silu(functional.linear(h, gate)) * functional.linear(h, up), down)
        logits = functional.linear(functional.rms_norm(x[:, -1:], (cfg.d_model,), final, cfg.norm_eps), unembedding)
        new, done = logits.argmax(-1), done + n
        found.append(int(new))
    return found


def row(what: str, contestants: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Median tokens a second of each, and how many times faster ours is than each of the others."""
    seconds = alternate(contestants, rounds=ROUNDS)
    speeds = {f"{name}_tokens_per_s": NEW / statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"}
    return {"what": f"greedy decoding, {NEW} tokens, {what}", **speeds, **ratios, "rounds": ROUNDS, **more}


if __name__ == "__main__":
    main()
