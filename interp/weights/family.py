"""What a model family is: a table from checkpoint names to ours, and how its config.json becomes a ModelConfig.

To add a family, write one file like `llama.py` and add its `Family` to `FAMILIES` in `families.py`:

1. `rules`: one `Rule` for each kind of parameter, checkpoint name -> our name. `{l}` stands for the layer, `{e}` for the
   expert.
2. `configure`: config.json -> ModelConfig. Whatever changes the computation and is not supported is refused there; an
   option that is ignored would make every activation silently wrong. `options.py` reads what many families share.
3. `gguf`: the same for GGUF files, where the family has them.
4. A test that compares a tiny random model with transformers (`tests/support/parity.py`).

`fill` is strict: every tensor of the checkpoint is used or known to be no weight, every parameter gets one, and all
shapes match. It holds one tensor at a time beside the model.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.model import ModelConfig
from interp.weights.checkpoint import SafetensorsFiles

View = Callable[[Tensor, ModelConfig], Tensor]


@dataclass(frozen=True)
class Rule:
    """One row of a family's table."""

    theirs: str
    """Name in the checkpoint, without the family's prefix."""
    ours: str
    """Name of the parameter; where the model has none (a bias that the configuration lacks) the rule is void. `{e}` here
    alone: the tensor holds all experts, one after the other."""
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
    """Tensors that are no weights, such as masks and rotary tables that old files hold. A `*` in the end stands for any
    rest, `{n}` for the number of layers (what stands behind the last)."""
    gguf: GGUF | None = None
    architectures: tuple[str, ...] = ()
    """Other words that mean the same weights, such as the bare decoder's."""
    other_prefixes: tuple[str, ...] = ()
    """What stands before the names in files of those, longest first."""
    members: str = ""
    """Well-known models of the family."""
    attention: str = ""
    """Kinds of attention that it may have."""
    positions: str = ""
    """How it knows where a token stands."""
    norm: str = ""
    """Which norms, and where."""
    note: str = ""
    """What its user must know."""

    @property
    def names(self) -> tuple[str, ...]:
        """All words in `architectures` that mean this family."""
        return (self.architecture, *self.architectures)


def expand(rules: Iterable[Rule], n_layers: int, n_experts: int = 0) -> list[Rule]:
    """The table with `{l}` and `{e}` written out."""
    rows: list[Rule] = []
    for rule in rules:
        layers = range(n_layers) if "{l}" in rule.theirs else range(1)
        experts = range(n_experts) if "{e}" in rule.theirs + rule.ours else range(1)
        joint = "{e}" in rule.ours and "{e}" not in rule.theirs
        for layer, expert in itertools.product(layers, experts):
            theirs, ours = (
                name.replace("{l}", str(layer)).replace("{e}", str(expert)) for name in (rule.theirs, rule.ours)
            )
            rows.append(Rule(theirs, ours, _of_expert(expert, rule.view) if joint else rule.view))
    return rows


def _of_expert(expert: int, view: View | None) -> View:
    """One expert's part of a tensor that holds all of them."""

    def part(joint: Tensor, cfg: ModelConfig) -> Tensor:
        assert cfg.experts is not None
        if joint.shape[0] != cfg.experts.n_experts:
            raise ValueError(f"holds {joint.shape[0]} experts, but config.json says {cfg.experts.n_experts}")
        return joint[expert] if view is None else view(joint[expert], cfg)

    return part


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
    found = _without_prefixes(family, tensors)
    n_experts = cfg.experts.n_experts if cfg.experts is not None else 0
    rules = expand(family.rules, cfg.n_layers, n_experts)
    by_tensor: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.ours in shapes and rule.theirs in found:
            by_tensor.setdefault(rule.theirs, []).append(rule)
    state: dict[str, Tensor] = {}
    wrong: list[str] = []
    # Tensor by tensor, not rule by rule: a joint projection is read once, and let go before the next one is read.
    for theirs, parts in by_tensor.items():
        whole = _taken(tensors, found[theirs], dtype, viewed=any(rule.view is not None for rule in parts))
        if not whole.is_floating_point():
            wrong.append(f"{found[theirs]} holds {whole.dtype}: quantised checkpoints are not read")
        for rule in parts:
            try:
                part = whole if rule.view is None else rule.view(whole, cfg)
            except ValueError as error:  # another size than the configuration gives it, by the tensor's name
                wrong.append(f"{found[theirs]} {error}")
                state |= {other.ours: whole for other in parts}  # of no use, but not missing either
                break
            if tuple(part.shape) != tuple(shapes[rule.ours]):
                wrong.append(f"{found[theirs]} is {list(part.shape)}, expected {list(shapes[rule.ours])}")
            state[rule.ours] = part.to(dtype)
    no_weights = (Rule(name.replace("{n}", str(cfg.n_layers)), "") for name in family.ignorable)
    ignorable = {rule.theirs for rule in expand(no_weights, cfg.n_layers, n_experts)}
    heads = {rule.theirs for rule in rules if rule.ours == "unembed.weight" and rule.theirs in found}
    if cfg.tie_embeddings and "embed.weight" in state:
        for head in heads:
            _check_tied(found[head], tensors[found[head]], state["embed.weight"])
        ignorable |= heads
    anything = tuple(name.removesuffix("*") for name in ignorable if name.endswith("*"))
    unknown = {name for name in set(found) - set(by_tensor) - ignorable if not name.startswith(anything or ("\0",))}
    _complain(cfg, unknown=sorted(unknown), missing=sorted(set(shapes) - set(state)), wrong=wrong)
    return state


def _without_prefixes(family: Family, tensors: Iterable[str]) -> dict[str, str]:
    """Name as in the table -> name in the file."""
    found: dict[str, str] = {}
    for name in tensors:
        prefixes = (*family.other_prefixes, family.prefix)
        bare = name.removeprefix(next((prefix for prefix in prefixes if name.startswith(prefix)), ""))
        if bare in found:
            raise ValueError(f"the file holds both {found[bare]} and {name}: one of them is not this model's")
        found[bare] = name
    return found


def _taken(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, viewed: bool) -> Tensor:
    """One tensor; by itself where it is going to be copied, so that its pages of the file do not stay in memory."""
    tensor = tensors[name]
    if isinstance(tensors, SafetensorsFiles) and (viewed or tensor.dtype != dtype):
        return tensors.apart(name)
    return tensor


def _check_tied(name: str, head: Tensor, embedding: Tensor) -> None:
    if not torch.equal(head.to(embedding.dtype), embedding):
        raise ValueError(
            f"config.json ties the unembedding to the embedding, but the file holds another {name}: "
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
    """A value of config.json, with the architecture's published default where it may be left out; null is not left out."""
    value = config.get(key)
    if value is not None:
        return value
    if default is None:
        raise ValueError(f"config.json lacks {key!r}: it is not whole, or it belongs to another architecture")
    if key in config and key not in NULL_IS_DEFAULT:
        raise ValueError(f"config.json sets {key}=null, which is no value: leave the key out for {default!r}")
    return default


NULL_IS_DEFAULT = frozenset(
    (
        *("num_key_value_heads", "num_kv_heads", "head_dim", "n_inner", "ffn_hidden_size", "num_ln_in_parallel_attn"),
        *("hidden_size", "num_attention_heads", "num_hidden_layers", "n_head", "n_layer"),  # known by two names
    )
)
"""Keys that transformers itself writes as null."""


ACTIVATION = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
"""Names of activation functions in config.json -> ours."""


def activation(name: str) -> str:
    """Our name of an activation function; ValueError where we have none."""
    if name not in ACTIVATION:
        raise ValueError(f"activation {name!r} is not supported; known are {', '.join(ACTIVATION)}")
    return ACTIVATION[name]
