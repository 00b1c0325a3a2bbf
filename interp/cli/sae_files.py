"""Commands on files of dictionaries: what is in one, and to and from other libraries."""

from pathlib import Path
from typing import Any

import click
import torch

import interp
from interp.cli.output import json_option, show
from interp.cli.sae_figures import format_choice, read_sae, sae_argument, site_option
from interp.cli.shared import work_bar
from interp.sae.features import load_sae_features
from interp.sae.formats import save_saelens
from interp.sae.formats.neuronpedia import export_neuronpedia
from interp.sae.labels import load_sae_labels
from interp.sae.model import SAE

_target = click.option("--target", help="What a transcoder writes, where its file does not say it.")
_path = click.Path(path_type=Path)


@click.command(
    "import", epilog="Example: interp sae import gemma/params.npz --site resid_post:12 --out sae.safetensors"
)
@click.argument("path", type=_path)
@click.option("--format", "format_", type=format_choice, help="Default: found out by the files.")
@site_option
@_target
@click.option("--normalized", is_flag=True, help="Read one that normalises each row as an SAE of normalised rows.")
@click.option("--out", required=True, type=_path, help="File to write.")
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@json_option
def import_(
    path: Path, format_: str | None, site: str | None, target: str | None, normalized: bool, out: Path, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Read an SAE of another library from PATH, and write it as one file of this one."""
    if out.is_dir():
        raise click.BadParameter(f"{out} is a folder; give the name of a file in it", param_hint="--out")
    if out.exists() and not force:
        raise click.BadParameter(f"{out} exists already: choose another, or overwrite with --force", param_hint="--out")
    sae = read_sae(path, format=format_, site=site, target=target, normalized=normalized)
    sae.save(out)
    show({"file": str(out), **_card(sae)}, as_json, title=str(out))


_NAMES = ("model_id", "source_set", "release", "creator")


@click.command(epilog="Example: interp sae export sae.safetensors --to saelens-folder")
@sae_argument
@click.option("--to", "folder", required=True, type=_path, help="Folder to write.")
@click.option(
    "--format", "format_", default="saelens", show_default=True, type=click.Choice(["saelens", "neuronpedia"])
)
@click.option("--features", type=_path, help="Folder of features: densities for saelens; needed for neuronpedia.")
@click.option("--model-name", help="saelens: name by which it loads the model.")
@click.option("--context-size", type=click.IntRange(min=1), help="saelens: tokens of a text in training.")
@click.option("--store", help="neuronpedia: the store that the features are of.")
@click.option("--model", help="neuronpedia: the model.")
@click.option("--labels", type=_path, help="neuronpedia: folder of labels.")
@click.option("--model-id", help="neuronpedia: its name of the model.")
@click.option("--source-set", help="neuronpedia: short name of author, hook and width, such as res-jb.")
@click.option("--release", help="neuronpedia: name of the release.")
@click.option("--creator", help="neuronpedia: who made it.")
@click.option("--latent", "latents", multiple=True, type=int, help="neuronpedia: only this one; may be repeated.")
@json_option
def export(
    sae: Path, folder: Path, format_: str, features: Path | None, model_name: str | None, context_size: int | None,
    as_json: bool, **neuronpedia: Any,
) -> None:  # fmt: skip
    """Write an SAE as a folder of SAELens 6, or its latents in Neuronpedia's import format."""
    given = {name: value for name, value in neuronpedia.items() if value}
    own = {"--model-name": model_name, "--context-size": context_size}
    foreign = (
        [_option(name) for name in given] if format_ == "saelens" else [name for name, value in own.items() if value]
    )
    if foreign:
        raise click.UsageError(f"--format {format_} takes no {', '.join(foreign)}")
    if format_ == "neuronpedia":
        missing = [_option(name) for name in ("store", "model", *_NAMES) if name not in given]
        missing += ["--features"] if features is None else []
        if features is None or missing:
            raise click.UsageError(f"--format neuronpedia needs {', '.join(missing)}")
        place = _neuronpedia(read_sae(sae), folder, features, given, quiet=as_json)
    else:
        density = None
        if features is not None:
            density = torch.tensor(load_sae_features(features).latents["density"].to_numpy())
        place = save_saelens(read_sae(sae), folder, model_name=model_name, context_size=context_size, density=density)
    files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    show({"folder": str(place), "files": files}, as_json, title=str(place))


def _neuronpedia(sae: SAE, folder: Path, features: Path, given: dict[str, Any], *, quiet: bool) -> Path:
    labels = load_sae_labels(given["labels"]) if "labels" in given else None
    with work_bar("latents", hidden=quiet) as move:
        return export_neuronpedia(
            load_sae_features(features), sae, interp.open_store(given["store"]), interp.load(given["model"]), folder,
            labels=labels, latents=list(given.get("latents", ())) or None, progress=move,
            **{name: given[name] for name in _NAMES},
        )  # fmt: skip


def _option(name: str) -> str:
    return "--latent" if name == "latents" else "--" + name.replace("_", "-")


@click.command(epilog="Example: interp sae info sae.safetensors")
@click.argument("path", type=_path)
@json_option
def info(path: Path, as_json: bool) -> None:
    """What an SAE is, how it was trained and on what; of any format that can be read."""
    found = {"file": str(path), **_card(read_sae(path))}
    show(found if as_json else {name: _said(value) for name, value in found.items() if value is not None}, as_json)


def _card(sae: SAE) -> dict[str, Any]:
    card = sae.card
    config = dict(card.get("config") or {})
    return {
        "architecture": sae.architecture,
        "kind": config.get("kind"),
        "latents": sae.n_latents,
        "k": sae.k,
        "reads": list(sae.sites) or None,
        "writes": list(sae.targets) if sae.is_transcoder else None,
        "width": sae.d_in if sae.d_in == sae.d_out else [sae.d_in, sae.d_out],
        "model": card.get("model"),
        "typical norms": card.get("typical_norms"),
        "rows": card.get("n_rows"),
        "steps": card.get("n_steps"),
        "held out": card.get("split"),
        "final": card.get("final"),
        "config": config or None,
        "imported": card.get("imported"),
        "provenance": card.get("provenance"),
    }


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else value


COMMANDS = (import_, export, info)
