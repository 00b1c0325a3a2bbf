"""A run's folder with made-up numbers in the shape of real ones, and the app's pages on it without a browser."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browsing
import numpy as np
import pandas as pd
import pytest
import streamlit as st
from hostile import HOSTILE
from streamlit.testing.v1 import AppTest

import interp
from interp import artifact
from ui import library

APP = Path(__file__).parents[2] / "app"
PROMPT = "The Eiffel Tower is located in the city of"
PIECES = ["The", " E", "iff", "el", " Tower", " is", " located", " in", " the", " city", " of"]
N_LAYERS, N_HEADS, D_VOCAB = 30, 9, 49152


def make_run(folder: Path, pieces: list[str] = PIECES, prompt: str = PROMPT, seed: int = 0) -> Path:
    """Write everything that `interp demo` writes; figures are those of the real model where a reader would notice."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    _tokens(rng, pieces).to_parquet(folder / "tokens.parquet")
    _lens(rng, pieces).to_parquet(folder / "lens.parquet")
    _heads(rng).to_parquet(folder / "heads.parquet")
    _probes(rng).to_parquet(folder / "probes.parquet")
    artifact.write_json(folder / "probes.json", _probe_facts())
    artifact.write_json(folder / "sae.json", _sae())
    artifact.write_json(folder / "steering.json", _steering(rng))
    artifact.write_json(folder / "calibration.json", _calibration(rng))
    artifact.write_json(folder / "demo.json", _info(prompt))
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run. Read only."""
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose prompt, tokens, names and texts are an attack. Read only."""
    prompt = "".join(HOSTILE).replace("\x00", "")
    folder = make_run(tmp_path_factory.mktemp("runs") / "x", HOSTILE, prompt)
    info = artifact.read_json(folder / "demo.json")
    info["model"]["note"] = HOSTILE[0] + HOSTILE[4]
    info["findings"] = [{"what": text, "figure": text, "where": text} for text in HOSTILE]
    artifact.write_json(folder / "demo.json", info)
    steering = artifact.read_json(folder / "steering.json")
    steering["concept"] = HOSTILE[1]
    steering["generations"] = [{"prompt": text, "strength": s, "text": text} for text in HOSTILE for s in (0.0, 0.1)]
    artifact.write_json(folder / "steering.json", steering)
    return folder


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> Callable[..., AppTest]:
    """`open_page("lens", run=folder, model=model, query={...}, prompt=..., workspace=...)`: a page after its first run.

    Without `model` the live model cannot be loaded, so a page that needs it says so.
    """

    def opened(
        page: str,
        *,
        run: Path | None = run_folder,
        model: Any = None,
        query: dict[str, str] | None = None,
        prompt: str | None = None,
        workspace: Path | None = None,
    ) -> AppTest:
        st.cache_data.clear()
        st.cache_resource.clear()
        library.forget()
        monkeypatch.delenv("INTERP_STORES", raising=False)
        if workspace is None:
            monkeypatch.delenv("INTERP_WORKSPACE", raising=False)
        else:
            monkeypatch.setenv("INTERP_WORKSPACE", str(workspace))
        monkeypatch.delenv("INTERP_MODEL", raising=False)
        if run is None and model is not None:
            monkeypatch.setenv("INTERP_MODEL", "tiny")
        if run is None:
            monkeypatch.delenv("INTERP_RUN", raising=False)
        else:
            monkeypatch.setenv("INTERP_RUN", str(run))
        monkeypatch.setattr(
            interp, "models", lambda: pd.DataFrame({"name": ["none"], "alias": [""], "cached": [True]}), raising=False
        )
        monkeypatch.setattr(interp, "load", lambda name: model if model is not None else _absent(name), raising=False)
        test = AppTest.from_file(str(APP / "main.py"), default_timeout=60)
        test.switch_page(f"views/{page}.py")
        for key, value in (query or {}).items():
            test.query_params[key] = value
        if prompt is not None:
            test.query_params["prompt"] = prompt
        return test.run()

    return opened


def _absent(name: str) -> Any:
    raise ValueError(f"there is no model {name} here")


# ------------------------------------------------------------------------------------------------------ the numbers


def _info(prompt: str) -> dict[str, Any]:
    titles = {"lens": "Logit lens", "heads": "Head scores", "probes": "Truth probes", "sae": "Sparse autoencoder"}
    steps = [
        {"name": n, "title": t, "state": "done", "seconds": 12.5, "headline": f"{t} done", "files": [f"{n}.parquet"]}
        for n, t in titles.items()
    ]
    return {
        "format": 1,
        "model": {
            "name": "smollm2-135m-instruct-q4",
            "loads_as": "smollm2-135m",
            "note": "dequantised Q4_1, Instruct",
            "fingerprint": "3f8a2c9d5e",
            "n_layers": N_LAYERS,
            "n_heads": N_HEADS,
            "d_model": 576,
            "d_vocab": D_VOCAB,
        },
        "prompt": prompt,
        "steps": steps,
        "findings": [
            {
                "what": "Answer to the Eiffel prompt",
                "figure": "“ Paris”, p = 0.702, settles at layer 22",
                "where": "lens.parquet",
            },
            {"what": "Strongest induction head", "figure": "L18H6, 0.909 (n = 512)", "where": "heads.parquet"},
            {"what": "Truth probe, cities", "figure": "AUROC 0.938 [0.925, 0.950]", "where": "probes.parquet"},
            {
                "what": "SAE against a rank-64 PCA",
                "figure": "FVU 0.223 at L0 32, n = 73,856 held-out rows; PCA-8 0.681, PCA-32 0.467, PCA-64 0.334, PCA-128 0.186",
                "where": "sae.json",
            },
        ],
        "seconds": 284.0,
    }


def _tokens(rng: np.random.Generator, pieces: list[str]) -> pd.DataFrame:
    """Of the prompt and its answer, as the demo scores them."""
    n = len(pieces) + 1
    logprob = -rng.gamma(2.0, 2.0, n)
    return pd.DataFrame(
        {
            "text": 0,
            "pos": range(n),
            "token": [*pieces, " Paris"],
            "token_id": rng.integers(0, D_VOCAB, n),
            "logprob": pd.array([None, *logprob[1:]], dtype="Float64"),
            "entropy": rng.gamma(3.0, 1.2, n).astype(np.float32),
            "varentropy": rng.gamma(3.0, 1.0, n).astype(np.float32),
            "margin": rng.random(n).astype(np.float32),
            "top1": [*pieces[1:], " Paris", "."],
            "p_top1": rng.random(n).astype(np.float32),
            "rank": pd.array([*rng.integers(0, 400, n - 1), None], dtype="Int64"),
        }
    )


def _lens(rng: np.random.Generator, pieces: list[str]) -> pd.DataFrame:
    words = [" the", " and", "ing", " Tower", " place", " France", "\n", " famous", " city", "s"]
    rows = []
    for pos, token in enumerate(pieces):
        final, settle = (
            (" Paris", 22) if pos == len(pieces) - 1 else (str(rng.choice(words)), int(rng.integers(12, 29)))
        )
        for layer in range(-1, N_LAYERS):
            at = 1 / (1 + math.exp(-(layer - settle) / 2.5))
            settled = layer >= settle
            rows.append(
                {
                    "site": "embed" if layer < 0 else f"resid_post:{layer}",
                    "layer": layer,
                    "text": 0,
                    "pos": pos,
                    "token": token,
                    "top1": final if settled else str(rng.choice([w for w in words if w != final])),
                    "p_top1": float(np.clip(0.75 * at + rng.normal(0.08, 0.04), 0.02, 0.98)),
                    "entropy": float(max(0.3, 9 - 7 * at + rng.normal(0, 0.4))),
                    "kl": float(max(0.0, 14 * (1 - at) + rng.normal(0, 0.2))) if layer < N_LAYERS - 1 else 0.0,
                    "rank": 0 if settled else int(10 ** (4.4 * (1 - at))),
                    "target": " Paris",
                    "p_target": float(0.702 * at),
                    "settle_layer": settle,
                }
            )
    return pd.DataFrame(rows)


def _heads(rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame(
        [(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)], columns=["layer", "head"]
    )
    for metric in ("induction", "previous_token", "duplicate_token"):
        frame[metric] = rng.beta(0.35, 5.0, len(frame))
    known = {(18, 6): 0.909, (17, 3): 0.794, (17, 4): 0.736, (18, 7): 0.621, (17, 5): 0.580, (23, 2): 0.529}
    for (layer, head), value in known.items():
        frame.loc[(frame["layer"] == layer) & (frame["head"] == head), "induction"] = value
    frame["induction_low"] = (frame["induction"] - 0.02).clip(0, 1)
    frame["induction_high"] = (frame["induction"] + 0.02).clip(0, 1)
    frame["n"] = 512
    return frame


def _probes(rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for dataset, n, top in (("cities", 1496, 0.945), ("elements", 1180, 0.90)):
        for kind, less in (("logistic", 0.0), ("mass_mean", 0.03)):
            for layer in range(N_LAYERS):
                auroc = 0.5 + (top - less - 0.5) / (1 + math.exp(-(layer - 9.3) * 1.8)) + rng.normal(0, 0.004)
                rows.append(
                    {
                        "dataset": dataset,
                        "site": f"blocks.{layer}.hook_resid_post",
                        "layer": layer,
                        "kind": kind,
                        "auroc": auroc,
                        "low": auroc - 0.014,
                        "high": auroc + 0.013,
                        "accuracy": auroc - 0.06,
                        "brier": 0.26 - 0.16 * (auroc - 0.5) / 0.45,
                        "n": n,
                        "n_groups": n // 2,
                        "random_direction": 0.5 + 0.06 / (1 + math.exp(-(layer - 9) * 1.2)) + rng.normal(0, 0.004),
                    }
                )
    return pd.DataFrame(rows)


def _probe_facts() -> dict[str, Any]:
    def figure(auroc: float, n: int) -> dict[str, Any]:
        rest = {"accuracy": auroc - 0.06, "brier": 0.12, "n": n, "n_groups": n // 2}
        return {"auroc": auroc, "low": auroc - 0.014, "high": auroc + 0.012, **rest}

    def facts(n: int, layer: int, auroc: float) -> dict[str, Any]:
        extra = {"site": f"blocks.{layer}.hook_resid_post", "permuted": 0.497, "permuted_max": 0.521}
        return {
            "selected": {
                "logistic": {**figure(auroc, n), **extra},
                "mass_mean": {**figure(auroc - 0.028, n), **extra},
            },
            "baselines": {
                "bag_of_words": figure(0.471, n),
                "text_length": figure(0.512, n),
                "majority": figure(0.5, n),
            },
            "summary": f"logistic: AUROC {auroc:.3f}, n = {n:,} in {n // 2:,} groups.\nWithout a model: bag of words 0.471.",
        }

    return {"datasets": {"cities": facts(1496, 12, 0.938), "elements": facts(1180, 14, 0.893)}}


def _sae() -> dict[str, Any]:
    return {
        "fvu": 0.223,
        "fvu_low": 0.214,
        "fvu_high": 0.233,
        "fvu_all": 0.031,
        "l0": 32.1,
        "l0_p10": 19.0,
        "l0_p90": 47.0,
        "l0_max": 112,
        "dead_share": 0.041,
        "dense_share": 0.006,
        "n_latents": 4608,
        "pca": [{"rank": r, "fvu": f} for r, f in ((8, 0.681), (32, 0.467), (64, 0.334), (128, 0.186))],
        "n_rows": 73856,
        "n_left_out": 1204,
        "n_units": 412,
        "site": "blocks.10.hook_resid_post",
    }


def _steering(rng: np.random.Generator) -> dict[str, Any]:
    vector = [
        {"direction": "vector", "strength": s, "effect": 26 * s, "low": 26 * s - 0.5, "high": 26 * s + 0.4, "n": 18}
        for s in (-0.1, 0.0, 0.1)
    ]
    random = [
        {"direction": f"random {i} (isotropic)", "strength": 0.1, "effect": e, "low": e - 0.2, "high": e + 0.2, "n": 18}
        for i, e in enumerate(rng.normal(0, 0.3, 19).tolist())
    ]
    texts = {
        -0.1: "a waste of time. I left before the end, and I would not go again.",
        0.0: "about a man who comes back to his village after twenty years.",
        0.1: "wonderful. The actors were brilliant, and I would see it again at once.",
    }
    prompts = ("I watched the film last night and", "My week at work has been")
    return {
        "concept": "sentiment",
        "site": "resid_post:12",
        "effects": vector + random,
        "generations": [
            {"prompt": prompt, "strength": s, "text": text, "first_difference": 0 if s else None}
            for prompt in prompts
            for s, text in texts.items()
        ],
        "band": [],
        "card": {},
    }


def _calibration(rng: np.random.Generator) -> dict[str, Any]:
    edges = np.linspace(0, 1, 16)
    middle = (edges[1:] + edges[:-1]) / 2

    def report(gain: float, ece: float) -> dict[str, Any]:
        right = np.clip(0.5 + (middle - 0.5) * gain, 0, 1)
        bins = {
            "low": edges[:-1].tolist(),
            "high": edges[1:].tolist(),
            "n": rng.integers(5, 80, 15).tolist(),
            "confidence": middle.tolist(),
            "accuracy": right.tolist(),
            "accuracy_low": np.clip(right - 0.07, 0, 1).tolist(),
            "accuracy_high": np.clip(right + 0.07, 0, 1).tolist(),
        }
        return {"ece": ece, "n": 500, "n_bins": 15, "null_bands": {"ece": [0.021, 0.055]}, "bins": bins}

    questions = [
        {
            "format": "text",
            "n": 160,
            "accuracy": 0.87,
            "low": 0.81,
            "high": 0.91,
            "chance": 0.25,
            "informative": True,
            "ece": 0.06,
        },
        {
            "format": "letter",
            "n": 160,
            "accuracy": 0.24,
            "low": 0.18,
            "high": 0.31,
            "chance": 0.25,
            "informative": False,
            "ece": 0.6,
        },
    ]
    reports = {"before": report(0.6, 0.142), "after": report(0.97, 0.038)}
    return {**reports, "temperature": 1.83, "questions": questions}


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browsing.CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def app(run_folder: Path) -> Iterator[str]:
    """Address of a server on the made-up run."""
    yield from browsing.serve(run_folder)


@pytest.fixture(scope="module")
def hostile_app(hostile_run: Path) -> Iterator[str]:
    """Address of a server on the run that is an attack."""
    yield from browsing.serve(hostile_run)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[[str], browsing.Visit]]:
    """`visit(url)`: a page in a context of its own."""
    made: list[browsing.Visit] = []

    def open_page(url: str) -> browsing.Visit:
        made.append(browsing.Visit(browser, url))
        return made[-1]

    yield open_page
    for each in made:
        each.context.close()
