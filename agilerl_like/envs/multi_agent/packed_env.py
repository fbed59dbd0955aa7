"""A team's world as one env of gymnasium, so that everything that steps single envs in bulk steps teams too.

What all agents observed and earned in a step, and who may act next, lies side by side in one row of bytes (`Packed`):
one array to stack, copy and share between processes, whatever the agents' spaces are.

The subtlety is who is there. Agents come, go, and die before the others. An agent that is not there has its last
observation in the row (before its first, a blank one that its space holds), earns 0, and its `acting` flag is False:
there is never a NaN, and nothing of it is to be learned from. Worker processes import this, so it stays clear of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatdim

from agilerl_like.envs.env_errors import check_reward
from agilerl_like.envs.pytree import Tree
from agilerl_like.envs.random_actions import MASK, sample_masked
from agilerl_like.envs.subproc.worker import fits_shared_memory
from agilerl_like.errors import ConfigurationError, EnvStepError, unknown_name

OBSERVATION = "observation"  # beside MASK: PettingZoo's names in observations that come with a mask
_FLAG = cast(Any, np.bool_)  # which a Box may be of, whatever its signature says
STATE_SPACE = "state_space"  # where a team's metadata says what `state()` returns


class PackedSpace(Box):
    """Rows of bytes, in each of which one sample of every one of `spaces` lies, by name."""

    def __init__(self, spaces: Iterable[tuple[str, gym.Space]]) -> None:
        self.dict_space = Dict(list(spaces))
        self.row_dtype = _row_dtype(self.dict_space)
        super().__init__(0, 255, (self.row_dtype.itemsize,), np.uint8)

    def read(self, rows: np.ndarray) -> Tree:
        """What rows `[…, bytes]` hold, as a tree of arrays `[…, *shape]` that are views of them."""
        return _field_views(rows.view(self.row_dtype)[..., 0], self.dict_space)

    def pack(self, values: Mapping[str, Any], count: int) -> np.ndarray:
        """Put arrays `[count, *shape]`, one for each name, into rows `[count, bytes]`.

        Raises:
            ConfigurationError: a name that is missing or unknown, another shape, or numbers that do not fit.
        """
        for name in values:
            if name not in self.dict_space.spaces:
                raise unknown_name("actions", name, self.dict_space.spaces)
        rows = np.zeros((count, self.row_dtype.itemsize), np.uint8)
        for name, places in self.read(rows).items():
            if name not in values:
                raise ConfigurationError(f"actions has nothing for agent {name!r}; allowed is one array for each agent")
            fault = _write(places, values[name]) or _out_of_range(places, self.dict_space[name])
            if fault:
                raise ConfigurationError(f"actions[{name!r}] {fault}")
        return rows

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """One random sample of each space; masks are not known here."""
        row = np.zeros(self.row_dtype.itemsize, np.uint8)
        _write(self.read(row), self.dict_space.sample())
        return row

    def seed(self, seed: Any = None) -> Any:
        return self.dict_space.seed(seed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedSpace) and (self.dict_space, self.row_dtype) == (
            other.dict_space,
            other.row_dtype,
        )  # trees know no order

    def __hash__(self) -> int:
        return hash((*self.dict_space.spaces, self.shape))

    def __repr__(self) -> str:
        return f"Packed({', '.join(f'{name}: {space}' for name, space in self.dict_space.spaces.items())})"


class StepResult(NamedTuple):
    """What a step brought A agents in N envs."""

    reward: np.ndarray  # [A, N] float32
    terminated: np.ndarray  # [A, N] bool
    truncated: np.ndarray  # [A, N] bool
    valid: np.ndarray  # [A, N] bool


def read_step_result(last: Tree, acted: np.ndarray, lost: np.ndarray) -> StepResult:
    """Read what rows say of the agents that acted in them `[N, A]`.

    In `lost` envs `[N]` nobody knows what the actions did, so their lives are cut and the step is not valid.
    """
    lost, happened = lost[:, None], acted & ~lost[:, None]
    parts = (
        np.where(happened, last["reward"], 0.0).astype(np.float32),
        last["terminated"] & happened,
        (last["truncated"] & happened) | (acted & lost),
        happened,
    )
    return StepResult(*(np.ascontiguousarray(part.T) for part in parts))


class PackedMultiAgentEnv(gym.Env[np.ndarray, np.ndarray]):
    """A parallel env of PettingZoo as one env, whose observations are rows.

    A row holds by agent what it observes (`obs`, without a mask) and what it may do (`mask`, where its actions can be
    masked); over agents `reward`, `terminated` and `truncated` of the step that led here, whether it is there to act
    (`acting`) and whether the world gave it a mask (`masked`); and the world's `state`, if `with_state`.

    An agent that leaves without having ended is truncated, for it may come back. The episode ends when nobody is left.

    Raises:
        ConfigurationError: agents without names, spaces without a fixed size, or no state where one is wanted.
    """

    def __init__(self, env: Any, *, with_state: bool = False) -> None:
        self.env = env
        self.agents = _possible_agents(env)
        state_space = getattr(env, "state_space", None)
        self.metadata = {**(getattr(env, "metadata", None) or {}), STATE_SPACE: state_space}
        self.render_mode = getattr(env, "render_mode", None)
        if with_state and not isinstance(state_space, gym.Space):
            raise ConfigurationError(f"with_state=True needs an env with a state_space; {env} has {state_space!r}")
        observed = [(agent, _space(env, "observation_space", agent)) for agent in self.agents]
        actions = [(agent, _space(env, "action_space", agent)) for agent in self.agents]
        self.action_space = PackedSpace(actions)
        self.observation_space = PackedSpace(_row_spaces(observed, actions, state_space if with_state else None))
        self.with_state = with_state
        self._masked_in_obs = {agent for agent, space in observed if _observes_mask(space)}
        self._row, self._fields = self._empty_row(self.observation_space)
        self._action_row, self._actions = self._empty_row(self.action_space)
        self._blank, unseen = self._empty_row(self.observation_space)
        _write(unseen["obs"], _blank(self.observation_space.dict_space["obs"]))
        self._masks: Mapping[str, np.ndarray] = self._fields.get("mask", {})
        self._ended_agents: set[str] = set()
        self._acting: tuple[str, ...] = ()

    @staticmethod
    def _empty_row(space: PackedSpace) -> tuple[np.ndarray, Tree]:
        """An empty row, and where its parts lie in it."""
        row = np.zeros(space.row_dtype.itemsize, np.uint8)
        return row, space.read(row)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._row[:] = self._blank
        self._ended_agents.clear()
        self._acting = self._active_agents()
        if not self._acting:
            raise EnvStepError(f"{self.env} began an episode without agents")
        return self._build_observation(observations, infos, ())

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Let every agent act that can; the reward is the sum of theirs."""
        self._action_row[:] = action
        acted = self._acting
        actions = {agent: self._actions[agent].copy()[()] for agent in acted}
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        for agent in acted:
            if agent not in rewards:
                raise EnvStepError(f"{self.env} gave no reward to agent {agent!r}, which acted")
            if terminations.get(agent) or truncations.get(agent):
                self._ended_agents.add(agent)
        self._acting = self._active_agents()
        left = {agent for agent in acted if agent not in self._acting and agent not in self._ended_agents}
        places, agents = self._fields, self.agents
        earned = [self._checked_reward(agent, rewards[agent]) if agent in acted else 0.0 for agent in agents]
        places["reward"][...] = earned
        places["terminated"][...] = [agent in acted and bool(terminations.get(agent)) for agent in agents]
        places["truncated"][...] = [
            agent in acted and (agent in left or bool(truncations.get(agent))) for agent in agents
        ]
        row, info = self._build_observation(observations, infos, acted)
        return row, float(sum(earned)), not self._acting, False, info

    def sample_legal(self) -> np.ndarray:
        """Return a row of random actions that the env allows its agents now."""
        masked = dict(zip(self.agents, self._fields["masked"].tolist(), strict=True))
        sampled = {
            agent: sample_masked(space, self._masks[agent] if masked[agent] else None)
            for agent, space in cast(PackedSpace, self.action_space).dict_space.spaces.items()
        }
        _write(self._actions, sampled)
        return self._action_row.copy()

    def state(self) -> np.ndarray:
        """What a critic may see that sees everything."""
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _checked_reward(self, agent: str, reward: Any) -> Any:
        check_reward(f"{self.env}: the reward of agent {agent!r}", reward)
        return reward

    def _active_agents(self) -> tuple[str, ...]:
        """Who is to act next; who is dead stays so until the episode's end."""
        there = set(self.env.agents)
        if strangers := there.difference(self.agents):
            raise EnvStepError(f"{self.env} has agents {sorted(map(str, strangers))} outside {list(self.agents)}")
        return tuple(agent for agent in self.agents if agent in there and agent not in self._ended_agents)

    def _build_observation(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], acted: Sequence[str]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Complete the row, and return a copy of it with what infos say beside masks."""
        places, acting = self._fields, self._acting
        for place in self._masks.values():
            place[...] = True
        masked = []
        for agent in self.agents:
            mask = None
            if agent in acting or (agent in acted and agent in observations):
                mask = self._write_observation(agent, observations)
                if mask is None:
                    mask = (infos.get(agent) or {}).get(MASK)
            masked.append(mask is not None and agent in acting and self._write_mask(agent, mask))
        places["masked"][...] = masked
        places["acting"][...] = [agent in acting for agent in self.agents]
        if self.with_state:
            self._check("state()", _write(places["state"], self.state()))
        return self._row.copy(), _infos_without_masks(infos)

    def _write_observation(self, agent: str, observations: Mapping[str, Any]) -> Any:
        """Write down what an agent observed, and return the mask that came with it."""
        if agent not in observations:
            raise EnvStepError(f"{self.env} gave no observation to agent {agent!r}, which is to act")
        observation, mask = observations[agent], None
        if agent in self._masked_in_obs:
            if not isinstance(observation, Mapping) or MASK not in observation:
                raise EnvStepError(f"{self.env}: the observation of agent {agent!r} has no {MASK}")
            mask = observation[MASK]
            rest = {key: part for key, part in observation.items() if key != MASK}
            observation = rest[OBSERVATION] if rest.keys() == {OBSERVATION} else rest
        self._check(f"the observation of agent {agent!r}", _write(self._fields["obs"][agent], observation))
        return mask

    def _write_mask(self, agent: str, mask: Any) -> bool:
        """Write down what an agent may not do, and say whether its actions can be masked at all."""
        if agent not in self._masks:
            return False
        flags = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)
        self._check(f"the {MASK} of agent {agent!r}", _write(self._masks[agent], flags.astype(np.bool_)))
        return True

    def _check(self, what: str, fault: str) -> None:
        if fault:
            raise EnvStepError(f"{self.env}: {what} {fault}")


def _possible_agents(env: Any) -> tuple[str, ...]:
    agents = getattr(env, "possible_agents", None)
    if not agents or not all(isinstance(agent, str) and agent for agent in agents) or len({*agents}) < len(agents):
        raise ConfigurationError(f"{env} has possible_agents={agents!r}; allowed is a list of unequal names")
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
    """What a team's row holds."""
    flags = Box(0, 1, (len(observed),), _FLAG)
    yield "obs", Dict([(agent, _without_mask(space)) for agent, space in observed])
    masks = [(agent, Box(0, 1, (flatdim(space),), _FLAG)) for agent, space in actions if _supports_mask(space)]
    if masks:
        yield "mask", Dict(masks)
    yield "reward", Box(-np.inf, np.inf, (len(observed),), np.float64)
    for name in ("terminated", "truncated", "acting", "masked"):
        yield name, flags
    if state is not None:
        yield "state", state


def _supports_mask(space: gym.Space) -> bool:
    return isinstance(space, (Discrete, MultiDiscrete, MultiBinary))


def _observes_mask(space: gym.Space) -> bool:
    return isinstance(space, Dict) and MASK in space.spaces and len(space.spaces) > 1


def _without_mask(space: gym.Space) -> gym.Space:
    """What a network sees of an observation that may come with a mask."""
    if not isinstance(space, Dict) or not _observes_mask(space):
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    return rest[OBSERVATION] if rest.keys() == {OBSERVATION} else Dict(rest)


def _infos_without_masks(infos: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to tell beside masks; agents without news are left out, for to merge infos takes time."""
    told = {}
    for key, info in infos.items():
        if not isinstance(info, dict):
            told[key] = info
        elif news := {name: value for name, value in info.items() if name != MASK}:
            told[key] = news
    return told


def _row_dtype(space: gym.Space) -> np.dtype:
    """How a sample lies in memory."""
    if isinstance(space, Dict):
        return np.dtype([(key, _row_dtype(part)) for key, part in space.spaces.items()], align=True)
    if isinstance(space, Tuple):
        return np.dtype([(str(place), _row_dtype(part)) for place, part in enumerate(space.spaces)], align=True)
    return np.dtype((space.dtype, space.shape or ()))


def _field_views(records: np.ndarray, space: gym.Space) -> Tree:
    """The parts of numpy's records as a tree of views."""
    if isinstance(space, Dict):
        return {key: _field_views(records[key], part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_field_views(records[str(place)], part) for place, part in enumerate(space.spaces))
    return records


def _out_of_range(given: Tree, space: gym.Space) -> str:
    """Say which category is none of its space's, or nothing."""
    if not isinstance(space, (Discrete, MultiDiscrete)):
        return ""
    start, count = space.start, space.n if isinstance(space, Discrete) else space.nvec
    wrong = (given < start) | (given >= start + count)
    return f"has {given[wrong][0]}; allowed are values of {space}" if wrong.any() else ""


def _blank(space: gym.Space) -> Tree:
    """A sample that says nothing."""
    if isinstance(space, Dict):
        return {key: _blank(part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(map(_blank, space.spaces))
    if isinstance(space, Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.start if isinstance(space, (Discrete, MultiDiscrete)) else np.zeros(space.shape or (), space.dtype)


def _write(places: Tree, value: Any) -> str:
    """Write a sample where it belongs, and return what is wrong with it, or nothing."""
    if isinstance(places, np.ndarray):
        try:
            given = np.asarray(value)
        except ValueError as fault:
            return f"is no array: {fault}"
        if given.shape != places.shape:
            return f"has shape {given.shape}; allowed is {places.shape}"
        if given.dtype != places.dtype and not np.can_cast(given.dtype, places.dtype, "same_kind"):
            return f"has dtype {given.dtype}; allowed is {places.dtype}"
        places[...] = given
        return ""
    parts = places.items() if isinstance(places, Mapping) else enumerate(places)
    for key, place in parts:
        try:
            part = value[key]
        except (KeyError, IndexError, TypeError) as fault:
            return f"has no part {key!r} ({fault!r})"
        if wrong := _write(place, part):
            return f"at {key!r} {wrong}"
    return ""
