"""A policy as one traceable module: observations in, the environment's actions out, with everything between them.

Encoding, normaliser, network, action mask, squashing and bounds are inside, so a program that has the file needs no
knowledge of this package. An agent's own path encodes observations with numpy and packs images as bytes, which cannot
be traced; here the same encoding is written with tensors, and images are float columns of the rows.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import MultiBinary
from torch import Tensor, nn

from agilerl_like.envs.spaces import Leaf, ObservationEncoder
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.distributions import ActionDistribution
from agilerl_like.networks.observation_norm import BoundsNorm, RowNorm, policy_norm

OBSERVATION = "observation"
"""Name of the input of an observation that is one array; the parts of a Dict or Tuple add their path."""
ACTION_MASK = "action_mask"
HIDDEN_STATE = "hidden_state"
ACTION = "action"
NEXT_HIDDEN_STATE = "next_hidden_state"


class PolicyInput(NamedTuple):
    """An input of an exported policy; the batch is its first axis."""

    name: str
    shape: tuple[int, ...]
    """Without the batch."""
    dtype: np.dtype
    limits: tuple[Any, Any] | None = None
    """The smallest and the largest whole number, or lists of them of the input's shape; None without limits."""


class TrainedPolicy(Protocol):
    """What an export reads from a learner."""

    encoding: ObservationEncoder
    action_space: gymnasium.Space
    network: ActorCritic
    learned_with_masks: bool

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        ...

    @property
    def distribution(self) -> ActionDistribution:
        """The action distribution that the policy's outputs parametrize."""
        ...

    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return actions for encoded observations without exploration, and the next hidden state."""
        ...


class PolicyModule(nn.Module):
    """The most likely action of a learner's policy for a batch of observations.

    A call takes the arrays of `inputs` in their order, each `[B, *shape]`: the parts of the observation in the
    environment's dtypes, `action_mask` `[B, choices]` (True where an action is legal) if the policy reads masks, and
    `hidden_state` `[B, K, H]` (zeros where an episode begins) if it is recurrent. It returns the actions
    `[B, *action_space.shape]` in the environment's units and dtype, and the next hidden state of a recurrent policy.
    Files with several parts of an observation take all inputs by name instead.
    """

    def __init__(self, learner: TrainedPolicy, *, masks: bool) -> None:
        super().__init__()
        encoding, network = learner.encoding, copy.deepcopy(learner.network).cpu().eval()
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.detach().clone()  # an agent's tensors are views of one storage
        floats = [leaf for leaf in encoding.leaves if not leaf.is_uint8]
        images = [leaf for leaf in encoding.leaves if leaf.is_uint8]
        self.leaves = encoding.leaves
        self.order = [encoding.leaves.index(leaf) for leaf in (*floats, *images)]
        """Rows hold the values that the normaliser reads first, then the images."""
        self.num_float_parts = len(floats)
        self.actor, self.norm = network.actor, policy_norm(network.observation_norm)
        self.actor.distribution.reset_device_()  # `cpu` moves parameters and buffers alone
        self.recurrent = network.is_recurrent
        self.masks = masks
        _read_float_rows(self.actor, _as_float_leaves([*floats, *images]))
        names = [f"{OBSERVATION}.{leaf.name}" if leaf.path else OBSERVATION for leaf in encoding.leaves]
        self.inputs = [
            PolicyInput(name, leaf.env_shape, np.dtype(leaf.space.dtype), _limits(leaf))
            for name, leaf in zip(names, encoding.leaves, strict=True)
        ]
        if masks:
            self.inputs.append(
                PolicyInput(ACTION_MASK, (self.actor.distribution.mask_size,), np.dtype(np.bool_), (0, 1))
            )
        if self.recurrent:
            self.inputs.append(PolicyInput(HIDDEN_STATE, network.state_shape[1:], np.dtype(np.float32)))

    @property
    def has_named_inputs(self) -> bool:
        """Whether files take their inputs by name: the entries of an observation have no order of their own."""
        return len(self.leaves) > 1

    @property
    def argument_names(self) -> list[str]:
        """An identifier for each input: keys of observations may be any text, and must not become code."""
        found: list[str] = []
        for name, *_ in self.inputs:
            identifier = argument = re.sub(r"\W", "_", name, flags=re.ASCII)
            number = 2
            while argument in found:
                argument, number = f"{identifier}_{number}", number + 1
            found.append(argument)
        return found

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs in their order."""
        return [ACTION, NEXT_HIDDEN_STATE] if self.recurrent else [ACTION]

    def policy_outputs(self, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs of the policy's network `[B, num_outputs]`, and the next hidden state."""
        parts = [_encoded(self.leaves[i], inputs[i]) for i in self.order]
        floats, images = parts[: self.num_float_parts], parts[self.num_float_parts :]
        rows = torch.cat([*([self._normalised(torch.cat(floats, -1))] if floats else []), *images], -1)
        features = self.actor.encoder(rows)
        if not self.recurrent:
            return self.actor.head(features).float(), None
        features, state = self.actor.memory.step(features, inputs[-1])
        return self.actor.head(features).float(), state

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, state = self.policy_outputs(*inputs)
        mask = inputs[len(self.leaves)] if self.masks else None
        distribution = self.actor.distribution
        action = distribution.in_env(distribution.mode(outputs, mask))
        return (action,) if state is None else (action, state)

    def _normalised(self, floats: Tensor) -> Tensor:
        return self.norm.normalise_floats(floats) if isinstance(self.norm, RowNorm | BoundsNorm) else self.norm(floats)


def _limits(leaf: Leaf) -> tuple[Any, Any] | None:
    """Return the limits of the whole numbers in one part of an observation: of a Box those of its dtype; or None."""
    if leaf.counts.size:
        ends = leaf.starts, leaf.starts + leaf.counts - 1
        low, high = (end.reshape(leaf.env_shape).tolist() for end in ends)
        return low, high
    if isinstance(leaf.space, MultiBinary) or leaf.space.dtype == np.bool_:
        return 0, 1
    if not np.issubdtype(leaf.space.dtype, np.integer):
        return None
    integers = np.iinfo(leaf.space.dtype)
    return integers.min, integers.max


def _encoded(leaf: Leaf, x: Tensor) -> Tensor:
    """Return the values `[B, size]` of one part of a batch of observations, as `Leaf.encode` does."""
    x = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    if not leaf.counts.size:
        return x.to(torch.float32)
    if not leaf.is_one_hot:
        return (x - torch.from_numpy(leaf.starts)).to(torch.float32)
    offsets = [torch.arange(int(count)) + int(start) for count, start in zip(leaf.counts, leaf.starts, strict=True)]
    codes = [(x[:, i : i + 1] == values).to(torch.float32) for i, values in enumerate(offsets)]
    return codes[0] if len(codes) == 1 else torch.cat(codes, -1)


def _as_float_leaves(leaves: list[Leaf]) -> dict[tuple[Any, ...], Leaf]:
    """Return the leaves by path, as they lie in rows of floats in this order."""
    found, start = {}, 0
    for leaf in leaves:
        found[leaf.path] = replace(leaf, columns=slice(start, start + leaf.size), is_uint8=False)
        start += leaf.size
    return found


def _read_float_rows(network: nn.Module, leaves: dict[tuple[Any, ...], Leaf]) -> None:
    """Replace the leaves that the modules of a network read."""
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Leaf):
                setattr(module, name, leaves[value.path])
            elif isinstance(value, tuple) and value and all(isinstance(part, Leaf) for part in value):
                setattr(module, name, tuple(leaves[part.path] for part in value))
