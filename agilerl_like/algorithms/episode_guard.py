"""Guards a round of counted episodes: against numbers that are not finite, and against episodes that never end.

The rule for numbers is the collector's: NaN or infinity in an observation or a reward is a fault of the environment.
Numpy is checked at every step. A check of tensors waits for their device, so their sum is checked now and then.
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
"""Steps after which episodes that go on are named by a warning, unless a number of steps cuts them."""


class EvaluationStopped(Exception):
    """An evaluation was asked to stop before its episodes had ended, so it has no result."""


def never_stop() -> bool:
    """Return False: no one asks to stop."""
    return False


class EpisodeGuard:
    """Guards one round, in which `members` share the rows of `env` in equal blocks.

    `is_cut` says whether episodes are cut after a number of steps; `should_stop` is asked at every step.
    """

    def __init__(self, env: Any, members: int, *, is_cut: bool, should_stop: Callable[[], bool]) -> None:
        self._env, self._members, self._is_cut, self._should_stop = env, members, is_cut, should_stop
        self._sum: Any = 0.0
        self._steps = 0

    def check(self, **arrays: Tree) -> None:
        """Take what a reset or a step returned, by name, as trees of arrays `[N, …]`.

        Raises:
            EnvStepError: an array of numpy holds NaN or infinity; those of torch are checked by `any_playing`.
        """
        for name, tree in arrays.items():
            if isinstance(self._env.array_backend, NumpyBackend):
                check_finite_array(name, tree, self._describe_row)
            else:
                tree_map(self._add, tree)

    def any_playing(self, playing: Any) -> bool:
        """Return whether any row plays on; of tensors this waits for their device, once.

        Raises:
            EnvStepError: a tensor since the beginning held NaN or infinity.
        """
        if not isinstance(self._sum, torch.Tensor):
            return bool(playing.any())
        state = int(playing.any().to(torch.int64) + 2 * (~torch.isfinite(self._sum)).to(torch.int64))
        if state >= 2:
            raise EnvStepError(
                f"{env_name_of(self._env.env)}, in evaluation: an observation or a reward of the first {self._steps} steps "
                "is not finite"
            )
        return state == 1

    def step(self, playing: Callable[[], int]) -> None:
        """Count a step, before it is taken; `playing` returns how many episodes go on.

        Raises:
            EvaluationStopped: the evaluation was asked to stop.
        """
        if self._should_stop():
            raise EvaluationStopped
        self._steps += 1
        if self._steps == LONG_EPISODE and not self._is_cut and (count := playing()):
            warnings.warn(
                f"{env_name_of(self._env.env)}: {count} episodes of an evaluation have not ended after {LONG_EPISODE} steps; "
                "eval_steps (max_steps of test) cuts episodes, or the environment needs a time limit",
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
