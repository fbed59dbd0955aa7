"""Collects rollouts: steps the envs of a population, and updates the members whose rollouts are complete.

All members' envs are one vector env of P x E rows, of which member p owns block p. Episodes continue across updates and
generations. Members whose rollouts are complete at the same time learn together.

If the env has several env groups, one group steps while the actions of the other are computed (double-buffered
sampling). Results are bit-identical: all groups finish their steps before any member learns, each env gets the same
noise, and actions are computed for all envs at once, because a matmul of fewer rows may round differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.episode_stats import EpisodeTracker, FinishedEpisodes
from agilerl_like.envs.factory import env_config_or_none, training_seeds
from agilerl_like.envs.space_match import check_spaces_match
from agilerl_like.envs.vec_adapter import Transition, VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.experience import ExperienceWriter
from agilerl_like.learning.per_member_learner import PerMemberLearner
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.networks.recurrent_state import resize_hidden
from agilerl_like.seeding import Purpose, integers


class PhaseTimer:
    """Seconds by phase of a run."""

    def __init__(self, phases: tuple[str, ...]) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)

    def __call__(self, phase: str) -> _TimedBlock:
        """Count the time inside the `with` block towards a phase."""
        return _TimedBlock(self.seconds, phase)


class _TimedBlock:
    """A `with` block that is timed; a generator-based one takes three times as long, and a step has four of them."""

    __slots__ = ("_began", "_phase", "_seconds")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._phase] += perf_counter() - self._began


@dataclass
class EnvGroup:
    """Envs of every member that step together."""

    place: int
    columns: slice
    buffer: ExperienceWriter
    episodes: EpisodeTracker
    pending_step: int | None = None
    """Index in the buffer of the step that was started and not yet received."""


class Collector:
    """Steps P x E envs with a population, one group of agents after the other; `reset` comes first.

    A single agent is a group of one. Rollouts of all groups are complete at the same time, because a group's rollout is
    as long in env steps as its team's.
    """

    def __init__(self, population: BasePopulation[Any], env: Any, timer: PhaseTimer) -> None:
        members = len(population)
        if env.num_envs % members:
            raise ConfigurationError(
                f"num_envs={env.num_envs} cannot be divided among {members} members; allowed are multiples of {members}"
            )
        self.population, self.env = population, env
        self.envs = env.num_envs // members
        """Envs of each member on this rank; its `num_envs` counts those of all replicas."""
        self._seen = np.zeros((2, members))
        """Count and sum of the returns that `returns_since` has returned, less those of `pop_scores`, `[2, P]`."""
        group_envs = self._group_envs()
        for agent in population:
            agent.num_envs = self.envs * population.gradient_sync.num_ranks
            agent.check()
        for learners in population.by_group.values():
            learners.check_instances(num_instances(env.env))
        self.groups = {
            name: GroupCollector(learners, group_envs[name], timer) for name, learners in population.by_group.items()
        }

    def _group_envs(self) -> Mapping[str, VecEnvAdapterProtocol]:
        """Return the env of each group of agents."""
        if self.population[0].learner.rollout_encoding.is_asymmetric:
            self.env.keep_critic_observation()
        return {"": self.env}

    @property
    def _episodes(self) -> Iterable[EpisodeTracker]:
        """The returns of the members, by env group."""
        return (group.episodes for group in self.groups[""].env_groups)

    def reset(self, slots: Sequence[int], *keys: int) -> None:
        """Start new episodes; the seeds of a member's envs follow from the run's seed, its slot and `keys`."""
        population = self.population
        count = population[0].num_envs
        columns = population.gradient_sync.env_slice(count)
        given = training_seeds(env_config_or_none(self.env.env), count)
        self._seen = np.zeros((2, len(population)))
        seeds: list[int] | None = [
            seed
            for slot in slots
            for seed in (given or integers(count, population.seed, Purpose.TRAINING_ENVS, slot, *keys))[columns]
        ]
        for group in self.groups.values():
            group.slots = slots
            group.start(seeds)
            seeds = None

    def set_opponents(self, opponents: Any, generation: int, *, everywhere: bool) -> None:
        """Set opponents, one for each member, or functions, which control a side in every other env or `everywhere`."""
        raise NotImplementedError

    @property
    def vector_steps_until_update(self) -> int:
        """Steps until the first rollout is complete."""
        return min(group.vector_steps_until_update for group in self.groups.values())

    def collect(self, vector_steps: int, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Take so many steps in every env, or fewer if `should_stop` returns True after one; return how many."""
        groups = self.groups.values()
        for group in groups:
            group.resize_hidden_states()
            group.enlarge_buffer()
            group.count_random_steps()
        taken = 0
        while taken < vector_steps:
            for group in groups:
                group.step()
            taken += 1
            if should_stop():
                break
        for group in groups:
            group.wait_for_envs(taken)
        return taken

    def due(self) -> set[int]:
        """Return the members whose rollouts are complete; collective if processes share the envs of a member."""
        return {place for group in self.groups.values() for place in group.due()}

    def learn(self) -> Mapping[int, TensorDict]:
        """Update the members whose rollouts are complete; metrics are means over a member's groups."""
        reports: dict[int, list[TensorDict]] = {}
        for group in self.groups.values():
            for place, report in group.learn().items():
                reports.setdefault(place, []).append(report)
        return {place: _mean(its_reports) for place, its_reports in reports.items()}

    def reset_member(self, place: int) -> None:
        """Reset the hidden state and discard the rollout and the episodes of a member that was replaced."""
        for group in self.groups.values():
            group.reset_member(place)
        for episodes in self._episodes:
            rows = len(episodes.running) // len(self.population)
            episodes.discard(slice(place * rows, (place + 1) * rows))
        self._seen[:, place] = 0.0

    def discard_rollout(self, place: int) -> None:
        """Discard the rollout of a member whose policy was changed in its midst; its episodes continue.

        A replay is kept: algorithms that have one learn from the steps of any policy.
        """
        if not self.population.keeps_experience:
            for group in self.groups.values():
                group.discard_rollout(place)

    def scores(self) -> list[float]:
        """Return each member's mean return in training episodes since the last `pop_scores`; nan without any."""
        return self._mean_returns(self._sums([episodes.peek() for episodes in self._episodes]))

    def pop_scores(self) -> list[float]:
        """Return each member's mean return in training episodes since the last call; nan without any."""
        sums = self._sums([episodes.take() for episodes in self._episodes])
        self._seen -= sums
        return self._mean_returns(sums)

    def _mean_returns(self, sums: np.ndarray) -> list[float]:
        """Return the means over the episodes of all replicas; collective."""
        return _quotients(*self.population.gradient_sync.all_reduce_(torch.tensor(sums)).tolist())

    def returns_since(self, places: Sequence[int]) -> list[float]:
        """Return some members' mean returns in training episodes since the last call for them; nan without any.

        Only envs of this process count.
        """
        sums = self._sums([episodes.peek() for episodes in self._episodes])
        fresh = (sums - self._seen)[:, places]
        self._seen[:, places] = sums[:, places]
        return _quotients(*fresh.tolist())

    def _sums(self, episodes: Sequence[FinishedEpisodes]) -> np.ndarray:
        """Return the number of each member's episodes, and the sum of their returns, `[2, P]`."""
        return np.array(
            [
                np.concatenate([array.reshape(len(self.population), -1) for array in arrays], axis=1).sum(axis=1)
                for arrays in zip(*episodes, strict=True)
            ],
            dtype=np.float64,
        )


class GroupCollector:
    """Steps one group of agents in the rows of its env."""

    def __init__(self, learners: LearnerGroup[Any], env: VecEnvAdapterProtocol, timer: PhaseTimer) -> None:
        members, first = len(learners), learners[0]
        learners.check_envs_are_not_shared()
        check_spaces_match(
            "env",
            (env.single_observation_space, env.single_action_space),
            "the population",
            (first.observation_space, first.action_space),
            reads_bounds=first.reads_bounds,
        )
        self.learners, self.env, self.timer = learners, env, timer
        self.envs = env.num_envs // members
        """Rows of each member on this rank."""
        self.columns = learners.gradient_sync.env_slice(first.rows_per_step)
        env.set_num_members(members)
        self.encoding = first.rollout_encoding
        self.slots: Sequence[int] = range(members)
        """The members' slots, for error messages."""
        self.steps_since_update = np.zeros(members, dtype=np.int64)
        self.env_groups: list[EnvGroup] = []
        self.observations = torch.zeros(0)
        """Current observations, encoded `[P, E, D]`."""
        self.mask: Tensor | None = None
        """Current action masks `[P, E, choices]`; None if the env has none."""
        self.state = self._initial_state = torch.zeros(0)
        """Current hidden states, and those at the start of each rollout, `[P, E, …]`."""
        self._random_steps_left: Tensor | None = None
        self._marks_random_steps = False  # whether any action in the buffer may have been random
        self._state_owner: PopulationLearner | PerMemberLearner | None = None
        """The cohort that computed the hidden states; after a mutation there is another one."""
        self.learns = True
        """Whether the group is trained; a frozen group only acts, by its policy from the first step."""
        self.opponents: LearnerGroup[Any] | None = None
        """The learners that act in the rows of opponents; None without opponents."""
        self._opponent_rows = torch.zeros(0, dtype=torch.bool)  # [E], the same for all members
        self._opponent_state = torch.zeros(0)  # [P, E, …]

    def start(self, seeds: list[int] | None) -> None:
        """Start new episodes in all envs, with a seed for each.

        Without seeds the episodes have been started by the collector of another group of agents in the same envs.
        """
        env, learners = self.env, self.learners
        learners.update_stacks()
        observations, mask = env.reset(seeds), env.action_mask
        self._encode = env.array_backend.make_encode_fn(self.encoding)
        self._buffer = learners.make_buffer(env, self.envs, self._describe_row)
        self.observations = self._by_member(self._encode(observations))
        self.mask = None if mask is None else self._by_member(torch.as_tensor(mask))
        self.env_groups = [
            EnvGroup(
                place,
                columns,
                self._buffer.part(columns),
                EpisodeTracker(len(learners) * (columns.stop - columns.start), env.array_backend),
            )
            for place, columns in enumerate(env.columns)
        ]
        learners.reset_noise()
        self._clear_running_returns(range(len(learners)))
        self._reset_opponent_state()
        self._marks_random_steps = False
        self.state = learners.initial_hidden_state.repeat(len(learners), self.envs, 1, 1, 1)
        self._initial_state = self.state.clone()
        self._state_owner = None
        self.steps_since_update[:] = 0

    @property
    def vector_steps_until_update(self) -> int:
        """Steps until the first rollout is complete."""
        return max(1, min(self.learners.steps_until_update(self.steps_since_update.tolist())))

    def wait_for_envs(self, taken: int) -> None:
        """Wait for all env groups, after so many steps."""
        for group in self.env_groups:
            self._finish_step(group)
        self.steps_since_update += taken

    def set_opponents(self, opponents: LearnerGroup[Any] | None, rows: np.ndarray) -> None:
        """Let opponents, one for each member, control some rows `[E]`; they begin without hidden states.

        Without opponents, the env replaces the actions of these rows. Members continue the episodes of rows that were
        opponents' without a hidden state, too, because learning begins there with none. It ends in rows that become
        opponents'.
        """
        self.opponents, before = opponents, self._opponent_rows
        self._opponent_rows = torch.from_numpy(rows).to(self.learners.device)
        if len(before):
            taken = (self._opponent_rows & ~before).cpu().numpy()
            never_bootstraps = np.array([not learner.algorithm.bootstrap_truncated for learner in self.learners])
            cast(Any, self._buffer).end_rows(taken, never_bootstraps)  # a RolloutBuffer's method
            passed = before & ~self._opponent_rows
            if self.state.numel():
                self.state[:, passed] = 0.0
                # In rollouts that began before, `Rollout.starts` resets the state at the first own step.
                for place in np.flatnonzero(self.steps_since_update == 0):
                    self._initial_state[place, passed] = 0.0
        self._reset_opponent_state()

    def _reset_opponent_state(self) -> None:
        if self.opponents is not None:
            its = self.opponents.initial_hidden_state
            self._opponent_state = its.repeat(len(self.learners), self.envs, 1, 1, 1)

    def _with_opponents(self, group: EnvGroup, actions: Any, noise: Tensor | None) -> Any:
        """Return the env's actions of an env group `[P e, …]`, with those of opponents in their rows."""
        if self.opponents is None:
            return actions
        raw, state = self.opponents.act(self.observations, self._opponent_state, self.mask, noise)
        self._opponent_state = self._merge(group, self._opponent_state, self._slice(group, state))
        theirs = self.opponents.to_env(self._slice(group, raw))
        rows = self._rows_of_opponents(group)
        return torch.where(rows.view(-1, *[1] * (theirs.dim() - 1)), theirs, actions)

    def _rows_of_opponents(self, group: EnvGroup) -> Tensor:
        """Return which rows `[P e]` of an env group opponents control."""
        return self._opponent_rows[group.columns].repeat(len(self.learners))

    def count_random_steps(self) -> None:
        """Count the steps that members with `random_steps` are still to take; a frozen group does not explore."""
        left = self.learners.random_steps_left(self.steps_since_update.tolist()) if self.learns else []
        self._random_steps_left = torch.tensor(left, device=self.learners.device) if any(left) else None
        self._marks_random_steps |= any(left)

    def _random_members(self) -> Tensor | None:
        """Return whose next actions are uniformly random, `[P]`, and count that step; None: no member's."""
        left = self._random_steps_left
        if left is None:
            return None
        members = left > 0
        left -= 1
        return members

    def step(self) -> None:
        """Start the next step of each env group, once its last one has finished."""
        learners, timer = self.learners, self.timer
        random_members = self._random_members()
        rows = learners[0].rows_per_step
        noise = learners.next_noise(rows)[:, self.columns]  # [P, E, …]
        theirs = None if self.opponents is None else self.opponents.next_noise(rows)[:, self.columns]
        here = self._buffer.begin()
        for group in self.env_groups:
            self._finish_step(group)
            with timer("act"):
                raw, state = learners.act(self.observations, self.state, self.mask, noise)
                if random_members is not None:
                    uniform = learners.uniform_actions(noise, self.mask)
                    raw = torch.where(random_members.view(-1, 1, 1), uniform, raw)
                self.state = self._merge(group, self.state, self._slice(group, state))
                seen, raw, mask = (self._slice(group, whole) for whole in (self.observations, raw, self.mask))
                group.buffer.put_actions(here, seen, raw, mask)
                if self._marks_random_steps:
                    cast(Any, group.buffer).put_uniform(here, random_members)  # a RolloutBuffer's method
                actions = self._with_opponents(group, learners.to_env(raw), theirs)
                actions = self.env.array_backend.to_env_actions(actions)
            with timer("env"):
                self.env.step_async(group.place, actions)
            group.pending_step = here

    def _finish_step(self, group: EnvGroup) -> None:
        """Wait for an env group's pending step, and store its results."""
        if group.pending_step is None:
            return
        with self.timer("env"):
            transition = self.env.step_wait(group.place)
        with self.timer("act"):
            group.buffer.put_outcome(group.pending_step, self._without_opponents(group, transition))
            group.episodes.update(transition.reward, transition.ended, transition.valid)  # 0 where not valid
            self.observations = self._merge(group, self.observations, self._by_member(self._encode(transition.obs)))
            if transition.action_mask is not None:
                mask = self._by_member(torch.as_tensor(transition.action_mask))
                self.mask = self._merge(group, self.mask, mask)
            if self.state.numel():
                self._slice(group, self.state).mul_(self._continues(transition))
            if self.opponents is not None and self._opponent_state.numel():
                self._slice(group, self._opponent_state).mul_(self._continues(transition))
        group.pending_step = None

    def _continues(self, transition: Transition) -> Tensor:
        """Return 1 where an agent's episode continues, `[P, e, 1, 1, 1]`."""
        taken = transition.valid if transition.waited is None else transition.valid | transition.waited
        return self._by_member(torch.as_tensor(taken & ~transition.ended).unsqueeze(-1)).unsqueeze(-1).unsqueeze(-1)

    def _without_opponents(self, group: EnvGroup, transition: Transition) -> Transition:
        """Return a step with zero rewards and flags in the rows of opponents, which do not learn."""
        if not len(self._opponent_rows):
            return transition
        own = ~self._rows_of_opponents(group).cpu().numpy()
        names = ("terminated", "truncated", "valid", "waited", "waits")
        flags = {name: None if (its := getattr(transition, name)) is None else its & own for name in names}
        return transition._replace(reward=transition.reward * own, **flags)

    def _slice(self, group: EnvGroup, whole: Any) -> Any:
        """Return an env group's columns of `[P, E, …]`."""
        return whole if whole is None or len(self.env_groups) == 1 else whole[:, group.columns]

    def _merge(self, group: EnvGroup, whole: Tensor | None, share: Tensor) -> Tensor:
        """Write an env group's columns into `[P, E, …]`; without a tensor so far, the other columns are True."""
        if len(self.env_groups) == 1:
            return share
        if whole is None:
            whole = share.new_ones(len(self.learners), self.envs, share.shape[-1])
        whole[:, group.columns] = share
        return whole

    @property
    def experience(self) -> Any:
        """The input of `learners.learn`."""
        return self._buffer.reader(self.observations, self._initial_state)

    def due(self) -> list[int]:
        """Return the members whose rollouts are complete."""
        return self.learners.due(self.steps_since_update.tolist())

    def learn(self) -> Mapping[int, TensorDict]:
        """Update the members whose rollouts are complete."""
        left = self.learners.steps_until_update(self.steps_since_update.tolist())
        shortened = [place for place, steps in enumerate(left) if steps < 0]
        self._clear_running_returns(shortened)  # the first steps of a shortened rollout are not learned from
        recurrent = [place for place in shortened if self.learners[place].recurrent]
        self._start_rollouts(recurrent)  # the hidden state at the start of a shortened rollout is unknown
        due = self.due()
        if not due:
            return {}
        with self.timer("learn"):
            self.env.check()
            reports = self.learners.learn(due, self.experience) if self.learns else {}
        self._start_rollouts(due)
        return reports

    def reset_member(self, place: int) -> None:
        """Reset hidden state and running returns, and discard the rollout, of a member that was replaced."""
        self.resize_hidden_states()
        self.state[place] = 0.0
        self.discard_rollout(place)

    def discard_rollout(self, place: int) -> None:
        """Discard the rollout of a member, and the running returns that its steps would have continued."""
        self._clear_running_returns([place])
        self._start_rollouts([place])

    def resize_hidden_states(self) -> None:
        """Convert hidden states to the units of the members' mutated networks."""
        cohort = self.learners.cohort
        if cohort is self._state_owner:
            return
        both = torch.stack([self.state, self._initial_state], 1)  # [P, 2, E, M, K, H]
        carried = [
            resize_hidden(learner.transfer_state(its), cohort.state_shape)
            for learner, its in zip(self.learners, both, strict=True)
        ]
        self.state, self._initial_state = torch.stack(carried, 1).unbind(0)
        self._state_owner = cohort

    def enlarge_buffer(self) -> None:
        """Enlarge the buffer if rollouts have become longer than it."""
        if self.learners.enlarge_buffer(self._buffer):
            for group in self.env_groups:
                group.buffer = self._buffer.part(group.columns)

    def _start_rollouts(self, places: Iterable[int]) -> None:
        """Start the next rollouts of some members at the current step."""
        for place in places:
            self.steps_since_update[place] = 0
            self._initial_state[place] = self.state[place]

    def _clear_running_returns(self, places: Iterable[int]) -> None:
        """Set the discounted returns of some members' running episodes, which `normalize_reward` continues, to 0."""
        for place in places:
            learner = self.learners[place]
            learner.return_statistics = learner.return_statistics.of_new_episodes()

    def _describe_row(self, member: int, row: int) -> str:
        return f"member {self.slots[member]}, {self.env.describe_row(self.columns.start + row)}"

    def _by_member(self, rows: Tensor) -> Tensor:
        """Reshape rows `[P e, …]` of an env group to `[P, e, …]`, on the device."""
        return rows.to(self.learners.device).view(len(self.learners), -1, rows.shape[-1])


def _quotients(counts: Sequence[float], totals: Sequence[float]) -> list[float]:
    return [total / count if count else math.nan for count, total in zip(counts, totals, strict=True)]


def _mean(reports: Sequence[TensorDict]) -> TensorDict:
    """Return the mean of the metrics of a member's groups; it is healthy if all are."""
    if len(reports) == 1:
        return reports[0]
    stacked = cast(TensorDict, torch.stack(list(reports)))
    means = cast(TensorDict, stacked.mean(0))
    means.set("healthy", stacked.get("healthy").min(0).values)
    return means
