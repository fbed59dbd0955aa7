"""`evolution="auto"`: the selection and the explorer that need no settings, because they adapt to members and budget.

Its parts, with the evidence (`tests/hpo` holds the toy problems; no comparison on real environments has been made yet):

- Selection behind a gate of one standard error of the paired difference. With much noise in fitness it is better than
  the same selection without the gate; with moderate noise and eight members it equals truncation within the spread.
- Up to half of the members replaced early, a quarter in the last third of the budget; only clones change.
- All hyperparameters of a clone move at once.
- Proposals of a Gaussian process where gains stand out from the noise (without noise 38.6 of 40, normal steps 35.9),
  normal steps elsewhere.
- The same env seeds for all members, new ones in each generation; more episodes for members in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

from agilerl_like.hpo.gated_selection import GatedSelection
from agilerl_like.hpo.pb2 import PB2
from agilerl_like.hpo.selection import Selection
from agilerl_like.registry import register

AUTO = "auto"
"""The value of `evolution` that selects both classes."""


@register("selection", AUTO)
@dataclass(frozen=True)
class AutoSelection(GatedSelection):
    """`GatedSelection` for any run: with a single member, or in a single generation, nothing evolves."""

    def validate(self, population_size: int) -> None:
        """Accept every population."""
        Selection.validate(self, population_size)

    def check_budget(self, generations: int, where: str = "") -> None:
        """Accept every budget."""


@register("explorer", AUTO)
@dataclass(frozen=True)
class AutoExplorer(PB2):
    """`PB2` for any run: normal steps where the process has nothing to learn from."""

    def validate(self, population_size: int) -> None:
        """Accept every population."""
