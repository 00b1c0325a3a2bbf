"""Commands that look at single latents: their pages, labels, and searches among them."""

import contextlib
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

import interp
from interp.cli.output import json_option, show
from interp.cli.sae_figures import chosen_rows, read_directions, read_sae, sae_argument, site_option, store_option
from interp.cli.shared import seed_option, top_option, work_bar
from interp.sae.evaluate import DENSE
from interp.sae.features import LatentPage, SAEFeatures, load_sae_features, sae_features
from interp.sae.labels import (
    SAELabels,
    detection_score,
    endpoint_explainer,
    endpoint_judge,
    label_latents,
    load_sae_labels,
    statistics_explainer,
)
from interp.sae.search import search_by_direction, search_by_prompt, search_by_token

_folder = click.argument("folder", type=click.Path(path_type=Path))


def _new_folder(ctx: click.Context, option: click.Parameter, path: Path) -> Path:  # noqa: ARG001 (click's)
    """A place for a folder, looked at before the work and not after it."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise click.BadParameter(f"{path} exists already: remove it, or choose another place")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise click.BadParameter(f"{path} cannot be made: {above} is a file")
    return path


_out = click.option(
    "--out", required=True, type=click.Path(path_type=Path), callback=_new_folder, help="New folder for the result."
)


@click.command(
    epilog="Example: interp sae features sae.safetensors --store runs/corpus --model smollm2-135m --out latents"
)
@sae_argument
@store_option
@click.option("--model", help="Adds the texts of tokens, and those that each latent raises and lowers.")
@click.option(
    "--rows", "which", default="all", show_default=True, type=click.Choice(["held-out", "training", "all"]),
    help="Rows of the store; a split is known where the file was trained on it.",
)  # fmt: skip
@click.option(
    "--examples", default=10, show_default=True, type=click.IntRange(min=1), help="Examples kept of each latent."
)
@site_option
@seed_option
@_out
@json_option
def features(
    sae: Path,
    store: str,
    model: str | None,
    which: str,
    examples: int,
    site: str | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """What every latent fires on: one pass over a store of every token, and tables in a folder."""
    found, rows_of = read_sae(sae, site=site), interp.open_store(store)
    rows, what = chosen_rows(found, rows_of, which, None, None)
    loaded = None if model is None else interp.load(model)
    result = sae_features(found, rows_of, rows=rows, model=loaded, path=out, n_examples=examples, seed=seed)
    latents = result.latents
    density = latents["density"].to_numpy(np.float64)
    fires = density[latents["n_active"].to_numpy() > 0]
    said = {
        "folder": str(out), "latents": len(latents), "fire": len(fires), "dense": int((density > DENSE).sum()),
        "median density of those that fire": float(np.median(fires)), "rows": result.n_rows, "left out": result.n_left_out,
        "rows are": what,
    }  # fmt: skip
    show(said, as_json, title=f"{out}; `interp sae show {out} LATENT` shows one")


@click.command("show", epilog="Example: interp sae show latents 1234 --model smollm2-135m")
@_folder
@click.argument("latent", type=int)
@click.option("--model", help="For the texts of the tokens; else their ids are shown.")
@click.option("--labels", type=click.Path(path_type=Path, exists=True), help="Folder of labels, to show the latent's.")
@click.option("--examples", default=8, show_default=True, type=click.IntRange(min=0), help="Examples shown.")
@click.option(
    "--before", default=12, show_default=True, type=click.IntRange(min=0), help="Tokens before the one that fires."
)
@click.option("--after", default=6, show_default=True, type=click.IntRange(min=0), help="Tokens after it.")
@json_option
def show_latent(
    folder: Path,
    latent: int,
    model: str | None,
    labels: Path | None,
    examples: int,
    before: int,
    after: int,
    as_json: bool,
) -> None:
    """The page of one LATENT: how often it fires, on what, what it does, and examples; >> << marks the token that fires."""
    page = load_sae_features(folder).latent(latent)
    loaded = None if model is None else interp.load(model)
    label = None if labels is None else _label(load_sae_labels(labels), page.latent)
    windows = page.contexts(before=before, after=after, model=loaded)
    strongest = windows.loc[(windows["group"] == 0) & (windows["rank"] < examples)]
    if as_json:
        row = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in page.row.items()}
        show({**row, "label": label, "examples": _examples(strongest)}, as_json=True)
        return
    click.echo("\n".join(_page(page, label)))
    for example in _examples(strongest):
        click.echo(f"{example['value']:8.3f}  {example['passage']}")


def _label(labels: SAELabels, latent: int) -> str:
    """Its label, or why it has none."""
    try:
        return labels.label(latent)
    except ValueError as error:
        return f"none ({error})"


def _page(page: LatentPage, label: str | None) -> list[str]:
    row = page.row
    lines = [f"latent {page.latent} of {', '.join(page.features.sites)}"]
    if label is not None:
        lines.append(f"label: {label}")
    if row["n_active"] == 0:
        return [*lines, f"never fires on these n = {page.features.n_rows:,} rows"]
    lines.append(
        f"fires on {row['density']:.3%} of n = {page.features.n_rows:,} rows ({row['n_active']:,}); maximum {row['max']:.3f}, "
        f"mean where it fires {row['mean_active']:.3f}"
    )
    tops = row.get("top_tokens")
    named = [f"[{i}]" for i in row["top_token_ids"]] if tops is None else [repr(str(token)) for token in tops]
    lines.append("fires on   " + ", ".join(f"{n} {s:.0%}" for n, s in zip(named, row["top_token_shares"], strict=True)))
    for name, verb in (("up", "raises"), ("down", "lowers")):
        if row.get(f"{name}_tokens") is not None:
            pairs = zip(row[f"{name}_tokens"], row[f"{name}_values"], strict=True)
            lines.append(f"{verb:<10} " + ", ".join(f"{str(token)!r} {value:+.2f}" for token, value in pairs))
    for name, figure, what in (
        ("decoder_latents", "decoder_cosines", "near"),
        ("cofiring_latents", "cofiring_phi", "fires with"),
    ):
        pairs = zip(row[name], row[figure], strict=True)
        lines.append(f"{what:<10} " + ", ".join(f"{number} ({value:.2f})" for number, value in pairs))
    return [*lines, "strongest examples:"]


def _examples(windows: pd.DataFrame) -> list[dict[str, Any]]:
    """One for each example: value, text, position, passage with the token that fires marked."""
    found = []
    for rank, tokens in windows.groupby("rank"):
        names = tokens["token"].tolist() if "token" in tokens else [f"[{i}]" for i in tokens["token_id"]]
        at = tokens["offset"].tolist().index(0)
        parts = [*names[:at], f">>{names[at]}<<", *names[at + 1 :]]
        own = tokens.iloc[at]
        passage = " ".join("".join(parts).split())
        found.append({
            "rank": int(str(rank)), "value": float(own["value"]), "text": int(own["text"]), "position": int(own["position"]),
            "passage": passage,
        })  # fmt: skip
    return found


@click.command(epilog="Example: interp sae label latents --store runs/corpus --model smollm2-135m --out labels --score")
@_folder
@store_option
@click.option("--model", required=True, help="For the texts of the tokens.")
@click.option("--latent", "latents", multiple=True, type=int, help="Only this one; may be repeated.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many, those that fire most often first.")
@click.option(
    "--endpoint", is_flag=True,
    help="Ask the OpenAI-compatible endpoint of INTERP_EXPLAINER_URL (with _MODEL and _KEY): passages are sent there.",
)  # fmt: skip
@click.option("--score", is_flag=True, help="Also score each label by detection on passages that it was not made from.")
@seed_option
@_out
@json_option
def label(
    folder: Path, store: str, model: str, latents: tuple[int, ...], limit: int | None, endpoint: bool, score: bool, seed: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Put latents into words, by statistics of what they fire on, or by a language model behind an endpoint.

    Answers are kept as they come beside OUT, so that a run that was stopped goes on.
    """
    explainer, judge = (endpoint_explainer(), endpoint_judge()) if endpoint else (statistics_explainer, None)
    found, rows, loaded = load_sae_features(folder), interp.open_store(store), interp.load(model)
    chosen = list(latents) or _frequent(found, limit)
    journals = [out.with_name(f"{out.name}.{name}.jsonl") for name in ("labels", "scores")]
    with work_bar("labels", hidden=as_json) as move:
        labels = label_latents(
            found, rows, loaded, explainer, latents=chosen, path=journals[0], seed=seed, progress=move
        )
    if score:
        with work_bar("scores", hidden=as_json) as move:
            scores = detection_score(found, rows, loaded, labels, judge, seed=seed, path=journals[1], progress=move)
        labels = labels.scored(scores.to_frame())
    labels.save(out)
    for journal in journals:
        journal.unlink(missing_ok=True)
    frame = labels.to_frame().drop(columns=["rule", "shown_texts"])
    show(frame, as_json, title=str(out), limit=40)
    if not as_json:
        click.echo(labels.summary())


def _frequent(found: SAEFeatures, limit: int | None) -> list[int]:
    rows = found.latents.loc[found.latents["n_active"] > 0].sort_values(by="n_active", ascending=False, kind="stable")
    return rows["latent"].head(limit or len(rows)).astype(int).tolist()


@click.command(
    epilog="Example: interp sae search sae.safetensors --prompt 'The capital of France' --model smollm2-135m"
)
@click.argument("source", metavar="SAE|FOLDER", type=click.Path(path_type=Path))
@click.option("--token", help="Latents that fire on this token, or raise or lower it; SOURCE is a folder of features.")
@click.option("--prompt", help="Latents that fire on this text.")
@click.option("--like", type=click.Path(path_type=Path), help="Latents along this steering vector or probe.")
@click.option("--model", help="For --prompt.")
@click.option("--features", "folder", type=click.Path(path_type=Path), help="For --prompt: adds how often each fires.")
@click.option("--per-token", is_flag=True, help="For --prompt: the strongest latents of each token.")
@site_option
@seed_option
@top_option
@json_option
def search(
    source: Path, token: str | None, prompt: str | None, like: Path | None, model: str | None, folder: Path | None,
    per_token: bool, site: str | None, seed: int, top: int, as_json: bool,
) -> None:  # fmt: skip
    """Find latents by a token, by what a prompt makes fire, or by a direction."""
    if sum(each is not None for each in (token, prompt, like)) != 1:
        raise click.UsageError("give --token, --prompt or --like: one of the three")
    if (prompt is None) != (model is None):
        raise click.UsageError("--prompt and --model go together")
    if prompt is None and (folder is not None or per_token):
        raise click.UsageError("--features and --per-token go with --prompt")
    if token is not None:
        with _wants(source, "a folder of features (interp sae features makes one)"):
            known = load_sae_features(source)
        frame = search_by_token(
            known, int(token) if token.isdigit() and "top_tokens" not in known.latents else token, n=top
        )
    else:
        with _wants(source, "an SAE"):
            sae = read_sae(source, site=site)
        if like is not None:
            frame = search_by_direction(sae, read_directions(like), n=top, seed=seed)
        else:
            known = None if folder is None else load_sae_features(folder)
            loaded = interp.load(str(model))
            frame = search_by_prompt(sae, loaded, str(prompt), n=top, per_token=per_token, features=known)
    show(frame, as_json)


@contextlib.contextmanager
def _wants(source: Path, what: str) -> Any:
    """Say what the argument should have been, where it is something else."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(f"{source} is not {what}: {error}") from None


COMMANDS = (features, show_latent, label, search)
