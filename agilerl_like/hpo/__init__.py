"""Evolution as decisions about plain data: what may change, who is chosen, and what each child is like.

Nothing here touches a tensor. The result of a generation is a tuple of `Birth` records, which other floors carry out.
"""

from agilerl_like.hpo.evolution import first_generation, next_generation
from agilerl_like.hpo.frozen import FrozenMapping
from agilerl_like.hpo.genome import Architecture, Birth, Genome, Mutation
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, RLParameter
from agilerl_like.hpo.mutation import Mutations
from agilerl_like.hpo.selection import Selection, TournamentSelection, TruncationSelection

__all__ = [
    "Architecture",
    "Birth",
    "FrozenMapping",
    "Genome",
    "HyperparameterConfig",
    "Mutation",
    "Mutations",
    "RLParameter",
    "Selection",
    "TournamentSelection",
    "TruncationSelection",
    "first_generation",
    "next_generation",
]
