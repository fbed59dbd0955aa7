"""The gradient of PPO's loss on a minibatch, for the stacked networks of P members.

`compile=True` compiles these functions, so everything they read is an argument or a field of `PPOGradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.optimizer import clip_, copy_gradients_
from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, PPOLoss, Targets, check_loss
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo, resize_hidden

Samples = Sequence[Tensor | None]
"""Observations, actions, masks, starts and state of a minibatch, `[P, S, L, …]` each (the state `[P, S, …]`)."""
MinibatchGradient = Callable[["PPOGradient", Samples, Tensor], tuple[Sequence[Tensor | None], list[Tensor]]]
"""`minibatch_gradient`, or a compiled version of it."""
ClippedGradient = Callable[["PPOGradient", Samples, Tensor], tuple[list[Tensor], Tensor]]
"""`clipped_gradient_`, or a compiled version of it."""


class PPOGradient(NamedTuple):
    """The gradient of a minibatch, which is overwritten by the next one, and all that it depends on besides samples."""

    flat: Tensor
    """The gradient `[P, N]`, laid out as the weights."""
    halves: tuple[Tensor, ...]
    """Views of the columns of the policy, and of the value function."""
    parameters: list[Tensor]
    """The stacked parameters that are trained."""
    views: list[Tensor]
    """The gradient of each of `parameters`: views of `flat`."""
    stacked: StackedNetworks
    loss: PPOLoss
    coefs: LossCoefs
    max_grad_norm: Tensor
    """Limit of each member's gradient norm, `[P]`."""
    clip_together: bool
    """Whether one norm over policy and value function is clipped, in place of one each."""
    execution: Execution
    gradient_sync: GradientSync
    ones: Tensor
    """The gradient `[P]` of the sum of the members' losses."""
    compute: MinibatchGradient

    @classmethod
    def of(
        cls,
        stacked: StackedNetworks,
        loss: PPOLoss,
        coefs: LossCoefs,
        max_grad_norm: Tensor,
        *,
        clip_together: bool,
        execution: Execution,
        gradient_sync: GradientSync,
    ) -> tuple[PPOGradient, ClippedGradient]:
        """Return a gradient of zeros, and the function that writes it, compiled if `execution` has `compile`.

        The function is compiled as a whole on a CPU. The exchange between processes cannot be part of a compiled
        graph, nor can a CUDA graph write into an argument, so there only `minibatch_gradient` is compiled.
        """
        flat = torch.zeros_like(stacked.flat)
        trained = [pair for pair in stacked.with_gradients(flat) if pair[0].requires_grad]
        compute, write = minibatch_gradient, clipped_gradient_
        if gradient_sync.num_ranks == 1 and flat.device.type == "cpu":
            write = execution.compiled(clipped_gradient_, flat.device)
        else:
            compute = execution.compiled(minibatch_gradient, flat.device)
        gradient = cls(
            flat=flat,
            halves=flat.tensor_split((stacked.critic_at,), 1),
            parameters=[parameter for parameter, _ in trained],
            views=[view for _, view in trained],
            stacked=stacked,
            loss=loss,
            coefs=coefs,
            max_grad_norm=max_grad_norm,
            clip_together=clip_together,
            execution=execution,
            gradient_sync=gradient_sync,
            ones=torch.ones_like(max_grad_norm),
            compute=compute,
        )
        return gradient, write


def clipped_gradient_(gradient: PPOGradient, samples: Samples, targets: Tensor) -> tuple[list[Tensor], Tensor]:
    """Write the gradient of a minibatch in all processes, clipped as by `clip_`, into `gradient.flat`.

    Arguments are those of `minibatch_gradient`. Returns the fields of `PolicyEval`, detached, and the norms of the
    gradient's halves before the clip, `[2, P]`.
    """
    found, evaluation = gradient.compute(gradient, samples, targets)
    copy_gradients_(gradient.views, found)
    gradient.gradient_sync.all_reduce_(gradient.flat)
    return evaluation, clip_(gradient.halves, gradient.max_grad_norm, together=gradient.clip_together)


def minibatch_gradient(
    gradient: PPOGradient, samples: Samples, targets: Tensor
) -> tuple[Sequence[Tensor | None], list[Tensor]]:
    """Return the gradients of the loss of a minibatch with `Targets` `[5, P, S L]`, and the policy evaluated on it.

    The gradients are those of `gradient.parameters`, None where one is not used. The policy's evaluation has the fields
    of `PolicyEval`, detached.
    """
    observations, actions, masks, starts, state = samples
    flat = [x if x is None else x.flatten(1, 2) for x in (observations, actions, masks)]
    with torch.enable_grad():
        with gradient.execution.autocast(targets.device):
            evaluation = PolicyEval(*gradient.stacked.over(_evaluate, *flat, starts, state))
        loss = gradient.loss(evaluation, Targets(*targets.unbind()), gradient.coefs)
        check_loss(gradient.loss, loss, gradient.ones.shape)
        found = torch.autograd.grad(loss, gradient.parameters, gradient.ones, allow_unused=True)
    return found, [x.detach() for x in evaluation]


def _evaluate(
    network: ActorCritic, x: Tensor, actions: Tensor, masks: Tensor | None, starts: Any, state: Any
) -> tuple[Tensor, ...]:
    """Return log-probability and entropy of raw actions, and the normalised value, all `[P, B]`."""
    sequence_info = NO_SEQUENCE if starts is None else SequenceInfo(starts, resize_hidden(state, network.state_shape))
    outputs, values = network.evaluate(x, sequence_info)
    return *network.actor.distribution.evaluate(outputs, actions, masks), values
