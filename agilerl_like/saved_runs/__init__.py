"""Finished and running runs, by their folders: opening, listing and replaying them."""

from agilerl_like.saved_runs.replay import Replay, replay_run, train_initial_members
from agilerl_like.saved_runs.run import Run, find_runs

__all__ = ["Replay", "Run", "find_runs", "replay_run", "train_initial_members"]
