"""A child network from its parent's network and one mutation: what changes, what is carried over, and by how much it moved the policy.

Growth is exact. Removal drops the units that matter least on the states of the last rollout, refits what reads them, and is only accepted
if the policy and the value stay near (`KL_LIMIT`, `VALUE_LIMIT`); otherwise fewer units are removed, and at last none. Parameter noise is
scaled until it moves the policy by `NOISE_KL` (Lehman et al. 2018 scale by sensitivity to the same end).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.modules.base import Arguments, Axes
from agilerl_like.modules.layers import LayerNorm
from agilerl_like.modules.mlp import EvolvableMLP
from agilerl_like.modules.morphism import grown, kept, refit_, transplant_
from agilerl_like.modules.stack import refresh
from agilerl_like.networks.actor_critic import ActorCritic, NetworkSpec

KL_LIMIT = 0.01
VALUE_LIMIT = 0.1
NOISE_KL = 0.01
NOISE_TOLERANCE = 0.1

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
"""Builds a network of a spec, with fresh weights."""


@torch.no_grad()
def vary(parent: Parent, operator: str, arguments: Arguments, build: Builder) -> Variation:
    """Carry out one architecture or activation mutation."""
    attempt = dict(arguments)
    while True:
        network, first, second = _carried(parent, operator, attempt, build)
        if "remove" not in operator:
            return Variation(network, first, second, attempt)
        kl, value_error = distance(parent.network, network, parent.observations)
        if kl <= KL_LIMIT and value_error <= VALUE_LIMIT:
            return Variation(network, first, second, {**attempt, "kl": kl, "value_error": value_error})
        nodes = int(attempt.get("nodes", 0)) // 2
        if nodes < int(arguments.get("nodes", 0)) // 4 or nodes < 1:
            refused = {**arguments, "refused": f"kl={kl:.4f}, value_error={value_error:.4f}"}
            return Variation(parent.network, parent.first, parent.second, refused)
        attempt["nodes"] = nodes


@torch.no_grad()
def perturb_(network: ActorCritic, observations: Tensor, sd: float, generator: torch.Generator) -> Arguments:
    """Add noise to the policy's weight matrices, each scaled by its own spread, until the policy moved by `NOISE_KL`.

    `sd` is where the search for the scale begins, relative to each matrix's standard deviation.
    """
    names = [name for name, p in network.actor.named_parameters() if p.dim() == 2]
    matrices = [dict(network.actor.named_parameters())[name] for name in names]
    original = [matrix.clone() for matrix in matrices]
    noise = [
        torch.randn(matrix.shape, generator=generator).to(matrix) * matrix.std(unbiased=False) for matrix in matrices
    ]
    distribution = network.actor.distribution
    before = network.actor(observations).clone()

    def kl(scale: float) -> float:
        for matrix, start, direction in zip(matrices, original, noise, strict=True):
            matrix.copy_(start + scale * direction)
        return float(distribution.kl(before, distribution, network.actor(observations)).mean())

    low, high, scale, moved = 0.0, float("inf"), sd, kl(sd)
    for _ in range(40):
        if abs(moved - NOISE_KL) <= NOISE_TOLERANCE * NOISE_KL:
            break
        low, high = (scale, high) if moved < NOISE_KL else (low, scale)
        scale = min(2 * scale, 1e3 * sd) if high == float("inf") else (low + high) / 2
        moved = kl(scale)
    return {"sd": scale, "kl": moved}


def distance(parent: ActorCritic, child: ActorCritic, observations: Tensor) -> tuple[float, float]:
    """Mean KL(parent || child) in nats, and the value's root mean square error relative to its spread."""
    ours, value = parent.evaluate(observations)
    theirs, child_value = child.evaluate(observations)
    kl = parent.actor.distribution.kl(ours, child.actor.distribution, theirs).mean()
    error = (value - child_value).square().mean().sqrt() / value.std(unbiased=False).clamp(min=1e-6)
    return float(kl), float(error)


class _Branch(NamedTuple):
    """One network as a chain of modules, with the qualified names of its unit groups."""

    name: str
    parts: tuple[tuple[str, EvolvableMLP], ...]


def _branches(network: ActorCritic) -> tuple[_Branch, ...]:
    return tuple(
        _Branch(name, (("encoder", owner.encoder), ("head", owner.head)))
        for name, owner in (("actor", network.actor), ("critic", network.critic))
    )


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
        for part, module in branch.parts:
            for name, groups in module.axes().items():
                axes[f"{branch.name}.{part}.{name}"] = tuple(_group(network, branch.name, part, g) for g in groups)
    return axes


def _tensors(network: ActorCritic) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _carried(
    parent: Parent, operator: str, arguments: Arguments, build: Builder
) -> tuple[ActorCritic, Moments, Moments]:
    child = build(parent.network.spec.apply(operator, **arguments)).to(parent.observations.dtype)
    child.train(parent.network.training)
    part, _, verb = operator.rpartition(".")
    if verb.endswith("latent_node"):
        part = "encoder"
    maps: dict[str, Tensor] = {}
    if verb.endswith("node"):
        maps = _unit_maps(parent, part, verb, arguments)
    sources = {name: name for name in _tensors(child)}
    if verb.endswith("layer"):
        sources = {name: _renamed(name, part, verb, int(arguments["layer"])) for name in sources}
    if verb == "remove_layer":  # what read the removed layer reads other units now
        for branch in _branches(child):
            sources.pop(f"{branch.name}.{part}.linears.{arguments['layer']}.weight", None)
    axes = _axes(child)
    ours = _tensors(parent.network)
    transplant_(_tensors(child), ours, sources=sources, axes=axes, maps=maps)
    refresh(child)
    if verb == "add_layer":
        _make_identity_(child, part, int(arguments["layer"]) + 1)
    names = dict(child.named_parameters())
    moments = []
    for kind, old in (("first", parent.first), ("second", parent.second)):
        fill = float(torch.cat([m.reshape(-1) for m in old.values()]).mean()) if kind == "second" else 0.0
        new = {name: torch.full_like(p, fill) for name, p in names.items()}
        transplant_(new, old, sources=sources, axes=axes, maps=maps, moments=kind)
        moments.append(new)
    if verb.startswith("remove"):
        _recount_(child)
        for name in _refit_readers_(parent, child, part, verb, arguments):
            moments[0][name].zero_()
    return child, moments[0], moments[1]


def _unit_maps(parent: Parent, part: str, verb: str, arguments: Arguments) -> dict[str, Tensor]:
    """Which unit of the parent each unit of the child is, in every group that the operator widens or narrows."""
    nodes = int(arguments["nodes"])
    maps: dict[str, Tensor] = {}
    scores: dict[str, Tensor] = {}
    for branch in _branches(parent.network):
        module = dict(branch.parts)[part]
        local = "out" if "latent" in verb else str(arguments["layer"])
        group = _group(parent.network, branch.name, part, local)
        if verb.startswith("add"):
            width = (
                parent.network.spec.latent_dim if "latent" in verb else module.spec.hidden_size[int(arguments["layer"])]
            )
            maps[group] = grown(width, nodes)
            continue
        traces, readers = _trace(branch, parent.observations)
        index = len(module.spec.hidden_size) + 1 if "latent" in verb else int(arguments["layer"]) + 1
        position = index + (len(branch.parts[0][1].linears) if part == "head" else 0)
        importance = traces[position].abs().mean(0) * readers[position].norm(dim=0)
        scores[group] = scores.get(group, torch.zeros_like(importance)) + importance
    return {**maps, **{group: kept(score, nodes) for group, score in scores.items()}}


def _trace(branch: _Branch, observations: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The input of every linear layer along a branch, and that layer's weights."""
    inputs: list[Tensor] = []
    weights: list[Tensor] = []
    x = observations
    for _, module in branch.parts:
        *here, x = module.trace(x)
        inputs += here
        weights += [linear.weight for linear in module.linears]
    return inputs, weights


def _renamed(name: str, part: str, verb: str, layer: int) -> str:
    """The parent's name of a child's tensor when a layer was inserted behind `layer`, or `layer` was removed."""
    pieces = name.split(".")
    if len(pieces) < 5 or pieces[1] != part or pieces[2] not in ("linears", "norms", "activations"):
        return name
    index = int(pieces[3])
    if verb == "add_layer":
        if index == layer + 1:
            return ""  # newborn
        pieces[3] = str(index - (index > layer))
    else:
        pieces[3] = str(index + (index >= layer))
    return ".".join(pieces)


def _make_identity_(child: ActorCritic, part: str, index: int) -> None:
    for branch in _branches(child):
        linear = dict(branch.parts)[part].linears[index]
        torch.nn.init.eye_(linear.weight)
        linear.bias.zero_()


def _recount_(child: ActorCritic) -> None:
    """A normalisation must count at least one unit: if removal took all that it counted, it counts all that are left."""
    for layer in child.modules():
        if isinstance(layer, LayerNorm) and not layer.counted.any():
            layer.counted.fill_(1.0)
            layer.refresh()


def _refit_readers_(parent: Parent, child: ActorCritic, part: str, verb: str, arguments: Arguments) -> list[str]:
    """Refit every linear layer that read what was removed, so that it gives what it gave; return the names of its parameters."""
    refitted: list[str] = []
    done: set[int] = set()
    for old, new in zip(_branches(parent.network), _branches(child), strict=True):
        reader_part = "head" if "latent" in verb else part
        place = 0 if "latent" in verb else int(arguments["layer"]) + 1
        new_place = place - (verb == "remove_layer")
        source, target = dict(old.parts)[reader_part], dict(new.parts)[reader_part]
        if id(target) in done:  # a shared encoder stands in both branches
            continue
        done.add(id(target))
        before, after = parent.observations, parent.observations
        if reader_part == "head":
            before, after = dict(old.parts)["encoder"](before), dict(new.parts)["encoder"](after)
        linear = target.linears[new_place]
        if verb == "remove_layer":  # where the data say nothing: the two maps as if nothing stood between them
            linear.weight.copy_(source.linears[place].weight @ source.linears[place - 1].weight)
        wanted = source.linears[place](source.trace(before)[place])
        refit_(linear.weight, linear.bias, target.trace(after)[new_place], wanted)
        refitted += [f"{new.name}.{reader_part}.linears.{new_place}.{name}" for name in ("weight", "bias")]
    return refitted
