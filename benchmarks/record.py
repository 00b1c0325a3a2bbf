"""Recording to disk against the bare pass and the recorders of other libraries, on the same token ids.

Two inputs: rows of 128 tokens of WikiText, and short statements of one template, which begin alike. Two choices of sites:
one in the middle, and the stream after every block. Ours does everything: it tokenises, plans, computes, writes and waits
for the disk. The peers get their token ids ready, sorted by length, in the batch size that suits each best, and stop
after the last site; only SAELens writes what it computed, the others drop it.

    python benchmarks/record.py                                   # every case, on few texts
    python benchmarks/record.py --only "cities, all, float32"     # one case; the other rows of the result file stay
    python benchmarks/record.py --only wikitext --wikitext-rows 96
"""

import argparse
import csv
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peers
import torch
from measure import RESULTS, alternate, ratio, report
from torch import Tensor, nn

import interp
from interp.model import HookedTransformer

DATA = Path(__file__).parents[2] / "shared" / "data"
LENGTH, MIDDLE = 128, 15
SIZES = {"wikitext": (8, 16), "cities": (32, 64, 128)}
"""Batch sizes that each peer is tried with."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Pass = Callable[[Sequence[Tensor]], Iterator[list[Tensor]]]
"""Padded ids [batch pos] of some batches -> for each batch the stream [batch pos d] after each wanted block.
The bare pass gives the last one only."""


@dataclass(frozen=True)
class Inputs:
    """The same tokens for everyone."""

    texts: list[str]
    """What ours reads."""
    rows: list[list[int]]
    """What the peers read: a row of ids for each text of the store."""
    options: dict[str, Any]
    """What ours needs to be told to make these rows of those texts."""

    @property
    def n_tokens(self) -> int:
        """Tokens in all rows."""
        return sum(map(len, self.rows))


def main() -> None:
    """Every case that `--only` names."""
    options = arguments()
    model = interp.load("smollm2-135m")
    done = []
    for dtype, source, sites in itertools.product(DTYPES, SIZES, ("one", "all")):
        if all(word in (dtype, source, sites) for word in options.only.split(", ") if word):
            part = 1.0 if sites == "one" else 0.5  # twice the work for a text
            if source == "wikitext":
                inputs = wikitext(model, max(16, round(part * options.wikitext_rows)))
            else:
                inputs = cities(model, round(part * options.cities))
            done.append(case(source, inputs, sites, DTYPES[dtype], options.rounds, options.folder))
            print(json.dumps(done[-1]), flush=True)
    assert done, f"no case is named {options.only!r}"
    report("record", merged(done))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words of the cases to run, as in 'cities, all, float32'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wikitext-rows", type=int, default=32, help="for one site; half of them for all, 16 at least")
    parser.add_argument("--cities", type=int, default=384, help="statements for one site, 1,496 at most; half for all")
    parser.add_argument("--folder", help="where stores are written; the usual place for temporary files if not given")
    return parser.parse_args()


# ----------------------------------------------------------------------------------------------------------- inputs


def wikitext(model: HookedTransformer, n_rows: int) -> Inputs:
    """Rows of 128 tokens, cut from one text."""
    assert model.tokenizer is not None
    text = (DATA / "wikitext-2" / "valid.txt").read_text()
    ids = model.tokenizer.encode(text[: 8 * LENGTH * n_rows])[: LENGTH * n_rows]
    text = model.tokenizer.decode(ids)
    assert model.tokenizer.encode(text) == ids, "this text does not come back from its tokens: take another row count"
    rows = [ids[start : start + LENGTH] for start in range(0, len(ids), LENGTH)]
    return Inputs([text], rows, {"long": "chunk", "max_length": LENGTH})


def cities(model: HookedTransformer, n: int) -> Inputs:
    """The first statements of the file, in its order."""
    assert model.tokenizer is not None
    with (DATA / "truth" / "cities.csv").open() as file:
        texts = [row["statement"] for row in csv.DictReader(file)]
    texts = texts[:n]
    return Inputs(texts, [model.tokenizer.encode(text) for text in texts], {})


def batches(rows: Sequence[list[int]], size: int) -> list[Tensor]:
    """Rows sorted by length, in right-padded batches. Causal attention lets no pad reach a token, so no mask is needed."""
    ordered = sorted(rows, key=len)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [torch.tensor([row + [0] * (len(group[-1]) - len(row)) for row in group]) for group in groups]


# ------------------------------------------------------------------------------------------------------ contestants


@functools.cache
def loaded(name: str, dtype: torch.dtype) -> Any:
    """A contestant's model."""
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: interp.load("smollm2-135m", dtype=dtype),
        "bare": lambda: peers.reference(dtype),
        "hooked_transformer": lambda: peers.hooked_transformer(dtype),
        "bridge": lambda: peers.raw_bridge(dtype),
        "nnsight": lambda: peers.traced(peers.reference(dtype)),
    }
    return makers[name]()


def passes(layers: Sequence[int], dtype: torch.dtype) -> dict[str, Pass]:
    """The peers that are given batches: a pass that stops after the last of `layers`."""
    probe = [torch.arange(1000, 1000 + LENGTH // 2).expand(8, -1)]
    by_lens = [lens_pass(loaded(name, dtype), layers) for name in ("hooked_transformer", "bridge")]
    for run in by_lens:  # the first call of each is slower
        seconds_of(run, probe)
    return {
        "bare": bare_pass(loaded("bare", dtype), layers),
        "transformer_lens": min(by_lens, key=lambda run: seconds_of(run, probe)),
        "nnsight": traced_pass(loaded("nnsight", dtype), layers),
    }


def bare_pass(model: Any, layers: Sequence[int]) -> Pass:
    """transformers' own pass through the blocks that are needed: no final norm, no logits, nothing kept."""
    decoder = model.model
    every, decoder.norm = decoder.layers, nn.Identity()

    def run(todo: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        decoder.layers = every[: layers[-1] + 1]
        try:
            for ids in todo:
                yield [decoder(input_ids=ids, use_cache=False).last_hidden_state]
        finally:
            decoder.layers = every

    return run


def lens_pass(lens: Any, layers: Sequence[int]) -> Pass:
    """TransformerLens' run_with_cache with its filter and its stop."""
    names = [f"blocks.{layer}.hook_resid_post" for layer in layers]

    def run(todo: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        for ids in todo:
            cache = lens.run_with_cache(ids, names_filter=names, stop_at_layer=layers[-1] + 1, return_type=None)[1]
            yield [cache[name] for name in names]

    return run


def traced_pass(nnsight: Any, layers: Sequence[int]) -> Pass:
    """nnsight's trace with its stop."""

    def run(todo: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        for ids in todo:
            with nnsight.trace(ids, use_cache=False) as tracer:
                saved: Any = []
                for layer in layers:
                    saved.append(nnsight.model.layers[layer].output.save())
                saved = saved.save()
                tracer.stop()
            yield list(saved)

    return run


def saelens_runner(inputs: Inputs, dtype: torch.dtype, batch: int, folder: Path) -> Any:
    """SAELens' CacheActivationsRunner around transformers' model (SDPA), which it stops after the hooked block."""
    from datasets import Dataset, disable_progress_bars
    from sae_lens import CacheActivationsRunner, CacheActivationsRunnerConfig  # pyright: ignore[reportMissingImports]
    from sae_lens import cache_activations_runner as module  # pyright: ignore[reportMissingImports]

    disable_progress_bars()
    module.tqdm = lambda items, **_: items
    d_model, n_tokens = loaded("bare", dtype).config.hidden_size, inputs.n_tokens
    config = CacheActivationsRunnerConfig(
        dataset_path="",
        model_name=str(peers.folder()),
        model_class_name="AutoModelForCausalLM",
        model_from_pretrained_kwargs={"dtype": dtype},
        model_batch_size=batch,
        hook_name=f"model.layers.{MIDDLE}",
        d_in=d_model,
        training_tokens=n_tokens,
        context_size=LENGTH,
        new_cached_activations_path=str(folder),
        shuffle=False,
        dtype="float32",  # it knows no bfloat16, and float16 is slower
        device="cpu",
        buffer_size_gb=(n_tokens * d_model * 4 + 1) / 1e9,
        prepend_bos=False,
        streaming=False,
    )
    warnings.filterwarnings("ignore", module="sae_lens")
    return CacheActivationsRunner(config, override_dataset=Dataset.from_dict({"input_ids": inputs.rows}))


class Ours:
    """`interp.record` into a folder of its own each time."""

    def __init__(self, inputs: Inputs, layers: Sequence[int], dtype: torch.dtype, home: Path) -> None:
        self.model = loaded("ours", dtype)
        self.sites = [f"resid_post:{layer}" for layer in layers]
        self.inputs, self.home = inputs, home

    def __call__(self, dtype: str = "bfloat16") -> Any:
        """Record everything."""
        path = tempfile.mkdtemp(dir=self.home)
        options = self.inputs.options
        return interp.record(
            self.model, self.inputs.texts, self.sites, path=path, dtype=dtype, progress=False, **options
        )


# ------------------------------------------------------------------------------------------------------------- runs


def case(
    source: str, inputs: Inputs, sites: str, dtype: torch.dtype, rounds: int, folder: str | None
) -> dict[str, Any]:
    """Check that all computed the same, choose each peer's batches, time, and return the row of the result file."""
    layers = [MIDDLE] if sites == "one" else list(range(loaded("bare", dtype).config.num_hidden_layers))
    what = f"recording {source}, {sites}, {str(dtype).removeprefix('torch.')}"
    with tempfile.TemporaryDirectory(prefix="record-", dir=folder) as home, torch.inference_mode():
        ours, others = Ours(inputs, layers, dtype, Path(home)), passes(layers, dtype)
        errors = check(ours, others, inputs, dtype)
        sizes = {name: best_size(run, inputs, SIZES[source]) for name, run in others.items()}
        contestants: dict[str, Callable[[], Any]] = {"ours": ours}
        for name, run in others.items():
            contestants[name] = functools.partial(drain, run, batches(inputs.rows, sizes[name]))
        if sites == "one" and source == "wikitext":
            # Its buffer must hold whole batches.
            sizes["saelens"] = max(size for size in (1, 2, 4, 8, 16, 32) if len(inputs.rows) % size == 0)
            contestants["saelens"], errors["saelens"] = saelens(inputs, dtype, sizes["saelens"], Path(home), ours)
        else:
            print(f"{what}: SAELens is left out, it caches one site a run, from rows of one length")
        seconds = alternate(contestants, rounds=rounds, warm_up=0)  # the checks and trials warmed all of them up
    return {
        "what": what,
        "texts": len(inputs.rows),
        "tokens": inputs.n_tokens,
        "tokens_per_s": inputs.n_tokens / statistics.median(seconds["ours"]),
        **{f"{name}_s": statistics.median(values) for name, values in seconds.items()},
        **{f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"},
        "batch_sizes": sizes,
        "row_errors": errors,
        "rounds": rounds,
    }


def saelens(
    inputs: Inputs, dtype: torch.dtype, batch: int, home: Path, ours: Ours
) -> tuple[Callable[[], Any], tuple[float, float]]:
    """SAELens as a contestant, and its error against ours."""
    runner, numbers = saelens_runner(inputs, dtype, batch, home / "saelens"), itertools.count()

    def run() -> Any:
        runner.cfg.new_cached_activations_path = str(home / f"saelens{next(numbers)}")
        return runner.run()

    found = run().with_format("torch")[:4]
    expected = ours("float32").rows(ours.sites[0], slice(0, 4 * LENGTH))
    assert found["token_ids"].tolist() == inputs.rows[:4], "SAELens read other tokens"
    return run, checked("saelens", found[f"model.layers.{MIDDLE}"].flatten(0, 1), expected, dtype)


def check(ours: Ours, others: dict[str, Pass], inputs: Inputs, dtype: torch.dtype) -> dict[str, tuple[float, float]]:
    """(median, largest) relative error of each peer's rows against ours, over eight texts and the sites it gives."""
    store = ours("float32")
    ids = store.tokens.token_id.to_numpy()
    assert ids.tolist() == [token for row in inputs.rows for token in row], "ours read other tokens"
    starts = [0, *itertools.accumulate(map(len, inputs.rows))]
    sample = [len(inputs.rows) * part // 8 for part in range(8)]
    found = {}
    for name, run in others.items():
        rows, expected = [], []
        for text in sample:
            streams = next(run([torch.tensor([inputs.rows[text]])]))
            for site, stream in zip(ours.sites[-len(streams) :], streams, strict=True):
                rows.append(stream[0].float())
                expected.append(store.rows(site, slice(starts[text], starts[text + 1])))
        found[name] = checked(name, torch.cat(rows), torch.cat(expected), dtype)
    return found


def checked(name: str, rows: Tensor, expected: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """(median, largest) error relative to the row's norm.

    In bfloat16 another order of adding moves single rows by a tenth, hence the median there.
    """
    errors = (rows - expected).norm(dim=-1) / expected.norm(dim=-1)
    middle, largest = float(errors.median()), float(errors.max())
    within = largest < 1e-4 if dtype == torch.float32 else middle < 0.05
    assert within, f"{name} recorded something else: row errors {middle:.1e} (median), {largest:.1e} (largest)"
    return middle, largest


def best_size(run: Pass, inputs: Inputs, sizes: Sequence[int]) -> int:
    """The batch size with most tokens a second, each tried once on the first rows. It warms the contestant up as well."""
    rows = inputs.rows[: max(sizes)]
    return min(sizes, key=lambda size: seconds_of(run, batches(rows, size)))


def seconds_of(run: Pass, todo: Sequence[Tensor]) -> float:
    """Time of one run."""
    start = time.perf_counter()
    drain(run, todo)
    return time.perf_counter() - start


def drain(run: Pass, todo: Sequence[Tensor]) -> None:
    """Compute every batch and keep none."""
    for _ in run(todo):
        pass


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, and those of the result file that were not measured again."""
    path = RESULTS / "record.json"
    before = json.loads(path.read_text())["rows"] if path.is_file() else []
    new = {row["what"]: row for row in rows}
    return [new.pop(row["what"], row) for row in before] + list(new.values())


if __name__ == "__main__":
    main()
