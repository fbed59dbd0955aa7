"""Deep Q-learning (Mnih et al. 2015) as an agent that a user holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import torch

from agilerl_like.algorithms.epsilon_greedy import EpsilonGreedyAgent, EpsilonGreedyGroup, check_value_head
from agilerl_like.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from agilerl_like.algorithms.off_policy_config import DQNConfig
from agilerl_like.algorithms.off_policy_learner import OffPolicyLearner, OffPolicyLearnerGroup, update_arguments
from agilerl_like.errors import check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.dqn_update import METRICS, DQNUpdate
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.replay_buffer import MemoryKind
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.observation_norm import ObservationNormKind
from agilerl_like.networks.target_networks import QNetwork


class DQNLearner(OffPolicyLearner):
    """The action values of one agent, trained by DQN."""

    algo = "DQN"

    def build(self, architecture: NetworkSpec) -> QNetwork:
        space: Any = self.action_space
        dueling, norm = getattr(self.algorithm, "dueling", False), self.algorithm.normalize_observation
        return QNetwork(architecture, self.encoding, space, dueling=dueling, normalize_observation=norm)


class DQNLearnerGroup(EpsilonGreedyGroup, OffPolicyLearnerGroup[DQNLearner]):
    """P learners whose members explore each with its own probability."""

    learner_class, metrics = DQNLearner, (*METRICS, "epsilon")
    placeholder_action = gymnasium.spaces.Discrete(2)

    def kind_of(self, learner: DQNLearner) -> tuple[Any, ...]:
        return learner.host.double, learner.host.dueling

    @classmethod
    def make_update(cls, learners: Sequence[DQNLearner], places: Sequence[int], replay: Any, steps: int) -> DQNUpdate:
        first = learners[0].host
        epsilon = torch.tensor([learner.host.epsilon for learner in learners], device=learners[0].device)
        arguments = update_arguments(learners, places, replay, steps)
        arguments["hyperparams"] |= {"epsilon": epsilon}
        return DQNUpdate(**arguments, double=first.double)


class DQN(EpsilonGreedyAgent, OffPolicyAlgorithm[DQNLearner]):
    """A DQN agent whose architecture and hyperparameters can evolve.

    The first arguments are AgileRL's; `DQNConfig` has the meaning, default and range of each setting. Settings may be
    set as attributes at any time and count from the next update on, except for those that networks are built from,
    which are an error.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: as PPO's; `head_config` has no output activation and no `output_layernorm`, because the outputs are
            values.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.
        cudagraphs, wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "DQN"
    config = DQNConfig
    allowed_actions = "Discrete"
    group_class = DQNLearnerGroup

    double: bool
    dueling: bool

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = DQNConfig.batch_size,
        lr: float = DQNConfig.lr,
        learn_step: int = DQNConfig.learn_step,
        gamma: float = DQNConfig.gamma,
        tau: float = DQNConfig.tau,
        mut: str | None = None,
        double: bool = DQNConfig.double,
        normalize_images: bool = DQNConfig.normalize_images,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        cudagraphs: bool = False,
        wrap: bool = True,
        *,
        dueling: bool = DQNConfig.dueling,
        n_step: int = DQNConfig.n_step,
        gradient_steps: int | None = DQNConfig.gradient_steps,
        target_update_interval: int = DQNConfig.target_update_interval,
        memory_size: int = DQNConfig.memory_size,
        memory: MemoryKind = DQNConfig.memory,
        learning_starts: int = DQNConfig.learning_starts,
        save_memory: bool = DQNConfig.save_memory,
        eps_start: float = DQNConfig.eps_start,
        eps_end: float = DQNConfig.eps_end,
        eps_share: float = DQNConfig.eps_share,
        max_grad_norm: float = DQNConfig.max_grad_norm,
        normalize_observation: ObservationNormKind = DQNConfig.normalize_observation,
        swap_channels: bool | None = DQNConfig.swap_channels,
        precision: Precision = DQNConfig.precision,
        per_member: bool = DQNConfig.per_member,
        schedules: Mapping[str, Schedule] = FrozenMapping(),
        num_envs: int = 1,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        self._init_off_policy(locals())

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        return isinstance(action_space, gymnasium.spaces.Discrete)

    def _initial_architecture(
        self, net_config: Mapping[str, Any] | None, encoding: Any, action_space: gymnasium.Space, settings: Any
    ) -> NetworkSpec:
        """Return the architecture of a `net_config`, whose head has the outputs of a value."""
        architecture = super()._initial_architecture(net_config, encoding, action_space, settings)
        check_value_head(self.algo, architecture)
        return architecture
