"""Evolution as decisions about plain data: what may change, who is chosen, and what each child is like.

Nothing here touches a tensor. The result of a generation is a tuple of `Offspring` records, which other floors carry out.
"""

from agilerl_like.hpo.evolution import next_generation, pre_training_mutations
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.genome import Architecture, Genome, Mutation, Offspring
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, RLParameter
from agilerl_like.hpo.mutation import Mutations
from agilerl_like.hpo.selection import Selection, TournamentSelection, TruncationSelection

__all__ = [
    "Architecture",
    "Offspring",
    "FrozenMapping",
    "Genome",
    "HyperparameterConfig",
    "Mutation",
    "Mutations",
    "RLParameter",
    "Selection",
    "TournamentSelection",
    "TruncationSelection",
    "pre_training_mutations",
    "next_generation",
]
