"""A child network from its parent's and one mutation: what is carried over, and by how much it moved the policy.

Growth is exact. Removal drops the units that are missed least on the states of the last rollout, refits what reads
them, and is only accepted if the policy and the value stay near (`KL_LIMIT`, `VALUE_LIMIT`); otherwise fewer units are
removed, and at last none. Parameter noise is scaled until the policy has moved by a given KL (Lehman et al. 2018 scale
by sensitivity to the same end), within a bound relative to the weights themselves. All KL divergences are measured in
evaluation mode, so that noisy layers do not add to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agilerl_like.modules.base import Arguments, UnitChange, UnitMaps
from agilerl_like.modules.module_utils import switch, walk
from agilerl_like.modules.weight_transfer import RecordedLinear, transfer_weights_
from agilerl_like.networks.actor_critic import ACTOR, ActorCritic
from agilerl_like.networks.custom import EvolvableCustom
from agilerl_like.networks.memory import Course

KL_LIMIT = 0.01
"""Largest mean KL(parent || child), in nats, that a removal may cost."""
VALUE_LIMIT = 0.1
"""Largest root mean square change of the value, relative to its spread, that a removal may cost."""
NOISE_TOLERANCE, COARSE_TOLERANCE = 0.15, 0.5
"""Relative error of the noise's KL that is accepted; and that of the first guesses."""
MAX_NOISE_EVALUATIONS = 40
INITIAL_NOISE, MAX_LOG_STEP = 0.1, math.log(16.0)
"""Scale at which the search for the noise's scale begins; and the largest factor between two guesses."""
MIN_COSINE = 0.901
"""Cosine that a matrix with noise keeps at least with the matrix before: 0.9, with room for rounding."""
KL_EXPONENT_RANGE = 1.0, 5.0
"""Of the scale that the KL goes with: the least and the most that the search relies on."""
SUBSAMPLE = 4
"""Of so many states one serves for the first guesses; for the last one each counts, for a few move the KL most."""

HELD_OUT_EVERY = 3
"""Of so many states one judges a removal, and the others are what it is refitted on."""

UNIT_COUNT_ARGUMENTS = ("nodes", "channels")
"""What arguments call the number of units that come or go."""


class MutatedNetwork(NamedTuple):
    """One mutation carried out."""

    network: ActorCritic
    moments: tuple[Tensor, ...]
    """Adam's first and second ones `[N]` of the network's parameters, in their order."""
    arguments: Arguments
    """What was really done: fewer nodes than asked for where the gate refused, nothing at all if "refused" is there."""
    maps: UnitMaps = MappingProxyType({})
    """Which unit of the parent each unit of the child was, in every group that changed."""


@dataclass(frozen=True)
class MutationSource:
    """What a child is made from.

    `moments` are Adam's first and second ones `[N]` of the network's parameters, in their order.
    """

    network: ActorCritic
    moments: tuple[Tensor, ...]
    observe: Callable[[], Tensor]
    """Gives `observations`; growth never asks."""

    @cached_property
    def observations(self) -> Tensor:
        """Normalised states of the last rollout, `[n, D]`; for a network with memory sequences of them `[S, L, D]`."""
        return self.network.some_of(self.observe())

    @property
    def fitted(self) -> Tensor:
        """The observations on which what reads lost units is refitted."""
        held_out = torch.arange(len(self.observations)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self.observations[~held_out]

    @property
    def held_out(self) -> Tensor:
        """Those on which a removal is judged: a refit of many columns is exact on the ones that it was made from."""
        return (
            self.observations[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
            if len(self.observations) >= HELD_OUT_EVERY
            else self.observations
        )


@torch.no_grad()
def mutate_network(
    parent: MutationSource, operator: str, arguments: Arguments, generator: torch.Generator
) -> MutatedNetwork:
    """Carry out one architecture or activation mutation; the parent keeps every bit.

    `generator` draws what newborn units compute. A removal that moves policy or value too far is tried again with a
    half and a quarter of its nodes. If that is too far too, the parent's own network and moments come back, with
    "refused" among the arguments.
    """
    unit_change = parent.network.unit_change(operator, arguments)
    if not unit_change.consumers:
        child = _build_child(parent, operator, arguments, unit_change, generator)
    else:
        with in_eval_mode(parent.network):
            child = _remove_within_limits(parent, operator, arguments, generator)
    if child.network.training != parent.network.training:
        switch(child.network, parent.network.training)
    return child


def _remove_within_limits(
    parent: MutationSource, operator: str, arguments: Arguments, generator: torch.Generator
) -> MutatedNetwork:
    """Carry out a removal, or less of it, or nothing."""
    attempt = dict(arguments)
    amount = next((name for name in UNIT_COUNT_ARGUMENTS if name in arguments), "")
    consumers = dict(parent.network.unit_change(operator, arguments).consumers)  # the same whatever the amount
    recorded = {reader: RecordedLinear.of(parent.network, reader, parent.fitted) for reader in consumers}
    answers = _policy_and_values(parent.network, parent.held_out)
    while True:
        unit_change = parent.network.unit_change(operator, attempt)
        child = _build_child(parent, operator, attempt, unit_change, generator, recorded)
        kl, value_error = _shift_from(parent.network, answers, child.network, parent.held_out)
        if kl <= KL_LIMIT and value_error <= VALUE_LIMIT:
            child.arguments.update(kl=kl, value_error=value_error)
            return child
        fewer = int(attempt.get(amount, 0)) // 2
        if fewer < max(1, int(arguments.get(amount, 0)) // 4):
            refused = {**arguments, "refused": f"kl={kl:.4f}, value_error={value_error:.4f}"}
            return MutatedNetwork(parent.network, parent.moments, refused)
        attempt[amount] = fewer


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode for a while."""
    training = network.training
    if training:
        switch(network, False)
    try:
        yield
    finally:
        if training:
            switch(network, True)


@torch.no_grad()
def policy_value_shift(parent: ActorCritic, child: ActorCritic, observations: Tensor) -> tuple[float, float]:
    """Mean KL(parent || child) in nats, and the value's root mean square error relative to its spread."""
    return _shift_from(parent, _policy_and_values(parent, observations), child, observations)


def _policy_and_values(network: ActorCritic, observations: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's outputs and the values of observations, or of sequences of them."""
    return network.evaluate(observations.reshape(-1, observations.shape[-1]), network.course_of(observations))


def _shift_from(
    parent: ActorCritic, answers: tuple[Tensor, Tensor], child: ActorCritic, observations: Tensor
) -> tuple[float, float]:
    """As `policy_value_shift`, with the parent's answers known."""
    (ours, value), (theirs, child_value) = answers, _policy_and_values(child, observations)
    kl = parent.actor.distribution.kl_from(ours)(child.actor.distribution, theirs).mean()
    error = (value - child_value).square().mean().sqrt() / value.std(unbiased=False).clamp(min=1e-6)
    return float(kl), float(error)


# -- parameter noise


@torch.no_grad()
def add_parameter_noise_(
    network: ActorCritic, observations: Tensor, sd: float, generator: torch.Generator, *, target_kl: float
) -> Arguments:
    """Add noise to the policy's weight matrices until the mean KL(before || after) over the states is `target_kl`.

    The noise of a matrix is Gaussian, in proportion to the matrix's standard deviation and orthogonal to the matrix.
    `sd` is the largest factor of that proportion, and below it every matrix keeps a cosine of `MIN_COSINE` with what
    it was. Where that bounds the noise the KL is smaller: a new policy, whose last layer is near zero, would lose its
    encoder before it moved by as much. `sd` or `target_kl` of 0 change nothing, and neither does noise without effect.
    The value never moves: of a network whose critic uses the actor's encoder, only the head is perturbed.

    Returns the factor and the KL that were reached, as "sd" and "kl".
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
        outputs, few_outputs = _policy_functions(network, observations)
        before = outputs().clone()
        on_few = _ScaleSearch(kl_on(_subsample(before, observations), few_outputs), target_kl, limit)
        rough, moved, power = on_few.run(INITIAL_NOISE, COARSE_TOLERANCE)
        is_near = moved >= (1 - COARSE_TOLERANCE) * target_kl > 0
        start = rough * (target_kl / moved) ** (1 / power) if is_near else rough or INITIAL_NOISE
        scale, moved, _ = _ScaleSearch(kl_on(before, outputs), target_kl, limit).run(start, NOISE_TOLERANCE, power)
        return {"sd": scale, "kl": moved}


def _orthogonal_noise(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise of the matrix's standard deviation, without the part that would only scale the matrix."""
    noise = torch.randn(matrix.shape, generator=generator).to(matrix) * matrix.std(unbiased=False)
    return noise - matrix * ((noise * matrix).sum() / matrix.square().sum().clamp(min=1e-30))


def _max_scale(matrix: Tensor, noise: Tensor) -> float:
    """The scale of orthogonal noise at which its matrix keeps a cosine of `MIN_COSINE` with what it was."""
    size = float(noise.norm())
    return math.tan(math.acos(MIN_COSINE)) * float(matrix.norm()) / size if size else math.inf


def _policy_functions(network: ActorCritic, observations: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """What the policy says of states, and of a few of them, with the weights that it has when it is asked."""
    actor = network.actor

    def read(x: Tensor) -> tuple[Tensor, Course]:
        return x.reshape(-1, x.shape[-1]), network.course_of(x)

    if network.share_encoders:  # only the head is perturbed
        said = actor.remembered(*read(observations), ACTOR)
        of_few = _subsample(said, observations)
        return lambda: actor.head(said), lambda: actor.head(of_few)
    everything, few = read(observations), read(observations[::SUBSAMPLE])
    return lambda: actor(*everything, ACTOR), lambda: actor(*few, ACTOR)


def _subsample(rows: Tensor, observations: Tensor) -> Tensor:
    """The rows `[n, …]` of a few of the states, or of a few sequences."""
    return rows.unflatten(0, observations.shape[:-1])[::SUBSAMPLE].reshape(-1, rows.shape[-1])


def _policy_weight_matrices(network: ActorCritic) -> list[Tensor]:
    owner = network.actor.head if network.share_encoders else network.actor
    by_name = not isinstance(network.actor.encoder, EvolvableCustom) or network.actor.encoder.is_evolvable
    leaves = ((name.rpartition(".")[2], parameter) for name, parameter in walk(owner).parameters.items())
    matrices = [(name, parameter) for name, parameter in leaves if parameter.dim() > 1 and parameter.requires_grad]
    # what somebody else wrote may call its matrices as it likes; ours have others that say how large noise is
    return [matrix for name, matrix in matrices if not by_name or name.endswith("weight")]


@dataclass(frozen=True)
class _ScaleSearch:
    """A search for the scale at most `limit` at which `kl` is `target`, or else for one at which it is less.

    The KL goes with the square of a small scale, and up to the fifth power of a large one, so its logarithm over the
    scale's is nearly a straight line. The next guess is where the line through the nearest points on either side hits;
    after two guesses on one side the other's point counts half as much (the Illinois method: Dowell and Jarratt 1971).
    """

    kl: Callable[[float], float]
    """Sets the weights for a scale and measures the KL."""
    target: float
    limit: float

    def run(self, start: float, tolerance: float, power: float = 2.5) -> tuple[float, float, float]:
        """Return the scale, its KL, which the weights are left at, and the power of the scale that the KL goes with.

        `power` is the first guess of the last of them; `tolerance` is relative.
        """
        scale = min(start, self.limit)
        if scale <= 0 or self.target <= 0:
            return 0.0, self.kl(0.0), power
        ends: dict[bool, tuple[float, float]] = {}  # by whether it is too far: log scale, log of KL over the target
        last = None
        for _ in range(MAX_NOISE_EVALUATIONS):
            moved = self.kl(scale)
            is_bounded = scale == self.limit and moved < self.target and moved != 0
            if is_bounded or abs(moved - self.target) <= tolerance * self.target:
                return scale, moved, power
            here, miss = math.log(scale), self._log_ratio(moved)
            is_far = miss > 0
            if last is not None and here != last[0]:
                power = min(max((miss - last[1]) / (here - last[0]), KL_EXPONENT_RANGE[0]), KL_EXPONENT_RANGE[1])
            if last is not None and is_far == (last[1] > 0) and (not is_far) in ends:
                ends[not is_far] = ends[not is_far][0], ends[not is_far][1] / 2
            ends[is_far] = last = here, miss
            following = min(math.exp(self._guess(ends, last, power)), self.limit)
            if following == scale:
                break
            scale = following
        scale = math.exp(ends[False][0]) if len(ends) == 2 else 0.0
        return scale, self.kl(scale), power

    def _log_ratio(self, moved: float) -> float:
        """Logarithm of the KL over the target; a KL of nan is much too large."""
        return math.log(min(max(moved / self.target, 1e-9), 1e9) if moved == moved else 1e9)

    @staticmethod
    def _guess(ends: dict[bool, tuple[float, float]], last: tuple[float, float], power: float) -> float:
        """Logarithm of the next scale to try."""
        if len(ends) == 2:
            (low, under), (high, over) = ends[False], ends[True]
            return low - under * (high - low) / (over - under)
        here, miss = last
        return here - min(max(miss / power, -MAX_LOG_STEP), MAX_LOG_STEP)


# -- architecture


def _build_child(
    parent: MutationSource,
    operator: str,
    arguments: Arguments,
    unit_change: UnitChange,
    generator: torch.Generator,
    recorded: Mapping[str, RecordedLinear] | None = None,
) -> MutatedNetwork:
    """Build the child, and carry weights and moments over."""
    child = parent.network.rebuild(parent.network.spec.apply(operator, **arguments))
    maps, moments = transfer_weights_(
        child,
        parent.network,
        operator,
        arguments,
        unit_change=unit_change,
        states=parent.fitted if unit_change.consumers else None,
        recorded=recorded,
        generator=generator,
        moments=parent.moments,
    )
    return MutatedNetwork(child, moments, dict(arguments), maps)
