"""Time from a folder to the first logits against transformers, in processes that have imported everything.

Ours reads the tokenizer as well, so the peer is model and tokenizer; its model alone stands beside it.
python benchmarks/load.py
"""

import statistics
from typing import Any

import torch
import transformers
from measure import alternate, ratio, report
from peers import folder, reference

import interp


def main() -> None:
    """Loading alone, and loading with the first pass, which brings the mapped weights in."""
    path = str(folder())
    ids = torch.arange(1000, 1016)[None]
    with torch.inference_mode():
        error = float((interp.load(path)(ids) - reference(torch.float32)(ids).logits).abs().max())
        assert error < 5e-4, f"the two loaded different things: {error}"

        def with_tokenizer() -> Any:
            transformers.AutoTokenizer.from_pretrained(path)
            return reference(torch.float32)

        alone = {"transformers_model_alone": lambda: reference(torch.float32)}
        loaded = {"ours": lambda: interp.load(path), "transformers": with_tokenizer, **alone}
        first = {"ours": lambda: interp.load(path)(ids), "transformers": lambda: with_tokenizer()(ids)}
        rows = [row("load", loaded), row("load and first logits", first)]
    report("load", rows)


def row(what: str, contestants: dict[str, Any]) -> dict[str, Any]:
    """Median seconds, and how many times faster ours is."""
    seconds = alternate(contestants, rounds=9)
    medians = {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"}
    return {"what": what, **medians, **ratios, "rounds": 9}


if __name__ == "__main__":
    main()
