"""The families that are read, and which of them a checkpoint belongs to."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.weights import (
    bert,
    bloom,
    deepseek_v3,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gptj,
    llama,
    mistral,
    mixtral,
    olmo2,
    opt,
    phi3,
    qwen2,
    qwen3,
)
from interp.weights.family import Family

FAMILIES: tuple[Family, ...] = (
    gpt2.FAMILY,
    gpt_neox.FAMILY,
    gptj.FAMILY,
    opt.FAMILY,
    bloom.FAMILY,
    falcon.FAMILY,
    llama.FAMILY,
    mistral.FAMILY,
    mixtral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    phi3.FAMILY,
    olmo2.FAMILY,
    deepseek_v3.FAMILY,
    bert.FAMILY,
)

GGUF_FAMILIES = {family.gguf.architecture: family for family in FAMILIES if family.gguf is not None}
"""`general.architecture` of a GGUF file -> family."""


def families() -> pd.DataFrame:
    """What `interp.load` reads: family, architecture, model_type, members, attention, positions, norm, gguf, note.

    `architecture` is the word in config.json's `architectures`; `gguf` says whether llama.cpp's files of it are read.
    """
    columns = ["family", "architecture", "model_type", "members", "attention", "positions", "norm", "gguf", "note"]
    rows = [
        (
            *(family.name, family.architecture, family.model_type, family.members, family.attention),
            *(family.positions, family.norm, family.gguf is not None, family.note),
        )
        for family in FAMILIES
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def family_of(config: Mapping[str, Any], name: str) -> Family:
    """The family by config.json's `architectures`, or else `model_type`.

    Raises:
        ValueError: none of them; the message names those that there are, and how to add one.
    """
    architecture = (config.get("architectures") or [None])[0]
    for family in FAMILIES:
        if architecture in family.names or (architecture is None and config.get("model_type") == family.model_type):
            return family
    raise ValueError(
        f"{name} is a {architecture or config.get('model_type')!r}; supported are "
        f"{', '.join(family.architecture for family in FAMILIES)}. Another family needs one file in interp/weights: "
        "see family.py"
    )
