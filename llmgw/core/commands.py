"""What a controller tells an agent: the whole list of what should run there.

A command says what *should* be, never "start one more": delivered twice, late or out of order, it
does no harm. It ends in exactly one outcome event of the agent (`command.done`, `.refused`,
`.superseded`). A list without assignments is an order to run nothing.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from llmgw.catalog.entries import Entry
from llmgw.core.values import Token, Whole
from llmgw.engines.base import Grant


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One part of a replica that should run on the node, on these devices.

    Of a replica of several `parts`, part 0 leads: the others are told its `leader` address
    (`HOST:PORT`, where all parts meet) once it has said that it is starting. `failures` is how
    often the group was started again because one of its parts ended.
    """

    replica: Token
    part: Whole = 0
    generation: Whole
    entry: Entry
    devices: tuple[Whole, ...]
    grants: tuple[Grant, ...]
    parts: Whole = 1
    leader: str | None = None
    failures: Whole = 0


class SetAssignments(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Everything that should run on `node`, and nothing else.

    `revision` counts the changes of that list; `term` is the leadership that sent it, `at` the
    sequence of the state it was decided on.
    """

    wire: ClassVar[str] = "assignments.set"
    version: ClassVar[int] = 1

    node: Token
    revision: Whole
    term: Whole
    at: Whole
    assignments: tuple[Assignment, ...] = ()
