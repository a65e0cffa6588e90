"""What a path of a view can be in any state: whether there is such a field, and what values it has.

Pure. Read off the types of the rows; predicates are checked with it before they are asked.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from llmgw.views import VIEWS
from llmgw.views.paths import EVERY, fields, joined

_ORDERS = ("<", "<=", ">", ">=")


class NoSuchField(ValueError):
    """A path names what no row has. `place` is the number of the segment."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def check(segments: Sequence[str]) -> None:
    """Raise `NoSuchField` unless some state could have something under this path.

    Names of models, nodes and replicas are any; fields are those of the rows.
    """
    _of(segments)


def never(segments: Sequence[str], sign: str, value: object, within: bool) -> str:
    """Return why a comparison of what a path names with a value can hold in no state, or nothing.

    `within`: the value stands before `in`, and the path behind it.
    """
    if value is None or (sign == "in" and not within):
        return ""
    found = [*_plain(_of(segments))]
    if any(_may_be(kind, sign, value) for kind in found):
        return ""
    words = [word for kind in found for word in _words(kind)]
    is_ = f"is one of {', '.join(words)}" if words else f"is {_told(found[0])}"
    return f"{joined(segments)} {is_}, and never {_quoted(value)}"


def never_number(name: str, value: object) -> str:
    """Return why a number can never be a value, or nothing if it can."""
    return "" if value is None or _is_number(value) else f"{name} is a number, never {value!r}"


def _may_be(kind: Any, sign: str, value: object) -> bool:  # noqa: ANN401 -- any annotation
    """Return whether some value of a type compares with this one."""
    words = _words(kind)
    if words:
        exact = value in words if sign in ("==", "!=") else sign in _ORDERS
        return isinstance(value, str) and (
            exact or (sign == "in" and any(value in word for word in words))
        )
    if kind is str:
        return isinstance(value, str)
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        return _is_number(value) and sign != "in"
    if sign == "in" and typing.get_origin(kind) in (list, tuple):
        return any(_may_be(inner, "==", value) for inner in _plain([typing.get_args(kind)[0]]))
    return sign == "in" and typing.get_origin(kind) in (dict, Mapping) and isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(kinds: Sequence[object]) -> Iterator[Any]:
    """Yield types without unions and without `None`."""
    for kind in kinds:
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            yield from _plain(typing.get_args(kind))
        elif kind is not type(None):
            yield kind


def _words(kind: object) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _told(kind: object) -> str:
    known = {str: "a text", bool: "true or false", int: "a number", float: "a number"}
    if kind in known:
        return known[kind]
    return "a row with fields of its own" if _is_row(kind) else "several values"


def _quoted(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _of(segments: Sequence[str]) -> list[object]:
    """Return the types of what a path can name. Raises `NoSuchField`."""
    if segments[0] not in VIEWS:
        raise NoSuchField(f"there is no view {segments[0]!r}; there are {', '.join(VIEWS)}", 0)
    kinds: list[object] = [typing.get_type_hints(VIEWS[segments[0]])["return"]]
    for place, name in enumerate(segments[1:], start=1):
        within = joined(segments[:place])
        kinds = [inner for kind in _plain(kinds) for inner in _kinds(kind, name, within, place)]
    return kinds


def _kinds(kind: object, name: str, within: str, place: int) -> list[object]:
    """Return what a value of some type, no union, can hold under a name."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (dict, Mapping):
        return [arguments[1]]
    if typing.get_origin(kind) in (list, tuple) and (_is_row(arguments[0]) or name == EVERY):
        return [arguments[0]]
    if _is_row(kind):
        return _fields_named(kind, name, within, place)  # type: ignore[arg-type]
    raise NoSuchField(f"{within} is a value and holds nothing more", place)


def _fields_named(kind: type[msgspec.Struct], name: str, within: str, place: int) -> list[object]:
    hints = typing.get_type_hints(kind)
    known = {public: hints[attribute] for public, attribute in fields(kind)}
    if name == EVERY:
        return [*known.values()]
    if name not in known:
        raise NoSuchField(f"{within} has no {name!r}; it has {', '.join(known)}", place)
    return [known[name]]


def _is_row(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
