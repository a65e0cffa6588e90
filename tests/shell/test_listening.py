"""Who listens on a port, by real sockets of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.listening import stranger
from llmgw.processes import born, families

LISTEN = """
import signal, socket, sys
listener = socket.create_server((sys.argv[1], 0), family=getattr(socket, sys.argv[2]))
print(listener.getsockname()[1], flush=True)
signal.pause()
"""
WITH_A_CHILD = f"""
import subprocess, sys
subprocess.run([sys.executable, "-IS", "-c", {LISTEN!r}, *sys.argv[1:]], start_new_session=True)
"""


@contextmanager
def listening(
    host: str = "127.0.0.1",
    family: str = "AF_INET",
    program: tuple[str, ...] = (sys.executable, "-IS", "-c", LISTEN),
) -> Iterator[tuple[int, int]]:
    """Run a program that listens on a free port; yield its pid and the port."""
    words = [*program, host, family]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            for pid in families([process.pid]):
                os.kill(pid, 9)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_engine_itself_is_no_stranger_and_anybody_else_is_named(host: str) -> None:
    family = "AF_INET6" if ":" in host else "AF_INET"
    asked = host if host in ("127.0.0.1", "::1") else "127.0.0.1"
    with listening(host, family) as (pid, port):
        assert stranger(asked, port, {pid}, None) is None
        said = stranger(asked, port, {os.getpid()}, None)
        assert said is not None
        assert said.startswith(f"pid {pid} (")


def test_a_child_that_left_the_session_listens_for_its_engine() -> None:
    with listening(program=(sys.executable, "-IS", "-c", WITH_A_CHILD)) as (pid, port):
        assert stranger("127.0.0.1", port, families([pid]), None) is None


def test_nobody_who_can_be_seen_is_nobody_who_is_strange() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert stranger("127.0.0.1", port, {os.getpid()}, None) is None


def test_a_container_that_came_after_the_command_is_its_own_and_one_of_before_is_not(
    tmp_path: Path,
) -> None:
    keeper = tmp_path / "docker-proxy"  # the kernel calls a script by the name of its file
    keeper.write_text(f"#!{sys.executable} -IS\n{LISTEN}")
    keeper.chmod(0o755)
    with listening(program=(str(keeper),)) as (pid, port):
        assert stranger("127.0.0.1", port, {os.getpid()}, born(pid)) is None
        assert stranger("127.0.0.1", port, {os.getpid()}, born(pid) + 1) is not None
    with listening() as (pid, port):
        assert stranger("127.0.0.1", port, {os.getpid()}, born(pid)) is not None


def test_another_address_of_the_same_port_is_another_listener() -> None:
    with listening("127.0.0.2") as (_, port), socket.create_server(("127.0.0.1", port)):
        assert stranger("127.0.0.1", port, {os.getpid()}, None) is None
        assert stranger("127.0.0.2", port, {os.getpid()}, None) is not None
