"""The ends of episodes in a hand-written loop: which steps count, and the last observations of truncated episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from agilerl_like.envs.action_masks import ActionMasks
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError, unknown_name


class StepEnds(NamedTuple):
    """The ends of episodes in one step of E envs."""

    terminated: np.ndarray
    truncated: np.ndarray
    ended: np.ndarray
    acting: np.ndarray
    """False in rows whose action was ignored, or whose worker process was lost."""
    starts_next: np.ndarray
    """Rows whose next step begins an episode."""
    cut: np.ndarray
    """Indices `[K]` of rows that were truncated and not terminated."""
    last: Any
    """Last observations `[K, …]` of these rows; None without any."""


class EpisodeEnds:
    """Reads the flags of every step of a hand-written loop, by how the envs reset.

    The mode is read from `env.metadata["autoreset_mode"]`, or given as `autoreset`.
    """

    def __init__(
        self, env: gymnasium.vector.VectorEnv | None = None, autoreset: str | AutoresetMode | None = None
    ) -> None:
        modes = [mode.value for mode in AutoresetMode]
        given = (getattr(env, "metadata", None) or {}).get("autoreset_mode") if autoreset is None else autoreset
        try:
            self.mode = AutoresetMode(given)
        except ValueError:
            if given is None:
                raise ConfigurationError(
                    f"autoreset is missing, and env={env!r:.100} has no metadata['autoreset_mode']; allowed are {modes}"
                ) from None
            raise unknown_name("autoreset", given, modes) from None
        self._ended: np.ndarray | None = None

    def read(
        self,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        infos: Mapping[str, Any],
        *,
        envs: int,
        acting: Any = None,
    ) -> StepEnds:
        """Return the ends of the next step of `envs` envs; `acting` is False where no action was taken.

        Raises:
            ConfigurationError: the last observation of a truncated episode is missing.
        """
        shape = (envs,)
        ended_before = np.zeros(shape, np.bool_) if self._ended is None else self._ended
        skipped = ended_before if self.mode is AutoresetMode.NEXT_STEP else np.zeros(shape, np.bool_)
        lost = np.broadcast_to(np.asarray(as_numpy(infos.get("worker_lost", False)), np.bool_), shape)
        acts = np.broadcast_to(np.asarray(True if acting is None else acting, np.bool_), shape) & ~skipped & ~lost
        terminated, truncated = (np.array(as_numpy(flag), np.bool_).reshape(shape) for flag in (terminated, truncated))
        # a worker that replaces one lost in a reset resets in the next step
        self._ended = (terminated | truncated) & (~skipped | lost)
        terminated, truncated = terminated & ~skipped, truncated & ~skipped  # an episode may end while its agent waits
        ended, cut = terminated | truncated, np.flatnonzero(truncated & ~terminated)
        last = self._last_observations(cut, next_obs, infos)
        starts_next = ended | skipped  # an episode begins behind the step whose action was ignored, too
        return StepEnds(terminated, truncated, ended, acts, starts_next, cut, last)

    def _last_observations(self, rows: np.ndarray, next_obs: Any, infos: Mapping[str, Any]) -> Any:
        """Return the last observations `[K, …]` of truncated episodes; None without any."""
        if not len(rows):
            return None
        if self.mode is not AutoresetMode.SAME_STEP:
            return tree_map(lambda part: np.array(as_numpy(part))[rows], next_obs)
        final = infos.get("final_obs")
        if final is None:
            raise ConfigurationError(
                "infos has no final_obs, although an episode was truncated and the envs reset in the same step; "
                "allowed are the infos of env.step, which have the last observations of ended episodes"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            return tree_map(lambda *parts: np.stack(parts), *final[rows])
        return tree_map(lambda part: np.array(as_numpy(part))[rows], final)


class NextMasks:
    """Reads the action masks of the observations that the actions of a hand-written loop lead to."""

    def __init__(self, action_space: gymnasium.Space, mode: AutoresetMode) -> None:
        self._masks, self._in_same_step = ActionMasks(action_space), mode is AutoresetMode.SAME_STEP

    def read(self, infos: Mapping[str, Any], ended: np.ndarray) -> np.ndarray | None:
        """Return the masks `[E, choices]` in the infos of a step, given which rows `[E]` ended; None before any.

        Raises:
            ConfigurationError: the masks do not fit the action space.
            EnvStepError: a mask allows nothing.
        """
        rows = np.arange(len(ended))
        last = self._masks.read_last(infos, rows) if self._in_same_step else None
        mask = self._masks.read(infos, rows, ended=ended)
        if mask is None or not self._in_same_step:
            return mask
        return np.where(ended[:, None], True if last is None else last, mask)


def as_numpy(values: Any) -> np.ndarray:
    """Return values, which may be a tensor of any device, as an array of numpy."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
