"""Twin delayed DDPG (Fujimoto et al. 2018), and DDPG (Lillicrap et al. 2016), which is TD3 without its changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch

from agilerl_like.algorithms.continuous_algorithm import ContinuousAlgorithm, ContinuousLearner, ContinuousLearnerGroup
from agilerl_like.algorithms.off_policy_config import DDPGConfig, TD3Config
from agilerl_like.errors import check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.continuous_update import TD3Update
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.replay_buffer import MemoryKind
from agilerl_like.networks.observation_norm import ObservationNormKind


class TD3Learner(ContinuousLearner):
    """A deterministic actor and its critics."""

    algo, is_deterministic = "TD3", True
    hyperparam_names = (*ContinuousLearner.hyperparam_names, "lr_actor", "target_noise", "noise_clip")


class TD3LearnerGroup(ContinuousLearnerGroup):
    """P learners of deterministic policies, which act with Gaussian noise."""

    learner_class, update_class = TD3Learner, TD3Update


class TD3(ContinuousAlgorithm):
    """A TD3 agent whose architecture and hyperparameters can evolve.

    `TD3Config` has the meaning, default and range of each setting. Settings may be set as attributes at any time and
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

    algo: ClassVar[str] = "TD3"
    config = TD3Config
    group_class = TD3LearnerGroup

    expl_noise: float
    target_noise: float
    noise_clip: float
    policy_delay: int

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        batch_size: int = TD3Config.batch_size,
        lr: float = TD3Config.lr,
        lr_actor: float | None = TD3Config.lr_actor,
        learn_step: int = TD3Config.learn_step,
        gradient_steps: int | None = TD3Config.gradient_steps,
        gamma: float = TD3Config.gamma,
        tau: float = TD3Config.tau,
        target_update_interval: int = TD3Config.target_update_interval,
        twin_q: bool = TD3Config.twin_q,
        expl_noise: float = TD3Config.expl_noise,
        target_noise: float = TD3Config.target_noise,
        noise_clip: float = TD3Config.noise_clip,
        policy_delay: int = TD3Config.policy_delay,
        n_step: int = TD3Config.n_step,
        memory_size: int = TD3Config.memory_size,
        memory: MemoryKind = TD3Config.memory,
        learning_starts: int = TD3Config.learning_starts,
        save_memory: bool = TD3Config.save_memory,
        max_grad_norm: float = TD3Config.max_grad_norm,
        normalize_observation: ObservationNormKind = TD3Config.normalize_observation,
        normalize_images: bool = TD3Config.normalize_images,
        swap_channels: bool | None = TD3Config.swap_channels,
        precision: Precision = TD3Config.precision,
        per_member: bool = TD3Config.per_member,
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
    def noise_size(self) -> float:
        return self.expl_noise

    @property
    def delay(self) -> int:
        return self.policy_delay


class DDPGLearner(TD3Learner):
    """A deterministic actor and its critic."""

    algo = "DDPG"


class DDPGLearnerGroup(ContinuousLearnerGroup):
    """P learners of deterministic policies, which act with Gaussian noise."""

    learner_class, update_class = DDPGLearner, TD3Update


class DDPG(TD3):
    """A DDPG agent: TD3 with one critic, no delay and no noise on next actions. The arguments are TD3's."""

    algo: ClassVar[str] = "DDPG"
    config = DDPGConfig
    group_class = DDPGLearnerGroup

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        batch_size: int = DDPGConfig.batch_size,
        lr: float = DDPGConfig.lr,
        lr_actor: float | None = DDPGConfig.lr_actor,
        learn_step: int = DDPGConfig.learn_step,
        gradient_steps: int | None = DDPGConfig.gradient_steps,
        gamma: float = DDPGConfig.gamma,
        tau: float = DDPGConfig.tau,
        target_update_interval: int = DDPGConfig.target_update_interval,
        twin_q: bool = DDPGConfig.twin_q,
        expl_noise: float = DDPGConfig.expl_noise,
        target_noise: float = DDPGConfig.target_noise,
        noise_clip: float = DDPGConfig.noise_clip,
        policy_delay: int = DDPGConfig.policy_delay,
        n_step: int = DDPGConfig.n_step,
        memory_size: int = DDPGConfig.memory_size,
        memory: MemoryKind = DDPGConfig.memory,
        learning_starts: int = DDPGConfig.learning_starts,
        save_memory: bool = DDPGConfig.save_memory,
        max_grad_norm: float = DDPGConfig.max_grad_norm,
        normalize_observation: ObservationNormKind = DDPGConfig.normalize_observation,
        normalize_images: bool = DDPGConfig.normalize_images,
        swap_channels: bool | None = DDPGConfig.swap_channels,
        precision: Precision = DDPGConfig.precision,
        per_member: bool = DDPGConfig.per_member,
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
