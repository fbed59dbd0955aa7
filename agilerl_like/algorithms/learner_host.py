"""The attributes of an algorithm that its learners read: settings, device, seed and progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch

from agilerl_like.algorithms.settings import setting_names
from agilerl_like.envs.critic_observation import POLICY
from agilerl_like.errors import FOREIGN_SETTINGS, renamed_error
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule, with_function, with_functions
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import OptimizerName
from agilerl_like.learning.ppo_loss import PPOLoss
from agilerl_like.learning.rewards import with_reward_function
from agilerl_like.networks.distributions import LOG_STD_RANGE
from agilerl_like.networks.observation_norm import OBSERVATION_CLIP, OBSERVATION_EPS, ObservationNormKind

ATTRIBUTES: Mapping[str, str] = {"optimizer": "optimizer_name"}
"""Settings that are stored in an attribute of another name."""


class SettingFunctions(NamedTuple):
    """The settings of an algorithm that may be functions; files and other processes get their names only."""

    schedules: Mapping[str, Schedule]
    lr_schedule: Schedule | None
    reward_transform: Any

    @classmethod
    def of(cls, *algorithms: LearnerHost) -> SettingFunctions:
        """Return the functions among the settings of agents, each of the first agent that has one."""
        schedules: dict[str, Schedule] = {}
        for algorithm in reversed(algorithms):
            schedules |= {name: its for name, its in algorithm.schedules.items() if callable(its)}
        lr_schedule = next((its.lr_schedule for its in algorithms if callable(its.lr_schedule)), None)
        transform = next((its.reward_transform for its in algorithms if callable(its.reward_transform)), None)
        return cls(schedules, lr_schedule, transform)

    def set_in(self, algorithm: LearnerHost) -> None:
        """Set the functions of an agent that was loaded with their names."""
        algorithm.schedules = with_functions(algorithm.schedules, self.schedules)
        algorithm.lr_schedule = with_function(algorithm.lr_schedule, self.lr_schedule)
        algorithm.reward_transform = with_reward_function(algorithm.reward_transform, self.reward_transform)


class LearnerHost:
    """The attributes that learners read; the defaults are for algorithms without such a setting."""

    config: ClassVar[type[Any]]
    """The dataclass of the settings; a value that is set as an attribute counts from the next update."""
    loss: PPOLoss
    """The loss of PPO and IPPO; other algorithms have none."""
    learners: dict[str, Any]
    """The learner of each group of agents that share a policy, by the group's name."""
    index: int
    seed: int
    device: torch.device
    training: bool
    progress: float
    num_envs: int
    hp_config: HyperparameterConfig

    lr: float
    learn_step: int
    batch_size: int = 1
    share_encoders: bool = False
    critic_observation: str | tuple[str, ...] = POLICY
    normalize_observation: ObservationNormKind = False
    observation_clip: float = OBSERVATION_CLIP
    observation_eps: float = OBSERVATION_EPS
    normalize_value: bool = False
    normalize_images: bool = True
    swap_channels: bool | None = None
    recurrent: bool = False
    max_seq_len: int | None = None
    action_std_init: float = 0.0
    action_std_min: float = LOG_STD_RANGE[0]
    action_std_max: float = LOG_STD_RANGE[1]
    action_noise_correlation: float = 0.0
    squash_output: bool = False
    compile: bool = False
    precision: Precision = "float32"
    per_member: bool = False
    schedules: Mapping[str, Schedule] = FrozenMapping()
    lr_schedule: Schedule | None = None
    run_schedules: Mapping[str, Schedule] = FrozenMapping()
    """Schedules that the run gives to hyperparameters without one of the member's own; no setting, so not saved."""
    num_steps: int | None = None
    num_minibatches: int | None = None
    random_steps: int = 0
    learning_starts: int = 0
    normalize_reward: bool = False
    reward_clip: float | None = None
    reward_transform: Any = None
    state_dependent_std: bool = False
    optimizer_name: OptimizerName = "adam"
    """The setting `optimizer`, since the attribute `optimizer` has the moments."""

    @property
    def active_schedules(self) -> Mapping[str, Schedule]:
        """The factors that the next update has: the member's own schedules, and those of the run for all others.

        A schedule of the run has no effect on an algorithm without such a setting, or without schedules.
        """
        own = {*self.schedules, *([] if self.lr_schedule is None else ["lr"])}
        names = setting_names(self.config)
        takes = {name for name in names if "schedules" in names or f"{name}_schedule" in names} - own
        return {**self.schedules, **{name: its for name, its in self.run_schedules.items() if name in takes}}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, also one that the class does not have, but none by another system's name of a setting.

        Raises:
            AttributeError: the setting has another name here, and setting this one would have no effect.
        """
        foreign = FOREIGN_SETTINGS.get(name)
        if foreign is not None and foreign.setting == f"algorithm.{foreign.name}" and not hasattr(self, name):
            settings = setting_names(self.config)
            if foreign.name in settings and name not in settings:
                raise AttributeError(str(renamed_error("attribute", name, foreign.name, foreign)))
        super().__setattr__(name, value)

    def settings(self) -> dict[str, Any]:
        """Return the current settings by the constructor's names."""
        return {name: getattr(self, ATTRIBUTES.get(name, name)) for name in setting_names(self.config)}

    def check(self) -> None:
        """Raise ConfigurationError unless the current settings are legal together."""

    def check_settings(self) -> None:
        """Raise ConfigurationError unless the settings are legal in a hand-written loop, whatever its rollouts are."""

    def leave_run(self) -> None:
        """Remove what a run sets before each update.

        A learning rate that has fallen would slow down further training, which would also seem to be at its end.
        """
        self.run_schedules = FrozenMapping()
        for learner in self.learners.values():
            learner.max_steps = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy.deepcopy` and `pickle`, without the schedules of a run, which trains no copy."""
        return {name: value for name, value in vars(self).items() if name != "run_schedules"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Attach the learners that `copy.deepcopy` and `pickle` made."""
        vars(self).update(state)
        for learner in self.learners.values():
            learner.set_algorithm(self)
