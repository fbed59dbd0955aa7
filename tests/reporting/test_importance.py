"""Importance of hyperparameters: known shares are found, noise is not called an effect."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from reporting_examples import a_birth

from agilerl_like.cli.report import write_findings
from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import Estimate, operator_effects, operator_gains
from agilerl_like.reporting.importance import FOLDS, _moments, _shares, effects_lines, hyperparameter_effects, percent
from agilerl_like.reporting.run_history import RunHistory, split_arrays


def run_of(gain, *, generations=20, members=16, seed=0, noise=1.0, tmp="run"):
    """A run in which each member keeps values drawn at birth, and half of the members are new in each generation."""
    rng = np.random.default_rng(seed)

    def draw():
        return {
            "hp/lr": 10 ** rng.uniform(-5, -2),
            "hp/gamma": rng.uniform(0.9, 0.999),
            "hp/mode": str(rng.choice([*"abc"])),
        }

    rows, uid = [], members
    now = [{"uid": slot, "parent": -1, "values": draw(), "fitness": 0.0} for slot in range(members)]
    for generation in range(1, generations + 1):
        for slot, one in enumerate(now):
            one["fitness"] += gain(one["values"]) + noise * rng.normal()
            own = {"generation": generation, "slot": slot, "uid": one["uid"], "parent_uid": one["parent"]}
            rows.append({**own, "eval/mean_reward": one["fitness"], "mutation": "", **one["values"]})
        for slot in range(members // 2):
            parent = now[slot + members // 2]
            now[slot] = {**parent, "uid": uid, "parent": parent["uid"], "values": draw()}
            uid += 1
    return RunHistory(Path(tmp), rows)


def lr_matters(values):
    return 2.0 * (np.log10(values["hp/lr"]) + 3.5) / 1.5  # uniform on [-2, 2]: variance 4 / 3


def test_the_share_of_the_variance_is_found():
    found = hyperparameter_effects(run_of(lr_matters))
    first, *others = found.effects
    # 4/3 of the effect, 1 of the noise: 57 %
    assert first.name == "lr"
    assert first.importance.low < 0.57 < first.importance.high
    assert first.importance.value == pytest.approx(0.57, abs=0.1)
    assert all(not effect.is_shown and effect.importance.value < 0.03 for effect in others)
    low, high = (float(end) for end in first.good.split(" to "))
    assert low > 10**-3.5
    assert high == pytest.approx(1e-2, rel=0.3)


def test_values_of_a_hyperparameter_that_is_inactive_do_not_count():
    def lr_matters_in_one_mode(values):
        return lr_matters(values) if values["hp/mode"] == "b" else 2.0 if values["hp/mode"] == "a" else 0.0

    run = run_of(lr_matters_in_one_mode, generations=40)
    rows = [{**row, "hp/lr": row["hp/lr"] if row["hp/mode"] == "b" else math.nan} for row in run.rows]
    by_name = {effect.name: effect for effect in hyperparameter_effects(RunHistory(run.folder, rows)).effects}
    assert by_name["lr"].importance.value < 0.4  # 4/9 of the variance, of 4/9 + 8/9 + 1, is 19 %
    assert float(by_name["lr"].good.split(" to ")[0]) > 10**-3.5


def test_each_number_of_an_array_has_a_share():
    run = run_of(lr_matters)
    rows = [dict(row) for row in run.rows]
    for row in rows:
        row["hp/betas"] = formatting.hyperparameter((0.5, row.pop("hp/lr"), row["hp/gamma"]))
    rows[0]["hp/betas"] = "none"  # inactive
    split = split_arrays(rows)
    assert all(math.isnan(split[0][f"hp/betas[{place}]"]) for place in range(3))
    assert [name for name in split[1] if name.startswith("hp/")] == [
        "hp/gamma", "hp/mode", "hp/betas[0]", "hp/betas[1]", "hp/betas[2]"
    ]  # fmt: skip
    first, *others = hyperparameter_effects(RunHistory(run.folder, split)).effects
    assert first.name == "betas[1]"
    assert first.importance.value == pytest.approx(0.57, abs=0.1)
    assert {effect.name for effect in others} == {"betas[2]", "gamma", "mode"}
    assert split_arrays(run.rows) is run.rows


def test_shares_from_moments_equal_those_of_refitted_rows():
    """The plain way: draw members with their rows, and fit a ridge regression without each fold."""
    rng = np.random.default_rng(1)
    uids, columns, gains = np.repeat(np.arange(9), 4), rng.normal(size=(36, 3)), rng.normal(size=36)
    counts, places, penalty = rng.multinomial(9, np.full(9, 1 / 9)), [np.array([0, 1]), np.array([2])], 0.7
    rows = np.repeat(np.arange(36), counts[uids])
    x, y, uid = columns[rows], gains[rows], uids[rows]
    folds = np.searchsorted(np.unique(uid), uid) % FOLDS
    residuals, rises = np.zeros(len(y)), np.zeros((2, len(y)))
    for held in (folds == number for number in np.unique(folds)):
        used_x, mean_gain = x[~held], y[~held].mean()
        weights = np.linalg.solve(used_x.T @ used_x + penalty * np.eye(3), used_x.T @ (y[~held] - mean_gain))
        residuals[held] = y[held] - mean_gain - x[held] @ weights
        for n, place in enumerate(places):
            curve = x[:, place] @ weights[place]
            # the mean over all values that a permutation may put in the place of a row's own
            permuted = [(r + f - curve) ** 2 - r**2 for r, f in zip(residuals[held], curve[held], strict=True)]
            rises[n, held] = np.mean(permuted, axis=1)
    plain = [*(rises.mean(axis=1) / 2 / y.var()), 1 - (residuals**2).mean() / y.var()]
    (shares,) = _shares(_moments(columns, gains, uids), counts[None].astype(float), places, penalty)
    assert shares == pytest.approx(np.array(plain), rel=1e-9, abs=1e-12)


def test_an_optimum_inside_the_range_and_a_choice_are_found():
    def gain(values):
        return -2.0 * (np.log10(values["hp/lr"]) + 3.5) ** 2 + (2.0 if values["hp/mode"] == "b" else 0.0)

    found = hyperparameter_effects(run_of(gain))
    by_name = {effect.name: effect for effect in found.effects}
    assert by_name["lr"].is_shown
    assert by_name["mode"].is_shown
    assert not by_name["gamma"].is_shown
    assert (by_name["mode"].good, by_name["mode"].tried) == ("b", "a, b, c")
    low, high = (float(end) for end in by_name["lr"].good.split(" to "))
    assert 10**-4.4 < low < 10**-3.5 < high < 10**-2.6
    text = " ".join(effects_lines(found))
    assert "no effect beyond noise: gamma (" in text
    assert "mode: " in text


def test_noise_is_seldom_called_an_effect():
    shown = [
        effect.is_shown
        for seed in range(6)
        for effect in hyperparameter_effects(run_of(lambda values: 0.0, members=8, seed=seed)).effects
    ]
    assert len(shown) == 18
    assert sum(shown) <= 2  # of 18; 2.5 % of them are expected


def test_members_that_had_luck_are_no_effect():
    # fitness is noise around a constant: the lucky lose it again, whatever their values
    run = run_of(lambda values: 0.0, noise=0.0)
    rng = np.random.default_rng(1)
    for row in run.rows:
        row["eval/mean_reward"] = rng.normal()
    found = hyperparameter_effects(run)
    assert not [effect for effect in found.effects if effect.is_shown]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"generations": 1, "members": 8}, "this run has 8 and 8"),
        (
            {"generations": 4, "members": 4},
            "needs at least 24 gains and 8 members, to know effects from noise; this run has 16 and 10",
        ),
    ],
)
def test_a_short_run_shows_nothing(options, reason):
    found = hyperparameter_effects(run_of(lr_matters, **options))
    assert reason in found.reason
    assert found.effects == ()
    assert effects_lines(found)[0].startswith("not known: ")


def test_a_run_of_one_member_has_no_lines():
    run = run_of(lr_matters, generations=4, members=1)
    for row in run.rows:
        row["uid"] = 0
    assert effects_lines(hyperparameter_effects(run)) == []


def test_the_first_generation_counts_although_its_members_have_no_fitness_before():
    """There the values differ most, and the weights do not yet; later all may have learned what can be learned."""
    found = hyperparameter_effects(run_of(lr_matters, generations=1, members=64))
    assert found.num_rows == 64
    assert [effect.name for effect in found.effects if effect.is_shown] == ["lr"]
    assert found.effects[0].importance.value == pytest.approx(0.57, abs=0.15)


def test_equal_gains_and_equal_values_show_nothing():
    still = run_of(lambda values: 1.0, noise=0.0)
    assert hyperparameter_effects(still).reason == "all members of a generation gained the same"
    for row in still.rows:
        row.update({"hp/lr": 1e-3, "hp/gamma": 0.99, "hp/mode": "a"})
    assert hyperparameter_effects(still).reason == "no hyperparameter differed between members"


def test_a_mutation_is_compared_with_its_parent_after_the_same_generation():
    rows = []
    for generation, members in enumerate(([(0, -1, 10.0), (1, -1, 4.0)], [(0, -1, 7.0), (2, 0, 9.0)]), start=1):
        for slot, (uid, parent, fitness) in enumerate(members):
            identity = {"generation": generation, "slot": slot, "uid": uid, "parent_uid": parent}
            rows.append({**identity, "eval/mean_reward": fitness, "mutation": "lr" if uid == 2 else ""})
    run = RunHistory(Path("run"), rows)
    assert operator_gains(run) == {"lr": [-1.0]}  # the parent had luck, which a generation later is gone
    assert operator_effects(run) == {"lr": [2.0]}


def test_a_clone_of_the_best_agent_is_compared_with_that_agent_alone():
    """Its parent has trained on, so its fitness after the same generation has no bearing on the mutation."""
    rows = []
    members = ([(0, -1, 10.0), (1, -1, 4.0)], [(0, -1, 3.0), (1, -1, 5.0)], [(0, -1, 2.0), (2, 0, 12.0)])
    for generation, found in enumerate(members, start=1):
        for slot, (uid, parent, fitness) in enumerate(found):
            identity = {"generation": generation, "slot": slot, "uid": uid, "parent_uid": parent}
            rows.append({**identity, "eval/mean_reward": fitness, "mutation": ""})
    change = {"kind": "rl_hp", "operator": "gaussian", "details": {"lr": [1e-3, 2e-3]}}
    birth = a_birth(generation=2, slot=1, uid=2, parent_uid=0, mutations=(change,), parent_generation=1)
    run = RunHistory(Path("run"), rows, (birth,))
    assert run.lineage == [0, 5]  # generation 2 of member 0 is no ancestor of the clone
    assert operator_gains(run) == {"lr": [2.0]}
    assert operator_effects(run) == {}


LR = ({"kind": "rl_hp", "operator": "gaussian", "details": {"lr": [1e-3, 2e-3]}},)
BATCH = ({"kind": "rl_hp", "operator": "gaussian", "details": {"batch_size": [32, 64]}},)


def rows_of(*generations):
    """Rows of members (uid, parent, fitness), generation by generation."""
    rows = []
    for generation, members in enumerate(generations, start=1):
        for slot, (uid, parent, fitness) in enumerate(members):
            identity = {"generation": generation, "slot": slot, "uid": uid, "parent_uid": parent}
            rows.append({**identity, "eval/mean_reward": fitness, "mutation": ""})
    return rows


def test_a_clone_of_a_member_that_has_just_taken_its_slot_descends_from_that_members_parent():
    """Member 2, a clone of the best agent as of generation 1, and 3, which replaced a diverged one, have no row yet."""
    rows = rows_of(
        [(0, -1, 10.0), (1, -1, 4.0)], [(0, -1, 3.0), (1, -1, 5.0)], [(4, 2, 12.0), (1, -1, 1.0), (5, 3, 7.0)]
    )
    births = (
        a_birth(generation=2, slot=1, uid=2, parent_uid=0, mutations=LR, parent_generation=1),
        a_birth(generation=3, slot=1, uid=3, parent_uid=1, mutations=(), reason="replaced"),
        a_birth(generation=2, slot=0, uid=4, parent_uid=2, mutations=BATCH),
        a_birth(generation=3, slot=2, uid=5, parent_uid=3, mutations=(), reason="replaced"),
    )
    run = RunHistory(Path("run"), rows, births)
    assert run.before == [-1, -1, 0, 1, 0, 3, 3]
    assert run.lineage == [0, 4]
    assert run.mutations_of(4) == "lr 1e-3 → 2e-3, batch_size 32 → 64"
    assert operator_gains(run) == {"clone, unchanged": [2.0], "lr + batch_size": [2.0]}


def test_a_clone_that_replaced_a_diverged_member_has_no_effect_of_its_parents_mutation():
    """Member 4 is compared with 3, its parent: both have the learning rate with which 3 was born."""
    rows = rows_of([(0, -1, 4.0), (1, -1, 10.0), (2, -1, 3.0)], [(3, 1, 12.0), (1, -1, 9.0), (4, 3, 11.0)])
    births = (
        a_birth(generation=1, slot=0, uid=3, parent_uid=1, mutations=LR),
        a_birth(generation=2, slot=2, uid=4, parent_uid=3, mutations=(), reason="replaced"),
    )
    run = RunHistory(Path("run"), rows, births)
    assert operator_effects(run) == {"clone, unchanged": [-1.0], "lr": [3.0]}
    assert operator_gains(run) == {"lr": [2.0, 1.0]}  # over member 1, the generation before


def test_a_parent_that_was_changed_at_the_birth_of_its_clone_is_no_comparison():
    rows = rows_of([(0, -1, 10.0), (1, -1, 4.0)], [(0, -1, 60.0), (2, 0, 12.0)])
    parent, clone = a_birth(slot=0, uid=0, survives=True, mutations=LR), a_birth(slot=1, uid=2, mutations=())
    assert operator_effects(RunHistory(Path("run"), rows, (parent, clone))) == {}
    assert operator_effects(RunHistory(Path("run"), rows, (clone,))) == {"clone, unchanged": [-48.0]}


def test_an_interval_above_0_is_not_printed_as_one_that_reaches_it():
    assert percent(Estimate(0.31, 0.003, 0.47, 20)) == "31 % [0.3, 47]"
    assert percent(Estimate(0.31, -0.003, 0.47, 20)) == "31 % [0, 47]"


def test_the_terminal_describes_the_effect_that_it_prints(capsys):
    rows = rows_of([(0, -1, 10.0)], [(0, -1, 7.0), (1, 0, 9.0), (2, 0, 8.0), (3, 0, 10.0), (4, 0, 9.0)])
    write_findings(RunHistory(Path("run"), rows))
    out = capsys.readouterr().out
    assert "a clone's fitness less its parent's, both after the clone's first generation\n" in out
    assert re.search(r"clone, unchanged: \+2\.00 \[\S+ \S+\] rough in 4 births\n", out)


def test_what_shrinking_brought_is_not_that_of_a_mutation():
    rows = [
        {"generation": g, "slot": 0, "uid": uid, "parent_uid": parent, "eval/mean_reward": score, "mutation": "lr"}
        for g, uid, parent, score in ((1, 0, -1, 5.0), (2, 1, 0, 1.0))
    ]
    birth = a_birth(slot=0, uid=1, shrunk=True)  # and another lr
    assert operator_gains(RunHistory(Path("run"), rows, (birth,))) == {"shrunk weights": [-4.0]}
