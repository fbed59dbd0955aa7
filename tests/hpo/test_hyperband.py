"""Hyperband on slots, and TPE: schedules by hand, and a problem with a known optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    TPE,
    GaussianSteps,
    History,
    HyperbandSelection,
    HyperparameterConfig,
    PopulationView,
    RLParameter,
    Trial,
)
from agilerl_like.hpo.tpe import Density, ranked_jobs
from benchmarks.toy_problems import Toy, search, uniform_starts


def run(selection: HyperbandSelection, fitness_of, slots: int, generations: int):
    """Return the jobs by slot as (first generation, last generation); a job's fitness is `fitness_of(uid, age)`."""
    state: dict = {}
    uids, born, ended, next_uid = list(range(slots)), [1] * slots, [[] for _ in range(slots)], slots
    for generation in range(1, generations):
        ages = [generation - first + 1 for first in born]
        fitness = np.array([fitness_of(uid, age) for uid, age in zip(uids, ages, strict=True)], dtype=float)
        view = PopulationView(fitness, list(uids), (), generation, generations=generations, state=state)
        for slot, row in enumerate(selection.plan(view, np.random.default_rng(0))):
            if row.start is not None:
                ended[slot].append((born[slot], generation))
                uids[slot], born[slot] = next_uid, generation + 1
                next_uid += 1
    return ended


def test_rungs_and_brackets_are_those_of_the_paper():
    selection = HyperbandSelection(eta=3, max_generations=27)
    assert [selection.rungs(bracket, 27) for bracket in range(3)] == [[1, 3, 9], [3, 9], [9]]
    assert selection.num_brackets(27) == 3
    assert HyperbandSelection(brackets=1).num_brackets(27) == 1


def test_successive_halving_keeps_a_third_at_each_rung():
    # the quality of a job is its negative uid: the first are the best
    selection = HyperbandSelection(eta=3, brackets=1)
    ended = run(selection, lambda uid, age: -uid, 9, 10)
    # of nine jobs at the first rung three stay (0, 1, 2), of those one at the second rung (0), which never ends
    assert ended[0] == []
    assert ended[1][0] == ended[2][0] == (1, 3)
    assert all(ended[slot][0] == (1, 1) for slot in range(3, 9))


def test_the_clone_that_replaced_a_diverged_member_is_no_job():
    """Its weights have trained for longer than a job of its age: it starts afresh, and no job is compared with it."""
    state: dict = {}
    selection = HyperbandSelection(eta=3, max_generations=9, brackets=1)
    trials = [Trial(1, uid, -1, {}, "", "", math.nan, 1.0, 1) for uid in range(3)]
    view = PopulationView(
        np.array([5.0, 4.0, 3.0]), range(3), (), 1, History(tuple(trials)), generations=9, state=state
    )
    assert [row.explore for row in selection.plan(view, np.random.default_rng(0))] == [False, True, True]
    trials += [Trial(2, uid, parent, {}, "", "", 1.0, 9.0, 1) for uid, parent in ((0, -1), (3, -1), (7, 0))]
    view = PopulationView(
        np.array([9.0, 1.0, 8.0]), (0, 3, 7), (), 2, History(tuple(trials)), generations=9, state=state
    )
    assert [row.explore for row in selection.plan(view, np.random.default_rng(0))] == [False, True, True]
    assert state["rungs"]["0/1"] == [5.0, 4.0, 3.0, 1.0]


def test_a_rung_keeps_its_newest_results_alone():
    """All of them would exceed the size of a document of a checkpoint, without which a run ends."""
    state = {"rungs": {"0/1": [*map(float, range(10_000))], "0/3": [1.0, 2.0]}}
    view = PopulationView(np.array([9000.0, 100.0]), (0, 1), (), 1, generations=9, state=state)
    rows = HyperbandSelection(brackets=1).plan(view, np.random.default_rng(0))
    assert [row.explore for row in rows] == [False, True]
    assert state["rungs"] == {"0/1": [*map(float, range(9002, 10_000)), 9000.0, 100.0], "0/3": [1.0, 2.0]}
    view = PopulationView(np.array([9300.0, 9700.0]), (2, 3), (), 2, generations=9, state=state)
    rows = HyperbandSelection(brackets=1).plan(view, np.random.default_rng(0))
    assert [row.explore for row in rows] == [True, False]  # of the last 1,002, the best third is above 9,665


@pytest.mark.parametrize("slots", [5, 40])
def test_jobs_are_compared_with_all_results_of_their_rung_until_these_are_many(slots):
    """The rule by hand: a job stays if at most a third of all results so far, itself included, are better."""
    rng, state, before = np.random.default_rng(0), {}, []
    for generation in range(1, 21):
        fitness, first = rng.normal(size=slots), generation * slots
        view = PopulationView(fitness, range(first, first + slots), (), generation, generations=99, state=state)
        rows = HyperbandSelection(brackets=1).plan(view, rng)
        before += fitness.tolist()
        stays = [sum(other > its for other in before) < math.ceil(len(before) / 3) for its in fitness]
        assert [not row.explore for row in rows] == stays


def test_a_job_ends_at_its_length_and_no_job_starts_that_cannot_reach_a_rung():
    ended = run(
        HyperbandSelection(eta=2, min_generations=2, max_generations=4, brackets=1), lambda uid, age: 1.0, 1, 12
    )
    assert ended[0] == [(1, 4), (5, 8)]  # the third would end with the run
    late = run(HyperbandSelection(eta=3, min_generations=3, brackets=1), lambda uid, age: -uid, 3, 5)
    assert late == [[], [], []]  # after generation 3 two are left, a new job needs three
    again = run(HyperbandSelection(eta=3, min_generations=3, brackets=1), lambda uid, age: -uid, 3, 6)
    assert again == [[], [(1, 3)], [(1, 3)]]


def test_a_diverged_job_is_replaced_at_once():
    ended = run(HyperbandSelection(brackets=1), lambda uid, age: math.nan if uid == 1 else 1.0, 2, 4)
    assert ended == [[], [(1, 1)]]


def test_brackets_share_the_jobs():
    state: dict = {}
    view = PopulationView(np.zeros(6), range(6), (), 1, generations=27, state=state)
    HyperbandSelection().plan(view, np.random.default_rng(0))
    assert [state["jobs"][str(uid)][0] for uid in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 1}, "eta=1 must be a whole number of at least 2"),
        ({"brackets": 0}, "brackets=0 must be a whole number of at least 1"),
        ({"min_generations": 4, "max_generations": 4}, "max_generations=4 must be greater than min_generations=4"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        HyperbandSelection(**options)
    with pytest.raises(ConfigurationError, match="needs a budget of at least 6 generations"):
        HyperbandSelection(min_generations=3).check_budget(5)
    HyperbandSelection(min_generations=3).check_budget(6)
    with pytest.raises(ConfigurationError, match="min_jobs=3 must be at least 4"):
        TPE(min_jobs=3)
    with pytest.raises(ConfigurationError, match=r"min_jobs=10\.5 must be a whole number"):
        TPE(min_jobs=10.5)


# -- TPE


def static(dimensions: int = 3) -> Toy:
    """The score nears 1 - 4 times the mean squared distance of the hyperparameters from 0.7, by half a generation."""

    def train(state, hyperparameters, t, rng):
        limit = 1 - 4 * np.mean([(x - 0.7) ** 2 for x in hyperparameters.values()])
        return state + 0.5 * (limit - state)

    ranges = HyperparameterConfig(**{f"x{i}": RLParameter(0.0, 1.0, scale="linear") for i in range(dimensions)})
    return Toy(ranges, float, train, float)


class Uniform(GaussianSteps):
    """The default of `draw`."""


@pytest.mark.parametrize("points", [(0.4, 0.6), (0.0, 0.02), (0.95, 1.0)])
def test_a_density_is_that_of_its_samples(points):
    """In every tenth of [0, 1]; a third of the density is uniform, and is not sampled from."""
    density = Density(np.array(points)[:, None])
    middles = (np.arange(1000) + 0.5)[:, None] / 1000
    kernels = np.exp(density.log(middles)).reshape(10, 100).mean(1) / 10 - 1 / 30
    assert kernels.sum() == pytest.approx(2 / 3, abs=1e-3)
    drawn = density.sample(100_000, np.random.default_rng(0)).ravel()
    shares = np.histogram(drawn, 10, (0.0, 1.0))[0] / len(drawn)
    np.testing.assert_allclose(kernels * 3 / 2, shares, atol=0.006)


def trial(generation, uid, x, fitness, parent_uid=-1, operators=""):
    return Trial(generation, uid, parent_uid, {"x": x}, "", "", math.nan, fitness, 1, operators)


def test_jobs_are_ranked_at_a_common_age_and_stopped_ones_are_worse():
    # jobs 0, 1 and 2 have two generations, 3 was stopped after one, 4 is running and young
    rows = [trial(1, 0, 0.0, 5), trial(1, 1, 0.1, 9), trial(1, 2, 0.2, 7), trial(1, 3, 0.3, 8)]
    rows += [trial(2, 0, 0.0, 9), trial(2, 1, 0.1, math.nan), trial(2, 2, 0.2, 8), trial(2, 4, 0.4, 50)]
    history, ranges = History(tuple(rows)), HyperparameterConfig(x=RLParameter(0.0, 1.0))
    assert ranked_jobs(history, ranges, 3).ravel() == pytest.approx([0.0, 0.2, 0.1, 0.3])
    # at one generation all five count
    assert ranked_jobs(history, ranges, 4).ravel() == pytest.approx([0.4, 0.1, 0.3, 0.2, 0.0])


def test_an_unchanged_clone_is_no_job_of_its_own():
    """Its weights have trained for longer than a job of its age; a clone with hyperparameters of its own is a job."""
    ranges = HyperparameterConfig(x=RLParameter(0.0, 1.0))
    jobs = [trial(1, uid, uid / 20, float(uid)) for uid in range(12)]
    copied, drawn = trial(1, 12, 0.9, 200.0, parent_uid=3), trial(1, 13, 0.8, 100.0, 3, "rl_hp.tpe")
    places = ranked_jobs(History((*jobs, copied, drawn)), ranges, 10).ravel()
    assert places == pytest.approx([0.8, *(uid / 20 for uid in reversed(range(12)))])


def test_jobs_whose_first_rows_the_history_has_dropped_are_not_compared():
    """Jobs of three generations earn 5 in each; one that never ends earns 1.5, and is the worst after three.

    Of 1,728 rows the last 1,024 are left: with 64 slots 16 generations, with 60 slots 17 and four rows. With
    512 slots 8 generations are left, of whose jobs enough are known.
    """
    ranges = HyperparameterConfig(x=RLParameter(0.0, 1.0))
    for slots in (8, 60, 64, 512):
        history = History()
        for generation in range(1, 28):
            first = slots * ((generation - 1) // 3)
            age = (generation - 1) % 3 + 1
            short = [trial(generation, first + slot, 0.9, 5.0 * age) for slot in range(1, slots)]
            history = history.extended([trial(generation, 0, 0.1, 1.5 * generation), *short])
        places = ranked_jobs(history, ranges, 10).ravel().tolist()
        assert 0.1 not in places[:-1]
        assert len(places) > slots
        assert (places[-1] == 0.1) is (slots == 8)


def test_tpe_finds_better_hyperparameters_than_uniform_draws():
    """Equal budgets of 6 slots and 40 generations: the best job's distance from the optimum, over 10 seeds."""

    def best_limit(explorer, seed):
        toy = static()
        found = search(toy, uniform_starts(toy, 6, seed), 40, HyperbandSelection(brackets=1), explorer, seed)
        return max(
            1 - 4 * np.mean([(x - 0.7) ** 2 for x in trial.hyperparameters.values()]) for trial in found.history.trials
        )

    tpe = np.mean([best_limit(TPE(), seed) for seed in range(10)])
    uniform = np.mean([best_limit(Uniform(), seed) for seed in range(10)])
    assert 1 - tpe < 0.7 * (1 - uniform)


def test_hyperband_beats_full_runs_at_equal_budget():
    toy = static()
    jobs = [search(toy, uniform_starts(toy, 6, s), 30, HyperbandSelection(), TPE(), s).best for s in range(10)]
    full = [search(toy, uniform_starts(toy, 6, s), 30, None, TPE(), s).best for s in range(10)]
    assert np.mean(jobs) > np.mean(full) + 0.02
