"""What of an older set of schemas a newer one would break, and for whom.

A log is kept for ever and read by programs of every age at once. So within one version of a type
a field may be added, with a default that holds where it is absent, and nothing else may change:
an older reader must be able to read what is written now, and a newer one what was written then.
Whoever needs more raises the version and gives an upcast. A catalog is only written by people and
a view only read by programs, so for these it is less (docs/decisions/0005-compatibility.md).
`llmgw.schemas` makes the documents and reads those of a folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

Schema = dict[str, Any]
Kind = Literal["removed", "required", "optional", "retyped", "narrowed", "widened", "default"]

MESSAGE: frozenset[Kind] = frozenset(
    ("removed", "required", "optional", "retyped", "narrowed", "widened", "default")
)
"""What breaks a type on the wire: somebody reads it who is older, and somebody who is newer."""

CATALOG: frozenset[Kind] = frozenset(("removed", "required", "retyped", "narrowed", "default"))
"""What breaks a catalog that was valid: only newer programs read it."""

VIEW: frozenset[Kind] = frozenset(("removed", "optional", "retyped"))
"""What breaks a program that reads a view: only newer ones write it. New words may come."""

_ABSENT = object()
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "format", "uniqueItems", "multipleOf")


class Change(NamedTuple):
    """One difference. `path` leads to it (`data.parts[].node`), `said` is it in words."""

    path: str
    kind: Kind
    said: str


class _Pair(NamedTuple):
    """Two documents, and where in both one is: references lead to definitions of each."""

    old: Schema
    new: Schema
    old_defs: Mapping[str, Schema]
    new_defs: Mapping[str, Schema]

    def at(self, old: Schema, new: Schema) -> _Pair:
        return _Pair(_resolved(old, self.old_defs), _resolved(new, self.new_defs), self[2], self[3])


def breaks(
    old: Mapping[str, Schema], new: Mapping[str, Schema], upcasts: Collection[tuple[str, int]]
) -> list[str]:
    """Return a line for each thing of `old` that does not hold in `new`; none: it can take over.

    Both are schemas by type (`replica.ready`, `catalog`, `view.status`). `upcasts` has the type
    and version of all data that can be brought up to the next version.
    """
    lines = []
    for name, schema in sorted(old.items()):
        if name not in new:
            lines.append(f"{name}: is gone, and was written, read or asked for")
        else:
            lines += [f"{name}: {said}" for said in _said(name, schema, new[name], upcasts)]
    return lines


def _said(
    name: str, old: Schema, new: Schema, upcasts: Collection[tuple[str, int]]
) -> Iterator[str]:
    before, after = version(old), version(new)
    if after < before:
        yield f"version {before} went back to {after}"
    elif after > before:
        for missing in (v for v in range(before, after) if (name, v) not in upcasts):
            yield f"version {missing} has no upcast to version {missing + 1} in llmgw.wire"
    else:
        breaking = _breaking(name)
        for change in changes(old, new):
            if change.kind in breaking:
                yield f"{change.path}: {change.said}"


def _breaking(name: str) -> frozenset[Kind]:
    if name == "catalog":
        return CATALOG
    return VIEW if name.startswith("view.") else MESSAGE


def version(schema: Schema) -> int:
    """Return the version of the type that a schema describes; 1 where it has none."""
    return int(schema.get("properties", {}).get("dataversion", {}).get("const", 1))


def changes(old: Schema, new: Schema) -> Iterator[Change]:
    """Yield every difference of two schemas that a reader or writer could notice."""
    pair = _Pair(old, new, old.get("$defs", {}), new.get("$defs", {}))
    yield from _compare("", pair)


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    reference = schema.get("$ref")
    return schema if reference is None else definitions[reference.rpartition("/")[2]]


def _compare(path: str, pair: _Pair) -> Iterator[Change]:
    before, after = _shape(pair.old), _shape(pair.new)
    if before != after:
        yield Change(path, "retyped", f"was {before} and is {after}")
        return
    if before == "anyOf":
        yield from _compare_choices(path, pair)
        return
    yield from _compare_limits(path, pair.old, pair.new)
    yield from _compare_words(path, pair.old, pair.new)
    if "properties" in pair.old or "properties" in pair.new:
        yield from _compare_fields(path, pair)
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        yield from _compare_inner(path + step, pair, key)


def _shape(schema: Schema) -> str:
    if "anyOf" in schema:
        return "anyOf"
    if "const" in schema:
        return f"always {schema['const']!r}"
    if "enum" in schema:  # words have no type of their own
        return "string" if isinstance(schema["enum"][0], str) else "integer"
    return str(schema.get("type", "anything"))


def _compare_fields(path: str, pair: _Pair) -> Iterator[Change]:
    old, new = pair.old.get("properties", {}), pair.new.get("properties", {})
    was, now = set(pair.old.get("required", ())), set(pair.new.get("required", ()))
    for name in [*old, *(n for n in new if n not in old)]:
        place = f"{path}.{name}" if path else name
        if name not in new:
            yield Change(place, "removed", "was removed")
        elif name not in old:
            if name in now:
                yield Change(place, "required", "is new and required: give it a default")
        else:
            if name in now - was:
                yield Change(place, "required", "is required now")
            if name in was - now:
                yield Change(place, "optional", "may be absent now")
            yield from _compare_defaults(place, old[name], new[name])
            yield from _compare(place, pair.at(old[name], new[name]))


def _compare_defaults(path: str, old: Schema, new: Schema) -> Iterator[Change]:
    """A default is what absence says, and what equals it is not written."""
    before, after = old.get("default", _ABSENT), new.get("default", _ABSENT)
    if _ABSENT not in (before, after) and before != after:
        yield Change(path, "default", f"meant {before!r} where absent and means {after!r}")


def _compare_choices(path: str, pair: _Pair) -> Iterator[Change]:
    old = {_choice(s, pair.old_defs): s for s in pair.old["anyOf"]}
    new = {_choice(s, pair.new_defs): s for s in pair.new["anyOf"]}
    for name in sorted(old.keys() - new.keys()):
        yield Change(path, "narrowed", f"cannot be {name} any more")
    for name in sorted(new.keys() - old.keys()):
        yield Change(path, "widened", f"can be {name} too")
    for name in (name for name in old if name in new):
        yield from _compare(path, pair.at(old[name], new[name]))


def _choice(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    found = _resolved(schema, definitions)
    return f"{_shape(found)} {found.get('title', '')}".strip()


def _compare_inner(path: str, pair: _Pair, key: str) -> Iterator[Change]:
    old, new = pair.old.get(key, True), pair.new.get(key, True)
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _compare(path, pair.at(old, new))
    elif old != new:
        kind: Kind = "widened" if new is True or old is False else "narrowed"
        yield Change(path, kind, f"is {kind}: {_brief(old)} became {_brief(new)}")


def _brief(schema: Schema | bool) -> str:
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    return _shape(schema)


def _compare_limits(path: str, old: Schema, new: Schema) -> Iterator[Change]:
    for key in (*_LEAST, *_MOST):
        before, after = old.get(key), new.get(key)
        if before != after:
            raised = before is None or (after is not None and after > before)
            lowered = before is None or (after is not None and after < before)
            narrower = raised if key in _LEAST else lowered
            yield Change(path, "narrowed" if narrower else "widened", _became(key, before, after))
    for key in _EXACT:
        before, after = old.get(key), new.get(key)
        if before != after:
            kind: Kind = "narrowed" if after else "widened"
            yield Change(path, kind, _became(key, before, after))


def _became(key: str, before: object, after: object) -> str:
    return f"{key} was {before if before is not None else 'free'} and is " + (
        f"{after}" if after is not None else "free"
    )


def _compare_words(path: str, old: Schema, new: Schema) -> Iterator[Change]:
    """Compare the words of a choice; none given means any."""
    before, after = old.get("enum"), new.get("enum")
    if before == after:
        return
    if before is None or after is None:
        kind: Kind = "narrowed" if before is None else "widened"
        yield Change(path, kind, f"its words were {before or 'free'} and are {after or 'free'}")
        return
    for word in (word for word in before if word not in after):
        yield Change(path, "narrowed", f"cannot be {word!r} any more")
    for word in (word for word in after if word not in before):
        yield Change(path, "widened", f"can be {word!r} too")


def parsed(documents: Mapping[str, str], suffix: str) -> dict[str, Schema]:
    """Return the schemas among documents (file name to JSON), by type."""
    return {
        name.removesuffix(suffix): msgspec.json.decode(text, type=Schema)
        for name, text in documents.items()
        if name.endswith(suffix)
    }
