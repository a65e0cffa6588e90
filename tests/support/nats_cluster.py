"""Three real nats-servers as one JetStream cluster on loopback, each to be killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors

from llmgw.log.embedded import server_program
from llmgw.log.tether import tethered
from tests.support.wait import until

SERVERS = ("s1", "s2", "s3")
_ANSWER_SECONDS = 0.2
"""Short, so that it is soon seen when somebody leads again: until then nobody answers."""

_CONFIG = """
server_name: %(name)s
listen: "127.0.0.1:%(port)d"
jetstream { store_dir: "%(store)s", sync_interval: always }
lame_duck_grace_period: "1s"
lame_duck_duration: "30s"
cluster { name: three, listen: "127.0.0.1:%(route)d", routes: [%(routes)s] }
"""


class ServerCluster:
    """The servers by name; `url` names them all, so that a client finds those that are left."""

    def __init__(self, folder: Path) -> None:
        ports = _free_ports(2 * len(SERVERS))
        self._folder = folder
        self._ports = dict(zip(SERVERS, ports, strict=False))
        self._routes = dict(zip(SERVERS, ports[len(SERVERS) :], strict=True))
        self._running: dict[str, asyncio.subprocess.Process] = {}

    @property
    def url(self) -> str:
        """All servers, with commas between."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())

    async def start(self, name: str) -> None:
        """Start a server on what it stored before."""
        file = self._folder / f"{name}.conf"
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes.values())
        values = {"name": name, "port": self._ports[name], "route": self._routes[name]}
        store = self._folder / name
        file.write_text(_CONFIG % (values | {"store": store, "routes": routes}))
        command = tethered([await asyncio.to_thread(server_program), "-c", str(file)])
        self._running[name] = await asyncio.create_subprocess_exec(
            *command, stderr=subprocess.DEVNULL
        )

    async def kill(self, name: str) -> None:
        """End a server as a power cut would."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def leave(self, name: str) -> None:
        """Have a server send its clients away, give up what it leads and end: before an upgrade."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGUSR2)
        await process.wait()

    def at(self, port: int) -> tuple[str, int]:
        """Return the name and process id of the server that listens on a port."""
        [name] = [name for name, own in self._ports.items() if own == port]
        return name, self._running[name].pid

    async def until_ready(self, deadline_seconds: float = 60) -> None:
        """Wait until the servers that run have chosen who leads JetStream."""
        ready: bool = await until(self._answers, deadline_seconds, "JetStream answers")
        assert ready

    async def leader_of(self, stream: str) -> str:
        """Wait until a stream has a leader among those that run, and return its name."""

        async def leader() -> str | None:
            info = await self._ask(f"$JS.API.STREAM.INFO.{stream}")
            name = info.get("cluster", {}).get("leader") if info else None
            return name if name in self._running else None

        found: str | None = await until(leader, 60, f"{stream} has a leader")
        assert found is not None
        return found

    async def _answers(self) -> bool:
        info = await self._ask("$JS.API.INFO")
        return info is not None and "error" not in info

    async def _ask(self, subject: str) -> dict[str, Any] | None:
        servers = [f"nats://127.0.0.1:{self._ports[name]}" for name in self._running]
        with contextlib.suppress(OSError, nats.errors.Error):
            client = await nats.connect(servers, allow_reconnect=False, connect_timeout=2)
            try:
                answer = await client.request(subject, b"", timeout=_ANSWER_SECONDS)
                found: dict[str, Any] = json.loads(answer.data)
                return found
            finally:
                await client.close()
        return None

    async def end(self) -> None:
        """End what runs."""
        for name in list(self._running):
            await self.kill(name)


@contextlib.asynccontextmanager
async def three_servers(folder: Path) -> AsyncIterator[ServerCluster]:
    """Run three servers for the length of the block; they are ready when it begins."""
    servers = ServerCluster(folder)
    try:
        for name in SERVERS:
            await servers.start(name)
        await servers.until_ready()
        yield servers
    finally:
        await servers.end()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
