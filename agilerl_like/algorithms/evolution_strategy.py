"""What OpenAIES and CMAES have in common: every env of a member is played by a perturbed policy of its own.

A member learns when each of its policies has finished its episodes. It learns from the returns, the statistics of its
observations and, for mutations, the last ones. Processes that share the envs of one member exchange only these, because
each draws the same perturbations from the seed. Where a process has whole members, nothing travels between updates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_base import RECENT, WEIGHT_BYTES
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.random_actions import is_bounded
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.episode_returns import EpisodeReturns
from agilerl_like.learning.perturbations import PerturbedNetworks, ReturnsUpdate
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.observation_norm import ObservationNormKind
from agilerl_like.networks.policy_network import PolicyNetwork
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, integer

CHECK_EVERY = 8
"""Steps of a member's envs between two looks at whether all of its policies have finished."""
ENCODER_KEYS = ("encoder", "encoder_config", "simba")
"""Keys of a `net_config` that name the encoder."""

LearnerT = TypeVar("LearnerT", bound="EvolutionStrategyLearner")


class EvolutionStrategyLearner(Learner):
    """The policy of one agent, and the perturbations that it is tried with."""

    is_deterministic = True

    def build(self, architecture: NetworkSpec) -> PolicyNetwork:
        normalize = self.algorithm.normalize_observation
        return PolicyNetwork(architecture, self.encoding, self.action_space, normalize_observation=normalize)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "learn_step": self.host.learn_step}

    @property
    def footprint(self) -> int:
        return (WEIGHT_BYTES + 2 * 4 * self.algorithm.num_envs) * self.parameter_count

    @property
    def rollout_length(self) -> int:
        """Env steps until the members may learn: updates wait for the ends of episodes, not for a number of steps."""
        return self.algorithm.num_envs

    @property
    def longest_wait(self) -> int:
        """Steps of its envs after which the member learns at the latest."""
        host = self.host
        return 2**62 if host.learn_step is None else max(1, host.learn_step // host.num_envs)

    def check_run(self, max_steps: int, longest_episode: int | None, processes: int) -> None:
        steps, envs = min(CHECK_EVERY, self.longest_wait), self.algorithm.num_envs
        if max_steps < steps * envs:
            raise ConfigurationError(
                f"max_steps={max_steps} is less than {steps * envs}, the {steps} steps of num_envs={envs} after which "
                f"{self.algo} first looks for finished episodes; no member would learn"
            )

    @property
    def perturbation_seed(self) -> int:
        """The seed of the perturbations until the next update."""
        return integer(self.seed, Purpose.PERTURBATIONS, self.index, self.draws, self.updates)

    @property
    @abstractmethod
    def sigma(self) -> float:
        """The standard deviation of the next perturbations."""

    @property
    def trial_key(self) -> tuple[int, ...]:
        """What the present policies follow from, beside sigma: the stream of perturbations, and the mutations."""
        return self.index, self.draws, self.updates, self.variations

    @abstractmethod
    def offsets(self, sigma: float, instances: int = 1) -> Tensor:
        """Return what is added to the weights in each env of the member, `[envs, N]` on the host.

        Env r plays instance r % `instances`.
        """


class _Trial(NamedTuple):
    """What the current policies of a member depend on.

    Another key begins another trial. A copy of the learner that differs in hyperparameters continues it, and so do its
    episodes; another sigma counts from the next trial on.
    """

    key: tuple[int, ...]
    sigma: float


class EvolutionStrategyGroup(LearnerGroup[LearnerT]):
    """P learners that act with a policy in each env, and learn from the returns of whole episodes."""

    placeholder_action = gymnasium.spaces.Discrete(2)
    takes_critic_config = False
    shares_envs = True

    def __init__(self, population: Any, group: str) -> None:
        super().__init__(population, group)
        self._trials: list[_Trial | None] = []
        self._perturbed: list[PerturbedNetworks] = []
        self._owner: Any = None  # the cohort whose networks they are copies of
        self._returns: EpisodeReturns | None = None
        self._instances = 1  # env r of a member plays instance r % this number

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trials": [], "_perturbed": [], "_owner": None, "_returns": None}

    @property
    def returns(self) -> EpisodeReturns:
        """The buffer of a run."""
        if self._returns is None:
            raise RuntimeError("make_buffer comes first")
        return self._returns

    # -- acting

    @property
    def columns(self) -> slice:
        """The envs of each member on this process."""
        return self.gradient_sync.env_slice(self[0].algorithm.num_envs)

    def next_noise(self, envs: int) -> Tensor:
        """Return nothing for each env: policies are perturbed, and not their actions."""
        return torch.zeros(len(self), envs, 0, device=self.device)

    def act(
        self, observations: Tensor, state: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Act as `LearnerGroup.act`: with `noise`, as in training, by the perturbed policies."""
        if noise is None:
            return super().act(observations, state, mask)
        self._begin_trials(observations.shape[1])
        if not self.is_per_member:
            return self._perturbed[0].act(observations, mask), state
        rows = (slice(place, place + 1) for place in range(len(self)))
        actions = [
            its.act(observations[row].clone(), None if mask is None else mask[row].clone())
            for its, row in zip(self._perturbed, rows, strict=True)
        ]
        return torch.cat(actions), state

    def _begin_trials(self, envs: int) -> None:
        """Draw the perturbations of members whose policies have changed."""
        cohort = self.cohort
        is_new = self._owner is not cohort
        if is_new:
            computing = cohort.population_learners if self.is_per_member else cohort.population_learners[:1]
            self._perturbed, self._owner = [PerturbedNetworks(learner, envs) for learner in computing], cohort
        for place, learner in enumerate(self):
            trial = self._trials[place]
            if trial is None or trial.key != learner.trial_key:
                self._trials[place] = trial = _Trial(learner.trial_key, learner.sigma)
                self.returns.restart(place)
            elif not is_new:
                continue
            offsets = learner.offsets(trial.sigma, self._instances)[self.columns].to(self.device)
            its, at = (self._perturbed[place], 0) if self.is_per_member else (self._perturbed[0], place)
            its.set_offsets(at, offsets)

    # -- learning

    def check_instances(self, instances: int) -> None:
        self[0].host.check_instances(instances)

    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> EpisodeReturns:
        first = self[0]
        self._instances = num_instances(env.env)
        self._trials = [None] * len(self)
        self._returns = EpisodeReturns(
            len(self),
            envs,
            encoding=first.encoding,
            device=self.device,
            recent=-(-RECENT // first.algorithm.num_envs),
            describe_row=describe_row,
        )
        return self._returns

    def discard_experience(self) -> None:
        self._trials, self._perturbed, self._owner, self._returns = [], [], None, None

    def steps_until_update(self, since: Sequence[int]) -> list[int]:
        left = [CHECK_EVERY - steps % CHECK_EVERY for steps in since]
        return [min(its, learner.longest_wait - steps) for learner, its, steps in zip(self, left, since, strict=True)]

    def due(self, since: Sequence[int]) -> list[int]:
        wanted = torch.tensor([[learner.host.episodes] for learner in self], device=self.device)
        unfinished = self.gradient_sync.all_reduce_((self.returns.counts < wanted).sum(1).float()).tolist()
        return [
            place
            for place, steps in enumerate(since)
            if (steps and steps % CHECK_EVERY == 0 and not unfinished[place]) or steps >= self[place].longest_wait
        ]

    def learn(self, places: Sequence[int], experience: EpisodeReturns) -> dict[int, TensorDict]:
        """Update some members from the returns of their policies."""
        at = list(places)
        learners = [self[place] for place in at]
        rows = self[0].algorithm.num_envs
        returns = torch.zeros(len(at), rows, device=self.device)
        returns[:, self.columns] = experience.returns[at]
        returns = self.gradient_sync.all_reduce_(returns)
        moments = experience.moments.of(at)
        for numbers in moments:
            self.gradient_sync.all_reduce_(numbers)
        observations, counts = moments.as_rows()
        trials = [self._trials[place] for place in at]
        sigmas = [
            learner.sigma if trial is None else trial.sigma for trial, learner in zip(trials, learners, strict=True)
        ]
        data = ReturnsUpdate(returns, observations, counts, self._instances)
        update = self.make_update(learners, data, sigmas)
        metrics = self.cohort.learn(at, update).cpu()
        has_masks = bool(self.gradient_sync.all_reduce_(torch.tensor([float(experience.has_masks)])))
        for place, learner in zip(at, learners, strict=True):
            learner.learned_with_masks |= has_masks
            learner.after_update(self._recent(experience.recent(place)))
        return {place: metrics[i : i + 1] for i, place in enumerate(at)}

    def _recent(self, observations: Tensor) -> Tensor:
        """Return the last observations of all envs of a member, given those of the envs of this process.

        Every replica measures a mutation on the same rows, because each of them changes the weights by itself.
        """
        whole = observations.new_zeros(len(observations), self[0].algorithm.num_envs, observations.shape[-1])
        whole[:, self.columns] = observations
        return self.gradient_sync.all_reduce_(whole)

    @abstractmethod
    def make_update(self, learners: Sequence[LearnerT], data: ReturnsUpdate, sigmas: Sequence[float]) -> ReturnsUpdate:
        """Return the update of some learners from the returns of their policies."""


class EvolutionStrategy(PopulationConstructor, RLAlgorithm[LearnerT]):
    """An agent that learns from the returns of perturbed policies, one in each of its envs."""

    allowed_actions = "Discrete, MultiDiscrete, MultiBinary or a Box of finite bounds"

    episodes: int
    learn_step: int | None  # pyright: ignore[reportIncompatibleVariableOverride]  # None: episodes end by themselves
    sigma: float
    normalize_observation: ObservationNormKind
    default_net_config: ClassVar[Mapping[str, Any]] = {}
    fewest_envs: ClassVar[int] = 2

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        if isinstance(action_space, gymnasium.spaces.Box):
            return is_bounded(action_space)
        kinds = gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete | gymnasium.spaces.MultiBinary
        return isinstance(action_space, kinds)

    def _init_strategy(self, given: Mapping[str, Any]) -> None:
        """Make the agent from the constructor's `locals()`."""
        num_envs = given["num_envs"] if given["num_agents"] is None else given["num_agents"]
        net_config = self.completed_net_config(given["net_config"] or {})
        self._init_given({**given, "num_envs": num_envs}, net_config)

    @classmethod
    def completed_net_config(cls, net_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a `net_config` with the class's default for what is missing; an encoder that is named stays alone."""
        has_encoder = not net_config.keys().isdisjoint(ENCODER_KEYS)
        default = {
            name: its for name, its in cls.default_net_config.items() if not has_encoder or name not in ENCODER_KEYS
        }
        return {**default, **net_config}

    def check(self) -> None:
        super().check()
        if self.num_envs < self.fewest_envs:
            raise ConfigurationError(
                f"num_envs={self.num_envs} is too few for {self.algo}, which compares the policies in a member's envs; "
                f"allowed are {self.fewest_envs} and more"
            )

    def _run_hooks(self) -> None:
        super()._run_hooks()
        if self._hooks:  # which may have changed weights: what was played before is not of these policies
            for learner in self.learners.values():
                learner.variations += 1

    def check_instances(self, instances: int) -> None:
        """Raise ConfigurationError unless each instance of an env is played by policies that can be compared."""
        if self.num_envs < 2 * instances:
            raise ConfigurationError(
                f"num_envs={self.num_envs} is too few for {self.algo} with {instances} instances, which compares the "
                f"policies that play the same instance; allowed are {2 * instances} and more"
            )

    def _check_memory(self) -> None:
        super()._check_memory()
        weights = sum(learner.planned_weights() for learner in self.learners.values())
        check_memory(f"num_envs={self.num_envs}", self.num_envs, 2 * 4 * weights, "perturbed policies")

    def get_action(self, obs: Any, action_mask: np.ndarray | None = None) -> np.ndarray:
        """Return the policy's actions for observations `[B, *shape]`, in the env's units."""
        self.learner.warn_of_missing_masks("get_action", action_mask, stacklevel=3)
        return self.predict(obs, action_masks=action_mask)[0]

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Return `(action, state)` for a batch or a single observation, as SB3 does; `deterministic` or not."""
        return self.learner.predict(obs, state, episode_start, True, action_masks)
