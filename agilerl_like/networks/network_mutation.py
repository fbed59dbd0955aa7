"""Apply one mutation to a network: transfer weights and Adam moments, and limit how far the policy moves.

Growth leaves the outputs unchanged. A removal drops the units that matter least for the states of the last rollout,
refits the layers that read them, and is accepted only if policy and value change little (`KL_LIMIT`, `VALUE_LIMIT`);
otherwise fewer units are removed, or none. Parameter noise is scaled until the policy has moved by a given KL (Lehman
et al. 2018 scale by sensitivity for the same purpose), within a bound relative to the weights. All KL divergences are
measured in evaluation mode, so that stochastic layers do not contribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.modules.evolvable_module import UnitChange, UnitMaps
from agilerl_like.modules.spec import Arguments
from agilerl_like.modules.weight_transfer import RecordedLinear, in_eval_mode, transfer_weights_
from agilerl_like.networks.actor_critic import ACTOR, ActorCritic
from agilerl_like.networks.custom import EvolvableCustom
from agilerl_like.networks.recurrent_state import SequenceInfo

KL_LIMIT = 0.01
"""Largest mean KL(parent || child), in nats, of an accepted removal."""
VALUE_LIMIT = 0.1
"""Largest root mean square change of the value, relative to its standard deviation, of an accepted removal."""
NOISE_TOLERANCE, COARSE_TOLERANCE = 0.15, 0.5
"""Accepted relative error of the noise's KL, and that of the coarse search on a subsample."""
MAX_NOISE_EVALUATIONS = 40
INITIAL_NOISE, MAX_LOG_STEP = 0.1, math.log(16.0)
"""First scale of the search for the noise's scale, and the logarithm of the largest factor between two guesses."""
MIN_COSINE = 0.901
"""Smallest cosine between a matrix with noise and the matrix before: 0.9 with a margin for rounding."""
KL_EXPONENT_RANGE = 1.0, 5.0
"""Range of the exponent k in KL ~ scale**k that the search assumes."""
SUBSAMPLE = 4
"""The coarse search uses every fourth state. The final one uses all, because a few states contribute most of the KL."""

HELD_OUT_EVERY = 3
"""Every third state is held out to evaluate a removal; the layers are refitted on the others."""

UNIT_COUNT_ARGUMENTS = ("nodes", "channels")
"""Names of the argument that holds the number of units to add or remove."""
UNLIMITED = "unlimited"
"""Argument of a removal that is carried out however far it moves policy and value, as in a replay."""


class MutatedNetwork(NamedTuple):
    """The result of a mutation."""

    network: ActorCritic
    moments: tuple[Tensor, ...]
    """Adam's first and second moments, each `[N]`, in the order of the network's parameters."""
    arguments: Arguments
    """The change that was made: with fewer units than requested if that many moved the policy too far, and with the key
    "refused" if nothing was changed."""
    maps: UnitMaps = MappingProxyType({})
    """For each group of units that changed, the parent's unit behind each unit of the child."""


@dataclass(frozen=True)
class MutationSource:
    """The parent's network, Adam moments and recent observations."""

    network: ActorCritic
    moments: tuple[Tensor, ...]
    """Adam's first and second moments, each `[N]`, in the order of the network's parameters."""
    observe: Callable[[], Tensor]
    """Returns the observations; it is called for removals and noise only."""

    @cached_property
    def observations(self) -> Tensor:
        """Normalized observations of the last rollout, `[n, D]`; for a recurrent network sequences, `[S, L, D]`."""
        return self.network.some_of(self.observe())

    @property
    def refit_observations(self) -> Tensor:
        """The observations on which the readers of removed units are refitted."""
        held_out = torch.arange(len(self.observations)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self.observations[~held_out]

    @property
    def held_out(self) -> Tensor:
        """The observations on which a removal is evaluated; on those that it was fitted to, a refit may be exact."""
        held_out = self.observations[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        return held_out if len(held_out) else self.observations


@torch.no_grad()
def mutate_network(
    parent: MutationSource, operator: str, arguments: Arguments, generator: torch.Generator
) -> MutatedNetwork:
    """Return the network after one architecture or activation mutation; the parent is not modified.

    `generator` draws the weights of new units. A removal that moves policy or value too far is tried again with a half
    and a quarter of its units. If that is still too far, the parent's own network and moments are returned, with the
    key "refused" in the arguments. One with `UNLIMITED` in its arguments is carried out in any case.
    """
    is_limited = UNLIMITED not in arguments
    arguments = {name: value for name, value in arguments.items() if name != UNLIMITED}
    unit_change = parent.network.unit_change(operator, arguments)
    build = partial(_build_child, parent, operator, generator=generator)
    if not unit_change.consumers:
        child = build(arguments, unit_change)
    else:
        with in_eval_mode(parent.network):
            child = _remove_within_limits(parent, operator, arguments, build, is_limited=is_limited)
    if child.network.training != parent.network.training:
        child.network.train(parent.network.training)
    return child


def _remove_within_limits(
    parent: MutationSource,
    operator: str,
    arguments: Arguments,
    build: Callable[..., MutatedNetwork],
    *,
    is_limited: bool,
) -> MutatedNetwork:
    """Remove as many units as the limits of KL and value allow: all, a half, a quarter or none of those requested.

    `build(arguments, unit_change, recorded)` makes the child. Without limits all are removed.
    """
    attempt = dict(arguments)
    amount = next((name for name in UNIT_COUNT_ARGUMENTS if name in arguments), "")
    consumers = dict(parent.network.unit_change(operator, arguments).consumers)  # they do not depend on the amount
    recorded = {reader: RecordedLinear.of(parent.network, reader, parent.refit_observations) for reader in consumers}
    before = policy_and_values(parent.network, parent.held_out)
    while True:
        unit_change = parent.network.unit_change(operator, attempt)
        child = build(attempt, unit_change, recorded=recorded)
        kl, value_error = policy_value_shift(parent.network, before, child.network, parent.held_out)
        if not is_limited or (kl <= KL_LIMIT and value_error <= VALUE_LIMIT):
            child.arguments.update(kl=kl, value_error=value_error)
            return child
        fewer = int(attempt.get(amount, 0)) // 2
        if fewer < max(1, int(arguments.get(amount, 0)) // 4):
            refused = {**arguments, "refused": f"kl={kl:.4f}, value_error={value_error:.4f}"}
            return MutatedNetwork(parent.network, parent.moments, refused)
        attempt[amount] = fewer


@torch.no_grad()
def policy_and_values(network: ActorCritic, observations: Tensor) -> tuple[Tensor, Tensor]:
    """Return the policy's outputs and the values for observations, or for sequences of them."""
    return network.evaluate(observations.reshape(-1, observations.shape[-1]), network.sequence_info_of(observations))


@torch.no_grad()
def policy_value_shift(
    parent: ActorCritic, before: tuple[Tensor, Tensor], child: ActorCritic, observations: Tensor
) -> tuple[float, float]:
    """Return the mean KL(parent || child) in nats and the value's RMSE relative to its standard deviation.

    `before` are the parent's `policy_and_values`, which are the same for all children.
    """
    (policy, value), (child_policy, child_value) = before, policy_and_values(child, observations)
    kl = parent.actor.distribution.kl_from(policy)(child.actor.distribution, child_policy).mean()
    error = (value - child_value).square().mean().sqrt() / value.std(unbiased=False).clamp(min=1e-6)
    return float(kl), float(error)


# -- parameter noise


@torch.no_grad()
def add_parameter_noise_(
    network: ActorCritic, observations: Tensor, sd: float, generator: torch.Generator, *, target_kl: float
) -> Arguments:
    """Add noise to the policy's weight matrices until the mean KL(before || after) over all states is `target_kl`.

    The noise of a matrix is Gaussian, proportional to the matrix's standard deviation and orthogonal to the matrix. Its
    scale is at most `sd`, and every matrix keeps a cosine of at least `MIN_COSINE` with the matrix before. Where a
    bound applies, the KL is smaller: a new policy, whose last layer is near zero, would otherwise lose its encoder
    before it moved that far. With `sd` or `target_kl` 0 nothing changes, nor where noise has no effect. The value does
    not change: if the critic shares the actor's encoder, only the head is perturbed.

    Returns the scale and the KL that were reached, as "sd" and "kl".
    """
    matrices = _policy_weight_matrices(network)
    original = [matrix.clone() for matrix in matrices]
    noise = [_orthogonal_noise(matrix, generator) for matrix in matrices]
    limit = min([sd, *map(_max_scale, matrices, noise)])
    distribution = network.actor.distribution

    def kl_on(before: Tensor, outputs: Callable[[], Tensor]) -> Callable[[float], float]:
        moved = distribution.kl_from(before)

        def kl(scale: float) -> float:
            for matrix, start, direction in zip(matrices, original, noise, strict=True):
                torch.add(start, direction, alpha=scale, out=matrix)
            return float(moved(distribution, outputs()).mean())

        return kl

    with in_eval_mode(network):
        outputs, subsample_outputs = _policy_functions(network, observations)
        before = outputs().clone()
        coarse = _ScaleSearch(kl_on(_subsample(before, observations), subsample_outputs), target_kl, limit)
        rough, moved, exponent = coarse.run(INITIAL_NOISE, COARSE_TOLERANCE)
        is_near = moved >= (1 - COARSE_TOLERANCE) * target_kl > 0
        start = rough * (target_kl / moved) ** (1 / exponent) if is_near else rough or INITIAL_NOISE
        scale, moved, _ = _ScaleSearch(kl_on(before, outputs), target_kl, limit).run(start, NOISE_TOLERANCE, exponent)
        return {"sd": scale, "kl": moved}


def _orthogonal_noise(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Return Gaussian noise with the matrix's standard deviation, minus its component along the matrix."""
    noise = torch.randn(matrix.shape, generator=generator).to(matrix) * matrix.std(unbiased=False)
    return noise - matrix * ((noise * matrix).sum() / matrix.square().sum().clamp(min=1e-30))


def _max_scale(matrix: Tensor, noise: Tensor) -> float:
    """Return the scale of orthogonal noise at which the matrix's cosine with itself before is `MIN_COSINE`."""
    size = float(noise.norm())
    return math.tan(math.acos(MIN_COSINE)) * float(matrix.norm()) / size if size else math.inf


def _policy_functions(network: ActorCritic, observations: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return functions that compute the policy's outputs with its current weights: for all states, for a subsample."""
    actor = network.actor

    def inputs(x: Tensor) -> tuple[Tensor, SequenceInfo]:
        return network.branch_input("actor", x.reshape(-1, x.shape[-1])), network.sequence_info_of(x)

    if network.share_encoders:  # only the head is perturbed
        head_inputs = actor.recurrent_output(*inputs(observations), ACTOR)
        some_inputs = _subsample(head_inputs, observations)
        return lambda: actor.head(head_inputs), lambda: actor.head(some_inputs)
    everything, some = inputs(observations), inputs(observations[::SUBSAMPLE])
    return lambda: actor(*everything, ACTOR), lambda: actor(*some, ACTOR)


def _subsample(rows: Tensor, observations: Tensor) -> Tensor:
    """Return the rows `[n, …]` that belong to a subsample of the observations, or of the sequences."""
    return rows.unflatten(0, observations.shape[:-1])[::SUBSAMPLE].reshape(-1, rows.shape[-1])


def _policy_weight_matrices(network: ActorCritic) -> list[Tensor]:
    owner = network.actor.head if network.share_encoders else network.actor
    by_name = not isinstance(network.actor.encoder, EvolvableCustom) or network.actor.encoder.is_evolvable
    leaves = ((name.rpartition(".")[2], parameter) for name, parameter in owner.named_parameters())
    matrices = [(name, parameter) for name, parameter in leaves if parameter.dim() > 1 and parameter.requires_grad]
    # a user's module may name its matrices anything; this package's have others, which hold the scale of noise
    return [matrix for name, matrix in matrices if not by_name or name.endswith("weight")]


@dataclass(frozen=True)
class _ScaleSearch:
    """A search for the scale, at most `limit`, at which `kl` is `target`; if it fails, for one with a smaller KL.

    The KL grows with the square of a small scale, and with up to the fifth power of a large one, so log KL is nearly
    linear in log scale. The next guess is the root of the line through the bracketing points; after two guesses on one
    side the error at the other end is halved (the Illinois method: Dowell and Jarratt 1971).
    """

    kl: Callable[[float], float]
    """Sets the weights for a scale and returns the KL."""
    target: float
    limit: float

    def run(self, start: float, tolerance: float, exponent: float = 2.5) -> tuple[float, float, float]:
        """Set the weights; return the scale, its KL and the estimated exponent k in KL ~ scale**k.

        `exponent` is the first guess of the exponent; `tolerance` is relative.
        """
        scale = min(start, self.limit)
        if scale <= 0 or self.target <= 0:
            return 0.0, self.kl(0.0), exponent
        bracket: dict[bool, tuple[float, float]] = {}  # by is_far: log scale, log of KL / target
        last = None
        for _ in range(MAX_NOISE_EVALUATIONS):
            moved = self.kl(scale)
            is_bounded = scale == self.limit and moved < self.target and moved != 0
            if is_bounded or abs(moved - self.target) <= tolerance * self.target:
                return scale, moved, exponent
            here, error = math.log(scale), self._log_ratio(moved)
            is_far = error > 0
            if last is not None and here != last[0]:
                exponent = min(max((error - last[1]) / (here - last[0]), KL_EXPONENT_RANGE[0]), KL_EXPONENT_RANGE[1])
            if last is not None and is_far == (last[1] > 0) and (not is_far) in bracket:
                bracket[not is_far] = bracket[not is_far][0], bracket[not is_far][1] / 2
            bracket[is_far] = last = here, error
            next_scale = min(math.exp(self._guess(bracket, last, exponent)), self.limit)
            if next_scale == scale:
                break
            scale = next_scale
        scale = math.exp(bracket[False][0]) if len(bracket) == 2 else 0.0
        return scale, self.kl(scale), exponent

    def _log_ratio(self, moved: float) -> float:
        """Return log(KL / target); a KL of nan counts as much too large."""
        return math.log(min(max(moved / self.target, 1e-9), 1e9) if moved == moved else 1e9)

    @staticmethod
    def _guess(bracket: dict[bool, tuple[float, float]], last: tuple[float, float], exponent: float) -> float:
        """Return the logarithm of the next scale to try."""
        if len(bracket) == 2:
            (low, under), (high, over) = bracket[False], bracket[True]
            return low - under * (high - low) / (over - under)
        here, error = last
        return here - min(max(error / exponent, -MAX_LOG_STEP), MAX_LOG_STEP)


# -- architecture


def _build_child(
    parent: MutationSource,
    operator: str,
    arguments: Arguments,
    unit_change: UnitChange,
    generator: torch.Generator,
    recorded: Mapping[str, RecordedLinear] | None = None,
) -> MutatedNetwork:
    """Build the child, and transfer weights and moments."""
    child = parent.network.rebuild(parent.network.spec.apply(operator, **arguments))
    maps, moments = transfer_weights_(
        child,
        parent.network,
        operator,
        arguments,
        unit_change=unit_change,
        states=parent.refit_observations if unit_change.consumers else None,
        recorded=recorded,
        generator=generator,
        moments=parent.moments,
    )
    return MutatedNetwork(child, moments, dict(arguments), maps)
