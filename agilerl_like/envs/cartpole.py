"""gymnasium's native vectorised CartPole with one random generator per row.

The native vector env draws the start states of all rows from one generator, so a row's episodes depend on when the
other rows' episodes end. Here only the start states are replaced: after a seeded reset, each row plays exactly the
episodes of a single CartPole with the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import VectorEnv, VectorWrapper

from agilerl_like.envs.factory import with_num_envs
from agilerl_like.envs.wrapper_specs import innermost_env, with_innermost_env
from agilerl_like.seeding import seed_per_env

STARTS_PER_DRAW = 128
"""Start states that a row draws at once: drawing them singly would take as long as the steps."""


class SeededCartPole(VectorWrapper):
    """A CartPoleVectorEnv whose start states come from one generator per row."""

    def __init__(self, env: CartPoleVectorEnv) -> None:
        super().__init__(env)
        self._cartpole = env
        self._generators: Sequence[np.random.Generator] = ()

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; `seed` is one per row, or the first of consecutive seeds as in `SyncVectorEnv`."""
        env = self._cartpole
        _, info = env.reset(options=options)
        if seed is not None:
            self._generators = [seeding.np_random(one)[0] for one in seed_per_env(seed, env.num_envs)]
        elif not self._generators:
            self._generators = [seeding.np_random()[0] for _ in range(env.num_envs)]
        self._starts = np.concatenate([self._draw(row) for row in range(env.num_envs)])  # [N STARTS_PER_DRAW, 4]
        self._next = np.arange(env.num_envs) * STARTS_PER_DRAW
        self._last = self._next + STARTS_PER_DRAW - 1
        env.state = self._next_starts(np.arange(env.num_envs)).T.copy()
        return env.state.T.astype(np.float32), info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each row; a row whose episode has ended starts the next one instead."""
        env = self._cartpole
        reset_rows = env.prev_done.nonzero()[0]
        observations, reward, terminated, truncated, info = env.step(actions)
        if len(reset_rows):
            state = cast(np.ndarray, env.state)
            state.T[reset_rows] = self._next_starts(reset_rows)
            observations = state.T.astype(np.float32)
        return observations, reward, terminated, truncated, info

    def _next_starts(self, rows: np.ndarray) -> np.ndarray:
        """Return the start states of the next episodes of some rows, `[rows, 4]`."""
        here = self._next.take(rows)
        states = self._starts.take(here, 0)
        self._next[rows] = here + 1
        for row in rows[here == self._last.take(rows)]:
            self._next[row] = first = row * STARTS_PER_DRAW
            self._starts[first : first + STARTS_PER_DRAW] = self._draw(row)
        return states

    def _draw(self, row: int) -> np.ndarray:
        return self._generators[row].uniform(self._cartpole.low, self._cartpole.high, (STARTS_PER_DRAW, 4))


def is_native_cartpole(env: VectorEnv) -> bool:
    """Whether this is gymnasium's native CartPole, with or without per-row generators and observation wrappers."""
    return type(innermost_env(env)) in (CartPoleVectorEnv, SeededCartPole)


def with_per_env_seeds(env: VectorEnv, num_envs: int, *, training: bool = True, first: int = 0) -> VectorEnv:
    """Make a new env like this one with `num_envs` copies, each of which is seeded separately.

    Training wrappers are left out unless `training`; `first` is as in `with_num_envs`.

    Separate seeds are guaranteed for envs made of single envs, EnvPool, and gymnasium's native CartPole. In any other
    native vector env, or one of a user's factory, rows may share one generator: an episode then depends on when the
    other rows' episodes end.

    Raises:
        ConfigurationError: as `with_num_envs`.
    """
    wide = with_num_envs(env, num_envs, training=training, first=first)
    core = innermost_env(wide)
    if type(core) is not CartPoleVectorEnv:
        return wide
    known = cast(Any, wide)
    made = cast(Any, with_innermost_env(wide, SeededCartPole(core)))
    made.env_config = known.env_config
    made.backend_choice = getattr(env, "backend_choice", known.backend_choice)  # the reason is known of the first env
    return made
