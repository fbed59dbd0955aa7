"""Evaluation episodes: every member plays the same seeds, and the length of an episode does not affect which count.

Counting the first episodes that end, in any env, would favour short ones. So each env plays one episode of a given
seed, its later steps are ignored, and the next round starts when all episodes have ended.

Agents are evaluated in groups that share a policy; a single agent is a group of one. Whether all episodes have ended is
checked after each step of numpy envs, but only after every few steps of tensor envs, because that check waits for the
device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.episode_guard import EpisodeGuard, never_stop
from agilerl_like.algorithms.openings import Openings
from agilerl_like.envs.array_backend import ArrayBackend, NumpyBackend
from agilerl_like.envs.distinct_envs import num_episodes, num_instances
from agilerl_like.envs.evaluation_envs import idles_without_seed
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vector_infos import copy_info
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, integers

Policy = Callable[[Tensor, Tensor | None, Tensor], tuple[Any, Tensor]]
"""Encoded observations `[N, D]`, action masks `[N, choices]` and hidden states `[N, M, K, H]` -> the env's actions
`[N, …]` and the next hidden states."""

TENSOR_CHECK_STEPS = 16
"""Steps of tensor envs between two checks whether any episode is running."""
MAX_RETRIES = 3
"""How often a member's episodes are repeated if all of them were lost with their worker processes."""

Played = tuple[np.ndarray, ...]
"""Returns by agent `[A, P, K]`, lengths `[P, K]`, flags of lost episodes `[P, K]`, and their last infos `[P, K]`."""
LOST = 2
"""Index of the flags of lost episodes in `Played`."""


class EvalEnv(Protocol):
    """The interface of `VecEnvAdapter` and `MultiAgentVecEnvAdapter` that evaluation uses."""

    num_envs: int
    action_mask: Any
    env: Any

    @property
    def agent_ids(self) -> tuple[str, ...]: ...
    @property
    def array_backend(self) -> ArrayBackend: ...
    def reset(self, seeds: Sequence[int | None] | None = None) -> Any: ...
    def step(self, actions: Any) -> Any: ...
    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]: ...


class Episodes(NamedTuple):
    """Results of K episodes of each of P members."""

    returns: np.ndarray  # [P, K] float64, summed over agents
    lengths: np.ndarray  # [P, K] int64
    lost: np.ndarray  # [P, K] bool: the worker process died during the episode
    infos: np.ndarray | None = None  # [P, K] object: the info of each episode's last step, None unless requested
    returns_by_agent: Mapping[str, np.ndarray] = MappingProxyType({})  # [P, K] float64; of a single agent under ""
    seeds: np.ndarray | None = None  # [P, K] int64: the seed of each episode's reset; None if they are not known

    @property
    def mean(self) -> np.ndarray:
        """Mean return of each member `[P]` over the episodes that were not lost; nan if all were."""
        count = (~self.lost).sum(axis=1)
        total = np.where(self.lost, 0.0, self.returns).sum(axis=1)
        return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each member's returns `[P]`; nan where fewer than two episodes were not lost.

        It is that of these episodes (`ddof` 0): the squares are divided by their number.
        """
        count = (~self.lost).sum(axis=1)
        return np.sqrt(np.divide(self._squares, count, out=np.full(len(count), np.nan), where=count > 1))

    @property
    def _squares(self) -> np.ndarray:
        """Sum of squared deviations of each member's returns `[P]`."""
        return np.where(self.lost, 0.0, (self.returns - self.mean[:, None]) ** 2).sum(axis=1)

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard error of each mean return `[P]`; nan where fewer than two episodes count."""
        count = (~self.lost).sum(axis=1)
        return np.sqrt(np.divide(self._squares, count * (count - 1), out=np.full(len(count), np.nan), where=count > 1))

    @property
    def is_zero_sum(self) -> bool:
        """Whether the returns of several agents add up to 0 in each episode, and are not all 0."""
        return is_zero_sum(*self.largest_returns)

    @property
    def largest_returns(self) -> tuple[float, float]:
        """Largest absolute value of a return, and of an agent's part of one; for `is_zero_sum`."""
        by_agent = [*self.returns_by_agent.values()]
        return float(np.abs(self.returns).max(initial=0.0)), float(np.abs(by_agent).max(initial=0.0))

    @property
    def steps(self) -> int:
        """Env steps of all members."""
        return int(self.lengths.sum())


def is_zero_sum(largest: float, largest_of_agent: float) -> bool:
    """Whether returns add up to 0 over the agents, given `Episodes.largest_returns`; False without rewards."""
    return largest_of_agent > 0.0 and largest <= 1e-6 * largest_of_agent


EpisodeCallback = Callable[[float, dict[str, Any]], None]
"""Called with an episode's return and its last info, with `episode_length` added."""


def report_episodes(episodes: Episodes, callback: EpisodeCallback | None) -> None:
    """Call `callback` for each episode of the first member."""
    if callback is None or episodes.infos is None:
        return
    for score, length, info in zip(episodes.returns[0], episodes.lengths[0], episodes.infos[0], strict=True):
        callback(float(score), {**(info or {}), "episode_length": int(length)})


class RowLayout(Protocol):
    """Converts between the arrays of a group's A agents in N envs and rows `[N A, …]`, as `AgentGroup` does."""

    def observation_rows(self, by_agent: Any) -> Any:
        """Return the rows of observations `[N, …]` by agent."""

    def mask_rows(self, masks: Any) -> Any:
        """Return the rows of action masks `[N, choices]` by agent; None without masks."""

    def split_by_agent(self, rows: Any) -> Any:
        """Return rows of actions as arrays `[N, …]` by agent."""

    def continuing(self, step: Any) -> np.ndarray | None:
        """Return which rows `[N A]` keep their hidden state after a step; None: all."""


class SingleAgentRows:
    """The layout of a single agent, whose arrays are the rows."""

    def observation_rows(self, by_agent: Any) -> Any:
        return by_agent

    def mask_rows(self, masks: Any) -> Any:
        return masks

    def split_by_agent(self, rows: Any) -> Any:
        return rows

    def continuing(self, step: Any) -> np.ndarray | None:
        return None  # steps after the end of an episode do not count


class Actor(Protocol):
    """Some agents in all rows of an env during a round."""

    def act(self, observations: Any, masks: Any) -> Any: ...
    def note(self, step: Any) -> None: ...


class HasActor(Protocol):
    """What makes an `Actor` for each round: a `GroupPolicy`, or `ScriptedAgents`."""

    def actor(self, env: EvalEnv, row_seeds: Sequence[int]) -> Actor: ...


class GroupPolicy(NamedTuple):
    """The policy of the agents of one group, with the conversions of its inputs and outputs."""

    policy: Policy
    encoding: ObservationEncoder
    initial_hidden_state: Tensor  # [M, K, H], on the policy's device
    layout: RowLayout = SingleAgentRows()

    def actor(self, env: EvalEnv, row_seeds: Sequence[int]) -> Actor:
        """Return the group's actor for a round; `row_seeds` are unused, because the policy does not explore."""
        return GroupActor(self, env.array_backend)


class HasTrainingMode(Protocol):
    """An agent or a population."""

    @property
    def training(self) -> bool: ...
    def set_training_mode(self, training: bool) -> None: ...


@contextmanager
def eval_mode(player: HasTrainingMode) -> Iterator[None]:
    """Switch off exploration inside the `with` block."""
    training = player.training
    player.set_training_mode(False)
    try:
        yield
    finally:
        player.set_training_mode(training)


def evaluate(
    groups: Iterable[HasActor],
    env: EvalEnv,
    seeds: Sequence[int],
    *,
    members: int,
    max_steps: int | None = None,
    with_infos: bool = False,
    should_stop: Callable[[], bool] = never_stop,
    openings: Openings | None = None,
) -> Episodes:
    """Play one episode for each of `seeds` and each of `members`, whose envs are equal blocks of the env's rows.

    `groups` are the policies of all agents of the env. If the rows differ (see `envs.distinct_envs`), seeds are added
    until every kind of row is played equally often, and all members play the same kinds on the same seeds. Each of K
    instances (`VecEnvConfig.instances`) is played on all seeds; episode number i is of instance i modulo K.

    `max_steps` cuts longer episodes. `with_infos` stores the info of each episode's last step. `should_stop` is called
    at every step. `openings` replace the first moves of multi-agent games.

    Raises:
        EnvStepError: an observation or a reward is not finite.
        EvaluationStopped: `should_stop` returned True.
    """
    envs = env.num_envs // members
    missing = num_episodes(len(seeds), env.env, envs) - len(seeds)
    seeds = [*seeds, *integers(missing, seeds[0], Purpose.EVALUATION_ENVS, 0, len(seeds))]
    if (instances := num_instances(env.env)) > 1:
        if envs % instances:
            raise ConfigurationError(
                f"num_envs={env.num_envs} of {members} members; allowed with {instances} instances are multiples of "
                f"{instances * members}"
            )
        seeds = [seed for seed in seeds for _ in range(instances)]

    def play(some: Sequence[int]) -> Played:
        guard = EpisodeGuard(env, members, is_cut=max_steps is not None, should_stop=should_stop)
        played = _play_round(groups, env, some, members, max_steps, with_infos, guard, openings)
        return *played, np.tile(np.array(some, np.int64), (members, 1))

    returns, lengths, lost, infos, played_seeds = in_rounds(play, seeds, envs, instances)
    by_agent = dict(zip(env.agent_ids, returns, strict=True))
    return Episodes(returns.sum(0), lengths, lost, infos, by_agent, played_seeds)


def in_rounds(play: Callable[[Sequence[int]], Played], seeds: Sequence[int], envs: int, instances: int = 1) -> Played:
    """Play an episode for each of `seeds`, as many at a time as a member has envs.

    A member whose episodes were all lost with their worker processes has no result, so it plays again on other seeds,
    at most `MAX_RETRIES` times. Each seed is repeated for so many `instances`.
    """

    def all_of(seeds: Sequence[int]) -> Played:
        rounds = [play(seeds[i : i + envs]) for i in range(0, len(seeds), envs)]
        return tuple(np.concatenate(parts, axis=-1) for parts in zip(*rounds, strict=True))

    played = all_of(seeds)
    for attempt in range(1, MAX_RETRIES + 1):
        all_lost = played[LOST].all(axis=-1, keepdims=True)
        if not all_lost.any():
            break
        drawn = integers(len(seeds) // instances, seeds[0], Purpose.EVALUATION_ENVS, attempt)
        others = all_of([seed for seed in drawn for _ in range(instances)])
        played = tuple(np.where(all_lost, new, old) for new, old in zip(others, played, strict=True))
    return played


def _play_round(
    groups: Iterable[HasActor],
    env: EvalEnv,
    seeds: Sequence[int],
    members: int,
    max_steps: int | None,
    with_infos: bool,
    guard: EpisodeGuard,
    openings: Openings | None = None,
) -> Played:
    envs = env.num_envs // members
    row_seeds = [seeds[i % len(seeds)] for i in range(envs)] * members
    counts = np.tile(np.arange(envs) < len(seeds), members)
    starts = counts | (not idles_without_seed(env.env))  # the other rows idle, which saves the time of their steps
    observations = env.reset([seed if its else None for seed, its in zip(row_seeds, starts, strict=True)])
    guard.check(observation=observations)
    backend = env.array_backend  # set by the first reset
    actors = [group.actor(env, row_seeds) for group in groups]
    playing = backend.from_numpy(counts)
    returns = [backend.zeros(env.num_envs, dtype=np.float64) for _ in env.agent_ids]
    lengths, lost = backend.zeros(env.num_envs, dtype=np.int64), backend.zeros(env.num_envs, dtype=np.bool_)
    check_every = 1 if isinstance(backend, NumpyBackend) else TENSOR_CHECK_STEPS
    infos = np.full(env.num_envs, None, dtype=object)
    for step in count(1):
        guard.step(lambda playing=playing: int(playing.sum()))
        actions = reduce(operator.or_, [actor.act(observations, env.action_mask) for actor in actors])
        if openings is not None and step <= openings.longest:
            actions = openings.replace(step - 1, actions, env, row_seeds)
        transition = env.step(actions)
        for actor in actors:
            actor.note(transition)
        observations, ended = transition.obs, transition.ended
        guard.check(reward=transition.reward, observation=observations)
        for total, reward in zip(returns, transition.rewards, strict=True):
            total += backend.where(playing, reward, 0.0)  # 0 where not valid
        lengths += playing & transition.acted
        lost = lost | (playing & transition.lost)
        before, playing = playing, playing & ~ended
        if max_steps is not None:
            playing = playing & (lengths < max_steps)
        if with_infos:  # of a tensor env this waits for the device
            over = backend.to_numpy(ended)
            for row in np.flatnonzero(backend.to_numpy(before & ~playing)).tolist():
                infos[row] = copy_info(env.last_info(row, ended=bool(over[row])))
        if step % check_every == 0 and not guard.any_playing(playing):
            break
    found = np.stack([backend.to_numpy(total) for total in returns]), *map(backend.to_numpy, (lengths, lost))
    return tuple(x.reshape(*x.shape[:-1], members, envs)[..., : len(seeds)] for x in (*found, infos))


class GroupActor:
    """One group's agents in all envs during a round, with their hidden states."""

    def __init__(self, group: GroupPolicy, backend: ArrayBackend) -> None:
        self._policy, self.layout, self._state = group.policy, group.layout, group.initial_hidden_state.unsqueeze(0)
        self._encode = backend.make_encode_fn(group.encoding)

    def act(self, observations: Any, masks: Any) -> Any:
        """Return the actions `[N, …]`; of several agents a dict by agent."""
        device, mask = self._state.device, self.layout.mask_rows(masks)
        encoded = self._encode(self.layout.observation_rows(observations)).to(device)
        mask = None if mask is None else torch.as_tensor(mask).to(device)
        actions, self._state = self._policy(encoded, mask, self._state.expand(len(encoded), -1, -1, -1))
        return self.layout.split_by_agent(actions)

    def note(self, step: Any) -> None:
        """Keep the hidden states after a step, as training does: an agent's is zero until its first action."""
        if self._state.numel():
            self.keep(self.layout.continuing(step))

    def keep(self, rows: np.ndarray | None) -> None:
        """Set the hidden states of all rows to zero but those of `rows` `[N A]` bool; None: keep all."""
        if rows is not None:
            self._state = self._state * torch.as_tensor(rows).to(self._state.device).view(-1, 1, 1, 1)
