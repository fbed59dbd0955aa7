"""Selection and exploration of a user's own: what they are given, and what becomes of their plans and proposals."""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    PB2,
    TPE,
    AutoSelection,
    BanditMutations,
    Choice,
    Explorer,
    GatedSelection,
    GaussianSteps,
    Genome,
    History,
    HyperparameterConfig,
    Mutation,
    Mutations,
    PopulationView,
    RLParameter,
    Selection,
    SlotPlan,
    TournamentSelection,
    Trial,
    TruncationSelection,
    WeightMix,
    next_generation,
    ranking,
)
from agilerl_like.hpo.explorer import checked_proposal, with_hyperparameters

CONFIG = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
FITNESS = [1.0, 4.0, 3.0, 2.0]


@dataclass(frozen=True)
class BestReplacesWorst(Selection):
    """Defines `parents` alone, as strategies for fitness alone do."""

    def parents(self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Any = None) -> np.ndarray:
        by_rank = ranking(fitness, uids)
        return np.concatenate([by_rank[:-1], by_rank[:1]])


@dataclass(frozen=True)
class Planned(Selection):
    """Returns a fixed plan, and records the view."""

    rows: Any = ()
    seen: list[PopulationView] = field(default_factory=list)

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Any:
        self.seen.append(view)
        return self.rows


@dataclass(frozen=True)
class Doubled(Explorer):
    """Doubles the learning rate, and records the pending proposals."""

    pending: list[tuple[int, ...]] = field(default_factory=list)

    def propose(self, genome: Genome, history: History, rng: np.random.Generator, *, hp_config, repair, **_):
        self.pending.append(tuple(trial.uid for trial in history.pending))
        changed, record = with_hyperparameters(genome, {"lr": 2 * genome.hyperparameters["lr"]}, repair)
        return changed, (record,)


def a_view(layers: Any, history: History | None = None) -> PopulationView:
    """Members 50 to 53, whose learning rates are 1 to 4 thousandths."""
    genomes = [Genome({"lr": (1 + slot) * 1e-3}, layers((slot + 1,))) for slot in range(4)]
    return PopulationView(np.array(FITNESS), [50, 51, 52, 53], genomes, 6, history or History())


def evolve(view: PopulationView, selection: Selection, explorer: Explorer):
    return next_generation(view, [CONFIG] * 4, selection=selection, explorer=explorer, seed=1, next_uid=100)


def test_parents_alone_make_a_plan_in_which_only_clones_are_explored(layers) -> None:
    rows = BestReplacesWorst().plan(a_view(layers), np.random.default_rng(0))
    assert list(rows) == [SlotPlan(1, 1, True), SlotPlan(1, 1, False), SlotPlan(2, 2, False), SlotPlan(3, 3, False)]


def test_a_strategy_without_parents_or_plan_is_an_error(layers) -> None:
    with pytest.raises(NotImplementedError, match=r"Selection defines neither parents\(\) nor plan\(\)"):
        Selection().plan(a_view(layers), np.random.default_rng(0))


def test_a_plan_sees_the_history_and_may_take_hyperparameters_from_another_slot(layers) -> None:
    trial = Trial(5, 50, -1, {"lr": 1e-3}, "1 ReLU", "None", 0.0, 1.0, 256)
    history = History().extended([trial])
    # slot 0 becomes a clone of slot 1 with the hyperparameters of slot 3; slot 2 survives with those of slot 1
    rows = (SlotPlan(1, 3, False), SlotPlan(1, 1, False), SlotPlan(2, 1, False), SlotPlan(3, 3, False))
    selection = Planned(rows=rows)
    migrant, best, survivor, same = evolve(a_view(layers, history), selection, Mutations())
    assert (selection.seen[0].generation, selection.seen[0].history.trials) == (6, (trial,))
    assert (migrant.uid, migrant.parent_uid, migrant.survives) == (100, 51, False)
    assert migrant.genome == Genome({"lr": 4e-3}, layers((2,)))  # the architecture belongs to the weights
    assert migrant.mutations == (Mutation("rl_hp", "copy", {"lr": (2e-3, 4e-3)}),)
    assert (survivor.uid, survivor.survives) == (52, True)
    assert survivor.genome == Genome({"lr": 2e-3}, layers((3,)))
    assert survivor.mutations == (Mutation("rl_hp", "copy", {"lr": (3e-3, 2e-3)}),)
    assert best.mutations == same.mutations == ()
    assert [one.donor_uid for one in (migrant, best, survivor, same)] == [53, None, 51, None]


def test_hyperparameters_of_another_slot_are_moved_into_the_ranges_that_come_with_the_weights(layers) -> None:
    names = "kind", "lr", "gamma", "n_step"  # n_step has no range
    values = [("a", 1e-3, 0.9, 3), ("c", 9e-3, 0.99, 5)]
    genomes = [Genome(dict(zip(names, its, strict=True)), layers()) for its in values]
    configs = [
        HyperparameterConfig(kind=Choice(["a", "b"]), lr=RLParameter(1e-4, 2e-3), gamma=RLParameter(0.5, 0.999)),
        HyperparameterConfig(kind=Choice(["a", "c"]), lr=RLParameter(5e-3, 1e-2)),
    ]
    view = PopulationView(np.array([1.0, 2.0]), [50, 51], genomes, 6, History())
    plan = Planned(rows=(SlotPlan(0, 1, False), SlotPlan(1, 0, False)))
    one, other = next_generation(view, configs, selection=plan, explorer=Mutations(), seed=1, next_uid=100)
    assert one.genome.hyperparameters == {"kind": "a", "lr": 2e-3, "gamma": 0.99, "n_step": 3}
    assert one.mutations == (Mutation("rl_hp", "copy", {"lr": (1e-3, 2e-3), "gamma": (0.9, 0.99)}),)
    assert other.genome.hyperparameters == {"kind": "a", "lr": 5e-3, "gamma": 0.99, "n_step": 5}


def test_proposals_are_made_in_slot_order_and_see_earlier_ones_as_pending(layers) -> None:
    explorer = Doubled()
    rows = (SlotPlan(1, 1, True), SlotPlan(1, 1, False), SlotPlan(2, 2, True), SlotPlan(1, 1, True))
    offspring = evolve(a_view(layers), Planned(rows=rows), explorer)
    assert [child.genome.hyperparameters["lr"] for child in offspring] == [4e-3, 2e-3, 6e-3, 4e-3]
    assert [child.uid for child in offspring] == [100, 51, 52, 101]
    assert explorer.pending == [(), (100,), (100, 52)]


def test_a_pending_trial_holds_the_proposal_and_the_fitness_of_its_weights(layers) -> None:
    class LastPending(Doubled):
        found: tuple[Trial, ...] = ()

        def propose(self, genome, history, rng, **options):
            type(self).found = history.pending
            return super().propose(genome, history, rng, **options)

    rows = (SlotPlan(1, 1, True), *(SlotPlan(slot, slot, False) for slot in (1, 2)), SlotPlan(1, 1, True))
    evolve(a_view(layers), Planned(rows=rows), LastPending())
    (trial,) = LastPending.found
    assert (trial.generation, trial.uid, trial.parent_uid) == (7, 100, 51)
    assert (trial.hyperparameters, trial.architecture, trial.mutation) == ({"lr": 4e-3}, "2 ReLU", "lr")
    assert trial.fitness_before == 4.0
    assert np.isnan(trial.fitness)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([SlotPlan(0, 0, False)] * 3, "Planned planned 3 slots; the population has 4"),
        ([*[SlotPlan(0, 0, False)] * 3, SlotPlan(4, 0, True)], "Planned fills slot 3 from slot 4; allowed are 0 to 3"),
        ([*[SlotPlan(0, 0, False)] * 3, SlotPlan(0, -1, True)], "fills slot 3 from slot -1; allowed are 0 to 3"),
        ([SlotPlan(0.0, 0, False)] * 4, r"fills slot 0 from slot 0\.0; allowed are 0 to 3"),
        (None, r"Planned\.plan returned None; allowed is a list with a SlotPlan for each slot"),
        ([(0, 0, False)] * 4, r"Planned planned \(0, 0, False\) for slot 0; allowed is SlotPlan"),
        ([0] * 4, r"Planned planned 0 for slot 0; allowed is SlotPlan"),
        ([SlotPlan(0, 0, "no")] * 4, r"explore='no'.* for slot 0; allowed is .* explore and wider are True or False"),
        *(
            ([SlotPlan(0, 0, True, start=start)] * 4, r"Planned planned start=.* for slot 0; allowed are None and")
            for start in (
                True,
                (0.2, 0.1),
                WeightMix(math.nan, -1),
                WeightMix(0.2, -1),
                WeightMix("a", 0.1),
                WeightMix(0, 0.5),
            )
        ),
    ],
)
def test_an_impossible_plan_is_refused(layers, rows: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evolve(a_view(layers), Planned(rows=rows), Mutations())


@dataclass(frozen=True)
class Given(Selection):
    """Returns fixed parents."""

    found: Any = ()

    def parents(self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Any = None) -> Any:
        return self.found


@pytest.mark.parametrize(
    "found", [[0, 1, 2, 4], [0, 1, 2, -1], np.array([0.0, 1.0, 2.0, 3.0]), None, [[0, 1], [2, 3]], [0]]
)
def test_parents_that_are_no_members_are_refused(layers, found: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"Given\.parents returned .*; allowed are 4 whole numbers from 0 to 3"
    ):
        evolve(a_view(layers), Given(found=found), Mutations())


def test_parents_without_the_argument_uids_are_refused_before_a_run() -> None:
    class WithoutUids(Selection):
        def parents(self, fitness, rng):  # pyright: ignore[reportIncompatibleMethodOverride]  # the error
            return [0] * len(fitness)

    message = (
        r"WithoutUids\.parents\(fitness, rng\) cannot be called .*; allowed is parents\(self, fitness, rng, \*, uids"
    )
    with pytest.raises(ConfigurationError, match=message):
        WithoutUids().validate(3)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: GatedSelection(share="x"), "share"),
        (lambda: GatedSelection(seed="x"), "seed"),
        (lambda: AutoSelection(warm_up=None), "warm_up"),
        (lambda: GaussianSteps(sd="x"), "sd"),
        (lambda: PB2(min_trials=None), "min_trials"),
        (lambda: TPE(random="x"), "random"),
        (lambda: BanditMutations(half_life=None), "half_life"),
        (lambda: Mutations(rl_hp="x"), "rl_hp"),
        (lambda: TruncationSelection(fraction="x"), "fraction"),
        (lambda: TournamentSelection(population_size="x"), "population_size"),
        (lambda: Choice(["a", "b"], resample=None), "resample"),
    ],
)
def test_settings_of_a_strategy_that_are_no_numbers_are_named(make: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name}=('x'|None) must be a number( or None)?$"):
        make()


@pytest.mark.parametrize("value", ["false", 0, None])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(AutoSelection, "return_best"), (GatedSelection, "restart_stalled"), (TournamentSelection, "elitism")],
)
def test_switches_of_a_strategy_that_are_not_true_or_false_are_named(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name}={value!r} must be True or False$"):
        kind(**{name: value})


@dataclass(frozen=True)
class Proposed(Explorer):
    """Returns what a function makes of a genome."""

    change: Any = None

    def propose(self, genome: Genome, history: History, rng: np.random.Generator, *, hp_config, repair, **_):
        return self.change(genome)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda genome: None, r"Proposed proposed None; allowed is \(genome, \(mutation, …\)\)"),
        (lambda genome: genome, r"Proposed proposed genome; allowed is \(genome, \(mutation, …\)\)"),
        (lambda genome: (genome, []), r"Proposed proposed \(genome, \[\]\); allowed is"),
        (lambda genome: (genome, ("lr",)), r"Proposed proposed \(genome, \('lr'\)\); allowed is"),
        (lambda genome: (genome.replace(hyperparameters={}), ()), "in which lr is missing or unknown"),
        (
            lambda genome: (genome.replace(hyperparameters={**genome.hyperparameters, "foo": 1}), ()),
            "in which foo is missing or unknown; allowed are exactly the hyperparameters of the parent",
        ),
        (
            lambda genome: (genome.replace(hyperparameters={"lr": float("nan")}), ()),
            "Proposed proposed lr=nan; allowed are finite numbers",
        ),
        (
            lambda genome: (genome.replace(hyperparameters={"lr": 0.5}), ()),
            r"Proposed proposed a value that is not allowed: lr=0\.5 lies outside its range \[1e-05, 0\.1\]",
        ),
    ],
)
def test_a_proposal_that_is_no_genome_with_these_ranges_is_refused(layers, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evolve(a_view(layers), BestReplacesWorst(), Proposed(change))


def with_record(*records: Mutation, lr: float = 0.0, nodes: int = 0) -> Any:
    """Return a function that changes a genome of one layer and returns these records."""

    def change(genome: Genome) -> Any:
        architecture = genome.architecture.apply("0.add_node", layer=0, nodes=nodes) if nodes else genome.architecture
        values = {"lr": lr or genome.hyperparameters["lr"]}
        return genome.replace(hyperparameters=values, architecture=architecture), records

    return change


GROWN = {"layer": 0, "nodes": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [  # of the best member, slot 1, whose lr is 2e-3 and whose layer has two nodes
        (
            with_record(lr=3e-3),
            r"Proposed proposed lr=0\.003, and its records give 0\.002; allowed is a record of each",
        ),
        (
            with_record(Mutation("rl_hp", "x", {"lr": 3e-3}), lr=3e-3),
            r"kind='rl_hp', operator='x' with details lr=0\.003; allowed is \(old, new\) .* \(0\.002, 0\.003\)",
        ),
        (with_record(Mutation("rl_hp", "x", {"lr": (1e-3, 3e-3)}), lr=3e-3), r"details lr=\(0\.001, 0\.003\); allowed"),
        (with_record(Mutation("rl_hp", "x", {"foo": (0, 1)})), r"details foo=\(0, 1\); allowed is \(old, new\)"),
        (with_record(nodes=1), r"architecture 3 ReLU, and its records \(none\) give 2 ReLU; allowed is a record"),
        (
            with_record(Mutation("architecture", "0.add_node", GROWN), nodes=2),
            r"architecture 4 ReLU, and its records \(architecture\.0\.add_node\) give 3 ReLU",
        ),
        (
            with_record(Mutation("architecture", "0.add_node"), nodes=1),
            r"kind='architecture', operator='0\.add_node' and details {}, which cannot .*KeyError\('nodes'\)",
        ),
        *(
            (
                with_record(Mutation("parameters", "x", {name: value})),
                rf"details {name}={value!r}; allowed are sd and kl",
            )
            for name, value in (
                ("sd", -3.0),
                ("kl", math.nan),
                ("sd", math.inf),
                ("kl", "big"),
                ("std", 0.3),
                ("sd", True),
            )
        ),
        (with_record("lr"), r"Proposed proposed .*; allowed is \(genome, \(mutation, …\)\)"),
    ],
)
def test_records_that_do_not_lead_to_the_proposed_genome_are_refused(layers, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evolve(a_view(layers), BestReplacesWorst(), Proposed(change))


def test_records_of_several_changes_lead_to_the_proposed_genome_together(layers) -> None:
    records = (
        Mutation("rl_hp", "x", {"lr": (2e-3, 5e-3)}), Mutation("rl_hp", "x", {"lr": (5e-3, 3e-3)}),
        Mutation("architecture", "0.add_node", GROWN), Mutation("parameters", "noise", {"sd": 0.1}),
    )  # fmt: skip
    offspring = evolve(a_view(layers), BestReplacesWorst(), Proposed(with_record(*records, lr=3e-3, nodes=1)))
    clone = next(child for child in offspring if not child.survives)
    assert (clone.genome.hyperparameters["lr"], clone.genome.architecture.describe()) == (3e-3, "3 ReLU")


def test_a_proposal_may_leave_a_given_value_outside_of_its_range(layers) -> None:
    genomes = [Genome({"lr": 0.5}, layers((1,)))] * 4
    view = PopulationView(np.array(FITNESS), [50, 51, 52, 53], genomes, 6, History())
    offspring = evolve(view, BestReplacesWorst(), Proposed(lambda genome: (genome, ())))
    assert [child.genome.hyperparameters["lr"] for child in offspring] == [0.5] * 4


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [
        (("linear", 0.05), ("linear", 0.5), True),  # not in use
        (("kl", 0.05), ("kl", 0.5), False),
        (("linear", 0.5), ("kl", 0.5), False),  # in use from now on
        (("kl", 0.5), ("kl", 0.5), True),  # as it was given
    ],
)
def test_values_in_use_are_checked_where_the_explorer_changes_them(layers, before: Any, after: Any, is_allowed) -> None:
    ranges = HyperparameterConfig(
        lr_schedule=Choice(["linear", "kl"]), target_kl=RLParameter(0.01, 0.1, when={"lr_schedule": "kl"})
    )
    old, new = (
        Genome(dict(zip(("lr_schedule", "target_kl"), its, strict=True)), layers((1,))) for its in (before, after)
    )
    with nullcontext() if is_allowed else pytest.raises(ConfigurationError, match=r"target_kl=0\.5 lies outside"):
        checked_proposal(Proposed(), (new, (with_hyperparameters(old, new.hyperparameters)[1],)), old, ranges)


def test_proposals_and_records_contain_plain_numbers_where_the_explorer_uses_numpy(layers) -> None:
    old, ranges = Genome({"lr": 1e-3, "n": 4}, layers()), HyperparameterConfig(n=RLParameter(1, 9))
    by_hand = (
        old.replace(hyperparameters={"lr": 1e-3, "n": np.int64(8)}),
        Mutation("rl_hp", "", {"n": (4, np.int64(8))}),
    )
    for genome, record in (with_hyperparameters(old, {"n": np.int64(8)}), by_hand):
        genome, (record,) = checked_proposal(Proposed(), (genome, (record,)), old, ranges)
        assert [type(value) for value in (genome.hyperparameters["n"], *record.details["n"])] == [int] * 3
        assert json.dumps(record.to_json()["details"]) == '{"n": [4, 8]}'


@pytest.mark.parametrize("explorer", [PB2(always=True), TPE(random=0.0, min_jobs=4)], ids=["pb2", "tpe"])
def test_proposals_of_one_generation_may_have_other_hyperparameters(layers, explorer):
    """Members may have different ranges; a trial that waits for its result may lack one of another member's."""
    lr, both = CONFIG, HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), ent_coef=RLParameter(1e-4, 1e-1))
    rng, history = np.random.default_rng(0), History()
    genomes = [Genome({"lr": 10 ** rng.uniform(-4, -2), "ent_coef": 0.01}, layers()) for _ in range(8)]
    configs, fitness = [lr, both] * 4, [math.nan] * 8
    for generation in range(1, 8):
        before, fitness = fitness, [float(gain) + 20 * generation for gain in rng.normal(size=8)]
        history = history.extended(
            Trial(
                generation,
                i,
                -1,
                {name: genomes[i].hyperparameters[name] for name in configs[i]},
                "a",
                "None",
                before[i],
                fitness[i],
                10,
            )
            for i in range(8)
        )
    view = PopulationView(np.array(fitness), [*range(8)], genomes, 7, history, generations=20)
    for seed in range(5):
        selection = TruncationSelection(fraction=0.5)
        next_generation(view, configs, selection=selection, explorer=explorer, seed=seed, next_uid=100)


@dataclass(frozen=True)
class Writes(BestReplacesWorst):
    """Writes into the state."""

    key: Any = "seen"
    value: Any = None

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Any:
        view.state[self.key] = self.value
        return super().plan(view, rng)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("seen", {1: 2}, "'seen']={1: 2}"),
        ("seen", [{"at": (1, 2)}], "'seen']=[{'at': (1, 2)}]"),
        ("seen", {1}, "'seen']={1}"),
        (3, 1.0, "3]=1.0"),
    ],
)
def test_a_state_that_a_checkpoint_would_change_is_refused(layers, key: Any, value: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"Writes wrote view.state[{shown}; allowed are keys")):
        evolve(a_view(layers), Writes(key=key, value=value), Doubled())


def test_a_state_of_plain_data_is_kept(layers) -> None:
    view = a_view(layers)
    value = {"a": [1, 2.5, None, True, "x", {"b": []}], "c": np.float64(0.5), "d": math.nan, "e": np.int64(3)}
    evolve(view, Writes(value=value), Doubled())
    assert view.state == {"seen": value}
