"""A real nats-server for the whole folder, the program as a user runs it, and logs to read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from llmgw.log.embedded import server_program
from llmgw.log.jetstream import connect
from llmgw.log.storefolder import StoreFolder
from llmgw.log.tether import tethered
from llmgw.wire import Outgoing
from tests.support.nats import fresh_subjects
from tests.support.wait import until_sync
from tests.views import history

_SAID_OF_THE_TESTS = "ignored: LLMGW_TEST_RUN_MARK"


class Done(NamedTuple):
    """What the program said and how it ended."""

    code: int
    out: str
    err: str


Program = Callable[..., Done]


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", "llmgw", *words]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which nothing of this machine's configuration counts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_") or "MARK" in k}
    project = str(Path(__file__).parents[2])
    return kept | {"LLMGW_DATA": str(folder / "data"), "PYTHONPATH": project} | variables


@pytest.fixture
def llmgw(tmp_path: Path) -> Program:
    """Run the program in an empty folder; keyword arguments are environment variables."""

    def run(*words: str, **variables: str) -> Done:
        done = subprocess.run(
            arguments(*words),
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=120,
        )
        said = [x for x in done.stderr.splitlines() if not x.startswith(_SAID_OF_THE_TESTS)]
        err = "\n".join(said)
        assert "Traceback" not in err, err
        return Done(done.returncode, done.stdout, err)

    return run


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one nats-server with JetStream; clusters keep the tests apart."""
    with nats_in(tmp_path_factory.mktemp("nats")) as url:
        yield url


@contextmanager
def nats_in(folder: Path) -> Iterator[str]:
    """Run a nats-server with JetStream that keeps everything in a folder."""
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
        f'jetstream {{ store_dir: "{folder}/store" }}\n'
    )
    command = tethered([server_program(), "-c", str(config)])
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        written = StoreFolder(folder)
        port = until_sync(lambda: written.read_port(process.pid), what="nats-server has a port")
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Ctl:
    """`llmgw ctl` against a log of its own."""

    def __init__(self, program: Program, url: str) -> None:
        self._program = program
        self.url = url
        self.cluster = fresh_subjects().cluster

    def __call__(self, *words: str) -> Done:
        return self._program("ctl", *words, **self.variables)

    @property
    def variables(self) -> dict[str, str]:
        return {"LLMGW_NATS_URL": self.url, "LLMGW_CLUSTER": self.cluster}

    def store(self, messages: Sequence[Outgoing]) -> Ctl:
        """Append messages of a made history to this log."""
        old, new = f".{history.CLUSTER}.", f".{self.cluster}."
        sources = f"/llmgw/{history.CLUSTER}/".encode(), f"/llmgw/{self.cluster}/".encode()
        asyncio.run(
            self._append(
                [
                    Outgoing(m.subject.replace(old, new), m.payload.replace(*sources), m.message_id)
                    for m in messages
                ]
            )
        )
        return self

    async def _append(self, messages: Sequence[Outgoing]) -> None:
        log = await connect(self.url, self.cluster, name="test")
        try:
            for message in messages:
                if ".telemetry." in message.subject:
                    await log.publish_sample(message.subject, message.payload)
                    await log.bounds()  # an answer on the same connection: it has arrived
                else:
                    await log.append_many([message])
        finally:
            await log.close()


@pytest.fixture
def ctl(llmgw: Program, nats_url: str) -> Ctl:
    """Give `llmgw ctl` an empty log."""
    return Ctl(llmgw, nats_url).store([])
