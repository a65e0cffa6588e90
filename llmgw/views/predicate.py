"""Questions about a state that are either so or not: `status.models.llama.ready == 0`.

Pure, and no Python: `parse` reads a small language of its own, and there is nothing in it that
could do anything but compare. Used by `ctl bisect`. `holds` answers for one state,
`watching` after each record of a log.

    either   = both ("or" both)*            value    = path | "count(" path ")" | number | text
    both     = negation ("and" negation)*            | "true" | "false" | "null" | "(" either ")"
    negation = "not" negation | comparison  path     = view ("." name)*
    comparison = value (operator value)?    operator = == != < <= > >= in

A path names what a view shows (see `paths`); a name that is not made of letters, digits and
`_ - / : +` stands in quotes. With `*` in it a path names several things, and a comparison holds if
it holds for one of them. What is not there compares with nothing, except that it `== null`. What
could not be so in any state is no question: `replicas.*.phase == "gone"`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from llmgw.core.cluster import Cluster
from llmgw.errors import UsageError
from llmgw.views import kinds, paths

MOST_CHARACTERS = 2_000
MOST_NESTED = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"[^\"]*\"|'[^']*')|(?P<number>-?\d+(?:\.\d+)?(?![\w.]))"
    r"|(?P<name>[A-Za-z0-9_*][A-Za-z0-9_/:+*-]*)|(?P<sign>==|!=|<=|>=|<|>|\(|\)|\.))"
)
_WORDS = {"and", "or", "not", "in", "count", "true", "false", "null"}
_CONSTANTS: Mapping[str, object] = {"true": True, "false": False, "null": None}


class Constant(msgspec.Struct, frozen=True):
    """A number, a text, `true`, `false` or `null`."""

    value: Any


class Path(msgspec.Struct, frozen=True):
    """What a path names, or with `counted` how much that is."""

    segments: tuple[str, ...]
    counted: bool = False


Operand = Constant | Path


class Compared(msgspec.Struct, frozen=True):
    """Two values and the sign between them; without a sign `left` alone must be something true."""

    left: Operand
    sign: str = ""
    right: Operand = Constant(None)


class Negated(msgspec.Struct, frozen=True):
    """The opposite of a test."""

    test: Test


class Several(msgspec.Struct, frozen=True):
    """`all` of some tests, or any of them."""

    all: bool
    tests: tuple[Test, ...]


Test = Compared | Negated | Several


class Predicate(msgspec.Struct, frozen=True):
    """A question that was understood."""

    text: str
    test: Test

    def holds(self, state: Cluster) -> bool:
        """Return the answer for a state."""
        return answer(self.test, lambda operand: values(operand, state))


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
        return tests[0] if len(tests) == 1 else Several(False, tuple(tests))

    def end(self) -> None:
        token = self._next()
        if token.kind != "end":
            _wrong(self._text, token.place, f"{token.text!r} is not expected here")

    def _both(self, depth: int) -> Test:
        tests = [self._negation(depth)]
        while self._took("and"):
            tests.append(self._negation(depth))
        return tests[0] if len(tests) == 1 else Several(True, tuple(tests))

    def _negation(self, depth: int) -> Test:
        token = self._next()
        if depth > MOST_NESTED:
            _wrong(self._text, token.place, f"nested more than {MOST_NESTED} deep")
        if self._took("not"):
            return Negated(self._negation(depth + 1))
        if self._took("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Test:
        places = [self._next().place]
        left = self._operand()
        sign = self._next()
        if sign.text not in SIGNS or sign.kind == "text":
            return Compared(left)
        self._at += 1
        places.append(self._next().place)
        right = self._operand()
        self._check_possible(sign.text, (left, right), places)
        return Compared(left, sign.text, right)

    def _check_possible(
        self, sign: str, operands: tuple[Operand, Operand], places: Sequence[int]
    ) -> None:
        """Refuse to compare a field with a value that it cannot have in any state."""
        for path, constant, place in (
            (operands[0], operands[1], places[1]),
            (operands[1], operands[0], places[0]),
        ):
            if isinstance(path, Path) and isinstance(constant, Constant):
                if path.counted:
                    never = kinds.never_number("count(…)", constant.value)
                else:
                    within = path is operands[1]
                    never = kinds.never(path.segments, sign, constant.value, within)
                if never:
                    _wrong(self._text, place, never, "can be so in no state")

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
            return Path(path, True)
        return Path(self._path())

    def _constant(self, value: object) -> Constant:
        self._at += 1
        return Constant(value)

    def _path(self) -> tuple[str, ...]:
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
            kinds.check(segments)
        except kinds.NoSuchField as error:
            _wrong(self._text, places[error.place], str(error))
        return tuple(segments)

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


def _wrong(text: str, place: int, message: str, how: str = "is not understood") -> NoReturn:
    raise UsageError(
        f"the predicate {how} at character {place + 1}: {message}\n  {text}\n  {' ' * place}^"
    )


# --- answering -----------------------------------------------------------------------------------


def values(operand: Operand, state: Cluster) -> list[Any]:
    """Return what an operand is in a state."""
    if isinstance(operand, Constant):
        return [operand.value]
    found = [*paths.values(state, operand.segments)]
    return [len(found)] if operand.counted else found


def answer(test: Test, of: Callable[[Operand], list[Any]]) -> bool:
    """Return whether a test holds, where `of` says what its operands are."""
    if isinstance(test, Several):
        return (all if test.all else any)(answer(one, of) for one in test.tests)
    if isinstance(test, Negated):
        return not answer(test.test, of)
    if not test.sign:
        return any(of(test.left))
    return compare(of(test.left), test.sign, of(test.right))


def compare(ours: list[Any], sign: str, theirs: list[Any]) -> bool:
    """Return whether a comparison holds for one of ours and one of theirs."""
    if theirs == [None] or ours == [None]:  # nothing at all equals `null` alone
        nothing = all(one is None for one in (*ours, *theirs))
        return sign in ("==", "!=") and (sign == "==") == nothing
    order = SIGNS[sign]
    return any(order(a, b) for a in ours for b in theirs)


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
    def compared(left: object, right: object) -> bool:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (left, right))
        texts = isinstance(left, str) and isinstance(right, str)
        return (numbers or texts) and order(left, right)

    return compared


SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "in": _within,
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
}
