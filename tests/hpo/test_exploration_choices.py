"""Exploration failures: members that earn as much as a constant policy begin again, with more noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agilerl_like.hpo import (
    AutoExplorer,
    AutoSelection,
    Choice,
    Genome,
    HyperparameterConfig,
    PopulationView,
    RLParameter,
    Selection,
    SlotPlan,
    WeightMix,
    next_generation,
)
from agilerl_like.hpo.auto import is_constant

RANGES = HyperparameterConfig(
    lr=RLParameter(1e-5, 1e-2),
    action_std_init=RLParameter(-2.0, 0.5, scale="linear"),
    action_noise_correlation=RLParameter(0.0, 0.9, scale="linear"),
    ent_coef=Choice([0.0, 0.01]),
)
GENOME = {"lr": 1e-3, "action_std_init": -2.0, "action_noise_correlation": 0.0, "ent_coef": 0.0}


def view_of(fitness, state, uids=None, noise=0.0, generation=5) -> PopulationView:
    rng = np.random.default_rng(0)
    returns = np.array(fitness)[:, None] + noise * rng.normal(size=(len(fitness), 5))
    uids = range(len(fitness)) if uids is None else uids
    return PopulationView(
        returns.mean(axis=1), list(uids), (), generation, returns=returns, generations=20, state=state
    )


def restarted(view: PopulationView) -> list[int]:
    rows = AutoSelection().plan(view, np.random.default_rng(0))
    starts = [slot for slot, row in enumerate(rows) if row.wider]
    assert all(rows[slot] == SlotPlan(slot, slot, True, WeightMix(), wider=True) for slot in starts)
    return starts


STANDING = [-0.3, -0.2, -0.01, -0.4, -0.5, -0.6, -0.7, -0.8]  # as MountainCarContinuous, where a force of 1 earns -99.9


def test_the_older_half_begins_again_in_every_second_generation_without_the_best_and_has_time_to_learn() -> None:
    state = {"baseline": [0.0, 99.9]}
    uids = [11, 3, 2, 7, 20, 21, 22, 5]
    found = [restarted(view_of(STANDING, state, uids, generation=generation)) for generation in range(5, 13)]
    older, younger = [0, 1, 3, 7], [4, 5, 6]  # uids 3, 5, 7 and 11; slot 2 is the best
    assert found == [[], older, [], younger, [], [], [], older]  # none within four generations of its start


def test_no_further_episodes_are_played_while_the_best_earns_what_a_constant_policy_does() -> None:
    state = {"warms_up": False}
    view = view_of(STANDING, state, noise=0.3, generation=12)
    assert len(AutoSelection().in_doubt(view)) > 2
    assert list(AutoSelection().in_doubt(replace(view, state=state | {"baseline": [0.0, 99.9]}))) == []


@pytest.mark.parametrize(
    ("fitness", "baseline", "noise"),
    [
        ([30.0, *STANDING[1:]], [0.0, 99.9], 0.0),  # one has found it
        ([-200.0, -250.0, -300.0, -400.0], [-130.0, 400.0], 20.0),  # worse than doing nothing, but still learning
        (STANDING, [float("nan"), 1.0], 0.0),
        ([12.0, 20.0, 15.0, 30.0], [9.4, 3.0], 0.5),
    ],
)
def test_members_that_differ_from_a_constant_policy_are_left_alone(fitness, baseline, noise) -> None:
    state = {"baseline": baseline}
    assert [restarted(view_of(fitness, state, noise=noise)) for _ in range(4)] == [[]] * 4


@pytest.mark.parametrize(
    ("returns", "baseline"),
    [
        ([320.0, 320.0, -135.0, -135.0, 0.0], [-146.0, 1227.0]),  # LunarLander: two standard errors are 203
        ([-400.0, -500.0, -500.0, -500.0], [-500.0, 0.0]),  # Acrobot, which all constant policies fail at
    ],
)
def test_success_in_some_episodes_is_not_that_of_a_constant_policy(returns, baseline) -> None:
    found = np.array([returns, [min(returns)] * len(returns)])
    state = {"baseline": baseline}
    view = PopulationView(found.mean(axis=1), [0, 1], (), 5, returns=found, generations=20, state=state)
    assert not is_constant(view)


def test_members_that_earn_more_in_training_replace_others_and_are_kept() -> None:
    # greedy they stand still, and with noise slots 1 and 6 have reached the flag
    nan = float("nan")
    view = replace(
        view_of(STANDING, {"baseline": [0.0, 99.9]}), train_returns=[nan, 80.0, nan, -30.0, nan, nan, 90.0, 2.0]
    )
    rows = AutoSelection().plan(view, np.random.default_rng(0))
    assert [row.weights_from for row in rows] == [6, 1, 2, 1, 4, 5, 6, 7]  # of the oldest, two are clones of 6 and 1
    assert [slot for slot, row in enumerate(rows) if row.explore] == [0, 2, 3, 4]
    assert [slot for slot, row in enumerate(rows) if row.wider] == [2, 4]  # and two are fresh


def generations_until_one_learns(seed: int, parts: int = 1) -> int:
    """Return when a member first earns more than nothing, where initial members cannot learn; the last if none does.

    As Acrobot from a learning rate that saturates the networks: clones of such members learn nothing, a third of the
    fresh ones do, in their fourth generation, and one training return in five exceeds the others by luck. With `parts`
    the same budget has that many times 20 generations, and a member needs as many more of them.
    """
    rng, last = np.random.default_rng(seed), 20 * parts
    can_learn, ages, uids, state = [False] * 8, [2 * parts] * 8, [*range(8)], {"baseline": [-500.0, 0.0]}
    for generation in range(2 * parts + 1, last):
        ages = [age + 1 for age in ages]
        fitness = [-100.0 if able and age > 3 * parts else -500.0 for able, age in zip(can_learn, ages, strict=True)]
        if max(fitness) > -500:
            return generation
        luck = np.where(rng.random(8) < 0.2, rng.uniform(1, 60, 8), 0.0)
        view = view_of(fitness, state, uids, generation=generation)
        view = replace(view, train_returns=-500 + luck, generations=last)
        for slot, row in enumerate(AutoSelection().plan(view, rng)):
            if row.start is not None:
                can_learn[slot], ages[slot], uids[slot] = bool(rng.random() < 1 / 3), 0, max(uids) + 1
            elif row.weights_from != slot:
                source = row.weights_from
                can_learn[slot], ages[slot], uids[slot] = can_learn[source], ages[source], max(uids) + 1
    return last


def test_luck_in_training_does_not_keep_out_fresh_members() -> None:
    found = [generations_until_one_learns(seed) for seed in range(20)]
    assert np.median(found) <= 10
    assert sum(generation < 20 for generation in found) >= 18


def test_fresh_members_have_a_share_of_the_budget_to_learn_however_short_generations_are() -> None:
    found = [generations_until_one_learns(seed, parts=3) for seed in range(20)]
    assert sum(generation < 60 for generation in found) >= 18  # 4, if they had four generations


def test_a_copy_of_what_stands_still_is_not_made() -> None:
    view = view_of([-90.0, *STANDING[1:]], {"baseline": [0.0, 99.9]})  # behind the gate the first would be replaced
    assert AutoSelection().plan(replace(view, state={}), np.random.default_rng(0))[0].weights_from != 0
    assert [row.weights_from for row in AutoSelection().plan(view, np.random.default_rng(0))] == [*range(8)]


def test_members_that_were_trained_before_keep_their_weights_although_none_earns_more_than_a_constant_policy() -> None:
    state = {"baseline": [0.0, 99.9]}
    views = [
        replace(view_of(STANDING, state, generation=generation), trained_before=True) for generation in range(5, 9)
    ]
    assert [restarted(view) for view in views] == [[]] * 4
    lucky = replace(views[-1], train_returns=np.array([50.0, *[0.0] * 7]))
    rows = AutoSelection().plan(lucky, np.random.default_rng(0))
    assert {row.start for row in rows} == {None}
    assert [row.weights_from for row in rows].count(0) > 1  # clones of the member that earns more in training


def test_equal_returns_of_all_constant_policies_are_a_failure_too() -> None:
    # MountainCar: -200 whatever is done
    state = {"baseline": [-200.0, 0.0]}
    assert [bool(restarted(view_of([-200.0] * 4, state))) for _ in range(2)] == [False, True]


def test_fractions_whose_mean_is_rounded_are_those_of_a_constant_policy() -> None:
    returns = np.full((4, 3), 0.1)
    state = {"baseline": [0.1, 0.0]}
    view = PopulationView(returns.mean(axis=1), range(4), (), 5, returns=returns, generations=20, state=state)
    assert view.fitness[0] > 0.1
    assert is_constant(view)


def test_without_a_baseline_nothing_is_known() -> None:
    assert [restarted(view_of(STANDING, {})) for _ in range(4)] == [[]] * 4
    assert AutoSelection.needs_baseline
    assert not Selection.needs_baseline


def test_wider_members_have_the_upper_half_of_what_governs_exploration(layers) -> None:
    view = view_of(STANDING, {"baseline": [0.0, 99.9], "idle": 1})
    view = PopulationView(
        view.fitness,
        view.uids,
        [Genome(GENOME, layers())] * 8,
        5,
        returns=view.returns,
        generations=20,
        state=view.state,
    )
    options = {"selection": AutoSelection(), "explorer": AutoExplorer(), "seed": 1, "next_uid": 8}
    offspring = next_generation(view, [RANGES] * 8, **options)
    wider = [one for one in offspring if one.start is not None]
    assert len(wider) == 4
    for one in wider:
        values = one.genome.hyperparameters
        assert -0.75 <= values["action_std_init"] <= 0.5
        assert 0.45 <= values["action_noise_correlation"] <= 0.9
        assert one.mutations[-1].full_name == "rl_hp.wider"
        assert one.parent_uid == -1
    assert len({one.genome.hyperparameters["action_std_init"] for one in wider}) == 4
    assert len({one.genome.hyperparameters["lr"] for one in wider}) == 4  # drawn as for any fresh member
