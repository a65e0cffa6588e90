"""What applying a catalog would do: the controller's own fold and decide, on a copy of the state.

Nothing is written anywhere. `ctl apply --dry-run` prints it. It shows the first step: what is
retired only once its successor is ready does not appear yet.
"""

from __future__ import annotations

import msgspec

from llmgw.catalog.entries import Catalog
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.records import Body, Record
from llmgw.core.values import Origin
from llmgw.views.shared import Row
from llmgw.views.summaries import summary


class Consequence(Row, frozen=True, kw_only=True):
    """One decision that the controller would make. `good` is false where something is refused."""

    type: str
    good: bool
    summary: str
    data: e.Decision


def consequences(state: Cluster, catalog: Catalog) -> list[Consequence]:
    """Return what the controller would decide next if `catalog` were applied now.

    The verdict on the catalog is left out when it is accepted, so an empty list means that
    nothing would change. A catalog that is waiting already is passed over.
    """
    copy = msgspec.json.decode(msgspec.json.encode(state), type=Cluster)
    _take(copy, "controller", e.ControllerElected(term=copy.term + 1, holder="forecast"))
    _take(copy, "operator", e.CatalogApplied(catalog=catalog))
    verdict = _decisions(copy)
    for decision in verdict:
        _take(copy, "controller", decision)
    rejected = [decision for decision in verdict if isinstance(decision, e.CatalogRejected)]
    return [_consequence(decision) for decision in rejected or _decisions(copy)]


def _decisions(state: Cluster) -> list[e.Decision]:
    return [found for found in decide(state) if isinstance(found, e.Decision)]


def _take(state: Cluster, origin: Origin, body: Body) -> None:
    number = state.sequence + 1
    apply(state, Record(number, state.time_ns, origin, "", "forecast", number, body))


def _consequence(decision: e.Decision) -> Consequence:
    refused = isinstance(decision, e.CatalogRejected) or (
        isinstance(decision, e.ModelLeftUnplaced) and decision.missing > 0
    )
    return Consequence(
        type=decision.wire, good=not refused, summary=summary(decision), data=decision
    )
