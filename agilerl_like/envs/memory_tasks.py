"""Small tasks that only a memory can solve, after POPGym (Morad et al. 2023): cards of four suits, drawn at random.

A right answer earns 1/n and a wrong one loses 1/n, where n is the number of answers, so the best return is 1. Guessing
without memory returns -0.5 on average.

    agilerl-like train agilerl_like.envs.memory_tasks:RepeatPrevious --algorithm.recurrent true
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from agilerl_like.errors import ConfigurationError

SUITS = 4


class CardTask(gym.Env[Any, Any]):
    """An episode of `length` cards; a subclass defines what is shown and what is the right answer."""

    answers: int
    """Number of answers that count in an episode."""

    def __init__(self, length: int, suits: int) -> None:
        _check("suits", suits, 2)
        self.length, self.suits = length, suits
        self.action_space = Discrete(suits)
        self._cards, self._time = np.zeros(length, np.int64), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cards, self._time = self.np_random.integers(0, self.suits, self.length), 0
        return self.observe(self._cards, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted = self.answer(self._cards, self._time)
        reward = 0.0 if wanted is None else (1.0 if int(action) == wanted else -1.0) / self.answers
        self._time += 1
        is_over = self._time == self.steps
        return self.observe(self._cards, min(self._time, self.steps - 1)), reward, is_over, False, {}

    @property
    def steps(self) -> int:
        """Number of steps of an episode."""
        return self.length

    def observe(self, cards: Sequence[int] | np.ndarray, time: int) -> Any:
        """Return the observation at a step of an episode with these cards."""
        raise NotImplementedError

    def answer(self, cards: Sequence[int] | np.ndarray, time: int) -> int | None:
        """Return the right action at a step; None where none counts."""
        raise NotImplementedError


class RepeatFirst(CardTask):
    """The right answer is the suit of the first card, at every step.

    Observations are (is it the first card?, suit).

    Raises:
        ConfigurationError: `length` is less than 1, or `suits` less than 2.
    """

    def __init__(self, length: int = 16, suits: int = SUITS) -> None:
        _check("length", length, 1)
        super().__init__(length, suits)
        self.observation_space = MultiDiscrete([2, suits])
        self.answers = length

    def observe(self, cards: Sequence[int] | np.ndarray, time: int) -> np.ndarray:
        return np.array([time == 0, cards[time]], np.int64)

    def answer(self, cards: Sequence[int] | np.ndarray, time: int) -> int:
        return int(cards[0])


class RepeatPrevious(CardTask):
    """The right answer is the suit of the card `k` steps ago. Observations are suits.

    Raises:
        ConfigurationError: `k` is less than 1, `length` is not greater than `k`, or `suits` is less than 2.
    """

    def __init__(self, k: int = 4, length: int = 32, suits: int = SUITS) -> None:
        _check("k", k, 1)
        _check("length", length, k + 1)
        super().__init__(length, suits)
        self.observation_space = Discrete(suits)
        self.k, self.answers = k, length - k

    def observe(self, cards: Sequence[int] | np.ndarray, time: int) -> int:
        return int(cards[time])

    def answer(self, cards: Sequence[int] | np.ndarray, time: int) -> int | None:
        return int(cards[time - self.k]) if time >= self.k else None


class Autoencode(CardTask):
    """The cards are shown, then the right answers are their suits from the last to the first.

    Observations are (are answers wanted?, suit); the suit is 0 while answers are wanted.

    Raises:
        ConfigurationError: `length` is less than 1, or `suits` less than 2.
    """

    def __init__(self, length: int = 6, suits: int = SUITS) -> None:
        _check("length", length, 1)
        super().__init__(length, suits)
        self.observation_space = MultiDiscrete([2, suits])
        self.answers = length

    @property
    def steps(self) -> int:
        return 2 * self.length

    def observe(self, cards: Sequence[int] | np.ndarray, time: int) -> np.ndarray:
        return np.array([0, cards[time]] if time < self.length else [1, 0], np.int64)

    def answer(self, cards: Sequence[int] | np.ndarray, time: int) -> int | None:
        return int(cards[2 * self.length - 1 - time]) if time >= self.length else None


def _check(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name}={value!r} must be an integer of at least {least}")
