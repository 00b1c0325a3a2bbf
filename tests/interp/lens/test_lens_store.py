"""The logit lens from a store says what a run on the same texts says, without running the model."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from crash import call
from tiny import shaken_model, tiny_model

import interp
from interp.lens import LensResult, logit_lens
from interp.model import HookedTransformer
from interp.recording import record
from interp.store import Store

TEXTS = ["hello there", "a", "the cat sat on the mat", "hi"]
FAMILIES = ("llama", "gpt2", "gemma2", "neox", "bloom", "sinusoidal", "mixtral", "deepseek", "bert")
EVERY = ["embed", "pos_embed", "resid_post:*"]


def recorded(model: HookedTransformer, path: Path, **options: object) -> Store:
    options = {"sites": "resid_post:*", "dtype": "float32", **options}
    return record(model, TEXTS, path=path, progress=False, **options)


def assert_same(found: LensResult, expected: LensResult, rows: object = slice(None), **close: float) -> None:
    close = close or {"atol": 1e-4, "rtol": 1e-4}
    assert found.sites == expected.sites
    for name in ("text", "pos", "token_ids"):
        assert torch.equal(getattr(found, name), getattr(expected, name)[rows])
    for name in ("entropy", "kl", "loss", "target_probs", "top_probs"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name)[:, rows], equal_nan=True, **close)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_store_says_what_a_run_says(family: str, tmp_path: Path) -> None:
    model = shaken_model(family, scale=2.0)
    end = "normalized_resid_post:*" if family == "bert" else "resid_post:*"
    parts = [name for name in ("pos_embed", "full_embed") if f"hook_{name}" in model.hook_dict]
    store = recorded(model, tmp_path / "store", sites=["embed", end, *parts])
    run = logit_lens(model, TEXTS)
    found = logit_lens(model, store)
    assert_same(found, run)
    assert torch.equal(found.top_ids[-1, :, 0], run.top_ids[-1, :, 0])


def test_all_rows_of_a_chunked_store_are_read(tiny: HookedTransformer, tmp_path: Path, monkeypatch) -> None:
    store = recorded(tiny, tmp_path / "store")
    whole = logit_lens(tiny, store)
    assert len(whole.text) == store.n_rows == sum(map(len, TEXTS))
    monkeypatch.setattr("interp.lens.source.STREAM_BYTES", 4 * 2 * 32 * 5)  # five rows at a time
    monkeypatch.setattr("interp.lens.read.LOGITS", 3 * 258)
    assert_same(logit_lens(tiny, store), whole)
    assert_same(logit_lens(tiny, TEXTS, sites="resid_post:*"), whole)  # one text at a time


def test_bf16_stores_agree_within_bf16(tiny: HookedTransformer, tmp_path: Path) -> None:
    store = recorded(tiny, tmp_path / "store", dtype="bfloat16")
    assert_same(logit_lens(tiny, store), logit_lens(tiny, TEXTS, sites="resid_post:*"), atol=0.3, rtol=0.1)


def test_the_next_token_is_known_where_the_next_row_was_not_kept(tiny: HookedTransformer, tmp_path: Path) -> None:
    store = recorded(tiny, tmp_path / "store", tokens=lambda view: view.pos % 3 == 0)
    run = logit_lens(tiny, TEXTS, sites="resid_post:*")
    found = logit_lens(tiny, store)
    rows = [
        int(((run.text == text) & (run.pos == pos)).nonzero())
        for text, pos in zip(store.tokens.text, store.tokens.position)
    ]
    assert_same(found, run, rows)
    last = torch.tensor([len(TEXTS[text]) - 1 == pos for text, pos in zip(store.tokens.text, store.tokens.position)])
    assert 0 < int(last.sum()) < len(rows)
    assert torch.equal(found.loss[0].isnan(), last)


def test_texts_and_rows_choose(tiny: HookedTransformer, tmp_path: Path) -> None:
    store = recorded(tiny, tmp_path / "store")
    whole = logit_lens(tiny, store)
    some = logit_lens(tiny, store, texts=[0, 2])
    assert_same(some, whole, (whole.text == 0) | (whole.text == 2))
    odd = np.arange(1, store.n_rows, 2)
    assert_same(logit_lens(tiny, store, rows=odd), whole, odd)
    assert_same(logit_lens(tiny, store.select("position > 0")), whole, whole.pos > 0)
    with pytest.raises(ValueError, match="of texts give those"):
        logit_lens(tiny, TEXTS, rows=[0])


def test_the_model_does_not_run(tiny: HookedTransformer, tmp_path: Path, monkeypatch) -> None:
    store = recorded(tiny, tmp_path / "store")
    monkeypatch.setattr(HookedTransformer, "forward", None)
    assert len(logit_lens(tiny, store, answer=["a", "z"]).followed()) == 2 * 2 * store.n_rows


def test_what_a_store_must_hold(tiny: HookedTransformer, tmp_path: Path) -> None:
    early = recorded(tiny, tmp_path / "early", sites="resid_post:0")
    with pytest.raises(ValueError, match=r"does not hold resid_post:1.*interp.record"):
        logit_lens(tiny, early)
    store = record(
        tiny, ["hello there"], "resid_post:*", tokens="mean", path=tmp_path / "store", dtype="float32", progress=False
    )
    with pytest.raises(ValueError, match="averages over tokens"):
        logit_lens(tiny, store)
    with pytest.raises(ValueError, match="another model"):
        logit_lens(tiny_model(seed=5), recorded(tiny, tmp_path / "other"))


def test_the_embedding_is_read_only_with_its_positions(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    with_positions = recorded(model, tmp_path / "both", sites=EVERY)
    assert_same(logit_lens(model, with_positions), logit_lens(model, TEXTS))
    without = recorded(model, tmp_path / "without", sites=["embed", "resid_post:*"])
    assert "hook_embed" not in logit_lens(model, without).sites
    with pytest.raises(ValueError, match="embed"):
        logit_lens(model, without, sites="embed")
    entry = recorded(model, tmp_path / "entry", sites=["resid_pre:0", "resid_post:*"])
    assert_same(logit_lens(model, entry), logit_lens(model, TEXTS))


def test_a_damaged_store_is_refused(tiny: HookedTransformer, tmp_path: Path, monkeypatch) -> None:
    store = recorded(tiny, tmp_path / "store")
    read = Store.rows
    broken = torch.full((store.n_rows, 32), torch.inf)
    monkeypatch.setattr(Store, "rows", lambda self, site, index: broken if ".0." in site else read(self, site, index))
    with pytest.raises(ValueError, match="resid_post:0 is NaN or infinite at text 0, position 0"):
        logit_lens(tiny, store)


# Memory -----------------------------------------------------------------------------------------------------------


class Peak:
    """The most memory of its own that a process has had over what it had at the beginning, in MB."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._begin = self._most = self._now()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._most = max(self._most, self._now())

    @property
    def mb(self) -> float:
        return (self._most - self._begin) / 1024

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, self._now())

    @staticmethod
    def _now() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def peak_of_a_lens() -> float:
    """MB of the lens over 30 layers x 1,000 tokens."""
    model = interp.load("smollm2-135m")
    ids = torch.randint(1000, 40000, (1000,), generator=torch.Generator().manual_seed(0))
    logit_lens(model, ids[:8])  # what torch prepares once
    with Peak() as peak:
        result = logit_lens(model, ids)
    assert result.entropy.shape == (31, 1000)
    return peak.mb


@pytest.mark.slow
def test_30_layers_and_1000_tokens_take_less_than_500_mb(smollm: HookedTransformer) -> None:
    peak = call(peak_of_a_lens)
    assert peak < 500  # all distributions would be 6 GB
