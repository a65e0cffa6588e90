"""What differs between two states, as the views show them: `ctl replay --diff`, and what-if.

Pure. Rows are compared by name, fields by value; a row that is only on one side is one change.
That time went by is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from llmgw.core.cluster import Cluster
from llmgw.views import VIEWS
from llmgw.views.paths import joined, plain
from llmgw.views.shared import Row

MOMENTS = frozenset({"sequence", "time", "heard"})
"""Fields that differ between any two points."""

_NOTHING = object()


class Change(Row, frozen=True, kw_only=True):
    """One thing that differs. `path` names it as predicates do; a side is absent where it is not.

    `came` and `went` are whole rows, or entries, that one side lacks.
    """

    path: str
    kind: Literal["came", "went", "changed"]
    before: Any = None
    after: Any = None


def difference(before: Cluster, after: Cluster, views: Sequence[str] = ()) -> list[Change]:
    """Return what differs in the named views, or in all of them."""
    found: list[Change] = []
    for name in views or VIEWS:
        ours, theirs = (_rows(plain(VIEWS[name](state))) for state in (before, after))
        found += _changes((name,), ours, theirs)
    return found


def _rows(side: Any) -> Any:  # noqa: ANN401 -- whatever a view holds
    """Return rows by name; without any they are an empty list, which is nothing by name."""
    return {} if side == [] else side


def _changes(
    path: tuple[str, ...], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Change]:
    for name in {**before, **after}:
        if name in MOMENTS:
            continue
        ours, theirs = before.get(name, _NOTHING), after.get(name, _NOTHING)
        here = (*path, name)
        if isinstance(ours, Mapping) or isinstance(theirs, Mapping):
            ours, theirs = _rows(ours), _rows(theirs)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _changes(here, ours, theirs)
        elif ours != theirs:
            yield _change(joined(here), ours, theirs)


def _change(path: str, before: object, after: object) -> Change:
    if before is _NOTHING:
        return Change(path=path, kind="came", after=_told(after))
    if after is _NOTHING:
        return Change(path=path, kind="went", before=_told(before))
    return Change(path=path, kind="changed", before=before, after=after)


def _told(side: Any) -> Any:  # noqa: ANN401 -- whatever a view holds
    """Return a row without what is not known of it."""
    if not isinstance(side, Mapping):
        return side
    return {name: value for name, value in side.items() if value not in (None, [], {})}
