"""Policies that draw their actions by a `Sampling`, and the env adapter that holds the seeds of the episodes.

The noise of an episode comes from a stream that its seed and the agent's index name, so an episode is the same whatever
other episodes are played beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.evaluation import Episodes, EvalEnv, GroupActor, GroupPolicy, eval_mode, evaluate
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_base import torch_generator
from agilerl_like.envs.pytree import tree_map
from agilerl_like.networks.distributions import Gaussian
from agilerl_like.networks.exploration import EpsilonGreedy
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo
from agilerl_like.networks.sampling import Sampling
from agilerl_like.seeding import Purpose

NOISE_STEPS = 64
"""Steps for which the noise of an episode is drawn at once."""


class SeededEpisodes:
    """An env adapter that holds the seeds of the episodes in its rows; a subclass records what happens in them."""

    num_envs: int
    action_mask: Any
    env: Any
    agent_ids: tuple[str, ...]
    array_backend: Any

    def __init__(self, env: EvalEnv) -> None:
        self._adapter = env
        self.seeds: list[int] = []
        """The seed of each row's episode; 0 in a row that plays none."""
        self.rounds = 0
        """How often `reset` was called."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def reset(self, seeds: Any = None) -> Any:
        """Start an episode in each row."""
        self.seeds, self.rounds = [0 if seed is None else seed for seed in seeds], self.rounds + 1
        return self._adapter.reset(seeds)

    def step(self, actions: Any) -> Any:
        """Take an action in each row."""
        return self._adapter.step(actions)

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]:
        """Return the info of one row's last step."""
        return self._adapter.last_info(row, ended=ended)


class OneRow:
    """The episode in one row."""

    def __init__(self, episodes: SeededEpisodes, row: int) -> None:
        self._episodes, self._row = episodes, row

    @property
    def seeds(self) -> list[int]:
        """Its seed."""
        return [self._episodes.seeds[self._row]]

    @property
    def rounds(self) -> int:
        """How often the envs were reset."""
        return self._episodes.rounds


class SampledPolicy:
    """The policy of one group of agents, as `algorithms.evaluation.Policy`, with actions drawn by a `Sampling`."""

    def __init__(self, learner: Learner, sampling: Sampling, episodes: SeededEpisodes | OneRow) -> None:
        self.learner, self._episodes = learner, episodes
        self._sampling = sampling.of_policy(learner.distribution, is_deterministic=learner.is_deterministic)
        self.encoding: Any = learner.encoding
        """The encoder of the rows that it reads."""
        self._round = 0
        self._generators: list[torch.Generator] = []
        self._block, self._used = torch.zeros(0), 0

    @torch.no_grad()
    def __call__(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Any, Tensor]:
        """Return the env's actions for encoded observations `[N, D]`, and the next hidden state."""
        network, distribution = self.learner.network, self.learner.distribution
        x = network.observation_norm(encoded)
        outputs, after = network.step(x, state)
        noise = outputs if self._sampling.is_greedy else self._next_noise()
        raw = self._sampling.draw(distribution, outputs, noise, mask)
        self.record(x, state, outputs, raw, mask)
        return distribution.to_env(raw), after

    def record(self, x: Tensor, state: Tensor, outputs: Tensor, raw: Tensor, mask: Tensor | None) -> None:
        """Receive normalised observations, hidden state, policy outputs, raw actions and masks of one step."""

    def log_prob_and_value(
        self, x: Tensor, state: Tensor, outputs: Tensor, raw: Tensor, mask: Tensor | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-probability under the unchanged policy and the critic's value, `[N]` each.

        The log-probability is that of the env's action, as in `evaluate_actions`: of a Box the density at the clipped
        action, and not at the raw one. Of action values (DQN) the results are 0, because the largest is always chosen,
        and that value. The log-probability is 0 for evolution strategies with discrete actions, too.
        """
        distribution = self.learner.distribution
        if isinstance(distribution, EpsilonGreedy):
            values, _ = self.learner.network.evaluate(x)  # the outputs of a dueling network are advantages
            legal = values if mask is None else values.masked_fill(~mask, -torch.inf)
            return np.zeros(len(x), np.float32), legal.amax(-1).cpu().numpy()
        sequence = SequenceInfo(x.new_zeros(len(x), 1), state) if self.learner.recurrent else NO_SEQUENCE
        taken = distribution.from_env(distribution.to_env(raw)).to(raw)
        log_prob, _ = distribution.evaluate(outputs, taken, mask)
        if self.learner.is_deterministic and not isinstance(distribution, Gaussian):
            log_prob = torch.zeros_like(log_prob)  # the outputs are not those of a softmax
        return log_prob.cpu().numpy(), self.learner.network.value(x, sequence).cpu().numpy()

    def _next_noise(self) -> Tensor:
        """Return the noise `[N, …]` of the next step of all rows."""
        learner, episodes = self.learner, self._episodes
        if self._round != episodes.rounds:
            keys = learner.index, learner.group.number or 0
            self._generators = [
                torch_generator(learner.device, seed, Purpose.ACTION_NOISE, *keys) for seed in episodes.seeds
            ]
            self._round, self._used = episodes.rounds, NOISE_STEPS
        if self._used == NOISE_STEPS:
            shape = NOISE_STEPS, learner.num_agents
            blocks = [learner.distribution.noise(shape, generator) for generator in self._generators]
            self._block, self._used = torch.stack(blocks, 1).flatten(1, 2), 0
        self._used += 1
        return self._block[self._used - 1]


class SideBySide:
    """One group of each of several agents, each of which acts in a row of its own."""

    def __init__(self, groups: Sequence[GroupPolicy]) -> None:
        self._groups = groups

    def actor(self, env: EvalEnv, row_seeds: Sequence[int]) -> SideBySideActor:
        """Return what acts in a round."""
        return SideBySideActor([GroupActor(group, env.array_backend) for group in self._groups])


class SideBySideActor:
    """The actors of several agents, one for each row, whose hidden states may differ in size."""

    def __init__(self, actors: Sequence[GroupActor]) -> None:
        self._actors = actors

    def act(self, observations: Any, masks: Any) -> Any:
        """Return the actions `[N, …]`; of several agents a dict by agent."""
        found = []
        for row, actor in enumerate(self._actors):
            seen, mask = tree_map(
                lambda leaf, at=row: None if leaf is None else leaf[at : at + 1], (observations, masks)
            )
            found.append(actor.act(seen, mask))
        return tree_map(lambda *parts: np.concatenate(parts), *found)

    def note(self, step: Any) -> None:
        """Keep each agent's hidden states after a step."""
        rows = self._actors[0].layout.continuing(step)
        for row, actor in enumerate(self._actors):
            actor.keep(None if rows is None else rows.reshape(len(self._actors), -1)[row])


def play_side_by_side(
    agents: Sequence[EvolvableAlgorithm],
    episodes: SeededEpisodes,
    seed: int,
    sampling: Sampling,
    *,
    max_steps: int | None = None,
) -> Episodes:
    """Play one episode of the same seed with each agent, in as many rows at once."""
    groups = [
        SideBySide(
            [
                agent.group_policies[group]._replace(
                    policy=SampledPolicy(agent.learners[group], sampling, OneRow(episodes, row))
                )
                for row, agent in enumerate(agents)
            ]
        )
        for group in agents[0].group_policies
    ]
    with contextlib.ExitStack() as stack:
        for agent in agents:
            stack.enter_context(eval_mode(agent))
        return evaluate(
            groups,
            episodes,
            [seed],
            members=len(agents),
            max_steps=max_steps,
        )


def play(
    agent: EvolvableAlgorithm,
    env: EvalEnv,
    seeds: list[int],
    sampling: Sampling,
    *,
    max_steps: int | None = None,
) -> Episodes:
    """Play one episode for each seed, and return them with the info of each last step."""
    agent._check_env(env)
    if sampling.is_greedy:
        return agent.run_episodes(env, seeds, max_steps, with_infos=True)
    episodes = SeededEpisodes(env)
    return play_with(
        agent,
        episodes,
        {group: SampledPolicy(learner, sampling, episodes) for group, learner in agent.learners.items()},
        seeds,
        max_steps=max_steps,
    )


def play_with(
    agent: EvolvableAlgorithm,
    episodes: SeededEpisodes,
    policies: dict[str, SampledPolicy],
    seeds: list[int],
    *,
    max_steps: int | None = None,
) -> Episodes:
    """Play one episode for each seed with the given policies of an agent's groups."""
    groups: dict[str, GroupPolicy] = agent.group_policies
    with eval_mode(agent):
        return evaluate(
            [groups[group]._replace(policy=policy, encoding=policy.encoding) for group, policy in policies.items()],
            episodes,
            seeds,
            members=1,
            max_steps=max_steps,
            with_infos=True,
        )
