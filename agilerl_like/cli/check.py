"""`agilerl-like check`: find errors of an environment before training in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.cli.output import PROGRAM, write_line
from agilerl_like.config import Config, Draft, load
from agilerl_like.config.bundled import find_config, for_any_environment
from agilerl_like.config.yaml12 import parse_value
from agilerl_like.envs.env_checker import EnvCheck, check_envs
from agilerl_like.envs.factory import TENSOR_BACKENDS
from agilerl_like.envs.multi_agent.packed_env import PackedSpace
from agilerl_like.envs.multi_agent.pettingzoo import is_multi_agent
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.reporting.formatting import number_of
from agilerl_like.yaml_writer import to_yaml

EVAL_STEPS = 1000
"""The suggested `training.eval_steps` for environments whose episodes do not end."""


def check(env: Positional[str], /, write: Path | None = None) -> int:
    """Check an environment: spaces, observations, rewards, masks, seeding, ends of episodes, speed.

    Prints one line per problem with advice; exit code 2 if a problem prevents training.

    Args:
        env: An environment as in `environment.id`, or a configuration (a .yaml file) that contains one. It is
            imported and stepped.
        write: File for a configuration to start from: the settings that `train ENVIRONMENT-ID` has, or, where `env` is
            a file, its environment and algorithm with the settings of any environment.
    """
    config = _config_of(env)
    env_config = config.env_config
    if env_config.backend in ("vector", "envpool", *TENSOR_BACKENDS):
        raise ConfigurationError(f"backend={env_config.backend!r} has no single envs to check; allowed are the others")
    inspection = check_envs(env_config.single_env_fns())
    for finding in inspection.findings:
        write_line(str(finding))
    write_line(_summary(env, inspection))
    if inspection.errors:
        return ExitCode.USAGE
    _suggest(env, config, inspection, write)
    return ExitCode.DONE


def _config_of(env: str) -> Config:
    """The configuration in a file, or one with only an environment."""
    if _is_file(env):
        return load(env)
    algorithm = IPPO.algo if is_multi_agent(env) else PPO.algo
    return Draft({"environment": {"id": env}, "algorithm": {"name": algorithm}}).validate()


def _is_file(env: str) -> bool:
    return env.endswith((".yaml", ".yml"))


def _summary(env: str, inspection: EnvCheck) -> str:
    found = len(inspection.findings) - len(inspection.errors)
    counts = f"{env}: {number_of(len(inspection.errors), 'error')}, {number_of(found, 'warning')}"
    if not inspection.steps_per_second > 0:
        return counts
    longest = f"longest episode {inspection.longest} steps" if inspection.longest else "no episode ended"
    masks = ", with action masks" if inspection.masked else ""
    return f"{counts}; {inspection.steps_per_second:,.0f} steps/s of one env, {longest}{masks}"


def _suggest(env: str, config: Config, inspection: EnvCheck, where: Path | None) -> None:
    """Write a configuration for the env, or print how to get one."""
    if where is None:
        write_line(f"{PROGRAM} check {shlex.quote(env)} --write FILE.yaml writes a configuration to start from")
        return
    text = _suggested(env, config, inspection)
    Draft(parse_value(text, "write").data).validate()
    try:
        with where.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as fault:
        raise ConfigurationError(f"write={str(where)!r} exists; allowed is a new file") from fault
    write_line(f"written: {where}; to train: {PROGRAM} train {shlex.quote(str(where))}")


def _suggested(env: str, config: Config, inspection: EnvCheck) -> str:
    """Return the settings of `train ENVIRONMENT-ID`; of a file the environment and the algorithm's name."""
    if _is_file(env):
        given = config.environment.model_dump(mode="json", exclude_unset=True)
        draft = for_any_environment(given, config.algorithm_class.algo)
    else:
        draft = find_config(env)
    training = draft.data.get("training", {})
    found: dict[str, Any] = {"eval_steps": EVAL_STEPS} if inspection.endless else {}
    found |= {"fitness": "rating"} if inspection.zero_sum else {}
    suggested: dict[str, Any] = {**draft.data, "training": {**found, **training}}
    head = f"# {inspection.observation_space} -> {inspection.action_space}"
    spaces = "# multi-agent" if isinstance(inspection.observation_space, PackedSpace) else head
    return f"{spaces}; {inspection.steps_per_second:,.0f} steps/s of one env\n{to_yaml(suggested)}"
