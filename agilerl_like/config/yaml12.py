"""The YAML of configurations: a safe dialect in which numbers are numbers, keys know their lines, and lists are short.

Numbers are those of YAML 1.2, so 010 is ten and 1:30 is no number; thousands may be set apart, as in 100_000. Besides,
None is null, a key is text whatever it looks like, a key given twice is an error, and a key with nothing behind it says
nothing. What was taken for a number or a flag keeps its text, for where a name is wanted 007 is one.

The writer (`plain_yaml`) shares these rules: it quotes what would be read as something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage import safe_folder
from agilerl_like.yaml_writer import PLAIN_SCALARS, TAG

KeyPath = tuple[str, ...]
"""The keys that lead to a value; in a list, how many stand before it."""


MAX_BYTES = 2**18
MAX_NODES = 20_000
MAX_DEPTH = 32
"""Of one document: a few hundred bytes of aliases can describe more than a machine's memory. Nodes are counted where
they are used, so that an alias counts as what it stands for."""


class Loader(yaml.SafeLoader):
    """Reads YAML of numbers, flags, null, text, lists and mappings, and of nothing else.

    Raises:
        ConstructorError: the document has more nodes, or is nested deeper, than is allowed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node and those in it."""
        self._nodes, self._depth = self._nodes + 1, self._depth + 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark
            raise ConstructorError(None, None, LIMITS, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Where a shell puts what it hands over, as in `train <(envsubst < file.yaml)`."""
LIMITS = f"allowed are {MAX_BYTES} bytes, {MAX_NODES} values and {MAX_DEPTH} levels"

Loader.yaml_implicit_resolvers = {}
Loader.yaml_constructors = {
    tag: Loader.yaml_constructors[tag] for tag in (f"{TAG}null", f"{TAG}str", f"{TAG}seq", f"{TAG}map", None)
}


for _kind, _pattern, _beginnings in PLAIN_SCALARS:
    Loader.add_implicit_resolver(TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), list(_beginnings))


def _whole(text: str) -> int:
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text.replace("_", ""), base)


def _real(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _flag(text: str) -> bool:
    try:
        return yaml.SafeLoader.bool_values[text.lower()]
    except KeyError as error:
        raise ValueError(text) from error


def _add_scalar(kind: str, meant: str, read: Callable[[str], Any]) -> None:
    def construct(loader: Loader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        try:
            return read(text)
        except ValueError as error:  # of a tag that somebody wrote, or of more digits than Python reads
            shown = repr(text if len(text) < 40 else f"{text[:40]}…")
            raise ConstructorError(None, None, f"{shown} is no {meant} that can be read", node.start_mark) from error

    Loader.add_constructor(TAG + kind, construct)


_add_scalar("int", "whole number", _whole)
_add_scalar("float", "number", _real)
_add_scalar("bool", "flag", _flag)


@dataclass(frozen=True)
class ParsedYaml:
    """What somebody wrote."""

    data: Any
    locations: dict[KeyPath, str] = field(default_factory=dict)
    """Where each key of it stands."""
    texts: dict[KeyPath, str] = field(default_factory=dict)
    """How its numbers and flags were written."""


def read_yaml(path: Path | str) -> ParsedYaml:
    """What a file says.

    Raises:
        ConfigurationError: it cannot be read, or is no YAML.
    """
    try:
        text = _bytes_of(path).decode()
    except (CheckpointError, OSError) as error:
        raise ConfigurationError(f"config={str(path)!r} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"config={str(path)!r} is no text in UTF-8; allowed is a YAML file") from error
    return _parse(text, str(path))


def _bytes_of(path: Path | str) -> bytes:
    """The bytes of a regular file, or of a pipe that this process was given by whoever started it."""
    if not str(path).startswith(DESCRIPTORS):
        return safe_folder.read_regular(path, MAX_BYTES, follow_links=True)
    with open(path, "rb") as pipe:
        data = pipe.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"path={str(path)!r} is too large; {LIMITS}")
    return data


def parse_value(text: str, where: str) -> ParsedYaml:
    """What one value means; ConfigurationError if it is no YAML."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigurationError(f"{where}={text[:40]!r}… is too long; {LIMITS}")
    return _parse(text, f"{where}={text if len(text) < 200 else f'{text[:200]}…'!r}")


def _parse(text: str, where: str) -> ParsedYaml:
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return ParsedYaml(None)
        entries = [*islice(_entries(node, where), MAX_NODES + 1)]
        if len(entries) > MAX_NODES:
            raise ConfigurationError(f"{where}: its aliases stand for too much; {LIMITS}")
        locations = {place: f"{where}, line {line}" for place, line, _ in entries}
        kinds = {TAG + kind for kind in ("bool", "int", "float")}
        texts = {place: value.value for place, _, value in [((), 0, node), *entries] if value.tag in kinds}
        return ParsedYaml(loader.construct_document(node), locations, texts)
    except ConfigurationError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:  # the last two of escapes in quotes
        raise ConfigurationError(f"{where}{_explain(error)}") from error


def _entries(node: yaml.Node, where: str, above: KeyPath = ()) -> Iterator[tuple[KeyPath, int, yaml.Node]]:
    """What is in lists and mappings, and its line; a key with nothing behind it is taken out."""
    if len(above) > MAX_DEPTH:  # of aliases, which the loader does not follow
        raise ConfigurationError(f"{where}: its aliases are nested too deep; {LIMITS}")
    if isinstance(node, yaml.MappingNode):
        node.value = [pair for pair in node.value if not _is_blank(pair[1])]
        inside = [(_name(key, where), key, value) for key, value in node.value]
        _check_duplicates(inside, where, above)
    elif isinstance(node, yaml.SequenceNode):
        inside = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, key, value in inside:
        yield (*above, name), key.start_mark.line + 1, value
        yield from _entries(value, where, (*above, name))


def _name(key: yaml.Node, where: str) -> str:
    """The text of a key, which it is read as from here on."""
    if not isinstance(key, yaml.ScalarNode) or not key.value:
        line = key.start_mark.line + 1
        raise ConfigurationError(f"{where}, line {line}: a key is empty, a list or a mapping; allowed are names")
    if key.tag != f"{TAG}merge":
        key.tag = f"{TAG}str"
    return key.value


def _check_duplicates(inside: list[tuple[str, yaml.Node, yaml.Node]], where: str, above: KeyPath) -> None:
    seen: dict[str, int] = {}
    for name, key, _ in inside:
        line = key.start_mark.line + 1
        if name in seen:
            place = ".".join((*above, name))
            raise ConfigurationError(f"{where}, line {line}: {place} is already given in line {seen[name]}")
        seen[name] = line


def _is_blank(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _explain(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{where}: this is no YAML: {getattr(error, 'problem', None) or type(error).__name__}"
