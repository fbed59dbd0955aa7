"""The Gaussian process, and PB2 on the moving optimum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from test_gated_selection import PLAIN, mean_best

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    PB2,
    AutoExplorer,
    GaussianSteps,
    Genome,
    History,
    HyperparameterConfig,
    RLParameter,
    Trial,
)
from agilerl_like.hpo.gaussian_process import GaussianProcess
from agilerl_like.hpo.pb2 import is_reliable
from benchmarks.toy_problems import moving_optimum, search, uniform_starts


def test_the_posterior_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    inputs, times, outputs = rng.random((12, 2)), np.arange(12), rng.normal(3, 2, 12)
    process = GaussianProcess(inputs, times, outputs)

    def kernel(a, s, b, t):
        squares = np.sum((a - b) ** 2)
        decay = (1 - process.forgetting) ** (abs(s - t) / 2)
        return (1 - process.noise) * np.exp(-0.5 * squares / process.length**2) * decay

    rows = list(zip(inputs, times, strict=True))
    covariance = np.array([[kernel(a, s, b, t) for b, t in rows] for a, s in rows]) + process.noise * np.eye(12)
    point = np.array([0.3, 0.6])
    across = np.array([kernel(point, 12, b, t) for b, t in rows])
    standardized = np.clip((outputs - outputs.mean()) / outputs.std(), -2, 2)
    mean, spread = process.predict(point[None], np.array([12]))
    assert mean[0] == pytest.approx(outputs.mean() + outputs.std() * across @ np.linalg.solve(covariance, standardized))
    variance = 1 - process.noise - across @ np.linalg.solve(covariance, across)
    assert spread[0] == pytest.approx(outputs.std() * np.sqrt(variance))


def test_noise_and_forgetting_are_found():
    rng = np.random.default_rng(1)
    inputs = rng.random((80, 1))
    smooth = np.sin(6 * inputs[:, 0])
    times = np.repeat(np.arange(10), 8)
    quiet = GaussianProcess(inputs, times, smooth)
    noisy = GaussianProcess(inputs, times, rng.normal(size=80))
    assert (quiet.noise, quiet.forgetting) == (0.02, 0.0)
    assert noisy.noise == 0.8
    drifting = GaussianProcess(inputs, times, np.sin(6 * inputs[:, 0] + 0.6 * times))
    assert drifting.forgetting >= 0.1


def test_pending_rows_lower_the_spread_and_leave_the_mean():
    rng = np.random.default_rng(2)
    inputs = rng.random((20, 2))
    process = GaussianProcess(inputs, np.zeros(20), np.sin(9 * inputs.sum(axis=1)))
    point, now = np.array([[0.5, 0.5]]), np.array([1])
    mean, spread = process.predict(point, now)
    mean_after, spread_after = process.with_pending(point, now).predict(point, now)
    assert mean_after == pytest.approx(mean)
    assert spread_after < 0.9 * spread
    assert process.with_pending(np.empty((0, 2)), np.empty(0)) is process


@pytest.mark.slow
def test_pb2_follows_the_moving_optimum_better_than_normal_steps():
    """The published form, which cannot forget, reaches a median of 37.1 with 8 members; normal steps 36.6 in 4-d."""
    pb2 = PB2(gaussian=0.0)
    toy = moving_optimum()
    assert search(toy, uniform_starts(toy, 8, 0), 40, PLAIN, pb2).best >= 39
    assert mean_best(moving_optimum(4), 8, PLAIN, pb2, seeds=1) > mean_best(moving_optimum(4), 8, PLAIN, seeds=20) + 1


def trials(gain, error, members=4):
    return History(
        tuple(
            Trial(generation, uid, -1, {"x": 0.5}, "", "", 0.0, gain if uid == 0 else 0.0, 1, "", error)
            for generation in (1, 2)
            for uid in range(members)
        )
    )


def test_the_process_is_used_where_gains_exceed_the_noise_or_members_are_many():
    assert is_reliable(trials(4.1, 1.0))
    assert not is_reliable(trials(3.9, 1.0))
    assert is_reliable(trials(3.9, 1.0, members=16))


def test_few_trials_or_a_noisy_fitness_give_normal_steps():
    toy = moving_optimum(2, noise=5.0)
    starts = uniform_starts(toy, 4, 0)
    noisy = search(toy, starts, 12, PLAIN, PB2())
    steps = {one.operators for one in noisy.history.trials}
    assert steps == {"", "rl_hp.gaussian"}
    always = search(toy, starts, 12, PLAIN, PB2(always=True))
    first = min(one.generation for one in always.history.trials if "pb2" in one.operators)
    assert first >= 7  # 20 trials with a fitness before them: five generations after the first


def test_auto_uses_the_process_in_large_populations_alone():
    toy = moving_optimum(2)
    for members, operators in ((8, {"", "rl_hp.gaussian"}), (16, {"", "rl_hp.gaussian", "rl_hp.pb2"})):
        found = search(toy, uniform_starts(toy, members, 0), 12, PLAIN, AutoExplorer(architecture=0.0))
        assert {one.operators for one in found.history.trials} == operators


def test_pb2_stays_within_its_radius():
    toy = moving_optimum(2)
    found = search(toy, uniform_starts(toy, 6, 0), 15, PLAIN, PB2(always=True, gaussian=0.0, radius=0.05))
    by_uid = {one.uid: one for one in found.history.trials}
    moved = [one for one in by_uid.values() if "pb2" in one.operators]
    assert moved
    for one in moved:
        parent = next(t for t in found.history.of(one.parent_uid))
        assert all(abs(one.hyperparameters[x] - parent.hyperparameters[x]) <= 0.05 + 1e-9 for x in ("x0", "x1"))


@pytest.mark.parametrize("explorer", [GaussianSteps, partial(PB2, always=True, gaussian=0.0)])
@pytest.mark.parametrize("architecture", [0.0, 1.0])
def test_an_unchanged_clone_has_no_mutation_of_hyperparameters(layers, explorer, architecture):
    """`repair` undoes every change, so that at most the architecture changes."""
    values = {"x0": 0.5, "x1": 0.5}
    ranges = HyperparameterConfig(x0=RLParameter(0.0, 1.0), x1=RLParameter(0.0, 1.0))
    history = History(tuple(replace(trial, hyperparameters=values) for trial in trials(4.1, 1.0).trials * 4))
    child, changes = explorer(architecture=architecture).propose(
        Genome(values, layers()), history, np.random.default_rng(0), hp_config=ranges, repair=lambda _: values
    )
    assert child.hyperparameters == values
    assert [change.kind for change in changes] == (["architecture"] if architecture else ["none"])
    assert changes[0].label == (changes[0].operator if architecture else "None")


def test_bad_settings_and_a_single_member_are_refused():
    with pytest.raises(ConfigurationError, match="radius=0 must be greater than 0 and at most 1"):
        PB2(radius=0)
    with pytest.raises(ConfigurationError, match="min_trials=1 must be at least 2"):
        PB2(min_trials=1)
    with pytest.raises(ConfigurationError, match="gaussian=2 must be a probability"):
        PB2(gaussian=2)
    with pytest.raises(
        ConfigurationError, match="population_size=1 is too small for mutation 'pb2'; it needs at least 2"
    ):
        PB2().validate(1)
    GaussianSteps().validate(1)
