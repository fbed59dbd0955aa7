"""What one step of many envs did, in one form, whichever autoreset dialect the vector environment speaks.

When an episode ends, vector environments begin the next one by themselves, and they disagree on when: in the same step,
in the next step (which then ignores the action), or not at all. Here alone that is known. `TransitionEnv` turns each
dialect into a `Transition`, in which `next_obs` is always what really followed the action, and a row in which no action
was taken says so with `valid=False`. See https://farama.org/Vector-Autoreset-Mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from agilerl_like.envs import envpool
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.spaces import Tree, mask_size, tree_map
from agilerl_like.errors import ConfigurationError, EnvironmentFault


class Transition(NamedTuple):
    """What one step of N envs did; all arrays belong to the receiver.

    `obs` [N, …] is what to act on next; `next_obs` [N, …] is what the action led to. They differ only in rows whose
    episode ended and whose env was reset at once; where no row differs they are the very same object. `valid` [N] is
    False for rows in which the env ignored the action because it was being reset (their reward is 0 and nothing ended).
    `action_mask` [N, choices] goes with `obs`, True where allowed; None if the world has no masks. Where `terminated`
    and `truncated` are both True, the termination counts: there is nothing to bootstrap from.
    """

    obs: Tree
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    next_obs: Tree
    valid: np.ndarray  # [N] bool
    action_mask: np.ndarray | None

    @property
    def ended(self) -> np.ndarray:
        """Rows whose episode ended in this step, [N] bool."""
        return self.terminated | self.truncated


class TransitionEnv:
    """Speaks every autoreset dialect and answers in Transitions; wraps any `gymnasium.vector.VectorEnv`.

    Reset at once (SAME_STEP) without `info["final_obs"]`, as some third-party simulators do it, leaves the true last
    observation unknown: then `next_obs` is the observation before the last step, and a warning says so once.
    """

    def __init__(self, env: VectorEnv) -> None:
        _check_vector_env(env)
        self.env = env
        self.num_envs: int = env.num_envs
        self.single_observation_space: gym.Space = env.single_observation_space
        self.single_action_space: gym.Space = env.single_action_space
        self.autoreset_mode = _autoreset_mode(env)
        self.action_mask: np.ndarray | None = None
        self._reuses_buffers = not _returns_fresh_arrays(env)
        self._last_obs: Tree = None
        self._resets_in_next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        self._all_valid = np.ones(self.num_envs, dtype=np.bool_)
        self._ended = ~self._all_valid  # in the step before; kept for NEXT_STEP only
        self._some_ended = False
        self._warnings: set[str] = set()

    def reset(self, seeds: int | Sequence[int] | None = None) -> Tree:
        """Begin a new episode in every env and return the first observations [N, …].

        `seeds` is one for each env, or one for all (which gymnasium counts up from row to row). Native vector envs have
        one generator for all rows; a list is mixed into the one seed that they take, so every entry matters.
        """
        obs, info = self._reset(seeds)
        self._ended = ~self._all_valid
        self._some_ended = False
        self._last_obs = self._own(obs)
        self.action_mask = self._read_mask(info)
        return self._last_obs

    def step(self, actions: Any) -> Transition:
        """Take one action in each env."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if self._reuses_buffers:
            obs = tree_map(np.array, obs)
            terminated, truncated = np.array(terminated, dtype=np.bool_), np.array(truncated, dtype=np.bool_)
            reward = np.array(reward, dtype=np.float32)
        else:
            reward = reward.astype(np.float32, copy=False)
        ended = terminated | truncated
        next_obs = obs
        if self._resets_in_next_step:
            valid = ~self._ended
            if self._some_ended:
                reward[self._ended] = 0.0
                terminated &= valid
                truncated &= valid
                ended &= valid
            self._ended = ended
            self._some_ended = np.count_nonzero(ended) > 0
            mask = self._read_mask(info, unasked=ended)
        else:
            valid = self._all_valid.copy()
            if np.count_nonzero(ended) == 0:
                mask = self._read_mask(info)
            elif self.autoreset_mode is AutoresetMode.SAME_STEP:
                next_obs = self._true_successors(obs, ended, info)
                mask = self._read_mask(info)
            else:
                obs, mask = self._reset_rows(ended, info)
        self._last_obs = obs
        self.action_mask = mask
        return Transition(obs, reward, terminated, truncated, next_obs, valid, mask)

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def __repr__(self) -> str:
        return f"TransitionEnv({self.env}, {self.autoreset_mode.name})"

    def _reset(self, seeds: int | Sequence[int] | None) -> tuple[Tree, dict[str, Any]]:
        if seeds is not None and not isinstance(self.env, EnvPoolVectorEnv) and envpool.is_pool(self.env):
            self._warn_once(
                "a pool from envpool.make cannot be seeded any more; make_vect_envs(…, backend='envpool') can"
            )
            seeds = None
        if seeds is None:
            return self.env.reset()
        if isinstance(seeds, (int, np.integer)):
            return self.env.reset(seed=int(seeds))
        each = [int(seed) for seed in seeds]
        if len(each) != self.num_envs:
            raise ConfigurationError(f"seeds has {len(each)} entries; allowed is one for each of {self.num_envs} envs")
        if isinstance(self.env, (SyncVectorEnv, AsyncVectorEnv, EnvPoolVectorEnv)):
            return self.env.reset(seed=each)  # pyright: ignore[reportArgumentType]  # wider than the base class says
        return self.env.reset(seed=int(np.random.SeedSequence(each).generate_state(1)[0]))

    def _own(self, obs: Tree) -> Tree:
        return tree_map(np.array, obs) if self._reuses_buffers else obs

    def _true_successors(self, obs: Tree, ended: np.ndarray, info: dict[str, Any]) -> Tree:
        """Put the last observations of the episodes that ended into a copy of `obs`, which is that of new episodes."""
        final = info.get("final_obs", info.get("final_observation"))
        successors = tree_map(np.array, obs)
        known = np.zeros(self.num_envs, dtype=np.bool_)
        if isinstance(final, np.ndarray) and final.dtype == object:
            for row in np.flatnonzero(ended):
                if final[row] is not None:
                    _assign_row(successors, row, final[row])
                    known[row] = True
        elif final is not None:
            known = ended & info.get("_final_obs", True)
            _assign_rows(successors, final, known)
        unknown = ended & ~known
        if unknown.any():
            self._warn_once(
                f"{self.env} resets in the same step without info['final_obs'], so the true last observation of an "
                "episode is unknown; the one before it is used to bootstrap"
            )
            _assign_rows(successors, self._last_obs, unknown)
        return successors

    def _reset_rows(self, ended: np.ndarray, info: dict[str, Any]) -> tuple[Tree, np.ndarray | None]:
        mask = self._read_mask(info, unasked=ended)
        obs, reset_info = self.env.reset(options={"reset_mask": ended.copy()})
        if mask is not None and (fresh := self._read_mask(reset_info)) is not None:
            mask[ended] = fresh[ended]
        return self._own(obs), mask

    def _read_mask(self, info: dict[str, Any], *, unasked: np.ndarray | None = None) -> np.ndarray | None:
        """Return the mask [N, choices] that goes with the observations; rows that bring none may do everything.

        `unasked` rows are those whose next action is ignored: a finished world may well allow nothing.
        """
        given = info.get("action_mask")
        if given is None:
            return None if self.action_mask is None else np.ones_like(self.action_mask)
        choices = mask_size(self.single_action_space)
        present = info.get("_action_mask", np.ones(self.num_envs, dtype=np.bool_))
        if isinstance(given, np.ndarray) and given.dtype == object:
            given = [row if here else np.ones(choices) for row, here in zip(given, present, strict=True)]
        mask = _as_mask(given)
        if mask.shape != (self.num_envs, choices):
            raise ConfigurationError(
                f"info['action_mask'] has shape {mask.shape}; allowed for {self.single_action_space} in "
                f"{self.num_envs} envs is {(self.num_envs, choices)}"
            )
        mask[~present] = True
        if unasked is not None:
            mask[unasked] = True
        self._check_some_choice(mask)
        return mask

    def _check_some_choice(self, mask: np.ndarray) -> None:
        space = self.single_action_space
        if isinstance(space, gym.spaces.MultiBinary):
            return  # a bit that may not be 1 can still be 0
        starts = np.cumsum(space.nvec) - space.nvec if isinstance(space, gym.spaces.MultiDiscrete) else [0]
        stuck = ~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1)
        if stuck.any():
            row = int(np.argmax(stuck))
            raise EnvironmentFault(f"env {row}: action_mask={mask[row].astype(int).tolist()} allows no action")

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            warnings.warn(text, stacklevel=4)


class FinishedEpisodes(NamedTuple):
    """Episodes that ended in one step: the env's row, the sum of rewards, the number of steps."""

    rows: np.ndarray  # [K] int64
    returns: np.ndarray  # [K] float64
    lengths: np.ndarray  # [K] int64


class EpisodeTracker:
    """Adds up rewards and steps of the running episodes of N envs."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.lengths = np.zeros(num_envs, dtype=np.int64)

    def reset(self) -> None:
        """Forget the running episodes, as after a reset of all envs."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def update(self, transition: Transition) -> FinishedEpisodes:
        """Count one step, and return the episodes that it ended; rows that are not valid count nothing."""
        self.returns += transition.reward  # 0 where not valid
        self.lengths += transition.valid
        ended = transition.terminated | transition.truncated
        if np.count_nonzero(ended) == 0:
            return _NONE_FINISHED
        rows = np.flatnonzero(ended)
        finished = FinishedEpisodes(rows, self.returns[rows], self.lengths[rows])
        self.returns[rows] = 0.0
        self.lengths[rows] = 0
        return finished


_NONE_FINISHED = FinishedEpisodes(np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64))


def check_finite(transition: Transition) -> None:
    """Raise EnvironmentFault if an env returned NaN or infinity."""
    check_finite_array("reward", transition.reward)
    check_finite_array("observation", transition.obs)
    if transition.next_obs is not transition.obs:
        check_finite_array("last observation", transition.next_obs)


def check_finite_array(name: str, values: Tree) -> None:
    """Raise EnvironmentFault, naming env, place and value, if a tree of arrays [N, …] holds NaN or infinity."""
    if isinstance(values, Mapping):
        for key, part in values.items():
            check_finite_array(f"{name}[{key!r}]", part)
    elif isinstance(values, tuple):
        for index, part in enumerate(values):
            check_finite_array(f"{name}[{index}]", part)
    elif values.dtype.kind == "f" and np.count_nonzero(np.isfinite(values)) < values.size:
        row, *place = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
        where = f"{name}[{', '.join(map(str, place))}]" if place else name
        raise EnvironmentFault(f"env {row}: {where}={values[(row, *place)]} is not finite")


def _check_vector_env(env: object) -> None:
    if not hasattr(env, "num_envs") or not hasattr(env, "single_observation_space"):
        hint = "make_vect_envs(lambda: env_of_yours(), num_envs)" if isinstance(env, gym.Env) else "make_vect_envs(id)"
        raise ConfigurationError(f"env={env!r} is not a gymnasium.vector.VectorEnv; {hint} makes one")
    if getattr(env, "is_async", False) is True and envpool.is_pool(env):
        raise ConfigurationError("env is an EnvPool with batch_size < num_envs; allowed is batch_size=num_envs")


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode is None:
        warnings.warn(
            f"{env} does not say metadata['autoreset_mode']; NEXT_STEP is assumed: the step after an episode's end "
            "ignores the action and returns the first observation of the next episode",
            stacklevel=3,
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError as fault:
        allowed = [one.value for one in AutoresetMode]
        raise ConfigurationError(f"metadata['autoreset_mode']={mode!r} of {env}; allowed are {allowed}") from fault


def _returns_fresh_arrays(env: VectorEnv) -> bool:
    """Say whether the arrays of one step are left alone by the next; what is not known for sure is copied."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        return bool(env.copy)
    return (
        isinstance(env, EnvPoolVectorEnv)
        or envpool.is_pool(env)
        or type(env).__module__.startswith("gymnasium.envs.classic_control.")
    )


def _as_mask(given: Any) -> np.ndarray:
    try:
        return np.array(given, dtype=np.bool_)
    except ValueError as fault:  # rows of unequal length
        raise ConfigurationError(f"info['action_mask'] has rows of unequal shape: {given!r}") from fault


def _assign_rows(target: Tree, source: Tree, rows: np.ndarray) -> None:
    def assign(into: np.ndarray, value: Any) -> None:
        into[rows] = np.asarray(value)[rows]

    tree_map(assign, target, source)


def _assign_row(target: Tree, row: np.intp, source: Tree) -> None:
    def assign(into: np.ndarray, value: Any) -> None:
        into[row] = value

    tree_map(assign, target, source)
