"""A population stepping through its envs, remembering what it needs to learn.

All members' envs are one vector env of P x E rows, of which member p owns block p. They step together and episodes go
on across updates and generations; only who is due learns, and those who are due together learn together.

Where the env steps in parts, one part of every member's envs steps while the actions of another are computed. That
changes nothing but the time it takes, to the last bit. All have arrived before anybody learns, each env meets the same
noise, and actions are computed for all envs even where they are needed for a part, for a product of fewer rows may be
rounded in another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.population import Population
from agilerl_like.envs.episode_stats import EpisodeTracker
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.apart import Apart
from agilerl_like.learning.cohort import Cohort
from agilerl_like.learning.rollout import BufferPart, Rollout, RolloutBuffer
from agilerl_like.learning.team import Team
from agilerl_like.learning.update import Report
from agilerl_like.networks.memory import fitted
from agilerl_like.seeding import Purpose, integers


class PhaseTimer:
    """Seconds by phase of a run."""

    def __init__(self, phases: tuple[str, ...]) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)

    def __call__(self, phase: str) -> _TimedBlock:
        """Count the time inside the `with` block towards a phase."""
        return _TimedBlock(self.seconds, phase)


class _TimedBlock:
    """A `with` block whose time counts; one made of a generator takes three times as long, four times in every step."""

    __slots__ = ("_began", "_phase", "_seconds")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._phase] += perf_counter() - self._began


@dataclass
class EnvGroup:
    """Some envs of every member, which step together."""

    place: int
    columns: slice
    buffer: BufferPart
    episodes: EpisodeTracker
    pending_step: int | None = None
    """Where in the buffer the step belongs that was sent and not received."""


class Collector:
    """VecEnvAdapterProtocol P x E envs with a population; `reset` comes first."""

    def __init__(self, population: Population, env: VecEnvAdapterProtocol, timer: PhaseTimer) -> None:
        members = len(population)
        if env.num_envs % members:
            raise ConfigurationError(
                f"num_envs={env.num_envs} cannot be divided among {members} members; allowed are multiples of {members}"
            )
        first = population[0]
        if (env.single_observation_space, env.single_action_space) != (first.observation_space, first.action_space):
            raise ConfigurationError(
                f"env has {env.single_observation_space} and {env.single_action_space}; "
                f"the population was made for {first.observation_space} and {first.action_space}"
            )
        self.population, self.env, self.timer = population, env, timer
        self.envs = env.num_envs // members
        """Envs of each member that are stepped here; its `num_envs` counts those that partners step, too."""
        for agent in population:
            agent.num_envs = self.envs * population.team.parts
            agent.check()
        self.columns = population.team.columns(population[0].num_envs)
        env.set_num_members(members)
        self.encoding = first.encoding
        self.slots: Sequence[int] = range(members)
        """What the members are called when something is wrong with their envs."""
        self.steps_since_update = np.zeros(members, dtype=np.int64)
        self.env_groups: list[EnvGroup] = []
        self.observations = torch.zeros(0)
        """What the members see now, encoded `[P, E, D]`."""
        self.mask: Tensor | None = None
        """What they may do now, `[P, E, choices]`; None if the world has no masks."""
        self.state = self._initial_state = torch.zeros(0)
        """What they remember of their episodes, and what they remembered where their rollouts begin, `[P, E, …]`."""
        self._state_owner: Cohort | Apart | None = None
        """Whose memory that is: another one's, as soon as anybody was mutated."""

    def reset(self, slots: Sequence[int], *keys: int) -> None:
        """Begin new episodes everywhere; each member's envs have seeds named by the run's seed, its slot and `keys`."""
        self.slots = slots
        self.begin(seed for slot in slots for seed in self._seeds(slot, *keys))

    def _seeds(self, *keys: int) -> list[int]:
        population = self.population
        return integers(population[0].num_envs, population.seed, Purpose.TRAINING_ENVS, *keys)[self.columns]

    def begin(self, seeds: Iterable[int] | None) -> None:
        """Begin new episodes everywhere, with a seed for each env; what was seen before is forgotten.

        Without seeds they have begun already: another collector, which steps the same envs, has said so.
        """
        env, population = self.env, self.population
        observations, mask = env.reset(None if seeds is None else list(seeds)), env.action_mask
        self._encode = env.array_backend.make_encode_fn(self.encoding)
        self._buffer = RolloutBuffer(
            max(2, *(_longest_rollout(agent) for agent in population)),  # one part may be a step ahead
            len(population),
            self.envs,
            encoding=self.encoding,
            action_size=population[0].distribution.size,
            action_dtype=population[0].distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=population.device,
            arrays=env.array_backend,
            describe_row=self._describe_row,
        )
        self.observations = self._by_member(self._encode(observations))
        self.mask = None if mask is None else self._by_member(torch.as_tensor(mask))
        self.env_groups = [
            EnvGroup(
                place,
                columns,
                self._buffer.part(columns),
                EpisodeTracker(len(population) * (columns.stop - columns.start), env.array_backend),
            )
            for place, columns in enumerate(env.columns)
        ]
        population.reset_noise()
        self.state = population.initial_hidden_state.repeat(len(population), self.envs, 1, 1, 1)
        self._initial_state = self.state.clone()
        self._state_owner = None
        self.steps_since_update[:] = 0

    @property
    def vector_steps_until_update(self) -> int:
        """VecEnvAdapterProtocol until somebody's rollout is full."""
        left = [
            agent.rollout_steps - since
            for agent, since in zip(self.population, self.steps_since_update.tolist(), strict=True)
        ]
        return max(1, min(left))

    def collect(self, vector_steps: int, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Take so many steps in every env, or fewer if asked to stop; return how many were taken."""
        return collect([self], vector_steps, should_stop)

    def tick(self) -> None:
        """Take one step in every env."""
        self.collect(1)

    def wait_for_envs(self, taken: int) -> None:
        """Wait for every part, after so many steps."""
        for group in self.env_groups:
            self._finish_step(group)
        self.steps_since_update += taken

    def step(self) -> None:
        """Let each part take its next step, once it has arrived from its last."""
        population, timer = self.population, self.timer
        noise = population.next_noise(population[0].num_envs)[:, self.columns]  # [P, E, …]
        here = self._buffer.begin()
        for group in self.env_groups:
            self._finish_step(group)
            with timer("act"):
                raw, state = population.act(self.observations, self.state, self.mask, noise)
                self.state = self._merge(group, self.state, self._slice(group, state))
                seen, raw, mask = (self._slice(group, whole) for whole in (self.observations, raw, self.mask))
                group.buffer.put_actions(here, seen, raw, mask)
                actions = self.env.array_backend.to_env_actions(population.to_env(raw))
            with timer("env"):
                self.env.step_async(group.place, actions)
            group.pending_step = here

    def _finish_step(self, group: EnvGroup) -> None:
        """Wait for a part that is under way, and store what it did."""
        if group.pending_step is None:
            return
        with self.timer("env"):
            transition = self.env.step_wait(group.place)
        with self.timer("act"):
            group.buffer.put_outcome(group.pending_step, transition)
            group.episodes.update(transition.reward, transition.ended)  # 0 where not valid
            self.observations = self._merge(group, self.observations, self._by_member(self._encode(transition.obs)))
            if transition.action_mask is not None:
                mask = self._by_member(torch.as_tensor(transition.action_mask))
                self.mask = self._merge(group, self.mask, mask)
            if self.state.numel():
                goes_on = self._by_member(torch.as_tensor(transition.valid & ~transition.ended).unsqueeze(-1))
                self._slice(group, self.state).mul_(goes_on.unsqueeze(-1).unsqueeze(-1))
        group.pending_step = None

    def _slice(self, group: EnvGroup, whole: Any) -> Any:
        """A part's share of `[P, E, …]`."""
        return whole if whole is None or len(self.env_groups) == 1 else whole[:, group.columns]

    def _merge(self, group: EnvGroup, whole: Tensor | None, share: Tensor) -> Tensor:
        """Put a part's share in its place in `[P, E, …]`; where there was nothing, all is True."""
        if len(self.env_groups) == 1:
            return share
        if whole is None:
            whole = share.new_ones(len(self.population), self.envs, share.shape[-1])
        whole[:, group.columns] = share
        return whole

    def learn(self) -> Mapping[int, Report]:
        """Let everybody learn whose rollout is full."""
        needed = [agent.rollout_steps for agent in self.population]
        if self.state.numel():  # one that became shorter begins where nobody knows what was remembered
            self._start_rollouts(place for place, steps in enumerate(needed) if self.steps_since_update[place] > steps)
        due = [place for place, steps in enumerate(needed) if self.steps_since_update[place] >= steps]
        if not due:
            return {}
        with self.timer("learn"):
            self.env.check()
            reports = self.population.learn(due, self._last_steps)
        self._start_rollouts(due)
        return reports

    def reset_member(self, place: int) -> None:
        """A newcomer lives here: what was seen and remembered is not its own."""
        self.resize_hidden_states()
        self.state[place] = 0.0
        self._start_rollouts([place])

    def resize_hidden_states(self) -> None:
        """Let everybody remember what they did before they were mutated, in the units that they have now."""
        cohort = self.population.cohort
        if cohort is self._state_owner:
            return
        both = torch.stack([self.state, self._initial_state], 1)  # [P, 2, E, M, K, H]
        carried = [
            fitted(agent.carry_state(its), cohort.state_shape) for agent, its in zip(self.population, both, strict=True)
        ]
        self.state, self._initial_state = torch.stack(carried, 1).unbind(0)
        self._state_owner = cohort

    def _start_rollouts(self, places: Iterable[int]) -> None:
        """What some members learn from next begins here."""
        for place in places:
            self.steps_since_update[place] = 0
            self._initial_state[place] = self.state[place]

    def pop_scores(self) -> list[float]:
        """Mean return of each member's training episodes that ended since the last call; nan if none did."""
        return mean_returns((group.episodes for group in self.env_groups), len(self.population), self.population.team)

    def _describe_row(self, member: int, row: int) -> str:
        return f"member {self.slots[member]}, {self.env.describe_row(self.columns.start + row)}"

    def _last_steps(self, places: list[int], steps: int) -> Rollout:
        return self._buffer.window(places, steps, self.observations, self._initial_state)

    def _by_member(self, rows: Tensor) -> Tensor:
        """Rows `[P e, …]` of a part, on the device as `[P, e, …]`."""
        return rows.to(self.population.device).view(len(self.population), -1, rows.shape[-1])


def mean_returns(parts: Iterable[EpisodeTracker], members: int, team: Team) -> list[float]:
    """Mean return of each member's episodes that ended since the last call; nan if none did."""
    taken = [group.take() for group in parts]  # counts and summed returns, row by row
    sums = [
        np.concatenate([array.reshape(members, -1) for array in arrays], axis=1).sum(axis=1)
        for arrays in zip(*taken, strict=True)
    ]
    counts, returns = team.sum_(torch.tensor(np.array(sums), dtype=torch.float64)).tolist()
    return [total / count if count else math.nan for total, count in zip(returns, counts, strict=True)]


def collect(collectors: Sequence[Collector], vector_steps: int, should_stop: Callable[[], bool]) -> int:
    """Let collectors that step together take so many steps, or fewer if asked to stop; return how many were taken."""
    for collector in collectors:
        collector.resize_hidden_states()
    taken = 0
    while taken < vector_steps and not (taken and should_stop()):
        for collector in collectors:
            collector.step()
        taken += 1
    for collector in collectors:
        collector.wait_for_envs(taken)
    return taken


def _longest_rollout(agent: Any) -> int:
    longest = agent.hp_config["learn_step"].max if "learn_step" in agent.hp_config else agent.learn_step
    return -(-int(max(longest, agent.learn_step)) // agent.num_envs)
