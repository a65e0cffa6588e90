"""`llmgw ctl replay --diff`, `--around`, `--what-if`, `--watch`, `explain SEQ` and `bisect`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.cli import main
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.testing.builders import Story, applied, elected, entry, joined, processor
from tests.cli.conftest import Ctl, Done, Program, arguments, environment
from tests.cli.test_ctl_archive import renamed, write
from tests.support.wait import until_sync
from tests.views import history

M = entry("m", "cpu", gib=5)


def story() -> Story:
    """Two nodes; a model is served on the first, fails there, and moves when the node is lost."""
    nodes = [*joined("n1", processor()), *joined("n2", processor())]
    made = Story().given(*nodes, elected(), applied(M)).decided()
    made.given(
        e.ReplicaStarting(replica="r1", generation=1, port=18100, devices=(900,)),
        e.CommandCompleted(revision=1, term=1),
        e.ReplicaBecameReady(
            replica="r1", generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
        ),
        e.ReplicaFailed(
            replica="r1",
            generation=1,
            reason="exit code 1",
            output="boom\n\x1b[2Jbang",
            retry_seconds=1,
        ),
        e.NodeLost(term=1, node="n1", silent_seconds=20),
    )
    return made.decided()


def place(kind: type) -> int:
    return next(r.sequence for r in story().records if isinstance(r.body, kind))


@pytest.fixture
def archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Program:
    """Run `llmgw ctl WORDS --archive FILE` on the story, in this process: it asks no server."""
    write(tmp_path / "log.llmgw", story().log)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["llmgw", "ctl", *words, "--archive", "log.llmgw"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.run()
        out, err = capfd.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, out, err.rstrip("\n"))

    return run


def data(done: Done, code: int = 0) -> dict[str, object]:
    assert done.code == code, done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    return found


class TestDiff:
    def test_what_changed_between_two_points_is_shown(self, archived: Program) -> None:
        ready, failed = str(place(e.ReplicaBecameReady)), str(place(e.ReplicaFailed))
        done = archived("replay", "--diff", ready, failed, "-o", "json")
        found = data(done)
        assert found["from"] == {"sequence": int(ready), "time": f"2026-03-01T12:00:{ready}.000Z"}
        changes = {c["path"]: (c.get("before"), c.get("after")) for c in found["changes"]}  # type: ignore[attr-defined]
        assert changes["replicas.r1.phase"] == ("ready", "failed")
        assert changes["status.models.m.ready"] == (1, 0)
        shown = archived("replay", "--diff", ready, failed, "--view", "replicas")
        assert re.search(r"replicas\.r1\.phase +changed +ready +failed", shown.out)
        assert "status." not in shown.out

    def test_times_name_points_too_and_back_is_as_good_as_forth(self, archived: Program) -> None:
        back = archived("replay", "--diff", "2026-03-01T12:00:59Z", "0", "-o", "json")
        kinds = {change["kind"] for change in data(back)["changes"]}  # type: ignore[attr-defined]
        assert "went" in kinds
        assert archived("replay", "--diff", "3", "3").out == "nothing differs\n"


class TestAround:
    def test_all_that_touched_it_is_shown_with_what_it_changed(self, archived: Program) -> None:
        done = archived("replay", "--around", "r1")
        assert "phase: ready → failed" in done.out
        assert "n1 is lost: silent for 20 s" in done.out
        assert "Then replica r1 of m is lost on n1, cpu" in done.out
        steps = data(archived("replay", "--around", "n1", "-o", "json"))["steps"]
        types = [step["type"] for step in steps]  # type: ignore[attr-defined]
        assert types[0] == "node.started"
        assert {"replica.assigned", "assignments.set", "node.lost"} <= {*types}

    def test_it_ends_where_it_is_told_to(self, archived: Program) -> None:
        done = archived("replay", "--around", "r1", "--to", str(place(e.ReplicaBecameReady)))
        assert "Then replica r1 of m is ready on n1, cpu" in done.out

    def test_a_name_that_is_nothing_is_refused(self, archived: Program) -> None:
        done = archived("replay", "--around", "nobody")
        assert (done.code, done.out) == (2, "")
        assert "knows no replica, model or node 'nobody'; there are r1" in done.err


class TestExplainARecord:
    def test_its_chain_is_shown_live_and_archived(self, ctl: Ctl, archived: Program) -> None:
        ctl.store(renamed(story().log, history.CLUSTER))
        words = ("explain", str(place(e.ReplicaAssigned)), "-o", "json")
        live, found = data(ctl(*words)), data(archived(*words))
        assert [s["type"] for s in live["steps"]] == [s["type"] for s in found["steps"]]  # type: ignore[attr-defined]
        kinds = [step["kind"] for step in found["steps"]]  # type: ignore[attr-defined]
        assert kinds == ["event", "decision", "decision", "command", *["outcome"] * 3]
        shown = archived("explain", str(place(SetAssignments)))
        assert "n1: cpu of class cpu (asked: cpu); chosen by: " in shown.out
        assert found["steps"][2]["score"].keys() >= {"same_model", "left_free"}  # type: ignore[index]
        assert shown.out.endswith("revision 1 is done.\n")

    def test_the_last_output_of_a_failure_is_shown_wide_and_harmless(
        self, archived: Program
    ) -> None:
        assert "shown with -o wide" in archived("explain", "r1").out
        wide = archived("explain", "r1", "-o", "wide").out
        assert wide.endswith("The last output of r1:\n  boom\n  \\x1b[2Jbang\n")

    def test_a_sequence_that_is_not_there_is_refused(self, archived: Program) -> None:
        done = archived("explain", "999")
        assert (done.code, done.out) == (2, "")
        assert f"the records 1 to {len(story().log)}, and no 999" in done.err


class TestBisect:
    def test_the_first_event_after_which_it_holds_is_found(self, archived: Program) -> None:
        found = data(archived("bisect", 'replicas.*.phase == "failed"', "-o", "json"))
        assert (found["holds"], found["to"]) == (True, place(e.ReplicaFailed))
        assert found["event"]["type"] == "replica.failed"  # type: ignore[index]
        done = archived("bisect", "nodes.n1.state == 'lost'")
        assert f"first so after sequence {place(e.NodeLost)}" in done.out
        assert f"Why: llmgw ctl explain {place(e.NodeLost)}" in done.out

    def test_what_held_only_for_a_moment_is_found(self, archived: Program) -> None:
        found = data(archived("bisect", "status.models.m.ready == 1", "-o", "json"))
        assert found["to"] == place(e.ReplicaBecameReady)

    def test_it_begins_and_ends_where_it_is_told_to(self, archived: Program) -> None:
        ready = str(place(e.ReplicaBecameReady))
        question = "status.models.m.ready == 0"
        found = data(archived("bisect", question, "--from", ready, "-o", "json"))
        assert (found["from"], found["to"]) == (int(ready), place(e.ReplicaFailed))
        done = archived("bisect", question, "--from", ready, "--to", ready)
        assert (done.code, f"never so after {ready}" in done.out) == (4, True)
        failed = str(place(e.ReplicaFailed))
        already = data(archived("bisect", question, "--from", failed, "-o", "json"))
        assert already["already"] is True

    def test_what_never_holds_ends_with_4(self, archived: Program) -> None:
        done = archived("bisect", "count(nodes.*) > 7", "-o", "json")
        assert (data(done, 4)["holds"], done.err) == (False, "")
        done = archived("bisect", "status.models.n.ready == 0")
        assert (done.code, "under status.models.n.ready" in done.err) == (4, True)

    def test_what_can_never_hold_is_no_question(self, archived: Program) -> None:
        done = archived("bisect", "replicas.*.phase == 'faild'")
        assert (done.code, done.out) == (2, "")
        assert "replicas.*.phase is one of assigned, starting, ready, " in done.err

    def test_what_is_not_understood_is_pointed_at(self, archived: Program) -> None:
        done = archived("bisect", "status.models.m.redy == 0")
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines()[1:] == ["  status.models.m.redy == 0", f"  {' ' * 16}^"]


CATALOG = """\
models:
  - {name: other, engine: llama.cpp, source: /m.gguf, class: cpu, memory: 1GiB}
"""


class TestWhatIf:
    def test_it_is_answered_and_nothing_is_written(self, ctl: Ctl, tmp_path: Path) -> None:
        ctl.store(renamed(story().log, history.CLUSTER))
        (tmp_path / "catalog.yaml").write_text(CATALOG)
        before = len(json.loads(ctl("events", "-o", "json").out))
        found = data(ctl("replay", "--what-if", "catalog=catalog.yaml", "-o", "json"))
        assert "r3 of other goes to n2" in str(found["decisions"])
        assert len(json.loads(ctl("events", "-o", "json").out)) == before

    @pytest.mark.parametrize(
        ("supposed", "expected"),
        [
            ("without-node=n2", "m: 1 replica without a place"),
            (f"lost-node=n1@{place(e.ReplicaBecameReady)}", "r2 of m goes to n2, device cpu"),
        ],
    )
    def test_what_would_be_decided_and_what_would_differ_is_told(
        self, archived: Program, supposed: str, expected: str
    ) -> None:
        found = data(archived("replay", "--what-if", supposed, "-o", "json"))
        assert found["supposed"] == [supposed]
        assert expected in str(found["decisions"])
        assert found["differences"]

    def test_several_go_together(self, archived: Program, tmp_path: Path) -> None:
        (tmp_path / "catalog.yaml").write_text(CATALOG)
        done = archived(
            "replay", "--what-if", "without-node=n2", "--what-if", "catalog=catalog.yaml"
        )
        assert done.code == 0
        assert "other: 1 replica without a place (2 node lost)" in done.out
        assert "nothing was written" in done.err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("nonsense",), "'nonsense' is not understood: write catalog=FILE"),
            (("catalog=missing.yaml",), "cannot be read"),
            (("policy=clever",), "there is no policy 'clever'; there are spread, pack"),
            (("policy=o:pack",), "no model 'o' was in the catalog then"),
            (("without-node=n9",), "knew no node 'n9' then; there were n1, n2"),
            (("with-node=nowhere",), "there is no folder nowhere"),
            (("with-node=n1:nowhere",), "there was a node n1 already"),
            (("lost-node=n1",), "write NAME@SEQ"),
            (("lost-node=n1@3", "--to", "4"), "leave out --to"),
            (("without-node=n1", "--verify"), "--verify and --what-if do not go together"),
        ],
    )
    def test_what_cannot_be_supposed_is_refused(
        self, archived: Program, words: tuple[str, ...], said: str
    ) -> None:
        done = archived("replay", "--what-if", *words)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


class Terminal:
    """A program on a terminal of its own: what it draws, and keys for it."""

    def __init__(self, program: subprocess.Popen[bytes], descriptor: int) -> None:
        self.program = program
        self._descriptor = descriptor
        self._drawn = ""

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def shows(self, text: str) -> None:
        """Wait until the newest picture holds a text."""
        until_sync(lambda: text in self._picture(), 30, f"{text!r} is shown: {self._drawn[-900:]}")

    def _picture(self) -> str:
        with contextlib.suppress(BlockingIOError, OSError):
            self._drawn += os.read(self._descriptor, 65_536).decode(errors="replace")
        return self._drawn.rpartition("\x1b[H")[2]

    def ended(self) -> int:
        """Return the exit code, having read on meanwhile: a full terminal would hold it up."""

        def has_ended() -> bool:
            self._picture()
            return self.program.poll() is not None

        until_sync(has_ended, 30, "it ends")
        return int(self.program.returncode)

    @property
    def drawn(self) -> str:
        self._picture()
        return self._drawn


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Give `llmgw ctl replay --watch` on the story, in a real terminal."""
    write(tmp_path / "log.llmgw", story().log)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
    os.set_blocking(ours, False)
    program = subprocess.Popen(
        arguments("ctl", "replay", "--watch", "--to", "3", "--archive", "log.llmgw"),
        cwd=tmp_path,
        env=environment(tmp_path, TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    try:
        yield Terminal(program, ours)
    finally:
        program.kill()
        program.wait()
        os.close(ours)


class TestWatch:
    def test_time_is_stepped_through_with_the_keyboard(self, terminal: Terminal) -> None:
        last = len(story().log)
        terminal.shows("status after sequence 3 of")
        terminal.press("n")
        terminal.shows("after sequence 4 of")
        terminal.press("\x1b[C")
        terminal.shows("after sequence 5 of")
        terminal.shows("a leads (term 1)")
        terminal.press("p\x1b[D")
        terminal.shows("after sequence 3 of")
        terminal.press("12")
        terminal.shows("go to 12_")
        terminal.press("\r")
        terminal.shows("after sequence 12 of")
        terminal.press("vvv")
        terminal.shows("replicas after sequence 12")
        terminal.shows("ready")
        terminal.press("G")
        terminal.shows(f"after sequence {last} of {last}")
        terminal.press("n")
        terminal.press("g")
        terminal.shows("before the first record")
        terminal.press(" ")
        terminal.shows(f"after sequence {last} of {last} (paused)")
        terminal.press("q")
        assert terminal.ended() == 0
        assert "\x1b[?1049l" in terminal.drawn

    def test_control_c_leaves_and_gives_the_terminal_back(self, terminal: Terminal) -> None:
        terminal.shows("after sequence 3 of")
        terminal.press("\x03")
        assert terminal.ended() == 0
        assert terminal.drawn.rstrip().endswith("\x1b[?25h\x1b[?1049l")

    def test_without_a_terminal_it_says_what_to_do_instead(self, archived: Program) -> None:
        done = archived("replay", "--watch")
        assert (done.code, done.out) == (2, "")
        assert "--watch needs a terminal" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--verify", "--watch"), "--verify and --watch do not go together"),
        (("--diff", "1", "2", "--to", "3"), "--diff and --to do not go together"),
        (("--diff", "1", "99"), "the log ends at sequence"),
        (("--diff", "1", "soon"), "--diff 'soon' is neither a sequence nor a time"),
        (("--around", "r1", "--view", "nodes"), "--around and --view do not go together"),
        (("--watch", "--view", "pods"), "there is no view 'pods'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    archived: Program, words: tuple[str, ...], said: str
) -> None:
    done = archived("replay", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


class TestScrub:
    def test_a_file_for_a_bug_report_names_nobody_and_verifies(
        self, archived: Program, llmgw: Program, tmp_path: Path
    ) -> None:
        done = archived("export", "report.llmgw", "--scrub", "-o", "json")
        report = data(done)
        assert (report["cluster"], report["scrubbed"]) == ("scrubbed", True)
        found = llmgw("ctl", "events", "--archive", "report.llmgw", "-o", "json").out
        assert "node-1" in found
        assert not any(name in found for name in ('"n1"', '"m"', "/models/m.gguf", "boom"))
        told = llmgw("ctl", "replay", "--archive", "report.llmgw", "--verify")
        assert (told.code, told.out.partition(":")[0]) == (0, "Every decision agrees")


class TestRetention:
    def test_what_is_not_old_enough_or_no_time_is_refused(self, ctl: Ctl, tmp_path: Path) -> None:
        ctl.store(renamed(story().log, history.CLUSTER))
        for before, said in (
            ("1 day ago", "nothing in the log is older than that"),
            ("1234", "is a sequence: a log is cut by time only"),
        ):
            done = ctl("archive", "old.llmgw", "--before", before)
            assert (done.code, done.out) == (2, "")
            assert said in done.err
        assert list(tmp_path.glob("*.llmgw")) == []

    def test_a_snapshot_can_be_made_by_hand_and_an_archive_goes_on_live(
        self, ctl: Ctl, llmgw: Program
    ) -> None:
        ctl.store(renamed(story().log, history.CLUSTER))
        length = len(story().log)
        assert data(ctl("snapshot", "-o", "json")) == {"snapshot": length}
        assert ctl("export", "log.llmgw", "--to", "5").code == 0
        both = ("replay", "--archive", "log.llmgw", "--live", "-o", "json")
        assert data(ctl(*both))["sequence"] == length
        alone = llmgw("ctl", "replay", "--live")
        assert (alone.code, "--live goes with --archive" in alone.err) == (2, True)
