"""Games of OpenSpiel by their names, through Shimmy's AEC env: the extra `openspiel`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from agilerl_like.errors import ConfigurationError, unknown_name

NAMESPACE = "openspiel/"
"""What ids begin with: openspiel/kuhn_poker."""


def make_openspiel_env(name: str, **parameters: Any) -> Any:
    """Return a game of OpenSpiel as an AEC env; `parameters` are the game's.

    Raises:
        ImportError: the extra is not installed.
        ConfigurationError: the game is unknown, does not take a parameter, or has observations without tensors.
    """
    compatibility, pyspiel = (import_module(module) for module in ("shimmy.openspiel_compatibility", "pyspiel"))
    if name not in (known := pyspiel.registered_names()):
        raise unknown_name("env", NAMESPACE + name, [NAMESPACE + one for one in known])
    try:
        return _env_class(compatibility.OpenSpielCompatibilityV0)(game_name=name, config=parameters or None)
    except (pyspiel.SpielError, NotImplementedError) as error:
        given = f" with {parameters}" if parameters else ""
        raise ConfigurationError(f"env={NAMESPACE + name!r}{given} cannot be made: {error}") from error


@cache
def _env_class(base: Any) -> type:
    """Return Shimmy's env class with two corrections.

    It pays the last reward again whenever an agent is removed, and counts moves of chance towards OpenSpiel's limit of
    a game's length, which counts those of players alone, so that short card games are truncated.
    """

    class OpenSpielEnv(base):
        def _execute_chance_node(self) -> None:
            length = self.game_length
            super()._execute_chance_node()
            self.game_length = length

        def _end_routine(self) -> bool:
            is_removed = super()._end_routine()
            if is_removed:
                self.rewards = dict.fromkeys(self.rewards, 0.0)
            return is_removed

    return OpenSpielEnv
