"""Checks of a round of evaluation episodes: values that are not finite, and episodes that do not end.

As in the collector, NaN or infinity in an observation or a reward is an error of the environment. Numpy arrays are
checked at every step. A check of tensors waits for the device, so their sum is checked every few steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.vec_adapter import check_finite_array
from agilerl_like.errors import EnvStepError

LONG_EPISODE = 10_000
"""Steps after which a warning counts the episodes still running, unless `max_steps` truncates them."""


class EvaluationStopped(Exception):
    """An evaluation was stopped before its episodes had ended, so it has no result."""


def never_stop() -> bool:
    """Return False: the default of `should_stop`."""
    return False


class EpisodeGuard:
    """Checks one round, in which `members` share the rows of `env` in equal blocks.

    With `is_cut` long episodes are truncated, and none is reported. `should_stop` is called at every step.
    """

    def __init__(self, env: Any, members: int, *, is_cut: bool, should_stop: Callable[[], bool]) -> None:
        self._env, self._members, self._is_cut, self._should_stop = env, members, is_cut, should_stop
        self._sum: Any = 0.0
        self._steps = 0

    def check(self, **arrays: Tree) -> None:
        """Check what a reset or a step returned, by name, as trees of arrays `[N, …]`.

        Raises:
            EnvStepError: a numpy array holds NaN or infinity; tensors are checked by `any_playing`.
        """
        for name, tree in arrays.items():
            if isinstance(self._env.array_backend, NumpyBackend):
                check_finite_array(name, tree, self._describe_row)
            else:
                tree_map(self._add, tree)

    def any_playing(self, playing: Any) -> bool:
        """Return whether any row's episode is still running; tensors wait for their device once.

        Raises:
            EnvStepError: a tensor of any step so far held NaN or infinity.
        """
        if not isinstance(self._sum, torch.Tensor):
            return bool(playing.any())
        state = int(playing.any().to(torch.int64) + 2 * (~torch.isfinite(self._sum)).to(torch.int64))
        if state >= 2:
            raise EnvStepError(
                f"{env_name_of(self._env.env)}, in evaluation: an observation or a reward of the first "
                f"{self._steps} steps is not finite"
            )
        return state == 1

    def step(self, playing: Callable[[], int]) -> None:
        """Count a step before it is taken; `playing` returns the number of running episodes.

        Raises:
            EvaluationStopped: `should_stop` returned True.
        """
        if self._should_stop():
            raise EvaluationStopped
        self._steps += 1
        if self._steps == LONG_EPISODE and not self._is_cut and (count := playing()):
            warnings.warn(
                f"{env_name_of(self._env.env)}: {count} episodes of an evaluation have not ended after {LONG_EPISODE} "
                "steps; eval_steps (max_steps of test) cuts episodes, or the environment needs a time limit",
                RuntimeWarning,
                stacklevel=2,
            )

    def _add(self, part: torch.Tensor) -> None:
        if part.is_floating_point():
            self._sum = self._sum + part.sum(dtype=torch.float64)

    def _describe_row(self, row: int) -> str:
        member, env = divmod(row, self._env.num_envs // self._members)
        its = f"member {member}, env {env} of its own" if self._members > 1 else f"env {row}"
        return f"{env_name_of(self._env.env)}, {its}, in evaluation"
