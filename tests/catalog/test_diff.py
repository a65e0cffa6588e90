"""What a catalog changes against another: models, and their fields as a catalog names them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.catalog.diff import CatalogDiff, EntryChange, FieldChange, diff
from llmgw.catalog.entries import Catalog, Entry, Labels

GIB = 1 << 30


def entry(name: str = "m", **changes: Any) -> Entry:  # noqa: ANN401 -- any field of an entry
    given = Entry(name=name, engine="vllm", classes=("a100-80g",), memory_bytes=GIB, source="org/m")
    return replace(given, **changes)


def changes(before: Entry, after: Entry) -> dict[str, tuple[object, object]]:
    """Return field to what it was and becomes."""
    (changed,) = diff(Catalog(models=(before,)), Catalog(models=(after,))).changed
    return {field.field: (field.before, field.after) for field in changed.fields}


def test_it_names_what_came_what_went_and_what_changed() -> None:
    a, b, c = (entry(name) for name in "abc")
    old, new = Catalog(models=(a, b)), Catalog(models=(entry("b", tp=2, gpus=2), c))
    fields = (FieldChange("gpus", 1, 2), FieldChange("tp", 1, 2))
    assert diff(old, new) == CatalogDiff(("c",), ("a",), (EntryChange("b", fields),))
    assert diff(old, old) == CatalogDiff()
    assert diff(old, old).empty
    assert not diff(old, new).empty


def test_fields_have_the_names_that_a_catalog_gives_them() -> None:
    after = entry(
        classes=("h100-*",), memory_bytes=2 * GIB, cache_key_dtype="fp8", cache_value_dtype="fp8"
    )
    assert changes(entry(), after) == {
        "class": (["a100-80g"], ["h100-*"]),
        "memory": (GIB, 2 * GIB),
        "kv_cache_dtype.key": (None, "fp8"),
        "kv_cache_dtype.value": (None, "fp8"),
    }


def test_mappings_change_key_by_key() -> None:
    before = entry(env={"A": "1", "B": "2"}, labels=Labels(require={"zone": "a"}))
    after = entry(env={"A": "1", "B": "3", "C": "4"}, labels=Labels(require={"zone": "b"}))
    assert changes(before, after) == {
        "env.B": ("2", "3"),
        "env.C": (None, "4"),
        "labels.require.zone": ("a", "b"),
    }


def test_a_secret_is_masked_and_a_reference_to_one_is_shown() -> None:
    after = entry(env={"HF_TOKEN": "${HF_TOKEN}", "API_KEY": "abcdefgh"}, args=("--token", "abc"))
    found = changes(entry(), after)
    assert found["env.HF_TOKEN"] == (None, "${HF_TOKEN}")
    assert found["env.API_KEY"] == (None, "***")
    assert "abc" not in str(found["args"])
