"""What systemd is told: that a service is up, and that all is well only while that is so."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from llmgw.watchdog import Pulse, Supervision, supervision
from tests.support.cluster import Programs
from tests.support.wait import until


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd hears."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as hears:
        hears.setblocking(False)
        hears.bind(str(tmp_path / "notify"))
        yield hears


def heard(systemd: socket.socket) -> list[str]:
    """Take what was told since the last time."""
    found = []
    while True:
        try:
            found.append(systemd.recv(100).decode())
        except BlockingIOError:
            return found


async def test_all_is_well_is_told_until_a_part_is_overdue_and_again_when_it_gets_on(
    systemd: socket.socket, tmp_path: Path
) -> None:
    told = Supervision(systemd.getsockname(), 0.03)
    brain, sender = Pulse("brain", 0.1), Pulse("sender", 0.1)
    sender.expect()
    sender.rest()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as beside:
        beside.setblocking(False)
        beside.bind(str(tmp_path / "beside"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(told.keep_told, (brain, sender))
            tasks.start_soon(Supervision(beside.getsockname(), 0.03).keep_told, ())
            assert await until(lambda: "WATCHDOG=1" in heard(systemd), what="all is well")
            brain.show()
            await until(lambda: brain.is_overdue, what="the brain is overdue")
            heard(systemd), heard(beside)
            meanwhile: list[str] = []
            await until(lambda: len(_more(meanwhile, beside)) > 5, what="time goes on")
            assert heard(systemd) == []
            brain.show()
            assert await until(lambda: "WATCHDOG=1" in heard(systemd), what="it gets on")
            tasks.cancel_scope.cancel()


def _more(told: list[str], by: socket.socket) -> list[str]:
    told += heard(by)
    return told


async def test_who_is_expected_is_overdue_from_the_first_time_on() -> None:
    sender = Pulse("sender", 0.05)
    assert not sender.is_overdue

    def overdue() -> bool:
        sender.expect()
        return sender.is_overdue

    await until(overdue, what="more to send does not put it off")


async def test_without_a_watchdog_nothing_is_told_and_nobody_waits(systemd: socket.socket) -> None:
    await Supervision(systemd.getsockname()).keep_told(())
    assert heard(systemd) == []
    Supervision().tell("READY=1")
    Supervision("/no/such/socket").tell("READY=1")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_what_systemd_says_is_for_the_process_that_it_names(
    said: dict[str, str], seconds: float | None
) -> None:
    environment = {"NOTIFY_SOCKET": "@x", "HOME": "/", **said}
    assert supervision(environment, 7) == Supervision("@x", seconds)
    assert environment == {"HOME": "/"}, "no engine is meant by it"


def test_a_name_without_a_file_is_heard_as_well() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as hears:
        hears.settimeout(10)
        hears.bind("\0llmgw-test-" + str(os.getpid()))
        Supervision(f"@llmgw-test-{os.getpid()}").tell("READY=1")
        assert hears.recv(100) == b"READY=1"


async def test_an_agent_says_that_it_is_up_and_well_though_no_log_can_be_reached(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    programs = Programs(tmp_path)
    try:
        programs.start(
            *("agent", "run"), node="n1", data=tmp_path / "n1", nats_url="nats://127.0.0.1:9"
        )
        told: list[str] = []
        again_and_again = "it says again and again that all is well"
        await until(lambda: _more(told, systemd).count("WATCHDOG=1") > 3, 30, again_and_again)
        assert told[0] == "READY=1"
    finally:
        programs.end_all()
