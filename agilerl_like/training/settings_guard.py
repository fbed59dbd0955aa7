"""Settings of members, and their ranges, that a callback changes: refused with several processes, else checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.learner_host import ATTRIBUTES
from agilerl_like.algorithms.settings import setting_names
from agilerl_like.errors import ConfigurationError


@contextlib.contextmanager
def settings_guard(agents: Sequence[EvolvableAlgorithm], processes: int) -> Iterator[None]:
    """Restore settings and ranges that were changed inside of the block and cannot stay, so that the run can be saved.

    Raises:
        ValueError: a setting was changed although there are several processes, or to a value that is not legal.
    """
    before = [(agent, dict(vars(agent))) for agent in agents]
    yield
    for agent, values in before:
        changed = [name for name in _attributes(agent) if _differs(agent, values, name)]
        if not changed:
            continue
        name = changed[0]
        change = f"member {agent.index}: {name}={getattr(agent, name)!r:.100} (before: {values.get(name)!r:.100})"
        try:
            if processes > 1:
                raise ValueError(
                    f"{change}: with processes={processes} a callback has the members of the main process alone, so "
                    "the result would depend on the number of processes; allowed are schedules, an explorer of your "
                    "own, and processes=1"
                )
            agent.check()
        except ValueError as error:
            for one, its in before:
                for attribute in _attributes(one):
                    if attribute in its:
                        vars(one)[attribute] = its[attribute]
            text = f"member {agent.index}: {error}" if isinstance(error, ConfigurationError) else str(error)
            raise ValueError(text) from error


def _attributes(agent: EvolvableAlgorithm) -> list[str]:
    """Return the names of the attributes that hold settings and their ranges."""
    return [*(ATTRIBUTES.get(setting, setting) for setting in setting_names(agent.config)), "hp_config"]


def _differs(agent: EvolvableAlgorithm, values: dict[str, Any], name: str) -> bool:
    new, old = vars(agent).get(name), values.get(name)
    return new is not old and (type(new) is not type(old) or bool(new != old))
