"""The tiny run of the fault tests, and a digest that shows whether two runs are bit-identical.

A digest knows weights, moments, normalisers, settings, architectures, counters and scores; of a run's folder also who
descended from whom and every number of its metrics but the times. A population in memory and the same one on the disk
have one digest, so a run that was killed can be compared with one that never ended.

`RELIABILITY_TIER=nightly` tries more of everything, and other examples than the last time.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from agilerl_like import (
    PPO,
    HyperparameterConfig,
    Mutations,
    Population,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.reporting import Reporter
from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, SummaryRecord
from agilerl_like.storage.safe_folder import MANIFEST, folder_kind, read_folder

NIGHTLY = os.environ.get("RELIABILITY_TIER", "pr") == "nightly"

MEMBERS, ENVS, GENERATION, GENERATIONS = 4, 4, 1024, 6
SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
RANGES = HyperparameterConfig(
    lr=RLParameter(1e-4, 1e-2),
    gamma=RLParameter(0.9, 0.999),
    ent_coef=RLParameter(1e-4, 1e-1),
    clip_coef=RLParameter(0.1, 0.3),
    learn_step=RLParameter(128, 512, dtype=int),
    batch_size=RLParameter(32, 256, dtype=int, scale="power_of_two"),
    update_epochs=RLParameter(1, 4, dtype=int),
)
SETTINGS = {"learn_step": 256, "batch_size": 64, "update_epochs": 2, "lr": 1e-3}
ALL_KINDS = Mutations(no_mutation=0.1, architecture=0.3, new_layer_prob=0.4, parameters=0.2, activation=0.2, rl_hp=0.2)


def tier(pr: int, nightly: int) -> int:
    """How many there are to be: with the tests, or by night."""
    return nightly if NIGHTLY else pr


def population_for(env: Any, size: int = MEMBERS, **settings: Any) -> Population:
    """A population of the tiny run, whose settings are within its ranges."""
    defaults = {"seed": 0, "num_envs": env.num_envs, "net_config": SMALL, "hp_config": RANGES, **SETTINGS}
    return PPO.population(size, env.single_observation_space, env.single_action_space, **{**defaults, **settings})


def tiny_run(
    population: Population | None = None,
    *,
    seed: int = 0,
    env: Any = "CartPole-v1",
    backend: Any = "sync",
    num_workers: int | None = None,
    generations: int = GENERATIONS,
    generation: int = GENERATION,
    **kwargs: Any,
) -> Population:
    """Train the tiny population, or one that is given, and return it; `kwargs` are `train_on_policy`'s."""
    envs = env
    if isinstance(env, str):
        envs = make_vect_envs(env, num_envs=ENVS, backend=backend, num_workers=num_workers)
    settings = {
        "max_steps": generations * generation,
        "evo_steps": generation,
        "eval_loop": 2,
        "verbose": False,
        "selection_strategy": TournamentSelection(2),
        "mutation": ALL_KINDS,
    }
    with contextlib.closing(envs):
        pop = population_for(envs, seed=seed) if population is None else population
        return train_on_policy(envs, pop=pop, **{**settings, **kwargs})[0]


# -- what a run is, to the last bit


def digest(what: Population | Path | str, folder: str = "") -> str:
    """The digest of a population, of one that was saved, or of a run's folder.

    Of a run's folder it is that of its last population and its best agent (or of `folder` in it, such as a checkpoint),
    of its lineage and of its metrics.
    """
    if isinstance(what, Population):
        return _digest(_state(*what.to_documents()))
    path = Path(what)
    if (path / MANIFEST).is_file():
        return _digest(_state(*read_folder(path, folder_kind(path))))
    saved = {name: digest(path / name) for name in ((folder,) if folder else ("population", "best"))}
    return _digest([*saved.items(), *lineage(path), *metrics(path)])


def member_digest(agent: Any) -> str:
    """The digest of one member, wherever it lives."""
    document, tensors = agent.to_documents()
    return _digest(_state({"agent": document}, {"agent": tensors}))


def lineage(run_dir: Path | str) -> list[Any]:
    """Every birth of a run, as it was written."""
    return [json.loads(line) for line in (Path(run_dir) / "lineage.jsonl").read_text().splitlines()]


def metrics(run_dir: Path | str) -> list[dict[str, str]]:
    """Every row of a run's metrics, without the times."""
    with (Path(run_dir) / "metrics.csv").open(newline="") as table:
        return [
            {name: text for name, text in sorted(row.items()) if not name.startswith("time/")}
            for row in csv.DictReader(table)
        ]


def _state(documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> Iterable[Any]:
    yield from sorted(documents.items())
    for name, named in sorted(tensors.items()):
        for tensor_name, tensor in sorted(named.items()):
            array = tensor.detach().cpu().contiguous()
            yield [name, tensor_name, str(array.dtype), list(array.shape)]
            yield hashlib.sha256(array.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _digest(pieces: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(json.dumps(piece, sort_keys=True).encode() + b"\n")
    return found.hexdigest()


# -- records and files


class Memory(Reporter):
    """Keeps every record."""

    def __init__(self) -> None:
        self.generations: list[GenerationRecord] = []
        self.all_births: list[OffspringRecord] = []
        self.warnings: list[str] = []
        self.summary: SummaryRecord | None = None

    def generation(self, record: GenerationRecord) -> None:
        self.generations.append(record)

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        self.all_births += births

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def finish(self, summary: SummaryRecord) -> None:
        self.summary = summary


def flat(agent: Any) -> np.ndarray:
    """A member's weights in one row, as they are now."""
    return torch.cat([weight.detach().reshape(-1) for weight in agent.network.parameters()]).numpy().copy()


def is_finite(agent: Any) -> bool:
    """Whether every number is one of a member's weights, normalisers and moments."""
    optimizer = agent.optimizer
    numbers = (*agent.network.parameters(), *agent.network.buffers(), optimizer.exp_avg, optimizer.exp_avg_sq)
    return all(bool(torch.isfinite(tensor).all()) for tensor in numbers)


def children() -> set[int]:
    """The processes below this one that live, with all of their descendants."""
    below = psutil.Process().children(recursive=True)
    return {child.pid for child in below if child.is_running() and child.status() != psutil.STATUS_ZOMBIE}


def named_memory() -> set[str]:
    """What lies in shared memory under a name, and so outlives its process."""
    return {path.name for path in Path("/dev/shm").glob("*")}


def descriptors() -> int:
    """How many files are open."""
    return psutil.Process().num_fds()
