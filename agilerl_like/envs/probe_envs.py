"""Tiny worlds whose right answers are known by hand: an agent that misses one has a bug, and the world says which kind.

Each asks one question that the others do not. A value is that of the best policy with the probe's own `gamma`; it is
given only where it does not depend on how random the policy still is, or for worlds in which actions change nothing.
The idea is Andy Jones' ("Debugging RL, without the agonizing pain", 2021); the worlds about truncation, autoreset,
masks, bounds, pictures and memory are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from agilerl_like.errors import EnvStepError

Observation = Any
"""A tuple of floats stands for a vector; else what the space holds: an array, a category, a dict or tuple of them."""
RewardFn = Callable[[int, int, Any], float]  # (which row, which place in it, action) -> reward


class ScriptedEnv(gym.Env[Any, Any]):
    """One of a few rows of observations, seen one after the other whatever the agent does; the last is only arrived at.

    The row is drawn at reset. A row comes with an action mask where there are any.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Observation]],
        action_space: gym.Space,
        reward_fn: RewardFn,
        *,
        space: gym.Space | None = None,
        truncates: bool = False,
        masks: tuple[tuple[bool, ...], ...] = (),
    ) -> None:
        self._rows = rows
        self._pay = reward_fn
        self._truncates = truncates
        self._masks = np.array(masks, dtype=np.bool_)
        self._which = self._place = 0
        self.metadata = {"render_modes": []}
        self.observation_space = _box_around(rows) if space is None else space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Go to the first observation of some row."""
        super().reset(seed=seed, options=options)
        self._which, self._place = int(self.np_random.integers(len(self._rows))), 0
        return self._seen(), self._info(ended=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """RewardFn for the action and go one observation further; a finished world allows no action."""
        _check_action(self.action_space, action)
        reward = float(self._pay(self._which, self._place, action))
        self._place += 1
        ends = self._place == len(self._rows[self._which]) - 1
        return self._seen(), reward, ends and not self._truncates, ends and self._truncates, self._info(ended=ends)

    def _seen(self) -> Any:
        return as_observation(self._rows[self._which][self._place])

    def _info(self, *, ended: bool) -> dict[str, Any]:
        if not self._masks.size:
            return {}
        mask = self._masks[self._which]
        return {"action_mask": np.zeros_like(mask) if ended else mask.copy()}


class ExpectedValue(NamedTuple):
    """What an observation is worth after what was seen before it in the episode; `name` is for people."""

    obs: Observation
    value: float
    history: tuple[Observation, ...] = ()
    name: str = ""


class ExpectedAction(NamedTuple):
    """What is best to do: the action, or a vector of them; `tolerance` is 0 for categories."""

    obs: Observation
    action: int | tuple[int, ...] | tuple[float, ...]
    tolerance: float = 0.0
    mask: tuple[bool, ...] = ()  # to be given to the agent with `obs`; empty: everything is allowed
    history: tuple[Observation, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Probe:
    """A world, the question it asks, and the answers; `steps` is about how many env steps an agent should need."""

    name: str
    make: Callable[[], gym.Env]
    question: str
    gamma: float
    values: tuple[ExpectedValue, ...] = ()
    actions: tuple[ExpectedAction, ...] = ()
    steps: int = 10_000
    needs: Literal["", "memory"] = ""
    """What an agent must have beside an encoder for the space; without it the world cannot be solved."""
    channels_last: bool = False
    """Whether the channels of images stand last."""

    @property
    def expectations(self) -> tuple[ExpectedValue | ExpectedAction, ...]:
        """All that is known."""
        return (*self.values, *self.actions)


def as_observation(obs: Observation) -> Any:
    """Return a fresh observation as the space has it: float32 for a tuple of floats, copies of arrays."""
    if isinstance(obs, Mapping):
        return {name: as_observation(part) for name, part in obs.items()}
    if isinstance(obs, tuple):
        if all(isinstance(number, float) for number in obs):
            return np.array(obs, dtype=np.float32)
        return tuple(map(as_observation, obs))
    return obs.copy() if isinstance(obs, np.ndarray) else obs


def describe(known: ExpectedValue | ExpectedAction) -> str:
    """Say which observation is meant: its name, or its numbers."""
    return known.name or ", ".join(f"{number:.3g}" for number in known.obs)


def _box_around(rows: Iterable[Sequence[Observation]]) -> Box:
    seen = np.array([obs for row in rows for obs in row], dtype=np.float32)
    return Box(seen.min(axis=0) - 1, seen.max(axis=0) + 1, dtype=np.float32)


def _check_action(space: gym.Space, action: Any) -> None:
    """A probe takes nothing that its space does not hold, so that an agent that forgets a bound is found out."""
    if not space.contains(np.asarray(action, dtype=space.dtype)):
        raise EnvStepError(f"action={action!r} lies outside {space}")


def _one_step(
    observations: Sequence[Observation], action_space: gym.Space, reward_fn: RewardFn, **more: Any
) -> ScriptedEnv:
    """One observation drawn from a few, one action, one reward, and the episode has terminated where it began."""
    return ScriptedEnv([(obs, obs) for obs in observations], action_space, reward_fn, **more)


def _one(_which: int, _place: int, _action: Any) -> float:
    return 1.0


def _pay_by_table(table: tuple[tuple[float, ...], ...], which: int, _place: int, action: Any) -> float:
    return table[which][int(action)]


def _pay_by_row(rewards: tuple[float, ...], which: int, _place: int, _action: Any) -> float:
    return rewards[which]


def _pay_by_place(rewards: tuple[float, ...], _which: int, place: int, _action: Any) -> float:
    return rewards[place]


def _pay_by_distance(targets: tuple[tuple[float, ...], ...], which: int, _place: int, action: Any) -> float:
    return -float(np.square(np.asarray(action) - targets[which]).sum())


def _pay_by_hits(targets: tuple[int | tuple[int, ...], ...], which: int, _place: int, action: Any) -> float:
    return float(np.equal(action, targets[which]).sum())


def _pay_parity(_which: int, place: int, action: Any) -> float:
    return float(int(action) == (place + 1) % 2)


def _pay_last(reward_fn: RewardFn, which: int, place: int, action: Any) -> float:
    """Nothing for any action but the last one that a cue's episode has."""
    return reward_fn(which, place, action) if place == _WAIT else 0.0


_NOTHING_TO_CHOOSE = partial(Discrete, 1)


def _dot(row: int, column: int, *, channels: int = 3) -> np.ndarray:
    """Return a black image of 8 by 8 with one bright pixel, channels first."""
    image = np.zeros((channels, 8, 8), dtype=np.uint8)
    image[:, row, column] = 255
    return image


_IMAGES = Box(0, 255, (3, 8, 8), dtype=np.uint8)
_QUARTERS = {"above left": (1, 1), "above right": (1, 6), "below left": (6, 1), "below right": (6, 6)}
_DIAGONAL = (0, 1, 1, 0)  # neither the row nor the column of the dot is enough, and its brightness says nothing
_DOTS = {name: _dot(*place) for name, place in _QUARTERS.items()}
_BITS = {name: np.moveaxis(image, 0, -1) > 0 for name, image in _DOTS.items()}

_GREYS = {grey: np.full((3, 8, 8), grey, dtype=np.uint8) for grey in (0, 128, 255)}
_WORTH_OF_GREYS = (-1.0, 1.0, 0.0)

_SIDES = {"left": _dot(3, 1, channels=1), "right": _dot(3, 6, channels=1)}
_BLACK = np.zeros((1, 8, 8), dtype=np.uint8)
_SIGHT_AND_TOUCH = {
    f"{side}, {touch:+g}": {"sight": image, "touch": (touch,)}
    for side, image in _SIDES.items()
    for touch in (-1.0, 1.0)
}

_PRODUCTS = {(category, number): (category - 6) * number + 0.0 for category in (5, 6, 7) for number in (-1.0, 1.0)}


def _by_diagonal(scenes: Mapping[str, Observation], space: gym.Space) -> Callable[[], gym.Env]:
    """Return a world of four scenes that pays for 0, 1, 1 and 0."""
    return partial(_one_step, tuple(scenes.values()), Discrete(2), partial(_pay_by_hits, _DIAGONAL), space=space)


def _known_by_diagonal(scenes: Mapping[str, Observation]) -> tuple[ExpectedAction, ...]:
    named = zip(scenes.items(), _DIAGONAL, strict=True)
    return tuple(ExpectedAction(obs, action, name=name) for (name, obs), action in named)


_WAIT = 5
"""How many blanks follow a cue before an episode's last action is due; all but the cue look alike."""


def _cued(cue: float) -> tuple[Observation, ...]:
    return ((cue,), *((0.0,),) * (_WAIT + 1))  # the last one is only arrived at


_LAST_WORDS = f", then {_WAIT} blanks"


def _two_of(cue: float, first: float, last: float) -> tuple[ExpectedValue, ExpectedValue]:
    """Say what a cue is worth when it is seen, and when the last action is due."""
    row = _cued(cue)
    return (
        ExpectedValue(row[0], first, name=f"{cue:+g}"),
        ExpectedValue(row[_WAIT], last, history=row[:_WAIT], name=f"{cue:+g}{_LAST_WORDS}"),
    )


_ALL = (
    Probe(
        # V = 1: one reward of 1 and the end.
        "ConstantReward",
        partial(_one_step, ((0.0,),), _NOTHING_TO_CHOOSE(), _one),
        "does the critic learn a constant?",
        gamma=0.5,
        values=(ExpectedValue((0.0,), 1.0),),
        steps=4_000,
    ),
    Probe(
        # V(o) = o: the reward is the observation, then the end.
        "ObservationReward",
        partial(_one_step, ((-1.0,), (1.0,)), _NOTHING_TO_CHOOSE(), partial(_pay_by_table, ((-1.0,), (1.0,)))),
        "does the critic look at the observation?",
        gamma=0.5,
        values=(ExpectedValue((-1.0,), -1.0), ExpectedValue((1.0,), 1.0)),
        steps=6_000,
    ),
    Probe(
        # V(1) = 1: the reward, then the end. V(0) = 0 + gamma V(1) = 0.5. An episode's end that is one step late makes
        # V(1) = 1 + gamma V(0) instead.
        "DiscountedReward",
        partial(ScriptedEnv, (((0.0,), (1.0,), (2.0,)),), _NOTHING_TO_CHOOSE(), partial(_pay_by_place, (0.0, 1.0))),
        "is a later reward discounted once, and does the episode end where it ends?",
        gamma=0.5,
        values=(ExpectedValue((0.0,), 0.5), ExpectedValue((1.0,), 1.0)),
        steps=8_000,
    ),
    Probe(
        "ActionSign",
        partial(_one_step, ((0.0,),), Discrete(2), partial(_pay_by_table, ((-1.0, 1.0),))),
        "does the policy go towards reward and not away from it?",
        gamma=0.5,
        actions=(ExpectedAction((0.0,), 1),),
        steps=4_000,
    ),
    Probe(
        "ActionByObservation",
        partial(_one_step, ((0.0,), (1.0,)), Discrete(2), partial(_pay_by_table, ((1.0, -1.0), (-1.0, 1.0)))),
        "does the policy look at the observation?",
        gamma=0.5,
        actions=(ExpectedAction((0.0,), 0), ExpectedAction((1.0,), 1)),
        steps=6_000,
    ),
    Probe(
        # The counter says 1, 2, … 6, not scaled, and 1 is paid for its parity: what follows does not depend on the
        # action, so the parity is best for every gamma.
        "Counter",
        partial(ScriptedEnv, (tuple((float(count),) for count in range(1, 8)),), Discrete(2), _pay_parity),
        "does the policy cope with an observation that is not scaled and jumps about in what it asks for?",
        gamma=0.5,
        actions=tuple(ExpectedAction((float(count),), count % 2) for count in range(1, 7)),
        steps=40_000,
    ),
    Probe(
        # Reward 1 for ever, seen through a time limit of 8: V = 1 + gamma V = 1 / (1 - gamma) = 10. Who takes the limit
        # for an end gets the mean of (1 - gamma^k) / (1 - gamma) over k = 1 … 8, which is 3.6.
        "EndlessTruncation",
        partial(ScriptedEnv, (((0.0,),) * 9,), _NOTHING_TO_CHOOSE(), _one, truncates=True),
        "is a time limit told from an end?",
        gamma=0.9,
        values=(ExpectedValue((0.0,), 10.0),),
        steps=20_000,
    ),
    Probe(
        # Leaving the start pays 10, then nothing for ever, seen through a time limit of 5: V(end) = 0, V(start) = 10.
        # Who bootstraps from the next episode's start, or learns from the row that next-step autoreset inserts, gives
        # the end a share of 0.9 * 10.
        "AutoresetLeak",
        partial(
            ScriptedEnv,
            (((1.0, 0.0), *((0.0, 1.0),) * 5),),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_by_place, (10.0, 0.0, 0.0, 0.0, 0.0)),
            truncates=True,
        ),
        "does the value of the next episode's start leak into the last one's end?",
        gamma=0.9,
        values=(ExpectedValue((1.0, 0.0), 10.0), ExpectedValue((0.0, 1.0), 0.0)),
        steps=20_000,
    ),
    Probe(
        # The action that would pay 10 is never allowed; of the two that are, one pays 1.
        "ActionMask",
        partial(
            _one_step,
            ((0.0,), (1.0,)),
            Discrete(3),
            partial(_pay_by_table, ((0.0, 1.0, 10.0), (10.0, 0.0, 1.0))),
            masks=((True, True, False), (False, True, True)),
        ),
        "does a mask hold, in acting and in learning?",
        gamma=0.5,
        actions=(
            ExpectedAction((0.0,), 1, mask=(True, True, False)),
            ExpectedAction((1.0,), 2, mask=(False, True, True)),
        ),
        steps=8_000,
    ),
    Probe(
        # Reward -(a - target)^2 with a in [-2, 1] and targets -3, 0.5 and 1: best are the bound, the inside, the bound.
        "ContinuousBounds",
        partial(
            _one_step,
            ((-1.0,), (0.0,), (1.0,)),
            Box(-2.0, 1.0, (1,)),
            partial(_pay_by_distance, ((-3.0,), (0.5,), (1.0,))),
        ),
        "are actions found inside the bounds, at them, and never beyond?",
        gamma=0.5,
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
        partial(_one_step, ((0.0,),), Box(-1.0, 1.0, (1,)), partial(_pay_by_distance, ((0.5,),))),
        "does a continuous policy go towards reward and stop there?",
        gamma=0.5,
        actions=(ExpectedAction((0.0,), (0.5,), 0.15),),
        steps=20_000,
    ),
    Probe(
        # Reward -|a - target|^2, where the two numbers of an action want opposite things.
        "ContinuousByObservation",
        partial(
            _one_step,
            ((-1.0,), (1.0,)),
            Box(-1.0, 1.0, (2,)),
            partial(_pay_by_distance, ((-0.5, 0.5), (0.5, -0.5))),
        ),
        "does a continuous policy look at the observation, each number of the action for itself?",
        gamma=0.5,
        actions=(ExpectedAction((-1.0,), (-0.5, 0.5), 0.15), ExpectedAction((1.0,), (0.5, -0.5), 0.15)),
        steps=30_000,
    ),
    Probe(
        # 1 for each choice that is right.
        "MultiDiscreteByObservation",
        partial(_one_step, ((0.0,), (1.0,)), MultiDiscrete([2, 3]), partial(_pay_by_hits, ((0, 2), (1, 0)))),
        "are several choices at once made each for itself?",
        gamma=0.5,
        actions=(ExpectedAction((0.0,), (0, 2)), ExpectedAction((1.0,), (1, 0))),
        steps=12_000,
    ),
    Probe(
        # 1 for each bit that is right.
        "MultiBinaryByObservation",
        partial(_one_step, ((0.0,), (1.0,)), MultiBinary(3), partial(_pay_by_hits, ((0, 1, 1), (1, 1, 0)))),
        "are several bits at once set each for itself?",
        gamma=0.5,
        actions=(ExpectedAction((0.0,), (0, 1, 1)), ExpectedAction((1.0,), (1, 1, 0))),
        steps=12_000,
    ),
    Probe(
        # V = -1, 1, 0 for black, grey, white: the reward, then the end. It neither rises nor falls with brightness.
        "ImageBrightness",
        partial(
            _one_step,
            tuple(_GREYS.values()),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_by_row, _WORTH_OF_GREYS),
            space=_IMAGES,
        ),
        "does the critic tell how bright an image is?",
        gamma=0.5,
        values=tuple(
            ExpectedValue(image, value, name=f"grey {grey}")
            for (grey, image), value in zip(_GREYS.items(), _WORTH_OF_GREYS, strict=True)
        ),
        steps=10_000,
    ),
    Probe(
        # 1 for the action of the dot's diagonal: only where it is tells them apart.
        "ImagePosition",
        _by_diagonal(_DOTS, _IMAGES),
        "does the policy see where in an image something is?",
        gamma=0.5,
        actions=_known_by_diagonal(_DOTS),
        steps=8_000,
    ),
    Probe(
        "ImageOfBits",
        _by_diagonal(_BITS, Box(0, 1, (8, 8, 3), dtype=cast(Any, np.bool_))),
        "does it still, where pixels are bools and channels stand last?",
        gamma=0.5,
        actions=_known_by_diagonal(_BITS),
        steps=8_000,
        channels_last=True,
    ),
    Probe(
        # 1 for (is the dot right?) XOR (is the number above 0?): either part alone leaves a chance of one half.
        "SightAndTouch",
        _by_diagonal(
            _SIGHT_AND_TOUCH, Dict({"sight": Box(0, 255, _BLACK.shape, dtype=np.uint8), "touch": Box(-1.0, 1.0, (1,))})
        ),
        "does the policy put together what an image and a number of a Dict say?",
        gamma=0.5,
        actions=_known_by_diagonal(_SIGHT_AND_TOUCH),
        steps=15_000,
    ),
    Probe(
        # V = (category - 6) * number: each part alone is worth 0 on average.
        "TupleProduct",
        partial(
            _one_step,
            tuple((category, {"number": (number,)}) for category, number in _PRODUCTS),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_by_row, tuple(_PRODUCTS.values())),
            space=Tuple([Discrete(3, start=5), Dict({"number": Box(-1.0, 1.0, (1,))})]),
        ),
        "does the critic put together what the parts of a Tuple say, one of which is nested?",
        gamma=0.5,
        values=tuple(
            ExpectedValue((category, {"number": (number,)}), value, name=f"{category}, {number:+g}")
            for (category, number), value in _PRODUCTS.items()
        ),
        steps=10_000,
    ),
    Probe(
        # Only the last of 6 actions counts: 1 if it is that of the cue. Without memory a half is the best there is.
        "MemoryCue",
        partial(
            ScriptedEnv,
            (_cued(-1.0), _cued(1.0)),
            Discrete(2),
            partial(_pay_last, partial(_pay_by_table, ((1.0, 0.0), (0.0, 1.0)))),
        ),
        "does the policy remember what it saw at the start?",
        gamma=0.9,
        actions=tuple(
            ExpectedAction((0.0,), action, history=_cued(cue)[:_WAIT], name=f"{cue:+g}{_LAST_WORDS}")
            for cue, action in ((-1.0, 0), (1.0, 1))
        ),
        steps=20_000,
        needs="memory",
    ),
    Probe(
        # The same with a dot at the left or right for a cue, and black images after it.
        "MemoryOfImage",
        partial(
            ScriptedEnv,
            tuple((image, *(_BLACK,) * (_WAIT + 1)) for image in _SIDES.values()),
            Discrete(2),
            partial(_pay_last, partial(_pay_by_table, ((1.0, 0.0), (0.0, 1.0)))),
            space=Box(0, 255, _BLACK.shape, dtype=np.uint8),
        ),
        "does the policy remember what an image showed?",
        gamma=0.9,
        actions=tuple(
            ExpectedAction(_BLACK, action, history=(image, *(_BLACK,) * (_WAIT - 1)), name=f"{side}{_LAST_WORDS}")
            for action, (side, image) in enumerate(_SIDES.items())
        ),
        steps=12_000,
        needs="memory",
    ),
    Probe(
        # The cue is paid with the last of 6 actions: V = cue * gamma^5 at first and cue at last. Without memory blanks
        # are worth 0. One cue looks like a blank: who takes the last episode's memory along gives it what that had.
        "MemoryValue",
        partial(
            ScriptedEnv,
            (_cued(-1.0), _cued(0.0), _cued(1.0)),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_last, partial(_pay_by_row, (-1.0, 0.0, 1.0))),
        ),
        "does the critic remember what it saw at the start, and nothing from before?",
        gamma=0.9,
        values=tuple(known for cue in (-1.0, 0.0, 1.0) for known in _two_of(cue, cue * 0.9**_WAIT, cue)),
        steps=20_000,
        needs="memory",
    ),
    Probe(
        # The cue is paid for ever, seen through a time limit of 6: V = cue / (1 - gamma) at every step. Who asks
        # for the value behind the limit without the memory of what came before it gets cue * 1 at last, not cue * 2.
        "MemoryTruncation",
        partial(
            ScriptedEnv,
            (_cued(-1.0), _cued(1.0)),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_by_row, (-1.0, 1.0)),
            truncates=True,
        ),
        "does the value behind a time limit rest on the memory of its episode?",
        gamma=0.5,
        values=tuple(known for cue in (-1.0, 1.0) for known in _two_of(cue, 2 * cue, 2 * cue)),
        steps=20_000,
        needs="memory",
    ),
)

PROBES: Mapping[str, Probe] = MappingProxyType({probe.name: probe for probe in _ALL})
