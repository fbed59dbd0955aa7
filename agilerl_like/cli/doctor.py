"""`agilerl-like doctor`: what this machine has, and how a run would be computed on it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import torch
import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import PROGRAM, write_line
from agilerl_like.config import Config, build
from agilerl_like.config.bundled import find_config
from agilerl_like.envs.factory import describe_backend
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.resources import available_cores, format_bytes
from agilerl_like.storage.run_lock import describe_place
from agilerl_like.training.process_choice import OtherLoad, choose_layout, make_shard_env, sample_shard
from agilerl_like.training.provenance import package_versions

PACKAGES = ("agilerl-like", "torch", "gymnasium", "numpy", "tensordict", "accelerate", "pettingzoo")
EXTRAS = ("envpool", "box2d", "ale-py", "minatar", "minigrid", "mpe2", "matplotlib", "tensorboard", "wandb", "onnx")


def doctor(
    config: Positional[str] = "CartPole-v1",
    /,
    as_json: Annotated[FlagCreatePairsOff[bool], tyro.conf.arg(name="json")] = False,
) -> int:
    """Report versions, cores, GPU, environment speed, and how many processes a run would have, and why.

    Args:
        config: What to train: a YAML file, the name of a bundled configuration, or an environment's id. Its
            environment is imported and stepped, as `train` does.
        as_json: Print one JSON document.
    """
    start = time.perf_counter()
    settings = find_config(config).validate()
    report = {**_machine(), "folders": _folders(settings), **_run(config, settings)}
    report["seconds"] = round(time.perf_counter() - start, 2)
    write_line(json.dumps(report, indent=2) if as_json else _text(report))
    return ExitCode.DONE


def _machine() -> dict[str, Any]:
    load = OtherLoad()
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "versions": {"python": platform.python_version(), **package_versions(PACKAGES)},
        "extras": package_versions(EXTRAS),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": available_cores(),
        "cores_in_use_by_others": round(load.cores(seconds=0.2), 2),
        "memory": psutil.virtual_memory().total,
        "gpus": gpus,
        "cuda": torch.version.cuda,
    }


def _folders(config: Config) -> dict[str, str]:
    """Return the state of the folder of runs and of that of temporary files."""
    return {str(folder): describe_place(folder) for folder in (config.run.dir, Path(tempfile.gettempdir()))}


def _run(name: str, config: Config) -> dict[str, Any]:
    """Return what a run of this configuration would be on this machine."""
    experiment = build(config.with_seed(0))
    with contextlib.ExitStack() as stack:
        stack.callback(experiment.env.close)
        env_setup, population = experiment.env_setup, experiment.population
        members = len(population)
        try:
            env = make_shard_env(stack, env_setup, members)
            sample = sample_shard(env, env_setup, population, members)
        except Exception as error:  # of the env
            raise ConfigurationError(f"config={name!r}: training for a moment failed: {error!r:.300}") from error
        steps = members * env_setup.env.num_envs
        given = config.run.processes, config.run.threads
        choice = choose_layout(env_setup, population, experiment.plan(), processes=given[0], threads=given[1])
        return {
            "run": {
                "config": name,
                "env": config.environment.id,
                "members": members,
                "envs_per_member": env_setup.env.num_envs,
                "env_steps": config.training.max_steps * members,
                "backend": describe_backend(getattr(env, "vector", env)),
                "env_steps_per_second_of_envs_alone": round(steps / sample.env) if sample.env else None,
                "env_steps_per_second_one_process": round(steps / sum(sample)),
                "device": str(population.device),
                "processes": choice.layout.processes,
                "threads": choice.layout.threads,
                "why": choice.reason,
                "measured": {str(layout): round(rate) for layout, rate in choice.rates.items()},
            }
        }


def _text(report: dict[str, Any]) -> str:
    run = report["run"]
    alone = run["env_steps_per_second_of_envs_alone"]
    lines = {
        "versions": ", ".join(f"{name} {its}" for name, its in report["versions"].items()),
        "extras": ", ".join(f"{name} {its}" for name, its in report["extras"].items()) or "none",
        "system": report["system"],
        "cores": f"{report['usable_cores']} usable of {report['cores']}; other programs use "
        f"{report['cores_in_use_by_others']:g} of them now",
        "memory": format_bytes(report["memory"]),
        "gpu": ", ".join(report["gpus"]) or "none",
        "folders": "; ".join(f"{folder}: {state}" for folder, state in report["folders"].items()),
        "environment": f"{run['env']}: {run['members']} members with {run['envs_per_member']} envs each; "
        f"{run['backend']}",
        "speed": f"{alone or 0:,} steps/s of the envs alone, {run['env_steps_per_second_one_process']:,} of the whole "
        "loop in one process",
        "choice": f"{run['processes']} process{'es' * (run['processes'] > 1)}, {run['threads']} "
        f"thread{'s' * (run['threads'] > 1)}, on {run['device']}: {run['why']}",
    }
    width = max(map(len, lines))
    text = "\n".join(f"{name:<{width}}  {line}" for name, line in lines.items())
    took = f"building it and measuring took {report['seconds']:g} s, without the imports"
    return f"{text}\n{PROGRAM} doctor CONFIG looks at another run; {took}"
