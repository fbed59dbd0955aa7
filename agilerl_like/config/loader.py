"""What somebody wrote, in a file and behind it on the command line, becomes a configuration, or is refused as a whole.

Which kind of configuration it is, that of agents or of teams, is told by the algorithm's name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from agilerl_like.config import yaml12
from agilerl_like.config.error_messages import ErrorFormatter, Problem
from agilerl_like.config.run_config import Config
from agilerl_like.config.yaml12 import KeyPath, ParsedYaml
from agilerl_like.errors import ConfigurationError
from agilerl_like.registry import registered


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, then options such as `--training.max-steps 1e5`, whose values are YAML too.

    Raises:
        ConfigurationError: with every mistake that can be seen, each with its place.
    """
    return Draft.read(path).override(overrides).validate()


Option: TypeAlias = tuple[str, list[str]]
"""What was typed: its name, and what follows it."""

TEXT_EXPECTED = ("string_type", "path_type")
"""What pydantic calls it that a number or a flag stands where text is wanted."""


@dataclass(frozen=True)
class Draft:
    """What somebody wrote, not yet judged; where each piece of it stands, and how numbers and flags were written."""

    data: dict[str, Any]
    locations: dict[KeyPath, str] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    """Those that were written over what there was before."""
    before: Draft | None = None

    @classmethod
    def read(cls, path: Path | str) -> Draft:
        """Read a YAML file; a key with nothing behind it says nothing."""
        written = yaml12.read_yaml(path)
        data = {} if written.data is None else written.data
        if not isinstance(data, dict):
            raise ConfigurationError(f"{path} holds {data!r:.40}; allowed are settings by name, such as 'seed: 1'")
        return cls(data, written.locations, written.texts)

    def override(self, arguments: Sequence[str]) -> Draft:
        """Write options over it: `--algorithm.clip-coef 0.1` is what `algorithm: {clip_coef: 0.1}` is in a file."""
        return self._with(tuple(_options(arguments)))

    def _with(self, options: tuple[Option, ...]) -> Draft:
        data, locations, spelled = copy.deepcopy(self.data), dict(self.locations), dict(self.texts)
        for option, texts in options:
            path = tuple(option.removeprefix("--").replace("-", "_").split("."))
            section = data
            for part in path[:-1]:
                if not isinstance(section.get(part), dict):
                    section[part] = {}
                section = section[part]
            written = _value(option, texts)
            section[path[-1]] = written.data
            locations = {place: where for place, where in locations.items() if place[: len(path)] != path} | {
                path: option
            }
            spelled = {place: text for place, text in spelled.items() if place[: len(path)] != path}
            spelled |= {(*path, *place): text for place, text in written.texts.items()}
        return Draft(data, locations, spelled, options, self)

    @property
    def config_class(self) -> type[Config]:
        """What kind of configuration this is; an agent's, if that is not to be told."""
        named = reduce(_entry, ("algorithm", "name"), self.data)
        return registered("config").get(named, Config) if isinstance(named, str) else Config

    def validate(self) -> Config:
        """Return the configuration, or raise ConfigurationError with every problem."""
        judged = self._try_validate()
        if isinstance(judged, Config):
            return judged
        raise ConfigurationError("; ".join(map(str, self._with_responsible_options(judged))))

    def _try_validate(self) -> Config | list[Problem]:
        wording = ErrorFormatter(self.config_class, self.locations)
        try:
            config = self._validated()
        except ValidationError as error:
            return [problem for found in error.errors(include_url=False) for problem in wording.problems(found)]
        return [*self._flags_in_place_of_numbers(config, wording)] or config

    def _with_responsible_options(self, problems: Sequence[Problem]) -> Iterator[Problem]:
        """The problems, with the options without which they would not be in the place of the file's lines."""
        without = self._problems_without_each()
        for problem in problems:
            guilty = [option for option, texts in without if problem.text not in texts]
            is_told = not guilty or any(problem.location == option for option, _ in self.options)
            yield problem if is_told else problem._replace(place=", ".join(guilty))

    def _problems_without_each(self) -> list[tuple[str, set[str]]]:
        """What would be wrong if an option had not been given, for each."""
        if self.before is None:
            return []
        found = []
        for number, (option, _) in enumerate(self.options):
            judged = self.before._with((*self.options[:number], *self.options[number + 1 :]))._try_validate()
            found.append((option, set() if isinstance(judged, Config) else {problem.text for problem in judged}))
        return found

    def _validated(self) -> Config:
        """The configuration; where text was wanted and a number or a flag was read, it is what was written."""
        try:
            return self.config_class.model_validate(self.data)
        except ValidationError as error:
            wanting = {tuple(map(str, found["loc"])) for found in error.errors() if found["type"] in TEXT_EXPECTED}
            if not wanting & self.texts.keys():
                raise
        data = copy.deepcopy(self.data)
        for place in wanting & self.texts.keys():
            section = reduce(_entry, place[:-1], data)
            if isinstance(section, dict):
                section[place[-1]] = self.texts[place]
        return self.config_class.model_validate(data)

    def _flags_in_place_of_numbers(self, config: Config, wording: ErrorFormatter) -> Iterator[Problem]:
        """What pydantic lets pass, for to Python true is 1."""
        read = config.to_json()
        for path in self.locations:
            written, understood = (reduce(_entry, path, data) for data in (self.data, read))
            if isinstance(written, bool) and type(understood) in (int, float):
                text = f"{'.'.join(path)}={written!r}: input should be a number, not a flag"
                yield Problem(text, wording.location(path))


def _options(arguments: Sequence[str]) -> Iterator[Option]:
    """Split `--a 1 --b=2 --c 3 4` into options and what follows each."""
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
    """The value of an option: a list where several things follow it."""
    values = [yaml12.parse_value(text, option) for text in texts]
    return values[0] if len(values) == 1 else ParsedYaml([value.data for value in values])


def _entry(section: Any, name: str) -> Any:
    return section.get(name) if isinstance(section, Mapping) else None
