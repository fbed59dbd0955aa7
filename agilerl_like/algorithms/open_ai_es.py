"""The evolution strategy of Salimans et al. (2017), arXiv:1703.03864, as an agent that a user holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.evolution_config import OpenAIESConfig, Shaping
from agilerl_like.algorithms.evolution_strategy import (
    EvolutionStrategy,
    EvolutionStrategyGroup,
    EvolutionStrategyLearner,
)
from agilerl_like.errors import ConfigurationError, check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.episode_returns import EpisodeReturns
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import OptimizerName
from agilerl_like.learning.perturbations import METRICS, GradientUpdate, ReturnsUpdate, antithetic_pairs
from agilerl_like.networks.observation_norm import ObservationNormKind


class OpenAIESLearner(EvolutionStrategyLearner):
    """The policy of one agent, which moves along an estimated gradient of its return."""

    algo = "OpenAIES"

    @property
    def lr(self) -> float:
        """The present learning rate."""
        return self.host.lr * self.schedule_factor("lr")

    @property
    def sigma(self) -> float:
        return self.host.sigma

    def offsets(self, sigma: float, instances: int = 1) -> Tensor:
        pairs, size = self.algorithm.num_envs // 2, self.parameter_count
        return antithetic_pairs(self.perturbation_seed, pairs, size, instances).mul_(sigma)


class OpenAIESGroup(EvolutionStrategyGroup[OpenAIESLearner]):
    """P learners whose gradients are estimated at once."""

    learner_class, metrics = OpenAIESLearner, METRICS
    search_ranges: ClassVar = {"lr": {"min": 1e-3, "max": 0.2}}

    def make_update(
        self, learners: Sequence[OpenAIESLearner], data: ReturnsUpdate, sigmas: Sequence[float]
    ) -> GradientUpdate:
        first = learners[0].host

        def numbers(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=self.device)

        return GradientUpdate(
            data.returns,
            data.observations,
            data.counts,
            data.instances,
            seeds=[learner.perturbation_seed for learner in learners],
            sigma=numbers(sigmas),
            lr=numbers([learner.lr for learner in learners]),
            weight_decay=numbers([learner.host.weight_decay for learner in learners]),
            shaping=[learner.host.shaping for learner in learners],
            optimizer=first.optimizer_name,
            betas=[learner.host.betas for learner in learners],
        )

    def learn(self, places: Sequence[int], experience: EpisodeReturns) -> dict[int, TensorDict]:
        reports = super().learn(places, experience)
        for place, report in reports.items():
            if self[place].scheduled:
                report.set("lr", torch.tensor([self[place].lr]))  # as scheduled
        return reports


class OpenAIES(EvolutionStrategy[OpenAIESLearner]):
    """An evolution strategy whose architecture and hyperparameters can evolve.

    A member's `num_envs` envs are played by as many perturbed policies, in pairs whose perturbations are opposite. When
    each has finished `episodes` episodes, the ranks of their returns estimate the gradient of the expected return, and
    `optimizer` takes a step. If all returns are equal, weights and moments stay, unless `weight_decay` moves them.
    `OpenAIESConfig` has the meaning, default and range of each setting.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of finite bounds.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: as PPO's; there is no critic.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once, an even number; `num_agents` is rlib's name for it.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.
        wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "OpenAIES"
    config = OpenAIESConfig
    group_class = OpenAIESGroup

    weight_decay: float
    betas: tuple[float, float] | None
    shaping: Shaping

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        sigma: float = OpenAIESConfig.sigma,
        lr: float = OpenAIESConfig.lr,
        weight_decay: float = OpenAIESConfig.weight_decay,
        optimizer: OptimizerName = OpenAIESConfig.optimizer,
        betas: tuple[float, float] | None = OpenAIESConfig.betas,
        shaping: Shaping = OpenAIESConfig.shaping,
        episodes: int = OpenAIESConfig.episodes,
        learn_step: int | None = OpenAIESConfig.learn_step,
        normalize_observation: ObservationNormKind = OpenAIESConfig.normalize_observation,
        normalize_images: bool = OpenAIESConfig.normalize_images,
        swap_channels: bool | None = OpenAIESConfig.swap_channels,
        precision: Precision = OpenAIESConfig.precision,
        per_member: bool = OpenAIESConfig.per_member,
        schedules: Mapping[str, Schedule] = FrozenMapping(),
        num_envs: int = 100,
        num_agents: int | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        self._init_strategy(locals())

    def check(self) -> None:
        super().check()
        if self.num_envs % 2:
            raise ConfigurationError(
                f"num_envs={self.num_envs} is odd, but perturbations come in pairs; allowed are even numbers"
            )

    def check_instances(self, instances: int) -> None:
        if self.num_envs % (2 * instances):
            raise ConfigurationError(
                f"num_envs={self.num_envs} with {instances} instances is no multiple of {2 * instances}, but both "
                f"perturbations of a pair play the same instance; allowed are multiples of {2 * instances}"
            )
