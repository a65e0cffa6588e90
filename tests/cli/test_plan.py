"""`llmgw plan` as a user types it: catalogs, files, sizes by hand, with and without a cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from llmgw.cli.main import app
from llmgw.core import events as e
from llmgw.errors import LlmgwError
from llmgw.testing.builders import Story, applied, card, elected, entry, instance, joined
from tests.cli.conftest import Ctl, Done, Program
from tests.cli.test_ctl_archive import write
from tests.models.files import SMALL_CONFIG, checkpoint, gguf, layer_tensors, model_keys

HAND = ("--weights", "20GiB", "--kv-per-token", "128KiB", "--context", "8192")

CATALOG = """\
models:
  - name: kept
    engine: command
    command: [serve, "{port}"]
    class: l40s-48g
    memory: 10GiB
  - name: more
    engine: llama.cpp
    class: a100-80g-mig-1g.20gb
    memory: 5GiB
    source: ./m.gguf
"""


@pytest.fixture
def llmgw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Run the program's commands in this process, in an empty folder: a start takes a second."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    monkeypatch.setattr("llmgw.cli.context.CONNECT_SECONDS", 0.3)
    for name in [name for name in os.environ if name.startswith("LLMGW_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, **variables: str) -> Done:
        for name, value in {"LLMGW_DATA": str(tmp_path / "data"), **variables}.items():
            monkeypatch.setenv(name, value)
        done = CliRunner().invoke(app, words)
        if isinstance(done.exception, LlmgwError):
            return Done(done.exception.exit_code, done.stdout, f"{done.stderr}{done.exception}")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Done(done.exit_code, done.stdout, done.stderr)

    yield run
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """A log of two nodes, one carved, that serves `kept` and `gone`."""
    carved = card(0, of_class="a100-80g", gib=80, mig=True)
    nodes = [
        *joined("n1", card(0), card(1)),
        *joined("n2", carved, instance(carved, 0), instance(carved, 1)),
    ]
    kept = entry("kept", engine="command", command=("serve", "{port}"), source=None)
    story = Story().given(*nodes, elected(), applied(kept, entry("gone"))).decided()
    write(tmp_path / "log.llmgw", story.log)
    return "log.llmgw"


def model_file(folder: Path) -> str:
    (folder / "m.gguf").write_bytes(gguf(model_keys(), layer_tensors()))
    return "./m.gguf"


def data(done: Done, code: int = 0) -> dict[str, Any]:
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


class TestWithoutACluster:
    def test_sizes_by_hand_are_planned_for_well_known_cards(self, llmgw: Program) -> None:
        done = llmgw("plan", *HAND, "-o", "json")
        (model,) = data(done)["models"]
        sizes = {part["name"]: part["bytes"] for part in model["parts"]}
        assert (sizes["weights"], sizes["cache"]) == (20 << 30, 1 << 30)
        offers = [offer for offer in model["offers"] if offer["class"] == "a100-80g"]
        assert [offer["gpus"] for offer in offers] == [1, 2, 4]
        assert not any("fits_now" in offer for offer in offers)
        assert "no cluster is known here" in done.err

    def test_the_table_is_for_people(self, llmgw: Program, tmp_path: Path) -> None:
        done = llmgw("plan", "--model", model_file(tmp_path))
        assert done.code == 0
        assert "./m.gguf: llama.cpp, llama, 4096 tokens x 1" in done.out
        assert [line.split()[0] for line in done.out.splitlines() if "f16, as stored" in line] == [
            "weights"
        ]
        assert "t4-16g" in done.out

    def test_what_fits_nowhere_ends_with_4(self, llmgw: Program) -> None:
        done = llmgw("plan", "--weights", "9TiB", "--kv-per-token", "1", "--context", "1")
        assert done.code == 4
        assert "too small by" in done.out

    def test_a_folder_is_read_and_a_repository_looked_for_in_the_cache(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        total = checkpoint(tmp_path / "m", SMALL_CONFIG)
        (model,) = data(llmgw("plan", "--model", "./m", "-o", "json"))["models"]
        assert (model["engine"], model["weights_bytes"]) == ("vllm", total)
        done = llmgw("plan", "--model", "org/model", HF_HOME=str(tmp_path))
        assert (done.code, done.out) == (2, "")
        assert "nothing is downloaded here" in done.err

    def test_a_catalog_is_estimated_though_nobody_knows_what_it_would_do(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        model_file(tmp_path)
        (tmp_path / "c.yaml").write_text(CATALOG)
        found = data(llmgw("plan", "c.yaml", "-o", "json"))
        assert [model["model"] for model in found["models"]] == ["kept", "more"]
        assert "forecast" not in found

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "give one of"),
            (("c.yaml", "--model", "x"), "give one of"),
            (("c.yaml", "--context", "5"), "a catalog has its own settings"),
            (("--weights", "1GiB"), "go together"),
            (("--weights", "1GiB", "--kv-per-token", "1"), "needs --context"),
            (("--weights", "heavy", "--kv-per-token", "1"), "is no size"),
            (("--model", "kept"), "no catalog is known here"),
            (("--model", "./none.gguf"), "is not on this machine"),
            ((*HAND, "--engine", "nothing"), "there is no engine 'nothing'"),
            ((*HAND, "--archive", "none.llmgw"), "none.llmgw"),
            (("none.yaml",), "none.yaml:1: file: cannot be read"),
        ],
    )
    def test_wrong_usage_is_told(self, llmgw: Program, words: tuple[str, ...], said: str) -> None:
        done = llmgw("plan", *words)
        assert (done.code, done.out) == (2, ""), done.err
        assert said in done.err

    def test_a_server_that_was_named_must_answer(self, llmgw: Program) -> None:
        done = llmgw("plan", *HAND, LLMGW_NATS_URL="nats://127.0.0.1:1")
        assert (done.code, done.out) == (3, "")

    def test_a_broken_file_is_named_with_what_is_wrong(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        done = llmgw("plan", "--model", "m.gguf")
        assert (done.code, done.out) == (2, "")
        assert "m.gguf: ends in the middle of its header" in done.err


class TestForACluster:
    def test_a_catalog_is_shown_with_what_applying_it_would_do(
        self, llmgw: Program, archive: str, tmp_path: Path
    ) -> None:
        model_file(tmp_path)
        (tmp_path / "c.yaml").write_text(CATALOG)
        found = data(llmgw("plan", "c.yaml", "--from-log", archive, "-o", "json"))
        steps = {(step["action"], step["model"]) for step in found["forecast"]["steps"]}
        assert steps == {("keep", "kept"), ("stop", "gone"), ("start", "more")}
        kept, more = found["models"]
        assert [(offer["class"], offer["fits_now"]) for offer in kept["offers"]] == [
            ("a100-80g-mig-1g.20gb", 2),
            ("l40s-48g", 0),
        ]
        assert more["given_bytes"] == 5 << 30
        table = llmgw("plan", "c.yaml", "--archive", archive)
        assert "what applying it would do:" in table.out
        assert table.code == 0

    def test_a_catalog_that_does_not_fit_ends_with_4(
        self, llmgw: Program, archive: str, tmp_path: Path
    ) -> None:
        model_file(tmp_path)
        (tmp_path / "c.yaml").write_text(
            CATALOG.replace("memory: 5GiB", "memory: 5GiB\n    replicas: 3")
        )
        done = llmgw("plan", "c.yaml", "--archive", archive, "-o", "json")
        found = data(done, 4)
        (cannot,) = [s for s in found["forecast"]["steps"] if s["action"] == "cannot"]
        assert cannot["model"] == "more"

    def test_a_model_of_the_catalog_in_force_is_known_by_its_name(
        self, llmgw: Program, archive: str
    ) -> None:
        (model,) = data(llmgw("plan", "--model", "kept", "--archive", archive, "-o", "json"))[
            "models"
        ]
        assert (model["engine"], model["given_bytes"]) == ("command", 10 << 30)
        done = llmgw("plan", "--model", "kep", "--archive", archive)
        assert (done.code, done.out) == (2, "")
        assert "did you mean kept?" in done.err

    def test_a_card_and_an_instance_each_say_how_many_fit(
        self, llmgw: Program, archive: str
    ) -> None:
        hand = ("--weights", "8GiB", "--kv-per-token", "64KiB", "--context", "4096")
        done = llmgw("plan", *hand, "--archive", archive, "-o", "json")
        (model,) = data(done)["models"]
        counts = {
            (offer["class"], offer["gpus"]): (offer["fits_now"], offer["fits_empty"])
            for offer in model["offers"]
        }
        assert counts == {
            ("a100-80g-mig-1g.20gb", 1): (2, 2),
            ("l40s-48g", 1): (0, 2),
            ("l40s-48g", 2): (0, 1),
        }

    def test_the_live_log_is_planned_for(self, ctl: Ctl, llmgw: Program) -> None:
        from tests.views.history import serving

        ctl.store(serving().messages)
        found = data(llmgw("plan", *HAND, "-o", "json", **ctl.variables))
        assert found["sequence"] == len(serving().messages)
        (first, *_) = found["models"][0]["offers"]
        assert (first["class"], first["devices"], first["fits_now"]) == ("a100-80g", 2, 1)

    def test_measured_memory_shows_the_error_of_the_estimate(
        self, llmgw: Program, tmp_path: Path
    ) -> None:
        path = model_file(tmp_path)
        wanted = entry("m", source=str(tmp_path / path), context=4096)
        story = Story().given(*joined("n1", card(0)), elected(), applied(wanted)).decided()
        starting = e.ReplicaStarting(replica="r1", generation=1, port=1, devices=(0,))
        ready = e.ReplicaBecameReady(
            replica="r1",
            generation=1,
            address="127.0.0.1",
            port=1,
            pid=2,
            seconds=1,
            memory_bytes=(700 << 20,),
        )
        write(tmp_path / "log.llmgw", story.given(starting, ready).log)
        asked = ("plan", "--model", "m", "--archive", "log.llmgw")
        (model,) = data(llmgw(*asked, "-o", "json"))["models"]
        assert model["measured_bytes"] == 700 << 20
        error = 100 * (model["memory_bytes"] / (700 << 20) - 1)
        assert model["error_percent"] == pytest.approx(error, abs=0.1)
        assert "the estimate is -" in llmgw(*asked).out
