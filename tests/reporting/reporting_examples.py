"""Records of a small made-up run, with round numbers so that every expected text can be written down by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from agilerl_like.reporting import (
    NO_PARENT,
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    RunRecord,
    SummaryRecord,
    fittest,
)
from agilerl_like.reporting.report import write_report
from agilerl_like.reporting.run_history import read_history


def a_run(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "name": "lander",
        "env": "LunarLander-v3",
        "algorithm": "PPO",
        "population_size": 2,
        "num_envs": 16,
        "seed": 7,
        "max_env_steps": 1_000_000,
        "target": 200.0,
        "settings": {"lr": 1e-3},
    }
    return RunRecord(**{**values, **changes})


def a_member(**changes: Any) -> MemberRecord:
    values: dict[str, Any] = {
        "slot": 0,
        "uid": 0,
        "parent_uid": NO_PARENT,
        "env_steps": 50_000,
        "fitness": 100.0,
        "fitness_std": 10.0,
        "standard_error": 2.0,
        "episodes": 5,
        "train_return": 90.0,
        "hyperparameters": {"lr": 1e-3, "batch_size": 64},
        "architecture": "enc 64 | head 64 Tanh",
        "parameters": 12_345,
        "mutation": "None",
        "losses": {"value_loss": 0.5},
    }
    return MemberRecord(**{**values, **changes})


def a_best(**changes: Any) -> BestRecord:
    member = vars(a_member())
    return BestRecord(**{**member, "generation": 1, **changes})


def a_generation(*members: MemberRecord, number: int = 1, **changes: Any) -> GenerationRecord:
    values: dict[str, Any] = {
        "generation": number,
        "env_steps": 100_000 * number,
        "evaluation_steps": 2_000 * number,
        "max_env_steps": 1_000_000,
        "seconds": 10.0 * number,
        "steps_per_second": 9_876.0,
        "seconds_by_part": {"env": 4.0 * number, "learn": 6.0 * number},
        "members": members,
        "best": a_best(**vars(fittest(members)), generation=number),
        "target": 200.0,
    }
    return GenerationRecord(**{**values, **changes})


def a_birth(**changes: Any) -> OffspringRecord:
    values: dict[str, Any] = {
        "generation": 1,
        "slot": 1,
        "uid": 2,
        "parent_uid": 0,
        "survives": False,
        "mutations": ({"kind": "rl_hp", "operator": "", "details": {"lr": [1e-3, 1.2e-3]}},),
        "hyperparameters": {"lr": 1.2e-3, "batch_size": 64},
        "architecture": "enc 64 | head 64 Tanh",
        "parent_hyperparameters": {"lr": 1e-3, "batch_size": 64},
        "parent_architecture": "enc 64 | head 64 Tanh",
        "parent_fitness": 100.0,
    }
    return OffspringRecord(**{**values, **changes})


def report_of(folder: Path) -> Path:
    """Write the report of a run to its folder."""
    return write_report([read_history(folder)], folder / "report.html")


def a_founder(uid: int = 0) -> OffspringRecord:
    return a_birth(
        generation=0,
        slot=uid,
        uid=uid,
        parent_uid=NO_PARENT,
        mutations=(),
        parent_hyperparameters={},
        parent_architecture="",
        parent_fitness=math.nan,
    )


def a_summary(**changes: Any) -> SummaryRecord:
    values: dict[str, Any] = {
        "reason": "target reached",
        "best": a_best(
            uid=2, slot=1, parent_uid=0, fitness=205.0, episodes=20, hyperparameters={"lr": 1.2e-3, "batch_size": 64}
        ),
        "ancestry": (a_founder(), a_birth()),
        "env_steps": 200_000,
        "evaluation_steps": 4_000,
        "seconds": 20.0,
        "seconds_by_part": {"env": 8.0, "learn": 12.0},
    }
    return SummaryRecord(**{**values, **changes})
