"""Real llama.cpp servers for tests, as an agent would start them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from llmgw.catalog.entries import Entry
from llmgw.engines.base import Grant, LaunchRequest
from llmgw.engines.llama_cpp import ENGINE
from llmgw.errors import EngineUnavailable
from llmgw.programs import find_program
from llmgw.shims import llama_server
from tests.support.tiny_model import write_tiny_model
from tests.support.wait import until_sync


class Server:
    """A started engine: where it listens, what it said, how it ended."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | env,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        until_sync(self._is_ready, deadline_seconds=30, what="the server is ready")

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.said()
        try:
            status = httpx.get(f"{self.url}/health", trust_env=False).status_code
        except httpx.TransportError:
            return False
        return status == 200


class _Unnamed(NamedTuple):
    llama_server: str | None = None
    vllm: str | None = None
    sglang: str | None = None


SHIM = (sys.executable, "-P", llama_server.__file__)


@pytest.fixture(params=["llama-server", "xllamacpp"])
def server_program(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Each way to run llama.cpp that this machine has and that works on its processor."""
    if request.param == "xllamacpp":
        if importlib.util.find_spec("xllamacpp") is None:
            pytest.skip("the package xllamacpp is not installed")
        return SHIM
    try:
        found = asyncio.run(find_program("llama.cpp", _Unnamed()))
    except EngineUnavailable as error:
        pytest.skip(str(error))
    if found == SHIM:
        pytest.skip("no llama-server binary runs on this machine")
    return found


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-a.gguf", "tiny-a")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


StartServer = Callable[..., Server]


@pytest.fixture
def start(server_program: tuple[str, ...], tmp_path: Path, free_port: int) -> Iterator[StartServer]:
    """Start `source` with the command line that the engine module builds; end it afterwards."""
    started: list[Server] = []

    def start(source: Path, port: int = free_port, args: tuple[str, ...] = ("-t", "1")) -> Server:
        entry = Entry(
            name="tiny-a",
            engine="llama.cpp",
            classes=("cpu",),
            memory_bytes=2**30,
            source=str(source),
            context=1024,
            parallel=2,
            args=args,
        )
        launch = ENGINE.launch(
            LaunchRequest(
                replica="r1",
                entry=entry,
                grants=(Grant(uuid="cpu", device_class="cpu"),),
                program=server_program,
                host="127.0.0.1",
                port=port,
            )
        )
        log = tmp_path / f"{len(started)}.log"
        started.append(Server(launch.argv, dict(launch.env), port, log))
        return started[-1]

    yield start
    for server in started:
        server.kill()
