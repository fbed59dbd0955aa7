"""A child network from its parent's and one mutation: what is carried over, and by how much it moved the policy.

Growth is exact. Removal drops the units that are missed least on the states of the last rollout, refits what reads
them, and is only accepted if the policy and the value stay near (`KL_LIMIT`, `VALUE_LIMIT`); otherwise fewer units are
removed, and at last none. Parameter noise is scaled until it moves the policy by `NOISE_KL` (Lehman et al. 2018 scale
by sensitivity to the same end). All is measured in evaluation mode: what a policy means, not what noise makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agilerl_like.modules.base import Arguments, Axes
from agilerl_like.modules.layers import LayerNorm, Linear, NoisyLinear
from agilerl_like.modules.mlp import EvolvableMLP
from agilerl_like.modules.morphism import grown, least_missed, refit_, transplant_, transplant_moments_
from agilerl_like.modules.stack import refresh
from agilerl_like.networks.actor_critic import ActorCritic, NetworkSpec

KL_LIMIT = 0.01
"""Largest mean KL(parent || child), in nats, that a removal may cost."""
VALUE_LIMIT = 0.1
"""Largest root mean square change of the value, relative to its spread, that a removal may cost."""
NOISE_KL = 0.01
"""Mean KL(before || after), in nats, to which parameter noise is scaled."""
NOISE_TOLERANCE = 0.1
"""How near to `NOISE_KL` is near enough, relative to it."""
NOISE_TRIALS = 40
LARGEST_NOISE = 1e3
"""How far the search for the noise's scale may go up, relative to where it began."""

Moments = dict[str, Tensor]
"""An Adam moment by parameter name."""


class Variation(NamedTuple):
    """One mutation carried out."""

    network: ActorCritic
    first: Moments
    second: Moments
    arguments: Arguments
    """What was really done: fewer nodes than asked for where the gate refused, nothing at all if "refused" is there."""


class Parent(NamedTuple):
    """What a child is made from; `observations` `[n, inputs]` are normalised states of the last rollout."""

    network: ActorCritic
    first: Moments
    second: Moments
    observations: Tensor


Builder = Callable[[NetworkSpec], ActorCritic]
"""Builds a network of a spec, of the parent's dtype and device; its weight matrices need not be drawn."""


@torch.no_grad()
def vary(parent: Parent, operator: str, arguments: Arguments, build: Builder, generator: torch.Generator) -> Variation:
    """Carry out one architecture or activation mutation; the parent keeps every bit.

    `generator` draws what newborn units compute. A removal that moves policy or value too far is tried again with a
    half and a quarter of its nodes. If that is too far too, the parent's own network and moments come back, with
    "refused" among the arguments.
    """
    attempt = dict(arguments)
    training = parent.network.training
    with evaluating(parent.network):
        child = _child(parent, operator, attempt, build, generator)
        while "remove" in operator:
            kl, value_error = distance(parent.network, child.network, parent.observations)
            if kl <= KL_LIMIT and value_error <= VALUE_LIMIT:
                child.arguments.update(kl=kl, value_error=value_error)
                break
            nodes = int(attempt.get("nodes", 0)) // 2
            if nodes < max(1, int(arguments.get("nodes", 0)) // 4):
                refused = {**arguments, "refused": f"kl={kl:.4f}, value_error={value_error:.4f}"}
                return Variation(parent.network, parent.first, parent.second, refused)
            attempt["nodes"] = nodes
            child = _child(parent, operator, attempt, build, generator)
    if child.network.training != training:
        child.network.train(training)
    return child


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode for a while."""
    training = network.training
    if training:
        network.eval()
    try:
        yield
    finally:
        if training:
            network.train()


@torch.no_grad()
def distance(parent: ActorCritic, child: ActorCritic, observations: Tensor) -> tuple[float, float]:
    """Mean KL(parent || child) in nats, and the value's root mean square error relative to its spread."""
    ours, value = parent.evaluate(observations)
    theirs, child_value = child.evaluate(observations)
    kl = parent.actor.distribution.kl(ours, child.actor.distribution, theirs).mean()
    error = (value - child_value).square().mean().sqrt() / value.std(unbiased=False).clamp(min=1e-6)
    return float(kl), float(error)


# -- parameter noise


@torch.no_grad()
def perturb_(network: ActorCritic, observations: Tensor, sd: float, generator: torch.Generator) -> Arguments:
    """Add noise to the policy's weight matrices, each scaled by its own spread, until the policy moved by `NOISE_KL`.

    `sd` is where the search for the scale begins, relative to each matrix's standard deviation; 0 changes nothing. The
    value never moves: of a network whose critic uses the actor's encoder, only the head is perturbed. Where no scale
    moves the policy by so much, it is moved by less.
    """
    matrices = _policy_matrices(network)
    original = [matrix.clone() for matrix in matrices]
    noise = [torch.randn(m.shape, generator=generator).to(m) * m.std(unbiased=False) for m in matrices]
    distribution = network.actor.distribution

    def kl(scale: float) -> float:
        for matrix, start, direction in zip(matrices, original, noise, strict=True):
            matrix.copy_(torch.add(start, direction, alpha=scale))
        return float(distribution.kl(before, distribution, network.actor(observations)).mean())

    with evaluating(network):
        before = network.actor(observations).clone()
        scale = _scale_for(kl, sd)
        return {"sd": scale, "kl": kl(scale)}


def _policy_matrices(network: ActorCritic) -> list[Tensor]:
    owner = network.actor.head if network.share_encoders else network.actor
    return [layer.weight for layer in owner.modules() if isinstance(layer, Linear)]


def _scale_for(kl: Callable[[float], float], start: float) -> float:
    """Find the scale at which `kl` is `NOISE_KL`, or else one at which it is less.

    The KL goes with the square of a small scale, so the next guess is two or three steps from the answer; where it is
    outside of what is known, the interval is halved, or widened while it is open.
    """
    low, high, scale = 0.0, float("inf"), start
    for _ in range(NOISE_TRIALS):
        moved = kl(scale)
        if abs(moved - NOISE_KL) <= NOISE_TOLERANCE * NOISE_KL:
            return scale
        low, high = (scale, high) if moved < NOISE_KL else (low, scale)  # a KL of nan is too far
        ceiling = high if high < float("inf") else 4 * low
        guess = scale * (NOISE_KL / moved) ** 0.5 if moved > 0 else ceiling
        if not low < guess < ceiling:
            guess = (low + high) / 2 if high < float("inf") else ceiling
        if guess > LARGEST_NOISE * start or guess in (low, high):
            break
        scale = guess
    return low if high < float("inf") else 0.0


# -- architecture


class _Change(NamedTuple):
    """An operator and its arguments, taken apart."""

    part: str
    """"encoder" or "head"; for the latent layer the encoder, whose end it is."""
    verb: str
    """"add_layer", "remove_layer", "add_node", "remove_node" or "change_activation"."""
    layer: int
    """The hidden layer that is meant; the latent layer stands behind the encoder's last."""
    latent: bool
    nodes: int

    @classmethod
    def of(cls, network: ActorCritic, operator: str, arguments: Arguments) -> _Change:
        part, _, verb = operator.rpartition(".")
        latent = verb.endswith("latent_node")
        layer = len(network.spec.encoder.hidden_size) if latent else int(arguments.get("layer", 0))
        part, verb = ("encoder", verb.replace("latent_", "")) if latent else (part, verb)
        return cls(part, verb, layer, latent, int(arguments.get("nodes", 0)))

    @property
    def group(self) -> str:
        """The module's own name of the unit group that gets wider or narrower."""
        return "out" if self.latent else str(self.layer)

    @property
    def reader(self) -> tuple[str, int]:
        """The part and place of the linear layer that reads the layer that is meant."""
        return ("head", 0) if self.latent else (self.part, self.layer + 1)

    @property
    def reader_after(self) -> tuple[str, int]:
        """The same in the child."""
        part, place = self.reader
        return part, place - (self.verb == "remove_layer")


class _Branch(NamedTuple):
    """One network as a chain of two modules."""

    name: str
    encoder: EvolvableMLP
    head: EvolvableMLP

    def part(self, name: str) -> EvolvableMLP:
        return self.encoder if name == "encoder" else self.head

    def linear(self, reader: tuple[str, int]) -> Linear:
        part, place = reader
        return self.part(part).linear(place)

    def reading(self, reader: tuple[str, int], observations: Tensor) -> _Reading:
        part, place = reader
        x = observations if part == "encoder" else self.encoder(observations)
        return _Reading(self.linear(reader), self.part(part).reading(place, x))


class _Reading(NamedTuple):
    """A linear layer, and what it reads `[n, its inputs]`."""

    linear: Linear
    inputs: Tensor


def _branches(network: ActorCritic) -> tuple[_Branch, _Branch]:
    actor, critic = network.actor, network.critic
    return _Branch("actor", actor.encoder, actor.head), _Branch("critic", critic.encoder, critic.head)


def _group(network: ActorCritic, branch: str, part: str, group: str) -> str:
    """The qualified name of a unit group; the latent layer is the encoder's end and the head's beginning."""
    if (part, group) in (("encoder", "out"), ("head", "in")):
        part, group = "encoder", "latent"
    if part == "encoder" and network.share_encoders:
        branch = "actor"
    return f"{branch}.{part}.{group}"


def _axes(network: ActorCritic) -> Axes:
    axes: Axes = {}
    for branch in _branches(network):
        for part in ("encoder", "head"):
            for name, groups in branch.part(part).axes().items():
                axes[f"{branch.name}.{part}.{name}"] = tuple(_group(network, branch.name, part, g) for g in groups)
    return axes


def _tensors(network: ActorCritic) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _child(
    parent: Parent, operator: str, arguments: Arguments, build: Builder, generator: torch.Generator
) -> Variation:
    """Build the child, carry weights and moments over, and mend what a removal tore (in evaluation mode)."""
    change = _Change.of(parent.network, operator, arguments)
    shrinks = change.verb.startswith("remove")
    child = build(parent.network.spec.apply(operator, **arguments))
    theirs, ours = _tensors(parent.network), _tensors(child)
    readings = [b.reading(change.reader, parent.observations) for b in _branches(parent.network)] if shrinks else []
    maps = _unit_maps(parent.network, change, readings) if change.verb.endswith("node") else {}
    sources, axes = _sources(child, ours, change), _axes(child)
    transplant_(ours, theirs, sources=sources, axes=axes, maps=maps, generator=generator)
    if change.verb == "add_layer":
        _make_identity_(child, change)
    moments = _moments(parent, child, sources, axes, maps)
    if shrinks:
        child.eval()
        for layer in child.modules():
            if isinstance(layer, LayerNorm):
                layer.recount_()
        for name in _refit_readers_(parent, child, change, readings):
            moments[0][name].zero_()
    else:
        refresh(child)
    return Variation(child, *moments, dict(arguments))


def _moments(
    parent: Parent, child: ActorCritic, sources: Mapping[str, str], axes: Axes, maps: Mapping[str, Tensor]
) -> tuple[Moments, Moments]:
    """Adam's moments of the child: a brand-new tensor starts with 0 and with the mean over all second moments."""
    parameters = dict(child.named_parameters())
    usual = float(torch.cat([moment.reshape(-1) for moment in parent.second.values()]).mean())
    first = {name: torch.zeros_like(p) for name, p in parameters.items()}
    second = {name: torch.full_like(p, usual) for name, p in parameters.items()}
    for new, old, new_is_mean in ((first, parent.first, False), (second, parent.second, True)):
        transplant_moments_(new, old, sources=sources, axes=axes, maps=maps, new_is_mean=new_is_mean)
    return first, second


def _unit_maps(network: ActorCritic, change: _Change, readings: Sequence[_Reading]) -> dict[str, Tensor]:
    """Which unit of the parent each unit of the child is, in every group that the operator widens or narrows."""
    groups = [_group(network, branch.name, change.part, change.group) for branch in _branches(network)]
    if change.verb == "add_node":
        width = _branches(network)[0].linear(change.reader).weight.shape[1]
        return dict.fromkeys(groups, grown(width, change.nodes))
    readers = {group: [r for g, r in zip(groups, readings, strict=True) if g == group] for group in groups}
    return {  # a shared encoder's latent layer has two readers of the same numbers
        group: least_missed(its[0].inputs, torch.cat([reader.linear.weight for reader in its]), change.nodes)
        for group, its in readers.items()
    }


def _sources(child: ActorCritic, names: Iterable[str], change: _Change) -> dict[str, str]:
    """The parent's name of each of the child's tensors; a tensor that has none there is left out."""
    if not change.verb.endswith("layer"):
        return {name: name for name in names}
    sources = {name: _renamed(name, change) for name in names}
    if change.verb == "remove_layer":  # what read the removed layer reads other units now
        part, place = change.reader_after
        for branch in _branches(child):
            for name in ("weight", "weight_sigma", "input_noise"):
                sources.pop(f"{branch.name}.{part}.linears.{place}.{name}", None)
    return sources


def _renamed(name: str, change: _Change) -> str:
    """The parent's name of a child's tensor when a layer was inserted or removed; empty for a newborn one."""
    pieces = name.split(".")
    if len(pieces) < 5 or pieces[1] != change.part or pieces[2] not in ("linears", "norms", "activations"):
        return name
    index = int(pieces[3])
    if change.verb == "remove_layer":
        pieces[3] = str(index + (index >= change.layer))
    elif index == change.layer + 1:
        return ""
    else:
        pieces[3] = str(index - (index > change.layer))
    return ".".join(pieces)


def _make_identity_(child: ActorCritic, change: _Change) -> None:
    """Let the layer that was inserted give what it reads, without noise."""
    for branch in _branches(child):
        linear = branch.part(change.part).linear(change.layer + 1)
        nn.init.eye_(linear.weight)
        linear.bias.zero_()
        if isinstance(linear, NoisyLinear):
            linear.weight_sigma.zero_()
            linear.bias_sigma.zero_()


def _refit_readers_(parent: Parent, child: ActorCritic, change: _Change, readings: Sequence[_Reading]) -> list[str]:
    """Refit every linear layer that read what was removed, so that it gives what it gave.

    Returns the names of its parameters.
    """
    refitted: list[str] = []
    done: list[Linear] = []
    part, place = change.reader_after
    branches = zip(_branches(parent.network), _branches(child), readings, strict=True)
    for old, new, (reader, inputs) in branches:
        heir = new.linear(change.reader_after)
        if any(heir is other for other in done):  # a shared encoder stands in both branches
            continue
        done.append(heir)
        its_inputs = new.reading(change.reader_after, parent.observations).inputs
        wanted = reader(inputs)
        if change.verb == "remove_layer":
            _bridge_(reader, old.linear(change.reader_after), heir)
            _refit_if_better_(new.part(part), place, its_inputs, wanted)
        else:
            refit_(heir.weight, heir.bias, its_inputs, wanted)
        refitted += [f"{new.name}.{part}.linears.{place}.{name}" for name in ("weight", "bias")]
    return refitted


def _bridge_(reader: Linear, removed: Linear, heir: Linear) -> None:
    """Let a layer do what two did, as if nothing had stood between them, as noisily as the second."""
    heir.weight.copy_(reader.weight @ removed.weight)
    heir.bias.copy_(reader.bias + reader.weight @ removed.bias)
    if isinstance(heir, NoisyLinear) and isinstance(reader, NoisyLinear):
        heir.weight_sigma.fill_(float(reader.weight_sigma.abs().mean()))


def _refit_if_better_(module: EvolvableMLP, place: int, inputs: Tensor, wanted: Tensor) -> None:
    """Refit a linear map to `wanted`, unless its layer gives what is wanted better as it is.

    It does where the activation stands in for the removed one: relu(W x) for relu(I relu(W x)).
    """
    linear = module.linear(place)
    goal = module.activate(place, wanted.clone(), inputs)

    def error() -> float:
        return float((module.activate(place, linear(inputs), inputs) - goal).square().sum())

    bridged, bridged_error = (linear.weight.clone(), linear.bias.clone()), error()
    refit_(linear.weight, linear.bias, inputs, wanted)
    if bridged_error < error():
        linear.weight.copy_(bridged[0])
        linear.bias.copy_(bridged[1])
