"""Playing counted episodes: every member on the same seeds, none cut short because another one was quicker.

The subtlety is the count. Taking the first episodes that end, from whichever env, favours short ones; so each env
plays one episode of a given seed and what it does afterwards is ignored, until all have ended and the next round
begins.

Whether all have ended is asked after every step of numpy, and of tensors now and then: to ask waits for the device, and
steps too many are ignored like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.episode_guard import EpisodeGuard, never
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.distinct_envs import num_distinct_envs, round_up_to_sets
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.seeding import Purpose, integers

Policy = Callable[[Tensor, Tensor | None, Tensor], tuple[Any, Tensor]]
"""Encoded observations `[N, D]`, masks `[N, choices]`, and what is remembered of the episode `[N, M, K, H]` -> the
env's actions `[N, …]`, and what is remembered then."""

TENSOR_STEPS = 16
"""Steps of tensors between two looks at who is still playing."""

MORE_TRIES = 3
"""How often those play again of whose episodes none was left to judge them by."""

Played = tuple[np.ndarray, ...]
"""Returns `[…, P, K]`, lengths `[P, K]`, whether episodes were lost `[P, K]`, and their last infos `[P, K]`."""
LOST = 2
"""The place of `lost` in it."""


class Stepped(Protocol):
    """An env of which each row's last info can be asked."""

    num_envs: int

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]: ...


class NoInfos:
    """Keeps no infos."""

    def note(self, stopped: Any, ended: Any) -> None:
        """Do nothing."""

    def of(self, rows: int) -> np.ndarray:
        """Nothing of any row, `[N]`."""
        return np.full(rows, None, dtype=object)


class LastInfos(NoInfos):
    """Keeps the info of the last step of each row's episode; to ask an env of tensors for them waits for its device."""

    def __init__(self, env: Stepped, to_numpy: Callable[[Any], np.ndarray] = np.asarray) -> None:
        self._env, self._to_numpy = env, to_numpy
        self._infos = np.full(env.num_envs, None, dtype=object)

    def note(self, stopped: Any, ended: Any) -> None:
        """Keep the infos of rows `[N]` whose episode stops here: it `ended`, or is not continued."""
        rows, over = np.flatnonzero(self._to_numpy(stopped)), self._to_numpy(ended)
        for row in rows.tolist():
            self._infos[row] = self._env.last_info(row, ended=bool(over[row]))

    def of(self, rows: int) -> np.ndarray:
        """The infos of all rows, `[N]`."""
        return self._infos


class Episodes(NamedTuple):
    """What P members scored in K episodes each."""

    returns: np.ndarray  # [P, K] float64
    lengths: np.ndarray  # [P, K] int64
    lost: np.ndarray  # [P, K] bool: the process that stepped the env died, and nobody knows how the episode went on
    infos: np.ndarray | None = None  # [P, K] object: the info of each episode's last step, if they were asked for

    @property
    def means(self) -> np.ndarray:
        """Mean return of each member `[P]`, of the episodes that were not lost; nan if all were."""
        count = (~self.lost).sum(axis=1)
        total = np.where(self.lost, 0.0, self.returns).sum(axis=1)
        return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard error of each mean return `[P]`: the sample deviation over the square root of the episodes counted.

        It is nan where fewer than two episodes count.
        """
        count = (~self.lost).sum(axis=1)
        squares = np.where(self.lost, 0.0, (self.returns - self.means[:, None]) ** 2).sum(axis=1)
        return np.sqrt(np.divide(squares, count * (count - 1), out=np.full(len(count), np.nan), where=count > 1))

    @property
    def steps(self) -> int:
        """Env steps of all members together."""
        return int(self.lengths.sum())


EpisodeCallback = Callable[[float, dict[str, Any]], None]
"""Called with an episode's return and its last info, to which `episode_length` is added."""


def report_episodes(episodes: Episodes, callback: EpisodeCallback | None) -> None:
    """Call `callback`, if there is one, for each episode of the first member."""
    if callback is None or episodes.infos is None:
        return
    for score, length, info in zip(episodes.returns[0], episodes.lengths[0], episodes.infos[0], strict=True):
        callback(float(score), {**(info or {}), "episode_length": int(length)})


def evaluate(
    policy: Policy,
    env: VecEnvAdapter,
    seeds: Sequence[int],
    *,
    members: int,
    encoding: ObservationEncoder,
    initial_hidden_state: Tensor,
    max_steps: int | None = None,
    with_infos: bool = False,
    should_stop: Callable[[], bool] = never,
) -> Episodes:
    """Play one episode for each of `seeds` and each of `members`, whose envs are equal blocks of the env's rows.

    If the rows are unlike (see `envs.instances`), seeds are added until every instance is played equally often, and
    every member plays the same instances on the same seeds.

    `nothing` `[M, K, H]`, on the policy's device, is what is remembered when an episode begins. `max_steps` cuts an
    episode that is longer. `with_infos` keeps the info of each episode's last step. `should_stop` is asked at every
    step.

    Raises:
        EnvStepError: an observation or a reward is not finite.
        EvaluationStopped: the evaluation was asked to stop.
    """
    envs = env.num_envs // members
    seeds = _for_whole_sets(seeds, num_distinct_envs(env.env), envs)
    beginning = initial_hidden_state.expand(env.num_envs, *initial_hidden_state.shape)

    def play(some: Sequence[int]) -> Played:
        guard = EpisodeGuard(env, members, is_cut=max_steps is not None, should_stop=should_stop)
        return _round(policy, env, some, members, encoding, beginning, max_steps, with_infos, guard)

    return Episodes(*in_rounds(play, seeds, envs))


def _for_whole_sets(seeds: Sequence[int], instances: int, envs: int) -> Sequence[int]:
    """Return the seeds, and as many more as give every instance equally many, if a member's envs have all of them."""
    if envs % instances:
        return seeds
    missing = round_up_to_sets(len(seeds), instances) - len(seeds)
    return [*seeds, *integers(missing, seeds[0], Purpose.EVALUATION_ENVS, 0, len(seeds))]


def in_rounds(play: Callable[[Sequence[int]], Played], seeds: Sequence[int], envs: int) -> Played:
    """Play an episode for each of `seeds`, as many at a time as a member has envs.

    Members all of whose episodes were lost with the processes that stepped them would be judged by nothing, for what is
    not their fault: they play again, on other seeds, `MORE_TRIES` times at most.
    """

    def all_of(seeds: Sequence[int]) -> Played:
        rounds = [play(seeds[i : i + envs]) for i in range(0, len(seeds), envs)]
        return tuple(np.concatenate(parts, axis=-1) for parts in zip(*rounds, strict=True))

    played = all_of(seeds)
    for attempt in range(1, MORE_TRIES + 1):
        unjudged = played[LOST].all(axis=-1, keepdims=True)
        if not unjudged.any():
            break
        others = all_of(integers(len(seeds), seeds[0], Purpose.EVALUATION_ENVS, attempt))
        played = tuple(np.where(unjudged, new, old) for new, old in zip(others, played, strict=True))
    return played


def _round(
    policy: Policy,
    env: VecEnvAdapter,
    seeds: Sequence[int],
    members: int,
    encoding: ObservationEncoder,
    state: Tensor,
    max_steps: int | None,
    with_infos: bool,
    guard: EpisodeGuard,
) -> Played:
    envs = env.num_envs // members
    observations = env.reset([seeds[i % len(seeds)] for i in range(envs)] * members)
    guard.check(observation=observations)
    arrays, device = env.array_backend, state.device
    encode = arrays.make_encode_fn(encoding)
    look_every = 1 if isinstance(arrays, NumpyBackend) else TENSOR_STEPS
    playing = arrays.from_numpy(np.tile(np.arange(envs) < len(seeds), members))
    returns, lengths, lost = (arrays.zeros(env.num_envs, dtype=dtype) for dtype in (np.float64, np.int64, np.bool_))
    infos = LastInfos(env, arrays.to_numpy) if with_infos else NoInfos()
    for step in count(1):
        guard.step(lambda playing=playing: int(playing.sum()))
        mask = None if env.action_mask is None else torch.as_tensor(env.action_mask).to(device)
        actions, state = policy(encode(observations).to(device), mask, state)
        transition = env.step(actions)
        observations = transition.obs
        guard.check(reward=transition.reward, observation=observations)
        counted = playing & transition.valid
        returns += arrays.where(counted, transition.reward, 0.0)
        lengths += counted
        lost = lost | (playing & transition.ended & ~transition.valid)
        before, playing = playing, playing & ~transition.ended
        if max_steps is not None:
            playing = playing & (lengths < max_steps)
        infos.note(before & ~playing, transition.ended)
        if step % look_every == 0 and not guard.goes_on(playing):
            break
    found = arrays.to_numpy(returns), arrays.to_numpy(lengths), arrays.to_numpy(lost), infos.of(env.num_envs)
    return tuple(part.reshape(members, envs)[:, : len(seeds)] for part in found)
