"""Actor and critic networks supplied by the user: any `nn.Module`, or an `EvolvableModule`.

Weights are cloned, saved, perturbed and trained as usual, except for parameters with `requires_grad=False`, which never
change. The architecture evolves if the module is an `EvolvableModule`. A user's layers cannot be batched over members,
so the members of a stack are computed one after the other, each with its rows of the stacked parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import torch
from torch import Tensor, nn
from torch.func import functional_call

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError, check_mapping
from agilerl_like.modules.composite import CompositeModule, CompositeSpec
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.param_stack import update_count_flags
from agilerl_like.modules.spec import Spec
from agilerl_like.networks.identity_module import EmptySpec

Branch = Literal["actor", "critic"]
BRANCHES: tuple[Branch, Branch] = ("actor", "critic")


class ModuleTemplate:
    """A user's module as part of an architecture; two templates are equal if they were made from the same object."""

    def __init__(self, module: nn.Module) -> None:
        self.source, self.module = module, copy.deepcopy(module)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleTemplate) and self.source is other.source

    def __hash__(self) -> int:
        return id(self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleTemplate:
        """Return the template itself: it is immutable, so copies of a network share it."""
        return self

    def __repr__(self) -> str:
        return type(self.module).__name__


@dataclass(frozen=True)
class UserNetworkSpec(Spec):
    """One network supplied by the user: the module, and its evolvable architecture."""

    template: ModuleTemplate
    spec: Spec
    """Empty if the architecture cannot evolve."""

    @classmethod
    def of(cls, module: nn.Module) -> UserNetworkSpec:
        """Return the spec of a module as the user supplied it."""
        return cls(ModuleTemplate(module), module.spec if isinstance(module, EvolvableModule) else EmptySpec())

    def check(self, field: str) -> None:
        """Raise ConfigurationError if an evolvable module has parameters with `requires_grad=False`.

        The same holds for one that a mutation could not build (see `EvolvableModule.check_rebuild`).
        """
        module = self.template.module
        if not isinstance(module, EvolvableModule):
            return
        module.check_rebuild(field)
        if _frozen_names(module):
            raise ConfigurationError(
                f"{field}={self.template} evolves, so all of its parameters are learned, but requires_grad=False is "
                f"set for {', '.join(sorted(_frozen_names(module))):.200}; "
                "allowed is that in modules that do not evolve"
            )

    def build(self) -> nn.Module:
        """Return a module of this architecture, with the supplied weights; undefined ones if it was mutated."""
        module = self.template.module
        if isinstance(module, EvolvableModule) and self.spec != module.spec:
            return module.rebuild(self.spec)
        return copy.deepcopy(module)


@dataclass(frozen=True)
class CustomSpec(CompositeSpec):
    """The architecture of an actor and a critic supplied by the user."""

    actor: UserNetworkSpec
    critic: UserNetworkSpec

    @classmethod
    def of(cls, actor_network: Any, critic_network: Any) -> CustomSpec:
        """Return the spec of both networks as the user supplied them.

        Raises:
            ConfigurationError: one of them is missing or no `nn.Module`, or is an `EvolvableModule` that has parameters
                with `requires_grad=False` or that a mutation could not build; or they have a parameter in common.
        """
        for name, network in (("actor_network", actor_network), ("critic_network", critic_network)):
            if not isinstance(network, nn.Module):
                raise ConfigurationError(
                    f"{name}={network!r} must be an nn.Module where the other network is one; allowed are both or none"
                )
        of_actor = {id(parameter) for parameter in actor_network.parameters()}
        if shared := [name for name, parameter in critic_network.named_parameters() if id(parameter) in of_actor]:
            raise ConfigurationError(
                f"critic_network={type(critic_network).__name__} has parameters of actor_network "
                f"({', '.join(shared):.200}), and each network is copied; allowed are modules without common layers"
            )
        spec = cls(UserNetworkSpec.of(actor_network), UserNetworkSpec.of(critic_network))
        spec.actor.check("actor_network")
        spec.critic.check("critic_network")
        return spec

    @property
    def has_noise(self) -> bool:
        return True  # the user's modules may have dropout

    def to_config(self) -> dict[str, Any]:
        return {branch: self._network_spec(branch).spec.to_config() for branch in BRANCHES}

    def with_architectures(self, config: Mapping[str, Any]) -> CustomSpec:
        """Return the spec of the same networks with the architectures that `to_config` wrote."""
        check_mapping("encoder_config", config)
        found = {}
        for branch in BRANCHES:
            network = self._network_spec(branch)
            spec = type(network.spec).from_config(f"{branch}_network", config.get(branch, {}))
            found[branch] = network.evolve(spec=spec)
        return self.evolve(**found)

    def _network_spec(self, branch: str) -> UserNetworkSpec:
        return getattr(self, branch)

    @property
    def parts(self) -> dict[str, Spec]:
        return {branch: self._network_spec(branch).spec for branch in BRANCHES}

    def with_parts(self, parts: Mapping[str, Spec], **changes: Any) -> CustomSpec:
        networks = {branch: self._network_spec(branch).evolve(spec=spec) for branch, spec in parts.items()}
        return self.evolve(**networks, **changes)

    def stack_key(self) -> Hashable:
        return self

    @classmethod
    def padded_union(cls, specs: Sequence[CustomSpec]) -> CustomSpec:
        return specs[0]

    def multiply_adds(self, padded: CustomSpec, inputs: Any, num_outputs: int) -> int:
        """Return the number of the actor's parameters, as an estimate."""
        return sum(parameter.numel() for parameter in self.actor.build().parameters())

    def describe(self) -> str:
        names = [f"{network.template} {network.spec.describe()}".strip() for network in (self.actor, self.critic)]
        return "/".join(dict.fromkeys(names))


class EvolvableCustom(CompositeModule[CustomSpec]):
    """A user's network applied to rows of observations: `[…, D] -> […, num_outputs]`.

    The network receives normalized observations in the form of their space: a batch of vectors `[B, *shape]`, images
    `[B, C, H, W]`, one-hot categories `[B, n]`, or a dict or tuple of these; it returns `[B, num_outputs]`.
    """

    def __init__(self, spec: CustomSpec, inputs: tuple[ObservationEncoder, Branch], num_outputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, num_outputs
        self.encoding, self.branch = inputs
        self.leaves = self.encoding.leaves  # an exported network reads others (`export.policy_module`)
        self.net = getattr(spec, self.branch).build()
        self._dims = [parameter.dim() for parameter in self.net.parameters()][:1]
        self.frozen_parameters = _frozen_names(self.net)
        """Names of the parameters with `requires_grad=False`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> EvolvableCustom:
        """Return a copy of the supplied network with this one's tensors; its other state cannot be known."""
        other = type(self)(self.spec, self.inputs, self.num_outputs)
        other.leaves = self.leaves
        fresh, own = ([*net.parameters(), *net.buffers()] for net in (other.net, self.net))
        now = {id(new): copy.deepcopy(old, memo) for new, old in zip(fresh, own, strict=True)}
        other.net = copy.deepcopy(other.net, now)
        update_count_flags(other.net)
        return other.train(self.training)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Keep the weights that the user supplied; where a mutated architecture has others, draw these."""
        supplied, net = getattr(self.spec, self.branch).template.module, self.net
        if not isinstance(net, EvolvableModule) or net.spec == supplied.spec:
            return
        net.reset_(generator, output_gain=output_gain)
        own = dict(net.named_parameters())
        with torch.no_grad():
            for name, tensor in supplied.named_parameters():
                if name in own and own[name].dim() == tensor.dim():
                    common = tuple(slice(min(sizes)) for sizes in zip(own[name].shape, tensor.shape, strict=True))
                    own[name][common] = tensor[common]

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
                tie_weights=False,  # `tensors` lists shared tensors under each of their names
            )
            for row in range(len(x))
        )
        return torch.stack([outputs.reshape(-1, self.num_outputs) for outputs in members])

    def _to_observation(self, rows: Tensor) -> Any:
        """Return rows `[B, D]` in the form of the observation space."""
        leaves = {leaf.path: leaf for leaf in self.leaves}

        def convert(space: gymnasium.Space, path: tuple[str | int, ...]) -> Any:
            if isinstance(space, gymnasium.spaces.Dict):
                return {key: convert(part, (*path, key)) for key, part in space.spaces.items()}
            if isinstance(space, gymnasium.spaces.Tuple):
                return tuple(convert(part, (*path, index)) for index, part in enumerate(space.spaces))
            leaf = leaves[path]
            values = leaf.read(rows)
            return values.unflatten(-1, leaf.env_shape) if leaf.kind == "vector" and leaf.env_shape else values

        return convert(self.encoding.space, ())

    def check(self, device: torch.device) -> None:
        """Run the network, which is on `device`, on two observations, and on each of them alone.

        Raises:
            ConfigurationError: it fails, does not return `[2, num_outputs]`, or mixes the rows of a batch.
        """
        net, field = copy.deepcopy(self.net).eval(), f"{self.branch}_network"
        rows = self.encoding.random_rows(2, torch.Generator().manual_seed(0)).to(device)
        try:
            with torch.no_grad():
                outputs, again = (net(self._to_observation(rows)) for _ in range(2))
                alone = [net(self._to_observation(row)) for row in rows.split(1)]
        except Exception as error:  # the user's code may raise anything
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
        is_random = not torch.equal(outputs, again)
        if not is_random and not _are_close(outputs.ravel(), torch.cat([output.ravel() for output in alone])):
            raise ConfigurationError(
                f"{field}={type(self.net).__name__} mixes the rows of a batch: its outputs for an observation depend "
                "on the others, as those of an nn.LSTM that reads [B, n] as one sequence; allowed are networks that "
                'compute each row alone; memory is recurrent=True with net_config={"memory_config": {"cell": "LSTM"}}'
            )

    # -- mutations: delegated to the user's evolvable module, whose names get the prefix "net."

    @property
    def is_evolvable(self) -> bool:
        """Whether the user's module is an `EvolvableModule`."""
        return isinstance(self.net, EvolvableModule)

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        return {"net": self.net} if isinstance(self.net, EvolvableModule) else {}

    def targets(self, operator: str) -> tuple[tuple[str, ...], str]:
        branch, _, inner = operator.partition(".")
        return tuple(self.parts) if branch == self.branch else (), inner

    def part_input(self, path: str, x: Tensor) -> Any:
        return self._to_observation(x)


def check_layers(network: nn.Module) -> None:
    """Raise ConfigurationError if a network that is computed for several members has layers of torch with weights.

    Layers of the user's own, and all layers of whole networks supplied by the user, are not examined.
    """
    supplied = [f"{name}." for name, module in network.named_modules() if isinstance(module, EvolvableCustom)]
    for name, layer in network.named_modules():
        if (
            type(layer).__module__.startswith("torch.nn.")
            and any(True for _ in layer.parameters(recurse=False))
            and not name.startswith(tuple(supplied))
        ):
            owner = network.get_submodule(name.rpartition(".")[0])
            raise ConfigurationError(
                f"net_config: {name}={layer} of {type(owner).__name__} is a layer of torch, which cannot be computed "
                "for several members at once; allowed are those of agilerl_like.modules.layers, such as Linear"
            )


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of outputs are equal up to the rounding of their largest number."""
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-3 * one.abs().max())


def _tensors_by_name(net: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors by name.

    A tensor that several modules share is listed once for each; a module that is used twice is listed once, because
    `functional_call` would otherwise swap its tensors twice and restore the wrong ones.
    """
    return {
        f"{owner}.{name}".lstrip("."): tensor
        for owner, module in net.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def _frozen_names(net: nn.Module) -> frozenset[str]:
    """Return the names of the parameters with `requires_grad=False`."""
    tensors = _tensors_by_name(net).items()
    return frozenset(name for name, x in tensors if isinstance(x, nn.Parameter) and not x.requires_grad)
