"""What is wrong with a configuration, in our words: the setting, its value, what is allowed, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agilerl_like.config.model import Config, Contradictions
from agilerl_like.config.notation import Place
from agilerl_like.config.sections import MutationConfig, RangeConfig
from agilerl_like.config.teams import KINDS
from agilerl_like.errors import ConfigurationError, unknown_name


@dataclass(frozen=True)
class Wording:
    """Says what pydantic found in a kind of configuration, of which each key has a place."""

    kind: type[Config]
    places: Mapping[Place, str]

    def problem(self, found: Any) -> str:
        """One problem; several, if settings contradict each other."""
        loc = tuple(str(part) for part in found["loc"])
        own = found.get("ctx", {}).get("error")
        if isinstance(own, Contradictions):
            return "; ".join(self._own_problem(loc, problem) for problem in own.problems)
        if isinstance(own, ConfigurationError):
            return self._own_problem(loc, str(own))
        name, value = ".".join(loc), found["input"]
        if found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            text = str(unknown_name(f"{'.'.join(loc[:-1]) or 'config'} key", loc[-1], self._near(loc)))
        elif found["type"] == "literal_error":
            allowed = KINDS if loc == ("algorithm", "name") else re.findall(r"'([^']*)'", found["ctx"]["expected"])
            text = str(unknown_name(name, value, allowed))
        elif found["type"] == "missing":
            text = f"{name} is missing"
        else:
            text = f"{name}={value!r}: {found['msg'][0].lower()}{found['msg'][1:]}"
        return text + self.place(loc)

    def place(self, loc: Place) -> str:
        """Where something stands, or what it stands in."""
        nearest = next((loc[:end] for end in range(len(loc), 0, -1) if loc[:end] in self.places), None)
        return "" if nearest is None else f" ({self.places[nearest]})"

    def _own_problem(self, loc: Place, text: str) -> str:
        """Put the section in front of one of our own errors, which begin with the setting that is wrong."""
        if loc[-1:] == ("[key]",):
            return f"{'.'.join(loc[:-2])} {text}{self.place(loc[:-1])}"
        text = text.replace("hp_config.", "hyperparameters.")  # its name in Python
        named = re.match(r"[\w.]+(?=[=:])", text)
        if named is None:
            return ": ".join(filter(None, (".".join(loc), text))) + self.place(loc)
        name = named[0]
        path = (*loc, *name.split("."))
        if len(path) == 1:
            path = (*self._sections_with(name)[:1], name)
        return f"{'.'.join(path)}{text.removeprefix(name)}{self.place(path)}"

    def _near(self, loc: Place) -> list[str]:
        """What an unknown key could have meant: what its section holds, and where other sections hold that name."""
        elsewhere = [f"{section}.{loc[-1]}" for section in self._sections_with(loc[-1])]
        if len(loc) == 1:
            return [*self.kind.model_fields, *elsewhere]
        return [*(RangeConfig.model_fields if loc[0] == "hyperparameters" else self._names(loc[0])), *elsewhere]

    def _sections_with(self, name: str) -> list[str]:
        return [section for section in self.kind.model_fields if name in self._names(section)]

    def _names(self, section: str) -> tuple[str, ...]:
        model: Any = self.kind.model_fields[section].annotation
        model = MutationConfig if section == "mutation" else model
        return tuple(getattr(model, "model_fields", getattr(model, "__dataclass_fields__", ())))
