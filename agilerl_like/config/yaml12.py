"""The YAML reader of configurations: a safe dialect that keeps line numbers.

Numbers are those of YAML 1.2: 010 is ten, 1:30 is text. In addition 100_000 is a number, None is null, keys are always
text, duplicate keys are errors, and keys without a value are ignored. Numbers and flags keep their original text, for
settings that expect a name such as 007. `yaml_writer` shares these rules.
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
"""The keys that lead to a value; for list entries the index."""


MAX_BYTES = 2**18
MAX_NODES = 20_000
MAX_DEPTH = 32
"""Limits of one document. A few hundred bytes of aliases can expand to more than a machine's memory, so an alias counts
as the nodes that it refers to."""


class Loader(yaml.SafeLoader):
    """Reads YAML that consists of numbers, flags, null, text, lists and mappings.

    Raises:
        ConstructorError: the document has too many nodes or is nested too deeply.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and its children, within the limits."""
        self._nodes, self._depth = self._nodes + 1, self._depth + 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark
            raise ConstructorError(None, None, LIMITS, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Paths of pipes from the shell, as in `train <(envsubst < file.yaml)`."""
LIMITS = f"allowed are {MAX_BYTES} bytes, {MAX_NODES} values and {MAX_DEPTH} levels"

Loader.yaml_implicit_resolvers = {}
Loader.yaml_constructors = {
    tag: Loader.yaml_constructors[tag] for tag in (f"{TAG}null", f"{TAG}str", f"{TAG}seq", f"{TAG}map", None)
}


for _kind, _pattern, _beginnings in PLAIN_SCALARS:
    Loader.add_implicit_resolver(TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), list(_beginnings))


def _integer(text: str) -> int:
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text.replace("_", ""), base)


def _float(text: str) -> float:
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
        except ValueError as error:  # an explicit tag, or more digits than Python converts
            shown = repr(text if len(text) < 40 else f"{text[:40]}…")
            raise ConstructorError(None, None, f"{shown} is not a valid {meant}", node.start_mark) from error

    Loader.add_constructor(TAG + kind, construct)


_add_scalar("int", "integer", _integer)
_add_scalar("float", "number", _float)
_add_scalar("bool", "flag", _flag)


@dataclass(frozen=True)
class ParsedYaml:
    """A parsed document."""

    data: Any
    locations: dict[KeyPath, str] = field(default_factory=dict)
    """File and line of each key."""
    texts: dict[KeyPath, str] = field(default_factory=dict)
    """The original text of numbers and flags."""


def read_yaml(path: Path | str, field: str = "config", *, follow_links: bool = True) -> ParsedYaml:
    """Read a YAML file; `field` names it in errors. A symbolic link is refused, unless `follow_links`.

    Raises:
        ConfigurationError: it cannot be read, or is not YAML.
    """
    try:
        text = _bytes_of(path, follow_links=follow_links).decode()
    except (CheckpointError, OSError) as error:
        raise ConfigurationError(f"{field}={str(path)!r} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{field}={str(path)!r} is not UTF-8 text; allowed is a YAML file") from error
    return _parse(text, str(path))


def _bytes_of(path: Path | str, *, follow_links: bool) -> bytes:
    """Read a regular file, or a pipe that this process inherited."""
    if not str(path).startswith(DESCRIPTORS):
        return safe_folder.read_regular(path, MAX_BYTES, follow_links=follow_links)
    with open(path, "rb") as pipe:
        data = pipe.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"path={str(path)!r} is too large; {LIMITS}")
    return data


def parse_value(text: str, where: str) -> ParsedYaml:
    """Parse one value; ConfigurationError if it is not YAML."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:  # an argument of the command in another encoding
        raise ConfigurationError(f"{where}={text[:40]!r} is not UTF-8 text; allowed is a value in YAML") from error
    if size > MAX_BYTES:
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
            raise ConfigurationError(f"{where}: its aliases expand to too much; {LIMITS}")
        _check_duplicates(entries, where)
        data = _without_sharing(loader.construct_document(node))
        entries = [*_entries(node, where)]  # with the merged entries, which the construction puts in the place of <<
        locations = {place: f"{where}, line {line}" for place, line, _ in entries}
        kinds = {TAG + kind for kind in ("bool", "int", "float")}
        texts = {place: value.value for place, _, value in [((), 0, node), *entries] if value.tag in kinds}
        return ParsedYaml(data, locations, texts)
    except ConfigurationError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:  # the last two: escapes in quotes
        raise ConfigurationError(f"{where}{_message(error)}") from error


def _without_sharing(data: Any) -> Any:
    """Return a copy in which each alias has its own mapping or list, so that a change of one does not reach others."""
    if isinstance(data, dict):
        return {name: _without_sharing(value) for name, value in data.items()}
    return [_without_sharing(value) for value in data] if isinstance(data, list) else data


def _entries(node: yaml.Node, where: str, parents: KeyPath = ()) -> Iterator[tuple[KeyPath, int, yaml.Node]]:
    """Yield all entries of lists and mappings with their lines; keys without a value are removed."""
    if len(parents) > MAX_DEPTH:  # aliases, which the loader does not expand
        raise ConfigurationError(f"{where}: its aliases are nested too deep; {LIMITS}")
    if isinstance(node, yaml.MappingNode):
        node.value = [pair for pair in node.value if not _is_blank(pair[1])]
        inside = [(_name(key, where), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inside = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, key, value in inside:
        yield (*parents, name), key.start_mark.line + 1, value
        yield from _entries(value, where, (*parents, name))


def _name(key: yaml.Node, where: str) -> str:
    """Return the text of a key and turn the key into text."""
    if not isinstance(key, yaml.ScalarNode) or not key.value:
        line = key.start_mark.line + 1
        raise ConfigurationError(f"{where}, line {line}: a key is empty, a list or a mapping; allowed are names")
    if key.tag != f"{TAG}merge":
        key.tag = f"{TAG}str"
    return key.value


def _check_duplicates(entries: list[tuple[KeyPath, int, yaml.Node]], where: str) -> None:
    seen: dict[KeyPath, int] = {}
    for place, line, _ in entries:
        if place in seen:
            raise ConfigurationError(f"{where}, line {line}: {'.'.join(place)} is already given in line {seen[place]}")
        seen[place] = line


def _is_blank(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{where}: not valid YAML: {getattr(error, 'problem', None) or type(error).__name__}"
