"""Mutation by hand with AgileRL's signature: all weights are given, and the elite is mutated unless turned off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import mutation as ours

__getattr__ = absent_from(__name__)


def Mutations(  # noqa: N802  # AgileRL's name
    no_mutation: float,
    architecture: float,
    new_layer_prob: float,
    parameters: float,
    activation: float,
    rl_hp: float,
    mutation_sd: float | None = None,
    dormant_threshold: float = 0.01,
    activation_selection: Sequence[str] | None = None,
    mutate_elite: bool = True,
    rand_seed: int | None = None,
    device: Any = "cpu",
    accelerator: Any = None,
) -> ByHand:
    """This package's mutations; `dormant_threshold` has nothing to do, for dormant units are not drawn again.

    `mutate_elite` counts for mutation by hand; train_on_policy never mutates the elite. `mutation_sd` left out is this
    package's default, which bounds the noise by what it changes.
    """
    given: dict[str, Any] = {} if mutation_sd is None else {"mutation_sd": mutation_sd}
    if activation_selection is not None:
        given["activation_selection"] = tuple(activation_selection)
    return ByHand(
        no_mutation,
        architecture,
        new_layer_prob,
        parameters,
        activation,
        rl_hp,
        rand_seed=rand_seed,
        device=device,
        accelerator=accelerator,
        spares_elite=not mutate_elite,
        **given,
    )


@dataclass(frozen=True)
class ByHand(ours.Mutations):
    """Mutations of a list of agents, of which some may be chosen by their `index`."""

    spares_elite: bool = False

    def mutation(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's has one more
        self, population: Any, pre_training_mut: bool = False, indices: Sequence[int] | None = None
    ) -> Any:
        """Mutate the agents whose `index` is in `indices`, or all of them if it is left out; return the population.

        The elite, the first agent, is left out if `mutate_elite` is False and there are no `indices`.

        Raises:
            ConfigurationError: no agent has one of the indices.
        """
        known = [agent.index for agent in population]
        for index in indices or ():
            if index not in known:
                raise ConfigurationError(f"indices={list(indices or ())!r} has {index!r}; allowed are {known}")
        if indices is None:
            chosen = [*population][1 if self.spares_elite else 0 :]
        else:
            chosen = [agent for agent in population if agent.index in indices]
        for agent in chosen:
            agent.mutate(self, self.manual_rng, pre_training=pre_training_mut)
        return population
