"""`evolution="auto"`: the selection and the explorer that need no settings, because they adapt to members and budget.

Each part and the evidence for it (toy problems of `tests/hpo`, which hold the numbers):

- A gate of one standard error of the paired difference: fitness noise costs a search more than any rule of proposal.
- Up to half of the members replaced early, a quarter in the last third of the budget; only clones change.
- All hyperparameters move at once: one at a time is no better than new draws.
- Proposals of a Gaussian process where gains stand out from the noise, normal steps elsewhere.
- Paired env seeds for all members, new ones in each generation; more episodes for members in doubt.
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
