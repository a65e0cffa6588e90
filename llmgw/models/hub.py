"""Where Hugging Face's libraries keep a repository on this machine. Nothing is downloaded.

The layout is that of `huggingface_hub`: `models--ORG--NAME/refs/REVISION` holds a commit, and
`snapshots/COMMIT` its files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from llmgw.errors import ModelUnreadable

_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})(?::([\w.-]{1,64}))?")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MOST_REF_BYTES = 256


def cache_folder() -> Path:
    """Return the folder of cached repositories: HF_HUB_CACHE, HF_HOME or the user's cache."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    caches = os.environ.get("XDG_CACHE_HOME")
    root = Path(caches).expanduser() if caches else Path.home() / ".cache"
    return root / "huggingface" / "hub"


def is_repository(source: str) -> bool:
    """Return whether `source` has the form of a repository: `org/model`, perhaps with `:tag`."""
    return _REPOSITORY.fullmatch(source) is not None


def snapshot(source: str, revision: str | None) -> tuple[Path, str | None]:
    """Return the folder of a repository's files on this machine, and the `:tag` in its name.

    Raises `ModelUnreadable` where it is not in the cache, saying how it gets there.
    """
    match = _REPOSITORY.fullmatch(source)
    if match is None or ".." in source:
        raise ModelUnreadable(f"{source!r:.120}: is neither a repository (org/model) nor a path")
    wanted = revision or "main"
    if not _REVISION.fullmatch(wanted) or ".." in wanted:
        raise ModelUnreadable(f"{source}: {wanted!r:.80} is no branch, tag or commit")
    folder = cache_folder() / f"models--{match[1]}--{match[2]}"
    found = folder / "snapshots" / (_commit(folder / "refs" / wanted) or wanted)
    if not found.is_dir():
        at = "" if revision is None else f" --revision {revision}"
        raise ModelUnreadable(
            f"{source}: revision {wanted} is not on this machine ({found} is no folder), and "
            f"nothing is downloaded here: `hf download {match[1]}/{match[2]}{at}` fetches it, "
            "`--include config.json` only what an estimate needs"
        )
    return found, match[3]


def _commit(ref: Path) -> str | None:
    """Return the commit that a ref names, if it is there and names one."""
    try:
        with ref.open("rb") as file:
            said = file.read(_MOST_REF_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    return said if _COMMIT.fullmatch(said) else None
