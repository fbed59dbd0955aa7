"""Soft actor-critic (Haarnoja et al. 2018) with an automatic temperature, as an agent that a user holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch

from agilerl_like.algorithms.continuous_algorithm import ContinuousAlgorithm, ContinuousLearner, ContinuousLearnerGroup
from agilerl_like.algorithms.off_policy_config import SACConfig
from agilerl_like.errors import check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.continuous_update import METRICS, SACUpdate
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.replay_buffer import MemoryKind
from agilerl_like.networks.exploration import SquashedGaussian
from agilerl_like.networks.observation_norm import ObservationNormKind


class SACLearner(ContinuousLearner):
    """A stochastic actor, its temperature, and its critics."""

    algo = "SAC"
    is_stochastic = True
    hyperparam_names = (*ContinuousLearner.hyperparam_names, "lr_actor", "target_entropy_scale")


class SACLearnerGroup(ContinuousLearnerGroup):
    """P learners of stochastic policies."""

    learner_class, update_class = SACLearner, SACUpdate
    metrics = (*METRICS, "alpha")


class SAC(ContinuousAlgorithm):
    """A SAC agent whose architecture and hyperparameters can evolve.

    `SACConfig` has the meaning, default and range of each setting. Settings may be set as attributes at any time and
    count from the next update on, except for those that networks are built from, which are an error.

    Args:
        observation_space: vectors and categories, and Dict and Tuple of these.
        action_space: a Box of finite bounds.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: as PPO's; actor and critics have the same architecture.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.
        wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "SAC"
    config = SACConfig
    group_class = SACLearnerGroup

    target_entropy_scale: float

    @classmethod
    def _action_dim(cls, action_space: Any) -> int:
        return SquashedGaussian(action_space).num_outputs

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        batch_size: int = SACConfig.batch_size,
        lr: float = SACConfig.lr,
        lr_actor: float | None = SACConfig.lr_actor,
        learn_step: int = SACConfig.learn_step,
        gradient_steps: int | None = SACConfig.gradient_steps,
        gamma: float = SACConfig.gamma,
        tau: float = SACConfig.tau,
        target_update_interval: int = SACConfig.target_update_interval,
        twin_q: bool = SACConfig.twin_q,
        target_entropy_scale: float = SACConfig.target_entropy_scale,
        n_step: int = SACConfig.n_step,
        memory_size: int = SACConfig.memory_size,
        memory: MemoryKind = SACConfig.memory,
        learning_starts: int = SACConfig.learning_starts,
        save_memory: bool = SACConfig.save_memory,
        max_grad_norm: float = SACConfig.max_grad_norm,
        normalize_observation: ObservationNormKind = SACConfig.normalize_observation,
        normalize_images: bool = SACConfig.normalize_images,
        swap_channels: bool | None = SACConfig.swap_channels,
        precision: Precision = SACConfig.precision,
        per_member: bool = SACConfig.per_member,
        schedules: Mapping[str, Schedule] = FrozenMapping(),
        num_envs: int = 1,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        self._init_off_policy(locals())

    @property
    def alpha(self) -> float:
        """The temperature, the weight of the entropy, which is learned; runs report it as `train/alpha`."""
        return float(self.learner.network.log_alpha.detach().exp())
