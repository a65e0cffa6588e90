"""Questions about a state that are either so or not: `status.models.llama.ready == 0`.

Pure, and no Python: `parse` reads a small language of its own, and there is nothing in it that
could do anything but compare. Used by `ctl bisect`.

    either   = both ("or" both)*            value    = path | "count(" path ")" | number | text
    both     = negation ("and" negation)*            | "true" | "false" | "null" | "(" either ")"
    negation = "not" negation | comparison  path     = view ("." name)*
    comparison = value (operator value)?    operator = == != < <= > >= in

A path names what a view shows (see `paths`); a name that is not made of letters, digits and
`_ - / : +` stands in quotes. With `*` in it a path names several things, and a comparison holds if
it holds for one of them. What is not there compares with nothing, except that it `== null`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from llmgw.core.cluster import Cluster
from llmgw.errors import UsageError
from llmgw.views import paths

MOST_CHARACTERS = 2_000
MOST_NESTED = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"[^\"]*\"|'[^']*')|(?P<number>-?\d+(?:\.\d+)?(?![\w.]))"
    r"|(?P<name>[A-Za-z0-9_*][A-Za-z0-9_/:+*-]*)|(?P<sign>==|!=|<=|>=|<|>|\(|\)|\.))"
)
_WORDS = {"and", "or", "not", "in", "count", "true", "false", "null"}
_CONSTANTS: Mapping[str, object] = {"true": True, "false": False, "null": None}
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Test = Callable[[Cluster], bool]
Operand = Callable[[Cluster], list[Any]]


class Predicate(msgspec.Struct, frozen=True):
    """A question that was understood. `holds` answers it for a state."""

    text: str
    holds: Test


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse(text: str) -> Predicate:
    """Return what `text` asks. Raises `UsageError` that points at what is not understood."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"a predicate has at most {MOST_CHARACTERS} characters, not {len(text)}")
    reader = _Reader(text)
    test = reader.either(0)
    reader.end()
    return Predicate(text, test)


class _Reader:
    """Reads one predicate from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text)]
        self._at = 0

    def either(self, depth: int) -> Test:
        tests = [self._both(depth)]
        while self._took("or"):
            tests.append(self._both(depth))
        return tests[0] if len(tests) == 1 else lambda state: any(test(state) for test in tests)

    def end(self) -> None:
        token = self._next()
        if token.kind != "end":
            _wrong(self._text, token.place, f"{token.text!r} is not expected here")

    def _both(self, depth: int) -> Test:
        tests = [self._negation(depth)]
        while self._took("and"):
            tests.append(self._negation(depth))
        return tests[0] if len(tests) == 1 else lambda state: all(test(state) for test in tests)

    def _negation(self, depth: int) -> Test:
        token = self._next()
        if depth > MOST_NESTED:
            _wrong(self._text, token.place, f"nested more than {MOST_NESTED} deep")
        if self._took("not"):
            inner = self._negation(depth + 1)
            return lambda state: not inner(state)
        if self._took("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Test:
        left = self._operand()
        sign = self._next()
        if sign.text not in ("==", "!=", "in", *_ORDERS) or sign.kind == "text":
            return lambda state: any(left(state))
        self._at += 1
        right = self._operand()
        return _compared(left, sign.text, right)

    def _operand(self) -> Operand:
        token = self._next()
        if token.kind == "number":
            return self._constant(float(token.text) if "." in token.text else int(token.text))
        if token.kind == "text":
            return self._constant(token.text[1:-1])
        if token.kind == "name" and token.text in _CONSTANTS:
            return self._constant(_CONSTANTS[token.text])
        if self._took("count"):
            self._expect("(")
            path = self._path()
            self._expect(")")
            return lambda state: [sum(1 for _ in paths.values(state, path))]
        path = self._path()
        return lambda state: [*paths.values(state, path)]

    def _constant(self, value: object) -> Operand:
        self._at += 1
        return lambda _: [value]

    def _path(self) -> list[str]:
        segments: list[str] = []
        places: list[int] = []
        while True:
            token = self._next()
            if token.kind not in ("name", "number", "text") or (not segments and self._is_word()):
                what = f"{token.text!r} is not one" if token.text else "the predicate ends here"
                _wrong(self._text, token.place, f"a value is expected, and {what}")
            self._at += 1
            segments.append(token.text[1:-1] if token.kind == "text" else token.text)
            places.append(token.place)
            if not self._took("."):
                break
        try:
            paths.check(segments)
        except paths.NoSuchField as error:
            _wrong(self._text, places[error.place], str(error))
        return segments

    def _is_word(self) -> bool:
        return self._next().text in _WORDS

    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _took(self, text: str) -> bool:
        token = self._next()
        found = token.kind in ("name", "sign") and token.text == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        token = self._next()
        if not self._took(text):
            what = f"not {token.text!r}" if token.text else "and the predicate ends"
            _wrong(self._text, token.place, f"{text!r} is expected here, {what}")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            place = len(text) - len(text[at:].lstrip())
            what = "a quote that never ends" if text[place] in "\"'" else f"{text[place]!r}"
            _wrong(text, place, f"{what} is not understood")
        kind = found.lastgroup
        yield _Token(kind, found[kind], found.start(kind))
        at = found.end()
    yield _Token("end", "", len(text))


def _wrong(text: str, place: int, message: str) -> NoReturn:
    raise UsageError(
        f"the predicate is not understood at character {place + 1}: {message}\n"
        f"  {text}\n  {' ' * place}^"
    )


# --- comparing -----------------------------------------------------------------------------------


def _compared(left: Operand, sign: str, right: Operand) -> Test:
    compare = {"==": _equal, "!=": lambda a, b: not _equal(a, b), "in": _within}.get(sign)
    order = compare or _ordered(_ORDERS[sign])

    def test(state: Cluster) -> bool:
        # Nothing at all equals `null` alone.
        ours, theirs = left(state), right(state)
        if theirs == [None] or ours == [None]:
            both = [one for one in (*ours, *theirs) if one is not None]
            return (sign == "==") == (not both) if sign in ("==", "!=") else False
        return any(order(a, b) for a in ours for b in theirs)

    return test


def _equal(left: object, right: object) -> bool:
    """Return whether two values are the same; `true` is no 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _within(left: object, right: object) -> bool:
    if isinstance(right, str):
        return isinstance(left, str) and left in right
    return isinstance(right, list | tuple | Mapping) and left in right


def _ordered(order: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    def compare(left: object, right: object) -> bool:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (left, right))
        texts = isinstance(left, str) and isinstance(right, str)
        return (numbers or texts) and order(left, right)

    return compare
