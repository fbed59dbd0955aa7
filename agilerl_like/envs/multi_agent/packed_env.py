"""A PettingZoo parallel env as one gymnasium env, so that all vectorisation of single envs serves multi-agent ones.

Observations, rewards and flags of all agents are packed into one row of bytes (`PackedSpace`): one array to stack, copy
and share between processes, whatever the agents' spaces are.

Agents may appear late, leave and come back, wait for their turn, or terminate before the others. An agent that does not
act keeps its last observation in the row (before its first one: zeros, clipped to its space); `acting` is False, and
`reward` what the env paid it. Nothing is NaN. An agent waits if the env does not list it in `agents`, or if its action
mask allows nothing while that of another agent allows something. Worker processes import this module, so it does not
import torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatdim

from agilerl_like.envs.env_errors import check_reward
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.random_actions import MASK, sample_masked
from agilerl_like.envs.subproc.worker import fits_shared_memory
from agilerl_like.errors import ConfigurationError, EnvStepError, short_repr, unknown_name

OBSERVATION = "observation"  # with MASK: PettingZoo's keys of observations that come with a mask
STATE_SPACE = "state_space"  # metadata key of the space of `state()`
_BOOL = cast(Any, np.bool_)  # a valid dtype of Box, contrary to its signature
_OF_RESET = ("observations", "infos")
_OF_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


class PackedSpace(Box):
    """Rows of bytes, each of which holds one sample of every one of `spaces`, by name."""

    def __init__(self, spaces: Iterable[tuple[str, gym.Space]]) -> None:
        self.dict_space = Dict(list(spaces))
        self.row_dtype = _row_dtype(self.dict_space)
        super().__init__(0, 255, (self.row_dtype.itemsize,), np.uint8)

    def read(self, rows: np.ndarray) -> Tree:
        """Return the contents of rows `[…, bytes]` as a tree of arrays `[…, *shape]`, which are views."""
        return _field_views(rows.view(self.row_dtype)[..., 0], self.dict_space)

    def pack(self, values: Mapping[str, Any], count: int) -> np.ndarray:
        """Pack arrays `[count, *shape]`, one for each name, into rows `[count, bytes]`.

        Raises:
            ConfigurationError: a name is missing or unknown, or a shape, dtype or value does not fit its space.
        """
        for name in values:
            if name not in self.dict_space.spaces:
                raise unknown_name("actions", name, self.dict_space.spaces)
        rows = np.zeros((count, self.row_dtype.itemsize), np.uint8)
        for name, fields in self.read(rows).items():
            if name not in values:
                raise ConfigurationError(f"actions has nothing for agent {name!r}; allowed is one array for each agent")
            if error := _write(fields, values[name]) or _out_of_range(fields, self.dict_space[name]):
                raise ConfigurationError(f"actions[{name!r}] {error}")
        return rows

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """One random sample of each space; masks are not applied."""
        row = np.zeros(self.row_dtype.itemsize, np.uint8)
        _write(self.read(row), self.dict_space.sample())
        return row

    def seed(self, seed: Any = None) -> Any:
        return self.dict_space.seed(seed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedSpace):
            return False
        return self.dict_space == other.dict_space and self.row_dtype == other.row_dtype  # dict spaces ignore order

    def __hash__(self) -> int:
        return hash((*self.dict_space.spaces, self.shape))

    def __repr__(self) -> str:
        return f"PackedSpace({', '.join(f'{name}: {space}' for name, space in self.dict_space.spaces.items())})"


class StepResult(NamedTuple):
    """Rewards and flags of A agents in N envs."""

    reward: np.ndarray  # [A, N] float32
    terminated: np.ndarray  # [A, N] bool
    truncated: np.ndarray  # [A, N] bool
    valid: np.ndarray  # [A, N] bool


def read_step_result(final: Tree, acted: np.ndarray, waited: np.ndarray, lost: np.ndarray) -> StepResult:
    """Read rewards and flags from the fields of the rows after a step in which agents `acted` or `waited`, `[N, A]`.

    In `lost` envs `[N]` (a worker process died) the effect of the actions is unknown: agents are truncated and the step
    is not valid.
    """
    stepped = acted.any(1, keepdims=True) & ~lost[:, None]
    results = (
        np.where(stepped, final["reward"], 0.0).astype(np.float32),
        final["terminated"] & stepped,
        (final["truncated"] & stepped) | ((acted | waited) & lost[:, None]),
        acted & ~lost[:, None],
    )
    return StepResult(*(np.ascontiguousarray(result.T) for result in results))


class PackedMultiAgentEnv(gym.Env[np.ndarray, np.ndarray]):
    """A PettingZoo parallel env as one env, whose observations are rows of a `PackedSpace`.

    Fields of a row: `obs` by agent, without a mask; `mask` by agent, where its actions can be masked; arrays over
    agents: `reward`, `terminated` and `truncated` of the last step, `acting` (acts next), `waiting` (has acted in this
    episode, does not act next, and has not ended) and `masked` (the env gave a mask); and the env's `state` if
    `with_state`.

    The episode ends when no agent acts next; agents that are waiting then are truncated.

    Raises:
        ConfigurationError: agents without names, spaces without a fixed size, or `with_state` without the space of a
            state that is one array.
    """

    def __init__(self, env: Any, *, with_state: bool = False) -> None:
        self.env = env
        self.agents = _possible_agents(env)
        state_space = getattr(env, "state_space", None)
        self.metadata = {**(getattr(env, "metadata", None) or {}), STATE_SPACE: state_space}
        self.render_mode = getattr(env, "render_mode", None)
        if with_state and not isinstance(state_space, gym.Space):
            raise ConfigurationError(f"with_state=True needs an env with a state_space; {env} has {state_space!r}")
        if with_state and isinstance(state_space, (Dict, Tuple)):
            raise ConfigurationError(
                f"with_state=True: {env} has state_space={state_space}; allowed is the space of one array, as "
                "PettingZoo's state() returns"
            )
        observed = [(agent, _space(env, "observation_space", agent)) for agent in self.agents]
        actions = [(agent, _space(env, "action_space", agent)) for agent in self.agents]
        self.action_space = PackedSpace(actions)
        self.observation_space = PackedSpace(_row_spaces(observed, actions, state_space if with_state else None))
        self.with_state = with_state
        self._masked_in_obs = {agent for agent, space in observed if _observes_mask(space)}
        self._row, self._fields = self._empty_row(self.observation_space)
        self._action_row, self._actions = self._empty_row(self.action_space)
        self._first_row, fields = self._empty_row(self.observation_space)
        _write(fields["obs"], zero_sample(self.observation_space.dict_space["obs"]))
        self._masks: Mapping[str, np.ndarray] = self._fields.get("mask", {})
        self._ended_agents: set[str] = set()
        self._started_agents: set[str] = set()
        self._acting: tuple[str, ...] = ()
        self._present: tuple[str, ...] = ()
        self._steps = 0

    @property
    def packed_core(self) -> Any:
        """The PettingZoo env inside of all wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def max_episode_steps(self) -> int | None:
        """Time limit of an episode, from the `max_cycles` of PettingZoo's envs; None if it has none or is unknown.

        In a cycle every agent acts: in one step, or in a step each if the agents take turns.
        """
        core = self.packed_core
        limit = getattr(core, "max_cycles", None)
        if not isinstance(limit, int):
            return None
        takes_turns = hasattr(core, "agent_iter") and not self.metadata.get("is_parallelizable", False)
        return limit * len(self.agents) if takes_turns else limit

    @staticmethod
    def _empty_row(space: PackedSpace) -> tuple[np.ndarray, Tree]:
        """Return a row of zeros, and views of its fields."""
        row = np.zeros(space.row_dtype.itemsize, np.uint8)
        return row, space.read(row)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        result = self.env.reset(seed=seed, options=options)
        observations, infos = self._checked_result("reset", result, _OF_RESET)
        self._row[:] = self._first_row
        self._ended_agents.clear()
        self._started_agents.clear()
        self._steps = 0
        self._present = self._active_agents()
        if not self._present:
            raise EnvStepError(f"{self.env} started an episode without agents")
        info = self._write_observations(observations, infos, ())
        return self._row.copy(), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step with the actions of the agents that are present; the reward is the sum over agents."""
        self._action_row[:] = action
        acted = self._acting
        actions = {agent: tree_map(_copied, self._actions[agent]) for agent in self._present}
        observations, rewards, terminations, truncations, infos = self._checked_result(
            "step", self.env.step(actions), _OF_STEP
        )
        self._steps += 1
        self._started_agents.update(acted)
        running = self._started_agents - self._ended_agents
        for agent in acted:
            if agent not in rewards:
                raise EnvStepError(f"{self.env} gave no reward to agent {agent!r}, which acted")
        ended = {agent for agent in running if terminations.get(agent) or truncations.get(agent)}
        self._ended_agents |= ended
        self._present = self._active_agents()
        fields, agents = self._fields, self.agents
        per_agent = [self._checked_reward(agent, rewards[agent]) if agent in rewards else 0.0 for agent in agents]
        info = self._write_observations(observations, infos, {*acted, *ended})
        over = not self._acting
        fields["reward"][...] = per_agent
        fields["terminated"][...] = [agent in ended and bool(terminations.get(agent)) for agent in agents]
        fields["truncated"][...] = [
            agent in running and (bool(truncations.get(agent)) if agent in ended else over) for agent in agents
        ]
        if not over:
            away = self._started_agents.difference(self._ended_agents, self._acting)
            fields["waiting"][...] = [agent in away for agent in agents]
        return self._row.copy(), float(sum(per_agent)), over, False, info

    def sample_legal(self) -> np.ndarray:
        """Return a row of random actions that respect the agents' current masks."""
        masked = dict(zip(self.agents, self._fields["masked"].tolist(), strict=True))
        sampled = {
            agent: sample_masked(space, self._masks[agent] if masked[agent] else None)
            for agent, space in cast(PackedSpace, self.action_space).dict_space.spaces.items()
        }
        _write(self._actions, sampled)
        return self._action_row.copy()

    def state(self) -> np.ndarray:
        """The global state, for centralised critics."""
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _checked_result(self, method: str, result: Any, names: tuple[str, ...]) -> tuple[Mapping[str, Any], ...]:
        """Return a result of `reset` or `step`; EnvStepError unless it is a tuple of dicts with these names."""
        if not isinstance(result, tuple) or len(result) != len(names):
            given = f"a tuple of {len(result)}" if isinstance(result, tuple) else short_repr(result)
            raise EnvStepError(f"{self.env}: {method}() returned {given}; allowed is ({', '.join(names)})")
        for name, part in zip(names, result, strict=True):
            if type(part) is not dict and not isinstance(part, Mapping):
                raise EnvStepError(
                    f"{self.env}: {method}() returned {name}={short_repr(part)}; allowed is a dict by agent"
                )
        return result

    def _checked_reward(self, agent: str, reward: Any) -> Any:
        if type(reward) is not float or not math.isfinite(reward):
            name = f"{self.env}, step {self._steps} of the episode: the reward of agent {agent!r}"
            check_reward(name, reward)
            if not math.isfinite(reward):  # later it is credited to another step, or to the team
                self._check_last_observations()
                raise EnvStepError(f"{name}={reward} is not finite")
        return reward

    def _check_last_observations(self) -> None:
        """Raise EnvStepError if an agent acted on numbers that are not finite, because its actions are not either."""
        for agent, observation in self._fields["obs"].items():
            parts: list[np.ndarray] = []
            tree_map(parts.append, observation)
            if not all(np.isfinite(part).all() for part in parts):
                place = f"{self.env}, step {self._steps - 1} of the episode"
                raise EnvStepError(f"{place}: the observation of agent {agent!r} is not finite")

    def _active_agents(self) -> tuple[str, ...]:
        """The agents that are present; one that has ended does not act again in this episode."""
        listed = getattr(self.env, "agents", None)
        if type(listed) is not list and not isinstance(listed, Collection):
            raise EnvStepError(f"{self.env} has agents={short_repr(listed)}; allowed is a list of those that act next")
        present = set(listed)
        if unknown := present.difference(self.agents):
            raise EnvStepError(f"{self.env} has agents {sorted(map(str, unknown))} outside {list(self.agents)}")
        return tuple(agent for agent in self.agents if agent in present and agent not in self._ended_agents)

    def _write_observations(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], acted: Collection[str]
    ) -> dict[str, Any]:
        """Write observations, masks, state and who acts next into the row; return infos without masks."""
        fields, present = self._fields, self._present
        for field in self._masks.values():
            field[...] = True
        masked = []
        for agent in self.agents:
            mask = None
            if agent in present or (agent in acted and agent in observations):
                mask = self._write_observation(agent, observations)
                if mask is None:
                    mask = self._mask_in_info(agent, infos.get(agent))
            if mask is not None and agent in present and self._write_mask(agent, mask):
                masked.append(agent)
        self._acting = present
        stuck = [agent for agent in masked if not self._masks[agent].any()]
        if stuck and len(stuck) < len(masked):  # they wait for the others, whose masks allow something
            self._acting = tuple(agent for agent in present if agent not in stuck)
            for agent in stuck:
                self._masks[agent][...] = True
        fields["masked"][...] = [agent in masked and agent in self._acting for agent in self.agents]
        fields["acting"][...] = [agent in self._acting for agent in self.agents]
        fields["waiting"][...] = False
        if self.with_state:
            self._check("state()", _write(fields["state"], self.state()))
        return _infos_without_masks(infos, self.agents)

    def _write_observation(self, agent: str, observations: Mapping[str, Any]) -> Any:
        """Write an agent's observation into the row, and return the mask that came with it."""
        if agent not in observations:
            raise EnvStepError(f"{self.env} gave no observation to agent {agent!r}, which is to act")
        observation, mask = observations[agent], None
        if agent in self._masked_in_obs:
            if not isinstance(observation, Mapping) or MASK not in observation:
                raise EnvStepError(f"{self.env}: the observation of agent {agent!r} has no {MASK}")
            observation, mask = split_mask(observation)
        self._check(f"the observation of agent {agent!r}", _write(self._fields["obs"][agent], observation))
        return mask

    def _mask_in_info(self, agent: str, info: Any) -> Any:
        """Return the action mask in an agent's info; None if there is none."""
        if not info:
            return None
        if not isinstance(info, Mapping):
            raise EnvStepError(f"{self.env}: the info of agent {agent!r} is {short_repr(info)}; allowed is a dict")
        return info.get(MASK)

    def _write_mask(self, agent: str, mask: Any) -> bool:
        """Write an agent's action mask into the row; return False if its actions cannot be masked."""
        if agent not in self._masks:
            return False
        self._check(f"the {MASK} of agent {agent!r}", _write(self._masks[agent], flat_mask(mask).astype(np.bool_)))
        return True

    def _check(self, what: str, error: str) -> None:
        if error:
            raise EnvStepError(f"{self.env}: {what} {error}")


def time_limit(env: gym.Env) -> int | None:
    """Return the time limit of a single env's episodes, in steps; None if it has none, or it is unknown."""
    core = env.unwrapped
    if isinstance(core, PackedMultiAgentEnv):
        return core.max_episode_steps
    return None if env.spec is None else env.spec.max_episode_steps


def split_mask(observation: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an observation without the action mask that PettingZoo's environments give with it, and the mask."""
    rest = {key: part for key, part in observation.items() if key != MASK}
    return rest[OBSERVATION] if rest.keys() == {OBSERVATION} else rest, observation[MASK]


def flat_mask(mask: Any) -> np.ndarray:
    """Return an action mask as an array; a tuple has a part for each choice."""
    return np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)


def _copied(action: np.ndarray) -> Any:
    return action.copy()[()]  # a number, if it has no axes


def _possible_agents(env: Any) -> tuple[str, ...]:
    agents = getattr(env, "possible_agents", None)
    if not agents or not all(isinstance(agent, str) and agent for agent in agents) or len({*agents}) < len(agents):
        raise ConfigurationError(f"{env} has possible_agents={agents!r}; allowed is a list of distinct names")
    return tuple(agents)


def _space(env: Any, kind: str, agent: str) -> gym.Space:
    space = getattr(env, kind)(agent)
    if not isinstance(space, gym.Space) or not fits_shared_memory(space):
        raise ConfigurationError(
            f"{kind}({agent!r})={space} of {env}; allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and "
            "Tuple of these"
        )
    return space


def _row_spaces(
    observed: Sequence[tuple[str, gym.Space]], actions: Sequence[tuple[str, gym.Space]], state: gym.Space | None
) -> Iterable[tuple[str, gym.Space]]:
    """Yield the fields of a row and their spaces."""
    flags = Box(0, 1, (len(observed),), _BOOL)
    yield "obs", Dict([(agent, _without_mask(space)) for agent, space in observed])
    masks = [(agent, Box(0, 1, (flatdim(space),), _BOOL)) for agent, space in actions if _supports_mask(space)]
    if masks:
        yield "mask", Dict(masks)
    yield "reward", Box(-np.inf, np.inf, (len(observed),), np.float64)
    for name in ("terminated", "truncated", "acting", "waiting", "masked"):
        yield name, flags
    if state is not None:
        yield "state", state


def _supports_mask(space: gym.Space) -> bool:
    return isinstance(space, (Discrete, MultiDiscrete, MultiBinary))


def _observes_mask(space: gym.Space) -> bool:
    return isinstance(space, Dict) and MASK in space.spaces and len(space.spaces) > 1


def _without_mask(space: gym.Space) -> gym.Space:
    """Return an observation space without its action mask."""
    if not isinstance(space, Dict) or not _observes_mask(space):
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    return rest[OBSERVATION] if rest.keys() == {OBSERVATION} else Dict(rest)


def _infos_without_masks(infos: Mapping[str, Any], agents: Collection[str]) -> dict[str, Any]:
    """Return infos without masks; agents with no other entry, or None, are left out, because merging infos is slow."""
    kept = {}
    for key, info in infos.items():
        if not isinstance(info, dict):
            if key not in agents:
                kept[key] = info
        elif rest := {name: value for name, value in info.items() if name != MASK}:
            kept[key] = rest
    return kept


def _row_dtype(space: gym.Space) -> np.dtype:
    """Return the structured dtype of a sample."""
    if isinstance(space, Dict):
        return np.dtype([(key, _row_dtype(part)) for key, part in space.spaces.items()], align=True)
    if isinstance(space, Tuple):
        return np.dtype([(str(place), _row_dtype(part)) for place, part in enumerate(space.spaces)], align=True)
    return np.dtype((space.dtype, space.shape or ()))


def _field_views(records: np.ndarray, space: gym.Space) -> Tree:
    """Return the fields of structured arrays as a tree of views."""
    if isinstance(space, Dict):
        return {key: _field_views(records[key], part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_field_views(records[str(place)], part) for place, part in enumerate(space.spaces))
    return records


def _out_of_range(given: Tree, space: gym.Space) -> str:
    """Describe the first category outside its space; "" if all are inside."""
    if not isinstance(space, (Discrete, MultiDiscrete)):
        return ""
    start, count = space.start, space.n if isinstance(space, Discrete) else space.nvec
    wrong = (given < start) | (given >= start + count)
    return f"has {given[wrong][0]}; allowed are values of {space}" if wrong.any() else ""


def zero_sample(space: gym.Space) -> Tree:
    """Return a sample of zeros, or what is nearest to them in the space."""
    if isinstance(space, Dict):
        return {key: zero_sample(part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(map(zero_sample, space.spaces))
    if isinstance(space, Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.start if isinstance(space, (Discrete, MultiDiscrete)) else np.zeros(space.shape or (), space.dtype)


def _write(fields: Tree, value: Any) -> str:
    """Write a sample into views of a row; return what is wrong with it, or ""."""
    if isinstance(fields, np.ndarray):
        try:
            given = np.asarray(value)
        except ValueError as error:
            return f"is no array: {error}"
        if given.shape != fields.shape:
            return f"has shape {given.shape}; allowed is {fields.shape}"
        if given.dtype != fields.dtype and not np.can_cast(given.dtype, fields.dtype, "same_kind"):
            return f"has dtype {given.dtype}; allowed is {fields.dtype}"
        fields[...] = given
        return ""
    for key, field in fields.items() if isinstance(fields, Mapping) else enumerate(fields):
        try:
            part = value[key]
        except (KeyError, IndexError, TypeError) as error:
            return f"has no part {key!r} ({error!r})"
        if wrong := _write(field, part):
            return f"at {key!r} {wrong}"
    return ""
