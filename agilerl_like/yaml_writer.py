"""The YAML dialect of configurations: types of plain scalars, and a writer that quotes ambiguous text."""

from __future__ import annotations

import re
from typing import Any

import yaml

TAG = "tag:yaml.org,2002:"
DIGITS = r"(?:[0-9]+|[0-9]{1,3}(?:_[0-9]{3})+)"
PLAIN_SCALARS = (
    ("bool", "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", rf"[-+]?{DIGITS}|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", rf"[-+]?(?:{DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", "~|null|Null|NULL|none|None|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
)
"""Types of scalars without quotes: type, pattern, possible first characters. Every other scalar is text."""


class Dumper(yaml.SafeDumper):
    """Writes YAML with lists in brackets, which has the same meaning in this dialect and in YAML 1.1."""


for _kind, _pattern, _beginnings in PLAIN_SCALARS:
    Dumper.add_implicit_resolver(TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), list(_beginnings))


def _text(dumper: Dumper, text: str) -> yaml.Node:
    one_line = text.splitlines() in ([], [text])
    return dumper.represent_scalar(f"{TAG}str", text, style=None if one_line else '"')  # unquoted, breaks become blanks


Dumper.add_representer(str, _text)
Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence(f"{TAG}seq", data, flow_style=True))


def to_yaml(data: Any) -> str:
    """Return plain data as YAML, in its own order."""
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)
