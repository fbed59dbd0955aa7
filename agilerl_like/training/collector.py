"""A population stepping through its envs, remembering what it needs to learn.

All members' envs are one vector env of P x E rows, of which member p owns block p. They step together and episodes go
on across updates and generations; only who is due learns, and those who are due together learn together.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.population import Population
from agilerl_like.envs.spaces import ObservationEncoding, mask_size
from agilerl_like.envs.transitions import EpisodeTracker, TransitionEnv
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.cohort import Report
from agilerl_like.learning.rollout import Rollout, RolloutBuffer, truncated_at_once
from agilerl_like.seeding import Purpose, integers


class Clock:
    """Seconds by part of a run."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Any:
        """Count the time inside the `with` block towards a part."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - start


class Collector:
    """Steps P x E envs with a population."""

    def __init__(self, population: Population, env: TransitionEnv, clock: Clock) -> None:
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
        self.population, self.env, self.clock = population, env, clock
        self.envs = env.num_envs // members
        for agent in population:
            agent.num_envs = self.envs
            agent.check()
        self._encoding = ObservationEncoding(env.single_observation_space)
        distribution = first.distribution
        self.buffer = RolloutBuffer(
            max(_longest_rollout(agent) for agent in population),
            members,
            self.envs,
            observation_size=self._encoding.size,
            action_size=distribution.size,
            action_dtype=distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=population.device,
        )
        self.tracker = EpisodeTracker(env.num_envs)
        self.since = np.zeros(members, dtype=np.int64)
        self.returns: list[list[float]] = [[] for _ in range(members)]
        self.observations = torch.zeros(0)
        self.mask: Tensor | None = None

    def reset(self, *keys: int) -> None:
        """Begin new episodes everywhere; each block of envs has seeds named by the run's seed, its place and `keys`."""
        population = self.population
        seeds = [
            seed
            for place in range(len(population))
            for seed in integers(self.envs, population.seed, Purpose.TRAINING_ENVS, place, *keys)
        ]
        self.observations = self._seen(self.env.reset(seeds))
        self.mask = self._its_mask()
        self.tracker.reset()
        self.population.forget_noise()
        self.since[:] = 0

    def tick(self) -> None:
        """Take one step in every env."""
        clock, env = self.clock, self.env
        with clock("act"):
            raw = self.population.act(self.observations, self.mask)
            actions = self.population.to_env(raw)
        with clock("env"):
            transition = env.step(actions)
        with clock("act"):
            rows = truncated_at_once(transition)
            successors = self._encoding.encode(transition.next_obs[rows]) if len(rows) else None
            self.buffer.add(self.observations, raw, transition, successors, self.mask)
            self.observations = self._seen(transition.obs)
            self.mask = self._its_mask()
            finished = self.tracker.update(transition)
            for row, score in zip(finished.rows, finished.returns, strict=True):
                self.returns[row // self.envs].append(float(score))
            self.since += 1

    def learn(self) -> Mapping[int, Report]:
        """Let everybody learn whose rollout is full."""
        needed = [agent.rollout_steps for agent in self.population]
        due = [place for place, steps in enumerate(needed) if self.since[place] >= steps]
        if not due:
            return {}
        with self.clock("learn"):
            reports = self.population.learn(due, self._window)
        self.since[due] = 0
        return reports

    def forget(self, place: int) -> None:
        """A newcomer lives here: what its predecessor saw is not its own."""
        self.since[place] = 0

    def take_returns(self) -> list[list[float]]:
        """Returns of the training episodes that ended since the last call, by member."""
        returns, self.returns = self.returns, [[] for _ in self.returns]
        return returns

    def _window(self, places: list[int], steps: int) -> Rollout:
        return self.buffer.window(places, steps, self.observations)

    def _seen(self, observations: Any) -> Tensor:
        encoded = torch.from_numpy(self._encoding.encode(observations)).to(self.population.device)
        return encoded.view(len(self.population), self.envs, -1)

    def _its_mask(self) -> Tensor | None:
        mask = self.env.action_mask
        if mask is None:
            return None
        return torch.from_numpy(mask).to(self.population.device).view(len(self.population), self.envs, -1)


def _longest_rollout(agent: Any) -> int:
    longest = agent.hp_config["learn_step"].max if "learn_step" in agent.hp_config else agent.learn_step
    return -(-int(max(longest, agent.learn_step)) // agent.num_envs)
