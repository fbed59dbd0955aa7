"""Checks the results of a parallel env for entries that training ignores.

Training reads the dicts by agent and ignores other keys. An agent that has ended does not act again in its episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agilerl_like.errors import unknown_name

_OF_RESET = ("observations",)
_OF_STEP = ("observations", "rewards", "terminations", "truncations")
_FLAGS = ("terminations", "truncations")


class KeyCheckedEnv:
    """A parallel env that calls `warn(problem, advice)` for unknown agents, missing flags and agents that return.

    Infos may have any keys. A dict is reported once for each advice. Results that are no dicts are passed on.
    """

    def __init__(self, env: Any, warn: Callable[[str, str], None]) -> None:
        self.env, self._warn = env, warn
        self._reported: set[tuple[str, str]] = set()
        self._ended: set[Any] = set()
        """Agents that have ended in this episode."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def __str__(self) -> str:
        return str(self.env)

    def reset(self, **options: Any) -> Any:
        """Start an episode."""
        result = self.env.reset(**options)
        self._ended.clear()
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
        self._check_ended([dicts.get(name, {}) for name in _FLAGS])
        return result

    def _check_ended(self, flags: Sequence[Mapping[str, Any]]) -> None:
        """Report an agent that ended in an earlier step, and is in `agents` with all flags False."""
        returned = [
            agent
            for agent in self.env.possible_agents
            if agent in self._ended
            and agent in self.env.agents
            and all(agent in by_agent and not by_agent[agent] for by_agent in flags)
        ]
        if returned:
            self._report(
                "agents",
                f"agents has {returned[0]!r}, which has ended in this episode; it does not act again before reset()",
                "leave it out of agents, and give an agent that returns another name in possible_agents",
            )
        self._ended.update(agent for by_agent in flags for agent, ended in by_agent.items() if ended)

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
