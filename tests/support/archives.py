"""Archives changed as any program that knows SQLite can, and as one that knows checksums can."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import msgspec


def change(path: Path, statement: str, *values: object) -> None:
    """Change the file; what it says of itself stays."""
    database = sqlite3.connect(path)
    database.execute(statement, values)
    database.commit()
    database.close()


def seal(path: Path) -> None:
    """Make the checksum over what describes the records match what is there."""
    database = sqlite3.connect(path)
    told = sorted(database.execute("SELECT * FROM meta WHERE name != 'total_sha256'"))
    subjects = database.execute("SELECT id, subject, last FROM subjects ORDER BY id").fetchall()
    chunks = database.execute("SELECT first, last, sha256 FROM chunks ORDER BY first").fetchall()
    database.close()
    total = hashlib.sha256(msgspec.msgpack.encode([told, subjects, chunks])).digest()
    change(path, "UPDATE meta SET value = ? WHERE name = 'total_sha256'", total)
