"""Read an SAE of any known format, by what its files look like; write one in another library's format."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from interp.sae.formats import circuit_tracer, dictionary_learning, gemma_scope, openai_sae, saelens, sparsify
from interp.sae.formats.reading import logger
from interp.sae.formats.saelens_save import save_saelens
from interp.sae.model import SAE, load_sae

_READERS: dict[str, tuple[Callable[..., SAE], str, tuple[str, ...]]] = {
    "interp": (load_sae, "a .safetensors file that SAE.save wrote", ()),
    "saelens": (
        saelens.load_saelens,
        f"a folder with {saelens.CONFIG} and {saelens.WEIGHTS}",
        ("site", "target", "normalized"),
    ),
    "dictionary_learning": (
        dictionary_learning.load_dictionary_learning,
        f"a folder with {dictionary_learning.CONFIG} and {dictionary_learning.WEIGHTS}",
        ("site",),
    ),
    "sparsify": (
        sparsify.load_sparsify,
        f"a folder with {sparsify.CONFIG} and {sparsify.WEIGHTS}",
        ("site", "target"),
    ),
    "gemma_scope": (
        gemma_scope.load_gemma_scope,
        f"{' or '.join(gemma_scope.FILES)}, or a folder with one of them",
        ("site", "target"),
    ),
    "openai": (openai_sae.load_openai_sae, "a .pt file with the state of one autoencoder", ("site", "normalized")),
    "circuit_tracer": (
        circuit_tracer.load_circuit_tracer,
        "a .safetensors file with W_enc [latent d], such as layer_3.safetensors",
        ("site", "target"),
    ),
}
"""Format -> its reader, what it looks like, and the options of import_sae that it takes."""

FORMATS = tuple(_READERS)


def import_sae(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    site: str | None = None,
    target: str | None = None,
    normalized: bool = False,
) -> SAE:
    """Read an SAE or transcoder that this or another library saved.

    Args:
        path: the file or folder.
        format: one of FORMATS; None looks at the files. The card's `imported` says which it was.
        site: full name or shorthand of what it reads, where the files do not say it.
        target: of what a transcoder writes.
        normalized: read an SAE that normalises rows by itself as an SAE of normalised rows, see `normalize_rows`.

    Raises:
        ValueError: files of no known format or of several, of a kind that no `SAE` can be, damaged, or with code in them
            (which is not run); an option that the format does not take.
    """
    place = Path(path)
    chosen = format if format is not None else detect_format(place)
    if chosen not in _READERS:
        raise ValueError(f"there is no SAE format {chosen!r} to read; there are {', '.join(FORMATS)}")
    reader, _, takes = _READERS[chosen]
    options: dict[str, Any] = {"site": site, "target": target, "normalized": normalized}
    options = {name: value for name, value in options.items() if value not in (None, False)}
    foreign = [name for name in options if name not in takes]
    if foreign:
        raise ValueError(f"{place} is of the format {chosen}, which takes no {', '.join(foreign)}: leave it out")
    logger.info("%s: an SAE of the format %s", place, chosen)
    return reader(place, **options)


def export_sae(sae: SAE, path: str | os.PathLike[str], format: str = "saelens", **options: Any) -> Path:
    """Write an SAE for another library.

    Args:
        sae: an SAE, or a transcoder of the architecture relu or jumprelu (kinds batchtopk, matryoshka, jumprelu, standard):
            SAELens has no topk and gated transcoders, and no crosscoders.
        path: the folder to make; it must not exist, or be empty.
        format: "saelens", a folder of SAELens 6 that its `SAE.load_from_disk` reads.
        options: of `interp.sae.formats.save_saelens`: model_name (by which SAELens loads the model), context_size (tokens of
            a training text), prepend_bos (whether those begin with one), density (share of the rows in which each latent
            fires, [latent], for sparsity.safetensors).

    Returns:
        The folder.

    Raises:
        ValueError: another format, an option that there is not, or an SAE that the format has no form for.
    """
    if format != "saelens":
        raise ValueError(
            f"an SAE cannot be written as {format!r}; saelens is what there is (SAE.save writes our own form)"
        )
    known = list(inspect.signature(save_saelens).parameters)[2:]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"saelens takes no {', '.join(unknown)}; its options are {', '.join(known)}")
    return save_saelens(sae, path, **options)


def detect_format(path: str | os.PathLike[str]) -> str:
    """The format of a file or folder. ValueError where it is none or several; the message says what was looked for."""
    place = Path(path)
    if not place.exists():
        raise ValueError(f"there is no file or folder {place}")
    found = _of_folder(place) if place.is_dir() else _of_file(place)
    if len(found) == 1:
        return found[0]
    looked = "; ".join(f"{name}: {looks}" for name, (_, looks, _) in _READERS.items())
    if found:
        raise ValueError(
            f"{place} fits several formats ({', '.join(found)}): choose one by format=. Looked for: {looked}"
        )
    raise ValueError(f"{place} is no SAE of a known format{_hint(place)}. Looked for: {looked}")


def _of_folder(folder: Path) -> list[str]:
    pairs = {
        module.__name__.rpartition(".")[2]: (module.CONFIG, module.WEIGHTS)
        for module in (saelens, dictionary_learning, sparsify)
    }
    found = [name for name, files in pairs.items() if all((folder / file).is_file() for file in files)]
    return found + ["gemma_scope"] * any((folder / file).is_file() for file in gemma_scope.FILES)


def _of_file(file: Path) -> list[str]:
    if file.suffix in (".pt", ".pth"):
        return ["openai"]
    if file.suffix == ".npz":
        return ["gemma_scope"]
    try:
        with safe_open(file, framework="pt") as held:
            names, metadata = set(held.keys()), held.metadata() or {}
    except SafetensorError:
        return []
    if "card" in metadata:
        return ["interp"]
    if {"w_enc", "w_dec"} <= names:
        return ["gemma_scope"]
    return ["circuit_tracer"] if {"W_enc", "W_dec"} <= names else []


def _hint(place: Path) -> str:
    layers = sorted(file.name for file in place.glob("layer_*.safetensors")) if place.is_dir() else []
    if layers:
        return f" (it holds transcoders of {len(layers)} layers: give one of the files, such as {layers[0]})"
    inside = sorted(file.name for file in place.iterdir())[:8] if place.is_dir() else []
    return f" (it holds {', '.join(inside)})" if inside else ""
