"""Normalisers of encoded observations: by running statistics, by the bounds of the space, or none.

One-hot categories have their scale already, and images have their own (`Leaf.read`), so vectors alone are normalised.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.spaces import MAX_SPAN, Leaf, ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.layers import RunningNorm

ObservationNormKind = bool | Literal["running", "bounds"]
"""True is "running"."""
OBSERVATION_CLIP, OBSERVATION_EPS = 10.0, 1e-8
"""Default limit of normalised observations, and default summand of their variance. Values have no limit, because rare
large returns count."""


class NoNorm(nn.Module):
    """The normaliser that does nothing."""

    is_new = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x

    def invert(self, x: Tensor) -> Tensor:
        """Return the numbers as they are."""
        return x

    def update_(self, x: Tensor, weight: Tensor) -> None:
        """Learn nothing."""


class RowNorm(RunningNorm):
    """Normalises some numbers of rows and leaves the others, and bytes, as they are."""

    def __init__(self, encoding: ObservationEncoder, *, clip: float, epsilon: float) -> None:
        super().__init__(encoding.num_floats, clip=clip, epsilon=epsilon)
        self.encoding = encoding
        self.register_buffer("applies", torch.from_numpy(encoding.normalised).float())
        self.applies: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return _with_floats(self.encoding, x, self.normalise_floats(self.encoding.float_columns(x)))

    def normalise_floats(self, floats: Tensor) -> Tensor:
        """Return the floats of rows `[…, num_floats]`, of which those of vectors are normalised."""
        applies = self.applies if self.applies.dim() == 1 else self.applies.unsqueeze(1)
        return torch.where(applies > 0, super().forward(floats), floats)

    def update_(self, x: Tensor, weight: Tensor) -> None:
        super().update_(self.encoding.float_columns(x), weight)


class BoundsNorm(NoNorm):
    """Maps vectors from the bounds of their space to [-1, 1].

    Raises:
        ConfigurationError: a bound is infinite.
    """

    def __init__(self, encoding: ObservationEncoder, *, clip: float) -> None:
        super().__init__()
        self.encoding = encoding
        parts = [_bounds_of(leaf) for leaf in encoding.leaves if not leaf.is_uint8]
        low, high = (np.concatenate([np.zeros(0), *sides]) for sides in zip(*parts, strict=True))
        span = high - low
        scale = np.divide(2.0, span, out=np.zeros_like(span), where=span > 0)  # a constant becomes 0
        applies = encoding.normalised
        unlimited = np.finfo(np.float32).max  # a buffer with infinity would count as a member's divergence
        values = {"scale": (scale, 1.0), "shift": (-(low + high) / 2 * scale, 0.0), "limit": (clip, unlimited)}
        for name, (of_vectors, of_others) in values.items():
            self.register_buffer(name, torch.from_numpy(np.where(applies, of_vectors, of_others)).float())
        self.scale: Tensor
        self.shift: Tensor
        self.limit: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return _with_floats(self.encoding, x, self.normalise_floats(self.encoding.float_columns(x)))

    def normalise_floats(self, floats: Tensor) -> Tensor:
        """Return the floats of rows `[…, num_floats]`, of which those of vectors are normalised."""
        scale, shift, limit = (
            its if its.dim() == 1 else its.unsqueeze(1) for its in (self.scale, self.shift, self.limit)
        )
        return torch.addcmul(shift, floats, scale).minimum(limit).maximum(-limit)


class SplitNorm(nn.Module):
    """Normalises the policy's and the critic's part of rows, each by a normaliser of its own."""

    def __init__(self, encoding: AsymmetricEncoder, policy: RunningNorm | NoNorm, critic: RunningNorm | NoNorm) -> None:
        super().__init__()
        self.encoding, self.policy, self.critic = encoding, policy, critic

    @property
    def is_new(self) -> Tensor | float:
        """1 where there were no inputs yet, else 0: `[*M, 1]`."""
        return self.critic.is_new if isinstance(self.policy, NoNorm) else self.policy.is_new

    def forward(self, x: Tensor) -> Tensor:
        own = self.policy(self.encoding.policy_rows(x))
        if not self.encoding.has_critic_part(x):
            return own
        return self.encoding.join([own, self.critic(self.encoding.critic_rows(x))], torch)

    def update_(self, x: Tensor, weight: Tensor) -> None:
        """Update both statistics with a batch of rows, as `RunningNorm.update_`."""
        self.policy.update_(self.encoding.policy_rows(x), weight)
        self.critic.update_(self.encoding.critic_rows(x), weight)


ObservationNorm = RunningNorm | NoNorm | SplitNorm


def policy_norm(norm: ObservationNorm) -> RunningNorm | NoNorm:
    """Return the normaliser of what the policy reads."""
    return norm.policy if isinstance(norm, SplitNorm) else norm


def norm_parts(norm: ObservationNorm) -> tuple[RunningNorm | NoNorm, ...]:
    """Return the normalisers that one consists of."""
    return (norm.policy, norm.critic) if isinstance(norm, SplitNorm) else (norm,)


def make_observation_norm(
    encoding: ObservationEncoder | AsymmetricEncoder,
    kind: ObservationNormKind,
    *,
    clip: float = OBSERVATION_CLIP,
    epsilon: float = OBSERVATION_EPS,
) -> Any:
    """Return the normaliser of a kind that suits the rows of an encoder; it normalises nothing if there is no vector.

    Raises:
        ConfigurationError: `kind` is "bounds", and a bound is infinite.
    """
    if isinstance(encoding, AsymmetricEncoder):
        parts = (make_observation_norm(part, kind, clip=clip, epsilon=epsilon) for part in encoding.parts)
        return SplitNorm(encoding, *parts) if kind else NoNorm()
    if not kind or not encoding.normalised.any():
        return NoNorm()
    if kind == "bounds":
        return BoundsNorm(encoding, clip=clip)
    if encoding.normalised.all() and encoding.dtype is torch.float32:
        return RunningNorm(encoding.size, clip=clip, epsilon=epsilon)
    return RowNorm(encoding, clip=clip, epsilon=epsilon)


def _with_floats(encoding: ObservationEncoder, rows: Tensor, floats: Tensor) -> Tensor:
    """Return rows with other floats; the rows are not modified."""
    if rows.is_floating_point():
        return floats
    rows = rows.clone()
    encoding.float_columns(rows).copy_(floats)
    return rows


def _bounds_of(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bounds of the values of a leaf; zeros for what is no vector."""
    if leaf.kind != "vector":
        return np.zeros(leaf.size), np.zeros(leaf.size)
    low, high = (np.asarray(side, np.float64).reshape(-1) for side in (leaf.space.low, leaf.space.high))  # pyright: ignore[reportAttributeAccessIssue]  # a Box
    infinite = np.flatnonzero(~(high - low <= MAX_SPAN))
    if len(infinite):
        named = ", ".join(f"[{low[i]:g}, {high[i]:g}] of {leaf.title}[{i}]" for i in infinite[:8])
        raise ConfigurationError(
            f"normalize_observation='bounds' needs finite bounds, at most {MAX_SPAN:g} apart, but the space has "
            f"{named}{' and more' if len(infinite) > 8 else ''}; allowed are 'running' and False"
        )
    return low, high
