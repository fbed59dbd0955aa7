"""The learners of one group of agents, of all members of a population, as one batched computation.

Tensors are `[P, E, …]` in the order of the members.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, cast, overload

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.learner import Learner, LearnerT
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.experience import ExperienceBuffer
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.per_member_learner import PerMemberLearner
from agilerl_like.learning.population_learner import PopulationLearner

NOISE_STEPS = 128
"""Steps for which action noise is drawn at once."""


class Members(Protocol):
    """A population, of which a group takes one learner of each member."""

    agents: list[Any]
    gradient_sync: GradientSync


class LearnerGroup(Sequence[LearnerT], Generic[LearnerT], ABC):
    """The learners of all members for one group of agents (of one group where there are no teams).

    They are computed by one cohort; the collector acts, stores steps and updates through it. A place is the index of a
    member among those of this process.
    A subclass defines what an algorithm stores and how it learns; it may override how it acts and explores.
    """

    learner_class: ClassVar[type[Learner]]
    """The class of the learners."""
    metrics: ClassVar[tuple[str, ...]]
    """The metrics of an update that are reported; every report also has `healthy`."""
    keeps_experience: ClassVar[bool] = False
    """Whether its buffer is kept when the envs are reset, in which case members stay on their process."""
    details: ClassVar[tuple[str, ...]] = ()
    """Further metrics of an update that are computed if `detailed`."""
    detailed: bool = False
    """Whether updates are logged one by one, with `details`."""
    placeholder_action: ClassVar[gymnasium.Space] = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    """A small action space that the algorithm supports, for checks before there is an env."""
    placeholder_observation: ClassVar[gymnasium.Space] = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    """A small observation space, for the same checks."""

    has_networks: ClassVar[bool] = True
    """Whether the algorithm has networks, of which a `net_config` describes the architecture."""
    takes_critic_config: ClassVar[bool] = True
    """Whether the critic may have an architecture of its own."""
    search_ranges: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Ranges that differ from those of `any_environment.yaml`, and of a search that starts without knowledge."""
    shares_envs: ClassVar[bool] = False
    """Whether processes may share the envs of a member: it then exchanges experience or gradients by `gradient_sync`,
    so that each of them computes the same weights."""
    one_process_reason: ClassVar[str] = ""
    """The reason why `processes="auto"` chooses one process; "" if several are possible."""

    def __init__(self, population: Members, group: str) -> None:
        self._population, self._group = population, group
        self._cohort: PopulationLearner | PerMemberLearner | None = None
        self._noise: tuple[Tensor, int] | None = None  # drawn for some steps ahead, and how many are used
        self._new_members: set[int] = set()  # members that have not yet drawn noise of their own into that block

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`: the copied learners are attached to no cohort yet."""
        return {**vars(self), "_cohort": None}

    @overload
    def __getitem__(self, place: int) -> LearnerT: ...
    @overload
    def __getitem__(self, place: slice) -> list[LearnerT]: ...
    def __getitem__(self, place: int | slice) -> LearnerT | list[LearnerT]:
        if isinstance(place, slice):
            return [*self][place]
        return self._population.agents[place].learners[self._group]

    def __iter__(self) -> Iterator[LearnerT]:
        return (agent.learners[self._group] for agent in self._population.agents)

    def __len__(self) -> int:
        return len(self._population.agents)

    def check_instances(self, instances: int) -> None:
        """Raise ConfigurationError unless the algorithm can learn on so many instances with the envs of a member."""

    @classmethod
    def check_critic_config(cls, algo: str, given: Any) -> None:
        """Raise ConfigurationError if a critic's own architecture is given that the algorithm would not build."""
        if given and not cls.takes_critic_config:
            raise ConfigurationError(
                f"critic_config is not for {algo}, which has no critic of another architecture than the actor's; "
                "leave it out"
            )

    @property
    def gradient_sync(self) -> GradientSync:
        """The processes that share the envs of each member."""
        return self._population.gradient_sync

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self[0].device

    # -- cohort

    @property
    def cohort(self) -> PopulationLearner | PerMemberLearner:
        """The cohort that computes the learners; another network or other execution options replace it by a new one."""
        attached = [] if self._cohort is None else self._cohort.population_learners
        is_current = len(attached) == len(self) and attached[0].execution == self[0].execution
        if not is_current or not all(map(Learner.is_attached, self, attached)):
            if self.is_per_member:
                self._cohort = PerMemberLearner([_make_cohort([learner], self.gradient_sync) for learner in self])
            else:
                self._cohort = _make_cohort(self, self.gradient_sync)
        return cast("PopulationLearner | PerMemberLearner", self._cohort)

    def update_stacks(self) -> None:
        """Replace the cohort where its stacks were planned for another mean batch size than that of the learners.

        It is called where the envs start, as after a checkpoint, because a run that resumes there plans its stacks.
        """
        if isinstance(self._cohort, PopulationLearner) and self._cohort.batch_size != _mean_batch_size(self):
            self._cohort = None

    @property
    def is_per_member(self) -> bool:
        """Whether each member is computed separately."""
        return self[0].execution.per_member

    # -- acting

    def act(
        self, observations: Tensor, state: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return raw actions `[P, E, A]` for encoded observations `[P, E, D]`, and the next hidden state.

        `state` is the hidden state `[P, E, M, K, H]`, `mask` is `[P, E, choices]`. Without noise `[P, E, …]` the
        actions are the most likely ones.
        """
        return self.cohort.act(observations, state, noise, mask)

    @property
    def initial_hidden_state(self) -> Tensor:
        """The hidden state at the start of an episode: zeros `[M, K, H]`, large enough for every learner."""
        return torch.zeros(self.cohort.state_shape, dtype=self[0].network.dtype, device=self.device)

    def next_noise(self, envs: int) -> Tensor:
        """Return the action noise `[P, E, …]` of the next step, from each learner's own stream."""
        block, used = self._noise or (None, 0)
        if block is not None and block.shape[2] != envs:
            block = None
        if block is None or used == len(block):
            last: list[Tensor | None] = [None] * len(self) if block is None else [*block[-1]]
            for place in self._new_members:
                last[place] = None
            blocks = [_noise_block(learner, envs, before) for learner, before in zip(self, last, strict=True)]
            block, used = torch.stack(blocks, 1), 0
        else:
            for place in self._new_members:
                block[:, place] = _noise_block(self[place], envs, None)
        self._noise, self._new_members = (block, used + 1), set()
        return block[used]

    def reset_noise(self, places: Sequence[int] | None = None) -> None:
        """Drop the noise drawn ahead, of some members or of all."""
        if places is None:
            self._noise = None
        else:
            self._new_members |= set(places)

    def random_steps_left(self, steps_since_update: Sequence[int]) -> list[int]:
        """Return, for each member, the number of its next steps whose actions are uniformly random."""
        return [
            max(0, math.ceil((its.algorithm.random_steps - its.env_steps) / its.algorithm.num_envs) - since)
            for its, since in zip(self, steps_since_update, strict=True)
        ]

    def uniform_actions(self, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Return uniformly random raw actions `[P, E, A]` drawn from action noise `[P, E, …]`."""
        return self[0].distribution.uniform(noise, mask)

    def to_env(self, raw: Tensor) -> Tensor:
        """Return the env's actions `[P E, …]` for raw actions `[P, E, A]`, on the device."""
        in_env = self[0].distribution.in_env
        if self.is_per_member:  # vectorized code may round elements differently by their position in memory
            return torch.cat([in_env(own.clone()) for own in raw])
        return in_env(raw.reshape(-1, raw.shape[-1]))

    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the env's actions `[P E, …]` for rows `[P E, D]` without exploration, and the next hidden state."""
        shape = len(self), -1
        its_mask = None if mask is None else mask.unflatten(0, shape)
        actions, after = self.act(encoded.unflatten(0, shape), state.unflatten(0, shape), its_mask)
        return self.to_env(actions), after.flatten(0, 1)

    # -- learning

    def steps_until_update(self, since: Sequence[int]) -> list[int]:
        """Return the steps of its envs until each member's next update, given the steps since its last one.

        It is a lower bound for algorithms that override `due`. With rollouts of a fixed length it is exact, and
        negative where the length has just become shorter than the steps taken.
        """
        return [learner.rollout_steps - steps for learner, steps in zip(self, since, strict=True)]

    def due(self, since: Sequence[int]) -> list[int]:
        """Return the places of the members that learn now, given the steps of their envs since their last update.

        An algorithm whose updates depend on the ends of episodes overrides both methods.
        """
        return [place for place, left in enumerate(self.steps_until_update(since)) if left <= 0]

    @abstractmethod
    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> ExperienceBuffer:
        """Return an empty buffer for `envs` envs of each member; `describe_row(member, env)` is for error messages."""

    def check_envs_are_not_shared(self) -> None:
        """Raise ConfigurationError if processes share the envs of a member, unless the class `shares_envs`."""
        if self.gradient_sync.num_ranks > 1 and not self.shares_envs:
            raise ConfigurationError(
                f"processes share the envs of a member, which {self[0].algo} does not support; allowed are at most as "
                "many processes as members"
            )

    def enlarge_buffer(self, buffer: Any) -> bool:
        """Enlarge a buffer that settings have outgrown, and return whether its parts have to be made again.

        It is called before each rollout. Override it if a setting that may evolve, such as `learn_step`, lengthens
        rollouts beyond the buffer that `make_buffer` returned: it is made once for each start of the envs.
        """
        return False

    def experience_state(self) -> list[dict[str, Tensor]]:
        """Return the part of each member's buffer that checkpoints store; empty unless `keeps_experience`."""
        return []

    def load_experience(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Begin the next buffer with what `experience_state` returned."""

    def discard_experience(self) -> None:
        """Begin the next buffer empty."""

    @abstractmethod
    def learn(self, places: Sequence[int], experience: Any) -> dict[int, TensorDict]:
        """Update some members from what the buffer's `reader` returned.

        Rollouts of unequal `rollout_steps` cannot be stacked, so the places are grouped by it, and each group is one
        call of `cohort.learn`; where `is_per_member`, each place is a group of its own. After a rollout of `steps`
        steps it counts them for each learner, `learner.env_steps += steps * learner.algorithm.num_envs`, and calls
        `learner.after_update(observations)` with the member's encoded observations `[T, E, D]`, which names the random
        streams of the next update and stores states on which mutations are measured.

        Returns the metrics `[1]` of each place, among them `healthy`: 1 if loss and weights are finite; and, under its
        name, the value that each of `learner.scheduled` had in the update.
        """


def _make_cohort(learners: Sequence[Learner], gradient_sync: GradientSync) -> PopulationLearner:
    """Attach learners to a new cohort."""
    first = learners[0]
    cohort = PopulationLearner(
        [learner.network for learner in learners],
        [learner.moments for learner in learners],
        build=lambda place, spec: learners[place].build(spec),
        execution=first.execution,
        batch_size=_mean_batch_size(learners),
        gradient_sync=gradient_sync,
    )
    cohort.train(first.algorithm.training)
    for row, learner in enumerate(learners):
        learner.attach(cohort, row)
    return cohort


def _mean_batch_size(learners: Sequence[Learner]) -> float:
    return sum(learner.batch_size for learner in learners) / len(learners)


def _noise_block(learner: Learner, envs: int, before: Tensor | None) -> Tensor:
    """Return noise `[steps, E, …]` of the next steps, after the step `before` `[E, …]` if there was one."""
    return learner.correlate(learner.noise((NOISE_STEPS, envs)), before)
