"""Adapts any vector env to one record per step, `Transition`, whatever its autoreset mode.

When an episode ends, vector envs reset in the same step, in the next step (which then ignores the action), or not by
themselves. Only this file handles the difference. In a `Transition`, `next_obs` is always the observation that followed
the action, and a row in which the env ignored the action has `valid=False`. See
https://farama.org/Vector-Autoreset-Mode.

Some envs step in groups (`step_async`, `step_wait`): actions for one group are computed while another one steps. Some
return tensors on an accelerator; nothing here reads their values (see `envs/array_backend.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from agilerl_like.envs import envpool
from agilerl_like.envs.action_masks import ActionMasks
from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend, TorchBackend, array_backend_of
from agilerl_like.envs.cartpole import SeededCartPole
from agilerl_like.envs.distinct_envs import BUILT_FROM_ENV_FNS
from agilerl_like.envs.env_errors import env_errors
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.gymnasium_vector_fixes import fix_infos
from agilerl_like.envs.jax_envs import GymnaxVectorEnv
from agilerl_like.envs.spaces import Tree, tree_map
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv
from agilerl_like.envs.tensor_envs import TensorVectorEnv
from agilerl_like.envs.vec_env_checks import check_reset, check_step, check_vector_env
from agilerl_like.envs.vector_infos import InfoSizeMonitor, copy_info, info_of_env
from agilerl_like.envs.wrapper_specs import innermost_env, refuse_shared_envs
from agilerl_like.errors import ConfigurationError, EnvStepError


class Transition(NamedTuple):
    """One step of N rows; all arrays have one type, numpy or torch, and belong to the caller.

    `obs` [N, …] is the observation to act on next, `next_obs` [N, …] the one that the action led to. They differ only
    in rows whose episode ended and whose env was reset in the same step; if no row differs they are the same object.
    `valid` [N] is False in rows in which the env was reset and ignored the action (reward 0, nothing ended), and in
    rows whose worker process was lost (reward 0; the episode ended, unless it had not started when the process was
    lost). `action_mask` [N, choices] belongs to `obs` and is True where allowed; None if the env has no masks.
    `last_mask` [N, choices] belongs to `next_obs` in rows that differ from `obs`; None allows every action there.
    Where both `terminated` and `truncated` are True the termination counts: there is nothing to bootstrap from.
    """

    obs: Tree
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    next_obs: Tree
    valid: Array  # [N] bool
    action_mask: Array | None
    waited: Array | None = None  # [N] bool: an agent of a team that took no action here, in the midst of its episode
    waits: Array | None = None  # [N] bool: the next step's `waited`
    last_mask: Array | None = None

    @property
    def ended(self) -> Array:
        """Rows whose episode ended in this step, [N] bool."""
        return self.terminated | self.truncated

    @property
    def rewards(self) -> tuple[Array, ...]:
        """The reward of each agent, here of one."""
        return (self.reward,)

    @property
    def acted(self) -> Array:
        """Rows in which an agent acted, [N] bool."""
        return self.valid

    @property
    def lost(self) -> Array:
        """Rows whose worker process was lost, [N] bool."""
        return self.ended & ~self.valid


@dataclass
class _EnvGroup:
    """Rows that step together, with the state of their last step that the next one needs."""

    rows: np.ndarray
    columns: slice
    all_valid: Array = None
    ended: Array = None  # in the last step; updated for NEXT_STEP only
    any_ended: bool = False
    last_obs: Tree = None
    infos: Mapping[str, Any] = field(default_factory=dict)  # of the last step


class VecEnvAdapterProtocol(Protocol):
    """The methods of `VecEnvAdapter` that a learner needs."""

    num_envs: int
    single_observation_space: gym.Space
    single_action_space: gym.Space
    array_backend: ArrayBackend
    action_mask: Array | None
    env: Any

    @property
    def columns(self) -> tuple[slice, ...]: ...
    def set_num_members(self, num_members: int) -> None: ...
    def reset(self, seeds: Sequence[int] | None = None) -> Tree: ...
    def step_async(self, group: int, actions: Any) -> None: ...
    def step_wait(self, group: int) -> Transition: ...
    def check(self) -> None: ...
    def describe_row(self, row: int) -> str: ...


class VecEnvAdapter:
    """Steps any `gymnasium.vector.VectorEnv` and returns Transitions.

    With SAME_STEP autoreset but no `info["final_obs"]`, as in some third-party simulators, the true last observation is
    unknown: `next_obs` is then the observation before the last step, and there is one warning.

    An env of tensors is recognised by its first observations. It may be one of Isaac Lab's, which is not derived from
    VectorEnv and observes {"policy": …} or {"policy": …, "critic": …}; only the policy's entry is used. In numpy such
    a key has no special meaning; an env of which the type is unclear is reset once to find out. Errors in the values of
    tensors are reported by `check`.
    """

    def __init__(self, env: VectorEnv) -> None:
        check_vector_env(env)
        if getattr(env, "is_async", False) is True and envpool.is_pool(env):
            raise ConfigurationError("env is an EnvPool with batch_size < num_envs; allowed is batch_size=num_envs")
        self.env = env
        self.num_envs: int = env.num_envs
        self.agent_ids = ("",)
        """One agent, without a name."""
        self.single_observation_space, self._has_policy_key = _policy_space(env)
        self.single_action_space: gym.Space = env.single_action_space
        self.autoreset_mode: AutoresetMode | None = _autoreset_mode(env)
        """None until the first reset if the env's metadata lack it."""
        self.array_backend: ArrayBackend = NumpyBackend()
        """Of the arrays in Transitions; set by the first reset."""
        self.action_mask: Array | None = None
        """Mask of the observations of the last `reset` or `step`."""
        self._masks = ActionMasks(self.single_action_space)
        self._core = innermost_env(env)
        inner = getattr(env, "unwrapped", env)
        if isinstance(inner, SyncVectorEnv):
            refuse_shared_envs(inner.envs, env)
        fix_infos(inner)
        self._by_workers = isinstance(inner, SubprocVectorEnv)
        self._resets_any_mask = not isinstance(inner, BUILT_FROM_ENV_FNS)
        """False for envs of numpy, perhaps in a wrapper that converts to tensors: they refuse a mask without a True."""
        self._unchecked = not isinstance(env, BUILT_FROM_ENV_FNS)
        """True for other envs and all wrappers until their first step, whose result is checked completely."""
        resets_itself = self.autoreset_mode is not AutoresetMode.DISABLED
        self._grouped = cast(_GroupedVectorEnv, env) if _has_env_groups(env) and resets_itself else None
        self._fresh_arrays = self._grouped is not None or _returns_fresh_arrays(self._core)
        self._pending: Any = None  # actions between `step_async` and `step_wait` of an env without groups
        self._final_obs_missing: Array | None = None  # whether a last observation was missing; tensors only
        self._warnings: set[str] = set()
        self._info_size = InfoSizeMonitor(env)
        self._all_rows = _EnvGroup(np.arange(self.num_envs), slice(None))
        self._groups = [self._all_rows]
        self._last_stepped = self._groups

    def keep_critic_observation(self) -> None:
        """Return the whole observations of an env of tensors, with the critic's entry; call it before `reset`."""
        self.single_observation_space, self._has_policy_key = self.env.single_observation_space, False

    def set_num_members(self, num_members: int) -> None:
        """Divide the rows into env groups, each with as many rows of every member; call it before `reset`.

        Members own equal blocks of consecutive rows.
        """
        env_groups = []
        if self._grouped is not None:
            if hasattr(self._grouped, "set_num_members"):
                self._grouped.set_num_members(num_members)
            env_groups = _equal_member_groups(self._grouped.env_groups, self.num_envs, num_members)
        self._all_rows.columns = slice(0, self.num_envs // num_members)
        self._groups = env_groups or [self._all_rows]

    @property
    def columns(self) -> tuple[slice, ...]:
        """For each env group the slice of a member's envs in it, equal for all members; rows are sorted by member."""
        return tuple(group.columns for group in self._groups)

    def reset(self, seeds: int | Sequence[int | None] | None = None) -> Tree:
        """Start a new episode in every env and return the first observations [N, …].

        `seeds` is one seed for each env, or one for all (row i is seeded with seeds + i). Native vector envs have one
        generator for all rows; for them a list is hashed into one seed. Envs of `make_eval_env` that are built from
        functions take None in a list, too: the row idles.
        """
        with env_errors(self.env, "reset"):
            result = self._reset(seeds)
            if self._unchecked:
                check_reset(result, self.env.single_observation_space, self.num_envs)
            obs, info = result
        if not isinstance(self.single_observation_space, gym.spaces.Dict):
            self._has_policy_key = isinstance(obs, Mapping)  # whatever the env's space is
        obs = self._policy_obs(obs)
        self.array_backend = self._masks.array_backend = array_backend_of(obs)
        if self.autoreset_mode is None:
            self.autoreset_mode = self._guess_mode()
        obs = self._copied(obs)
        self.action_mask = self._masks.read(info, np.arange(self.num_envs))
        for group in (self._all_rows, *self._groups):
            group.ended, group.any_ended = self.array_backend.zeros(len(group.rows), dtype=np.bool_), False
            group.all_valid = ~group.ended
            is_all = group is self._all_rows
            group.last_obs = obs if is_all else tree_map(lambda leaf, its=group.rows: leaf[its], obs)
        return obs

    def step(self, actions: Any) -> Transition:
        """Take one action in each env; do not mix it with `step_async` between two resets."""
        transition = self._step_all(self.array_backend.to_env_actions(actions))
        self.action_mask = transition.action_mask
        return transition

    def step_async(self, group: int, actions: Any) -> None:
        """Start the step of one env group's rows; call `step_wait` before anything else for this group."""
        actions = self.array_backend.to_env_actions(actions)
        if self._grouped is not None and len(self._groups) > 1:
            self._grouped.step_async(group, actions)
        else:
            self._pending = actions

    def step_wait(self, group: int) -> Transition:
        """Return the step of one env group, in the order of its rows."""
        if self._grouped is None or len(self._groups) == 1:
            return self._step_all(self._pending)
        self._last_stepped = self._groups
        with env_errors(self.env, "step"):
            return self._translate(self._groups[group], *self._grouped.step_wait(group))

    def _step_all(self, actions: Any) -> Transition:
        self._last_stepped = [self._all_rows]
        with env_errors(self.env, "step"):
            result = self.env.step(actions)
            if self._unchecked:  # later steps are only checked for their shapes, in `_translate`
                check_step(result, self.env.single_observation_space, self.num_envs)
                self._unchecked = False
            return self._translate(self._all_rows, *result)

    def check(self) -> None:
        """Report errors in the values of tensors; waits for the device, so it is called once a rollout.

        Raises:
            EnvStepError: an action mask allowed nothing.
        """
        if self._final_obs_missing is not None and bool(self._final_obs_missing):
            self._warn_missing_final_obs()
        self._masks.check()

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]:
        """Return the info of one env's last step; `ended` is True if that step ended its episode."""
        for group in self._last_stepped:
            (index,) = np.nonzero(group.rows == row)
            if len(index):
                return info_of_env(group.infos, int(index[0]), ended=ended, num_envs=len(group.rows))
        raise IndexError(f"row={row} of {self.num_envs} envs")

    def describe_row(self, row: int) -> str:
        """Return the name of a row of a member's block, for error messages."""
        return f"env {row} of its own"

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def __repr__(self) -> str:
        return f"VecEnvAdapter({self.env}, {'?' if self.autoreset_mode is None else self.autoreset_mode.name})"

    def _reset(self, seeds: int | Sequence[int | None] | None) -> tuple[Tree, dict[str, Any]]:
        if seeds is not None and not isinstance(self._core, EnvPoolVectorEnv) and envpool.is_pool(self._core):
            self._warn_once(
                "a pool from envpool.make cannot be seeded any more; make_vect_envs(…, backend='envpool') can"
            )
            seeds = None
        if seeds is None:
            return self.env.reset()
        if isinstance(seeds, (int, np.integer)):
            return self.env.reset(seed=int(seeds))
        each = [None if seed is None else int(seed) for seed in seeds]
        if len(each) != self.num_envs:
            raise ConfigurationError(f"seeds has {len(each)} entries; allowed is one for each of {self.num_envs} envs")
        if _is_seeded_per_env(self.env) or _has_env_groups(self.env):
            return self.env.reset(seed=each)  # pyright: ignore[reportArgumentType]  # wider than the base class declares
        entropy = cast(list[int], each)  # None is for envs whose rows are seeded one by one
        return self.env.reset(seed=int(np.random.SeedSequence(entropy).generate_state(1)[0]))

    def _guess_mode(self) -> AutoresetMode:
        if isinstance(self.array_backend, NumpyBackend):
            mode, meaning = AutoresetMode.NEXT_STEP, "the step after an episode's end ignores the action and"
        else:
            mode, meaning = AutoresetMode.SAME_STEP, "the step that ends an episode"
        self._warn_once(
            f"{self.env} has no metadata['autoreset_mode']; {mode.name} is assumed: {meaning} returns the first "
            "observation of the next episode"
        )
        return mode

    def _translate(
        self, group: _EnvGroup, obs: Tree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> Transition:
        self._info_size.check(info)
        arrays, copy = self.array_backend, not self._fresh_arrays
        group.infos = info
        obs = self._copied(self._policy_obs(obs))
        reward = arrays.as_array(reward, np.float32, copy=copy)
        terminated = arrays.as_array(terminated, np.bool_, copy=copy)
        truncated = arrays.as_array(truncated, np.bool_, copy=copy)
        if not reward.shape == terminated.shape == truncated.shape == group.ended.shape:
            raise EnvStepError(
                f"rewards, terminated and truncated have shapes {tuple(reward.shape)}, {tuple(terminated.shape)} and "
                f"{tuple(truncated.shape)}; allowed is {tuple(group.ended.shape)}, one number for each env"
            )
        ended = terminated | truncated
        lost = info.get("worker_lost", False) if self._by_workers else False
        next_obs, last_mask = obs, None
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            valid = ~group.ended
            if group.any_ended:
                reward = arrays.where(valid, reward, 0.0)
                terminated, truncated = terminated & valid, truncated & valid
                ended = ended & (valid | lost)  # a worker that replaces one lost in a reset resets in the next step
            group.ended, group.any_ended = ended, arrays.maybe_any(ended)
            mask = self._masks.read(info, group.rows, ended=ended)
        else:
            valid = arrays.copy(group.all_valid)
            if not arrays.maybe_any(ended):
                mask = self._masks.read(info, group.rows)
            elif self.autoreset_mode is AutoresetMode.SAME_STEP:
                next_obs = self._true_next_obs(group, obs, ended, info)
                mask = self._masks.read(info, group.rows)
                last_mask = self._masks.read_last(info, group.rows)
            elif self._resets_any_mask or bool(ended.any()):
                obs, mask, last_mask = self._reset_rows(group, ended, info)
            else:
                mask = self._masks.read(info, group.rows)
        group.last_obs = obs
        if lost is not False:  # the episode ends here; the action's effect is unknown
            valid &= ~lost
        return Transition(obs, reward, terminated, truncated, next_obs, valid, mask, last_mask=last_mask)

    def _policy_obs(self, obs: Any) -> Tree:
        """Return the policy's entry of the env's observations."""
        return obs["policy"] if self._has_policy_key else obs

    def _copied(self, obs: Tree) -> Tree:
        return obs if self._fresh_arrays else self.array_backend.copy(obs)

    def _true_next_obs(self, group: _EnvGroup, obs: Tree, ended: Array, info: dict[str, Any]) -> Tree:
        """Return `obs` with the first observations of new episodes replaced by the last ones of those that ended."""
        arrays = self.array_backend
        final = info.get("final_obs", info.get("final_observation"))
        known = info.get("_final_obs", info.get("_final_observation", True))
        if final is None:
            missing, next_obs = ended, obs
        else:
            if isinstance(final, np.ndarray) and final.dtype == object:
                final, known = _stack([None if one is None else self._policy_obs(one) for one in final], like=obs)
            else:
                final = self._policy_obs(final)
            next_obs = arrays.where(ended & known, final, obs)
            missing = ended & ~(ended & known)
        if arrays.maybe_any(missing):
            if isinstance(missing, np.ndarray):
                self._warn_missing_final_obs()
            else:
                before = self._final_obs_missing
                self._final_obs_missing = missing.any() if before is None else before | missing.any()
            next_obs = arrays.where(~missing, next_obs, group.last_obs)
        return next_obs

    def _warn_missing_final_obs(self) -> None:
        self._warn_once(
            f"{self.env} resets in the same step without info['final_obs'], so the true last observation of an "
            "episode is unknown; the one before it is used to bootstrap"
        )

    def _reset_rows(
        self, group: _EnvGroup, ended: Array, info: dict[str, Any]
    ) -> tuple[Tree, Array | None, Array | None]:
        """Reset rows that ended; return the observations, their masks and the masks before the reset."""
        last_mask = self._masks.read(info, group.rows, ended=ended)
        group.infos = copy_info(info)  # its lists and arrays may change in the reset
        obs, reset_info = self.env.reset(options={"reset_mask": self.array_backend.copy(ended)})
        mask = self._masks.read(reset_info, group.rows)
        if mask is not None:  # this may be the first one that the env returns
            before = self._masks.all_allowed(self.num_envs) if last_mask is None else last_mask
            mask = self.array_backend.where(ended, mask, before)
        return self._copied(self._policy_obs(obs)), mask, last_mask

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            warnings.warn(text, stacklevel=4)


def check_finite(transition: Any) -> None:
    """Raise EnvStepError if a Transition or MultiAgentTransition holds NaN or infinity."""
    check_finite_array("reward", transition.reward)
    check_finite_array("observation", transition.obs)
    if transition.next_obs is not transition.obs:
        check_finite_array("last observation", transition.next_obs)


def check_finite_array(name: str, values: Tree, describe_row: Callable[[int], str] = "env {}".format) -> None:
    """Raise EnvStepError, naming env, index and value, if a tree of arrays [N, …] holds NaN or infinity.

    `describe_row` returns the name of a row's env.
    """
    if isinstance(values, Mapping):
        for key, child in values.items():
            check_finite_array(f"{name}[{key!r}]", child, describe_row)
    elif isinstance(values, tuple):
        for index, child in enumerate(values):
            check_finite_array(f"{name}[{index}]", child, describe_row)
    elif values.dtype.kind == "f" and np.count_nonzero(np.isfinite(values)) < values.size:
        row, *index = (int(axis) for axis in np.argwhere(~np.isfinite(values))[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise EnvStepError(f"{describe_row(row)}: {where}={values[(row, *index)]} is not finite")


def _policy_space(env: VectorEnv) -> tuple[gym.Space, bool]:
    """Return the policy's observation space, and whether it is the part "policy" of the env's.

    That is so in envs of tensors like Isaac Lab's.
    """
    space = env.single_observation_space
    if isinstance(getattr(env, "unwrapped", env), BUILT_FROM_ENV_FNS) or not isinstance(space, gym.spaces.Dict):
        return space, False
    looks_like_it = "policy" in space.spaces and space.keys() <= {"policy", "critic"}
    if looks_like_it and isinstance(array_backend_of(env.reset()[0]), TorchBackend):
        return space["policy"], True
    return space, False


def _autoreset_mode(env: VectorEnv) -> AutoresetMode | None:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        return None
    try:
        return AutoresetMode(mode)
    except ValueError as fault:
        allowed = [one.value for one in AutoresetMode]
        raise ConfigurationError(f"metadata['autoreset_mode']={mode!r} of {env}; allowed are {allowed}") from fault


_SEEDED_PER_ENV = (*BUILT_FROM_ENV_FNS, EnvPoolVectorEnv, SeededCartPole, TensorVectorEnv, GymnaxVectorEnv)


def _is_seeded_per_env(env: VectorEnv) -> bool:
    """Return whether an env takes one seed for each row, inside of any wrappers that pass seeds on unchanged.

    Those of gymnasium and our own do; a user's may compute with a single seed.
    """
    known = ("gymnasium.", "agilerl_like.")
    while not isinstance(env, _SEEDED_PER_ENV):
        if not isinstance(env, VectorWrapper) or not type(env).__module__.startswith(known):
            return False
        env = env.env
    return True


class _GroupedVectorEnv(VectorEnv):
    """The type of a vector env that steps in groups; `set_num_members` is optional."""

    env_groups: tuple[np.ndarray, ...]

    def set_num_members(self, num_members: int) -> None: ...
    def step_async(self, group: int, actions: Any) -> None: ...
    def step_wait(self, group: int) -> tuple[Tree, Any, Any, Any, dict[str, Any]]: ...


def _has_env_groups(env: VectorEnv) -> bool:
    """Return whether an env steps in groups; a wrapper does not, because stepping its inner env would skip it."""
    return not isinstance(env, VectorWrapper) and all(
        hasattr(env, name) for name in ("env_groups", "step_async", "step_wait")
    )


def _equal_member_groups(env_groups: Sequence[np.ndarray], rows: int, num_members: int) -> list[_EnvGroup]:
    """Return the groups with their columns of each member's block, or [] if they divide members differently."""
    by_member, found = np.arange(rows).reshape(num_members, -1), []
    for group in env_groups:
        first = group[group < by_member.shape[1]]
        columns = slice(int(first[0]), int(first[-1]) + 1) if len(first) else slice(0, 0)
        if not np.array_equal(group, by_member[:, columns].ravel()):
            return []
        found.append(_EnvGroup(group, columns))
    return found


def _returns_fresh_arrays(env: VectorEnv) -> bool:
    """Return whether a step never writes into the arrays of earlier steps; others are copied."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        return bool(env.copy)
    return (
        isinstance(env, (EnvPoolVectorEnv, SeededCartPole, TensorVectorEnv, GymnaxVectorEnv))
        or envpool.is_pool(env)
        or type(env).__module__.startswith("gymnasium.envs.classic_control.")
    )


def _stack(each: Sequence[Tree], *, like: Tree) -> tuple[Tree, np.ndarray]:
    """Stack N observations, with the rows of `like` where one is None; return them and a mask [N] of the others."""
    known = np.array([one is not None for one in each])
    stacked = tree_map(np.array, like)
    for row in np.flatnonzero(known).tolist():
        tree_map(lambda into, value, row=row: into.__setitem__(row, value), stacked, each[row])
    return stacked, known
