"""Typed configurations of runs, from YAML files and the command line.

`load` reads and validates, `build` makes the environments and the population, `check_resume_changes` is for resumed
runs, `check_trust` for run folders that may come from anyone.
"""

from agilerl_like.config.loader import Draft, load
from agilerl_like.config.multi_agent import (
    MultiAgentAlgorithmConfig,
    MultiAgentConfig,
    MultiAgentEnvironmentConfig,
    MultiAgentNetworkConfig,
)
from agilerl_like.config.resume_rules import check_resume_changes
from agilerl_like.config.run_config import Config, Experiment, InconsistentSettings, build
from agilerl_like.config.schema import (
    AlgorithmConfig,
    EnvironmentConfig,
    MLPConfig,
    MutationConfig,
    NetworkConfig,
    PopulationConfig,
    RangeConfig,
    RunConfig,
    Section,
    SelectionConfig,
    TrainingConfig,
)
from agilerl_like.config.trust import TRUST, check_trust, trust_notes, trust_option, untrusted_import_paths

__all__ = [
    "TRUST",
    "AlgorithmConfig",
    "Config",
    "Draft",
    "EnvironmentConfig",
    "Experiment",
    "InconsistentSettings",
    "MLPConfig",
    "MultiAgentAlgorithmConfig",
    "MultiAgentConfig",
    "MultiAgentEnvironmentConfig",
    "MultiAgentNetworkConfig",
    "MutationConfig",
    "NetworkConfig",
    "PopulationConfig",
    "RangeConfig",
    "RunConfig",
    "Section",
    "SelectionConfig",
    "TrainingConfig",
    "build",
    "check_resume_changes",
    "check_trust",
    "load",
    "trust_notes",
    "trust_option",
    "untrusted_import_paths",
]
