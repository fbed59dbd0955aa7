"""Metrics of a generation by name, for CSV and all trackers.

`rollout/`, `train/`, `eval/` and `time/` have the names of Stable-Baselines3 (`eval/mean_reward` is the fitness,
`rollout/ep_rew_mean` the return of training episodes). PPO's `train/value_loss` is half the mean squared error, where
Stable-Baselines3 logs the whole, and with `normalize_value` in the units of normalised targets. `hp/`, `member/` and
`population/` are ours; `callback/` has what callbacks track.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import GenerationRecord, MemberRecord


def member_metrics(member: MemberRecord) -> dict[str, float | str]:
    """Return the metrics of one member; a hyperparameter that is no number is text, and inactive ones are left out."""
    return {
        "eval/mean_reward": member.fitness,
        "eval/std_reward": member.fitness_std,
        "eval/episodes": member.episodes,
        **{f"eval/{name}": value for name, value in member.measures.items()},
        "rollout/ep_rew_mean": member.train_return,
        **{f"hp/{name}": _number_or_text(value) for name, value in _active(member).items()},
        **{f"train/{name}": value for name, value in member.losses.items()},
    }


def population_metrics(record: GenerationRecord) -> dict[str, float]:
    """Return the metrics of the whole population.

    `best`, `median` and `worst` are taken over the finite fitnesses of this generation; `best_ever…` describe the best
    agent of the run so far, with its fitness on fresh episodes.
    """
    fitness = [member.fitness for member in record.members if math.isfinite(member.fitness)]
    return {
        "population/best": max(fitness, default=math.nan),
        "population/median": statistics.median(fitness) if fitness else math.nan,
        "population/worst": min(fitness, default=math.nan),
        "population/best_ever": record.best.fitness,
        "population/best_ever_standard_error": record.best.standard_error,
        "population/best_ever_uid": record.best.uid,
        "population/best_ever_generation": record.best.generation,
        "population/target": math.nan if record.target is None else record.target,
        "time/total_timesteps": record.env_steps,
        "time/evaluation_timesteps": record.evaluation_steps,
        "time/time_elapsed": record.seconds,
        "time/fps": record.steps_per_second,
        **{f"time/{part}": seconds for part, seconds in record.seconds_by_part.items()},
        **{f"callback/{tag}": value for tag, value in record.tracked.items()},
    }


def scalars(record: GenerationRecord) -> dict[str, float]:
    """Return every finite number of a generation by tag, members as `member/<slot>/…`."""
    tagged: dict[str, float | str] = dict(population_metrics(record))
    for member in record.members:
        own = {"env_steps": member.env_steps, "uid": member.uid, "parameters": member.parameters}
        for name, value in {**own, **member_metrics(member), **_array_entries(_active(member))}.items():
            tagged[f"member/{member.slot}/{name}"] = value
    numbers = {tag: value for tag, value in tagged.items() if not isinstance(value, str)}
    return {tag: float(value) for tag, value in numbers.items() if math.isfinite(value)}


def entries(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """Return the entries of an array by name: `hp/betas[0]`, `hp/betas[1]`."""
    return {f"{name}[{place}]": value for place, value in enumerate(values)}


def _active(member: MemberRecord) -> dict[str, Any]:
    """Return the hyperparameters whose condition is met."""
    return {name: value for name, value in member.hyperparameters.items() if name not in member.inactive}


def _array_entries(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the hyperparameters that are arrays, which as text could not be drawn as curves."""
    arrays = {name: value for name, value in hyperparameters.items() if isinstance(value, list | tuple)}
    found = (entries(f"hp/{name}", map(_number_or_text, value)) for name, value in arrays.items())
    return {name: entry for its in found for name, entry in its.items()}


def _number_or_text(value: Any) -> float | str:
    """Return a hyperparameter as a number or text; the numbers in the text of a list have all their digits."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(_number_or_text(entry)) for entry in value)}]"
    return value if formatting.is_number(value) else formatting.hyperparameter(value)
