"""Probe environments: tiny envs with analytically known values or actions; a wrong answer identifies a kind of bug.

Each probe tests one thing that the others do not. Values are those of the best policy with the probe's own `gamma`;
they are given only where they do not depend on how random the policy still is, or where actions have no effect. The
idea is Andy Jones' ("Debugging RL, without the agonizing pain", 2021); the probes of truncation, autoreset, masks,
bounds, images and memory are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from agilerl_like.envs.memory_tasks import Autoencode, CardTask, RepeatFirst, RepeatPrevious
from agilerl_like.errors import EnvStepError

Observation = Any
"""A tuple of floats for a vector; else a sample of the space: an array, a category, or a dict or tuple of them."""
RewardFn = Callable[[int, int, Any], float]  # (index of the sequence, position in it, action) -> reward


class ScriptedEnv(gym.Env[Any, Any]):
    """Shows one of a few fixed sequences of observations, whatever the actions; no action follows the last one.

    The sequence is drawn at reset. `masks` has an action mask for each sequence, or is empty.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[Observation]],
        action_space: gym.Space,
        reward_fn: RewardFn,
        *,
        space: gym.Space | None = None,
        truncates: bool = False,
        masks: tuple[tuple[bool, ...], ...] = (),
    ) -> None:
        self._sequences = sequences
        self._reward_fn = reward_fn
        self._truncates = truncates
        self._masks = np.array(masks, dtype=np.bool_)
        self._index = self._position = 0
        self.metadata = {"render_modes": []}
        self.observation_space = _box_around(sequences) if space is None else space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of a random sequence."""
        super().reset(seed=seed, options=options)
        self._index, self._position = int(self.np_random.integers(len(self._sequences))), 0
        return self._observation(), self._info(ended=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the reward of the action and the next observation; a mask after the episode's end allows nothing."""
        _check_action(self.action_space, action)
        reward = float(self._reward_fn(self._index, self._position, action))
        self._position += 1
        ends = self._position == len(self._sequences[self._index]) - 1
        terminated, truncated = (False, ends) if self._truncates else (ends, False)
        return self._observation(), reward, terminated, truncated, self._info(ended=ends)

    def numbered(self) -> tuple[ScriptedEnv, dict[Any, int]]:
        """Return this env with a number for each distinct observation, and the numbers by `observation_key`."""
        keys = dict.fromkeys(observation_key(obs) for sequence in self._sequences for obs in sequence)
        numbers = {key: number for number, key in enumerate(keys)}
        sequences = [[numbers[observation_key(obs)] for obs in sequence] for sequence in self._sequences]
        env = ScriptedEnv(
            sequences, self.action_space, self._reward_fn, space=Discrete(len(numbers)), truncates=self._truncates
        )
        env._masks = self._masks
        return env, numbers

    def _observation(self) -> Any:
        return as_observation(self._sequences[self._index][self._position])

    def _info(self, *, ended: bool) -> dict[str, Any]:
        if not self._masks.size:
            return {}
        mask = self._masks[self._index]
        return {"action_mask": np.zeros_like(mask) if ended else mask.copy()}


class ExpectedValue(NamedTuple):
    """The value of an observation after the episode's earlier observations `history`; `name` is for output."""

    obs: Observation
    value: float
    history: tuple[Observation, ...] = ()
    name: str = ""


class ExpectedAction(NamedTuple):
    """The best action for an observation, or a vector of them; `tolerance` is 0 for categories."""

    obs: Observation
    action: int | tuple[int, ...] | tuple[float, ...]
    tolerance: float = 0.0
    mask: tuple[bool, ...] = ()  # passed to the agent with `obs`; empty: everything is allowed
    history: tuple[Observation, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Probe:
    """An env, the question it answers, and the expected answers after training for `steps` env steps."""

    name: str
    make: Callable[[], gym.Env]
    question: str
    gamma: float = 0.5
    values: tuple[ExpectedValue, ...] = ()
    actions: tuple[ExpectedAction, ...] = ()
    steps: int = 10_000
    needs: Literal["", "memory"] = ""
    """Requirement beside an encoder for the space, without which the probe cannot be solved."""
    channels_last: bool = False
    """Whether images have their channels last."""
    critic_observation: str = "policy"
    """What the critic has to observe."""

    @property
    def expectations(self) -> tuple[ExpectedValue | ExpectedAction, ...]:
        """All expected values and actions."""
        return (*self.values, *self.actions)


def numbered_probe(probe: Probe) -> Probe:
    """Return a probe of scripted observations with a number for each, for tables."""

    def make() -> ScriptedEnv:
        return cast(ScriptedEnv, probe.make()).numbered()[0]

    numbers = cast(ScriptedEnv, probe.make()).numbered()[1]

    def numbered(known: Any) -> Any:
        return known._replace(obs=numbers[observation_key(known.obs)], name=describe(known))

    return replace(
        probe, make=make, values=tuple(map(numbered, probe.values)), actions=tuple(map(numbered, probe.actions))
    )


def observation_key(obs: Observation) -> Any:
    """Return what is equal for equal observations, and may be the key of a dict."""
    if isinstance(obs, Mapping):
        return tuple((name, observation_key(part)) for name, part in obs.items())
    if isinstance(obs, tuple):
        return tuple(map(observation_key, obs))
    return (obs.shape, obs.tobytes()) if isinstance(obs, np.ndarray) else obs


def as_observation(obs: Observation) -> Any:
    """Return a new observation of the space's type: float32 for a tuple of floats, copies of arrays."""
    if isinstance(obs, Mapping):
        return {name: as_observation(part) for name, part in obs.items()}
    if isinstance(obs, tuple):
        if all(isinstance(number, float) for number in obs):
            return np.array(obs, dtype=np.float32)
        return tuple(map(as_observation, obs))
    return obs.copy() if isinstance(obs, np.ndarray) else obs


def describe(known: ExpectedValue | ExpectedAction) -> str:
    """Return the name of an expectation's observation, or its values."""
    return known.name or ", ".join(f"{number:.3g}" for number in known.obs)


def _box_around(sequences: Iterable[Sequence[Observation]]) -> Box:
    seen = np.array([obs for sequence in sequences for obs in sequence], dtype=np.float32)
    return Box(seen.min(axis=0) - 1, seen.max(axis=0) + 1, dtype=np.float32)


def _check_action(space: gym.Space, action: Any) -> None:
    """Raise EnvStepError for an action outside of its space, to detect agents that ignore bounds."""
    if not space.contains(np.asarray(action, dtype=space.dtype)):
        raise EnvStepError(f"action={action!r} lies outside {space}")


def _one_step(
    observations: Sequence[Observation], action_space: gym.Space, reward_fn: RewardFn, **more: Any
) -> Callable[[], ScriptedEnv]:
    """Return a factory of an env with episodes of one step: an observation out of a few, one action, one reward."""
    return partial(ScriptedEnv, [(obs, obs) for obs in observations], action_space, reward_fn, **more)


def _one(_index: int, _position: int, _action: Any) -> float:
    return 1.0


def _reward_by_table(table: tuple[tuple[float, ...], ...], index: int, _position: int, action: Any) -> float:
    return table[index][int(action)]


def reward_by_row(rewards: tuple[float, ...], index: int, _position: int, _action: Any) -> float:
    """Return a reward by the index of the sequence."""
    return rewards[index]


def reward_by_place(rewards: tuple[float, ...], _index: int, position: int, _action: Any) -> float:
    """Return a reward by the position in the sequence."""
    return rewards[position]


def _reward_by_distance(targets: tuple[tuple[float, ...], ...], index: int, _position: int, action: Any) -> float:
    return -float(np.square(np.asarray(action) - targets[index]).sum())


def _reward_by_hits(targets: tuple[int | tuple[int, ...], ...], index: int, _position: int, action: Any) -> float:
    return float(np.equal(action, targets[index]).sum())


def _reward_parity(_index: int, position: int, action: Any) -> float:
    return float(int(action) == (position + 1) % 2)


def _reward_at_end(reward_fn: RewardFn, index: int, position: int, action: Any) -> float:
    """Return 0 for every action except the last one of a cue's episode."""
    return reward_fn(index, position, action) if position == _WAIT else 0.0


def _answers_of(task: CardTask) -> tuple[ExpectedAction, ...]:
    """Return the right answers of a memory task after every sequence of cards."""
    found: dict[str, ExpectedAction] = {}
    for time in range(task.steps):
        for cards in product(range(task.suits), repeat=task.length):
            action = task.answer(cards, time)
            history = tuple(task.observe(cards, earlier) for earlier in range(time + 1))
            name = f"step {time}, cards {' '.join(map(str, cards[: time + 1]))}"
            if action is not None:
                found[name] = ExpectedAction(history[-1], action, history=history[:-1], name=name)
    return tuple(found.values())


_NO_CHOICE = Discrete(1)


def _dot(row: int, column: int, *, channels: int = 3) -> np.ndarray:
    """Return a black image of 8 by 8 with one bright pixel, channels first."""
    image = np.zeros((channels, 8, 8), dtype=np.uint8)
    image[:, row, column] = 255
    return image


_IMAGES = Box(0, 255, (3, 8, 8), dtype=np.uint8)
_QUARTERS = {"above left": (1, 1), "above right": (1, 6), "below left": (6, 1), "below right": (6, 6)}
_DIAGONAL = (0, 1, 1, 0)  # neither the row nor the column of the dot determines it, nor its brightness
_DOTS = {name: _dot(*pixel) for name, pixel in _QUARTERS.items()}
_BITS = {name: np.moveaxis(image, 0, -1) > 0 for name, image in _DOTS.items()}

_GREYS = {grey: np.full((3, 8, 8), grey, dtype=np.uint8) for grey in (0, 128, 255)}
_GREY_VALUES = (-1.0, 1.0, 0.0)

_SIDES = {"left": _dot(3, 1, channels=1), "right": _dot(3, 6, channels=1)}
_BLACK = np.zeros((1, 8, 8), dtype=np.uint8)
_SIGHT_AND_TOUCH = {
    f"{side}, {touch:+g}": {"sight": image, "touch": (touch,)}
    for side, image in _SIDES.items()
    for touch in (-1.0, 1.0)
}

_PRODUCTS = {(category, number): (category - 6) * number + 0.0 for category in (5, 6, 7) for number in (-1.0, 1.0)}


_STATES = {state: {"critic": (state,), "policy": (0.0,)} for state in (-1.0, 1.0)}


def _by_diagonal(scenes: Mapping[str, Observation], space: gym.Space) -> Callable[[], gym.Env]:
    """Return an env of four scenes whose rewarded actions are 0, 1, 1 and 0."""
    return _one_step(tuple(scenes.values()), Discrete(2), partial(_reward_by_hits, _DIAGONAL), space=space)


def _expected_by_diagonal(scenes: Mapping[str, Observation]) -> tuple[ExpectedAction, ...]:
    named = zip(scenes.items(), _DIAGONAL, strict=True)
    return tuple(ExpectedAction(obs, action, name=name) for (name, obs), action in named)


_WAIT = 5
"""Number of blanks between a cue and the episode's last action; all observations but the cue are equal."""


def _cue_sequence(cue: float) -> tuple[Observation, ...]:
    return ((cue,), *((0.0,),) * (_WAIT + 1))  # no action follows the last one


_AFTER_BLANKS = f", then {_WAIT} blanks"


def _values_of_cue(cue: float, first: float, last: float) -> tuple[ExpectedValue, ExpectedValue]:
    """Return the values of a cue's observation and of the last observation with an action."""
    sequence = _cue_sequence(cue)
    return (
        ExpectedValue(sequence[0], first, name=f"{cue:+g}"),
        ExpectedValue(sequence[_WAIT], last, history=sequence[:_WAIT], name=f"{cue:+g}{_AFTER_BLANKS}"),
    )


_ALL = (
    Probe(
        # V = 1: one reward of 1 and the end.
        "ConstantReward",
        _one_step(((0.0,),), _NO_CHOICE, _one),
        "does the critic learn a constant?",
        values=(ExpectedValue((0.0,), 1.0),),
        steps=4_000,
    ),
    Probe(
        # V(o) = o: the reward is the observation, then the end.
        "ObservationReward",
        _one_step(((-1.0,), (1.0,)), _NO_CHOICE, partial(_reward_by_table, ((-1.0,), (1.0,)))),
        "does the critic use the observation?",
        values=(ExpectedValue((-1.0,), -1.0), ExpectedValue((1.0,), 1.0)),
        steps=6_000,
    ),
    Probe(
        # V(1) = 1: the reward, then the end. V(0) = 0 + gamma V(1) = 0.5. If the episode's end is registered one step
        # late, V(1) = 1 + gamma V(0).
        "DiscountedReward",
        partial(ScriptedEnv, (((0.0,), (1.0,), (2.0,)),), _NO_CHOICE, partial(reward_by_place, (0.0, 1.0))),
        "is a later reward discounted once, and does the episode end at the right step?",
        values=(ExpectedValue((0.0,), 0.5), ExpectedValue((1.0,), 1.0)),
        steps=8_000,
    ),
    Probe(
        "ActionSign",
        _one_step(((0.0,),), Discrete(2), partial(_reward_by_table, ((-1.0, 1.0),))),
        "does the policy maximise the reward and not minimise it?",
        actions=(ExpectedAction((0.0,), 1),),
        steps=4_000,
    ),
    Probe(
        "ActionByObservation",
        _one_step(((0.0,), (1.0,)), Discrete(2), partial(_reward_by_table, ((1.0, -1.0), (-1.0, 1.0)))),
        "does the policy use the observation?",
        actions=(ExpectedAction((0.0,), 0), ExpectedAction((1.0,), 1)),
        steps=6_000,
    ),
    Probe(
        # The observation counts 1, 2, … 6, unscaled, and its parity earns 1. Later observations do not depend on the
        # action, so the parity is best for every gamma.
        "Counter",
        partial(ScriptedEnv, (tuple((float(count),) for count in range(1, 8)),), Discrete(2), _reward_parity),
        "does the policy learn from an unscaled observation whose best action alternates?",
        actions=tuple(ExpectedAction((float(count),), count % 2) for count in range(1, 7)),
        steps=40_000,
    ),
    Probe(
        # Reward 1 for ever, with a time limit of 8: V = 1 + gamma V = 1 / (1 - gamma) = 10. If truncation is taken for
        # termination, V is the mean of (1 - gamma^k) / (1 - gamma) over k = 1 … 8, which is 3.6.
        "EndlessTruncation",
        partial(ScriptedEnv, (((0.0,),) * 9,), _NO_CHOICE, _one, truncates=True),
        "is truncation distinguished from termination?",
        gamma=0.9,
        values=(ExpectedValue((0.0,), 10.0),),
        steps=20_000,
    ),
    Probe(
        # The first step pays 10, then nothing for ever, with a time limit of 5: V(end) = 0, V(start) = 10. If values
        # are bootstrapped from the next episode's start, or learned from the row that next-step autoreset inserts,
        # V(end) has a share of 0.9 * 10.
        "AutoresetLeak",
        partial(
            ScriptedEnv,
            (((1.0, 0.0), *((0.0, 1.0),) * 5),),
            _NO_CHOICE,
            partial(reward_by_place, (10.0, 0.0, 0.0, 0.0, 0.0)),
            truncates=True,
        ),
        "does the value of an episode's start leak into the end of the episode before?",
        gamma=0.9,
        values=(ExpectedValue((1.0, 0.0), 10.0), ExpectedValue((0.0, 1.0), 0.0)),
        steps=20_000,
    ),
    Probe(
        # The action that would pay 10 is never allowed; of the two that are, one pays 1.
        "ActionMask",
        _one_step(
            ((0.0,), (1.0,)),
            Discrete(3),
            partial(_reward_by_table, ((0.0, 1.0, 10.0), (10.0, 0.0, 1.0))),
            masks=((True, True, False), (False, True, True)),
        ),
        "is a mask respected, in acting and in learning?",
        actions=(
            ExpectedAction((0.0,), 1, mask=(True, True, False)),
            ExpectedAction((1.0,), 2, mask=(False, True, True)),
        ),
        steps=8_000,
    ),
    Probe(
        # Reward -(a - target)^2 with a in [-2, 1] and targets -3, 0.5 and 1: the best actions are -2, 0.5 and 1.
        "ContinuousBounds",
        _one_step(
            ((-1.0,), (0.0,), (1.0,)), Box(-2.0, 1.0, (1,)), partial(_reward_by_distance, ((-3.0,), (0.5,), (1.0,)))
        ),
        "are actions learned inside the bounds, at them, and never outside?",
        actions=(
            ExpectedAction((-1.0,), (-2.0,), 0.2),
            ExpectedAction((0.0,), (0.5,), 0.2),
            ExpectedAction((1.0,), (1.0,), 0.2),
        ),
        steps=40_000,
    ),
    Probe(
        # Reward -(a - 0.5)^2.
        "ContinuousTarget",
        _one_step(((0.0,),), Box(-1.0, 1.0, (1,)), partial(_reward_by_distance, ((0.5,),))),
        "does a continuous policy converge to the best action?",
        actions=(ExpectedAction((0.0,), (0.5,), 0.15),),
        steps=20_000,
    ),
    Probe(
        # Reward -|a - target|^2, with opposite targets for the two components of an action.
        "ContinuousByObservation",
        _one_step(((-1.0,), (1.0,)), Box(-1.0, 1.0, (2,)), partial(_reward_by_distance, ((-0.5, 0.5), (0.5, -0.5)))),
        "does a continuous policy use the observation, separately for each component of the action?",
        actions=(ExpectedAction((-1.0,), (-0.5, 0.5), 0.15), ExpectedAction((1.0,), (0.5, -0.5), 0.15)),
        steps=30_000,
    ),
    Probe(
        # 1 for each correct choice.
        "MultiDiscreteByObservation",
        _one_step(((0.0,), (1.0,)), MultiDiscrete([2, 3]), partial(_reward_by_hits, ((0, 2), (1, 0)))),
        "are the choices of one action independent?",
        actions=(ExpectedAction((0.0,), (0, 2)), ExpectedAction((1.0,), (1, 0))),
        steps=12_000,
    ),
    Probe(
        # 1 for each correct bit.
        "MultiBinaryByObservation",
        _one_step(((0.0,), (1.0,)), MultiBinary(3), partial(_reward_by_hits, ((0, 1, 1), (1, 1, 0)))),
        "are the bits of one action independent?",
        actions=(ExpectedAction((0.0,), (0, 1, 1)), ExpectedAction((1.0,), (1, 1, 0))),
        steps=12_000,
    ),
    Probe(
        # V = -1, 1, 0 for black, grey, white: the reward, then the end. It is not monotonic in brightness.
        "ImageBrightness",
        _one_step(tuple(_GREYS.values()), _NO_CHOICE, partial(reward_by_row, _GREY_VALUES), space=_IMAGES),
        "does the critic read the brightness of an image?",
        values=tuple(
            ExpectedValue(image, value, name=f"grey {grey}")
            for (grey, image), value in zip(_GREYS.items(), _GREY_VALUES, strict=True)
        ),
        steps=10_000,
    ),
    Probe(
        # 1 for the action of the dot's diagonal: images differ in its position only.
        "ImagePosition",
        _by_diagonal(_DOTS, _IMAGES),
        "does the policy read positions in an image?",
        actions=_expected_by_diagonal(_DOTS),
        steps=8_000,
    ),
    Probe(
        "ImageOfBits",
        _by_diagonal(_BITS, Box(0, 1, (8, 8, 3), dtype=cast(Any, np.bool_))),
        "does it do so if pixels are bools and the channels are last?",
        actions=_expected_by_diagonal(_BITS),
        steps=8_000,
        channels_last=True,
    ),
    Probe(
        # 1 for (is the dot right?) XOR (is the number above 0?): one part alone gives a chance of one half.
        "SightAndTouch",
        _by_diagonal(
            _SIGHT_AND_TOUCH, Dict({"sight": Box(0, 255, _BLACK.shape, dtype=np.uint8), "touch": Box(-1.0, 1.0, (1,))})
        ),
        "does the policy combine an image and a number of a Dict?",
        actions=_expected_by_diagonal(_SIGHT_AND_TOUCH),
        steps=15_000,
    ),
    Probe(
        # V = (category - 6) * number: given one part alone, V is 0 on average.
        "TupleProduct",
        _one_step(
            tuple((category, {"number": (number,)}) for category, number in _PRODUCTS),
            _NO_CHOICE,
            partial(reward_by_row, tuple(_PRODUCTS.values())),
            space=Tuple([Discrete(3, start=5), Dict({"number": Box(-1.0, 1.0, (1,))})]),
        ),
        "does the critic combine the parts of a Tuple, one of which is nested?",
        values=tuple(
            ExpectedValue((category, {"number": (number,)}), value, name=f"{category}, {number:+g}")
            for (category, number), value in _PRODUCTS.items()
        ),
        steps=10_000,
    ),
    Probe(
        # V = state: the policy's observation is 0, the critic's is -1 or 1 and is the reward. From the policy's alone
        # V is 0 on average.
        "AsymmetricValue",
        _one_step(
            tuple(_STATES.values()),
            _NO_CHOICE,
            partial(reward_by_row, (-1.0, 1.0)),
            space=Dict({"critic": Box(-1.0, 1.0, (1,)), "policy": Box(-1.0, 1.0, (1,))}),
        ),
        "does the critic use an observation that the policy lacks?",
        values=tuple(ExpectedValue(obs, state, name=f"state {state:+g}") for state, obs in _STATES.items()),
        steps=6_000,
        critic_observation="critic",
    ),
    Probe(
        # Only the last of 6 actions is rewarded: 1 if it matches the cue. Without memory 0.5 is the best mean.
        "MemoryCue",
        partial(
            ScriptedEnv,
            (_cue_sequence(-1.0), _cue_sequence(1.0)),
            Discrete(2),
            partial(_reward_at_end, partial(_reward_by_table, ((1.0, 0.0), (0.0, 1.0)))),
        ),
        "does the policy store the first observation in its hidden state?",
        gamma=0.9,
        actions=tuple(
            ExpectedAction((0.0,), action, history=_cue_sequence(cue)[:_WAIT], name=f"{cue:+g}{_AFTER_BLANKS}")
            for cue, action in ((-1.0, 0), (1.0, 1))
        ),
        steps=10_000,
        needs="memory",
    ),
    Probe(
        # The same with a dot at the left or right as cue, and black images after it.
        "MemoryOfImage",
        partial(
            ScriptedEnv,
            tuple((image, *(_BLACK,) * (_WAIT + 1)) for image in _SIDES.values()),
            Discrete(2),
            partial(_reward_at_end, partial(_reward_by_table, ((1.0, 0.0), (0.0, 1.0)))),
            space=Box(0, 255, _BLACK.shape, dtype=np.uint8),
        ),
        "does the policy store an image in its hidden state?",
        gamma=0.9,
        actions=tuple(
            ExpectedAction(_BLACK, action, history=(image, *(_BLACK,) * (_WAIT - 1)), name=f"{side}{_AFTER_BLANKS}")
            for action, (side, image) in enumerate(_SIDES.items())
        ),
        steps=6_000,
        needs="memory",
    ),
    Probe(
        # The reward is the cue, with the last of 6 actions: V = cue * gamma^5 at first and cue at last. Without memory
        # V(blank) = 0. One cue equals a blank: if the hidden state is not reset, it has the last episode's value.
        "MemoryValue",
        partial(
            ScriptedEnv,
            (_cue_sequence(-1.0), _cue_sequence(0.0), _cue_sequence(1.0)),
            _NO_CHOICE,
            partial(_reward_at_end, partial(reward_by_row, (-1.0, 0.0, 1.0))),
        ),
        "does the critic's hidden state keep the first observation, and nothing of earlier episodes?",
        gamma=0.9,
        values=tuple(known for cue in (-1.0, 0.0, 1.0) for known in _values_of_cue(cue, cue * 0.9**_WAIT, cue)),
        steps=20_000,
        needs="memory",
    ),
    Probe(
        # The reward is the cue for ever, with a time limit of 6: V = cue / (1 - gamma) at every step. If the value
        # after the limit is computed without the hidden state, the last one is cue * 1, not cue * 2.
        "MemoryTruncation",
        partial(
            ScriptedEnv,
            (_cue_sequence(-1.0), _cue_sequence(1.0)),
            _NO_CHOICE,
            partial(reward_by_row, (-1.0, 1.0)),
            truncates=True,
        ),
        "is the value after a truncation computed with the episode's hidden state?",
        values=tuple(known for cue in (-1.0, 1.0) for known in _values_of_cue(cue, 2 * cue, 2 * cue)),
        steps=20_000,
        needs="memory",
    ),
    Probe(
        # 1/2 for the suit of the first of two cards at both steps, -1/2 for another: without memory 0 for the second.
        "RepeatFirst",
        partial(RepeatFirst, length=2, suits=2),
        "does the policy repeat the first observation?",
        actions=_answers_of(RepeatFirst(length=2, suits=2)),
        steps=8_000,
        needs="memory",
    ),
    Probe(
        # 1 for the suit of the card two steps ago, -1 for another; one answer in an episode of three steps.
        "RepeatPrevious",
        partial(RepeatPrevious, k=2, length=3, suits=2),
        "does the policy distinguish the observation of two steps ago from later ones?",
        actions=_answers_of(RepeatPrevious(k=2, length=3, suits=2)),
        steps=12_000,
        needs="memory",
    ),
    Probe(
        # Two cards, then 1/2 for each suit in reversed order, -1/2 for another.
        "Autoencode",
        partial(Autoencode, length=2, suits=2),
        "does the policy repeat two observations in reversed order?",
        actions=_answers_of(Autoencode(length=2, suits=2)),
        steps=12_000,
        needs="memory",
    ),
)

PROBES: Mapping[str, Probe] = MappingProxyType({probe.name: probe for probe in _ALL})
