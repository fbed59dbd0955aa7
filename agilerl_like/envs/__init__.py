"""Vector environments with one step contract for every backend, and probe environments with known answers.

Names are imported on first access, because worker processes use only a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes

if TYPE_CHECKING:
    from agilerl_like.envs.episode_stats import EpisodeTracker, FinishedEpisodes
    from agilerl_like.envs.factory import (
        VecEnvConfig,
        describe_backend,
        evaluation_env,
        make_vect_envs,
        with_num_envs,
    )
    from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, make_multi_agent_vect_envs
    from agilerl_like.envs.probe_envs import PROBES, ExpectedAction, ExpectedValue, Probe
    from agilerl_like.envs.pytree import tree_map
    from agilerl_like.envs.spaces import (
        Leaf,
        ObservationEncoder,
        check_action_space,
        check_observation_space,
        mask_size,
        space_from_json,
        space_to_json,
    )
    from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv
    from agilerl_like.envs.vec_adapter import (
        Transition,
        VecEnvAdapter,
        check_finite,
        check_finite_array,
    )

__all__ = [
    "PROBES",
    "EpisodeTracker",
    "ExpectedAction",
    "ExpectedValue",
    "FinishedEpisodes",
    "Leaf",
    "MultiAgentVectorEnv",
    "ObservationEncoder",
    "Probe",
    "SubprocVectorEnv",
    "Transition",
    "VecEnvAdapter",
    "VecEnvConfig",
    "check_action_space",
    "check_finite",
    "check_finite_array",
    "check_observation_space",
    "describe_backend",
    "evaluation_env",
    "make_multi_agent_vect_envs",
    "make_vect_envs",
    "mask_size",
    "space_from_json",
    "space_to_json",
    "tree_map",
    "with_num_envs",
]

_HOMES = (
    "pytree",
    "subproc.vec_env",
    "factory",
    "probe_envs",
    "spaces",
    "vec_adapter",
    "episode_stats",
    "multi_agent.pettingzoo",
)  # the modules that define these names, cheapest import first: those before "spaces" do not import torch

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _HOMES)
