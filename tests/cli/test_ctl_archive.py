"""`llmgw ctl export`, `import`, `replay --archive` and `--verify`, as a user types them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.core import events as e
from llmgw.log.archive import write_archive
from llmgw.log.base import Bounds, Message
from llmgw.testing.builders import CLUSTER, Story, applied, card, elected, entry, joined, processor
from llmgw.wire import Outgoing
from tests.cli.conftest import Ctl, Done, Program, environment
from tests.views import history

VIEWS = ("status", "nodes", "devices", "replicas")


def renamed(messages: Iterable[Outgoing], cluster: str) -> list[Outgoing]:
    """Return a story's messages as another cluster's."""
    old, new = f"/llmgw/{CLUSTER}/".encode(), f"/llmgw/{cluster}/".encode()
    return [
        m._replace(
            subject=m.subject.replace(f".{CLUSTER}.", f".{cluster}."),
            payload=m.payload.replace(old, new),
        )
        for m in messages
    ]


def story() -> Story:
    """Two catalogs on two nodes, two terms, and everything that was decided."""
    nodes = [*joined("n1", processor()), *joined("n2", processor(), card(0))]
    made = Story().given(*nodes, elected(), applied(entry("m", "cpu", gib=5))).decided()
    return made.given(elected(2, "b"), applied(entry("m", "cpu", replicas=3, gib=5))).decided()


@pytest.fixture
def told(ctl: Ctl) -> Ctl:
    """A live log that holds the story."""
    return ctl.store(renamed(story().log, history.CLUSTER))


def write(path: Path, messages: Iterable[Outgoing], cluster: str = CLUSTER, first: int = 1) -> None:
    """Write an archive of messages, one second apart from noon on."""
    stored = [
        Message(n, history.NOON_NS + n * history.SECOND_NS, m.subject, m.payload)
        for n, m in enumerate(messages, start=1)
    ]

    async def batches() -> AsyncIterator[list[Message]]:
        yield stored[first - 1 :]

    bounds = Bounds(1, len(stored), history.NOON_NS)
    writing = write_archive(path, batches(), cluster=cluster, log=bounds, now_ns=time.time_ns())
    asyncio.run(writing)


def data(done: Done) -> object:
    assert done.code == 0, done.err
    return json.loads(done.out)


class TestExport:
    def test_an_archive_shows_what_the_live_log_shows_without_any_server(
        self, told: Ctl, llmgw: Program
    ) -> None:
        exported = told("export", "log.llmgw", "-o", "json")
        length = len(story().log)
        assert data(exported)["records"] == length  # type: ignore[index]
        nowhere = {"LLMGW_NATS_URL": "nats://127.0.0.1:1"}
        for to in ("3", "8", str(length)):
            for view in VIEWS:
                words = ("replay", "--to", to, "--view", view, "-o", "json")
                archived = llmgw("ctl", *words, "--archive", "log.llmgw", **nowhere)
                assert data(archived) == data(told(*words))
        for flags in ((), ("--rejected",), ("--node", "n1", "--limit", "2")):
            archived = llmgw("ctl", "events", *flags, "-o", "json", "--archive", "log.llmgw")
            assert data(archived) == data(told("events", *flags, "-o", "json"))

    def test_people_are_told_what_the_file_holds(self, told: Ctl) -> None:
        done = told("export", "log.llmgw")
        assert f"log.llmgw holds the records 1 to {len(story().log)} of cluster" in done.out

    def test_a_file_that_is_there_stays_without_force(self, told: Ctl, tmp_path: Path) -> None:
        (tmp_path / "log.llmgw").write_text("precious")
        done = told("export", "log.llmgw")
        assert (done.code, done.out) == (2, "")
        assert "log.llmgw is there already: choose another name, or overwrite" in done.err
        assert (tmp_path / "log.llmgw").read_text() == "precious"
        assert told("export", "log.llmgw", "--force").code == 0

    def test_a_part_brings_the_state_before_it_along(self, told: Ctl, llmgw: Program) -> None:
        assert told("export", "part.llmgw", "--from", "4", "--to", "6").code == 0
        rows = data(llmgw("ctl", "events", "--archive", "part.llmgw", "-o", "json"))
        assert [row["sequence"] for row in rows] == [4, 5, 6]  # type: ignore[attr-defined]
        for to in ("3", "4", "6"):
            for view in VIEWS:
                words = ("replay", "--to", to, "--view", view, "-o", "json")
                archived = llmgw("ctl", *words, "--archive", "part.llmgw")
                assert data(archived) == data(told(*words))

    def test_a_part_knows_nothing_of_what_was_before(self, told: Ctl, llmgw: Program) -> None:
        assert told("export", "part.llmgw", "--from", "4", "--to", "6").code == 0
        for words in (("replay", "--to", "2"), ("replay", "--verify")):
            done = llmgw("ctl", *words, "--archive", "part.llmgw")
            assert (done.code, done.out) == (2, "")
            assert "begins at sequence 4" in done.err

    def test_a_part_says_what_it_can_show_when_asked_for_more(
        self, told: Ctl, llmgw: Program
    ) -> None:
        assert told("export", "part.llmgw", "--from", "4", "--to", "6").code == 0
        done = llmgw("ctl", "replay", "--to", "2", "--archive", "part.llmgw")
        assert "part.llmgw begins at sequence 4, and holds no state of up to 2" in done.err
        assert "--live" not in done.err
        done = llmgw("ctl", "explain", "n1", "--archive", "part.llmgw")
        assert "what was up to sequence 3 is not told" in done.err
        assert "lost" not in done.err

    def test_a_copy_says_what_the_copied_one_said(
        self, told: Ctl, llmgw: Program, tmp_path: Path
    ) -> None:
        """A part stays a part, and what is scrubbed stays scrubbed."""
        assert told("export", "part.llmgw", "--from", "4").code == 0
        assert told("export", "clean.llmgw", "--scrub").code == 0
        for name, scrubbed in (("part", False), ("clean", True)):
            done = llmgw("ctl", "export", "copy.llmgw", "--archive", f"{name}.llmgw", "--force")
            assert done.code == 0
            assert "for reading" not in done.err
            with closing(sqlite3.connect(tmp_path / "copy.llmgw")) as database:
                copied = dict(database.execute("SELECT name, value FROM meta"))
            assert (copied["log_first"], bool(copied["scrubbed"])) == (1, scrubbed)
            words = ("replay", "--view", "nodes", "-o", "json")
            shown = [llmgw("ctl", *words, "--archive", f"{n}.llmgw") for n in ("copy", name)]
            assert data(shown[0]) == data(shown[1])

    def test_a_part_after_damage_is_for_reading(
        self, llmgw: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No state leads there, so none goes along, and that is said."""
        monkeypatch.setattr("llmgw.log.archive.CHUNK_RECORDS", 3)
        path = tmp_path / "log.llmgw"
        write(path, story().log)
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE chunks SET body = x'00' WHERE first = 1")
            database.commit()
        done = llmgw("ctl", "export", "rest.llmgw", "--archive", "log.llmgw", "--from", "4")
        assert done.code == 0, done.err
        assert "no state of before goes along" in done.err
        done = llmgw("ctl", "events", "--archive", "rest.llmgw", "-o", "json")
        assert data(done)[0]["sequence"] == 4  # type: ignore[index]

    def test_what_is_wrong_with_a_snapshot_is_no_data(
        self, told: Ctl, llmgw: Program, tmp_path: Path
    ) -> None:
        assert told("export", "part.llmgw", "--from", "4").code == 0
        with closing(sqlite3.connect(tmp_path / "part.llmgw")) as database:
            database.execute("UPDATE snapshots SET snapshot = x'00'")
            database.commit()
        done = llmgw("ctl", "replay", "--archive", "part.llmgw", "-o", "json")
        assert (done.code, done.out) == (2, "")
        assert "snapshot_discarded" in done.err

    def test_a_scrubbed_part_is_for_reading(self, told: Ctl, llmgw: Program) -> None:
        done = told("export", "part.llmgw", "--scrub", "--from", "4", "--to", "6")
        assert done.code == 0
        assert "no state of before goes along" in done.err
        assert data(llmgw("ctl", "events", "--archive", "part.llmgw", "-o", "json"))
        for words in (("replay",), ("replay", "--verify"), ("events", "--rejected")):
            done = llmgw("ctl", *words, "--archive", "part.llmgw")
            assert (done.code, done.out) == (2, "")
            assert "begins at sequence 4" in done.err

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (("--to", "999"), 2, "999 has not been written"),
            (("--from", "999"), 2, "999 has not been written"),
            (("--from", "soon"), 2, "--from 'soon' is neither a sequence nor a time"),
            (("--from", "5", "--to", "4"), 2, "no record to export in that span"),
            (("--to", "2 hours ago"), 2, "no record to export in that span"),
        ],
    )
    def test_a_span_that_is_not_there_is_told(
        self, told: Ctl, tmp_path: Path, words: tuple[str, ...], code: int, said: str
    ) -> None:
        done = told("export", "log.llmgw", *words)
        assert (done.code, done.out) == (code, "")
        assert said in done.err
        assert list(tmp_path.glob("*.llmgw*")) == []

    def test_an_empty_log_is_told(self, ctl: Ctl) -> None:
        done = ctl("export", "log.llmgw")
        assert (done.code, done.out) == (1, "")
        assert f"the log of cluster {ctl.cluster} holds nothing to export" in done.err

    def test_a_disk_that_is_full_leaves_nothing(self, told: Ctl, tmp_path: Path) -> None:
        limited = (
            "import resource, sys; from llmgw.cli.main import run;"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192));"
            "sys.argv = ['llmgw', 'ctl', 'export', 'log.llmgw']; run()"
        )
        done = subprocess.run(
            [sys.executable, "-c", limited],
            cwd=tmp_path,
            env=environment(tmp_path, **told.variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert "cannot write log.llmgw: " in done.stderr
        assert "Nothing was left there" in done.stderr
        assert "Traceback" not in done.stderr
        assert [path.name for path in tmp_path.iterdir() if "llmgw" in path.name] == []


class TestArchives:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("replay", "--cluster", "c"), "--archive does not go with --nats-url, --cluster"),
            (("replay", "--to", "99"), "the log ends at sequence"),
            (("replay", "--verify", "--view", "nodes"), "--verify and --view do not go together"),
            (("events", "--follow"), "--follow and --archive do not go together"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, llmgw: Program, tmp_path: Path, words: tuple[str, ...], said: str
    ) -> None:
        write(tmp_path / "log.llmgw", story().log)
        done = llmgw("ctl", *words, "--archive", "log.llmgw")
        assert (done.code, done.out) == (2, "")
        assert said in done.err

    def test_damage_is_named(self, llmgw: Program, tmp_path: Path) -> None:
        path = tmp_path / "log.llmgw"
        write(path, story().log)
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE chunks SET body = CAST(body || x'00' AS BLOB)")
            database.commit()
        for words in (("replay",), ("replay", "--verify"), ("events",)):
            done = llmgw("ctl", *words, "--archive", "log.llmgw")
            assert (done.code, done.out) == (2, "")
            assert "log.llmgw is damaged: the records 1 to" in done.err

    def test_a_time_in_an_archive_is_the_logs_own(self, llmgw: Program, tmp_path: Path) -> None:
        write(tmp_path / "log.llmgw", story().log)
        done = llmgw("ctl", "replay", "--archive", "log.llmgw", "--to", "2026-03-01T12:00:03.5Z")
        assert "as of sequence 3, 2026-03-01T12:00:03.000Z" in done.err
        assert "cluster c as of sequence 3" in done.out


class TestVerify:
    def test_a_log_whose_decisions_agree_says_so_live_and_archived(
        self, told: Ctl, llmgw: Program
    ) -> None:
        told("export", "log.llmgw")
        live = data(told("replay", "--verify", "-o", "json"))
        archived = data(llmgw("ctl", "replay", "--archive", "log.llmgw", "--verify", "-o", "json"))
        assert live == archived
        assert isinstance(live, dict)
        assert live["agreed"] is True
        assert (live["terms"], live["decisions"], live["commands"]) == (2, 5, 3)
        said = llmgw("ctl", "replay", "--archive", "log.llmgw", "--verify").out
        assert said.startswith("Every decision agrees: 5 decisions and 3 commands in 2 terms")

    def test_a_tampered_decision_is_shown_with_both_sides_and_the_event(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        made = story()
        place = next(n for n, r in enumerate(made.records) if isinstance(r.body, e.ReplicaAssigned))
        body = made.records[place].body
        assert isinstance(body, e.ReplicaAssigned)
        part = replace(body.parts[0], node="n2")
        tampered = Story().encode(replace(body, parts=(part,)))
        write(tmp_path / "log.llmgw", [*made.log[:place], tampered, *made.log[place + 1 :]])
        words = ("ctl", "replay", "--archive", "log.llmgw", "--verify")
        done = llmgw(*words)
        assert done.code == 4
        assert f"part ways at sequence {place + 1}, replica.assigned" in done.out
        assert f"decided on:    sequence {body.at}, catalog.accepted" in done.out
        assert "recorded:      r1 of m goes to n2, device cpu" in done.out
        assert "decided again: r1 of m goes to n1, device cpu" in done.out
        assert "differs in:    parts" in done.out
        report = llmgw(*words, "-o", "json")
        assert report.code == 4
        found = json.loads(report.out)
        assert (found["agreed"], found["difference"]["sequence"]) == (False, place + 1)
        assert found["difference"]["decided"]["data"]["parts"][0]["node"] == "n1"
        before = llmgw(*words, "--to", str(place))
        assert (before.code, before.out.partition(":")[0]) == (0, "Every decision agrees")

    def test_a_log_without_decisions_has_nothing_to_verify(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        write(tmp_path / "log.llmgw", Story().given(*joined("n1", processor())).log)
        done = llmgw("ctl", "replay", "--archive", "log.llmgw", "--verify")
        assert (done.code, done.out) == (0, "Nothing was decided up to sequence 2.\n")

    def test_a_log_that_is_newer_than_this_llmgw_says_so(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        made = story()
        newer = Story().encode(elected(3, "c"))
        payload = newer.payload.replace(b'"dataversion":1', b'"dataversion":9')
        write(tmp_path / "log.llmgw", [*made.log, newer._replace(payload=payload)])
        done = llmgw("ctl", "replay", "--archive", "log.llmgw", "--verify")
        assert done.code == 1
        assert "holds controller.elected version 9. Upgrade llmgw" in done.err


class TestExplain:
    def test_a_replica_is_explained_live_and_from_an_archive(
        self, told: Ctl, llmgw: Program
    ) -> None:
        told("export", "log.llmgw")
        live = data(told("explain", "r1", "-o", "json"))
        assert live == data(llmgw("ctl", "explain", "r1", "--archive", "log.llmgw", "-o", "json"))
        assert isinstance(live, dict)
        assert [step["kind"] for step in live["steps"][-2:]] == ["decision", "command"]
        said = llmgw("ctl", "explain", "m", "--archive", "log.llmgw").out
        assert "n1: cpu of class cpu (asked: cpu)" in said
        assert said.endswith("\nNow model m: 0 of 3 ready.\n")

    def test_a_name_that_is_nothing_is_refused_with_what_there_is(self, told: Ctl) -> None:
        done = told("explain", "nobody")
        assert (done.code, done.out) == (2, "")
        assert "knows no replica, model or node 'nobody'; there are r1, r2, r3, m, n1" in done.err


class TestImport:
    def test_an_imported_log_shows_and_decides_the_same(
        self, ctl: Ctl, llmgw: Program, tmp_path: Path
    ) -> None:
        write(tmp_path / "log.llmgw", renamed(story().log, ctl.cluster), ctl.cluster)
        done = ctl("import", "log.llmgw", "-o", "json")
        length = len(story().log)
        assert (data(done), done.err) == (
            {"file": "log.llmgw", "cluster": ctl.cluster, "records": length, "already": 0},
            "their times are now those of this import",
        )
        for view in VIEWS:
            words = ("replay", "--view", view, "-o", "json")
            live, archived = ctl(*words), llmgw("ctl", *words, "--archive", "log.llmgw")
            assert timeless(data(live)) == timeless(data(archived))
        assert data(ctl("replay", "--verify", "-o", "json"))["agreed"] is True  # type: ignore[index]
        again = ctl("import", "log.llmgw")
        assert (again.code, again.err) == (0, "")
        assert f"holds all {length} records of log.llmgw already" in again.out

    def test_without_any_server_it_is_put_into_the_data_folder(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        write(tmp_path / "log.llmgw", story().log)
        words = ("ctl", "import", "log.llmgw", "--cluster", CLUSTER)
        done = llmgw(*words)
        length = len(story().log)
        assert (done.code, f"now holds the {length} records" in done.out) == (0, True), done.err
        assert "a log server runs on" in done.err
        assert f"holds all {length} records of log.llmgw already" in llmgw(*words).out

    def test_a_log_in_use_and_another_clusters_archive_are_refused(
        self, told: Ctl, tmp_path: Path
    ) -> None:
        write(tmp_path / "log.llmgw", renamed(story().log, told.cluster)[1:], told.cluster)
        write(tmp_path / "other.llmgw", story().log)
        for file, said in (("log.llmgw", "of its own"), ("other.llmgw", "is of cluster c")):
            done = told("import", file)
            assert (done.code, done.out) == (2, "")
            assert said in done.err
        assert len(data(told("events", "-o", "json"))) == len(story().log)  # type: ignore[arg-type]


def timeless(view: object) -> object:
    """Return a view without what says when."""
    if isinstance(view, list):
        return [timeless(row) for row in view]
    if isinstance(view, dict):
        return {k: timeless(v) for k, v in view.items() if k not in ("time", "since", "heard")}
    return view
