"""Our forward pass against transformers' (SDPA): same weights, inputs, dtype and threads, in one run.

python benchmarks/forward.py
"""

import statistics
from typing import Any

import torch
import transformers
from measure import alternate, ratio, report

import interp


def main() -> None:
    """Three rows: the whole pass, one site recorded with an early stop, and greedy decoding of one prompt."""
    ours = interp.load("smollm2-135m")
    assert ours.tokenizer is not None
    folder = interp.artifact.home() / "models" / ours.cfg.name
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    rows = []
    with torch.inference_mode():
        ids = torch.randint(1000, 40000, (4, 256), generator=torch.Generator().manual_seed(0))
        error = float((ours(ids) - theirs(ids).logits).abs().max())
        assert error < 5e-4, f"the two computed different things: {error}"
        rows.append(
            row("forward 4x256", {"ours": lambda: ours(ids), "transformers": lambda: theirs(ids)}, max_difference=error)
        )

        stop = 16
        bare = {"recorded": lambda: ours.run_with_cache(ids, sites=f"resid_post:{stop - 1}", stop_at_layer=stop)}
        bare["bare"] = lambda: ours(ids, stop_at_layer=stop)
        rows.append(row("one site recorded, against the bare stopped pass", bare, ours="recorded", peer="bare"))

        prompt = ours.tokenizer.encode("Once upon a time there was a small town")
        first = torch.tensor([prompt])
        options: dict[str, Any] = {"max_new_tokens": 32, "do_sample": False, "min_new_tokens": 32}
        expected = theirs.generate(first, attention_mask=torch.ones_like(first), **options)[0, len(prompt) :].tolist()
        found = ours.generate(prompt, 32, stop_at_eos=False).tokens
        assert found == expected, "the two generated different text"
        rows.append(
            row(
                "greedy decoding, 32 tokens",
                {
                    "ours": lambda: ours.generate(prompt, 32, stop_at_eos=False),
                    "transformers": lambda: theirs.generate(first, attention_mask=torch.ones_like(first), **options),
                },
            )
        )
    report("forward", rows)


def row(
    what: str, contestants: dict[str, Any], ours: str = "ours", peer: str = "transformers", **more: Any
) -> dict[str, Any]:
    """Measure two contestants."""
    seconds = alternate(contestants)
    medians = {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    return {"what": what, **medians, "ratio": ratio(seconds, ours, peer), "rounds": len(seconds[ours]), **more}


if __name__ == "__main__":
    main()
