"""Which explainer or judge it is: answers of one must not be taken for those of another.

1. What has a `card`, as the endpoints do, is what its card says. A function of this library is its name and version.
2. A function is its name and a hash of what it does: code, constants, defaults, and the values that it takes from around it
   (closure, globals). Functions and classes of its own module count with their code, those of other modules by name.
3. A value that no hash can stand for, such as a client with a connection, makes the function unidentified. Its answers are
   not kept for another run, unless the caller vouches for it by an id.
"""

import dis
import functools
import re
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from interp import __version__
from interp.artifact import hash_json

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, PurePath, re.Pattern, types.EllipsisType)
_BY_NAME = (types.ModuleType, types.BuiltinFunctionType, types.GenericAlias, type)


class _UnidentifiedError(Exception):
    """A value that no hash can stand for."""


def function_card(function: Callable[..., Any], given_id: str | None = None) -> dict[str, Any]:
    """What an explainer or judge is, JSON-ready.

    Args:
        function: it.
        given_id: what the caller calls it, in place of the hash.

    Returns:
        Its own `card`; or function (its name) and version, of this library; or function and code (the hash); or function and
        unidentified (what stands in the way). With an id, id in place of these, or beside its own card.
    """
    card = getattr(function, "card", None)
    if isinstance(card, Mapping):
        return dict(card) if given_id is None else {**card, "id": given_id}
    if given_id is not None:
        return {"id": given_id}
    name = _name(function)
    if name.startswith("interp."):
        return {"function": name, "version": __version__}
    try:
        return {"function": name, "code": hash_json(_Description(_module(function)).of(function, name))}
    except _UnidentifiedError as error:
        return {"function": name, "unidentified": str(error)}
    except RecursionError:
        return {"function": name, "unidentified": "a value that contains itself"}


def require_callable(name: str, value: Any, of: str) -> None:
    """ValueError for an explainer or judge that is no function; `of` says what such a function takes."""
    if not callable(value):
        raise ValueError(f"{name}={value!r} cannot be called: give a function of {of}")


def require_identified(card: Mapping[str, Any], option: str) -> None:
    """ValueError where answers must not be kept, since nothing tells the function that gave them from others."""
    if "unidentified" in card:
        raise ValueError(
            f"answers of {card['function']} cannot be kept in a file: it uses {card['unidentified']}, so nothing tells it from "
            f"another one. Give {option}= a name of your own, another one whenever it would answer otherwise"
        )


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{_module(value)}.{named.__qualname__}"


def _module(value: Any) -> str:
    return str(getattr(value, "__module__", None) or type(value).__module__)


class _Description:
    """JSON values that are equal for equal functions, in every process.

    Args:
        module: the module whose functions and classes count with their code.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self._known: dict[int, tuple[int, Any]] = {}
        """id -> (number, value) of what was described already: it may call itself, and two may call a third."""

    def of(self, value: Any, what: str) -> Any:
        """_UnidentifiedError where there is none; `what` says which value it is."""
        if isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        if isinstance(value, list | tuple):
            return [type(value).__name__, [self.of(each, what) for each in value]]
        if isinstance(value, set | frozenset):  # their order changes from process to process
            return ["set", sorted(hash_json(self.of(each, what)) for each in value)]
        if isinstance(value, dict | types.MappingProxyType):
            return ["dict", sorted(([self.of(each, what) for each in pair] for pair in value.items()), key=hash_json)]
        if isinstance(value, types.CodeType):
            return [value.co_code.hex(), list(value.co_names), self.of(value.co_consts, what)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__func__, what), self.of(value.__self__, what)]
        if isinstance(value, functools.partial):
            return ["partial", self.of([value.func, value.args, value.keywords], what)]
        if type(value).__module__ == "functools" and callable(getattr(value, "__wrapped__", None)):  # functools.cache
            return ["cached", self.of(value.__wrapped__, what)]
        own = isinstance(value, types.FunctionType | type) and value.__module__ == self.module
        if not own and isinstance(value, (types.FunctionType, *_BY_NAME)):
            return ["name", _name(value) if hasattr(value, "__qualname__") else repr(value)]
        if id(value) in self._known:
            return ["known", self._known[id(value)][0]]
        self._known[id(value)] = len(self._known), value
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        return self._of_class(value) if isinstance(value, type) else self._of_object(value, what)

    def _of_function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        around = {name: function.__globals__[name] for name in _globals(code) & set(function.__globals__)}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                around[name] = cell.cell_contents
            except ValueError:  # an empty cell: the name has no value yet
                around[name] = None
        defaults = self.of([function.__defaults__, function.__kwdefaults__], "a default")
        values = [[name, self.of(value, f"{name} ({_name(type(value))})")] for name, value in sorted(around.items())]
        return ["function", self.of(code, "a constant"), defaults, values]

    def _of_class(self, kind: type) -> Any:
        parts = {name: getattr(part, "__func__", part) for name, part in sorted(vars(kind).items())}
        parts = {name: part.fget if isinstance(part, property) else part for name, part in parts.items()}
        methods = [[name, self.of(part, name)] for name, part in parts.items() if isinstance(part, types.FunctionType)]
        return ["class", kind.__qualname__, methods, [self.of(base, "a class") for base in kind.__bases__]]

    def _of_object(self, value: Any, what: str) -> Any:
        kind = type(value)
        if isinstance(card := getattr(value, "card", None), Mapping):
            return ["card", self.of(dict(card), what)]
        if kind.__module__ == "logging":  # where it reports to changes no answer
            return ["name", kind.__qualname__]
        if kind.__module__ != self.module or not hasattr(value, "__dict__"):
            raise _UnidentifiedError(what)
        held = [[name, self.of(part, f"{name} ({_name(type(part))})")] for name, part in sorted(vars(value).items())]
        return ["object", self.of(kind, what), held]


def _globals(code: types.CodeType) -> set[str]:
    """Names of globals that a function and the functions inside it look up."""
    own = {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_globals(each) for each in code.co_consts if isinstance(each, types.CodeType)))
