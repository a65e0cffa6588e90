"""The import contract of pyproject.toml can fail: each kind of violation is planted and caught.

Works on a skeleton, a copy of the package's module names without their contents, so that it is
quick and says nothing about the code itself; `make lint` checks that.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = ROOT / "pyproject.toml"
CONTRACTS: Mapping[str, Mapping[str, Any]] = {
    contract["id"]: contract
    for contract in tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
}
LAYERS = [re.findall(r"[\w.]+", layer) for layer in CONTRACTS["layers"]["layers"]]
LAYERED = [module for layer in LAYERS for module in layer]

needs_import_linter = pytest.mark.skipif(
    importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed"
)

Plants = Mapping[str, str]
"""Modules to add to the skeleton, and what each imports."""


def real_modules() -> list[str]:
    paths = sorted((ROOT / "llmgw").rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    return [".".join(names).removesuffix(".__init__") for names in parts]


def make_skeleton(folder: Path, modules: Iterable[str], plants: Plants) -> None:
    """Write packages for `modules`, so that each can be given a planted module of its own."""
    for module in {*modules, *(planted.rpartition(".")[0] for planted in plants)}:
        package = folder.joinpath(*module.split("."))
        package.mkdir(parents=True, exist_ok=True)
        for parent in itertools.takewhile(lambda path: path != folder, [package, *package.parents]):
            (parent / "__init__.py").touch()
    for planted, imported in plants.items():
        target = folder.joinpath(*planted.split("."))
        target.with_suffix(".py").write_text(f"import {imported}\n")


def lint(folder: Path, plants: Plants) -> tuple[int, str]:
    make_skeleton(folder, [*LAYERED, *real_modules()], plants)
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo", PYPROJECT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def assert_all_caught(contract: str, plants: Plants, folder: Path) -> None:
    code, output = lint(folder, plants)
    assert code == 1, output
    assert f"{CONTRACTS[contract]['name']} BROKEN" in output
    missed = [f"{a} -> {b}" for a, b in plants.items() if f"{a} -> {b} (l.1)" not in output]
    assert missed == []


@needs_import_linter
def test_without_a_violation_the_contract_is_kept(tmp_path: Path) -> None:
    code, output = lint(tmp_path, {})
    assert code == 0, output
    assert f"{len(CONTRACTS)} kept, 0 broken" in output


@needs_import_linter
def test_an_import_upwards_is_caught_in_every_layer(tmp_path: Path) -> None:
    plants = {
        f"{lower}.planted_{number}": upper
        for number, (above, below) in enumerate(itertools.pairwise(LAYERS))
        for lower in below
        for upper in above[:1]
    }
    assert_all_caught("layers", plants, tmp_path)


@needs_import_linter
def test_every_forbidden_import_of_a_pure_module_is_caught(tmp_path: Path) -> None:
    plants = {
        f"llmgw.core.planted_{forbidden}": forbidden
        for forbidden in CONTRACTS["pure"]["forbidden_modules"]
    } | {f"{module}.planted": "time" for module in CONTRACTS["pure"]["source_modules"]}
    assert_all_caught("pure", plants, tmp_path)


@needs_import_linter
def test_a_clock_reached_through_another_module_is_caught(tmp_path: Path) -> None:
    plants = {
        "llmgw.hardware.classes.planted": "llmgw.hardware.planted_backend",
        "llmgw.hardware.planted_backend": "time",
    }
    assert_all_caught("pure", plants, tmp_path)


@needs_import_linter
@pytest.mark.parametrize(
    ("contract", "importer", "imported"),
    [
        ("apart", "llmgw.agent.planted", "llmgw.controller"),
        ("hardware-types", "llmgw.core.planted", "llmgw.hardware.smi_xml"),
        ("nats", "llmgw.controller.planted", "nats"),
        ("nvml", "llmgw.sample.planted", "pynvml"),
        ("sqlite", "llmgw.log.planted", "aiosqlite"),
        ("llamacpp", "llmgw.supervise.planted", "xllamacpp"),
    ],
)
def test_each_rule_about_one_pair_is_caught(
    contract: str, importer: str, imported: str, tmp_path: Path
) -> None:
    assert_all_caught(contract, {importer: imported}, tmp_path)


@needs_import_linter
def test_those_who_may_use_a_library_may(tmp_path: Path) -> None:
    plants = {
        "llmgw.log.jetstream": "nats",
        "llmgw.hardware.nvml": "pynvml",
        "llmgw.log.archive": "aiosqlite",
        "llmgw.outbox.planted": "llmgw.log",
        "llmgw.shims.llama_server": "xllamacpp",
        "llmgw.core.planted": "llmgw.hardware.types",
    }
    code, output = lint(tmp_path, plants)
    assert code == 0, output


def test_every_module_has_its_place_in_a_layer() -> None:
    homeless = [
        module
        for module in real_modules()
        if module != "llmgw" and not any(f"{module}.".startswith(f"{home}.") for home in LAYERED)
    ]
    assert homeless == []


def test_the_roots_of_packages_with_a_pure_part_import_nothing() -> None:
    for package in ("llmgw", "llmgw/catalog", "llmgw/hardware", "llmgw/core"):
        source = (ROOT / package / "__init__.py").read_text()
        assert not re.search(r"^\s*(import|from)\s+(?!__future__)", source, re.MULTILINE), package
