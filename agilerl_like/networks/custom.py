"""Networks of the user's own as actor and critic: any `nn.Module`, or one that is evolvable itself.

A module's weights are cloned, saved, perturbed and learned like any others, but for those that require no gradient when
it is given, which stay as they are; its architecture evolves if it is an `EvolvableModule`. The one subtlety: nobody
knows how to stack what somebody else wrote, so members of a stack are computed one after the other, each with its rows
of the stacked parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import gymnasium
import torch
from torch import Tensor, nn
from torch.func import functional_call

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.base import (
    Arguments,
    EvolvableModule,
    OperatorKind,
    Spec,
    UnitAxes,
    UnitChange,
    UnitMaps,
    check_mapping,
)
from agilerl_like.modules.module_utils import walk
from agilerl_like.networks.passage import Absent

Branch = Literal["actor", "critic"]
BRANCHES: tuple[Branch, Branch] = ("actor", "critic")


class ModuleTemplate:
    """A module of the user's as an architecture: equal to those of the same module, and to nothing else."""

    def __init__(self, module: nn.Module) -> None:
        self.source, self.module = module, copy.deepcopy(module)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleTemplate) and self.source is other.source

    def __hash__(self) -> int:
        return id(self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleTemplate:
        """It never changes, so copies of a network may share it."""
        return self

    def __repr__(self) -> str:
        return type(self.module).__name__


@dataclass(frozen=True)
class UserNetworkSpec(Spec):
    """One network of the user's: its module, and what of it evolves."""

    template: ModuleTemplate
    spec: Spec
    """Absent if its architecture cannot evolve."""

    @classmethod
    def of(cls, module: nn.Module) -> UserNetworkSpec:
        """The design of a module as it is given."""
        return cls(ModuleTemplate(module), module.spec if isinstance(module, EvolvableModule) else Absent())

    def check(self, field: str) -> None:
        """Raise ConfigurationError if it has parameters that must stay, and an architecture that does not."""
        module = self.template.module
        if isinstance(module, EvolvableModule) and _frozen_names(module):
            raise ConfigurationError(
                f"{field}={self.template} evolves, so all of its parameters are learned, but requires_grad=False is "
                f"set for {', '.join(sorted(_frozen_names(module))):.200}; allowed is that in modules that do not evolve"
            )

    def build(self) -> nn.Module:
        """A module of this architecture, with the weights that were given where they fit it."""
        module = self.template.module
        if isinstance(module, EvolvableModule) and self.spec != module.spec:
            return module.rebuild(self.spec)
        return copy.deepcopy(module)


@dataclass(frozen=True)
class CustomSpec(Spec):
    """The architecture of an actor and a critic that the user gave."""

    actor: UserNetworkSpec
    critic: UserNetworkSpec

    @classmethod
    def of(cls, actor_network: Any, critic_network: Any) -> CustomSpec:
        """Take both networks as they are given.

        Raises:
            ConfigurationError: one of them is missing, is no `nn.Module`, or has both parameters that require no
                gradient and an architecture that evolves.
        """
        for name, network in (("actor_network", actor_network), ("critic_network", critic_network)):
            if not isinstance(network, nn.Module):
                raise ConfigurationError(
                    f"{name}={network!r} must be an nn.Module where the other network is one; allowed are both or none"
                )
        spec = cls(UserNetworkSpec.of(actor_network), UserNetworkSpec.of(critic_network))
        spec.actor.check("actor_network")
        spec.critic.check("critic_network")
        return spec

    def to_config(self) -> dict[str, Any]:
        return {branch: self._network_spec(branch).spec.to_config() for branch in BRANCHES}

    def with_architectures(self, config: Mapping[str, Any]) -> CustomSpec:
        """The same networks with the architectures that `to_config` wrote."""
        check_mapping("encoder_config", config)
        found = {}
        for branch in BRANCHES:
            design = self._network_spec(branch)
            spec = type(design.spec).from_config(f"{branch}_network", config.get(branch, {}))
            found[branch] = design.evolve(spec=spec)
        return self.evolve(**found)

    def _network_spec(self, branch: str) -> UserNetworkSpec:
        return getattr(self, branch)

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        return {
            f"{branch}.{name}": kind
            for branch in BRANCHES
            for name, kind in self._network_spec(branch).spec.operator_kinds.items()
            if kind != "activation"
        }

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        branch, _, inner = operator.partition(".")
        return self._network_spec(branch).spec.choices(inner)

    def apply(self, operator: str, **arguments: int | float | str) -> CustomSpec:
        branch, _, inner = operator.partition(".")
        design = self._network_spec(branch)
        return self.evolve(**{branch: design.evolve(spec=design.spec.apply(inner, **arguments))})

    @property
    def is_fading(self) -> bool:
        return self.actor.spec.is_fading or self.critic.spec.is_fading

    def without_fading(self) -> CustomSpec:
        designs = {branch: self._network_spec(branch) for branch in BRANCHES}
        return self.evolve(**{branch: one.evolve(spec=one.spec.without_fading()) for branch, one in designs.items()})

    def stack_key(self) -> Hashable:
        return self

    @classmethod
    def padded_union(cls, specs: Sequence[CustomSpec]) -> CustomSpec:
        return specs[0]

    def multiply_adds(self, padded: CustomSpec, inputs: Any, num_outputs: int) -> int:
        """About as many as the actor has weights."""
        return sum(parameter.numel() for parameter in self.actor.build().parameters())

    def describe(self) -> str:
        words = [f"{design.template} {design.spec.describe()}".strip() for design in (self.actor, self.critic)]
        return "/".join(dict.fromkeys(words))


class EvolvableCustom(EvolvableModule[CustomSpec]):
    """One of the user's networks on rows of observations: `[…, D] -> […, num_outputs]`.

    The network is given what the space says, normalised: a batch of vectors `[B, *shape]`, images `[B, C, H, W]`,
    one-hot categories `[B, n]`, or a dict or tuple of these; it returns `[B, num_outputs]`.
    """

    def __init__(self, spec: CustomSpec, inputs: tuple[ObservationEncoder, Branch], num_outputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, num_outputs
        self.encoding, self.branch = inputs
        self.net = getattr(spec, self.branch).build()
        self._dims = [parameter.dim() for parameter in self.net.parameters()][:1]
        self.frozen_parameters = _frozen_names(self.net)
        """Names of the parameters that stay as they were given."""

    def __deepcopy__(self, memo: dict[int, Any]) -> EvolvableCustom:
        """The network as it was given, with the tensors that this one has now; nobody knows what else is in it."""
        other = type(self)(self.spec, self.inputs, self.num_outputs)
        fresh, own = ([*net.parameters(), *net.buffers()] for net in (other.net, self.net))
        now = {id(new): memo.get(id(old), old) for new, old in zip(fresh, own, strict=True)}
        other.net = copy.deepcopy(other.net, now)
        return other.train(self.training)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """The weights are those that the user gave."""

    def forward(self, x: Tensor) -> Tensor:
        if [parameter.dim() for parameter in self.net.parameters()][:1] == self._dims:
            return self.net(self._to_observation(x.reshape(-1, x.shape[-1]))).reshape(*x.shape[:-1], self.num_outputs)
        tensors = _tensors_by_name(self.net)
        tensors |= {name: tensors[name].detach() for name in self.frozen_parameters}
        members = (
            functional_call(
                self.net,
                {name: tensor[row] for name, tensor in tensors.items()},
                (self._to_observation(x[row]),),
                tie_weights=False,  # what is shared is told already
            )
            for row in range(len(x))
        )
        return torch.stack([outputs.reshape(-1, self.num_outputs) for outputs in members])

    def _to_observation(self, rows: Tensor) -> Any:
        """What the space says that rows `[B, D]` are."""
        leaves = {leaf.path: leaf for leaf in self.encoding.leaves}

        def seen_as(space: gymnasium.Space, path: tuple[str | int, ...]) -> Any:
            if isinstance(space, gymnasium.spaces.Dict):
                return {key: seen_as(part, (*path, key)) for key, part in space.spaces.items()}
            if isinstance(space, gymnasium.spaces.Tuple):
                return tuple(seen_as(part, (*path, place)) for place, part in enumerate(space.spaces))
            leaf = leaves[path]
            seen = leaf.read(rows)
            return seen.unflatten(-1, leaf.env_shape) if leaf.kind == "vector" and leaf.env_shape else seen

        return seen_as(self.encoding.space, ())

    def check(self) -> None:
        """Try the network on two observations.

        Raises:
            ConfigurationError: it cannot read them, or does not give `[2, num_outputs]`.
        """
        trial, field = copy.deepcopy(self.net).eval(), f"{self.branch}_network"
        rows = self.encoding.random_rows(2, torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                outputs = trial(self._to_observation(rows))
        except Exception as error:  # whatever the user's code raises
            raise ConfigurationError(
                f"{field}={type(self.net).__name__} cannot read {self.encoding.space}: {error!r}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.shape not in (
            (2, self.num_outputs),
            (2,) * (self.num_outputs == 1),
        ):
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigurationError(
                f"{field}={type(self.net).__name__} gives {found} for 2 observations; "
                f"allowed is a tensor of shape {(2, self.num_outputs)}"
            )

    # -- mutations: what the user's own evolvable module says, behind the name "net"

    @property
    def is_evolvable(self) -> bool:
        """Whether the user's own module is."""
        return isinstance(self.net, EvolvableModule)

    def _inner_module(self, operator: str) -> tuple[EvolvableModule, str] | None:
        branch, _, inner = operator.partition(".")
        return (cast(EvolvableModule, self.net), inner) if branch == self.branch else None

    def unit_axes(self) -> UnitAxes:
        if not isinstance(self.net, EvolvableModule):
            return {}
        return {f"net.{name}": groups for name, groups in self.net.unit_axes().items()}

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        return self.net.expand_maps(maps) if isinstance(self.net, EvolvableModule) else {}

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        found = self._inner_module(operator)
        if found is None:
            return UnitChange()
        unit_change = found[0].unit_change(found[1], arguments)
        consumers = tuple((f"net.{before}", f"net.{after}") for before, after in unit_change.consumers)
        return unit_change._replace(consumers=consumers)

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        found = self._inner_module(operator)
        if found is None:
            return name
        source_name = found[0].source_name(name.removeprefix("net."), found[1], arguments)
        return source_name and f"net.{source_name}"

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        if (found := self._inner_module(operator)) is not None:
            found[0].init_new_layer_(found[1], arguments, generator)

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        if (found := self._inner_module(operator)) is not None:
            found[0].merge_removed_layer_(cast(EvolvableModule, cast(EvolvableCustom, parent).net), found[1], arguments)

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        return cast(EvolvableModule, self.net).layer_input(name.removeprefix("net."), self._to_observation(x))

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        return cast(EvolvableModule, self.net).layer_output(name.removeprefix("net."), outputs, inputs)

    def finish_fading_(self) -> None:
        if isinstance(self.net, EvolvableModule):
            self.net.finish_fading_()
        self.spec = self.spec.without_fading()


def _tensors_by_name(net: nn.Module) -> dict[str, Tensor]:
    """A network's tensors by name: one that several modules share once for each, those of a module used twice once.

    Otherwise torch would exchange the latter's twice, and put back what it found the second time.
    """
    return {
        f"{owner}.{name}".lstrip("."): tensor
        for owner, module in walk(net).modules.items()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def _frozen_names(net: nn.Module) -> frozenset[str]:
    """Names of the parameters that require no gradient."""
    tensors = _tensors_by_name(net).items()
    return frozenset(name for name, x in tensors if isinstance(x, nn.Parameter) and not x.requires_grad)
