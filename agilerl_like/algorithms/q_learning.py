"""Tabular Q-learning (Watkins 1989) as an agent that a user holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.architectures import encoder_of
from agilerl_like.algorithms.epsilon_greedy import EpsilonGreedyAgent, EpsilonGreedyGroup
from agilerl_like.algorithms.learner import SAMPLE_STATES, Learner
from agilerl_like.algorithms.learner_base import WEIGHT_BYTES
from agilerl_like.algorithms.learner_host import LearnerHost
from agilerl_like.algorithms.off_policy_algorithm import batch_of, best_values, learn_or_restore
from agilerl_like.algorithms.off_policy_learner import REPORT_EVERY
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.settings import LARGEST, STRICT, ScheduleOfLR, Share
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError, check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.q_learning_update import METRICS, QLearningUpdate
from agilerl_like.learning.replay_buffer import Batch, ReplayBuffer
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.table import TableNetwork, TableNetworkSpec, category_counts
from agilerl_like.resources import check_memory


@dataclass(frozen=True, config=STRICT)
class QLearningConfig:
    """Q-learning's settings; a member's live attributes have the same names."""

    lr: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the error by which a value changes at its first update (value)."""
    visit_decay: Share = 0.0
    """The learning rate of a value that was updated n times is lr / (n + 1) ** visit_decay; 0: constant, 1: the values
    are means over all updates (value)."""
    gamma: Share = 0.99
    """Discount of the next step's reward (value)."""
    eps_start: Share = 1.0
    """Probability of a random action at the start of a run (value)."""
    eps_end: Share = 0.05
    """Probability of a random action after `eps_share` of a run (value)."""
    eps_share: Share = 0.5
    """Share of the run's env steps over which the probability falls in a straight line (value)."""
    initial_value: Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)] = 0.0
    """All values of a new table; one above the largest return makes members try every action."""
    schedules: ScheduleOfLR = FrozenMapping()
    """A factor on lr that depends on the run's progress: {lr: linear}, cosine, or points [[progress, factor], ...]
    joined by lines; in Python any function of progress, too."""

    one_hot = False  # a category of an observation is a number, not a code


class QLearningLearner(Learner):
    """The table of one agent."""

    algo = "QLearning"
    network: TableNetwork  # pyright: ignore[reportIncompatibleVariableOverride]  # only `build` makes one
    architecture: TableNetworkSpec

    def build(self, architecture: NetworkSpec) -> TableNetwork:
        space: Any = self.action_space
        return TableNetwork(self.architecture, space, initial_value=self.host.initial_value)

    @property
    def rollout_length(self) -> int:
        """Env steps between updates: one of each env."""
        return self.algorithm.num_envs

    def planned_weights(self) -> int:
        return self.architecture.table.states * self.architecture.table.actions

    @property
    def footprint(self) -> int:
        return WEIGHT_BYTES * self.parameter_count  # values, counts, and an optimizer's moments, which are not used

    @property
    def learning_rate(self) -> float:
        """The learning rate at the run's present progress."""
        return self.host.lr * self.schedule_factor("lr")

    @classmethod
    def from_document(  # pyright: ignore[reportIncompatibleMethodOverride]  # its architecture is a table's
        cls,
        algorithm: LearnerHost,
        observation_space: gymnasium.Space,
        action_space: Any,
        document: Mapping[str, Any],
        networks: CustomSpec | None = None,
    ) -> QLearningLearner:
        encoding: Any = encoder_of(observation_space, algorithm.config)
        architecture = TableNetworkSpec.of(category_counts(encoding), int(action_space.n))
        return cls(algorithm, encoding, action_space, architecture.read(document["architecture"]))

    def read_architecture(self, config: Mapping[str, Any]) -> TableNetworkSpec:
        return self.architecture.read(config)

    def _sample_states(self, stream: torch.Generator) -> Tensor:
        """Return states that were updated, on which a mutation is measured; random ones before the first update."""
        visited = self.network.table.visits.sum(-1).nonzero().squeeze(-1).cpu()
        if not len(visited):
            return self.rollout_encoding.random_rows(SAMPLE_STATES, stream).to(self.device)
        chosen = visited[torch.randperm(len(visited), generator=stream)[:SAMPLE_STATES]]
        return torch.stack(torch.unravel_index(chosen, self.architecture.table.counts), -1).float().to(self.device)


class QLearningLearnerGroup(EpsilonGreedyGroup):
    """P learners that learn from each step of their envs, and store nothing else."""

    learner_class, metrics = QLearningLearner, (*METRICS, "epsilon")
    placeholder_action = gymnasium.spaces.Discrete(2)
    placeholder_observation = gymnasium.spaces.Discrete(2)
    has_networks = False
    search_ranges: ClassVar = {"lr": {"min": 0.05, "max": 1.0}}

    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> ReplayBuffer:
        first = self[0]
        return ReplayBuffer(  # of a single step
            envs,
            len(self),
            envs,
            encoding=first.encoding,
            action_size=first.distribution.size,
            action_dtype=first.distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=self.device,
            arrays=env.array_backend,
            describe_row=describe_row,
        )

    def learn(self, places: Sequence[int], experience: ReplayBuffer) -> dict[int, TensorDict]:
        """Update some members by the newest step of their envs, env by env.

        A member is reported every `REPORT_EVERY` updates, because reading metrics takes as long as an update, and after
        each one if `detailed`.
        """
        learners = [self[place] for place in places]
        gamma = torch.tensor([learner.host.gamma for learner in learners], device=self.device)
        update = self.make_update(learners, experience.newest(torch.tensor(places, device=self.device), gamma))
        metrics = self.cohort.learn(places, update)
        reports: dict[int, TensorDict] = {}
        for i, (place, learner) in enumerate(zip(places, learners, strict=True)):
            learner.updates += 1
            learner.learned_with_masks |= experience.masks is not None
            if self.detailed or learner.updates % REPORT_EVERY == 0:
                reports[place] = metrics[i : i + 1].cpu()
        for name in {name for learner in learners for name in learner.scheduled}:
            for place, report in reports.items():
                report.set(name, torch.tensor([self[place].learning_rate]))  # as scheduled
        return reports

    @staticmethod
    def make_update(learners: Sequence[QLearningLearner], batch: Batch) -> QLearningUpdate:
        """Return the update of some learners by a batch of each."""
        numbers = [(learner.learning_rate, learner.host.visit_decay, learner.host.epsilon) for learner in learners]
        return QLearningUpdate(batch, *torch.tensor(numbers, device=learners[0].device).unbind(1))


class QLearning(EpsilonGreedyAgent, PopulationConstructor, RLAlgorithm[QLearningLearner]):
    """A Q-learning agent whose hyperparameters can evolve; its table has a value for each state and action.

    It learns from every step of its envs: from the transition of the first env, then from that of the second, and so
    on. The value of an episode's last state counts if the episode was truncated, and not if it terminated. Settings may
    be set as attributes at any time and count from the next update on, except for `initial_value`, which new tables
    have.

    Args:
        observation_space: Discrete, MultiDiscrete, and Dict and Tuple of these.
        action_space: Discrete.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: None, as there are no networks.
        num_envs: envs that this agent acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.

    `QLearningConfig` has the meaning, default and range of each setting.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, a space not supported, or the table does not fit
            into memory.
    """

    algo: ClassVar[str] = "QLearning"
    config = QLearningConfig
    group_class = QLearningLearnerGroup
    allowed_actions = "Discrete"

    visit_decay: float
    gamma: float
    initial_value: float

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        lr: float = QLearningConfig.lr,
        gamma: float = QLearningConfig.gamma,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        visit_decay: float = QLearningConfig.visit_decay,
        eps_start: float = QLearningConfig.eps_start,
        eps_end: float = QLearningConfig.eps_end,
        eps_share: float = QLearningConfig.eps_share,
        initial_value: float = QLearningConfig.initial_value,
        schedules: Mapping[str, Schedule] = FrozenMapping(),
        num_envs: int = 1,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        self._init_given(locals(), net_config)

    def _initial_architecture(
        self, net_config: Mapping[str, Any] | None, encoding: Any, action_space: Any, settings: QLearningConfig
    ) -> TableNetworkSpec:
        if net_config:
            raise ConfigurationError(f"net_config={dict(net_config)!r:.200}: QLearning has a table; allowed is None")
        return TableNetworkSpec.of(category_counts(encoding), int(action_space.n))

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        return isinstance(action_space, gymnasium.spaces.Discrete)

    @property
    def table(self) -> np.ndarray:
        """A copy of the values, `[states, actions]`; of several categories the last one varies fastest."""
        return self.learner.network.table.weight.detach().cpu().numpy().copy()

    def _check_memory(self) -> None:
        """Raise ConfigurationError unless the table fits in memory, without allocating anything."""
        table = self.learner.architecture.table
        what = f"observation_space={self.observation_space!s:.200}: a table of {table.states} x {table.actions} values"
        check_memory(what, table.states, table.actions * WEIGHT_BYTES, "states")

    def value(self, obs: Any, action_masks: np.ndarray | None = None) -> np.ndarray:
        """Return the value `[B]` of the best known action for observations `[B, *shape]`.

        `action_masks` `[B, choices]`: only actions that they allow count.
        """
        return best_values(self.learner, obs, action_masks)

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Return `(action, state)` for a batch or a single observation, as SB3 does: the best action."""
        return self.learner.predict(obs, state, episode_start, deterministic=True, action_masks=action_masks)

    def learn(self, experiences: Mapping[str, Any]) -> float:
        """Learn from transitions of a hand-written loop, in their order, and return the mean magnitude of the errors.

        `experiences` has `obs`, `action`, `reward`, `next_obs` and `done`, a row for each transition; `done` is 1 where
        the episode terminated, not at a time limit. `next_action_mask` `[B, choices]` may be given.
        `TransitionBuffer.newest` returns those of a step.

        Raises:
            ConfigurationError: a key or rows are missing, a number is not finite or not allowed, or a setting that was
                set as an attribute is not legal.
            PopulationDivergedError: a value is not finite any more; the table was restored.
        """
        self.check()
        learner = self.learner
        batch = batch_of(learner, experiences, self.gamma)
        learner.learned_with_masks |= batch.next_masks is not None
        update = QLearningLearnerGroup.make_update([learner], batch)
        return float(learn_or_restore(learner, update)["td_error"][0])
