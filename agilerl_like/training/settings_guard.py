"""Settings of members, and their ranges, that a callback changes: refused with several processes, else checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.learner_host import ATTRIBUTES
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.algorithms.settings import setting_names
from agilerl_like.errors import ConfigurationError

KEPT = (
    *("index", "seed", "num_envs", "memory_size"),
    *("rewards", "death", "agent_id_one_hot", "frozen_groups", "state_space"),
)
"""Attributes that cannot be set in a run, because its records, envs, networks and replay were made for their values."""
WATCHED = (*KEPT, "hp_config", "group_factors")
"""Attributes besides the settings that are checked; single agents do not have all of them."""


@contextlib.contextmanager
def settings_guard(population: BasePopulation, processes: int) -> Iterator[None]:
    """Restore settings and ranges that were changed inside of the block and cannot stay, so that the run can be saved.

    Raises:
        ValueError: a setting was changed although there are several processes, to a value that is not legal for the
            member or the population, or although a run keeps it. An exception of the block is raised in its place.
    """
    before = [(agent, _values(agent)) for agent in population]
    try:
        yield
    except BaseException:
        with contextlib.suppress(ValueError):
            _check_changes(population, before, processes)
        raise
    _check_changes(population, before, processes)


def _check_changes(
    population: BasePopulation, before: Sequence[tuple[EvolvableAlgorithm, dict[str, Any]]], processes: int
) -> None:
    """Raise ValueError after restoring the values `before` if one of the members cannot keep its value."""
    for agent, values in before:
        now = _values(agent)
        changed = [name for name in now if _differs(now[name], values[name])]
        if not changed:
            continue
        name = changed[0]
        change = f"{name}={now[name]!r:.100} (before: {values[name]!r:.100})"
        try:
            if name in KEPT:
                raise ConfigurationError(
                    f"{change} cannot be set in a run; allowed are hp_config and the settings of {agent.algo}"
                )
            if processes > 1:
                raise ConfigurationError(
                    f"{change}: with processes={processes} a callback has the members of the main process alone, so "
                    "the result would depend on the number of processes; allowed are schedules, an explorer of your "
                    "own, and processes=1"
                )
            agent.check()
            population.check_settings()
        except (AttributeError, TypeError, ValueError) as error:  # the first two for a value of another type
            for one, its in before:
                for attribute, value in its.items():
                    if getattr(one, attribute) is not value:
                        setattr(one, attribute, value)
            kind = f"{name}={now[name]!r:.100}; allowed is another {type(values[name]).__name__}"
            text = f"{error}" if isinstance(error, ConfigurationError) else kind
            raise ValueError(f"member {values['index']}: {text}") from error


def _values(agent: EvolvableAlgorithm) -> dict[str, Any]:
    """Return the attributes of an agent that are checked, those that a run keeps first."""
    names = (*WATCHED, *(ATTRIBUTES.get(name, name) for name in setting_names(agent.config)))
    return {name: getattr(agent, name) for name in names if hasattr(agent, name)}


def _differs(new: Any, old: Any) -> bool:
    return new is not old and (type(new) is not type(old) or bool(new != old))
