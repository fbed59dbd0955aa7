"""Tournament selection that returns AgileRL's three values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.hpo import selection

__getattr__ = absent_from(__name__)


@dataclass(frozen=True)
class TournamentSelection(selection.TournamentSelection):
    """This package's tournament; with `eval_loop`, an argument of older releases, `select` returns their two values.

    Raises:
        ConfigurationError: `eval_loop` is above 1: the last fitness alone counts.
    """

    eval_loop: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]  # a field that `select` reads

    def __post_init__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride, reportGeneralTypeIssues]  # so
        """Check the sizes."""
        super().__post_init__(1 if self.eval_loop is None else self.eval_loop)

    def select(self, population: Any) -> Any:
        """The elite, the next population, and None: `Mutations.mutation` may mutate all of it."""
        selected = super().select(population)
        return tuple(selected) if self.eval_loop is not None else (*selected, None)
