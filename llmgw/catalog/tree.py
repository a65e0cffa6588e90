"""YAML text as a small tree whose every node knows its line.

Pure. It reads the plain part of YAML that a catalog needs and says so about the rest: aliases
(they can expand to gigabytes), tags, several documents, keys that are not words, keys given
twice. It is built from PyYAML's events without recursion, so neither depth nor size of a hostile
text can harm. Scalars keep their text as written: nothing turns `no` into false behind one's
back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

from llmgw.catalog.report import Report, shown

MAX_CHARACTERS = 512 * 1024
MAX_DEPTH = 16

_FILE = "file"
"""The field that a problem of the whole text is reported under."""


@dataclass(frozen=True)
class Scalar:
    """A word or text. `plain` says that it stood without quotes, so `null` may mean nothing."""

    line: int
    text: str
    plain: bool


@dataclass(frozen=True)
class Items:
    """A list."""

    line: int
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Pairs:
    """A mapping, in the order of the file, every key once."""

    line: int
    pairs: dict[str, tuple[int, Node]] = field(default_factory=dict)
    """Key to (line of the key, value)."""


@dataclass(frozen=True)
class Broken:
    """Stands where something was refused; it is reported already, so readers pass over it."""

    line: int


Node = Scalar | Items | Pairs | Broken


def read_tree(text: str, report: Report) -> Node | None:
    """Return the tree of `text`, or `None` where it is empty or broken off by a syntax error.

    Everything wrong goes to `report`; nothing is raised, whatever `text` holds.
    """
    if len(text) > MAX_CHARACTERS:
        report.problem(1, _FILE, f"is longer than {MAX_CHARACTERS // 1024} KiB; split the catalog")
        return None
    builder = _Builder(report)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if not builder.take(event):
                return None
    except yaml.MarkedYAMLError as error:
        _report_syntax(error, report)
        return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        report.problem(line, _FILE, f"holds the character U+{error.character:04X}; remove it")
        return None
    except (ValueError, OverflowError):  # PyYAML: an escape or a directive with a huge number
        report.problem(builder.line, _FILE, "a number in an escape or directive is out of range")
        return None
    return builder.root


def _report_syntax(error: yaml.MarkedYAMLError, report: Report) -> None:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    what = error.problem or error.context or "is not YAML"
    if "'\\t'" in what:
        what = "a tab where YAML wants spaces: indent with spaces"
    elif "mapping values are not allowed" in what:
        what += "; put a text that holds `: ` in quotes, and check the indentation"
    report.problem(line, _FILE, what)


class _Builder:
    """Takes events one by one; `root` is the tree when they end."""

    def __init__(self, report: Report) -> None:
        self.root: Node | None = None
        self.line = 1
        self._report = report
        self._documents = 0
        self._open: list[Items | Pairs] = []
        self._keys: list[tuple[int, str | None] | None] = []
        """Per open node: the key that waits for its value. `None` in a refused key's place."""

    def take(self, event: yaml.Event) -> bool:
        """Take `event`; return false when reading on is of no use."""
        if event.start_mark is not None:
            self.line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            return self._start_document()
        if isinstance(event, yaml.AliasEvent):
            self._refuse("an alias (`*…`) is not read in a catalog; write the value out")
            self._place(Broken(self.line))
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            return self._take_node(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._keys.pop()
            self._place(self._open.pop())
        return True

    def _start_document(self) -> bool:
        self._documents += 1
        if self._documents > 1:
            self._report.problem(self.line, _FILE, "a second document begins; keep to one per file")
        return self._documents == 1

    def _take_node(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> bool:
        if event.anchor is not None:
            self._refuse("an anchor (`&…`) is not read in a catalog; remove it")
        if event.tag is not None:
            self._refuse("a tag (`!…`) is not read in a catalog; remove it")
        if isinstance(event, yaml.ScalarEvent):
            self._place(Scalar(self.line, event.value, plain=event.style is None))
            return True
        if len(self._open) == MAX_DEPTH:
            self._refuse(f"is nested deeper than {MAX_DEPTH} levels")
            return False
        is_list = isinstance(event, yaml.SequenceStartEvent)
        self._open.append(Items(self.line) if is_list else Pairs(self.line))
        self._keys.append(None)
        return True

    def _refuse(self, message: str) -> None:
        self._report.problem(self.line, self._field(), message)

    def _field(self) -> str:
        keys = [key[1] for key in self._keys if key is not None and key[1] is not None]
        return keys[-1] if keys else _FILE

    def _place(self, node: Node) -> None:
        """Put a finished node where it belongs: the root, a list, or a mapping's key or value."""
        if not self._open:
            self.root = node
            return
        holder = self._open[-1]
        if isinstance(holder, Items):
            holder.nodes.append(node)
        elif self._keys[-1] is None:
            self._keys[-1] = (node.line, self._checked_key(holder, node))
        else:
            line, key = self._keys[-1]
            self._keys[-1] = None
            if key is not None:
                holder.pairs[key] = (line, node)

    def _checked_key(self, holder: Pairs, node: Node) -> str | None:
        if not isinstance(node, Scalar):
            if not isinstance(node, Broken):
                self._report.problem(node.line, self._field(), "a key must be a word")
            return None
        if node.text in holder.pairs:
            first = holder.pairs[node.text][0]
            self._report.problem(
                node.line, shown(node.text), f"is given twice; it stands in line {first} too"
            )
            return None
        return node.text
