"""What AgileRL's agents have beside this package's: a whole number of steps, and names for parts of a loop by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.core.registry import make_default_hp_config
from agilerl_like.algorithms import evolvable_algorithm
from agilerl_like.algorithms.evolvable_algorithm import StepCounts
from agilerl_like.algorithms.learner_host import ATTRIBUTES
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig

__getattr__ = absent_from(__name__)


class Steps(int):
    """All env steps so far, as AgileRL counts since 2.8; indexed, the list that it was before."""

    _counts: StepCounts

    def __new__(cls, counts: StepCounts) -> Steps:
        """The last of some counts, which indexing reads and writes."""
        steps = super().__new__(cls, counts[-1])
        steps._counts = counts
        return steps

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle with counts of its own: a copy that shared them would count the agent's steps."""
        return type(self), (StepCounts(self._counts),)

    def __getitem__(self, place: int) -> int:
        return self._counts[place]

    def __setitem__(self, place: int, steps: int) -> None:
        self._counts[place] = steps

    def append(self, steps: int) -> None:
        """Begin another entry, as scripts of older releases do after each test."""
        self._counts.append(steps)


class EvolvableAlgorithm(evolvable_algorithm.EvolvableAlgorithm):
    """Mixin of the algorithms of `agilerl_like.agilerl`."""

    @property
    def steps(self) -> Any:
        """Env steps so far."""
        return Steps(self._steps)

    @steps.setter
    def steps(self, counts: Any) -> None:
        if isinstance(counts, Iterable):
            self._steps = StepCounts(counts)
        else:
            self._steps[-1] = int(counts)

    def add_scores(self, scores: Sequence[Any]) -> None:
        """Append the scores of completed episodes; of a row by agent the sum."""
        self.scores += [float(np.sum(score)) for score in scores]

    def init_training_step(self, capture_grama: bool = False) -> None:
        """Do nothing: there are no metrics to open, and no dormant units to find."""

    def finalize_training_step(self, num_steps: int) -> None:
        """Count the env steps of a block of training."""
        self.steps += num_steps

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Take over networks, normalisers and Adam's moments of a checkpoint; settings, ranges and history stay.

        Settings of networks and teams, such as `share_encoders` and `rewards`, are those of the checkpoint.

        Raises:
            CheckpointError: as `load_checkpoint`.
        """
        settings = {name: value for name, value in self.settings().items() if name not in self._fixed}
        kept = {**settings, **{name: getattr(self, name) for name in self.hyperparameters}}
        ranges, num_envs = self.hp_config, self.num_envs
        history = list(self.fitness), list(self.scores), StepCounts(self._steps), self.mut
        self.load_checkpoint(path)
        self.fitness, self.scores, self._steps, self.mut = history
        self.hp_config, self.num_envs = ranges, num_envs
        for name, value in kept.items():
            setattr(self, ATTRIBUTES.get(name, name), value)
        self._fixed |= {name: value for name, value in kept.items() if name in self._fixed}

    def wrap_models(self) -> None:
        """Do nothing: models are distributed by train_on_policy."""

    def unwrap_models(self) -> None:
        """Do nothing."""


def settings_from(arguments: Mapping[str, Any], *, without: Collection[str]) -> dict[str, Any]:
    """Return the keywords among a constructor's `locals()`, those of its `**more` included, without some of them.

    Raises:
        ConfigurationError: a preset is given, which AgileRL's defaults would override.
    """
    for name in {"preset", "like"} & arguments["more"].keys():
        raise ConfigurationError(
            f"{name}={arguments['more'][name]!r}: this class has AgileRL's defaults; presets are for agilerl_like.PPO "
            "and IPPO"
        )
    left_out = {"self", "__class__", "more", *without}
    return {name: value for name, value in arguments.items() if name not in left_out} | arguments["more"]


def default_ranges(
    hp_config: HyperparameterConfig | None, lr: float, batch_size: int, learn_step: int
) -> HyperparameterConfig:
    """The ranges that were given, or AgileRL's default ones: learning rate, minibatch and rollout."""
    if hp_config is not None:
        return hp_config
    return make_default_hp_config(lr=float(lr), batch_size=batch_size, learn_step=learn_step)


def fitting_batch(batch_size: int, learn_step: int, rows: int) -> int:
    """A minibatch no larger than a rollout of whole steps of so many rows, as AgileRL learns from a smaller one."""
    return min(batch_size, -(-learn_step // rows) * rows)


def wrapped(agents: Sequence[Any], wrapper_cls: Callable[..., Any] | None, wrapper_kwargs: Any) -> list[Any]:
    """A list of agents, each in a wrapper if there is one."""
    return [agent if wrapper_cls is None else wrapper_cls(agent, **(wrapper_kwargs or {})) for agent in agents]
