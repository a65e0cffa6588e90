"""What comes from outside reaches a terminal as text: nothing in any view moves the cursor."""

from __future__ import annotations

import pytest

from llmgw import views
from llmgw.cli.options import Format
from llmgw.cli.output import emit
from llmgw.cli.tables import view_lines
from llmgw.core import events as e
from tests.views.history import History, failed, led, serving, started

EVIL = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202ereversed\u2028\x00"


def hostile() -> History:
    history = failed(serving())
    history.write(
        e.ReplicaFailed(
            replica="r1",
            generation=1,
            reason=EVIL,
            meaning=EVIL,
            advice=EVIL,
            output=EVIL,
            retry_seconds=1,
        ),
        "n1",
    )
    history.write(e.NodeHardwareUnreadable(reason=EVIL), "n1")
    conditions = (e.Condition(device=0, name="hot", detail=EVIL),)
    history.write(e.NodeConditionsChanged(conditions=conditions), "n1")
    history.write(e.NodeStarted(boot_id=EVIL, agent_version=EVIL, address=EVIL), "n2")
    history.write(e.CatalogRejected(term=1, at=1, request=4, reasons=(EVIL,)))
    history.garbage(EVIL.encode(), "node.started")
    return led(started(history, "n3"), term=2).write(e.ControllerElected(term=3, holder=EVIL))


@pytest.mark.parametrize("output", [Format.TABLE, Format.WIDE])
@pytest.mark.parametrize("name", [*views.VIEWS, "events", "rejected"])
def test_nothing_moves_the_cursor(
    name: str, output: Format, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    history = hostile()
    if name in ("events", "rejected"):
        emit(getattr(views, name)(history.records), output, view_lines)
    else:
        emit(views.shown(name, history.state, "test"), output, view_lines)
    text = capsysbinary.readouterr().out.decode()
    assert text
    assert all(line.isprintable() for line in text.split("\n"))
