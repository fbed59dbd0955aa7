"""The keywords that `train_on_policy`, `train_off_policy` and `train_multi_agent_on_policy` share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, cast

import gymnasium

from agilerl_like.errors import check_argument_names
from agilerl_like.hpo import Explorer, Selection
from agilerl_like.reporting.callback import Callback, Reporter
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.training_arguments import LogEvery, Opponents

F = TypeVar("F", bound=Callable[..., Any])


class SharedOptions(TypedDict, total=False):
    """Keywords of every training function; `train_on_policy` has their meanings and defaults."""

    init_hp: Mapping[str, Any] | None
    mut_p: Mapping[str, Any] | None
    swap_channels: bool
    max_steps: int
    evo_steps: int
    eval_steps: int | None
    eval_loop: int
    eval_share: float
    history: int
    target: float | None
    fitness: str
    max_updates: int | None
    max_seconds: float | None
    selection_strategy: Selection | None
    tournament: Selection | None
    mutation: Explorer | None
    evolution: Literal["auto"] | None
    checkpoint: int | None
    checkpoint_path: str | os.PathLike[str] | None
    overwrite_checkpoints: bool
    save_elite: bool
    elite_path: str | os.PathLike[str] | None
    wb: bool
    tensorboard: bool
    tensorboard_log_dir: str | os.PathLike[str] | None
    verbose: bool
    accelerator: Any
    wandb_kwargs: Mapping[str, Any] | None
    run_dir: str | os.PathLike[str] | None
    resume: str | os.PathLike[str] | None
    overwrite: bool
    processes: int | Literal["auto"]
    reporters: Iterable[Reporter]
    callbacks: Iterable[Callback]
    log_every: LogEvery
    trackers: Iterable[str | Mapping[str, Any]]
    INIT_HP: Mapping[str, Any] | None
    MUT_P: Mapping[str, Any] | None
    wandb_api_key: str | None


class TrainOptions(SharedOptions, total=False):
    """All keywords of `train_on_policy`."""

    opponents: Opponents
    eval_env: gymnasium.vector.VectorEnv | EnvSetup | None


def with_options_of(train: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator of a function with `**options`: its `inspect.signature` has the keywords of `train` instead.

    `help()`, notebooks and the API reference read that signature, and an argument that is not in it is an error that
    suggests names of it; editors read the annotation of `**options`.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            one
            for name, one in inspect.signature(train).parameters.items()
            if one.kind is inspect.Parameter.KEYWORD_ONLY and name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shared])  # pyright: ignore[reportFunctionMemberAccess]
        return cast(F, check_argument_names(function))

    return decorate
