"""The scripts in `examples/` run as a user would run them, in a folder of their own, and print what they promise."""

import os
import re
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from interp import artifact

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NUMBER = r"([+-]?\d[\d.]*(?:e[+-]?\d+)?)"


def printed(name: str, folder: Path) -> str:
    """What a script prints; it must end well."""
    environment = {**os.environ, "INTERP_HOME": str(artifact.home())}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[tuple[float, ...]]:
    """The groups of each match, as numbers."""
    found = re.findall(pattern, text)
    assert found, f"{pattern} is not in {text}"
    return [tuple(map(float, (each,) if isinstance(each, str) else each)) for each in found]


def test_every_script_is_short_and_described() -> None:
    described = re.findall(r"^\| \[(.+?)\]\((.+?)\) \|", (EXAMPLES / "README.md").read_text("utf-8"), flags=re.M)
    assert sorted(link for _, link in described) == SCRIPTS
    assert all(name == link for name, link in described)
    for name in SCRIPTS:
        assert len((EXAMPLES / name).read_text("utf-8").splitlines()) < 20, name


@pytest.mark.slow
@pytest.mark.usefixtures("smollm")
def test_caa(tmp_path: Path) -> None:
    text = printed("caa.py", tmp_path)
    texts = re.split(r"^[+-]0\.\d\d$", text.split("preference:")[0], flags=re.M)[1:]
    assert len(set(texts)) == 3
    ((effect, low, high),) = numbers(rf"changes it by {NUMBER} \({NUMBER} to {NUMBER}\) nats", text)
    ((least, most),) = numbers(rf"random directions of that norm reach {NUMBER} to {NUMBER}:", text)
    assert 1 < effect < 10
    assert high > low > max(most, 0) > least
    ((loss,),) = numbers(rf"loss on other text changes by {NUMBER}", text)
    assert loss < 0.12


@pytest.mark.slow
@pytest.mark.usefixtures("smollm")
def test_iti(tmp_path: Path) -> None:
    text = printed("iti.py", tmp_path)
    ((effect, low, high),) = numbers(rf"changes it by {NUMBER} \({NUMBER} to {NUMBER}\) nats", text)
    assert high > effect > low > 0
    assert "3 random directions of that norm" in text


@pytest.mark.slow
@pytest.mark.usefixtures("smollm")
def test_directional_ablation(tmp_path: Path) -> None:
    text = printed("directional_ablation.py", tmp_path)
    spanish, english = numbers(rf"loss {NUMBER}, ablated {NUMBER}; in the weights: logits differ by {NUMBER}", text)
    assert max(spanish[2], english[2]) < 3e-4
    assert spanish[1] - spanish[0] > 2 * (english[1] - english[0])
    *_, plain, changed = text.splitlines()
    assert plain != changed


@pytest.mark.slow
@pytest.mark.usefixtures("smollm")
def test_conditional(tmp_path: Path) -> None:
    text = printed("conditional.py", tmp_path)
    gloomy, fine = (literal_eval(line) for line in text.splitlines()[:2])
    assert gloomy[0] != gloomy[1]
    assert fine[0] == fine[1]
    marked = dict(re.findall(r"^row (\d): (.*)$", text, flags=re.M))
    assert "[+" in marked["0"]
    assert "[" not in marked["1"]


@pytest.mark.slow
@pytest.mark.usefixtures("smollm")
def test_sae_latent(tmp_path: Path) -> None:
    text = printed("sae_latent.py", tmp_path)
    plain, added, pushed = text.splitlines()[-3:]
    assert "bird" in text.split("top_tokens")[1].splitlines()[0]
    assert added.count("bird") > plain.count("bird")
    assert pushed != plain
