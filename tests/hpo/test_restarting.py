"""Restarts: when a round has failed, what follows, and when no restart is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import PopulationView, RestartingSelection, WeightMix
from agilerl_like.hpo.restarting import has_failed, has_stalled


def run(bests, generations, size=8, patience=3):
    """Return the plans of generations whose best fitness is given; the others follow by steps of 1."""
    state: dict = {}
    plans = []
    for generation, best in enumerate(bests, 1):
        fitness = best - np.arange(float(size))
        view = PopulationView(fitness, range(size), (), generation, generations=generations, state=state)
        plans.append(RestartingSelection(patience=patience).plan(view, np.random.default_rng(0)))
    return plans, state


def is_restart(plan):
    return sum(row.start is not None for row in plan) == len(plan)


def test_rising_fitness_never_restarts():
    plans, state = run(np.arange(20.0), 100)
    assert not any(map(is_restart, plans))
    assert (state["every"], state["fails"]) == (1, 0)


def test_falling_fitness_restarts_and_doubles_the_generations_between_selections():
    plans, state = run([5.0, 4.0, 3.0, 2.0, 1.0, 9.0, 9.0], 100)
    assert [is_restart(plan) for plan in plans] == [False] * 4 + [True, False, False]
    restart = plans[4]
    # the better half are clones of the best quarter, slots 0 and 1 in turn, shrunk; the others are fresh
    assert [(row.weights_from, row.start) for row in restart[:4]] == [
        (source, WeightMix(0.2, 0.1)) for source in (0, 1, 0, 1)
    ]
    assert [row.start for row in restart[4:]] == [WeightMix()] * 4
    assert all(row.explore for row in restart)
    # generation 6 is within the longer round, 7 is its first selection
    assert all(row.weights_from == slot for slot, row in enumerate(plans[5]))
    assert any(row.weights_from != slot for slot, row in enumerate(plans[6]))
    assert (state["every"], state["start"]) == (2, 5)


def test_no_restart_without_time_for_two_longer_rounds():
    plans, state = run([5.0, 4.0, 3.0, 2.0, 1.0], 8)  # three are left, two longer rounds need four
    assert not any(map(is_restart, plans))
    assert state["every"] == 1


@pytest.mark.parametrize(("patience", "least"), [(1, 7), (3, 9), (20, 19)])
def test_the_least_budget_has_time_for_a_restart(patience, least):
    """By failures after `patience` + 2 selections, or by a stall after 15; a restart needs four more generations."""
    for generations, restarts in ((least - 1, 0), (least, 1)):
        plans, _ = run(-np.arange(float(generations - 1)), generations, patience=patience)
        assert sum(map(is_restart, plans)) == restarts
    RestartingSelection(patience=patience).check_budget(least)
    with pytest.raises(ConfigurationError, match=f"at least {least} generations"):
        RestartingSelection(patience=patience).check_budget(least - 1)


def test_failures_and_stalls():
    assert not has_failed([1.0, 0.0])
    assert has_failed([3.0, 2.0, 1.0])
    assert not has_failed([1.0, 2.0, 3.0])
    assert not has_stalled([0.0] * 14)
    assert has_stalled([0.0, 1.0] * 10)
    assert not has_stalled(list(range(20)))


def test_bad_settings_are_refused():
    with pytest.raises(ConfigurationError, match="patience=0 must be a whole number of at least 1"):
        RestartingSelection(patience=0)
    with pytest.raises(ConfigurationError, match="selection 'ipbt' needs a budget of at least 9 generations"):
        RestartingSelection().check_budget(8)
    with pytest.raises(ConfigurationError, match="population_size=1 is too small for selection 'ipbt'"):
        RestartingSelection().validate(1)


def test_members_of_a_restart_are_not_compared_with_those_before():
    """They begin far below the best that was, and rise in each generation, so none of them starts again as stalled."""
    selection, state, restarted = RestartingSelection(patience=3, blend_training=False), {}, []
    fits = [100.0] * 5 + [10.0 + 5 * step for step in range(14)]
    for generation, fitness in enumerate(fits, 1):
        view = PopulationView(
            np.array([fitness - 0.1 * slot for slot in range(8)]), [*range(8)], (), generation, generations=60,
            state=state,
        )  # fmt: skip
        rows = selection.plan(view, np.random.default_rng(generation))
        if any(row.start is not None for row in rows):
            restarted.append(generation)
    assert restarted == [4, 5]  # the worst quarter of a stalled run, and then all
    assert state["stalled"] == 0


def test_no_further_episodes_are_played_in_generations_without_a_selection():
    returns = np.random.default_rng(0).normal(size=(8, 3))  # differences are noise
    selection, doubtful = RestartingSelection(blend_training=False), []
    for generation in (11, 12, 13, 14):
        state = {"start": 10, "every": 4}
        view = PopulationView(returns.mean(axis=1), range(8), (), generation, returns=returns, state=state)
        doubtful.append(len(selection.in_doubt(view)) > 0)
    assert doubtful == [False, False, False, True]
