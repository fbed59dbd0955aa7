"""The env in which an evaluation plays: a copy without training wrappers, where one can be made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeGuard, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from agilerl_like import training
from agilerl_like.algorithms.evaluation import EvalEnv
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.envs.env_errors import env_errors, env_name_of
from agilerl_like.envs.env_ids import EnvSource
from agilerl_like.envs.factory import VecEnvConfig, can_be_made_again, env_config_or_none
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.space_match import check_spaces_match
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.training.env_setup import EnvSetup, SingleAgentEnvSetup, check_separate

EvaluationEnv = str | gymnasium.Env | gymnasium.vector.VectorEnv | EnvSetup | Any
"""An env's id, an env, a vector env (of teams, too), or how to make one."""


@contextlib.contextmanager
def evaluation_env_of(env: EvaluationEnv, num_envs: int, agent: EvolvableAlgorithm) -> Iterator[EvalEnv]:
    """Give the adapter of an env of `num_envs` rows like `env`; of `env` itself if no other can be made.

    Raises:
        ConfigurationError: the agent was made for other spaces.
    """
    with contextlib.ExitStack() as stack:
        setup = setup_of(env, agent)
        if is_source(env):
            stack.callback(setup.env.close)
        check_spaces(setup, agent)
        made = _made_again(setup, num_envs)
        if made is not None:
            stack.callback(made.close)
        yield setup.adapt(setup.env if made is None else made)


def _made_again(setup: EnvSetup, num_envs: int) -> Any:
    """Return a new env like that of a setup; None if it is unknown how that one was made, or the new one steps it."""
    if not can_be_made_again(setup.vec_env):
        return None
    try:
        made = setup.make_eval_env(setup.num_eval_episodes(num_envs))
    except ConfigurationError:
        if env_config_or_none(setup.env) is not None:
            raise
        return None  # a function of the user's own returns the same env for several rows
    try:
        check_separate(setup.env, made)
    except ConfigurationError:
        return None
    return made


def single_env_spec_of(adapter: EvalEnv) -> EnvSpec | None:
    """Return the spec of one env of a vector env, if it can be written as text; of several instances the first's."""
    config, spec = env_config_or_none(adapter.env), getattr(adapter.env, "spec", None)
    if config is not None and isinstance(config.env, str):
        with contextlib.suppress(ConfigurationError, EnvStepError), env_errors(adapter.env, "construction"):
            single = config.single_env_config().single_env_fns()[0]()  # envs of tensors, for example, have none
            spec = single.spec
            single.close()
    if spec is not None and "vectorization_mode" in spec.kwargs:  # of a native vector env
        spec = gymnasium.spec(spec.id)
    try:
        return spec if spec is not None and spec.to_json() else None
    except (TypeError, ValueError):  # arguments that are no plain data
        return None


def setup_of(env: EvaluationEnv, agent: EvolvableAlgorithm) -> EnvSetup:
    """Return the setup of an env; an id or a factory is that of a team's env if the agent is a team."""
    if isinstance(env, EnvSetup):
        return env
    if is_source(env) and isinstance(agent, IPPO):
        return training.MultiAgentEnvSetup(make_multi_agent_vect_envs(env, 1))
    if is_source(env):
        return SingleAgentEnvSetup.from_config(VecEnvConfig(env, 1))
    if isinstance(env, gymnasium.Env):
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        return SingleAgentEnvSetup(gymnasium.vector.SyncVectorEnv([lambda: env], copy=False, autoreset_mode=mode))
    if hasattr(env, "possible_agents"):
        return training.MultiAgentEnvSetup(cast(Any, env))
    return SingleAgentEnvSetup(cast(Any, env))


def is_source(env: EvaluationEnv) -> TypeGuard[EnvSource]:
    """Whether an env is given as an id or a factory, which may be a class."""
    return isinstance(env, str | type) or (callable(env) and not hasattr(env, "reset"))


def check_spaces(setup: EnvSetup, agent: EvolvableAlgorithm, *, name: str = "") -> None:
    """Raise ConfigurationError unless an agent was made for the spaces of an env, which messages call `name`.

    Bounds of observations may differ as in `check_spaces_match`; those of a team may not. Of an env of tensors that
    observes {"policy": …, "critic": …} the policy's entry counts, unless the agent's critic reads the other.
    """
    is_team, (learner, *_) = isinstance(agent, IPPO), agent.learners.values()
    observation_space, action_space = setup.spaces
    if not is_team and not learner.rollout_encoding.is_asymmetric:
        observation_space = setup.adapt(setup.env).single_observation_space
    check_spaces_match(
        f"env={(name or env_name_of(setup.vec_env))!r}",
        (_as_one(observation_space), _as_one(action_space)),
        "the agent",
        (agent.observation_space, agent.action_space),
        reads_bounds=(lambda path: True) if is_team else learner.reads_bounds,
    )


def _as_one(space: Any) -> gymnasium.Space:
    """Return a space, or the dictionary of a multi-agent env's spaces as one."""
    return gymnasium.spaces.Dict(space) if isinstance(space, dict) else space
