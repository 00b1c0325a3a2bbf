"""What a model family is: a table from checkpoint names to ours, and how its config.json becomes a ModelConfig.

To add a family, write one file like `llama.py` and add its `Family` to `FAMILIES` in `load.py`:

1. `rules`: one `Rule` for each kind of parameter, checkpoint name -> our name. `{l}` stands for the layer.
2. `configure`: config.json -> ModelConfig. Whatever changes the computation and is not supported is refused there; an
   option that is ignored would make every activation silently wrong.
3. `gguf`: the same for GGUF files, where the family has them.

`fill` is strict: every tensor of the checkpoint is used or known to be no weight, every parameter gets one, and all
shapes match.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.model import ModelConfig

View = Callable[[Tensor, ModelConfig], Tensor]


@dataclass(frozen=True)
class Rule:
    """One row of a family's table."""

    theirs: str
    """Name in the checkpoint, without the family's prefix."""
    ours: str
    """Name of the parameter; where the model has none (a bias that the configuration lacks) the rule is void."""
    view: View | None = None
    """Makes our layout from theirs, by a view where that is possible. None: it is the same."""


@dataclass(frozen=True)
class GGUF:
    """How llama.cpp writes the family."""

    architecture: str
    """`general.architecture` in the file."""
    configure: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], dict[str, Any]]
    """(metadata, tensor shapes) -> what config.json would say."""
    rules: tuple[Rule, ...]
    """GGUF name -> checkpoint name (with its prefix)."""
    ignorable: tuple[str, ...] = ()
    """Tensors that `configure` has read, or that are no weights."""


@dataclass(frozen=True)
class Family:
    """How checkpoints of one architecture are read."""

    name: str
    architecture: str
    """The word in config.json's `architectures`."""
    model_type: str
    """config.json's `model_type`."""
    prefix: str
    """Stands before most names, or (in files of the bare decoder) before none."""
    configure: Callable[[Mapping[str, Any], str], ModelConfig]
    """(config.json, model name) -> ModelConfig."""
    rules: tuple[Rule, ...]
    ignorable: tuple[str, ...]
    """Tensors that are no weights, such as masks and rotary tables that old files hold."""
    gguf: GGUF | None = None


def expand(rules: Iterable[Rule], n_layers: int) -> list[Rule]:
    """The table with `{l}` written out."""
    rows: list[Rule] = []
    for rule in rules:
        layers = range(n_layers) if "{l}" in rule.theirs else range(1)
        rows += [Rule(rule.theirs.replace("{l}", str(i)), rule.ours.replace("{l}", str(i)), rule.view) for i in layers]
    return rows


def fill(
    family: Family,
    cfg: ModelConfig,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """State of our model from a checkpoint, tensor by tensor.

    Args:
        family: the table.
        cfg: the architecture, as `family.configure` gave it.
        tensors: checkpoint name -> tensor, read when it is asked for.
        shapes: our name -> shape, of every parameter of the model.
        dtype: a tensor that has it already is not copied.

    Raises:
        ValueError: tensors that no rule knows, parameters that none fills, or shapes that differ; all are listed.
    """
    found = {name.removeprefix(family.prefix): name for name in tensors}
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    wrong: list[str] = []
    for rule in expand(family.rules, cfg.n_layers):
        if rule.ours not in shapes or rule.theirs not in found:
            continue
        used.add(rule.theirs)
        tensor = tensors[found[rule.theirs]]
        tensor = tensor if rule.view is None else rule.view(tensor, cfg)
        if tuple(tensor.shape) != tuple(shapes[rule.ours]):
            wrong.append(f"{found[rule.theirs]} is {list(tensor.shape)}, expected {list(shapes[rule.ours])}")
        if not tensor.is_floating_point():
            wrong.append(f"{found[rule.theirs]} holds {tensor.dtype}: quantised checkpoints are not read")
        state[rule.ours] = tensor.to(dtype)
    ignorable = {rule.theirs for rule in expand((Rule(name, "") for name in family.ignorable), cfg.n_layers)}
    if cfg.tie_embeddings and "lm_head.weight" in found and "embed.weight" in state:
        _check_tied(tensors[found["lm_head.weight"]], state["embed.weight"])
        ignorable.add("lm_head.weight")
    _complain(cfg, unknown=sorted(set(found) - used - ignorable), missing=sorted(set(shapes) - set(state)), wrong=wrong)
    return state


def _check_tied(head: Tensor, embedding: Tensor) -> None:
    if not torch.equal(head.to(embedding.dtype), embedding):
        raise ValueError(
            "config.json ties the unembedding to the embedding, but the file holds another lm_head.weight: "
            'set "tie_word_embeddings": false in config.json'
        )


def _complain(cfg: ModelConfig, *, unknown: Collection[str], missing: Collection[str], wrong: Collection[str]) -> None:
    parts = [
        f"{len(names)} {what}: {', '.join(list(names)[:8])}{' ...' if len(names) > 8 else ''}"
        for what, names in (("unknown tensors", unknown), ("parameters not filled", missing), ("wrong tensors", wrong))
        if names
    ]
    if parts:
        raise ValueError(
            f"the weights of {cfg.name} do not fit a {cfg.family} model of its configuration: {'; '.join(parts)}. "
            "Check that config.json belongs to these files and that the download is whole"
        )


def refuse_unsupported(config: Mapping[str, Any], harmless: Mapping[str, Collection[Any]], family: str) -> None:
    """ValueError where an option that would change the computation is set to anything but its harmless values."""
    for key, allowed in harmless.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            raise ValueError(
                f"config.json sets {key}={value!r}, which the {family} family here does not compute. It is refused, "
                "since leaving it out would make every activation wrong"
            )


def need(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """A value of config.json, with the architecture's published default where it may be left out."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ValueError(f"config.json lacks {key!r}: it is not whole, or it belongs to another architecture")
    return value


ACTIVATION = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
"""Names of activation functions in config.json -> ours."""


def activation(name: str) -> str:
    """Our name of an activation function; ValueError where we have none."""
    if name not in ACTIVATION:
        raise ValueError(f"activation {name!r} is not supported; known are {', '.join(ACTIVATION)}")
    return ACTIVATION[name]
