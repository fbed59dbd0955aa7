"""The YAML of configurations: a safe dialect in which numbers are numbers, keys know their lines, and lists are short.

It differs from PyYAML's where that would surprise: 1e5 is a number, None is null, a key given twice is an error, and a
key with nothing behind it says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agilerl_like.errors import ConfigurationError

Place = tuple[str, ...]
"""The keys that lead to a value."""


class Loader(yaml.SafeLoader):
    """Safe YAML in which 1e5 is a number, as in YAML 1.2 and everywhere else, and None is null."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^[nN]one$"), list("nN"))


class Dumper(yaml.SafeDumper):
    """YAML with its lists in brackets."""


Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def read(path: Path | str) -> tuple[Any, dict[Place, str]]:
    """What a file says, and where each key of it stands.

    Raises:
        ConfigurationError: it cannot be read, or is no YAML.
    """
    try:
        loader = Loader(Path(path).read_text(encoding="utf-8"))
        node = loader.get_single_node()
        places = {place: f"{path}, line {line}" for place, line in _lines(node, path)}
        return {} if node is None else loader.construct_document(node), places
    except OSError as error:
        raise ConfigurationError(f"config={str(path)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"config={str(path)!r} is no text in UTF-8; allowed is a YAML file") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{path}{_explain(error)}") from error


def value_of(text: str, where: str) -> Any:
    """What one value means; ConfigurationError if it is no YAML."""
    try:
        return Loader(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{where}={text!r}{_explain(error)}") from error


def _lines(node: yaml.Node | None, file: Path | str, above: Place = ()) -> Iterator[tuple[Place, int]]:
    """The line of every key; a key that is there twice is an error, one with nothing behind it is taken out."""
    if not isinstance(node, yaml.MappingNode):
        return
    node.value = [pair for pair in node.value if not _says_nothing(pair[1])]
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if str(key.value) in seen:
            place = ".".join((*above, str(key.value)))
            raise ConfigurationError(f"{file}, line {line}: {place} is already given in line {seen[key.value]}")
        seen[str(key.value)] = line
        yield (*above, str(key.value)), line
        yield from _lines(value, file, (*above, str(key.value)))


def _says_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _explain(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{where}: this is no YAML: {getattr(error, 'problem', None) or type(error).__name__}"
