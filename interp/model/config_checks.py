"""Checks that the frozen configurations share: a value of the wrong kind is an error that names its field.

The annotations are the rule: `check_kinds` reads them, so a field is described once. Whole numbers of numpy and lists from
JSON become Python's own numbers and tuples; nothing else is converted. A truth value is no number here, and NaN and
infinity are no values.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args


def check_kinds(config: Any, where: str = "") -> None:
    """Bring each field of a frozen dataclass to what its annotation says; ValueError where that cannot be.

    Annotations may be int, float, bool, str, a class, `tuple[int, ...]`, `tuple[float, ...]`, and any of them `| None`.

    Args:
        config: the dataclass, in its `__post_init__`.
        where: stands before the field's name in messages, such as "Experts.".
    """
    for field in dataclasses.fields(config):
        value = of_kind(where + field.name, getattr(config, field.name), field.type)
        object.__setattr__(config, field.name, value)


def of_kind(name: str, value: Any, kind: Any) -> Any:
    """The value as its annotation has it. ValueError with the name where it is of another kind, NaN or infinite."""
    members: tuple[Any, ...] = () if isinstance(kind, type) else get_args(kind)
    if NoneType in members:
        return None if value is None else _of_one(name, value, members[0], " or None")
    return _of_one(name, value, kind, "")


def require(good: bool, name: str, value: Any, rule: str) -> None:
    """ValueError that a field must keep a rule, unless that is so."""
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")


def refuse_unused(config: Any, fields: Iterable[str], needs: str, where: str = "") -> None:
    """ValueError for a field that is not at its default, where nothing would read it.

    Args:
        config: a dataclass.
        fields: names of the fields that are out of use.
        needs: what would bring them into use, such as "positional='rope'".
        where: as in `check_kinds`.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for field in fields:
        value = getattr(config, field)
        if value != defaults[field]:
            raise ValueError(
                f"{where}{field}={value!r} would do nothing: it needs {needs}; without that leave {field} at "
                f"{defaults[field]!r}"
            )


def check_keys(kind: type, values: Mapping[str, Any], what: str) -> None:
    """ValueError where a dataclass cannot be made of these values: a key that it does not know, or lacks."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"unknown keys {unknown} in {what}; known are {sorted(fields)}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}")


def _of_one(name: str, value: Any, kind: Any, end: str) -> Any:
    """`of_kind` for a kind that is not a union; `end` is what else the message allows."""
    truth = isinstance(value, bool)
    if kind is int:
        require(isinstance(value, Integral) and not truth, name, value, f"a whole number (an int){end}")
        return int(value)
    if kind is float:
        require(isinstance(value, Real) and not truth, name, value, f"a number (a float){end}")
        require(math.isfinite(value), name, value, f"a finite number{end}")
        return value if isinstance(value, int) else float(value)
    if kind is bool:
        require(truth, name, value, f"True or False{end}")
        return value
    if not isinstance(kind, type):
        return _tuple(name, value, kind, end)
    require(isinstance(value, kind), name, value, f"{_called(kind)}{end}")
    return value


def _tuple(name: str, value: Any, kind: Any, end: str) -> tuple[Any, ...]:
    item = get_args(kind)[0]
    numbers = "whole numbers" if item is int else "numbers"
    listed = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    require(listed, name, value, f"a tuple of {numbers}{end}")
    return tuple(_of_one(f"{name}[{place}]", each, item, "") for place, each in enumerate(value))


def _called(kind: type) -> str:
    if kind is str:
        return "text (a str)"
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}(...)"
