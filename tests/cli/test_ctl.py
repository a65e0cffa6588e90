"""`llmgw ctl` against a real log: what is printed, and how it ends."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import DeviceReading, Readings
from tests.cli.conftest import Ctl, Program, arguments, environment, nats_in
from tests.support.wait import until_sync
from tests.views.history import CLUSTER, History, failed, led, serving, started

MODEL = """\
models:
  - name: tiny
    engine: llama.cpp
    class: a100-80g
    memory: 10GiB
    source: /m/tiny.gguf
"""


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    path = tmp_path / "models.yaml"
    path.write_text(MODEL)
    return path.name


class TestViews:
    def test_each_view_prints_json_alone_on_stdout(self, ctl: Ctl) -> None:
        ctl.store(serving().messages)
        status = json.loads(ctl("status", "-o", "json").out)
        assert (status["cluster"], status["sequence"]) == (ctl.cluster, 8)
        assert status["models"][0]["ready"] == 1
        assert json.loads(ctl("nodes", "-o", "json").out)[0]["devices"] == {"a100-80g": 2}
        assert json.loads(ctl("replicas", "-o", "json").out)[0]["phase"] == "ready"
        assert json.loads(ctl("devices", "-o", "json").out)[0]["state"] == "held"

    def test_the_table_is_for_people(self, ctl: Ctl) -> None:
        done = ctl.store(serving().messages)("replicas")
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0].split()[:5] == ["REPLICA", "MODEL", "NODE", "DEVICES", "PHASE"]
        assert lines[1].split()[:6] == ["r1", "tiny", "n1", "0", "ready", "127.0.0.1:18100"]

    def test_an_empty_log_gives_an_empty_view_and_a_hint(self, ctl: Ctl) -> None:
        done = ctl("nodes", "-o", "json")
        assert (done.code, json.loads(done.out)) == (0, [])
        assert "holds nothing yet" in done.err
        assert ctl("nodes").out == ""

    @pytest.mark.parametrize(
        "words",
        [
            ("status",),
            ("events", "--follow"),
            ("replay", "--verify"),
            ("drain", "n1"),
            ("apply", "catalog.yaml"),
            ("export", "log.llmgw"),
        ],
    )
    def test_a_mistyped_cluster_is_told_and_not_made(
        self, ctl: Ctl, llmgw: Program, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        (tmp_path / "catalog.yaml").write_text(MODEL)
        for _ in range(2):
            done = llmgw("ctl", *words, **(ctl.variables | {"LLMGW_CLUSTER": "mistyped"}))
            assert (done.code, done.out) == (1, "")
            assert "there is no cluster mistyped at nats://127.0.0.1:" in done.err
            assert re.search(f"it has .*{ctl.cluster}", done.err)

    def test_a_server_without_any_cluster_is_told(self, llmgw: Program, tmp_path: Path) -> None:
        with nats_in(tmp_path) as url:
            done = llmgw("ctl", "status", LLMGW_NATS_URL=url)
        assert (done.code, done.out) == (1, "")
        assert "there is no cluster default at nats://127.0.0.1:" in done.err
        assert "its first controller (`llmgw controller run`) or agent makes its log" in done.err

    def test_devices_show_the_newest_sample(self, ctl: Ctl) -> None:
        reading = DeviceReading(id=0, uuid="GPU-n1-0", memory_used_bytes=7 << 30)
        sample = NodeSample(node="n1", session="s", number=1, readings=Readings(devices=(reading,)))
        message = wire.encode_sample(CLUSTER, sample, time="2026-03-01T12:00:00Z")
        ctl.store([*serving().messages, message])
        first, second = json.loads(ctl("devices", "-o", "json").out)
        assert first["memory_used_bytes"] == 7 << 30
        assert "memory_used_bytes" not in second


class TestEvents:
    def test_the_newest_that_match_are_shown(self, ctl: Ctl) -> None:
        ctl.store(started(serving(), "n2").messages)
        rows = json.loads(ctl("events", "--node", "n1", "--limit", "2", "-o", "json").out)
        assert [row["type"] for row in rows] == ["replica.starting", "replica.ready"]

    def test_what_cannot_be_read_is_shown_by_rejected_and_stops_nothing(self, ctl: Ctl) -> None:
        history = led(started(History())).garbage().garbage(b"\x1b[2J{")
        ctl.store(history.messages)
        rows = json.loads(ctl("events", "--rejected", "-o", "json").out)
        assert [(row["sequence"], row["kind"]) for row in rows] == [
            (4, "unreadable"),
            (5, "unreadable"),
        ]
        assert "\x1b" not in ctl("events").out
        assert "2 unreadable" in ctl("status").out

    def test_following_goes_on_with_what_comes_until_it_is_interrupted(
        self, ctl: Ctl, tmp_path: Path
    ) -> None:
        ctl.store(started(History()).messages)
        process = subprocess.Popen(
            arguments("ctl", "events", "--follow", "-o", "json"),
            env=environment(tmp_path, **ctl.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            first = [json.loads(process.stdout.readline())["type"] for _ in range(2)]
            ctl.store(led(History()).messages)
            third = json.loads(process.stdout.readline())["type"]
            assert not select.select([process.stdout], [], [], 0)[0]
            process.send_signal(signal.SIGINT)
            said = process.stderr.read().decode()
        assert [*first, third] == ["node.started", "node.inventory", "controller.elected"]
        assert process.returncode == 130
        assert "Traceback" not in said

    def test_a_reader_that_goes_away_is_no_failure(self, ctl: Ctl, tmp_path: Path) -> None:
        history = History()
        for _ in range(300):
            started(history)
        ctl.store(history.messages)
        process = subprocess.Popen(
            arguments("ctl", "events", "-o", "json"),
            env=environment(tmp_path, **ctl.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1)
            process.stdout.close()
            said = process.stderr.read().decode()
        assert "Error" not in said
        assert "Traceback" not in said


class TestReplay:
    def test_a_view_is_shown_as_it_was(self, ctl: Ctl) -> None:
        ctl.store(failed(serving()).messages)
        phases = [
            json.loads(ctl("replay", "--to", to, "--view", "replicas", "-o", "json").out)
            for to in ("5", "6", "7", "8", "9")
        ]
        assert [rows[0]["phase"] if rows else None for rows in phases] == [
            None,
            "assigned",
            "starting",
            "ready",
            "failed",
        ]

    def test_a_time_names_the_state_of_that_time(self, ctl: Ctl) -> None:
        ctl.store(serving().messages)
        before = ctl("replay", "--to", "2 hours ago", "--view", "nodes", "-o", "json")
        now = ctl("replay", "--to", "0 seconds ago", "--view", "nodes", "-o", "json")
        assert json.loads(before.out) == []
        assert "holds nothing before that point" in before.err
        assert len(json.loads(now.out)) == 1

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--view", "nonsense"), "there is no view 'nonsense'; there are status, nodes"),
            (("--to", "yesterday"), "--to 'yesterday' is neither a sequence nor a time"),
            (("--to", "99:99"), "--to '99:99' is neither"),
            (("--to", "99"), "the log ends at sequence 8; 99 has not been written"),
        ],
    )
    def test_what_cannot_be_shown_is_told(
        self, ctl: Ctl, words: tuple[str, ...], said: str
    ) -> None:
        done = ctl.store(serving().messages)("replay", *words)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


class TestApply:
    def test_without_a_controller_the_catalog_is_recorded(self, ctl: Ctl, catalog: str) -> None:
        done = ctl("apply", catalog, "--wait", "0")
        assert done.code == 0
        assert "recorded at sequence 1. No controller has answered yet" in done.out
        (row,) = json.loads(ctl("events", "-o", "json").out)
        assert (row["type"], row["summary"]) == (
            "catalog.applied",
            "catalog from models.yaml: tiny",
        )

    @pytest.mark.parametrize(
        ("answer", "code", "word"),
        [
            (e.CatalogAccepted(term=1, at=3, request=3), 0, "accepted"),
            (e.CatalogRejected(term=1, at=3, request=3, reasons=("no",)), 4, "rejected"),
        ],
    )
    def test_the_controllers_answer_is_the_programs_answer(
        self, ctl: Ctl, catalog: str, tmp_path: Path, answer: e.Event, code: int, word: str
    ) -> None:
        ctl.store(led(History(), term=1).garbage().messages)
        process = subprocess.Popen(
            arguments("ctl", "apply", catalog, "--wait", "60", "-o", "json"),
            cwd=tmp_path,
            env=environment(tmp_path, **ctl.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            until_sync(
                lambda: json.loads(ctl("events", "--type", "catalog.applied", "-o", "json").out),
                30,
                "the catalog is in the log",
            )
            void = e.CatalogAccepted(term=0, at=3, request=3)
            ctl.store(led(History()).write(void).write(answer).messages[1:])
            out, err = process.communicate(timeout=60)
        found = json.loads(out)
        assert (process.returncode, found["answer"], found["sequence"]) == (code, word, 3)
        assert ("no" in err.decode().splitlines()) is (word == "rejected")

    def test_a_malformed_catalog_is_refused_line_by_line(self, ctl: Ctl, tmp_path: Path) -> None:
        (tmp_path / "bad.yaml").write_text(MODEL.replace("10GiB", "lots") + "    gpus: -1\n")
        done = ctl("apply", "bad.yaml")
        assert (done.code, done.out) == (2, "")
        assert [line.partition(": must")[0] for line in done.err.splitlines()] == [
            "bad.yaml:5: memory",
            "bad.yaml:7: gpus",
        ]
        assert ctl("events").out == ""

    def test_the_diff_against_what_is_in_force_is_shown(self, ctl: Ctl, tmp_path: Path) -> None:
        ctl.store(serving().messages)
        changed = MODEL.replace("10GiB", "12GiB") + "    env: {HF_TOKEN: {from_env: HF_TOKEN}}\n"
        other = MODEL.removeprefix("models:\n").replace("tiny", "other")
        (tmp_path / "next.yaml").write_text(changed + other)
        lines = ctl("apply", "next.yaml", "--wait", "0").out.splitlines()
        assert lines[1:] == [
            "+ other",
            "~ tiny: memory 10.0 GiB -> 12.0 GiB, env.HF_TOKEN none -> ${HF_TOKEN}",
        ]
        again = json.loads(ctl("apply", "next.yaml", "--wait", "0", "-o", "json").out)
        assert [one["name"] for one in again["changes"]["changed"]] == ["tiny"]

    def test_a_dry_run_says_what_would_come_of_it_and_writes_nothing(
        self, ctl: Ctl, catalog: str
    ) -> None:
        ctl.store(led(started(History())).messages)
        done = ctl("apply", catalog, "--dry-run", "-o", "yaml")
        assert done.code == 0
        found = yaml.safe_load(done.out)
        (step,) = found["steps"]
        assert (step["action"], step["replica"], step["model"]) == ("start", "r1", "tiny")
        assert step["after"] == [{"node": "n1", "devices": ["0"]}]
        assert found["changes"] == {"added": ["tiny"], "removed": [], "changed": []}
        table = ctl("apply", catalog, "--dry-run").out.splitlines()
        assert table[0] == "+ tiny"
        assert table[3].split()[:5] == ["tiny", "start", "r1", "-", "n1"]
        assert len(json.loads(ctl("events", "-o", "json").out)) == 3

    def test_a_dry_run_of_what_fits_nowhere_says_no(self, ctl: Ctl, catalog: str) -> None:
        done = ctl("apply", catalog, "--dry-run")
        assert done.code == 4
        assert "1 more" in done.out
        assert "1 no device of class a100-80g" in done.out


class TestConnection:
    def test_without_any_server_it_says_what_to_start(self, llmgw: Program) -> None:
        done = llmgw("ctl", "nodes")
        assert (done.code, done.out) == (3, "")
        assert "Start `llmgw up`" in done.err
        assert "LLMGW_NATS_URL" in done.err

    def test_a_server_that_does_not_answer_is_named(self, llmgw: Program) -> None:
        done = llmgw("ctl", "nodes", LLMGW_NATS_URL="nats://127.0.0.1:1")
        assert (done.code, done.out) == (3, "")
        assert "nats://127.0.0.1:1 cannot be reached" in done.err

    def test_the_server_that_up_wrote_down_is_taken(
        self, ctl: Ctl, llmgw: Program, tmp_path: Path
    ) -> None:
        ctl.store(serving().messages)
        endpoint = tmp_path / "here" / "endpoint.json"
        endpoint.parent.mkdir()
        endpoint.write_text(json.dumps({"nats_url": ctl.url, "pid": 1}))
        words = ("ctl", "nodes", "--data", "here", "--cluster", ctl.cluster)
        assert "n1" in llmgw(*words).out

    def test_an_address_that_up_left_behind_is_explained(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        endpoint = tmp_path / "data" / "endpoint.json"
        endpoint.parent.mkdir()
        endpoint.write_text(json.dumps({"nats_url": "nats://127.0.0.1:1", "pid": 1}))
        done = llmgw("ctl", "nodes")
        assert done.code == 3
        assert f"The address is from {endpoint}" in done.err
