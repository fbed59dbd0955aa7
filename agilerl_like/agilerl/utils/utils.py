"""Helpers of AgileRL's scripts: environments, populations, selection and mutation in one call, and printing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import gymnasium
import numpy as np

from agilerl_like.agilerl.absent import REASONS, absent_from
from agilerl_like.agilerl.algorithms import DQN, IPPO, PPO, RecurrentPPO
from agilerl_like.agilerl.utils.algo_utils import observation_space_channels_to_first
from agilerl_like.envs import make_multi_agent_vect_envs
from agilerl_like.envs import make_vect_envs as make_envs
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError, check_argument_names, unknown_name
from agilerl_like.foreign_settings.agilerl import LEARN_STEP
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.selection import best_of

__all__ = [
    "calculate_vectorized_scores",
    "create_population",
    "make_multi_agent_vect_envs",
    "make_skill_vect_envs",
    "make_vect_envs",
    "observation_space_channels_to_first",
    "print_hyperparams",
    "run_selection_and_mutation",
    "save_population_checkpoint",
    "tournament_selection_and_mutation",
]

__getattr__ = absent_from(__name__)

ALGORITHMS = {"DQN": DQN, "PPO": PPO, "RecurrentPPO": RecurrentPPO, "IPPO": IPPO}
IGNORED = (
    "ALGO", "ENV_NAME", "NUM_ENVS", "CHANNELS_LAST", "DISCRETE_ACTIONS", "N_AGENTS",
    "POP_SIZE", "POPULATION_SIZE", "TOURN_SIZE", "ELITISM", "WANDB", "TORCH_COMPILE",
    "MAX_STEPS", "EVO_STEPS", "EVAL_STEPS", "EVAL_LOOP", "TARGET_SCORE", "EPISODES", "EVO_EPOCHS",
    "MEMORY_SIZE", "LEARNING_DELAY", "EPS_START", "EPS_END", "EPS_DECAY", "N_STEP", "PER",
    "ALPHA", "BETA", "PRIOR_EPS", "NUM_ATOMS", "V_MIN", "V_MAX", "TORCH_COMPILER",
)  # fmt: skip
"""Keys of INIT_HP in AgileRL's scripts that the script or the training loop reads, not the algorithm."""


def make_vect_envs(
    env_name: str | None = None,
    num_envs: int = 1,
    *,
    make_env: Callable[..., Any] | None = None,
    should_async_vector: bool | None = None,
    extra_wrappers: Sequence[Any] | None = None,
    **env_kwargs: Any,
) -> gymnasium.vector.VectorEnv:
    """`num_envs` copies of an environment; `extra_wrappers` go around each of them, the first inside.

    `should_async_vector` left out leaves the choice to this package, which takes the fastest.
    """
    return make_envs(
        env_name,
        num_envs,
        make_env=make_env,
        should_async_vector=should_async_vector,
        wrappers=tuple(extra_wrappers or ()),
        env_kwargs=env_kwargs,
    )


def make_skill_vect_envs(env_name: str, skill: Callable[..., Any], num_envs: int = 1) -> gymnasium.vector.VectorEnv:
    """Copies of an environment inside a `Skill`, which rewrites their reward."""
    return make_envs(env_name, num_envs, wrappers=(skill,))


@check_argument_names
def create_population(
    algo: str,
    net_config: Mapping[str, Any] | None = None,
    INIT_HP: Mapping[str, Any] | None = None,  # noqa: N803  # AgileRL's name
    observation_space: Any = None,
    action_space: Any = None,
    hp_config: HyperparameterConfig | None = None,
    actor_network: Any = None,
    critic_network: Any = None,
    agent_wrapper: Callable[..., Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    population_size: int = 1,
    num_envs: int = 1,
    device: Any = "cpu",
    accelerator: Any = None,
    torch_compiler: str | None = None,
    algo_kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """A list of agents, whose settings are the upper-case keys of `INIT_HP`, and `algo_kwargs`.

    The text "None" is None in `INIT_HP` and `net_config`: YAML files of AgileRL have it, which `yaml.safe_load` reads
    as text. `torch_compiler` has no effect.

    Raises:
        ConfigurationError: `algo` is none of `ALGORITHMS`; an argument or a key of `INIT_HP` is unknown; or
            `net_config` or `INIT_HP` is no mapping, as where arguments are in the order of another release.
    """
    for name, value in (("net_config", net_config), ("INIT_HP", INIT_HP)):
        if not isinstance(value, Mapping | None):
            raise ConfigurationError(
                f"{name}={value!r:.100}; allowed are None and a mapping: releases of AgileRL differ in the order of "
                "arguments, so pass them by name"
            )
    if algo not in ALGORITHMS:
        if (reason := REASONS.get(str(algo).replace(" ", ""))) is not None:
            raise ConfigurationError(f"algo={algo!r} is not available: {reason}")
        raise unknown_name("algo", algo, ALGORITHMS)
    kind = ALGORITHMS[algo]
    known = {key: _without_none_as_text(value) for key, value in (INIT_HP or {}).items() if key not in IGNORED}
    settings: dict[str, Any] = {
        **({"learn_step": LEARN_STEP} if kind in (PPO, IPPO) else {}),
        **{key.lower(): value for key, value in known.items()},
        "num_envs": num_envs,
        **(algo_kwargs or {}),
    }
    networks = {"actor_network": actor_network, "critic_network": critic_network}
    if kind is IPPO:
        networks = {f"{name}s": network for name, network in networks.items()}
    if kind is DQN:
        networks = {"actor_network": actor_network}
    return kind.population(
        population_size,
        observation_space,
        action_space,
        device,
        agent_wrapper,
        wrapper_kwargs,
        hp_config=hp_config,
        net_config=None if net_config is None else tree_map(_without_none_as_text, net_config),
        accelerator=accelerator,
        **networks,
        **settings,
    )


def _without_none_as_text(value: Any) -> Any:
    return None if isinstance(value, str) and value == "None" else value


def run_selection_and_mutation(
    selection_strategy: Any,
    population: Any,
    mutation: Any,
    env_name: str,
    algo: str | None = None,
    elite_path: str | None = None,
    save_elite: bool = False,
    accelerator: Any = None,
    language_model: bool | None = False,
) -> Any:
    """Select parents, mutate the members that selection lets change, and save the elite if `save_elite` is set.

    Without a selection strategy the population stays as it is, and the elite is the agent with the highest last
    fitness. It is saved as `elite_file` has it. `accelerator` and `language_model` have no effect.

    Raises:
        ConfigurationError: an agent has no fitness.
    """
    selected = None if selection_strategy is None else selection_strategy.select(population)
    if save_elite:
        elite = best_of([*population]) if selected is None else selected[0]
        elite.save_checkpoint(elite_file(elite_path, env_name, algo or elite.algo))
    if selected is None:
        return population
    _, population, *indices = selected
    return mutation.mutation(population, indices=indices[0] if indices else None)


def elite_file(elite_path: str | os.PathLike[str] | None, env_name: str, algo: str) -> str:
    """Return where AgileRL saves an elite: `elite_path`, or a name of env and algorithm, with ".pt" once at its end."""
    return f"{os.fspath(elite_path or f'{env_name}-elite_{algo}').removesuffix('.pt')}.pt"


def tournament_selection_and_mutation(
    population: Any,
    tournament: Any,
    mutation: Any,
    env_name: str,
    algo: str | None = None,
    elite_path: str | None = None,
    save_elite: bool = False,
    accelerator: Any = None,
    language_model: bool | None = False,
) -> Any:
    """`run_selection_and_mutation` in the older order; `accelerator` and `language_model` have no effect."""
    return run_selection_and_mutation(tournament, population, mutation, env_name, algo, elite_path, save_elite)


def save_population_checkpoint(
    population: Sequence[Any], save_path: str, overwrite_checkpoints: bool, accelerator: Any = None
) -> None:
    """Save each agent to a folder of its own: `save_path`, its place, its steps unless overwritten, and ".pt".

    `accelerator` has no effect.
    """
    for place, agent in enumerate(population):
        steps = "" if overwrite_checkpoints else f"_{int(np.ravel(agent.steps)[-1])}"
        agent.save_checkpoint(f"{save_path}_{place}{steps}.pt")


def print_hyperparams(pop: Sequence[Any]) -> None:
    """Print a line for each agent: its index, mean and last fitness, and what evolution may change."""
    for agent in pop:
        tested = [float(np.sum(score)) for score in agent.fitness]
        fitness = f"{np.mean(tested[-5:]):.2f}" if tested else "not tested"
        changing = ", ".join(f"{name}={_short(value)}" for name, value in agent.hyperparameters.items())
        sys.stdout.write(
            f"agent {agent.index}: mean fitness of the last 5 tests {fitness}; {changing}; mutation {agent.mut}\n"
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, Real) and not isinstance(value, bool) else str(value)


def calculate_vectorized_scores(
    rewards: np.ndarray,
    terminations: np.ndarray,
    include_unterminated: bool = False,
    only_first_episode: bool = True,
) -> list[float]:
    """Scores of the episodes in rewards `[envs, steps]`, which end where `terminations` is True.

    An environment in which no episode ended counts as one episode; of the others the unfinished one counts if
    `include_unterminated`.

    Raises:
        ConfigurationError: the arrays are of unequal shape.
    """
    if np.shape(rewards) != np.shape(terminations):
        raise ConfigurationError(
            f"rewards {np.shape(rewards)} and terminations {np.shape(terminations)} differ in shape"
        )
    scores: list[float] = []
    for earned, ends in zip(np.asarray(rewards), np.asarray(terminations, np.bool_), strict=True):
        stops = (np.flatnonzero(ends) + 1).tolist()
        episodes = [float(part.sum()) for part in np.split(earned, stops) if len(part)]
        found = episodes if include_unterminated or not stops else episodes[: len(stops)]
        scores += found[:1] if only_first_episode else found
    return scores
