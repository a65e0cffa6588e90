"""The schemas: complete, true of what is written, and kept in step with the types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw import schemas
from llmgw.catalog.draft import REQUIRED
from llmgw.catalog.table import FIELDS
from llmgw.core.events import EVENTS
from llmgw.errors import UsageError
from llmgw.views import VIEWS
from tests.core import golden
from tests.support import javascript
from tests.views.history import failed, serving

ROOT = Path(__file__).parents[1]
OTHERS = ("assignments.set", "node.sample", "node.heartbeat", "controller.heartbeat")
"""What goes over the wire beside events and views."""


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schemas.documents()[f"{name}.schema.json"])
    return found


def test_the_schemas_in_the_project_are_those_of_the_types() -> None:
    assert schemas.check(ROOT / "schemas") == []


def test_every_type_on_the_wire_has_one() -> None:
    named = {name.removesuffix(".schema.json") for name in schemas.documents()}
    shown = {f"view.{view}" for view in VIEWS}
    assert named == {*EVENTS, *shown, *OTHERS, "catalog", "asyncapi.yaml"}


def test_a_schema_says_what_it_describes() -> None:
    found = schema("replica.ready")
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"] == "urn:llmgw:schema:replica.ready:1"
    assert found["title"] == "replica.ready"
    assert found["description"].startswith("The engine's health endpoint answered.")
    assert found["properties"]["type"] == {"const": "llmgw.replica.ready"}


@pytest.mark.parametrize("name", [*EVENTS, *OTHERS])
def test_every_reference_leads_somewhere(name: str) -> None:
    document = schema(name)
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert references == {f"#/$defs/{defined}" for defined in document["$defs"]}


@pytest.mark.parametrize("name", [*EVENTS, *OTHERS])
def test_every_integer_is_one_that_any_reader_keeps_as_it_is(name: str) -> None:
    """JavaScript and SQLite keep 53 and 63 bits; and beyond 1,024 none can be divided."""

    def unbounded(schema: object, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            if schema.get("type") == "integer":
                bounds = [abs(schema.get(key, 2**53)) for key in ("minimum", "maximum")]
                if max(bounds) >= 2**53:
                    yield path
            for key, inner in schema.items():
                yield from unbounded(inner, f"{path}/{key}")
        elif isinstance(schema, list):
            for inner in schema:
                yield from unbounded(inner, path)

    assert list(unbounded(schema(name), "")) == []


def test_what_is_written_has_the_fields_that_the_schema_names() -> None:
    for message in failed(serving()).messages:
        written = json.loads(message.payload)
        document = schema(written["type"].removeprefix("llmgw."))
        properties = document["properties"]
        assert set(document["required"]) <= set(written) == set(properties)
        assert written["dataversion"] == properties["dataversion"]["const"]
        body = document["$defs"][properties["data"]["$ref"].rpartition("/")[2]]
        assert set(body["required"]) <= set(written["data"]) <= set(body["properties"])


def test_the_catalog_has_the_fields_that_a_catalog_may_hold() -> None:
    (entry,) = [schema("catalog")["properties"]["models"]["items"]]
    assert list(entry["properties"]) == list(FIELDS)
    assert set(entry["required"]) == set(REQUIRED)


def test_the_document_of_subjects_names_every_type_and_its_schema() -> None:
    document = yaml.safe_load(schemas.documents()["asyncapi.yaml"])
    assert document["asyncapi"] == "3.1.0"
    assert document["servers"]["nats"]["protocol"] == "nats"
    address = "llmgw.v1.{cluster}.event.node.{node}.replica.ready"
    assert document["channels"]["replica.ready"]["address"] == address
    assert document["channels"]["catalog.applied"]["parameters"].keys() == {"cluster"}
    messages = document["components"]["messages"]
    assert messages.pop("ask")["payload"]["type"] == "object"
    described = {m["payload"]["schema"]["$ref"].removeprefix("./") for m in messages.values()}
    assert described == set(schemas.documents()) - {"asyncapi.yaml", "catalog.schema.json"}


def test_every_view_can_be_asked_for_and_its_answer_has_a_schema() -> None:
    document = yaml.safe_load(schemas.documents()["asyncapi.yaml"])
    for view in VIEWS:
        operation = document["operations"][f"ask.view.{view}"]
        channel = operation["channel"]["$ref"].rpartition("/")[2]
        assert document["channels"][channel]["address"] == f"llmgw.v1.{{cluster}}.api.views.{view}"
        assert operation["reply"]["messages"][0]["$ref"].endswith(f"/messages/view.{view}")
        assert schema(f"view.{view}")["type"] in ("object", "array")


def judged(folder: Path, messages: Path) -> dict[str, Any]:
    """Return what the official AsyncAPI parser and a JSON Schema validator say."""
    script = ROOT / "tests" / "node" / "check_schemas.mjs"
    command = javascript.node(script, str(folder), str(messages))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_official_parser_and_a_validator_find_nothing_wrong(tmp_path: Path) -> None:
    """Every message keeps to its schema, and every schema to the dialect that it names."""
    schemas.export(tmp_path)
    found = judged(tmp_path, golden.FOLDER)
    assert (found["diagnostics"], found["broken"], found["invalid"]) == ([], [], [])
    assert found["schemas"] == len(schemas.documents()) - 1
    assert found["operations"] == len(EVENTS) + len(VIEWS) + len(OTHERS)
    assert found["payloads"] == found["operations"] + 1


def test_the_official_parser_and_a_validator_can_find_something_wrong(tmp_path: Path) -> None:
    folder, messages = tmp_path / "schemas", tmp_path / "messages"
    schemas.export(folder)
    messages.mkdir()
    document = yaml.safe_load((folder / "asyncapi.yaml").read_text())
    document["channels"]["node.lost"]["adress"] = document["channels"]["node.lost"].pop("address")
    document["components"]["messages"]["node.returned"]["payload"]["schema"]["$ref"] = "./gone.json"
    (folder / "asyncapi.yaml").write_text(yaml.safe_dump(document))
    lost = json.loads((golden.FOLDER / "node.lost.json").read_text())
    lost["payload"]["data"]["silent_seconds"] = "long"
    del lost["payload"]["source"]
    (messages / "node.lost.json").write_text(json.dumps(lost))
    schema_file = folder / "replica.ready.schema.json"
    schema_file.write_text(schema_file.read_text().replace('"maxLength": ', '"maxLenght": '))
    found = judged(folder, messages)
    said = "\n".join(found["diagnostics"])
    assert "channels.node.lost.adress" in said
    assert "gone.json" in said
    (broken,) = found["broken"]
    assert broken.startswith("replica.ready.schema.json: strict mode: unknown keyword")
    assert sorted(found["invalid"]) == [
        "node.lost.json/data/silent_seconds: must be number",
        "node.lost.json: must have required property 'source'",
    ]


def test_the_same_types_give_the_same_bytes_in_every_process() -> None:
    code = "from llmgw.schemas import documents; import sys; print(documents())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_drift_is_named_and_export_ends_it(tmp_path: Path) -> None:
    schemas.export(tmp_path)
    assert schemas.check(tmp_path) == []
    (tmp_path / "node.lost.schema.json").unlink()
    (tmp_path / "asyncapi.yaml").write_text("asyncapi: 2.0.0\n")
    (tmp_path / "node.sneezed.schema.json").write_text('{"$id": "urn:llmgw:schema:node.sneezed:1"}')
    (tmp_path / "foreign.schema.json").write_text("{}")
    assert schemas.check(tmp_path) == [
        "asyncapi.yaml: changed",
        "node.lost.schema.json: missing",
        "node.sneezed.schema.json: superfluous: no type is named so",
    ]
    changed = ["asyncapi.yaml", "node.lost.schema.json", "node.sneezed.schema.json"]
    assert schemas.export(tmp_path) == changed
    assert schemas.check(tmp_path) == []
    assert (tmp_path / "foreign.schema.json").exists()


def test_a_folder_that_cannot_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        schemas.export(tmp_path / "file")


def test_the_program_ends_with_one_on_drift_and_says_what_to_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmgw", "schemas", "check", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "asyncapi.yaml: missing" in done.stdout
    assert "run `make schemas`" in done.stderr
