"""How views are printed: aligned tables for people, exact data for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from textwrap import dedent

import msgspec
import pytest
import yaml

from llmgw import views
from llmgw.catalog.entries import Catalog
from llmgw.cli.options import Format
from llmgw.cli.output import Column, emit, emit_more, table_lines
from llmgw.cli.tables import EVENTS, as_size, view_lines
from llmgw.core import events as e
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import DeviceReading, Readings
from tests.views.history import (
    GIB,
    History,
    entry,
    failed,
    led,
    mig_empty,
    served,
    serving,
    started,
)


def shown(view: object, wide: bool = False) -> str:
    return "\n".join(view_lines(view, wide))


def golden(text: str) -> str:
    return dedent(text).strip("\n")


class TestTables:
    def test_status(self) -> None:
        history = started(serving(), "n2", excluded=(mig_empty(1),)).garbage()
        history.write(e.NodeStopped(engines="left running"), "n1")
        assert shown(views.status(history.state, "lab")) == golden(
            """
            cluster lab as of sequence 12, 2026-03-01T12:00:12.000Z
            controller: controller n1 (term 1)
            nodes: 1 up, 0 lost, 1 stopped
            conditions: 1 mig-empty (see llmgw ctl devices and nodes)
            records set apart: 1 unreadable (see llmgw ctl events --rejected)

            MODEL  WANTED  READY  STARTING  FAILED  LOST  MISSING  WHY MISSING
            tiny        1      1         0       0     0        0  -

            CLASS     DEVICES  FREE  HELD  EXCLUDED
            a100-80g        4     1     1         2
            """
        )

    def test_status_of_what_fits_nowhere(self) -> None:
        history = served(led(started(History())), entry(replicas=4))
        history.write(
            e.ModelLeftUnplaced(
                term=1, at=5, model="tiny", missing=4, refusals={"hot": 2, "too small": 5}
            )
        )
        history.write(e.CatalogApplied(catalog=Catalog()))
        said = shown(views.status(history.state))
        assert "tiny        4      0         0       0     0        4  5 too small, 2 hot" in said
        assert "the catalog of sequence 7 waits for a controller" in said

    def test_nodes(self) -> None:
        history = started(serving(), "node-two", cards=1)
        hot = e.Condition(device=0, name="hot", detail="91 °C")
        history.write(e.NodeConditionsChanged(conditions=(hot,)), "node-two")
        assert shown(views.nodes(history.state)) == golden(
            """
            NODE      STATE  BACKEND     DEVICES     EXCLUDED  REPLICAS  COMMAND  CONDITIONS
            n1        up     nvidia-smi  2 a100-80g         0  r1        due      -
            node-two  up     nvidia-smi  1 a100-80g         0  -         -        0 hot: 91 °C
            """
        )

    def test_devices(self) -> None:
        reading = DeviceReading(id=0, uuid="GPU-n1-0", memory_used_bytes=900 << 20)
        sample = NodeSample(node="n1", session="s", number=1, readings=Readings(devices=(reading,)))
        history = started(serving(), "n2", excluded=(mig_empty(1), mig_empty(12)))
        assert shown(views.devices(history.state, {"n1": sample})) == golden(
            """
            NODE  DEVICE  CLASS     STATE        TOTAL      HELD     USED  REPLICAS  REASON
            n1    0       a100-80g  held      80.0 GiB  10.0 GiB  900 MiB  r1        -
            n1    1       a100-80g  free      80.0 GiB         0        -  -         -
            n2    0       a100-80g  free      80.0 GiB         0        -  -         -
            n2    1       a100-80g  excluded  80.0 GiB         0        -  -         mig-empty
            n2    12      -         excluded         -         -        -  -         mig-empty
            """
        )

    def test_replicas_with_what_to_do_about_a_failure(self) -> None:
        assert shown(views.replicas(failed(serving()).state)) == golden(
            """
            REPLICA  MODEL  NODE  DEVICES  PHASE   ADDRESS  ATTEMPTS  SINCE                 REASON
            r1       tiny   n1    0        failed  -               1  2026-03-01T12:00:09Z  exit code 1: the model does not fit

            r1 on n1: the model does not fit
              what to do: give it more memory
            """  # noqa: E501 -- as wide as the table is
        )

    def test_events(self) -> None:
        assert shown(views.events(serving().records[:4])) == golden(
            """
            SEQUENCE  TIME                      FROM        TYPE                WHAT
                   1  2026-03-01T12:00:01.000Z  n1          node.started        agent 0.1.0 came up at 127.0.0.1
                   2  2026-03-01T12:00:02.000Z  n1          node.inventory      has 2 a100-80g, read by nvidia-smi
                   3  2026-03-01T12:00:03.000Z  controller  controller.elected  controller n1 leads (term 1)
                   4  2026-03-01T12:00:04.000Z  operator    catalog.applied     catalog from models.yaml: tiny
            """  # noqa: E501 -- as wide as the table is
        )

    def test_rejected(self) -> None:
        assert shown(views.rejected(History().garbage().records)) == golden(
            """
            SEQUENCE  TIME                      FROM  TYPE        KIND        DETAIL
                   1  2026-03-01T12:00:01.000Z  n1    unreadable  unreadable  llmgw.v1.test.event.node.n1.node.started: Input data was truncated
            """  # noqa: E501 -- as wide as the table is
        )

    def test_an_empty_view_is_an_empty_table(self) -> None:
        assert shown(views.nodes(History().state)) == ""

    def test_wide_shows_more_columns_and_cuts_nothing_off(self) -> None:
        history = failed(serving())
        text = "x" * 200
        history.write(e.CommandRefused(revision=1, term=1, reason=text), "n1")
        assert "GPU-n1-0" in shown(views.devices(history.state), wide=True)
        assert "550.1" in shown(views.nodes(history.state), wide=True)
        assert text in shown(views.events(history.records), wide=True)
        assert text not in shown(views.events(history.records))


COLUMNS = (Column("NAME", lambda r: r["n"]), Column("SIZE", lambda r: r.get("s"), right=True))


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("a\nb", "a b"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("‮reversed", r"\u202ereversed"),
        ("", "-"),
        ("y" * 97, "y" * 95 + "…"),
    ],
)
def test_nothing_that_came_from_outside_can_move_the_cursor(name: str, cell: str) -> None:
    assert [*table_lines([{"n": name}], COLUMNS, wide=False)][1].split("  ")[0] == cell


def test_characters_of_double_width_are_counted_twice() -> None:
    lines = [*table_lines([{"n": "模型", "s": 1}, {"n": "abcd", "s": 2}], COLUMNS, wide=False)]
    assert lines == ["NAME  SIZE", "模型     1", "abcd     2"]


def test_a_table_that_goes_on_has_one_header_and_keeps_its_columns() -> None:
    widths: list[int] = []
    rows = views.events(serving().records)
    first = [*table_lines(rows[:2], EVENTS, wide=False, widths=widths)]
    more = [*table_lines(rows[2:3], EVENTS, wide=False, widths=widths)]
    assert first[0].startswith("SEQUENCE")
    assert len(more) == 1
    assert more[0].index("controller") == first[0].index("FROM")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, None), (0, "0"), (512 << 20, "512 MiB"), (80 * GIB, "80.0 GiB")],
)
def test_sizes_are_as_people_read_them(size_bytes: int | None, text: str | None) -> None:
    assert as_size(size_bytes) == text


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.parametrize("name", views.VIEWS)
def test_programs_get_exactly_what_the_view_holds(
    name: str,
    output: str,
    read: Callable[[str], object],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    view = views.VIEWS[name](failed(serving()).state)
    emit(view, Format(output), view_lines)
    exact = json.loads(msgspec.json.encode(view))
    assert read(capfdbinary.readouterr().out.decode()) == exact


def test_a_list_without_an_end_is_one_object_a_line(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    rows = views.events(serving().records)
    emit_more(rows, Format.JSON, view_lines)
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [row.sequence for row in rows]
    emit_more(rows, Format.YAML, view_lines)
    documents = yaml.safe_load_all(capfdbinary.readouterr().out)
    assert [one["sequence"] for one in documents] == [row.sequence for row in rows]
