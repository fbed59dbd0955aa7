"""Where agents act: vector environments behind one contract, and tiny worlds with known answers."""

from agilerl_like.envs.probes import PROBES, KnownAction, KnownValue, Probe
from agilerl_like.envs.spaces import (
    ObservationEncoding,
    check_action_space,
    check_observation_space,
    encode,
    flat_size,
    mask_size,
    space_from_json,
    space_to_json,
    tree_map,
)
from agilerl_like.envs.transitions import (
    EpisodeTracker,
    FinishedEpisodes,
    Transition,
    TransitionEnv,
    check_finite,
    check_finite_array,
)
from agilerl_like.envs.vector import EnvRecipe, evaluation_env, make_vect_envs, widen

__all__ = [
    "PROBES",
    "EnvRecipe",
    "EpisodeTracker",
    "FinishedEpisodes",
    "KnownAction",
    "KnownValue",
    "ObservationEncoding",
    "Probe",
    "Transition",
    "TransitionEnv",
    "check_action_space",
    "check_finite",
    "check_finite_array",
    "check_observation_space",
    "encode",
    "evaluation_env",
    "flat_size",
    "make_vect_envs",
    "mask_size",
    "space_from_json",
    "space_to_json",
    "tree_map",
    "widen",
]
