"""The bandit over kinds of mutation, and crossover of hyperparameters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    BanditMutations,
    Choice,
    GatedSelection,
    Genome,
    History,
    HyperparameterConfig,
    RLParameter,
    Trial,
)
from agilerl_like.hpo.bandit import crossover, kind_of, kind_values
from agilerl_like.hpo.explorer import unchanged
from benchmarks.toy_problems import NoArchitecture, moving_optimum, search, uniform_starts

RANGES = HyperparameterConfig(x=RLParameter(0.0, 1.0), lr=RLParameter(1e-5, 1e-1))


def trial(generation, uid, gain, operators="", x=0.5, lr=1e-3):
    return Trial(generation, uid, -1, {"x": x, "lr": lr}, "", "", 0.0, gain, 1, operators)


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        ("rl_hp.gaussian", "gaussian"),
        ("rl_hp.crossover", "crossover"),
        ("architecture.encoder.add_node", "architecture"),
        ("parameters.noise", "noise"),
        ("rl_hp.copy, rl_hp.gaussian", "gaussian"),  # of a clone with the hyperparameters of another member
        ("rl_hp.pb2", ""),
        ("", ""),
    ],
)
def test_the_kind_of_a_trial(operators, kind):
    assert kind_of(trial(1, 0, 0.0, operators)) == kind


def lineage(generation, uid, parent, operators="", x=0.5):
    return Trial(generation, uid, parent, {"x": x, "lr": 1e-3}, "", "", 0.0, 0.0, 1, operators)


def test_a_clone_has_paid_if_it_has_descendants_and_its_weight_fades():
    rows = [lineage(1, 0, -1), lineage(1, 1, -1)]
    rows += [lineage(2, 0, -1), lineage(2, 2, 0, "rl_hp.gaussian")]  # dies out
    rows += [lineage(3, 0, -1), lineage(3, 3, 0, "parameters.noise")]
    rows += [lineage(4, 3, 0), lineage(4, 4, 3, "rl_hp.crossover")]
    rows += [lineage(6, 4, 3), lineage(6, 5, 4, "rl_hp.gaussian")]  # too young to count
    values = kind_values(History(tuple(rows)), half_life=2.0)
    assert values == {
        "gaussian": (0.0, pytest.approx(0.25)),  # of generation 2, four generations ago
        "noise": (pytest.approx(0.5**1.5), 0.0),  # its clone, uid 4, is a present member
        "crossover": (0.5, 0.0),
    }


def test_the_kind_that_pays_is_drawn_most_and_none_is_given_up():
    rows, uid, elite = [], 0, -1
    for generation in range(1, 15):  # the clone by crossover becomes the parent of the next generation's clones
        born = []
        for operators in ("rl_hp.crossover", "rl_hp.gaussian", "parameters.noise"):
            born.append(lineage(generation, uid, elite, operators))
            uid += 1
        rows, elite = rows + born, born[0].uid
    explorer, rng = BanditMutations(), np.random.default_rng(0)
    drawn = Counter(explorer.draw_kind(History(tuple(rows)), rng, explorer.kinds) for _ in range(400))
    assert drawn["crossover"] > 240
    assert min(drawn.values()) >= 5
    assert set(drawn) == set(explorer.kinds)


def test_a_bandit_of_512_members_learns():
    history, elite = History(), -1
    for generation in range(1, 13):  # the clone by crossover becomes the parent of all, as above
        first = 512 * generation
        kinds = ("rl_hp.crossover", "rl_hp.gaussian", "parameters.noise")
        history = history.extended(lineage(generation, first + n, elite, kinds[n % 3]) for n in range(512))
        elite = first
    values = kind_values(history, half_life=5.0)
    assert values["crossover"][0] == pytest.approx(sum(0.5 ** (age / 5) for age in range(2, 8)))
    assert values["gaussian"][0] == values["noise"][0] == 0.0
    assert values["gaussian"][1] > values["noise"][1] > 500


def test_without_a_history_all_kinds_are_equally_likely(assert_frequency):
    explorer, rng = BanditMutations(), np.random.default_rng(1)
    drawn = Counter(explorer.draw_kind(History(), rng, explorer.kinds) for _ in range(1000))
    for kind in explorer.kinds:
        assert_frequency(drawn[kind], 1000, 0.25)


def test_a_crossover_lies_between_both_parents_or_a_half_beyond():
    rows = [trial(4, 0, 5.0, x=0.4, lr=1e-4), trial(4, 1, 4.0, x=0.8, lr=1e-2)]
    rows += [trial(4, 2, 3.0, x=0.0), trial(4, 3, 2.0, x=1.0)]
    genome, rng = Genome({"x": 0.4, "lr": 1e-4}, NoArchitecture()), np.random.default_rng(0)
    found = [crossover(genome, History(tuple(rows)), rng, RANGES, unchanged)[0] for _ in range(200)]
    places = np.array([[RANGES[name].to_unit(one.hyperparameters[name]) for name in ("x", "lr")] for one in found])
    # the other parent is member 1: of the better half, the only one that differs; units (0.4, 0.25) and (0.8, 0.75)
    assert (places >= [0.2 - 1e-9, 0.0]).all()
    assert (places <= [1.0, 1.0]).all()
    assert places.std(axis=0) == pytest.approx(np.array([0.8, 1.0]) / np.sqrt(12), rel=0.2)


def test_a_crossover_with_equal_members_changes_nothing():
    genome, rng = Genome({"x": 0.5, "lr": 1e-3}, NoArchitecture()), np.random.default_rng(0)
    child, record = crossover(genome, History((trial(1, 0, 1.0), trial(1, 1, 0.0))), rng, RANGES, unchanged)
    assert child == genome
    assert record.kind == "none"


def test_a_crossover_takes_an_inactive_value_within_the_range_of_the_member():
    ranges = HyperparameterConfig(mode=Choice(["a", "b"]), x=RLParameter(0.1, 0.2, when={"mode": "b"}))
    other = Trial(1, 0, -1, {"mode": "b", "x": 0.9}, "", "", 0.0, 1.0, 1)  # of a member with another range
    genome, modes = Genome({"mode": "a", "x": 0.1}, NoArchitecture()), set()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        child = crossover(genome, History((other,)), rng, ranges, unchanged)[0].hyperparameters
        modes.add(child["mode"])
        assert child["x"] == (0.2 if child["mode"] == "b" else 0.1)
    assert modes == {"a", "b"}


def test_the_bandit_follows_a_moving_optimum():
    """Without selection 17.7 of 40 are gained, with normal steps alone 35; noise changes nothing here."""
    toy = moving_optimum(4)
    explorer = BanditMutations(("gaussian", "crossover", "noise"))
    runs = [search(toy, uniform_starts(toy, 8, seed), 40, GatedSelection(), explorer, seed) for seed in range(6)]
    assert np.mean([run.best for run in runs]) > 26


@pytest.mark.parametrize(
    ("has_ranges", "has_layers", "kinds"),
    [
        (False, True, {"architecture", "noise"}),
        (True, False, {"gaussian", "crossover", "noise"}),
        (False, False, {"noise"}),
    ],
)
def test_kinds_that_can_change_nothing_are_not_drawn(layers, has_ranges, has_layers, kinds):
    genome = Genome({"x": 0.4, "lr": 1e-4}, layers() if has_layers else NoArchitecture())
    ranges, rows = RANGES if has_ranges else HyperparameterConfig(), [trial(1, 1, 1.0, x=0.9), trial(1, 2, 0.0)]
    explorer, rng, drawn = BanditMutations(), np.random.default_rng(0), set()
    for _ in range(60):
        changes = explorer.propose(genome, History(tuple(rows)), rng, hp_config=ranges)[1]
        drawn |= {kind_of(trial(1, 0, 0.0, f"{one.kind}.{one.operator}")) for one in changes}
    assert drawn == kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ("gaussian", "luck")}, r"kinds=\('gaussian', 'luck'\) has 'luck'; allowed are gaussian, crossover"),
        ({"kinds": ()}, r"kinds=\(\) must name each kind once, and at least one"),
        ({"uniform": 1.5}, "uniform=1.5 must be a probability"),
        ({"half_life": 0.0}, "half_life=0.0 must be finite and greater than 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        BanditMutations(**options)
