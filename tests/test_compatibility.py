"""What was released goes on holding: older readers and writers, and logs of every age.

`schemas/released/VERSION` is what that version exported, `tests/core/golden/released/VERSION` one
message of each type as it wrote it. `make release-schemas` adds both; nothing in them changes.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw import schemas, wire
from llmgw.compatibility import breaks, parsed
from llmgw.core.events import NodeLost
from llmgw.core.records import Unreadable
from llmgw.errors import UsageError
from tests.core import golden

ROOT = Path(__file__).parents[1]
RELEASED = sorted(path for path in (ROOT / "schemas" / "released").iterdir() if path.is_dir())
MESSAGES = sorted((golden.FOLDER / "released").glob("*/*.json"))

Schemas = dict[str, Any]


def now() -> Schemas:
    return parsed(schemas.documents(), schemas.SUFFIX)


def released(folder: Path) -> Schemas:
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    return parsed(texts, schemas.SUFFIX)


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_nothing_breaks_for_programs_of_an_older_version(folder: Path) -> None:
    assert schemas.compare(folder) == []


def test_there_is_a_release_to_hold_to() -> None:
    assert RELEASED
    assert {path.parent.name for path in MESSAGES} == {folder.name for folder in RELEASED}


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_every_type_of_a_release_left_an_example(folder: Path) -> None:
    on_the_wire = {
        name
        for name, schema in released(folder).items()
        if "dataversion" in schema.get("properties", ())
    }
    left = {path.stem for path in MESSAGES if path.parent.name == folder.name}
    assert left == on_the_wire


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: f"{path.stem} of {path.parent.name}")
def test_a_message_of_an_older_version_is_still_read(path: Path) -> None:
    """Of an older version of its type it is upcast: a version without its upcast fails here."""
    message = json.loads(path.read_text())
    found = read(message["subject"], message["payload"])
    assert not isinstance(found, Unreadable), found.reason
    assert found.wire == path.stem
    if message["payload"]["dataversion"] == found.version:
        assert json.loads(msgspec.json.encode(found)) == message["payload"]["data"]


def read(subject: str, payload: dict[str, Any]) -> Any:  # noqa: ANN401 -- an event or a sample
    encoded = json.dumps(payload).encode()
    if ".telemetry." in subject:
        return wire.decode_sample(subject, encoded)
    return wire.decode(1, 1, subject, encoded).body


# --- the rule can fail: each kind of change is planted and caught --------------------------------


def body(document: Schemas, name: str) -> Schemas:
    """Return the schema of what an event of that name carries."""
    reference = document[name]["properties"]["data"]["$ref"]
    found: Schemas = document[name]["$defs"][reference.rpartition("/")[2]]
    return found


def field(name: str, key: str) -> Callable[[Schemas], Schemas]:
    return lambda document: body(document, name)["properties"][key]


Plant = Callable[[Schemas], object]
PLANTED: dict[str, tuple[Plant, str]] = {
    "a field is removed": (
        lambda d: body(d, "node.lost")["properties"].pop("silent_seconds"),
        "node.lost: data.silent_seconds: was removed",
    ),
    "a field of a part of it is removed": (
        lambda d: d["replica.assigned"]["$defs"]["PartPlacement"]["properties"].pop("node"),
        "replica.assigned: data.parts[].node: was removed",
    ),
    "a field is new and required": (
        lambda d: (
            body(d, "node.lost")["properties"].update(why={"type": "string"}),
            body(d, "node.lost")["required"].append("why"),
        ),
        "node.lost: data.why: is new and required: give it a default",
    ),
    "a field becomes required": (
        lambda d: body(d, "replica.failed")["required"].append("meaning"),
        "replica.failed: data.meaning: is required now",
    ),
    "a field may be left out": (
        lambda d: body(d, "node.lost")["required"].remove("node"),
        "node.lost: data.node: may be absent now",
    ),
    "a type changes": (
        lambda d: field("node.lost", "silent_seconds")(d).update(type="string"),
        "node.lost: data.silent_seconds: was number and is string",
    ),
    "a number is bounded": (
        lambda d: field("replica.ready", "port")(d).update(maximum=65535),
        "replica.ready: data.port: maximum was 9007199254740991 and is 65535",
    ),
    "a number is no longer bounded": (
        lambda d: field("replica.ready", "port")(d).pop("maximum"),
        "replica.ready: data.port: maximum was 9007199254740991 and is free",
    ),
    "a text is longer": (
        lambda d: field("node.started", "boot_id")(d).update(maxLength=99_999),
        "node.started: data.boot_id: maxLength was 65536 and is 99999",
    ),
    "a name is of other characters": (
        lambda d: field("node.lost", "node")(d).update(pattern="^[a-z]+$"),
        "node.lost: data.node: pattern was ^[A-Za-z0-9_-]{1,63}$ and is ^[a-z]+$",
    ),
    "a word is new": (
        lambda d: field("node.stopped", "engines")(d)["enum"].append("sold"),
        "node.stopped: data.engines: can be 'sold' too",
    ),
    "a word is gone": (
        lambda d: field("node.stopped", "engines")(d)["enum"].remove("stopped"),
        "node.stopped: data.engines: cannot be 'stopped' any more",
    ),
    "a choice is gone": (
        lambda d: field("replica.failed", "meaning")(d)["anyOf"].pop(),
        "replica.failed: data.meaning: cannot be null any more",
    ),
    "a default means another thing": (
        lambda d: field("node.started", "address")(d).update(default="0.0.0.0"),
        "node.started: data.address: meant '127.0.0.1' where absent and means '0.0.0.0'",
    ),
    "values of a mapping change": (
        lambda d: field("model.unplaced", "refusals")(d).update(
            additionalProperties={"type": "string"}
        ),
        "model.unplaced: data.refusals{}: was integer and is string",
    ),
    "an event is gone": (
        lambda d: d.pop("node.returned"),
        "node.returned: is gone, and was written, read or asked for",
    ),
    "the envelope changes": (
        lambda d: d["node.lost"]["properties"].pop("session"),
        "node.lost: session: was removed",
    ),
    "a version goes back": (
        lambda d: d["node.lost"]["properties"]["dataversion"].update(const=0),
        "node.lost: version 1 went back to 0",
    ),
    "a version is raised without an upcast": (
        lambda d: d["node.lost"]["properties"]["dataversion"].update(const=2),
        "node.lost: version 1 has no upcast to version 2 in llmgw.wire",
    ),
    "a field of a catalog is gone": (
        lambda d: d["catalog"]["properties"]["models"]["items"]["properties"].pop("tp"),
        "catalog: models[].tp: was removed",
    ),
    "a field of a catalog must be given": (
        lambda d: d["catalog"]["properties"]["models"]["items"]["required"].append("tp"),
        "catalog: models[].tp: is required now",
    ),
    "a column of a view is gone": (
        lambda d: d["view.nodes"]["$defs"]["NodeRow"]["properties"].pop("name"),
        "view.nodes: [].name: was removed",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_change_that_breaks_somebody_is_named(what: str) -> None:
    plant, said = PLANTED[what]
    changed = copy.deepcopy(now())
    plant(changed)
    assert said in breaks(now(), changed, ())


HARMLESS: dict[str, Plant] = {
    "a field with a default is new": lambda d: body(d, "node.lost")["properties"].update(
        why={"type": "string", "default": ""}
    ),
    "a type is new": lambda d: d.update({"node.sneezed": d["node.lost"]}),
    "words of a description": lambda d: body(d, "node.lost").update(description="otherwise"),
    "a catalog may be written in more ways": lambda d: d["catalog"]["properties"]["models"][
        "items"
    ]["properties"].update(colour={"type": "string"}),
    "a row of a view has more": lambda d: d["view.nodes"]["$defs"]["NodeRow"]["properties"].update(
        colour={"type": "string"}
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_breaks_nobody_is_free(what: str) -> None:
    changed = copy.deepcopy(now())
    HARMLESS[what](changed)
    assert breaks(now(), changed, ()) == []


def test_a_raised_version_with_its_upcasts_may_be_anything() -> None:
    changed = copy.deepcopy(now())
    changed["node.lost"]["properties"]["dataversion"]["const"] = 3
    body(changed, "node.lost")["properties"].clear()
    one = {("node.lost", 1)}
    assert breaks(now(), changed, one) == [
        "node.lost: version 2 has no upcast to version 3 in llmgw.wire"
    ]
    assert breaks(now(), changed, one | {("node.lost", 2)}) == []


def test_a_log_of_an_older_version_is_read_through_its_upcast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fake past: version 0 of `node.lost` called the node `name` and counted minutes."""
    message = json.loads((golden.FOLDER / "node.lost.json").read_text())
    message["payload"]["dataversion"] = 0
    message["payload"]["data"] = {"term": 3, "name": "gpu-1", "silent_minutes": 2}
    assert isinstance(read(message["subject"], message["payload"]), Unreadable)

    def upcast(data: dict[str, Any]) -> dict[str, Any]:
        minutes = data["silent_minutes"]
        return {"term": data["term"], "node": data["name"], "silent_seconds": 60 * minutes}

    monkeypatch.setitem(wire.UPCASTS, ("node.lost", 0), upcast)
    found = read(message["subject"], message["payload"])
    assert found == NodeLost(term=3, node="gpu-1", silent_seconds=120)


# --- as a program that was written for older schemas asks ----------------------------------------


def compared(folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "llmgw", "schemas", "compare", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_program_says_what_would_break(tmp_path: Path) -> None:
    schemas.export(tmp_path)
    assert compared(tmp_path) == (0, "", "")
    path = tmp_path / "node.lost.schema.json"
    path.write_text(path.read_text().replace('"silent_seconds"', '"quiet_seconds"'))
    code, out, err = compared(tmp_path)
    assert code == 4
    assert "node.lost: data.quiet_seconds: was removed" in out
    assert "need a change" in err


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_folder_that_holds_no_schemas_is_said_to_be_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="holds no schemas"):
        schemas.compare(tmp_path)
    (tmp_path / "node.lost.schema.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        schemas.compare(tmp_path)
