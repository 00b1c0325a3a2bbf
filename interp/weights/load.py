"""`load`: a model from a name, a folder or a file.

1. Find what is meant: a catalogue name, a Hugging Face folder, a .gguf file, or a hub id.
2. Open it as a `Checkpoint`: configuration, tensors that are read on demand, tokenizer. No code of the model's author
   is ever run, and no pickle is opened.
3. Build a HookedTransformer over untouched memory and assign the tensors. Those of the right dtype stay views of the
   mapped file: loading takes a tenth of a second and no memory of its own.
"""

import difflib
import logging
import os
import re
from pathlib import Path

import torch

from interp.model import HookedTransformer
from interp.weights import catalog
from interp.weights.checkpoint import Checkpoint, read_folder
from interp.weights.families import GGUF_FAMILIES, family_of
from interp.weights.family import fill
from interp.weights.gguf import read_gguf

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

logger = logging.getLogger("interp")

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""What is taken from the hub: data, never code or pickles."""


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    revision: str | None = None,
    quantize: str | None = None,
) -> HookedTransformer:
    """Load a pretrained model. Weights are raw: its logits are the checkpoint's.

    Args:
        name_or_path: a catalogue name (`interp.models()` lists them), a Hugging Face folder with safetensors, a .gguf
            file, or a hub id such as "HuggingFaceTB/SmolLM2-135M".
        dtype: of the parameters: "float32", "bfloat16", "float16" or "float64". Another dtype than the checkpoint's
            costs memory, since then the tensors are not the mapped file.
        device: where the model goes.
        revision: commit, tag or branch of a hub id. Without it the hub's newest is taken; pin a commit for a study.
        quantize: "int8" rounds the matrices to 8-bit integers with a scale for each row: a quarter of fp32's memory in
            the end, at an error that is measured against the whole weights, shown, and kept in `model.note`. The
            stream stays in `dtype`. None leaves the weights whole.

    Returns:
        The model in evaluation mode, its parameters frozen.

    Raises:
        ValueError: an unknown name (the nearest are named), a missing or damaged file, pickled weights, an
            architecture or option that is not supported, weights that do not fit their configuration, or int8 from
            float16.
        ConnectionError: a download that failed; the message says what to do without a network.
    """
    wanted, place = _dtype(dtype), usable_device(device)
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize={quantize!r} is unknown: use 'int8', or None for whole weights")
    checkpoint = _open(str(name_or_path), revision)
    family = family_of(checkpoint.config, checkpoint.name)
    cfg = family.configure(checkpoint.config, checkpoint.name)
    if checkpoint.tokenizer is not None and checkpoint.tokenizer.vocab_size > cfg.d_vocab:
        raise ValueError(
            f"the tokenizer of {cfg.name} has {checkpoint.tokenizer.vocab_size} tokens, but the embedding only "
            f"{cfg.d_vocab} rows: it belongs to another model, or has tokens added that the model never got"
        )
    model = HookedTransformer(cfg, checkpoint.tokenizer, dtype=wanted, blank=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = fill(family, cfg, checkpoint.tensors, shapes, wanted)
    model.load_state_dict(state, assign=True)
    model.requires_grad_(False)
    model.note = checkpoint.note
    model = model.to(place)
    if quantize is None:
        return model
    from interp.model.int8 import quantize_int8  # here, for few ask for it

    report = quantize_int8(model)
    logger.warning("%s: %s", cfg.name, report)  # a warning: figures from this model are not the checkpoint's
    return report.model


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    known = {**DTYPES, **{d: d for d in DTYPES.values()}}
    if dtype not in known:
        raise ValueError(f"dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
    return known[dtype]


def usable_device(device: str | torch.device) -> torch.device:
    """The device, where a tensor can be made on it; ValueError elsewhere."""
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used here ({_first_line(error)}): choose another") from None
    return place


# ---------------------------------------------------------------------------------------------- what the name means


def _open(name: str, revision: str | None) -> Checkpoint:
    path = Path(name).expanduser()
    entry = catalog.find(name)
    hub = entry is None and not path.exists() and not name.endswith(".gguf") and HUB_ID.fullmatch(name) is not None
    if revision is not None and not hub:
        raise ValueError(f"revision={revision!r} is for hub ids, and {name!r} is none: leave it out")
    if entry is not None:
        return _open_entry(entry)
    if hub:
        return _open_hub(name, revision)
    if path.is_dir():
        return read_folder(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return _read_gguf(path)
        raise ValueError(f"{path} is not a .gguf file; pass the folder of a Hugging Face model, not one of its files")
    raise ValueError(_unknown(name))


def _read_gguf(path: Path) -> Checkpoint:
    return read_gguf(path, GGUF_FAMILIES)


def _open_entry(entry: catalog.Entry) -> Checkpoint:
    folder = catalog.ensure(entry, _read_gguf)
    try:
        return read_folder(folder)
    except ValueError as error:
        raise ValueError(f"{error}. It was made from the catalogue: remove {folder} and load again") from error


def _open_hub(name: str, revision: str | None) -> Checkpoint:
    """Download the configuration, tokenizer and safetensors of a hub id, or take them from the hub's own cache."""
    # Imported here, for it costs half a second that no other way of loading needs.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ValueError(
            f"there is no folder {name} here, and the hub has no {name!r} for you{_at(revision)}: {_first_line(error)}"
        ) from error
    except OSError as error:
        raise ConnectionError(
            f"could not download {name!r}{_at(revision)} ({_first_line(error)}), and there is no folder {name} here. "
            "Without a network: download its "
            "config.json, tokenizer.json, tokenizer_config.json and *.safetensors elsewhere and pass the folder"
        ) from error
    return read_folder(Path(folder), name)


def _at(revision: str | None) -> str:
    return "" if revision is None else f" at revision {revision!r}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), catalog.names(), n=3, cutoff=0.4)
    if name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1:
        return f"there is no file or folder {name}"
    return (
        f"there is no model {name!r}: it is not in the catalogue ({', '.join(catalog.names())}), no folder, no .gguf "
        f"file, and no hub id of the form org/name{f'. Did you mean {near[0]!r}?' if near else ''}"
    )
