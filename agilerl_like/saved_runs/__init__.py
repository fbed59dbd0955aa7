"""Finished and running runs, by their folders: opening, listing and replaying them."""

from agilerl_like.saved_runs.differences import configs_of, differing_settings, methods_of, runs_of_equal_seeds
from agilerl_like.saved_runs.hub import from_hub, push_to_hub
from agilerl_like.saved_runs.marl_eval import marl_eval_results
from agilerl_like.saved_runs.replay import Replay, replay_run, train_initial_members
from agilerl_like.saved_runs.run import HistoryEntry, Run, find_runs, load_history

__all__ = [
    "HistoryEntry",
    "Replay",
    "Run",
    "configs_of",
    "differing_settings",
    "find_runs",
    "from_hub",
    "load_history",
    "marl_eval_results",
    "methods_of",
    "push_to_hub",
    "replay_run",
    "runs_of_equal_seeds",
    "train_initial_members",
]
