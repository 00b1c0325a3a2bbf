"""What a vector is made of, and the options that go with it."""

from pathlib import Path

import pytest
import torch
from steer_jobs import write_inputs

from interp.probe import fit_probe
from interp.sae import SAE
from interp.steer_job import VectorSpec
from interp.steer_job.vectors import read_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, labelled texts, a probe and an SAE."""
    folder, width = write_inputs(tmp_path_factory.mktemp("sources")), 6
    rows = torch.randn(20, width, generator=torch.Generator().manual_seed(0))
    fit_probe(rows, [0, 1] * 10, "mass_mean", site="resid_post:0").save(folder / "probe.safetensors")
    card = {"site": "blocks.1.hook_resid_post", "typical_norm": 3.0, "kind": "sae"}
    SAE(rows.T.contiguous(), torch.zeros(20), rows, torch.zeros(width), k=2, card=card).save(folder / "sae.safetensors")
    return folder


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            "probe",
            {"method": "lda"},
            "probe.safetensors is a probe, whose direction is taken as it is: leave out method",
        ),
        ("probe", {"method": "lda", "tokens": "last", "C": 3.0, "heads": 4}, "leave out method, tokens, C, heads"),
        ("probe", {"latent": 7}, "latent is of an SAE, and probe.safetensors is a probe"),
        ("sae", {"latent": 7, "tokens": "answer"}, "sae.safetensors is an SAE, .*leave out tokens"),
        ("sae", {"latent": 7, "heads": 2}, "leave out heads"),
        ("sae", {}, "say which latent"),
        ("pairs", {"latent": 7}, "latent is of an SAE, and pairs.csv holds pairs"),
        ("labelled", {"latent": 7}, "latent is of an SAE, and labelled.csv holds texts"),
        ("pairs", {"heads": 7}, "heads are found with labelled texts or a store, and pairs.csv holds pairs"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    folder: Path, data: str, options: dict[str, object], message: str
) -> None:
    path = next(folder.glob(f"{data}.*"))
    with pytest.raises(ValueError, match=message):
        read_source(VectorSpec(data=str(path), **options))


def test_what_goes_together_is_taken(folder: Path) -> None:
    for name, options, kind in (
        ("probe.safetensors", {}, "probe"),
        ("sae.safetensors", {"latent": 7}, "sae"),
        ("labelled.csv", {"method": "lda", "heads": 2}, "texts"),
        ("pairs.csv", {"method": "logistic", "C": 0.1, "tokens": "last"}, "pairs"),
    ):
        assert read_source(VectorSpec(data=str(folder / name), **options)).kind == kind
