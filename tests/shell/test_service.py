"""Questions and answers over NATS: what a tool that speaks to `$SRV` and `…api.views.*` gets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.micro.service import ServiceInfo, ServiceStats

from llmgw import views
from llmgw.core.cluster import Cluster
from llmgw.folding import fold
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.endpoints import MOST_AT_ONCE, Answer, Endpoint, Refusal, Service
from llmgw.log.jetstream import JetStreamLog
from llmgw.service import serve_views
from llmgw.settings import Settings
from tests.support.cluster import NAME, running_cluster
from tests.support.nats import Subjects, fresh_subjects, log_on, plain_server
from tests.support.wait import until
from tests.views.history import CLUSTER, failed, serving

Ask = Callable[..., Any]


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """Speak to the server as another program does."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


class Folder:
    """Folds a log and answers with its views, as a controller does."""

    def __init__(self, log: JetStreamLog, at: Subjects, folder: Path) -> None:
        self.state = Cluster()
        settings = Settings(node="k1", data=folder, cluster=at.cluster)
        self._log = log
        self._folded = asyncio.Condition()
        served = serve_views(log, settings, self.state, self._until_folded)
        self._tasks = [asyncio.create_task(work) for work in (served, self._fold())]

    async def _fold(self) -> None:
        async for batch in self._log.follow():
            async with self._folded:
                fold(self.state, batch)
                self._folded.notify_all()

    async def _until_folded(self, sequence: int) -> None:
        async with self._folded:
            await self._folded.wait_for(lambda: self.state.sequence >= sequence)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def answering(log: JetStreamLog, at: Subjects, folder: Path) -> AsyncIterator[Folder]:
    folding = Folder(log, at, folder)
    try:
        yield folding
    finally:
        await folding.close()


async def ask(client: Client, subject: str, question: object = None, patience: float = 8) -> Msg:
    """Ask until somebody is there: a service that comes up subscribes a moment later."""
    payload = b"" if question is None else json.dumps(question).encode()

    async def asked() -> Msg | None:
        try:
            return await client.request(subject, payload, timeout=patience)
        except NoRespondersError:
            return None

    found: Msg | None = await until(asked, what=f"{subject} answers")
    assert found is not None
    return found


async def view(client: Client, at: Subjects, name: str, question: object = None) -> Msg:
    return await ask(client, f"llmgw.v1.{at.cluster}.api.views.{name}", question)


def error_of(message: Msg) -> tuple[str, str]:
    """Return the code and the words of an error, as ADR-32 puts them into headers."""
    headers = message.headers or {}
    assert message.data == b""
    return headers["Nats-Service-Error-Code"], headers["Nats-Service-Error"]


async def store(log: JetStreamLog, at: Subjects) -> int:
    """Append a made history to the log; return its last sequence."""
    for message in failed(serving()).messages:
        payload = message.payload.replace(
            f"/llmgw/{CLUSTER}/".encode(), f"/llmgw/{at.cluster}/".encode()
        )
        subject = message.subject.replace(f".{CLUSTER}.", f".{at.cluster}.")
        last = await log.append(subject, payload, message_id=message.message_id)
    return last


async def test_every_view_is_answered_as_ctl_prints_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        at = Subjects(NAME)
        await store(cluster.log, at)
        cluster.controller("k1")
        cluster.controller("k2")
        await cluster.until_state(lambda state: state.leader[:1] == "k", "one of them leads")
        async with client_of(cluster.url) as client:
            for name in views.VIEWS:
                await view(client, at, name)
            await until_pinged(client, 2)
            last = await settled(cluster.log)
            for name in views.VIEWS:
                answer = await view(client, at, name, {"sequence": last})
                printed = cluster.start("ctl", name, "-o", "json", nats_url=cluster.url)
                await until(printed.has_ended, 20, f"ctl {name} has ended")
                assert json.loads(answer.data) == json.loads(printed.output)
                assert (answer.headers or {})["Llmgw-Sequence"] == str(last)


async def settled(log: JetStreamLog) -> int:
    """Return the last sequence once the controllers have nothing more to say."""
    seen: list[int] = []

    async def unchanged() -> bool:
        seen.append((await log.bounds()).last)
        return len(seen) > 25 and len(set(seen[-25:])) == 1

    done: bool = await until(unchanged, 20, "the controllers have decided")
    assert done
    return seen[-1]


async def until_pinged(client: Client, count: int) -> None:
    """Wait until so many answer to a ping."""
    done: bool = await until(lambda: pinged(client, count), 20, f"{count} answer")
    assert done


async def pinged(client: Client, count: int) -> bool:
    """Return whether so many answer to a ping."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish("$SRV.PING.llmgw-controller", b"", inbox)
    found = 0
    with contextlib.suppress(nats.errors.TimeoutError):
        while found < count and (await subscription.next_msg(1)).data:
            found += 1
    await subscription.unsubscribe()
    return found == count


async def test_it_can_be_discovered(server: EmbeddedServer, tmp_path: Path) -> None:
    at = fresh_subjects()
    async with (
        log_on(server, at) as log,
        answering(log, at, tmp_path),
        client_of(server.url) as client,
    ):
        ping = json.loads((await ask(client, "$SRV.PING")).data)
        assert ping["type"] == "io.nats.micro.v1.ping_response"
        name, identity = ping["name"], ping["id"]
        assert ping["metadata"] == {"cluster": at.cluster, "node": "k1"}
        for subject in ("$SRV.INFO", f"$SRV.INFO.{name}", f"$SRV.INFO.{name}.{identity}"):
            info = ServiceInfo.from_dict(json.loads((await ask(client, subject)).data))
            assert (info.name, info.id, info.version) == (name, identity, ping["version"])
            assert {e.name for e in info.endpoints} == views.VIEWS.keys()
        (status,) = [e for e in info.endpoints if e.name == "status"]
        assert status.subject == f"llmgw.v1.{at.cluster}.api.views.status"
        assert status.metadata == {"schema": "urn:llmgw:schema:view.status:1"}
        await view(client, at, "status")
        await view(client, at, "status", {"nonsense": 1})
        stats = json.loads((await ask(client, f"$SRV.STATS.{name}.{identity}")).data)
        (counted,) = [e for e in stats["endpoints"] if e["name"] == "status"]
        assert (counted["num_requests"], counted["num_errors"]) == (2, 1)
        assert counted["last_error"].startswith("400: ")
        assert counted["average_processing_time"] == counted["processing_time"] // 2 > 0
        for endpoint in stats["endpoints"]:
            endpoint.setdefault("data", None)
        assert ServiceStats.from_dict(stats).started.year >= 2026


async def test_it_goes_on_after_the_server_was_killed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    at = fresh_subjects()
    async with log_on(server, at) as log, answering(log, at, tmp_path):
        async with client_of(server.url) as client:
            await view(client, at, "status")
            before = json.loads((await ask(client, "$SRV.STATS")).data)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.restart()
        last = await store(log, at)
        async with client_of(server.url) as client:
            answer = await view(client, at, "status", {"sequence": last})
            after = json.loads((await ask(client, "$SRV.STATS")).data)
    assert json.loads(answer.data)["sequence"] == last
    assert (after["id"], after["started"]) == (before["id"], before["started"])
    counts = [stats["endpoints"][0]["num_requests"] for stats in (before, after)]
    assert counts == [1, 2]


async def test_one_that_leaves_is_asked_no_more(server: EmbeddedServer, tmp_path: Path) -> None:
    at = fresh_subjects()
    async with log_on(server, at) as log, client_of(server.url) as client:
        async with answering(log, at, tmp_path):
            async with answering(log, at, tmp_path):
                await until_pinged(client, 2)
            for _ in range(10):
                answer = await view(client, at, "nodes")
                assert (answer.headers, answer.data) == ({"Llmgw-Sequence": "0"}, b"[]")

        async def nobody_answers() -> bool:
            with contextlib.suppress(nats.errors.TimeoutError):  # asked just as the last one left
                try:
                    await client.request(f"llmgw.v1.{at.cluster}.api.views.nodes", b"", timeout=2)
                except NoRespondersError:
                    return True
            return False

        gone: bool = await until(nobody_answers, what="nobody hears the question")
        assert gone


async def test_a_list_can_be_asked_of_one_node(server: EmbeddedServer, tmp_path: Path) -> None:
    at = fresh_subjects()
    async with (
        log_on(server, at) as log,
        answering(log, at, tmp_path),
        client_of(server.url) as client,
    ):
        last = await store(log, at)
        for name in ("nodes", "devices", "replicas"):
            everything = json.loads((await view(client, at, name, {"sequence": last})).data)
            assert everything
            assert json.loads((await view(client, at, name, {"node": "n1"})).data) == everything
            assert json.loads((await view(client, at, name, {"node": "n2"})).data) == []
        code, said = error_of(await view(client, at, "status", {"node": "n1"}))
        assert (code, "not of one node" in said) == ("400", True)


@pytest.mark.parametrize(
    "question",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"sequence": -1}',
        b'{"sequence": 1.5}',
        b'{"sequence": ' + b"9" * 400 + b"}",
        b'{"sequence": NaN}',
        b'{"view": "nodes"}',
        b'{"node": "a.b"}',
        b'{"node": 1}',
        b'{"a":' * 150,
        b"[" * 100_000,
    ],
    ids=lambda question: repr(question[:20]),
)
async def test_a_question_that_is_not_understood_is_told_so(
    question: bytes, questioned: tuple[Client, Subjects]
) -> None:
    client, at = questioned
    answer = await client.request(f"llmgw.v1.{at.cluster}.api.views.status", question, timeout=8)
    code, said = error_of(answer)
    assert code == "400"
    assert len(said) < 1_100


@pytest.fixture
async def questioned(
    server: EmbeddedServer, tmp_path: Path
) -> AsyncIterator[tuple[Client, Subjects]]:
    at = fresh_subjects()
    async with (
        log_on(server, at) as log,
        answering(log, at, tmp_path),
        client_of(server.url) as client,
    ):
        await view(client, at, "status")
        yield client, at


async def test_an_answer_that_must_be_newer_than_the_log_comes_late_or_not(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.service.PATIENCE_SECONDS", 0.3)
    at = fresh_subjects()
    async with (
        log_on(server, at) as log,
        answering(log, at, tmp_path),
        client_of(server.url) as client,
    ):
        code, said = error_of(await view(client, at, "status", {"sequence": 3}))
        assert (code, "up to sequence 0, and 3 did not come" in said) == ("504", True)
        last = await store(log, at)
        answer = await view(client, at, "status", {"sequence": last})
        assert json.loads(answer.data)["sequence"] == last


async def test_an_answer_goes_to_an_inbox_and_never_into_the_log(
    questioned: tuple[Client, Subjects],
) -> None:
    client, at = questioned
    forged = [
        f"llmgw.v1.{at.cluster}.event.operator.catalog.applied",
        f"llmgw.v1.{at.cluster}.command.n1",
        f"llmgw.v1.{at.cluster}.telemetry.n1",
        f"$JS.API.STREAM.DELETE.LLMGW_{at.cluster}_LOG",
    ]
    for subject in (f"llmgw.v1.{at.cluster}.api.views.status", "$SRV.INFO", "$SRV.PING"):
        for reply in (*forged, ""):
            await client.publish(subject, b"", reply)
    await view(client, at, "status")  # an answer on the same connection: the others are dealt with
    for stream in ("LOG", "TELEMETRY"):
        info = await client.request(f"$JS.API.STREAM.INFO.LLMGW_{at.cluster}_{stream}", b"")
        assert json.loads(info.data)["state"]["messages"] == 0


async def test_a_flood_is_told_to_come_again_and_then_all_is_as_before(
    questioned: tuple[Client, Subjects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.service.PATIENCE_SECONDS", 1.0)
    client, at = questioned
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    for _ in range(MOST_AT_ONCE + 100):
        await client.publish(f"llmgw.v1.{at.cluster}.api.views.status", b'{"sequence": 99}', inbox)
    codes = [error_of(await subscription.next_msg(10))[0] for _ in range(MOST_AT_ONCE + 100)]
    assert set(codes) == {"503", "504"}
    assert codes.count("504") >= MOST_AT_ONCE
    assert (await view(client, at, "status")).headers == {"Llmgw-Sequence": "0"}


@contextlib.asynccontextmanager
async def serving_endpoint(
    log: JetStreamLog, subject: str, handler: Callable[[bytes], Any]
) -> AsyncIterator[None]:
    service = Service("test", "1.0.0", "", (Endpoint("one", subject, handler),))
    task = asyncio.create_task(log.serve(service))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_mistake_of_ours_is_an_error_and_not_silence(server: EmbeddedServer) -> None:
    async def broken(_: bytes) -> Answer:
        raise ZeroDivisionError("a\nb")

    at = fresh_subjects()
    async with (
        log_on(server, at) as log,
        serving_endpoint(log, "broken", broken),
        client_of(server.url) as client,
    ):
        assert error_of(await ask(client, "broken")) == ("500", "ZeroDivisionError: a b")
        stats = json.loads((await ask(client, "$SRV.STATS.test")).data)
        assert stats["endpoints"][0]["last_error"] == "500: ZeroDivisionError: a\nb"


async def test_an_answer_that_does_not_fit_says_so(tmp_path: Path) -> None:
    async def large(question: bytes) -> Answer | Refusal:
        return Answer(b"x" * int(question))

    config = f'max_payload: 16KB\njetstream {{ store_dir: "{tmp_path}" }}\n'
    at = fresh_subjects()
    async with (
        plain_server(tmp_path, config) as address,
        log_on(f"nats://{address}", at) as log,
        serving_endpoint(log, "large", large),
        client_of(f"nats://{address}") as client,
    ):
        code, said = error_of(await ask(client, "large", 16_000))
        assert (code, "16000 bytes and a message takes 16384" in said) == ("507", True)
        assert len((await ask(client, "large", 15_000)).data) == 15_000
