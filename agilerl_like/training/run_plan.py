"""The plan of a run: its arguments, selection and exploration, which all of its processes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from agilerl_like.errors import unknown_name
from agilerl_like.hpo import Explorer, Mutations, Selection
from agilerl_like.training.training_arguments import LogEvery, TrainingArguments

NO_MUTATION = Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0)
"""Offspring are clones."""


@dataclass(frozen=True)
class RunPlan:
    """Everything about a run that is the same on all processes, except its envs and members.

    Raises:
        ConfigurationError: `log_every` is unknown.
    """

    training_args: TrainingArguments
    selection: Selection | None
    explorer: Explorer
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings to record with the run."""
    resume: str = ""
    """The command that resumes the run."""
    restart: str = ""
    """What continues a run that ended before its first checkpoint, which `resume` cannot; empty if it can."""
    layout: str = ""
    """Processes and threads, and why `processes="auto"` chose them."""
    log_every: LogEvery = "generation"
    """Whether the records of a generation include its updates."""
    schedule_steps: int | None = None
    """Env steps of each member over which schedules go from beginning to end; None: `max_steps`. A replay, which may be
    shorter than its run, has more, so that its schedules are those of the run and end where the run's were."""
    searches: bool = True
    """Whether evolution draws hyperparameters from their ranges; a replay repeats what a search has drawn."""

    def __post_init__(self) -> None:
        if self.log_every not in get_args(LogEvery):
            raise unknown_name("log_every", self.log_every, get_args(LogEvery))
