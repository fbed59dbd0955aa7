"""Division of a rollout's sequences into minibatches, without the steps in which agents wait.

Where agents take turns, half of the rows or more hold no action. A member whose agents wait has as many minibatches as
any other, but only of the rows with actions. Their number differs between members, so minibatches are padded to the
longest with rows of weight 0; a member's own division does not depend on the other members.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Minibatches(NamedTuple):
    """`parts` minibatches of each member's S sequences, whose sizes differ by one at most."""

    parts: int
    sequences: int
    used: Tensor | None = None  # [P, S] bool, the sequences that are learned from; None: all

    @classmethod
    def of_size(
        cls, batch_size: int, parts: int | None, sequences: int, length: int = 1, used: Tensor | None = None
    ) -> Minibatches:
        """Return minibatches of about `batch_size` samples, or `parts` of them, of sequences of `length` samples."""
        return cls(min(sequences, parts or max(1, round(sequences * length / batch_size))), sequences, used)

    def of(self, order: Tensor) -> tuple[list[slice], Tensor, Tensor | None]:
        """Return each minibatch's columns of a new order `[P, S']`, that order, and flags of its padding `[P, S']`.

        `order` `[P, S]` is a permutation of each member's sequences. Without padding there are no flags.
        """
        if self.used is None:
            bounds = [self.sequences * i // self.parts for i in range(self.parts + 1)]
            return [slice(*ends) for ends in pairwise(bounds)], order, None
        used = self.used.gather(1, order)
        order = order.gather(1, used.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices)
        ends = torch.arange(self.parts + 1, device=order.device)
        bounds = self.used.sum(1, keepdim=True) * ends // self.parts  # [P, parts + 1]
        width = max(1, int((bounds[:, 1:] - bounds[:, :-1]).max()))  # 1: padding alone, if all agents waited
        places = bounds[:, :-1, None] + torch.arange(width, device=order.device)  # [P, parts, width]
        padding = (places >= bounds[:, 1:, None]).flatten(1)
        order = order.gather(1, places.flatten(1).clamp_(max=self.sequences - 1))
        return [slice(width * i, width * (i + 1)) for i in range(self.parts)], order, padding


def reordered(x: Tensor, order: Tensor) -> Tensor:
    """Return each member's sequences `[P, S, …]` in an order `[P, S']` of its own."""
    members, count = x.shape[:2]
    rows = order + count * torch.arange(members, device=order.device).unsqueeze(1)
    return x.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, order.shape)


def sequences_in_use(weight: Tensor, waiting: Tensor | None) -> Tensor | None:
    """Return the sequences `[P, S]` that members learn from, given `weight` `[P, S, L]`, and `Rollout.waiting`.

    They are all sequences of members whose agents never wait, and those with a weight of the others.
    """
    if waiting is None:
        return None
    return (weight > 0).any(2) | ~(waiting > 0).flatten(1).any(1, keepdim=True)
