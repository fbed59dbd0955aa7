"""Action distributions for each kind of action space.

Every method takes policy outputs with any leading axes, `[…, num_outputs]`. A *raw* action `[…, size]` is stored and
learned from: the category from 0, the bit, or the unbounded Gaussian value; `to_env` converts it to the environment's
action and `from_env` back. Noise is an argument, so that a member's actions depend on its own generator alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agilerl_like.envs.random_actions import NO_BOUND
from agilerl_like.errors import ConfigurationError

ILLEGAL = -1e9
"""Logit of a masked action in probabilities: finite, so that p * log p is 0 and its gradient too."""

LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of the log standard deviation of continuous actions, in half-widths of the action space."""

Divergence = Callable[["ActionDistribution", Tensor], Tensor]
"""(another distribution, its outputs) -> its divergence from a given one."""


class ActionDistribution(nn.Module):
    """One distribution per set of policy outputs."""

    num_outputs: int
    """Policy outputs per observation."""
    size: int
    """Values in one raw action."""
    mask_size: int = 0
    """Entries in one action mask; 0 if masks are not supported."""
    raw_dtype: torch.dtype = torch.float32

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return the random values for `sample`, `[*shape, …]`."""

    def correlated(self, noise: Tensor, before: Tensor | None, correlation: float) -> Tensor:
        """Return noise `[T, …]` correlated over time, following the noise `before` `[…]` of the previous step, if any.

        Noise that is not Gaussian is returned unchanged.
        """
        return noise

    def bound_std_(self, shift: float, low: float, high: float) -> None:
        """Shift the log standard deviation and clip it to bounds; does nothing for other distributions."""

    def reset_device_(self) -> None:
        """Move the constants, which follow the device of the actions, to the CPU."""

    @abstractmethod
    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return a sampled raw action `[…, size]`."""

    @abstractmethod
    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the most likely raw action `[…, size]`."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-probability of raw actions and the entropy, both `[…]`, in nats."""

    def uniform(self, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return raw actions `[…, size]` that are uniform over the legal actions, drawn from the noise of `sample`."""
        return self.sample(torch.zeros_like(noise), noise, mask)

    def uniform_log_prob(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-probability `[…]` of raw actions of `uniform`, in nats."""
        outputs = torch.zeros(*raw.shape[:-1], self.num_outputs, device=raw.device)
        return self.evaluate(outputs, raw, mask)[0]

    @abstractmethod
    def kl_from(self, outputs: Tensor) -> Divergence:
        """Return a function that computes KL(self || other) `[…]` in nats for other distributions."""

    @abstractmethod
    def in_env(self, raw: Tensor) -> Tensor:
        """Convert raw actions `[N, size]` to the environment's, `[N, *action_space.shape]`, on the same device."""

    def to_env(self, raw: Tensor) -> np.ndarray:
        """Convert raw actions to numpy; a transfer to the host if they are on an accelerator."""
        return self.in_env(raw).cpu().numpy()

    @abstractmethod
    def from_env(self, action: np.ndarray) -> Tensor:
        """Convert the environment's actions `[N, *action_space.shape]` to raw ones `[N, size]`."""

    def unbounded(self, raw: Tensor) -> np.ndarray:
        """Convert to the environment's units without clipping to its bounds, as `get_action` returns actions."""
        return self.to_env(raw)


class Categorical(ActionDistribution):
    """Discrete and MultiDiscrete spaces: one categorical variable for each entry of `nvec`."""

    raw_dtype = torch.int64

    def __init__(self, space: gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__()
        self.single = isinstance(space, gymnasium.spaces.Discrete)
        self.nvec = [
            int(n) for n in np.atleast_1d(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec)
        ]
        self.start = np.atleast_1d(space.start).astype(np.int64)
        self.reset_device_()
        self.is_shifted = bool(self.start.any())
        self.num_outputs = self.mask_size = sum(self.nvec)
        self.size = len(self.nvec)
        self.dtype = _torch_dtype(space)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        draw = torch.empty(*shape, self.num_outputs, device=generator.device)
        return draw.exponential_(generator=generator).log_().neg_()  # Gumbel: argmax(logits + noise) is a draw

    def _parts(self, outputs: Tensor, mask: Tensor | None, masked: float = ILLEGAL) -> tuple[Tensor, ...]:
        if mask is not None:
            outputs = outputs.masked_fill(~mask, masked)
        return (outputs,) if self.size == 1 else outputs.split(self.nvec, -1)

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.mode(outputs + noise, mask)

    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        best = [part.argmax(-1, keepdim=True) for part in self._parts(outputs, mask, -torch.inf)]
        return best[0] if self.size == 1 else torch.cat(best, -1)

    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logs = [F.log_softmax(part, -1) for part in self._parts(outputs, mask)]
        entries = (raw,) if self.size == 1 else raw.split(1, -1)
        log_probs = [logp.gather(-1, entry) for logp, entry in zip(logs, entries, strict=True)]
        return _total(log_probs), -_total([(logp.exp() * logp).sum(-1, keepdim=True) for logp in logs])

    def kl_from(self, outputs: Tensor) -> Divergence:
        logs = [F.log_softmax(part, -1) for part in self._parts(outputs, None)]
        chances = [logp.exp() for logp in logs]

        def kl(other: ActionDistribution, other_outputs: Tensor) -> Tensor:
            theirs = [F.log_softmax(part, -1) for part in self._parts(other_outputs, None)]
            pairs = zip(chances, logs, theirs, strict=True)
            return _total([(chance * (logp - logq)).sum(-1, keepdim=True) for chance, logp, logq in pairs])

        return kl

    def reset_device_(self) -> None:
        self.shift = torch.from_numpy(self.start)

    def in_env(self, raw: Tensor) -> Tensor:
        if self.is_shifted:
            if self.shift.device != raw.device:
                self.shift = self.shift.to(raw.device)
            raw = raw + self.shift
        action = raw.to(self.dtype)
        return action[..., 0] if self.single else action

    def from_env(self, action: np.ndarray) -> Tensor:
        action = np.asarray(action, dtype=np.int64).reshape(-1, self.size) - self.start
        return torch.from_numpy(action)


def _total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum `[…]` over the parts' values `[…, 1]`."""
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts), -1).sum(-1, keepdim=True)).squeeze(-1)


class Bernoulli(ActionDistribution):
    """MultiBinary spaces: independent bits; a mask is True for bits that may be 1."""

    def __init__(self, space: gymnasium.spaces.MultiBinary) -> None:
        super().__init__()
        self.shape = space.shape
        self.size = self.num_outputs = self.mask_size = int(np.prod(space.shape))
        self.dtype = _torch_dtype(space)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        draw = torch.empty(2, *shape, self.size, device=generator.device).exponential_(generator=generator).log_()
        return draw[0] - draw[1]  # logistic: logit + noise > 0 is a draw

    @staticmethod
    def _masked(outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs if mask is None else outputs.masked_fill(~mask, ILLEGAL)

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return (self._masked(outputs + noise, mask) > 0).float()

    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return (self._masked(outputs, mask) > 0).float()

    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logits = self._masked(outputs, mask)
        log_one, log_zero = F.logsigmoid(logits), F.logsigmoid(-logits)
        log_prob = (raw * log_one + (1 - raw) * log_zero).sum(-1)
        entropy = -(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1)
        return log_prob, entropy

    def kl_from(self, outputs: Tensor) -> Divergence:
        logs = [F.logsigmoid(sign * outputs) for sign in (1, -1)]
        chances = [logp.exp() for logp in logs]

        def kl(other: ActionDistribution, other_outputs: Tensor) -> Tensor:
            theirs = [F.logsigmoid(sign * other_outputs) for sign in (1, -1)]
            pairs = zip(chances, logs, theirs, strict=True)
            return torch.stack([(chance * (logp - logq)).sum(-1) for chance, logp, logq in pairs]).sum(0)

        return kl

    def in_env(self, raw: Tensor) -> Tensor:
        return raw.reshape(-1, *self.shape).to(self.dtype)

    def from_env(self, action: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(action, dtype=np.float32).reshape(-1, self.size))


class Gaussian(ActionDistribution):
    """Box spaces: a diagonal Gaussian with one learned log standard deviation a dimension.

    Raw actions are in half-widths of the space: -1 and 1 are the bounds, so the space's units do not matter (a
    dimension with an infinite bound is not scaled). Actions are clipped to the bounds, or with `squash` passed through
    tanh, and log-probabilities include the Jacobian (Haarnoja et al. 2018). Log-probabilities are densities in the
    environment's units.

    A squashed action that was rounded to the bound has lost its raw value: `from_env` reads it as the last float before
    the bound (raw 8.7 in float32), with the density of that value.

    With `std_range` the outputs are the means and, behind them, the log standard deviation's difference from the
    learned one, which is clamped to that range: it depends on the observation.
    """

    LAST_OF_TANH = 2.0**-24
    """Distance from 1 of the largest value below 1 that tanh returns in float32."""

    def __init__(
        self,
        space: gymnasium.spaces.Box,
        *,
        log_std: float,
        squash: bool,
        std_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        finite = (np.abs(low) < NO_BOUND) & (np.abs(high) < NO_BOUND)
        if squash and not finite.all():
            raise ConfigurationError(
                f"squash_output=True needs finite bounds, but action_space={space} has low={low}, high={high}"
            )
        self.shape, self.dtype, self.squash = space.shape, _torch_dtype(space), squash
        self.size, self.state_dependent = len(low), std_range is not None
        self.num_outputs = 2 * self.size if self.state_dependent else self.size
        self.centre, self.half_width = np.zeros(self.size), np.ones(self.size)
        self.centre[finite] = low[finite] / 2 + high[finite] / 2
        spread = finite & (high > low)  # where there is one legal number, every action is clipped to it
        self.half_width[spread] = high[spread] / 2 - low[spread] / 2
        largest = np.where(finite, np.maximum(np.abs(low), np.abs(high)), 1.0)
        last = np.spacing(largest.astype(space.dtype)).astype(np.float64) / (2 * self.half_width)
        self.border = 1 - np.maximum(last, self.LAST_OF_TANH)
        """The last float before the bound, in half-widths."""
        self.log_width = float(np.log(self.half_width).sum())
        self.scaling = np.stack([self.half_width, self.centre, low, high])  # [4, size] float64
        self.reset_device_()
        self.log_std = nn.Parameter(torch.full((self.size,), float(log_std)))
        if std_range is not None:
            self.register_buffer("std_range", torch.tensor(std_range))
            self.std_range: Tensor

    def _mean_and_log_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean, and the log standard deviation of each dimension, in half-widths."""
        log_std = self.log_std.clamp(*LOG_STD_RANGE)
        log_std = log_std if log_std.dim() == 1 else log_std.unsqueeze(1)
        if not self.state_dependent:
            return outputs, log_std
        mean, change = outputs.split(self.size, -1)
        low, high = (self.std_range if self.log_std.dim() == 1 else self.std_range.unsqueeze(1)).split(1, -1)
        return mean, (log_std + change).clamp(low, high)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.size, generator=generator, device=generator.device)

    def correlated(self, noise: Tensor, before: Tensor | None, correlation: float) -> Tensor:
        """Return a first-order autoregressive process of unit variance, with each step's distribution unchanged.

        The update ignores the correlation (Hollenstein et al. 2024, arXiv:2312.11091).
        """
        if not correlation:
            return noise
        steps = torch.arange(len(noise), device=noise.device)
        lag = steps.unsqueeze(1) - steps
        fresh = math.sqrt(1 - correlation**2)
        weights = (fresh * correlation ** lag.clamp(min=0)).tril().to(noise)
        if before is None:  # the first step has no predecessor, and all of its variance is its own
            weights[:, 0] /= fresh
        found = (weights @ noise.flatten(1)).view_as(noise)
        if before is None:
            return found
        decay = (correlation ** (steps + 1)).to(noise)
        return found + decay.view(-1, *[1] * before.dim()) * before

    @torch.no_grad()
    def bound_std_(self, shift: float, low: float, high: float) -> None:
        self.log_std.add_(shift).clamp_(low, high)
        if self.state_dependent:
            self.std_range.copy_(torch.tensor([low, high]))

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, log_std = self._mean_and_log_std(outputs)
        return torch.addcmul(mean, noise, log_std.exp())

    def uniform(self, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.raw_of_unit(torch.erf(noise / math.sqrt(2)))  # uniform in -1 to 1

    def raw_of_unit(self, unit: Tensor) -> Tensor:
        """Return raw actions for actions in half-widths of the space, from -1 to 1."""
        return self.before_tanh(unit) if self.squash else unit

    def before_tanh(self, unit: Tensor) -> Tensor:
        """Return the numbers whose tanh is `unit` `[…, size]`; of the last float before a bound where it is one."""
        border = torch.as_tensor(self.border, dtype=unit.dtype, device=unit.device)
        return torch.atanh(unit.clamp(-border, border))

    def uniform_log_prob(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        density = -self.size * math.log(2) - self.log_width
        return torch.full(raw.shape[:-1], density, dtype=raw.dtype, device=raw.device)

    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return outputs[..., : self.size] if self.state_dependent else outputs

    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._mean_and_log_std(outputs)
        z = (raw - mean) * (-log_std).exp()
        constant = 0.5 * self.size * math.log(2 * math.pi) + self.log_width
        log_prob = -0.5 * z.square().sum(-1) - log_std.sum(-1) - constant
        entropy = (log_std.sum(-1) + constant + 0.5 * self.size).expand(log_prob.shape)
        if self.squash:
            log_prob = log_prob - tanh_log_det_jacobian(raw).sum(-1)
            entropy = entropy + mean_log_det_jacobian(mean, log_std.exp()).sum(-1)
        return log_prob, entropy

    def kl_from(self, outputs: Tensor) -> Divergence:
        mean, ours = self._mean_and_log_std(outputs)
        variance = (2 * ours).exp()

        def kl(other: ActionDistribution, other_outputs: Tensor) -> Tensor:
            its = other if isinstance(other, Gaussian) else self
            other_mean, theirs = its._mean_and_log_std(other_outputs)
            spread = (variance + (mean - other_mean).square()) / (2 * (2 * theirs).exp())
            return (theirs - ours + spread - 0.5).sum(-1)

        return kl

    def in_env(self, raw: Tensor) -> Tensor:
        _, _, low, high = self._units_on(raw.device)
        return self._in_units(self._scaled(raw).clamp(low, high))

    def unbounded(self, raw: Tensor) -> np.ndarray:
        return self.to_env(raw) if self.squash else self._in_units(self._scaled(raw)).cpu().numpy()

    def reset_device_(self) -> None:
        self.units = torch.from_numpy(self.scaling)

    def _units_on(self, device: torch.device) -> Tensor:
        if self.units.device != device:
            self.units = self.units.to(device)
        return self.units

    def _scaled(self, raw: Tensor) -> Tensor:
        half_width, centre, _, _ = self._units_on(raw.device)
        return (torch.tanh(raw) if self.squash else raw).double() * half_width + centre

    def _in_units(self, action: Tensor) -> Tensor:
        return action.reshape(-1, *self.shape).to(self.dtype)

    def from_env(self, action: np.ndarray) -> Tensor:
        unit = (np.asarray(action, dtype=np.float64).reshape(-1, self.size) - self.centre) / self.half_width
        if self.squash:
            unit = np.arctanh(np.clip(unit, -self.border, self.border))
        return torch.from_numpy(unit).float()


def tanh_log_det_jacobian(x: Tensor) -> Tensor:
    """Return log(1 - tanh(x)**2) without cancellation, as torch's `TanhTransform` does."""
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


def mean_log_det_jacobian(mean: Tensor, std: Tensor) -> Tensor:
    """Return the expectation of `tanh_log_det_jacobian` of normal x, by the trapezoidal rule over 10 deviations.

    The entropy of a squashed Gaussian is the Gaussian's plus this. At the mode alone it would grow with `std` without
    end, although actions beyond tanh's linear part gather at the bounds.
    """
    points = torch.linspace(-5.0, 5.0, 21, dtype=mean.dtype, device=mean.device)  # made there: CUDA graphs copy nothing
    weights = torch.softmax(-0.5 * points.square(), 0)
    terms = tanh_log_det_jacobian(mean.unsqueeze(-1) + std.unsqueeze(-1) * points)
    with torch.autocast(mean.device.type, enabled=False):  # which would round the terms of this product, too
        return terms @ weights


def make_distribution(
    space: gymnasium.Space,
    *,
    log_std: float = 0.0,
    squash: bool = False,
    std_range: tuple[float, float] | None = None,
) -> ActionDistribution:
    """Choose the distribution that suits an action space; `std_range` is that of `Gaussian`.

    Raises:
        ConfigurationError: for a space that is none of Discrete, MultiDiscrete, MultiBinary and Box.
    """
    if squash and not isinstance(space, gymnasium.spaces.Box):
        raise ConfigurationError(f"squash_output=True is for Box actions; action_space={space} allows False")
    if std_range is not None and not isinstance(space, gymnasium.spaces.Box):
        raise ConfigurationError(f"state_dependent_std=True is for Box actions; action_space={space} allows False")
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        return Categorical(space)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, gymnasium.spaces.Box):
        return Gaussian(space, log_std=log_std, squash=squash, std_range=std_range)
    raise ConfigurationError(
        f"action_space={space} is not supported; allowed are Discrete, MultiDiscrete, MultiBinary and Box"
    )


def _torch_dtype(space: gymnasium.Space) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype
