"""Evolution as decisions about plain data: what may change, which members are selected, how their offspring differ.

No module here touches a tensor. A generation's result is a tuple of `Offspring` records, which the algorithms apply to
weights.
"""

from agilerl_like.hpo.auto import AUTO, AutoExplorer, AutoSelection
from agilerl_like.hpo.bandit import BanditMutations
from agilerl_like.hpo.choice import Bool, Choice
from agilerl_like.hpo.evolution import clone_of_best, next_generation, pre_training_mutations
from agilerl_like.hpo.explorer import Explorer, with_hyperparameters
from agilerl_like.hpo.factor_steps import FactorSteps
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.gated_selection import GatedSelection
from agilerl_like.hpo.gaussian_steps import GaussianSteps
from agilerl_like.hpo.genome import Architecture, Genome, Mutation, Offspring, WeightMix
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperband import HyperbandSelection
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, NumberArray, Parameter, RLParameter
from agilerl_like.hpo.multi_frequency import MultiFrequencySelection
from agilerl_like.hpo.mutation import Mutations
from agilerl_like.hpo.optuna_steps import OptunaExplorer
from agilerl_like.hpo.pb2 import PB2
from agilerl_like.hpo.restarting import RestartingSelection
from agilerl_like.hpo.selection import (
    PopulationView,
    Selection,
    SlotForBest,
    SlotPlan,
    TournamentSelection,
    TruncationSelection,
    ranking,
)
from agilerl_like.hpo.tpe import TPE

__all__ = [
    "AUTO",
    "PB2",
    "TPE",
    "Architecture",
    "AutoExplorer",
    "AutoSelection",
    "BanditMutations",
    "Bool",
    "Choice",
    "Explorer",
    "FactorSteps",
    "FrozenMapping",
    "GatedSelection",
    "GaussianSteps",
    "Genome",
    "History",
    "HyperbandSelection",
    "HyperparameterConfig",
    "MultiFrequencySelection",
    "Mutation",
    "Mutations",
    "NumberArray",
    "Offspring",
    "OptunaExplorer",
    "Parameter",
    "PopulationView",
    "RLParameter",
    "RestartingSelection",
    "Selection",
    "SlotForBest",
    "SlotPlan",
    "TournamentSelection",
    "Trial",
    "TruncationSelection",
    "WeightMix",
    "clone_of_best",
    "next_generation",
    "pre_training_mutations",
    "ranking",
    "with_hyperparameters",
]
