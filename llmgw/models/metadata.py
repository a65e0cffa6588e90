"""Reading a model's metadata from a GGUF file, a Hugging Face folder, or the local cache of one.

The shell over the readers: it finds files, reads their headers and hands them to `gguf_model` and
`config_model`. It reads no weights and asks no network. The catalog and the planner call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from llmgw.errors import ModelUnreadable
from llmgw.models import hub
from llmgw.models.config_model import config_metadata
from llmgw.models.gguf_file import read_gguf
from llmgw.models.gguf_model import gguf_metadata
from llmgw.models.safetensors_file import INDEX_NAME, read_header, read_index, read_json
from llmgw.models.types import GgufHeader, Metadata, TensorInfo

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_PARTS = 1_000
_MOST_FILES = 20_000
_SIDE_FLAGS = ("--mmproj", "-mm", "--lora", "--control-vector")
_DEFAULT_TAG = "Q4_K_M"
"""What llama.cpp takes from a repository whose name has no `:tag`."""


def read(source: str, revision: str | None = None, *, side_files: Sequence[str] = ()) -> Metadata:
    """Return what the files of `source` say of the model, `side_files` (a projector) counted too.

    `source` is a GGUF file, a folder, or a repository's id, which is looked for in the local
    cache alone. Raises `ModelUnreadable` naming the file and what is wrong with it.
    """
    try:
        return _read(source, revision, side_files)
    except (OSError, RuntimeError) as error:  # a name too long, no permission, no home of a user
        said = error.strerror if isinstance(error, OSError) else error
        raise ModelUnreadable(f"{source:.200}: cannot be read: {said}") from error


def _read(source: str, revision: str | None, side_files: Sequence[str]) -> Metadata:
    path = Path(source).expanduser() if is_path(source) else None
    tag: str | None = None
    if path is None:
        path, tag = hub.snapshot(source, revision)
    if path.is_dir():
        found = _read_folder(path, tag, projector=tag is not None or not is_path(source))
    elif path.is_file() and path.name == "config.json":
        found = _read_folder(path.parent, None, projector=False)
    elif path.is_file():
        found = _read_parts(path)
    else:
        raise ModelUnreadable(f"{path}: is not on this machine")
    beside = sum(_size(Path(name).expanduser()) for name in side_files)
    return replace(found, source=source, side_bytes=found.side_bytes + beside)


def is_path(source: str) -> bool:
    """Return whether `source` names a file or folder rather than a repository."""
    return (
        source.startswith(("/", "./", "../", "~"))
        or source.lower().endswith((".gguf", ".json"))
        or not hub.is_repository(source)
        or Path(source).exists()
    )


def side_files(args: Sequence[str]) -> tuple[str, ...]:
    """Return the files that an engine's arguments load beside the model: projectors, adapters."""
    found = []
    for at, word in enumerate(args):
        flag, _, value = word.partition("=")
        if flag in _SIDE_FLAGS:
            value = value or (args[at + 1] if at + 1 < len(args) else "")
            found += [value] if value else []
    return tuple(found)


def _read_folder(folder: Path, tag: str | None, *, projector: bool) -> Metadata:
    names = _names(folder)
    if "config.json" in names and tag is None:
        return _read_checkpoint(folder, names)
    files = [name for name in names if name.lower().endswith(".gguf")]
    models = [name for name in files if not name.lower().startswith("mmproj")]
    if not models:
        raise ModelUnreadable(f"{folder}: holds neither a config.json nor a GGUF file")
    found = _read_parts(folder / _chosen(folder, models, tag))
    projectors = [name for name in files if name not in models] if projector else []
    return replace(found, side_bytes=sum(_size(folder / name) for name in projectors[:1]))


def _chosen(folder: Path, names: Sequence[str], tag: str | None) -> str:
    """Return the file that a tag means, or the only model, or the first of several quantisations.

    Parts of one model count as one: the first stands for all.
    """
    first = [name for name in names if (part := _PART.fullmatch(name)) is None or _is_first(part)]
    wanted = [name for name in first if (tag or _DEFAULT_TAG).lower() in name.lower()]
    if tag is not None and not wanted:
        raise ModelUnreadable(f"{folder}: no file is {tag}; there are {', '.join(first[:8])}")
    return (wanted or first or list(names))[0]


def _is_first(part: re.Match[str]) -> bool:
    return int(part["number"]) == 1


def _read_parts(path: Path) -> Metadata:
    """Read one GGUF file, or every part of the model that it is a part of."""
    if path.suffix.lower() != ".gguf":
        raise ModelUnreadable(
            f"{path}: is no GGUF file; give a .gguf, a folder with a config.json, or a repository"
        )
    headers = [read_gguf(part) for part in _parts(path)]
    first = headers[0]
    claimed = first.keys.get("split.count", 1)
    if isinstance(claimed, int) and claimed > 1 and claimed != len(headers):
        raise ModelUnreadable(
            f"{path}: is one of {claimed} parts, and {len(headers)} are named "
            "...-00001-of-0000N.gguf beside it; restore the names"
        )
    return gguf_metadata(str(path), first.keys, first.lengths, _all_tensors(path, headers))


def _all_tensors(path: Path, headers: Iterable[GgufHeader]) -> list[TensorInfo]:
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    if not tensors:
        raise ModelUnreadable(f"{path}: holds no weights")
    return [*tensors.values()]


def _parts(path: Path) -> list[Path]:
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part["count"])
    if not 0 < count <= _MOST_PARTS:
        raise ModelUnreadable(f"{path}: is one of {count} parts, which cannot be")
    parts = [
        path.with_name(f"{part['stem']}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)
    ]
    for one in parts:
        if not one.is_file():
            raise ModelUnreadable(f"{one}: is missing; the model has {count} parts")
    return parts


def _read_checkpoint(folder: Path, names: Sequence[str]) -> Metadata:
    config = folder / "config.json"
    values = read_json(config)
    tensors: list[TensorInfo] = []
    total: int | None = None
    if INDEX_NAME in names:
        index = read_index(folder / INDEX_NAME)
        missing = [shard for shard in index.shards if shard not in names]
        if missing and (len(missing) < len(index.shards) or index.total_bytes is None):
            raise ModelUnreadable(
                f"{folder / missing[0]}: is missing, as are {len(missing) - 1} others of "
                f"{len(index.shards)}; download the model again"
            )
        shards = [] if missing else list(index.shards)
        total = index.total_bytes
    else:
        shards = _loose_shards(names)
    for shard in shards:
        tensors += read_header(folder / shard)
    if not shards and total is None:
        total = _pickled_bytes(folder, names)
    return config_metadata(str(config), values, tensors, None if tensors else total)


def _loose_shards(names: Sequence[str]) -> list[str]:
    """Return the weights of a folder without index: not a second copy in another layout."""
    files = [name for name in names if name.endswith(".safetensors")]
    consolidated = [name for name in files if name.startswith("consolidated")]
    mine = [name for name in files if name not in consolidated and "adapter" not in name]
    return mine or consolidated


def _pickled_bytes(folder: Path, names: Sequence[str]) -> int | None:
    """Return the size of PyTorch's own files, whose headers cannot be read safely."""
    files = [n for n in names if n.startswith("pytorch_model") and n.endswith(".bin")]
    return sum(_size(folder / name) for name in files) or None


def _names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, sorted."""
    try:
        names = []
        for entry in folder.iterdir():
            if entry.is_file():
                names.append(entry.name)
            if len(names) > _MOST_FILES:
                raise ModelUnreadable(f"{folder}: holds more than {_MOST_FILES} files")
        return sorted(names)
    except OSError as error:
        raise ModelUnreadable(f"{folder}: cannot be read: {error.strerror or error}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error
