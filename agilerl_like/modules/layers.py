"""Layers for one member or for a stack of members.

A layer's parameters are `[out, in]` for one member and `[P, out, in]` for a stack of P; its input is `[..., in]` or
`[P, B, in]`. Nothing else differs, so a single agent and a population run the same code.

Members of a stack may be narrower than the stack, or lack a layer. Their tensors fill the leading block of the stacked
ones, and the rest is and stays zero. Layers for which zeros are not enough receive their members by `set_members`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agilerl_like.errors import unknown_name


def gelu(x: Tensor) -> Tensor:
    """GELU (Hendrycks and Gimpel 2016) of a transposed view, which torch computes with its own kernel.

    A contiguous float32 tensor would go to oneDNN on a CPU, which compiles and caches a kernel of about 28 kB for every
    new shape (up to 1,024), and mutations make new shapes for as long as a run lasts.
    """
    return F.gelu(x.mT).mT if x.dim() > 1 else F.gelu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "Tanh": torch.tanh,
    "ELU": F.elu,
    "GELU": gelu,
    "SiLU": F.silu,
    "LeakyReLU": F.leaky_relu,
    "Softsign": F.softsign,
    "Mish": F.mish,
    "Sigmoid": torch.sigmoid,
    "Softplus": F.softplus,
    "Identity": lambda x: x,
}

SKIP = "Skip"
"""Name that a new layer fades from: its input, bypassing weights, normalisation and activation."""

ZERO_PRESERVING = {"", SKIP, *(name for name, function in ACTIVATIONS.items() if function(torch.zeros(())) == 0)}
"""Activations that map 0 to 0, so that a missing unit stays exactly 0."""


def check_activation(field: str, name: str) -> None:
    """Raise ConfigurationError, with near names, unless `name` is an activation."""
    if name not in ACTIVATIONS:
        raise unknown_name(field, name, ACTIVATIONS)


_SKIP_INIT = ContextVar("_SKIP_INIT", default=False)


@contextmanager
def skip_init() -> Iterator[None]:
    """Build layers with zero weights within this context, for callers that overwrite them: drawing takes most time."""
    token = _SKIP_INIT.set(True)
    try:
        yield
    finally:
        _SKIP_INIT.reset(token)


def default_weights(*shape: int, fan_in: int) -> Tensor:
    """Return usable weights of a new layer: the same ones every time, without a global generator."""
    if _SKIP_INIT.get():
        return torch.zeros(shape, device="cpu")
    bound = fan_in**-0.5
    return torch.empty(shape, device="cpu").uniform_(
        -bound, bound, generator=torch.Generator("cpu").manual_seed(fan_in)
    )


def draw_weights_(weight: Tensor, gain: float, generator: torch.Generator, *, orthogonal: bool) -> None:
    """Draw weights `[out, in, …]`: an orthogonal matrix `[out, columns]` times `gain` (Saxe et al. 2014), or uniform.

    Uniform weights are within +-gain/sqrt(columns), with a gain of at most 1.
    """
    if orthogonal:
        draw_(weight, nn.init.orthogonal_, gain, generator=generator)
    else:
        bound = min(gain, 1.0) * weight[0].numel() ** -0.5
        draw_(weight, nn.init.uniform_, -bound, bound, generator=generator)


@torch.no_grad()
def draw_(tensor: Tensor, init: Callable[..., Tensor], *arguments: float, generator: torch.Generator) -> None:
    """Fill a tensor by a function of `nn.init`, drawn on the generator's device: torch refuses to draw on another."""
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.device)
    tensor.copy_(init(drawn, *arguments, generator=generator))


class ActiveBlock(NamedTuple):
    """The part of a stack that a layer computes if some members lack it: rows and leading units of those that have it.

    The rows are those from the first to the last member that has the layer, the units as many as the widest of these.
    """

    rows: slice
    width: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return the block of samples `[P, B, W]` or of biases `[P, out]`, as a view."""
        return tensor[self.rows, ..., : self.width]

    def of_weight(self, weight: Tensor) -> Tensor:
        """Return the block of weights `[P, out, in]`, as a view."""
        return weight[self.rows, : self.width, : self.width]


class Linear(nn.Module):
    """An affine map: `[..., in] -> [..., out]`, or `[P, B, in] -> [P, B, out]` when stacked."""

    active_block: ActiveBlock | None = None
    """In a stack, the part that is computed if some members lack this layer; its input is as wide as its output."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_weights(num_outputs, num_inputs, fan_in=num_inputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def reset_(self, gain: float, generator: torch.Generator, *, orthogonal: bool = True) -> None:
        """Draw initial weights and set biases to zero; see `draw_weights_`."""
        draw_weights_(self.weight, gain, generator, orthogonal=orthogonal)
        nn.init.zeros_(self.bias)

    def matrix(self) -> Tensor:
        """Return the weights `[out, columns]` of one member as a view."""
        return self.weight

    def set_members(self, members: Sequence[nn.Module | None], device: torch.device) -> None:
        """Set the active block from the members that have this layer."""
        span, self.active_block = span_of(members), None
        if span is not None:
            width = max((max(member.weight.shape[-2:]) for member in members if isinstance(member, Linear)), default=0)
            self.active_block = ActiveBlock(span, width)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes, for `print`."""
        return f"num_inputs={self.weight.numel() // self.bias.numel()}, num_outputs={self.bias.shape[-1]}"


@runtime_checkable
class MemberAware(Protocol):
    """A layer whose output depends on which members of a stack have it."""

    def set_members(self, members: Sequence[nn.Module | None], device: torch.device) -> None:
        """Receive the layer of each member, None where a member lacks it."""
        ...


class NoisyLinear(Linear):
    """An affine map with learned factorised Gaussian noise on its weights while training (Fortunato et al. 2018).

    The noise stays the same until `resample_` is called, so that a rollout and its update use one policy.
    """

    def __init__(self, num_inputs: int, num_outputs: int, noise_std: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.noise_std = noise_std
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), noise_std / num_inputs**0.5))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), noise_std / num_inputs**0.5))
        self.register_buffer("input_noise", torch.zeros(num_inputs))
        self.register_buffer("output_noise", torch.zeros(num_outputs))
        self.input_noise: Tensor
        self.output_noise: Tensor

    def set_members(self, members: Sequence[nn.Module | None], device: torch.device) -> None:
        """Leave `active_block` unset: the noise is part of the weights, so the layer is computed by `forward` alone."""

    def resample_(self, generator: torch.Generator) -> None:
        """Draw new noise for one member (the rows of a stack are drawn through its members)."""
        for noise in (self.input_noise, self.output_noise):
            draw = torch.randn(noise.shape, generator=generator, device=generator.device)
            noise.copy_(draw.sign() * draw.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return affine(x, self.weight, self.bias)
        outer = self.output_noise.unsqueeze(-1) * self.input_noise.unsqueeze(-2)
        return affine(x, self.weight + self.weight_sigma * outer, self.bias + self.bias_sigma * self.output_noise)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, noise_std={self.noise_std}"


class Residual(Linear):
    """A linear map whose outputs are added to a stream; zero at first, so that it changes nothing.

    `present` is 0 for a member of a stack that lacks the layer: its bias stays 0 although its gradient is not.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        nn.init.zeros_(self.weight)
        self.register_buffer("present", torch.ones(1))
        self.present: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias * self.present)


def span_of(members: Sequence[nn.Module | None]) -> slice | None:
    """Return the rows from the first to the last member that has a layer; None if all have it."""
    here = [row for row, member in enumerate(members) if member is not None]
    if len(here) == len(members):
        return None
    return slice(here[0], here[-1] + 1) if here else slice(0, 0)


def apply_to_subset(linear: Linear, activation: Activation, x: Tensor) -> Tensor:
    """Apply a layer that some members lack to the rows of `x` `[P, B, W]` of those that have it; pass the others on.

    A minibatch step of eight MLPs of unequal depth takes 1.6 times as long where the layer is computed for all members.
    """
    block = cast(ActiveBlock, linear.active_block)
    part = block.of(x)
    y = activation.uniform(affine(part, block.of_weight(linear.weight), block.of(linear.bias)))
    result = x.clone()
    block.of(result).copy_(y if activation.gaps is None else torch.where(activation.gaps, y, part))
    return result


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `x @ weight.T + bias`, with or without a leading member axis on all three."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016) in which units may be excluded from the statistics.

    `counted` is 1 for a unit that enters mean and variance. A new unit has 0: it is normalised by the statistics of the
    earlier units, so that growing a normalised layer changes no output.
    """

    EPSILON = 1e-5

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_units))
        self.bias = nn.Parameter(torch.zeros(num_units))
        self.register_buffer("counted", torch.ones(num_units))
        self.counted: Tensor
        self.counts_all = True

    def set_members(self, members: Sequence[nn.Module | None], device: torch.device) -> None:
        """Update the flag: missing units do not count."""
        self.update_count_flags()

    def update_count_flags(self) -> None:
        """Set `counts_all`, which selects the plain kernel; call this after `counted` was written."""
        self.counts_all = bool((self.counted == 1).all())

    def count_all_if_few_(self) -> None:
        """Count every unit if fewer than two are counted, since one unit has no variance."""
        if self.counted.sum() < 2:
            self.counted.fill_(1.0)
        self.update_count_flags()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.update_count_flags()

    def forward(self, x: Tensor) -> Tensor:
        stacked = self.weight.dim() == 2
        weight, bias = (self.weight.unsqueeze(1), self.bias.unsqueeze(1)) if stacked else (self.weight, self.bias)
        if self.counts_all:
            return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:], eps=self.EPSILON), weight)
        counted = self.counted.unsqueeze(1) if stacked else self.counted
        share = counted / counted.sum(-1, keepdim=True).clamp(min=1.0)  # a member without this layer has no counts
        centred = x - (x * share).sum(-1, keepdim=True)
        variance = (centred.square() * share).sum(-1, keepdim=True)
        return torch.addcmul(bias, centred * (variance + self.EPSILON).rsqrt(), weight)

    def extra_repr(self) -> str:
        """Return the size, for `print`."""
        return f"num_units={self.weight.shape[-1]}"


class RunningNorm(nn.Module):
    """Normalise by the running mean and variance of all inputs: `[..., size]`, or `[P, B, size]` when stacked.

    The statistics are buffers, cloned and saved with the member. Only `update_` changes them, so they are constant
    while a policy acts, learns or is evaluated. They are merged as by Chan et al. (1979), in the module's dtype. A
    batch has a share of `LEAST_SHARE` or more: after a million equal updates the statistics follow the last million.
    Normalised values are clipped to +-`clip`; `epsilon` is added to the variance. A constant normalises to about 0,
    however large it is: a variance below that of rounding is raised to it.
    """

    MAX_SCALE = 1e4
    """Limit of the scale, unless `epsilon` allows more."""
    MIN_EPSILON = 1e-30
    """Least `epsilon` in that limit: the scale stays finite where the variance is 0 and `epsilon` rounds to 0."""
    ROUNDING = 1e-6
    """Standard deviation, as a share of the mean, below which a variance is that of rounding in float32."""
    LEAST_SHARE = 2.0**-20
    """Of a batch. In float32 a count stops at 2**24 single rows, and their share would be lost in the rounding of the
    variance."""

    def __init__(self, size: int, *, clip: float = math.inf, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        for name, value in (("mean", 0.0), ("var", 1.0), ("shift", 0.0), ("scale", 1.0)):
            self.register_buffer(name, torch.full((size,), value))
        self.register_buffer("count", torch.zeros(1))
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor
        self.shift: Tensor  # -mean / std and 1 / std, stored so that normalising is one kernel
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.scale.dim() == 1:
            y = torch.addcmul(self.shift, x, self.scale)
        else:
            y = torch.addcmul(self.shift.unsqueeze(1), x, self.scale.unsqueeze(1))
        return y if self.clip == math.inf else y.clamp_(-self.clip, self.clip)

    @property
    def is_new(self) -> Tensor:
        """1 where there were no inputs yet, else 0: `[*M, 1]`."""
        return (self.count == 0).to(self.count.dtype)

    def extra_repr(self) -> str:
        """Return the size and the limit of normalised values, for `print`."""
        return f"size={self.mean.shape[-1]}, clip={self.clip}"

    def invert(self, x: Tensor) -> Tensor:
        """Return normalised values on their original scale."""
        if self.scale.dim() == 1:
            return x / self.scale + self.mean
        return x / self.scale.unsqueeze(1) + self.mean.unsqueeze(1)

    @torch.no_grad()
    def update_(self, x: Tensor, weight: Tensor) -> None:
        """Update the statistics with a batch `[*M, B, size]`; `weight` `[*M, B]` is 1 for rows that count, else 0.

        Rows of weight 0 may hold values that are not finite.
        """
        weight = weight.unsqueeze(-1)  # [*M, B, 1]
        x = torch.where(weight > 0, x, 0.0)
        added = weight.sum(-2)  # [*M, 1]
        safe = torch.where(added > 0, added, 1.0)
        mean = (x * weight).sum(-2) / safe  # [*M, size]
        spread = ((x - mean.unsqueeze(-2)).square() * weight).sum(-2) / safe
        total = self.count + added
        share = (added / torch.where(total > 0, total, 1.0)).clamp(min=self.LEAST_SHARE)
        share = torch.where(added > 0, share, 0.0)
        delta = mean - self.mean
        merged = (1 - share) * self.var + share * spread + (1 - share) * share * delta.square()
        # (1 - share) * var is rounded in the same direction each time, which adds up where the share stays the same
        change = share * (spread - self.var + (1 - share) * delta.square())
        merged = torch.where(share > self.LEAST_SHARE, merged, self.var + change)
        self.var.copy_(torch.where(added > 0, merged, self.var))
        self.mean.add_(delta * share)
        self.count.add_(added)
        var = torch.maximum(self.var, (self.ROUNDING * self.mean).square())
        limit = max(self.MAX_SCALE, max(self.epsilon, self.MIN_EPSILON) ** -0.5)
        self.scale.copy_((var + self.epsilon).rsqrt().clamp(max=limit))
        self.shift.copy_(-self.mean * self.scale)


class ActivationRun(NamedTuple):
    """Consecutive rows of a stack, from `start` to `stop`, with the same function."""

    name: str
    start: int
    stop: int | None
    """None: to the last row; a number would fix the size of the batch in an exported policy, and cut the rows of one
    member of a stack that is computed by itself (see `networks.custom`)."""


class Activation(nn.Module):
    """A layer's activation, or the blend from the previous activation to it.

    While a change fades in (as layers do in Karras et al. 2018), the output is `(1 - blend) * before + blend * after`.
    `blend` is 0 at the mutation, so that no output jumps, and moves towards 1 between updates, never within one.

    In a stack each member has its own functions; where a member lacks the layer, its input is passed on.
    """

    before: str = ""
    blend: Tensor
    span: slice | None = None  # rows from the first to the last member that has the layer; None if all have it
    gaps: Tensor | None = None  # [span, 1, 1], which of these have it; None if all do
    _after: tuple[ActivationRun, ...] = ()  # of a stack
    _before: tuple[ActivationRun, ...] = ()
    _present: Tensor | None = None  # [P, 1, 1], in a stack where some lack the layer
    _live: Tensor | None = None  # [P, 1, W], in a stack where missing units would not stay 0

    def __init__(self, num_units: int, activation: str, before: str = "") -> None:
        super().__init__()
        self.num_units, self.activation = num_units, activation
        if before:
            self.before = before
            self.register_buffer("blend", torch.zeros(1))

    def set_members(self, members: Sequence[nn.Module | None], device: torch.device) -> None:
        """Store each member's functions and which members and units are missing."""
        layers = [member if isinstance(member, Activation) else None for member in members]
        here = [row for row, layer in enumerate(layers) if layer]
        common = {layer.activation for layer in layers if layer} or {self.activation}
        default = next(iter(common))
        self._after = _runs([layer.activation if layer else default for layer in layers])
        self._before = _runs([layer.before if layer else "" for layer in layers]) if self.before else ()
        for row, layer in enumerate(layers):
            if self.before and not (layer and layer.before):
                self.blend[row] = 1.0
        self._present = self.gaps = self._live = None
        self.span = span_of(layers)
        if self.span is not None:
            self._present = torch.tensor([layer is not None for layer in layers], device=device).view(-1, 1, 1)
            self.gaps = self._present[self.span] if len(here) < self.span.stop - self.span.start else None
        if any(layer and layer.num_units < self.num_units and layer.leaks for layer in layers):
            widths = torch.tensor([layer.num_units if layer else self.num_units for layer in layers], device=device)
            self._live = (torch.arange(self.num_units, device=device) < widths.unsqueeze(1)).unsqueeze(1)

    @property
    def leaks(self) -> bool:
        """Whether a missing unit would not be 0."""
        return not {self.activation, self.before} <= ZERO_PRESERVING

    def forward(self, x: Tensor, layer_input: Tensor) -> Tensor:
        unlike = len(self._after) > 1
        y = torch.cat([ACTIVATIONS[name](x[a:b]) for name, a, b in self._after]) if unlike else self.uniform(x)
        if self.before:
            y = self._faded(x, y, layer_input)
        if self._live is not None:
            y = y * self._live
        return y if self._present is None else torch.where(self._present, y, layer_input)

    def uniform(self, x: Tensor) -> Tensor:
        """Apply the one function of all members."""
        return ACTIVATIONS[self._after[0].name if self._after else self.activation](x)

    def _faded(self, x: Tensor, y: Tensor, layer_input: Tensor) -> Tensor:
        runs = self._before or (ActivationRun(self.before, 0, None),)
        sources = {"": y, SKIP: layer_input}
        before = [sources[n][a:b] if n in sources else ACTIVATIONS[n](x[a:b]) for n, a, b in runs]
        blend = self.blend if self.blend.dim() == 1 else self.blend.unsqueeze(-1)
        return torch.lerp(torch.cat(before).to(y.dtype), y, blend.to(y.dtype))

    def extra_repr(self) -> str:
        """Return the functions, for `print`: of a stack those of all members, and the one that is being left."""
        after = " or ".join(dict.fromkeys(run.name for run in self._after)) or self.activation
        return f"{self.before} -> {after}" if self.before else after

    @property
    def is_uniform(self) -> bool:
        """Whether all members share one function that keeps missing units at 0."""
        return len(self._after) <= 1 and not self.before and self._live is None

    def advance_(self, share: float) -> None:
        """Advance the blend by a share."""
        if self.before:
            self.blend.add_(share).clamp_(max=1.0)

    def finish_fading_(self) -> None:
        """Drop the previous activation (for one member)."""
        if self.before:
            self.before = ""
            del self.blend


def _runs(names: Sequence[str]) -> tuple[ActivationRun, ...]:
    """Return the runs of equal names; the last one has no end."""
    runs, start = [], 0
    for name, group in groupby(names):
        stop = start + len(list(group))
        runs.append(ActivationRun(name, start, stop if stop < len(names) else None))
        start = stop
    return tuple(runs)
