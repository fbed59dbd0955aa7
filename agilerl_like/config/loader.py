"""Loading of configurations from a YAML file and the options behind it on the command line.

Both are validated together; the class of the configuration follows from the algorithm's name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from agilerl_like.algorithms.settings import NO_FLAG, flags_as_numbers
from agilerl_like.config import yaml12
from agilerl_like.config.error_messages import ErrorFormatter, Problem
from agilerl_like.config.run_config import Config, config_class
from agilerl_like.config.yaml12 import KeyPath, ParsedYaml
from agilerl_like.errors import ConfigurationError


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, then options such as `--training.max-steps 1e5`, whose values are YAML too.

    Raises:
        ConfigurationError: lists every problem with its location.
    """
    return Draft.read(path).override(overrides).validate()


Option: TypeAlias = tuple[str, list[str]]
"""An option of the command line and the arguments behind it."""

TWO_NAMES: tuple[tuple[KeyPath, KeyPath], ...] = (
    (("algorithm", "num_steps"), ("algorithm", "learn_step")),
    (("algorithm", "num_minibatches"), ("algorithm", "batch_size")),
    (("algorithm", "lr_schedule"), ("algorithm", "schedules", "lr")),
)
"""Pairs of settings of which one may be given; an option replaces the other one of the file."""
OFF_BY_NONE: KeyPath = ("algorithm", "lr_schedule")
"""The one of `TWO_NAMES` for which None is a choice, no schedule; None of another leaves the choice to its pair."""
TEXT_EXPECTED = ("string_type", "path_type")
"""pydantic's error types for a number or a flag in place of text."""


@dataclass(frozen=True)
class Draft:
    """Settings that are not validated yet."""

    data: dict[str, Any]
    locations: dict[KeyPath, str] = field(default_factory=dict)
    """File and line, or option, of each key."""
    texts: dict[KeyPath, str] = field(default_factory=dict)
    """The original text of numbers and flags."""
    options: tuple[Option, ...] = ()
    """The options that were applied to `before`."""
    before: Draft | None = None

    @classmethod
    def read(cls, path: Path | str, *, follow_links: bool = True) -> Draft:
        """Read a YAML file; keys without a value are ignored.

        A symbolic link is refused, unless `follow_links`: in a run folder of someone else it may lead to a private file
        of this machine, which errors, tables and uploads would show.
        """
        parsed = yaml12.read_yaml(path, follow_links=follow_links)
        data = {} if parsed.data is None else parsed.data
        if not isinstance(data, dict):
            raise ConfigurationError(f"{path} holds {data!r:.40}; allowed are settings by name, such as 'seed: 1'")
        return cls(data, parsed.locations, parsed.texts)

    def override(self, arguments: Sequence[str]) -> Draft:
        """Apply options: `--algorithm.clip-coef 0.1` has the effect of `algorithm: {clip_coef: 0.1}` in a file."""
        return self._with(tuple(split_options(arguments)))

    def _with(self, options: tuple[Option, ...]) -> Draft:
        data, locations, texts = copy.deepcopy(self.data), dict(self.locations), dict(self.texts)
        applied: list[KeyPath] = []
        for option, arguments in options:
            path = tuple(option.removeprefix("--").replace("-", "_").split("."))
            section = data
            for part in path[:-1]:
                if not isinstance(section.get(part), dict):
                    section[part] = {}
                section = section[part]
            parsed = _value(option, arguments)
            section[path[-1]] = parsed.data
            self._remove_other_name(data, path, applied)
            applied.append(path)
            locations = {key: where for key, where in locations.items() if key[: len(path)] != path} | {path: option}
            texts = {key: text for key, text in texts.items() if key[: len(path)] != path}
            texts |= {(*path, *key): text for key, text in parsed.texts.items()}
        return Draft(data, locations, texts, options, self)

    def _remove_other_name(self, data: dict[str, Any], path: KeyPath, applied: Sequence[KeyPath]) -> None:
        """Remove what the file has for the same thing under another name, unless an `applied` option replaced it."""
        for names in TWO_NAMES:
            for name, other in (names, names[::-1]):
                is_part = name[: len(path)] == path != other[: len(path)]
                is_off = name == path == OFF_BY_NONE
                is_given = is_part and (is_off or reduce(_entry, name, data) is not None)
                is_replaced = any(other[: len(earlier)] == earlier for earlier in applied)
                is_of_file = not is_replaced and reduce(_entry, other, self.data) is not None
                section = reduce(_entry, other[:-1], data)
                if is_given and is_of_file and section is not None:
                    section.pop(other[-1], None)

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm; None if it is missing or no text."""
        name = reduce(_entry, ("algorithm", "name"), self.data)
        return name if isinstance(name, str) else None

    @property
    def config_class(self) -> type[Config]:
        """The class of configurations of the algorithm; PPO's if the name is missing or unknown."""
        return Config if self.algorithm is None else config_class(self.algorithm)

    def validate(self) -> Config:
        """Return the configuration; ConfigurationError lists every problem."""
        result = self._try_validate()
        if isinstance(result, Config):
            return result
        raise ConfigurationError("; ".join(map(str, self._with_responsible_options(result))))

    def _try_validate(self) -> Config | list[Problem]:
        formatter = ErrorFormatter(self.config_class, self.locations)
        try:
            config = self._validated()
        except ValidationError as error:
            return [problem for found in error.errors(include_url=False) for problem in formatter.problems(found)]
        return [*self._flags_in_place_of_numbers(config, formatter)] or config

    def _with_responsible_options(self, problems: Sequence[Problem]) -> Iterator[Problem]:
        """The problems; one that disappears without an option is located at the option, not at a line of the file."""
        without = self._problems_without_each_option()
        for problem in problems:
            responsible = [option for option, texts in without if problem.text not in texts]
            is_located = not responsible or any(problem.location == option for option, _ in self.options)
            yield problem if is_located else problem._replace(location=", ".join(responsible))

    def _problems_without_each_option(self) -> list[tuple[str, set[str]]]:
        if self.before is None:
            return []
        found = []
        for number, (option, _) in enumerate(self.options):
            result = self.before._with((*self.options[:number], *self.options[number + 1 :]))._try_validate()
            found.append((option, set() if isinstance(result, Config) else {problem.text for problem in result}))
        return found

    def _validated(self) -> Config:
        """The configuration; a number or flag where text is expected is replaced by its original text."""
        try:
            return self.config_class.model_validate(self.data)
        except ValidationError as error:
            expected = {tuple(map(str, found["loc"])) for found in error.errors() if found["type"] in TEXT_EXPECTED}
            replaceable = expected & self.texts.keys()
            if not replaceable:
                raise
        data = copy.deepcopy(self.data)
        for path in replaceable:
            section = reduce(_entry, path[:-1], data)
            if isinstance(section, dict):
                section[path[-1]] = self.texts[path]
        return self.config_class.model_validate(data)

    def _flags_in_place_of_numbers(self, config: Config, formatter: ErrorFormatter) -> Iterator[Problem]:
        """Flags that pydantic accepts as numbers, because True == 1."""
        for path, flag in flags_as_numbers(self.data, config.to_json()):
            yield Problem(f"{'.'.join(path)}={flag!r}: {NO_FLAG}", formatter.location(path))


def split_options(arguments: Sequence[str]) -> Iterator[Option]:
    """Split `--a 1 --b=2 --c 3 4` into options and their arguments."""
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("--"):
            raise ConfigurationError(f"argument={option!r} belongs to no option; allowed is --section.name VALUE")
        texts = [value] if equals else []
        while rest and not rest[0].startswith("--"):
            texts.append(rest.pop(0))
        if not texts:
            raise ConfigurationError(f"option={option!r} lacks its value, as in {option} true")
        yield option, texts


def _value(option: str, texts: list[str]) -> ParsedYaml:
    """The value of an option; several arguments are a list."""
    values = [yaml12.parse_value(text, option) for text in texts]
    return values[0] if len(values) == 1 else ParsedYaml([value.data for value in values])


def _entry(section: Any, name: str) -> Any:
    return section.get(name) if isinstance(section, Mapping) else None
