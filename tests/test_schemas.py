"""The schemas: complete, true of what is written, and kept in step with the types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw import schemas
from llmgw.catalog import validate
from llmgw.core.events import EVENTS
from llmgw.errors import UsageError
from tests.views.history import failed, serving

ROOT = Path(__file__).parents[1]


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schemas.documents()[f"{name}.schema.json"])
    return found


def test_the_schemas_in_the_project_are_those_of_the_types() -> None:
    assert schemas.check(ROOT / "schemas") == []


def test_every_type_on_the_wire_has_one() -> None:
    named = {name.removesuffix(".schema.json") for name in schemas.documents()}
    assert named == {*EVENTS, "assignments.set", "node.sample", "catalog", "asyncapi.yaml"}


def test_a_schema_says_what_it_describes() -> None:
    found = schema("replica.ready")
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"] == "urn:llmgw:schema:replica.ready:1"
    assert found["title"] == "replica.ready"
    assert found["description"].startswith("The engine's health endpoint answered.")
    assert found["properties"]["type"] == {"const": "llmgw.replica.ready"}


@pytest.mark.parametrize("name", [*EVENTS, "assignments.set", "node.sample"])
def test_every_reference_leads_somewhere(name: str) -> None:
    document = schema(name)
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert references == {f"#/$defs/{defined}" for defined in document["$defs"]}


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
    assert list(entry["properties"]) == list(validate._FIELDS)
    assert set(entry["required"]) == set(validate._REQUIRED)


def test_the_document_of_subjects_names_every_type_and_its_schema() -> None:
    document = yaml.safe_load(schemas.documents()["asyncapi.yaml"])
    assert document["asyncapi"] == "3.0.0"
    address = "llmgw.v1.{cluster}.event.node.{node}.replica.ready"
    assert document["channels"]["replica.ready"]["address"] == address
    assert document["channels"]["catalog.applied"]["parameters"].keys() == {"cluster"}
    for message in document["components"]["messages"].values():
        assert message["payload"]["schema"]["$ref"].removeprefix("./") in schemas.documents()


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
