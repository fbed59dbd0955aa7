"""The fitness of a member from its episodes, which may be on several instances of an env."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.factory import env_config_or_none


class Summary(NamedTuple):
    """Mean, standard deviation (`ddof` 0) and standard error of episodes; both nan of fewer than two."""

    mean: float
    spread: float
    error: float


def summarise_episodes(scores: Sequence[float], instances: int = 1, aggregate: str = "mean") -> Summary:
    """Return the summary of a member's episodes, of which number i is of instance i modulo `instances`.

    "mean" is over all episodes; "min" and "median" are over the means on the instances, and the summary is then that of
    the instances chosen. Episodes that are nan do not count.
    """
    if aggregate == "mean" or instances == 1:
        played = np.array([score for score in scores if math.isfinite(score)])
        mean = float(played.mean()) if len(played) else math.nan
        if len(played) < 2:
            return Summary(mean, math.nan, math.nan)
        return Summary(mean, float(played.std()), float(played.std(ddof=1) / math.sqrt(len(played))))
    return summarise_instances(each_instance(scores, instances), aggregate)


def each_instance(scores: Sequence[float], instances: int) -> list[Summary]:
    """Return the summary of a member's episodes on each instance."""
    return [summarise_episodes(scores[i::instances]) for i in range(instances)]


def summarise_instances(by_instance: Sequence[Summary], aggregate: str) -> Summary:
    """Return the summary of the instances that decide the fitness; nan if the mean of any is nan."""
    if any(math.isnan(one.mean) for one in by_instance):
        return Summary(math.nan, math.nan, math.nan)
    chosen = [by_instance[i] for i in deciding_instances([one.mean for one in by_instance], aggregate)]
    mean, spread = (float(np.mean([getattr(one, name) for one in chosen])) for name in ("mean", "spread"))
    return Summary(mean, spread, math.sqrt(sum(one.error**2 for one in chosen)) / len(chosen))


def deciding_instances(means: Sequence[float], aggregate: str) -> list[int]:
    """Return the instances whose mean is the fitness: that of the lowest mean, or the one or two in the middle."""
    ordered, middle = sorted(range(len(means)), key=means.__getitem__), (len(means) - 1) // 2
    return ordered[:1] if aggregate == "min" else ordered[middle : len(means) - middle]


def tested_fitness(played: Episodes, env: Any) -> float:
    """Return the fitness of the first member from its episodes in an env: their mean, or the `aggregate` of the env."""
    config = env_config_or_none(env)
    if config is None or config.aggregate == "mean":
        return float(played.mean[0])
    returns = np.where(played.lost, np.nan, played.returns)[0]
    return summarise_episodes(returns.tolist(), num_instances(env), config.aggregate).mean
