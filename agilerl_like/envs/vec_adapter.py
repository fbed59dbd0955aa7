"""What one step of many envs did, in one form, whichever autoreset dialect the vector environment speaks.

When an episode ends, vector environments begin the next one by themselves, and they disagree on when: in the same step,
in the next step (which then ignores the action), or not at all. Here alone that is known. `VecEnvAdapter` turns each
dialect into a `Transition`, in which `next_obs` is always what really followed the action, and a row in which no action
was taken says so with `valid=False`. See https://farama.org/Vector-Autoreset-Mode.

Some envs step in parts: while one part of the rows steps, the others can be thought about (`step_async`, `step_wait`). Some
hand out tensors on an accelerator: then nothing here looks into them (see `envs/array_backend.py`).
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
from agilerl_like.envs.env_errors import env_errors
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.final_obs_fix import copy_final_obs_in
from agilerl_like.envs.spaces import Tree, tree_map
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv, check_num_actions
from agilerl_like.envs.vec_env_checks import check_reset, check_step, check_vector_env
from agilerl_like.envs.vector_infos import InfoSizeMonitor, info_of_env
from agilerl_like.envs.wrapper_specs import innermost_env, refuse_shared_envs
from agilerl_like.errors import ConfigurationError, EnvStepError


class Transition(NamedTuple):
    """What one step of N rows did; all arrays are of one kind, numpy or torch, and belong to the receiver.

    `obs` [N, …] is what to act on next; `next_obs` [N, …] is what the action led to. They differ only in rows whose
    episode ended and whose env was reset at once; where no row differs they are the very same object. `valid` [N] is
    False for rows in which the env ignored the action because it was being reset (their reward is 0 and nothing ended)
    and for those whose worker process was lost with their episode (their reward is 0, and the episode ended unless it
    had not begun when the process was lost).
    `action_mask` [N, choices] goes with `obs`, True where allowed; None if the world has no masks. Where `terminated`
    and `truncated` are both True, the termination counts: there is nothing to bootstrap from.
    """

    obs: Tree
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    next_obs: Tree
    valid: Array  # [N] bool
    action_mask: Array | None

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
    """Rows that step together, and what the next step must know of the last one."""

    rows: np.ndarray
    columns: slice
    all_valid: Array = None
    ended: Array = None  # in the step before; kept for NEXT_STEP only
    some_ended: bool = False
    last_obs: Tree = None
    actions: Any = None  # of an env that has no `step_async`
    infos: Mapping[str, Any] = field(default_factory=dict)  # of the last step


class VecEnvAdapterProtocol(Protocol):
    """Rows of envs that answer in Transitions, part by part: what a learner needs of the world."""

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
    """Speaks every autoreset dialect and answers in Transitions; wraps any `gymnasium.vector.VectorEnv`.

    Reset at once (SAME_STEP) without `info["final_obs"]`, as some third-party simulators do it, leaves the true last
    observation unknown: then `next_obs` is the observation before the last step, and a warning says so once.

    An env of tensors is recognised by its first observations, and may be one of Isaac Lab, which is no VectorEnv by
    birth and observes {"policy": …} or {"policy": …, "critic": …}, of which the policy's part is seen. In numpy such a
    key is one as any other; an env that may be of either kind is reset once to find out. What is wrong with tensors is
    said by `check`.
    """

    def __init__(self, env: VectorEnv) -> None:
        check_vector_env(env)
        if getattr(env, "is_async", False) is True and envpool.is_pool(env):
            raise ConfigurationError("env is an EnvPool with batch_size < num_envs; allowed is batch_size=num_envs")
        self.env = env
        self.num_envs: int = env.num_envs
        self.agent_ids = ("",)
        """One agent, without a name."""
        self.single_observation_space: gym.Space = _policy_space(env)
        self.single_action_space: gym.Space = env.single_action_space
        self.autoreset_mode: AutoresetMode | None = _autoreset_mode(env)
        """None until the first reset if the env does not say."""
        self.array_backend: ArrayBackend = NumpyBackend()
        """The kind of arrays in Transitions, known from the first reset on."""
        self.action_mask: Array | None = None
        """What goes with the observations of the last `reset` or `step`."""
        self._masks = ActionMasks(self.single_action_space)
        self._grouped = cast(_GroupedVectorEnv, env) if _has_env_groups(env) and self._resets_by_itself else None
        self._core = innermost_env(env)
        if isinstance(inner := getattr(env, "unwrapped", env), SyncVectorEnv):
            refuse_shared_envs(inner.envs, f"a function of env={env}")
            copy_final_obs_in(inner)
        self._fresh_arrays = self._grouped is not None or _returns_fresh_arrays(self._core)
        self._unchecked = not isinstance(inner, _BUILT_FROM_SINGLE_ENVS)
        """Whether the env is not one of ours and has not taken a step yet."""
        self._warnings: set[str] = set()
        self._info_size = InfoSizeMonitor(env)
        self._by_workers = isinstance(getattr(env, "unwrapped", env), SubprocVectorEnv)
        self._wrapped = self.single_observation_space is not env.single_observation_space  # in {"policy": …}
        self._final_obs_missing: Array | None = None  # whether a last observation was missing; tensors only
        env_groups = (np.arange(self.num_envs),) if self._grouped is None else self._grouped.env_groups
        self._groups = [_EnvGroup(rows, slice(None)) for rows in env_groups]

    def set_num_members(self, num_members: int) -> None:
        """Have the rows cut into parts that take as much of each of so many equal blocks; comes before `reset`."""
        if self._grouped is not None and hasattr(self._grouped, "set_num_members"):
            self._grouped.set_num_members(num_members)
        env_groups = (
            [] if self._grouped is None else _equal_member_groups(self._grouped.env_groups, self.num_envs, num_members)
        )
        self._groups = env_groups or [_EnvGroup(np.arange(self.num_envs), slice(0, self.num_envs // num_members))]

    @property
    def columns(self) -> tuple[slice, ...]:
        """Which envs of each block belong to a part, as `set_num_members` has cut them; its rows are those block by block."""
        return tuple(group.columns for group in self._groups)

    def reset(self, seeds: int | Sequence[int] | None = None) -> Tree:
        """Begin a new episode in every env and return the first observations [N, …].

        `seeds` is one for each env, or one for all (which gymnasium counts up from row to row). Native vector envs have
        one generator for all rows; a list is mixed into the one seed that they take, so every entry matters.
        """
        with env_errors(self.env, "reset"):
            result = self._reset(seeds)
            if self._unchecked:
                check_reset(result, self.env.single_observation_space, self.num_envs)
            obs, info = result
        if not isinstance(self.single_observation_space, gym.spaces.Dict):
            self._wrapped = isinstance(obs, Mapping)  # whatever the env's space says
        obs = self._policy_obs(obs)
        self.array_backend = self._masks.array_backend = array_backend_of(obs)
        if self.autoreset_mode is None:
            self.autoreset_mode = self._guess_mode()
        obs = self._copied(obs)
        self.action_mask = self._masks.read(info, np.arange(self.num_envs))
        for group in self._groups:
            group.ended, group.some_ended = self.array_backend.zeros(len(group.rows), dtype=np.bool_), False
            group.all_valid = ~group.ended
            group.last_obs = obs if len(self._groups) == 1 else _rows(obs, group.rows)
        return obs

    def step(self, actions: Any) -> Transition:
        """Take one action in each env."""
        if len(self._groups) == 1:
            self.step_async(0, actions)
            transition = self.step_wait(0)
        else:
            actions = np.asarray(self.array_backend.to_env_actions(actions))
            check_num_actions(actions, self.num_envs)
            for place, group in enumerate(self._groups):
                self.step_async(place, actions[group.rows])
            transition = self._merge([self.step_wait(place) for place in range(len(self._groups))])
        self.action_mask = transition.action_mask
        return transition

    def step_async(self, group: int, actions: Any) -> None:
        """Let the rows of one part begin to step; nothing else may be asked of them before `step_wait`."""
        actions = self.array_backend.to_env_actions(actions)
        if self._grouped is not None and len(self._groups) > 1:
            self._grouped.step_async(group, actions)
        else:
            self._groups[group].actions = actions

    def step_wait(self, group: int) -> Transition:
        """Return what the step of one part did, in the order of its rows."""
        its = self._groups[group]
        with env_errors(self.env, "step"):
            if self._grouped is not None and len(self._groups) > 1:
                return self._translate(its, *self._grouped.step_wait(group))
            result = self.env.step(its.actions)
            if self._unchecked:
                self._check_first(result)
            return self._translate(its, *result)

    def _check_first(self, result: Any) -> None:
        """Check all of a first step; what a shape of a later one should be is looked at in `_translate`."""
        check_step(result, self.env.single_observation_space, self.num_envs)
        self._unchecked = False

    def check(self) -> None:
        """Warn or raise for what was wrong with tensors; this waits for the device, so it is called once a rollout.

        Raises:
            EnvStepError: an action mask allowed nothing.
        """
        if self._final_obs_missing is not None and bool(self._final_obs_missing):
            self._warn_missing_final_obs()
        self._masks.check()

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]:
        """The info that one env gave in the last step; `ended` tells whether that step ended its episode."""
        for group in self._groups:
            (place,) = np.nonzero(group.rows == row)
            if len(place):
                return info_of_env(group.infos, int(place[0]), ended=ended)
        raise IndexError(f"row={row} of {self.num_envs} envs")

    def describe_row(self, row: int) -> str:
        """What a row of a member's block is called when something is wrong with it."""
        return f"env {row} of its own"

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def __repr__(self) -> str:
        return f"TransitionEnv({self.env}, {'?' if self.autoreset_mode is None else self.autoreset_mode.name})"

    @property
    def _resets_by_itself(self) -> bool:
        return self.autoreset_mode is not AutoresetMode.DISABLED

    def _reset(self, seeds: int | Sequence[int] | None) -> tuple[Tree, dict[str, Any]]:
        if seeds is not None and not isinstance(self._core, EnvPoolVectorEnv) and envpool.is_pool(self._core):
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
        if isinstance(self._core, _SEEDED_PER_ENV) or _has_env_groups(self.env):
            return self.env.reset(seed=each)  # pyright: ignore[reportArgumentType]  # wider than the base class says
        return self.env.reset(seed=int(np.random.SeedSequence(each).generate_state(1)[0]))

    def _guess_mode(self) -> AutoresetMode:
        if isinstance(self.array_backend, NumpyBackend):
            mode, meaning = AutoresetMode.NEXT_STEP, "the step after an episode's end ignores the action and"
        else:
            mode, meaning = AutoresetMode.SAME_STEP, "the step that ends an episode"
        self._warn_once(
            f"{self.env} does not say metadata['autoreset_mode']; {mode.name} is assumed: {meaning} returns the first "
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
        reward = arrays.to_float32(reward, copy=copy)
        terminated, truncated = arrays.to_bool(terminated, copy=copy), arrays.to_bool(truncated, copy=copy)
        if not reward.shape == terminated.shape == truncated.shape == group.ended.shape:
            raise EnvStepError(
                f"rewards, terminated and truncated have shapes {tuple(reward.shape)}, {tuple(terminated.shape)} and "
                f"{tuple(truncated.shape)}; allowed is {tuple(group.ended.shape)}, one number for each env"
            )
        ended = terminated | truncated
        next_obs = obs
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            valid = ~group.ended
            if group.some_ended:
                reward = arrays.where(valid, reward, 0.0)
                terminated, truncated, ended = terminated & valid, truncated & valid, ended & valid
            group.ended, group.some_ended = ended, arrays.maybe_any(ended)
            mask = self._masks.read(info, group.rows, ignored=ended)
        else:
            valid = arrays.copy(group.all_valid)
            if not arrays.maybe_any(ended):
                mask = self._masks.read(info, group.rows)
            elif self.autoreset_mode is AutoresetMode.SAME_STEP:
                next_obs = self._true_next_obs(group, obs, ended, info)
                mask = self._masks.read(info, group.rows)
            else:
                obs, mask = self._reset_rows(group, ended, info)
        group.last_obs = obs
        if self._by_workers and "worker_lost" in info:  # the episode ends here, but nobody saw what the action did
            valid &= ~info["worker_lost"]
        return Transition(obs, reward, terminated, truncated, next_obs, valid, mask)

    def _merge(self, pieces: Sequence[Transition]) -> Transition:
        """Put the parts of one step in the order of the rows."""

        def put(*arrays: np.ndarray) -> np.ndarray:
            whole = np.empty((self.num_envs, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
            for group, array in zip(self._groups, arrays, strict=True):
                whole[group.rows] = array
            return whole

        def whole(field: str) -> Tree:
            return tree_map(put, *(getattr(piece, field) for piece in pieces))

        def mask_of(piece: Transition) -> np.ndarray:
            return self._masks.free(len(piece.valid)) if piece.action_mask is None else piece.action_mask

        obs = whole("obs")
        masked = any(piece.action_mask is not None for piece in pieces)
        return Transition(
            obs,
            *(whole(field) for field in ("reward", "terminated", "truncated")),
            next_obs=obs if all(piece.next_obs is piece.obs for piece in pieces) else whole("next_obs"),
            valid=whole("valid"),
            action_mask=put(*map(mask_of, pieces)) if masked else None,
        )

    def _policy_obs(self, obs: Any) -> Tree:
        """Return what the policy sees of what the env observes."""
        return obs["policy"] if self._wrapped else obs

    def _copied(self, obs: Tree) -> Tree:
        return obs if self._fresh_arrays else self.array_backend.copy(obs)

    def _true_next_obs(self, group: _EnvGroup, obs: Tree, ended: Array, info: dict[str, Any]) -> Tree:
        """Put the last observations of the episodes that ended in the place of the first ones of new episodes."""
        arrays = self.array_backend
        final = info.get("final_obs", info.get("final_observation"))
        known = info.get("_final_obs", info.get("_final_observation", True))
        if final is None:
            unknown, successors = ended, obs
        else:
            if isinstance(final, np.ndarray) and final.dtype == object:
                final, known = _stacked([None if one is None else self._policy_obs(one) for one in final], like=obs)
            else:
                final = self._policy_obs(final)
            successors = arrays.where(ended & known, final, obs)
            unknown = ended & ~(ended & known)
        if arrays.maybe_any(unknown):
            self._note_missing_final_obs(unknown)
            successors = arrays.where(~unknown, successors, group.last_obs)
        return successors

    def _note_missing_final_obs(self, unknown: Array) -> None:
        if isinstance(unknown, np.ndarray):
            self._warn_missing_final_obs()
        else:
            self._final_obs_missing = (
                unknown.any() if self._final_obs_missing is None else self._final_obs_missing | unknown.any()
            )

    def _warn_missing_final_obs(self) -> None:
        self._warn_once(
            f"{self.env} resets in the same step without info['final_obs'], so the true last observation of an "
            "episode is unknown; the one before it is used to bootstrap"
        )

    def _reset_rows(self, whole: _EnvGroup, ended: Array, info: dict[str, Any]) -> tuple[Tree, Array | None]:
        mask = self._masks.read(info, whole.rows, ignored=ended)
        obs, reset_info = self.env.reset(options={"reset_mask": self.array_backend.copy(ended)})
        fresh = self._masks.read(reset_info, whole.rows)
        if fresh is not None:  # the first ones may come with this reset
            mask = self.array_backend.where(ended, fresh, self._masks.free(self.num_envs) if mask is None else mask)
        return self._copied(self._policy_obs(obs)), mask

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
    """Raise EnvStepError, naming env, place and value, if a tree of arrays [N, …] holds NaN or infinity.

    `describe_row` names the env of a row.
    """
    if isinstance(values, Mapping):
        for key, group in values.items():
            check_finite_array(f"{name}[{key!r}]", group, describe_row)
    elif isinstance(values, tuple):
        for index, group in enumerate(values):
            check_finite_array(f"{name}[{index}]", group, describe_row)
    elif values.dtype.kind == "f" and np.count_nonzero(np.isfinite(values)) < values.size:
        row, *place = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
        where = f"{name}[{', '.join(map(str, place))}]" if place else name
        raise EnvStepError(f"{describe_row(row)}: {where}={values[(row, *place)]} is not finite")


def _policy_space(env: VectorEnv) -> gym.Space:
    """Return what a policy sees: of spaces like Isaac Lab's, in which a critic may see more, its own part."""
    space = env.single_observation_space
    if isinstance(getattr(env, "unwrapped", env), _BUILT_FROM_SINGLE_ENVS) or not isinstance(space, gym.spaces.Dict):
        return space
    looks_like_it = "policy" in space.spaces and space.keys() <= {"policy", "critic"}
    return space["policy"] if looks_like_it and isinstance(array_backend_of(env.reset()[0]), TorchBackend) else space


def _autoreset_mode(env: VectorEnv) -> AutoresetMode | None:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        return None
    try:
        return AutoresetMode(mode)
    except ValueError as fault:
        allowed = [one.value for one in AutoresetMode]
        raise ConfigurationError(f"metadata['autoreset_mode']={mode!r} of {env}; allowed are {allowed}") from fault


_BUILT_FROM_SINGLE_ENVS = (SyncVectorEnv, AsyncVectorEnv, SubprocVectorEnv)
_SEEDED_PER_ENV = (SyncVectorEnv, AsyncVectorEnv, EnvPoolVectorEnv, SeededCartPole)


class _GroupedVectorEnv(VectorEnv):
    """What a vector env that steps in parts looks like to the type checker; `set_num_members` may be missing."""

    env_groups: tuple[np.ndarray, ...]

    def set_num_members(self, num_members: int) -> None: ...
    def step_async(self, group: int, actions: Any) -> None: ...
    def step_wait(self, group: int) -> tuple[Tree, Any, Any, Any, dict[str, Any]]: ...


def _has_env_groups(env: VectorEnv) -> bool:
    """Say whether an env steps in parts; a wrapper's inner env may, but that would leave the wrapper out."""
    return not isinstance(env, VectorWrapper) and all(
        hasattr(env, name) for name in ("env_groups", "step_async", "step_wait")
    )


def _equal_member_groups(env_groups: Sequence[np.ndarray], rows: int, num_members: int) -> list[_EnvGroup]:
    """Return the parts with the envs of each block that they take; none if some block is cut unlike the others."""
    by_block, found = np.arange(rows).reshape(num_members, -1), []
    for group in env_groups:
        first = group[group < by_block.shape[1]]
        columns = slice(int(first[0]), int(first[-1]) + 1) if len(first) else slice(0, 0)
        if not np.array_equal(group, by_block[:, columns].ravel()):
            return []
        found.append(_EnvGroup(group, columns))
    return found


def _returns_fresh_arrays(env: VectorEnv) -> bool:
    """Say whether the arrays of one step are left alone by the next; what is not known for sure is copied."""
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        return bool(env.copy)
    return (
        isinstance(env, EnvPoolVectorEnv)
        or envpool.is_pool(env)
        or isinstance(env, SeededCartPole)
        or type(env).__module__.startswith("gymnasium.envs.classic_control.")
    )


def _rows(tree: Tree, rows: np.ndarray) -> Tree:
    return tree_map(lambda leaf: leaf[rows], tree)


def _stacked(each: Sequence[Tree], *, like: Tree) -> tuple[Tree, np.ndarray]:
    """Stack N observations, and say which are there; where one is None it is as in `like`."""
    known = np.array([one is not None for one in each])
    stacked = tree_map(np.array, like)
    for row in np.flatnonzero(known).tolist():
        tree_map(lambda into, value, row=row: into.__setitem__(row, value), stacked, each[row])
    return stacked, known
