"""The configurations that come with the package, and the lookup of names on the command line.

In a wheel they are in `agilerl_like/configs`, in a checkout in the folder `configs` beside the package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.config.loader import Draft
from agilerl_like.config.yaml12 import DESCRIPTORS
from agilerl_like.envs.multi_agent.openspiel import NAMESPACE
from agilerl_like.envs.multi_agent.pettingzoo import is_multi_agent
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.registry import registered

ANY_ENVIRONMENT = "any_environment.yaml"
"""The configuration of environments that have none of their own."""
YAML = (".yaml", ".yml")
GYMNASIUM, IMPORT_PATH, PETTINGZOO = r"[\w./:-]+-v\d+", r"[\w.]+:[\w.]+", r"\w+(\.\w+)+_v\d+"
OPENSPIEL = rf"{NAMESPACE}.+"
"""Patterns of environment ids: CartPole-v1, own:Env, mpe2.simple_spread_v3, openspiel/go(board_size=5)."""


@dataclass(frozen=True)
class Bundled:
    """A configuration that comes with the package."""

    name: str
    """Algorithm and file: "ppo/cartpole"."""
    path: Path

    @property
    def stem(self) -> str:
        """The name without the algorithm."""
        return self.name.rpartition("/")[2]

    @cached_property
    def draft(self) -> Draft:
        """Its settings."""
        return Draft.read(self.path)

    @property
    def environment(self) -> str:
        """The id of its environment."""
        return self.draft.data["environment"]["id"]

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return self.draft.data.get("algorithm", {}).get("name", "PPO")

    @property
    def has_no_wrappers(self) -> bool:
        """Whether its environment has no wrappers."""
        return "wrappers" not in self.draft.data["environment"]

    @property
    def summary(self) -> str:
        """The first line of the file: the task and when to choose this configuration."""
        with self.path.open(encoding="utf-8") as file:
            return file.readline().removeprefix("#").strip()


def bundled_configs() -> list[Bundled]:
    """Return every configuration that comes with the package, by name."""
    folder = _folder()
    names = {path: path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml")}
    return sorted((Bundled(name, path) for path, name in names.items()), key=lambda one: one.name)


def find_config(name: str, overrides: Sequence[str] = ()) -> Draft:
    """Return the settings of a file, a bundled configuration, or an environment.

    An environment has the settings of its bundled configuration (of several, of one without wrappers, and of these the
    one with the shortest name), else of `any_environment.yaml`. If `overrides`, the options of a command line, name
    another algorithm, its bundled configuration for the environment counts, or `any_environment.yaml` with the settings
    that the algorithm has; wrappers and other settings of the environment stay.

    Raises:
        ConfigurationError: the name is none of these, or the file is not YAML.
    """
    if names_file(name) or name.endswith(YAML):
        return Draft.read(name)
    known = bundled_configs()
    named = [one for one in known if name in (one.name, one.stem)]
    if len(named) == 1:
        return named[0].draft
    if named:
        raise ConfigurationError(f"config={name!r} is ambiguous; allowed are {', '.join(one.name for one in named)}")
    suiting = [one for one in known if name in (one.environment, one.environment.rpartition(":")[2])]
    algorithm = Draft({}).override(overrides).algorithm or ""
    if suiting:
        best = _simplest(suiting)
        suiting = [one for one in suiting if algorithm in ("", one.algorithm)]
        return _simplest(suiting).draft if suiting else for_any_environment(best.draft.data["environment"], algorithm)
    if name in _registered() or re.fullmatch(f"{GYMNASIUM}|{IMPORT_PATH}|{PETTINGZOO}|{OPENSPIEL}", name):
        return for_any_environment({"id": name}, algorithm or (IPPO.algo if is_multi_agent(name) else PPO.algo))
    raise _unknown(name, known)


def names_file(name: str) -> bool:
    """Whether the name of a configuration is that of a file, or of a pipe from the shell."""
    return Path(name).is_file() or name.startswith(DESCRIPTORS)


def _simplest(configs: Iterable[Bundled]) -> Bundled:
    return min(configs, key=lambda one: (not one.has_no_wrappers, len(one.name)))


def for_any_environment(environment: Mapping[str, Any], algorithm: str) -> Draft:
    """Return the settings of an environment without a bundled configuration, as far as the algorithm has them."""
    draft = Draft.read(_folder() / ANY_ENVIRONMENT)
    kind: Any = registered("algorithm").get(algorithm)  # validation refuses an unknown one
    data = {**draft.data, "environment": {**draft.data["environment"], **environment}}
    for section in ("algorithm", "hyperparameters"):
        its_own = data[section]
        data[section] = {
            name: value for name, value in its_own.items() if kind is None or name in kind.config.__dataclass_fields__
        }
    data["algorithm"] = {"name": algorithm, **data["algorithm"]}
    data["hyperparameters"] |= {} if kind is None else kind.group_class.search_ranges
    return replace(draft, data=data)


def _registered() -> set[str]:
    """The ids of gymnasium, with their versions and without."""
    return {name for spec in gymnasium.registry.values() for name in (spec.id, spec.name)}


def _unknown(name: str, known: Sequence[Bundled]) -> ConfigurationError:
    candidates = {one.name for one in known} | {one.stem for one in known} | {*gymnasium.registry}
    hint = str(unknown_name("config", name, candidates)).partition("; ")[2]
    near = f"; {hint}" if hint.startswith("did you mean") else ""
    return ConfigurationError(
        f"config={name!r} is no file, no configuration of `agilerl-like configs` and no environment's id{near} "
        "(an environment of your own is written module:Class)"
    )


def _folder() -> Path:
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())
