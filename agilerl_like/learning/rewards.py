"""Preprocessing of a member's training rewards: a transform, division by the running scale of its returns, a clip.

Evaluation and the reported returns of training use the environment's own rewards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.gae import discounted_suffix_sum_
from agilerl_like.registry import function_name

RewardFunction: TypeAlias = Callable[[Tensor, int, int | None], Tensor]
"""(rewards [T, P, E], steps of the run, its max_steps or None) -> rewards [T, P, E]."""

CLIP = 10.0
"""Limit of normalised rewards where no other is set, as in SB3's VecNormalize."""
EPSILON = 1e-8
"""Summand of the variance of the discounted return, as in SB3's VecNormalize."""
TRANSFORM = {"scale": 1.0, "shift": 0.0, "clip": None}
"""The parameters of a transform with their defaults, in the order in which they are applied."""
IMPORT_PATH = re.compile(r"[^:\s]+:[^:\s]+")
"""A module and a name in it; the name of a function that cannot be imported has the form "module:f.<locals>.g"."""


def check_reward_transform(given: Any) -> FrozenMapping[float | None] | RewardFunction | str | None:
    """Return a transform: parameters by name, a function, the import path of one, or None.

    Raises:
        ConfigurationError: it is something else, or a parameter is unknown or not finite.
    """
    if given is None or callable(given) or (isinstance(given, str) and IMPORT_PATH.fullmatch(given)):
        return cast(Any, given)
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"reward_transform={given!r:.100}; allowed are {{scale, shift, clip}}, a function "
            "(rewards, steps, max_steps), or its import path 'module:function'"
        )
    for name, value in given.items():
        if name not in TRANSFORM:
            raise unknown_name("reward_transform", name, TRANSFORM)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number and not (name == "clip" and value is None):
            raise ConfigurationError(f"reward_transform.{name}={value!r:.100}; allowed are finite numbers")
        if name == "clip" and value is not None and value <= 0:
            raise ConfigurationError(f"reward_transform.clip={value!r}; allowed are numbers above 0, and none")
    return FrozenMapping(given)


def reward_transform_to_json(transform: Any) -> Any:
    """Return plain data that `check_reward_transform` reads; a function is represented by its name."""
    if isinstance(transform, Mapping):
        return dict(transform)
    return function_name(transform) if callable(transform) else transform


def with_reward_function(transform: Any, given: Any) -> Any:
    """Return a loaded transform, or the function `given` if the transform is its name."""
    is_named = callable(given) and not isinstance(given, Mapping) and transform == reward_transform_to_json(given)
    return given if is_named else transform


def transformed(rewards: Tensor, transform: Any, steps: int, max_steps: int | None) -> Tensor:
    """Return rewards `[T, P, E]` after a transform.

    Raises:
        ConfigurationError: a function fails, returns another shape, or was loaded from a file, which has its name only.
    """
    if transform is None:
        return rewards
    if isinstance(transform, Mapping):
        scale, shift, clip = (transform.get(name, default) for name, default in TRANSFORM.items())
        changed = rewards * scale + shift
        return changed if clip is None else changed.clamp(-clip, clip)
    if isinstance(transform, str):
        raise ConfigurationError(
            f"reward_transform={transform!r} is a function, which a file cannot store; set agent.reward_transform to it"
        )
    try:
        changed = torch.as_tensor(transform(rewards.clone(), steps, max_steps)).to(rewards)
    except Exception as error:  # a user's function may raise anything
        raise ConfigurationError(f"reward_transform={transform!r} failed: {error!r}") from error
    if changed.shape != rewards.shape:
        raise ConfigurationError(
            f"reward_transform={transform!r} returned shape {tuple(changed.shape)}; allowed is {tuple(rewards.shape)}, "
            "that of the rewards [T, P, E]"
        )
    return changed


class ReturnStatistics(NamedTuple):
    """Statistics of the discounted returns of one member; float64, on the host."""

    moments: Tensor  # [3]: count, mean, and sum of squared deviations
    returns: Tensor  # [E]: discounted sum of each env's rewards so far in its episode

    @classmethod
    def new(cls) -> ReturnStatistics:
        """Return the statistics of no rewards."""
        return cls(torch.zeros(3, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))

    def of_new_episodes(self, starts: Tensor | None = None) -> ReturnStatistics:
        """Return the same statistics with no rewards in episodes that begin: where `starts` `[E]` is 1; None: all."""
        if starts is None or len(starts) != len(self.returns):
            return self._replace(returns=torch.zeros(0, dtype=torch.float64))
        return self._replace(returns=torch.where(starts.cpu() > 0, 0.0, self.returns))

    def updated(self, rewards: Tensor, continues: Tensor, counted: Tensor, gamma: float) -> ReturnStatistics:
        """Return the statistics after a rollout: rewards and flags `[T, E]`.

        R_t = r_t + gamma R_{t-1} within an episode, which `continues` where the next step belongs to it. R_t joins the
        statistics where `counted` is 1: where the agent acts, and where its episode ends while it waits for its turn.
        What it is paid in other steps in which it waits is part of a later R_t; what it is paid after its end, of none.
        """
        rewards, continues, counted = (x.detach().cpu().double() for x in (rewards, continues, counted))
        before = self.returns if len(self.returns) == rewards.shape[1] else rewards.new_zeros(rewards.shape[1])
        terms, decay = rewards.clone(), torch.zeros_like(rewards)
        terms[0] += gamma * before
        decay[1:] = gamma * continues[:-1]
        sums = discounted_suffix_sum_(terms.flip(0), decay.flip(0)).flip(0)  # flipped: the sums are over the past
        return ReturnStatistics(self._merged(sums[counted > 0]), sums[-1] * continues[-1])

    def _merged(self, new: Tensor) -> Tensor:
        """Return the moments after further returns `[n]` (Chan et al. 1979)."""
        if not len(new):
            return self.moments
        count, mean, squares = self.moments.unbind()
        added = torch.tensor(float(len(new)), dtype=torch.float64)
        total, change = count + added, new.mean() - mean
        return torch.stack(
            [
                total,
                mean + change * added / total,
                squares + (new - new.mean()).square().sum() + change.square() * count * added / total,
            ]
        )

    @property
    def scale(self) -> float:
        """The standard deviation of the discounted return; 1 before the first rollout."""
        count, _, squares = self.moments.tolist()
        return math.sqrt(squares / count + EPSILON) if count else 1.0
