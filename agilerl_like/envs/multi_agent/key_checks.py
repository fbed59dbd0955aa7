"""Checks the keys of the dicts that a parallel env returns, which training reads by agent: other keys are ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agilerl_like.errors import unknown_name

_OF_RESET = ("observations",)
_OF_STEP = ("observations", "rewards", "terminations", "truncations")
_FLAGS = ("terminations", "truncations")


class KeyCheckedEnv:
    """A parallel env that calls `warn(problem, advice)` for unknown agents and missing flags; infos may have any keys.

    A dict is reported once for each advice. Results that are no dicts are passed on.
    """

    def __init__(self, env: Any, warn: Callable[[str, str], None]) -> None:
        self.env, self._warn = env, warn
        self._reported: set[tuple[str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def __str__(self) -> str:
        return str(self.env)

    def reset(self, **options: Any) -> Any:
        """Start an episode."""
        result = self.env.reset(**options)
        self._check_names("reset()", _by_name(_OF_RESET, result))
        return result

    def step(self, actions: dict[str, Any]) -> Any:
        """Take the agents' actions."""
        acted = [*actions]
        result = self.env.step(actions)
        dicts = _by_name(_OF_STEP, result)
        self._check_names("step()", dicts)
        for name in _FLAGS:
            missing = [agent for agent in acted if agent not in dicts.get(name, acted)]
            if missing:
                self._report(
                    name,
                    f"step() returned {name} without agent {missing[0]!r}, which acted",
                    "return False for an agent that has not ended",
                )
        return result

    def _check_names(self, call: str, dicts: Mapping[str, Mapping[str, Any]]) -> None:
        for name, by_agent in dicts.items():
            for agent in by_agent:
                if agent not in self.env.possible_agents:
                    hint = str(unknown_name(name, str(agent), self.env.possible_agents)).partition("; ")[2]
                    self._report(name, f"{call} returned {name} with {agent!r}, which is ignored", hint)

    def _report(self, name: str, problem: str, advice: str) -> None:
        if (name, advice) not in self._reported:
            self._reported.add((name, advice))
            self._warn(problem, advice)


def _by_name(names: tuple[str, ...], result: Any) -> dict[str, Mapping[str, Any]]:
    """Return the dicts of a result by their names."""
    parts = zip(names, result, strict=False) if isinstance(result, tuple) else ()
    return {name: part for name, part in parts if isinstance(part, Mapping)}
