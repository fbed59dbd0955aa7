"""Episodes with trained agents: returns under any way of drawing actions, trajectories, films."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes

if TYPE_CHECKING:
    from agilerl_like.evaluation.film import record_film
    from agilerl_like.evaluation.games import play_games, rate_players
    from agilerl_like.evaluation.returns import evaluate
    from agilerl_like.evaluation.trajectories import export_trajectories

__all__ = ["evaluate", "export_trajectories", "play_games", "rate_players", "record_film"]

__getattr__, __dir__ = lazy_attributes(__name__, __all__, ("returns", "trajectories", "film", "games"))
