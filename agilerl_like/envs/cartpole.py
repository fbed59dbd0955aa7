"""gymnasium's native CartPole, but each row lives by a seed of its own, whoever steps beside it.

Native vector envs draw all rows' beginnings from one generator: as soon as one row ends earlier, all others begin
elsewhere. The steps are gymnasium's own; only where episodes begin is drawn here, so that a row has the very episodes
of a single CartPole that was given its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import VectorEnv

from agilerl_like.envs.factory import with_num_envs
from agilerl_like.envs.wrapper_specs import innermost_env, with_innermost_env

STARTS_PER_DRAW = 128
"""Beginnings that a row draws at once: one by one they would take as long as the steps."""


class SeededCartPole(CartPoleVectorEnv):
    """gymnasium's CartPole in numpy, whose rows have a generator each."""

    _generators: Sequence[np.random.Generator] = ()

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; with a seed for each row, or the first of as many, as `SyncVectorEnv` has it, or none."""
        _, info = super().reset(options=options)
        if isinstance(seed, int):
            seed = range(seed, seed + self.num_envs)
        if seed is not None:
            self._generators = [seeding.np_random(int(one))[0] for one in seed]
        elif not self._generators:
            self._generators = [seeding.np_random()[0] for _ in range(self.num_envs)]
        self._starts = np.concatenate([self._draw(row) for row in range(self.num_envs)])  # [N STARTS_PER_DRAW, 4]
        self._next = np.arange(self.num_envs) * STARTS_PER_DRAW
        self._last = self._next + STARTS_PER_DRAW - 1
        self.state = self._next_starts(np.arange(self.num_envs)).T.copy()
        return self.state.T.astype(np.float32), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each row; one whose episode has ended begins the next instead."""
        begin = self.prev_done.nonzero()[0]
        observations, reward, terminated, truncated, info = super().step(action)
        if len(begin):
            self.state.T[begin] = self._next_starts(begin)
            observations = self.state.T.astype(np.float32)
        return observations, reward, terminated, truncated, info

    def _next_starts(self, rows: np.ndarray) -> np.ndarray:
        """The states in which the next episodes of some rows begin, `[rows, 4]`."""
        here = self._next.take(rows)
        states = self._starts.take(here, 0)
        self._next[rows] = here + 1
        for row in rows[here == self._last.take(rows)]:
            self._next[row] = first = row * STARTS_PER_DRAW
            self._starts[first : first + STARTS_PER_DRAW] = self._draw(row)
        return states

    def _draw(self, row: int) -> np.ndarray:
        return self._generators[row].uniform(self.low, self.high, (STARTS_PER_DRAW, 4))


def is_native_cartpole(env: VectorEnv) -> bool:
    """Whether this is gymnasium's native CartPole, with or without seeds for its rows, however it is seen."""
    return type(innermost_env(env)) in (CartPoleVectorEnv, SeededCartPole)


def with_per_env_seeds(env: VectorEnv, num_envs: int, *, training: bool = True, first: int = 0) -> VectorEnv:
    """Make a fresh env like this one with another number of copies, each of which has a seed of its own.

    It is without training wrappers unless `training`; `first` is as for `with_num_envs`.

    That can be promised for all that is made of single envs, for EnvPool, and for gymnasium's native CartPole. In any
    other native vector env, like one of a factory of yours, rows may draw from one generator: what happens in one then
    depends on when the others' episodes end.

    Raises:
        ConfigurationError: as `with_num_envs`.
    """
    wide = with_num_envs(env, num_envs, training=training, first=first)
    core = innermost_env(wide)
    if type(core) is not CartPoleVectorEnv:
        return wide
    seeded = SeededCartPole(num_envs)
    vars(seeded).update(vars(core))  # its limit, its recipe, whatever a factory has set
    made = cast(Any, with_innermost_env(wide, seeded))
    made.backend_choice = getattr(env, "backend_choice", made.backend_choice)  # why it was chosen is known of the first
    return made
