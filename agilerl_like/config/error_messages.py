"""pydantic's errors as messages that name the setting, its value, what is allowed, and file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from agilerl_like.algorithms.settings import unknown_setting
from agilerl_like.config.run_config import Config, InconsistentSettings
from agilerl_like.config.schema import (
    AUTO,
    COUNT,
    PARAMETER_KINDS,
    MutationConfig,
    ParameterConfig,
    RangeConfig,
    strategy_fields,
)
from agilerl_like.config.yaml12 import KeyPath
from agilerl_like.errors import ConfigurationError, foreign_setting, renamed_error, unknown_name
from agilerl_like.registry import registered

FORMS = {
    **dict.fromkeys(("model_type", "dataclass_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "path_type": "a path (none is YAML's null, and 'none' in quotes a name)",
}
"""What is allowed, by the type of pydantic's error."""
CHOSEN = (("run", "processes"), ("run", "threads"))
"""Settings that may be `AUTO` in place of a number."""
SECTIONS = ("model_type", "dataclass_type")
"""The types of those errors whose mapping has names of its own."""


class Problem(NamedTuple):
    """A problem and its location, which is empty for a setting that was not given."""

    text: str
    location: str

    def __str__(self) -> str:
        return f"{self.text} ({self.location})" if self.location else self.text


OWN_ALGORITHM = (
    "An algorithm of your own needs an entry point in the group agilerl_like.algorithms, or a script that imports it "
    "and calls agilerl_like.cli.main"
)


@dataclass(frozen=True)
class ErrorFormatter:
    """Formats pydantic's errors of one configuration."""

    config_class: type[Config]
    locations: Mapping[KeyPath, str]

    def problems(self, found: Any) -> Iterator[Problem]:
        """Yield one problem, or several if settings are inconsistent."""
        loc = tuple(str(part) for part in found["loc"])
        loc = loc[:-1] if loc[:1] == ("run",) and loc[-1] in (AUTO, COUNT) else loc
        if loc[:1] == ("hyperparameters",) and found["type"].startswith(f"{loc[-1]}_"):  # of a bound: int | float
            if loc[-1] == "int":
                return  # the error as a float follows
            loc = loc[:-1]
        if loc[-1:] == ("str",) and found["type"] == "string_type":
            return  # of an entry that is a name or a mapping: the error as a mapping follows
        if loc and loc[-1].startswith("dict["):
            yield Problem(
                f"{'.'.join(loc[:-1])}={found['input']!r}; allowed is a name, or a mapping with one", self.location(loc)
            )
            return
        kind = RangeConfig
        if loc[:1] == ("hyperparameters",) and loc[2:3] and loc[2] in PARAMETER_KINDS:
            kind, loc = PARAMETER_KINDS[loc[2]], (*loc[:2], *loc[3:])
        own = found.get("ctx", {}).get("error")
        if isinstance(own, ConfigurationError):
            for problem in own.problems if isinstance(own, InconsistentSettings) else (str(own),):
                yield self._own_problem(loc, problem)
        else:
            yield Problem(self._text(loc, found, kind), self.location(loc))

    def _text(self, loc: KeyPath, found: Any, kind: type[ParameterConfig]) -> str:
        name, value = ".".join(loc), found["input"]
        if found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            return str(self._unknown_key(f"{'.'.join(loc[:-1]) or 'config'} key", loc, kind))
        if found["type"] == "literal_error":
            error = str(unknown_name(name, value, self._choices(loc, found["ctx"]["expected"])))
            return f"{error} {OWN_ALGORITHM}" if loc == ("algorithm", "name") else error
        if found["type"] == "missing":
            return f"{name} is missing"
        if found["type"] in FORMS:
            of_range = loc[0] == "hyperparameters" and len(loc) == 2
            names = kind.model_fields if of_range else self._names(loc[0]) if len(loc) == 1 else ()
            settings = f" of {', '.join(dict.fromkeys(names))}" if names and found["type"] in SECTIONS else ""
            if isinstance(value, str) and loc in (("selection",), ("mutation",)):
                settings = f" with the strategy's name, as in {{name: {value}}}"
            auto = f" or {AUTO}" if loc in CHOSEN else ""
            return f"{name}={value!r}; allowed is {FORMS[found['type']]}{auto}{settings}"
        return f"{name}={value!r}: {found['msg'][0].lower()}{found['msg'][1:]}"

    def _choices(self, loc: KeyPath, expected: str) -> Iterable[str]:
        """Return the values that a file may have for a setting, of which pydantic expects those in a text."""
        if loc == ("algorithm", "name"):
            return dict.fromkeys([*registered("config"), *registered("algorithm")])
        if loc == ("training", "opponents"):  # others are a script's own
            return self.config_class.opponent_kinds
        return re.findall(r"'([^']*)'", expected)

    def _unknown_key(self, field: str, loc: KeyPath, kind: type[ParameterConfig]) -> ConfigurationError:
        """The error for an unknown key; for a name of another library it names the section too."""
        near = self._near(loc, kind)
        foreign = foreign_setting(loc[-1], near)
        if loc[1:] and loc[-1] == "seed":  # the only setting outside of the sections
            where = "allowed is seed at the top level, which is --seed on the command line"
            return ConfigurationError(f"{field}='seed' is unknown; {where}")
        is_of_algorithm = loc[0] == "algorithm" and not self._sections_with(loc[-1])
        if is_of_algorithm and (foreign is None or foreign.setting == f"algorithm.{foreign.name}"):
            return unknown_setting(field, loc[-1], near)
        if foreign is None or loc[0] == "hyperparameters":
            return unknown_name(field, loc[-1], near)
        stands_here = foreign.setting.rpartition(".")[0] == ".".join(loc[:-1])
        return renamed_error(field, loc[-1], foreign.name if stands_here else foreign.setting, foreign)

    def location(self, loc: KeyPath) -> str:
        """The location of a setting, or else of the section that contains it."""
        return next((self.locations[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in self.locations), "")

    def _own_problem(self, loc: KeyPath, text: str) -> Problem:
        """Prepend the section to one of our own errors, which begin with the setting that is wrong."""
        if loc[-1:] == ("[key]",):
            return Problem(f"{'.'.join(loc[:-2])} {text}", self.location(loc[:-1]))
        text = text.replace("hp_config.", "hyperparameters.")  # its name in Python
        named = re.match(r"[\w.]+(?=[=:]| key=)", text)
        if named is None:
            return Problem(": ".join(filter(None, (".".join(loc), text))), self.location(loc))
        name = named[0]
        path = (*loc[:-1], *name.split(".")) if loc[-1:] == (name.split(".")[0],) else (*loc, *name.split("."))
        if len(path) == 1:
            path = (*self._sections_with(name)[:1], name)
        return Problem(f"{'.'.join(path)}{text.removeprefix(name)}", self.location(path))

    def _near(self, loc: KeyPath, kind: type[ParameterConfig]) -> list[str]:
        """Candidates for an unknown key: the settings of its section, and settings of that name in other sections."""
        elsewhere = [f"{section}.{loc[-1]}" for section in self._sections_with(loc[-1])]
        if len(loc) == 1:
            return [*self.config_class.model_fields, *elsewhere]
        return [*(kind.model_fields if loc[0] == "hyperparameters" else self._names(loc[0])), *elsewhere]

    def _sections_with(self, name: str) -> list[str]:
        return [section for section in self.config_class.model_fields if name in self._names(section)]

    def _names(self, section: str) -> tuple[str, ...]:
        model: Any = self.config_class.model_fields[section].annotation
        model = MutationConfig if section == "mutation" else model
        kind = getattr(model, "KIND", "")
        registered_fields = strategy_fields(registered(kind).values()) if kind else ()
        return (*getattr(model, "model_fields", getattr(model, "__dataclass_fields__", ())), *registered_fields)
