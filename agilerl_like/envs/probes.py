"""Tiny worlds whose right answers are known by hand: an agent that misses one has a bug, and the world says which kind.

Each asks one question that the others do not. A value is that of the best policy with the probe's own `gamma`; it is
given only where it does not depend on how random the policy still is, or for worlds in which actions change nothing.
The idea is Andy Jones' ("Debugging RL, without the agonizing pain", 2021); the worlds about truncation, autoreset,
masks and bounds are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from agilerl_like.errors import EnvironmentFault

Observation = tuple[float, ...]
Pay = Callable[[int, Any], float]  # (which observation, action) -> reward


class OneStep(gym.Env[np.ndarray, Any]):
    """One observation drawn from a few, one action, one reward, and the episode has terminated."""

    def __init__(
        self,
        observations: tuple[Observation, ...],
        action_space: gym.Space,
        pay: Pay,
        *,
        masks: tuple[tuple[bool, ...], ...] = (),
    ) -> None:
        self._observations = np.array(observations, dtype=np.float32)
        self._pay = pay
        self._masks = np.array(masks, dtype=np.bool_)
        self._which = 0
        self.metadata = {"render_modes": []}
        self.observation_space = _box_around(self._observations)
        self.action_space = action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw an observation."""
        super().reset(seed=seed, options=options)
        self._which = int(self.np_random.integers(len(self._observations)))
        info = {"action_mask": self._masks[self._which].copy()} if self._masks.size else {}
        return self._observations[self._which].copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pay for the action; a finished world allows none."""
        _check_action(self.action_space, action)
        info = {"action_mask": np.zeros_like(self._masks[self._which])} if self._masks.size else {}
        return self._observations[self._which].copy(), float(self._pay(self._which, action)), True, False, info


class Corridor(gym.Env[np.ndarray, Any]):
    """A fixed row of observations, seen one after the other whatever the agent does; the last is only arrived at."""

    def __init__(
        self, observations: tuple[Observation, ...], action_space: gym.Space, pay: Pay, *, truncates: bool = False
    ) -> None:
        self._observations = np.array(observations, dtype=np.float32)
        self._pay = pay
        self._truncates = truncates
        self._place = 0
        self.metadata = {"render_modes": []}
        self.observation_space = _box_around(self._observations)
        self.action_space = action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Go back to the first observation."""
        super().reset(seed=seed, options=options)
        self._place = 0
        return self._observations[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go one observation further."""
        _check_action(self.action_space, action)
        reward = float(self._pay(self._place, action))
        self._place += 1
        ends = self._place == len(self._observations) - 1
        observation = self._observations[self._place].copy()
        return observation, reward, ends and not self._truncates, ends and self._truncates, {}


class KnownValue(NamedTuple):
    """What an observation is worth."""

    obs: Observation
    value: float


class KnownAction(NamedTuple):
    """What is best to do: the action, or a vector of them; `tolerance` is 0 for categories."""

    obs: Observation
    action: int | tuple[int, ...] | tuple[float, ...]
    tolerance: float = 0.0
    mask: tuple[bool, ...] = ()  # to be given to the agent with `obs`; empty: everything is allowed


@dataclass(frozen=True)
class Probe:
    """A world, the question it asks, and the answers; `steps` is about how many env steps an agent should need."""

    name: str
    make: Callable[[], gym.Env]
    question: str
    gamma: float
    values: tuple[KnownValue, ...] = ()
    actions: tuple[KnownAction, ...] = ()
    steps: int = 10_000


def _box_around(observations: np.ndarray) -> Box:
    return Box(observations.min(axis=0) - 1, observations.max(axis=0) + 1, dtype=np.float32)


def _check_action(space: gym.Space, action: Any) -> None:
    """A probe takes nothing that its space does not hold, so that an agent that forgets a bound is found out."""
    if not space.contains(np.asarray(action, dtype=space.dtype)):
        raise EnvironmentFault(f"action={action!r} lies outside {space}")


def _one(_place: int, _action: Any) -> float:
    return 1.0


def _pay_by_table(table: tuple[tuple[float, ...], ...], which: int, action: Any) -> float:
    return table[which][int(action)]


def _pay_by_place(rewards: tuple[float, ...], place: int, _action: Any) -> float:
    return rewards[place]


def _pay_by_distance(targets: tuple[tuple[float, ...], ...], which: int, action: Any) -> float:
    return -float(np.square(np.asarray(action) - targets[which]).sum())


def _pay_by_hits(targets: tuple[tuple[int, ...], ...], which: int, action: Any) -> float:
    return float(np.equal(action, targets[which]).sum())


def _pay_parity(place: int, action: Any) -> float:
    return float(int(action) == (place + 1) % 2)


_NOTHING_TO_CHOOSE = partial(Discrete, 1)

_ALL = (
    Probe(
        # V = 1: one reward of 1 and the end.
        "ConstantReward",
        partial(OneStep, ((0.0,),), _NOTHING_TO_CHOOSE(), _one),
        "does the critic learn a constant?",
        gamma=0.5,
        values=(KnownValue((0.0,), 1.0),),
        steps=4_000,
    ),
    Probe(
        # V(o) = o: the reward is the observation, then the end.
        "ObservationReward",
        partial(OneStep, ((-1.0,), (1.0,)), _NOTHING_TO_CHOOSE(), partial(_pay_by_table, ((-1.0,), (1.0,)))),
        "does the critic look at the observation?",
        gamma=0.5,
        values=(KnownValue((-1.0,), -1.0), KnownValue((1.0,), 1.0)),
        steps=6_000,
    ),
    Probe(
        # V(1) = 1: the reward, then the end. V(0) = 0 + gamma V(1) = 0.5. An episode's end that is one step late makes
        # V(1) = 1 + gamma V(0) instead.
        "DiscountedReward",
        partial(Corridor, ((0.0,), (1.0,), (2.0,)), _NOTHING_TO_CHOOSE(), partial(_pay_by_place, (0.0, 1.0))),
        "is a later reward discounted once, and does the episode end where it ends?",
        gamma=0.5,
        values=(KnownValue((0.0,), 0.5), KnownValue((1.0,), 1.0)),
        steps=8_000,
    ),
    Probe(
        "ActionSign",
        partial(OneStep, ((0.0,),), Discrete(2), partial(_pay_by_table, ((-1.0, 1.0),))),
        "does the policy go towards reward and not away from it?",
        gamma=0.5,
        actions=(KnownAction((0.0,), 1),),
        steps=4_000,
    ),
    Probe(
        "ActionByObservation",
        partial(OneStep, ((0.0,), (1.0,)), Discrete(2), partial(_pay_by_table, ((1.0, -1.0), (-1.0, 1.0)))),
        "does the policy look at the observation?",
        gamma=0.5,
        actions=(KnownAction((0.0,), 0), KnownAction((1.0,), 1)),
        steps=6_000,
    ),
    Probe(
        # The counter says 1, 2, … 6, not scaled, and 1 is paid for its parity: what follows does not depend on the
        # action, so the parity is best for every gamma.
        "Counter",
        partial(Corridor, tuple((float(count),) for count in range(1, 8)), Discrete(2), _pay_parity),
        "does the policy cope with an observation that is not scaled and jumps about in what it asks for?",
        gamma=0.5,
        actions=tuple(KnownAction((float(count),), count % 2) for count in range(1, 7)),
        steps=40_000,
    ),
    Probe(
        # Reward 1 for ever, seen through a time limit of 8: V = 1 + gamma V = 1 / (1 - gamma) = 10. Who takes the limit
        # for an end gets the mean of (1 - gamma^k) / (1 - gamma) over k = 1 … 8, which is 3.6.
        "EndlessTruncation",
        partial(Corridor, ((0.0,),) * 9, _NOTHING_TO_CHOOSE(), _one, truncates=True),
        "is a time limit told from an end?",
        gamma=0.9,
        values=(KnownValue((0.0,), 10.0),),
        steps=20_000,
    ),
    Probe(
        # Leaving the start pays 10, then nothing for ever, seen through a time limit of 5: V(end) = 0, V(start) = 10.
        # Who bootstraps from the next episode's start, or learns from the row that next-step autoreset inserts, gives
        # the end a share of 0.9 * 10.
        "AutoresetLeak",
        partial(
            Corridor,
            ((1.0, 0.0), *((0.0, 1.0),) * 5),
            _NOTHING_TO_CHOOSE(),
            partial(_pay_by_place, (10.0, 0.0, 0.0, 0.0, 0.0)),
            truncates=True,
        ),
        "does the value of the next episode's start leak into the last one's end?",
        gamma=0.9,
        values=(KnownValue((1.0, 0.0), 10.0), KnownValue((0.0, 1.0), 0.0)),
        steps=20_000,
    ),
    Probe(
        # The action that would pay 10 is never allowed; of the two that are, one pays 1.
        "ActionMask",
        partial(
            OneStep,
            ((0.0,), (1.0,)),
            Discrete(3),
            partial(_pay_by_table, ((0.0, 1.0, 10.0), (10.0, 0.0, 1.0))),
            masks=((True, True, False), (False, True, True)),
        ),
        "does a mask hold, in acting and in learning?",
        gamma=0.5,
        actions=(
            KnownAction((0.0,), 1, mask=(True, True, False)),
            KnownAction((1.0,), 2, mask=(False, True, True)),
        ),
        steps=8_000,
    ),
    Probe(
        # Reward -(a - target)^2 with a in [-2, 1] and targets -3, 0.5 and 1: best are the bound, the inside, the bound.
        "ContinuousBounds",
        partial(
            OneStep,
            ((-1.0,), (0.0,), (1.0,)),
            Box(-2.0, 1.0, (1,)),
            partial(_pay_by_distance, ((-3.0,), (0.5,), (1.0,))),
        ),
        "are actions found inside the bounds, at them, and never beyond?",
        gamma=0.5,
        actions=(
            KnownAction((-1.0,), (-2.0,), 0.2),
            KnownAction((0.0,), (0.5,), 0.2),
            KnownAction((1.0,), (1.0,), 0.2),
        ),
        steps=40_000,
    ),
    Probe(
        # Reward -(a - 0.5)^2.
        "ContinuousTarget",
        partial(OneStep, ((0.0,),), Box(-1.0, 1.0, (1,)), partial(_pay_by_distance, ((0.5,),))),
        "does a continuous policy go towards reward and stop there?",
        gamma=0.5,
        actions=(KnownAction((0.0,), (0.5,), 0.15),),
        steps=20_000,
    ),
    Probe(
        # Reward -|a - target|^2, where the two numbers of an action want opposite things.
        "ContinuousByObservation",
        partial(
            OneStep,
            ((-1.0,), (1.0,)),
            Box(-1.0, 1.0, (2,)),
            partial(_pay_by_distance, ((-0.5, 0.5), (0.5, -0.5))),
        ),
        "does a continuous policy look at the observation, each number of the action for itself?",
        gamma=0.5,
        actions=(KnownAction((-1.0,), (-0.5, 0.5), 0.15), KnownAction((1.0,), (0.5, -0.5), 0.15)),
        steps=30_000,
    ),
    Probe(
        # 1 for each choice that is right.
        "MultiDiscreteByObservation",
        partial(OneStep, ((0.0,), (1.0,)), MultiDiscrete([2, 3]), partial(_pay_by_hits, ((0, 2), (1, 0)))),
        "are several choices at once made each for itself?",
        gamma=0.5,
        actions=(KnownAction((0.0,), (0, 2)), KnownAction((1.0,), (1, 0))),
        steps=12_000,
    ),
    Probe(
        # 1 for each bit that is right.
        "MultiBinaryByObservation",
        partial(OneStep, ((0.0,), (1.0,)), MultiBinary(3), partial(_pay_by_hits, ((0, 1, 1), (1, 1, 0)))),
        "are several bits at once set each for itself?",
        gamma=0.5,
        actions=(KnownAction((0.0,), (0, 1, 1)), KnownAction((1.0,), (1, 1, 0))),
        steps=12_000,
    ),
)

PROBES: Mapping[str, Probe] = MappingProxyType({probe.name: probe for probe in _ALL})
