"""What becomes of a record at which the fold itself fails: a mistake in llmgw, told and not hidden.

It is dealt with as a version that is too new: deciding stops and says why, no snapshot is kept,
and what follows is folded, so that everything can still be looked at. A better version folds the
log anew. Nobody passes over the record in silence, and nobody falls over it again and again. Called
by `llmgw.folding`; `core.fold` itself raises, so that tests see where.
"""

from __future__ import annotations

from types import TracebackType

from llmgw.core.cluster import KEPT_INCIDENTS, Cluster, Incident

FELL = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What code raises that meets what it did not expect."""


def set_apart(state: Cluster, error: Exception) -> None:
    """Note that folding the record at `state.sequence` failed, and stop deciding."""
    where = f"{type(error).__name__} in {_innermost(error.__traceback__)}"
    said = f"the record {state.sequence}, at which this version fails ({where})"
    if state.needs_upgrade is None:
        state.needs_upgrade = said
    state.incidents.append(Incident(state.sequence, "failed", where))
    if len(state.incidents) > KEPT_INCIDENTS:
        del state.incidents[0]


def _innermost(trace: TracebackType | None) -> str:
    """Return the function and line at which it was raised."""
    place = "?"
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place
