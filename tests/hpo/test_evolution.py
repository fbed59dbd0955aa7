from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import (
    Genome,
    History,
    HyperparameterConfig,
    Mutations,
    Offspring,
    PopulationView,
    RLParameter,
    SlotForBest,
    SlotPlan,
    TournamentSelection,
    Trial,
    TruncationSelection,
    clone_of_best,
    next_generation,
    pre_training_mutations,
)

CONFIG = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
ALWAYS = Mutations(no_mutation=0, architecture=1, parameters=0, rl_hp=1)

fitnesses = st.lists(st.sampled_from([nan, 1.0, 2.0, 3.0, 4.0]), min_size=2, max_size=9).filter(
    lambda fitness: any(score == score for score in fitness)
)


def evolve(layers: Any, fitness: list[float], **changes: Any) -> tuple[Offspring, ...]:
    """One generation of members with different learning rates, with uids from 50 on."""
    members = range(len(fitness))
    settings = {
        "selection": TournamentSelection(2),
        "explorer": ALWAYS,
        "seed": 1,
        "generation": 3,
        "history": History(),
        "next_uid": 100,
        "genomes": [Genome({"lr": (1 + member) * 1e-3}, layers()) for member in members],
        "uids": [50 + member for member in members],
    }
    settings |= changes
    genomes, uids, generation, history = (settings.pop(name) for name in ("genomes", "uids", "generation", "history"))
    view = PopulationView(np.array(fitness), uids, genomes, generation, history)
    return next_generation(view, [CONFIG] * len(genomes), **settings)


def test_one_generation_worked_out_by_hand(layers) -> None:
    # a tournament of all four is won by slot 1, so clones of it replace all others, diverged or not
    offspring = evolve(layers, [1.0, 5.0, nan, 3.0], selection=TournamentSelection(4))
    assert [(b.generation, b.slot, b.uid, b.parent_uid, b.parent_slot, b.survives) for b in offspring] == [
        (3, 0, 100, 51, 1, False),
        (3, 1, 51, 51, 1, True),
        (3, 2, 101, 51, 1, False),
        (3, 3, 102, 51, 1, False),
    ]
    parent = Genome({"lr": 2e-3}, layers())
    assert (offspring[1].genome, offspring[1].mutations) == (parent, ())
    assert all(len(child.mutations) == 1 and child.genome != parent for child in offspring if not child.survives)


@given(fitnesses, st.integers(0, 1000), st.booleans())
def test_survivors_are_unchanged_and_diverged_members_are_replaced(layers, fitness, seed, truncation) -> None:
    selection = TruncationSelection() if truncation else TournamentSelection(2)
    offspring = evolve(layers, fitness, seed=seed, selection=selection)
    best = max(score for score in fitness if score == score)
    for slot, child in enumerate(offspring):
        assert child.slot == slot
        if child.survives:
            assert (child.uid, child.parent_slot) == (50 + slot, slot)
            assert (child.genome, child.mutations) == (Genome({"lr": (1 + slot) * 1e-3}, layers()), ())
        else:
            assert child.mutations
        assert not np.isnan(fitness[child.parent_slot])
    assert offspring[fitness.index(best)].survives
    clones = [child.uid for child in offspring if not child.survives]
    assert clones == list(range(100, 100 + len(clones)))


@given(fitnesses, st.integers(0, 1000))
def test_elite_and_survivors_change_only_with_mutate_elite_and_mutate_survivors(
    layers, fitness: list[float], seed: int
) -> None:
    elite = fitness.index(max(score for score in fitness if score == score))
    for mutate_elite in (False, True):
        for mutate_survivors in (False, True):
            mutations = Mutations(0, 1, parameters=0, mutate_elite=mutate_elite, mutate_survivors=mutate_survivors)
            for child in evolve(layers, fitness, seed=seed, explorer=mutations):
                enabled = mutate_elite if child.slot == elite else mutate_survivors
                assert bool(child.mutations) == (enabled or not child.survives)


def test_clones_that_a_plan_does_not_explore_keep_their_genome(layers) -> None:
    class Clones(TournamentSelection):
        def plan(self, view, rng):
            return [SlotPlan(1, 1, explore=False) for _ in view.uids]

    offspring = evolve(layers, [1.0, 5.0, 3.0], selection=Clones(), explorer=replace(ALWAYS, mutate_survivors=True))
    assert [child.mutations for child in offspring] == [(), (), ()]


def test_a_clone_of_the_best_agent_that_is_mutated_as_a_survivor_draws_other_numbers(layers) -> None:
    trials = tuple(Trial(3, uid, -1, {"lr": 1e-3}, "", "", nan, 1.0, 1) for uid in (50, 51))
    explorer = Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1, mutate_elite=True)
    genome = Genome({"lr": 1e-3}, layers())
    view = PopulationView(np.array([1.0, 2.0, 3.0]), [50, 51, 52], [genome] * 3, 3, History(trials))
    first = clone_of_best(SlotForBest(2, True), 9, genome, CONFIG, view=view, explorer=explorer, seed=1, uid=52)
    settings = {"selection": TournamentSelection(2), "explorer": explorer, "seed": 1, "next_uid": 53}
    again = next_generation(view, [CONFIG] * 3, **settings)[2]
    assert (again.uid, again.survives) == (52, True)
    assert again.genome != first.genome


def test_offspring_depend_on_seed_generation_and_ranks_alone(layers) -> None:
    offspring = evolve(layers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert evolve(layers, [-9.0, 0.0, 0.5, 40.0, 41.0, 1e9]) == offspring
    assert evolve(layers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], seed=2) != offspring
    later = [evolve(layers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], generation=generation) for generation in range(4, 10)]
    assert len({tuple(child.parent_uid for child in offspring) for offspring in later}) > 1
    # two members, so that the worse is a clone of the better every time
    clones = [evolve(layers, [1.0, 2.0], generation=generation)[0] for generation in range(4, 10)]
    assert {(clone.uid, clone.parent_uid) for clone in clones} == {(100, 51)}
    assert len({clone.genome for clone in clones}) > 1


@given(fitnesses, st.integers(0, 1000), st.randoms())
def test_the_order_of_members_does_not_change_offspring(layers, fitness: list[float], seed: int, shuffler) -> None:
    def by_uid(offspring: tuple[Offspring, ...]) -> dict[int, tuple]:
        return {child.uid: (child.parent_uid, child.genome, child.mutations) for child in offspring}

    order = list(range(len(fitness)))
    shuffler.shuffle(order)
    shuffled = evolve(
        layers,
        [fitness[member] for member in order],
        seed=seed,
        genomes=[Genome({"lr": (1 + member) * 1e-3}, layers()) for member in order],
        uids=[50 + member for member in order],
    )
    assert by_uid(shuffled) == by_uid(evolve(layers, fitness, seed=seed))


def test_repair_is_applied_last(layers) -> None:
    mutations = Mutations(0, 0, parameters=0, rl_hp=1)
    offspring = evolve(layers, [1.0, 2.0, 3.0], explorer=mutations, repair=lambda values, _: values | {"lr": 0.05})
    assert {child.survives for child in offspring} == {True, False}
    assert all(child.survives or child.genome.hyperparameters["lr"] == 0.05 for child in offspring)


def test_hyperparameters_are_repaired_within_the_ranges_of_the_parent(layers) -> None:
    def largest(values: dict[str, Any], hp_config: HyperparameterConfig) -> dict[str, Any]:
        return values | {"lr": hp_config["lr"].max}

    configs = [HyperparameterConfig(lr=RLParameter(1e-5, largest_lr)) for largest_lr in (0.1, 0.2, 0.3)]
    genomes = [Genome({"lr": 1e-3}, layers())] * 3
    view = PopulationView(np.array([1.0, 2.0, 3.0]), [50, 51, 52], genomes, 3, History())
    options: Any = {"explorer": Mutations(0, 0, parameters=0, rl_hp=1), "seed": 1, "repair": largest}
    offspring = next_generation(view, configs, selection=TournamentSelection(3), next_uid=53, **options)
    assert [child.genome.hyperparameters["lr"] for child in offspring] == [0.3, 0.3, 1e-3]
    clone = clone_of_best(SlotForBest(0, True), 9, genomes[0], configs[1], view=view, uid=53, **options)
    assert clone.genome.hyperparameters["lr"] == 0.2
    first = pre_training_mutations(genomes, [0, 1, 2], configs, **options)
    assert [child.genome.hyperparameters["lr"] for child in first] == [0.1, 0.2, 0.3]


def test_a_diverged_or_too_small_population_is_refused(layers) -> None:
    with pytest.raises(PopulationDivergedError):
        evolve(layers, [nan, nan])
    with pytest.raises(ConfigurationError, match="tournament_size=3 must not be greater than the population's 2"):
        evolve(layers, [1.0, 2.0], selection=TournamentSelection(3))


def test_pre_training_mutations_change_every_member_and_keep_its_uid(layers) -> None:
    genomes = [Genome({"lr": 1e-3}, layers())] * 4
    offspring = pre_training_mutations(genomes, [0, 1, 2, 3], [CONFIG] * 4, explorer=ALWAYS, seed=5)
    assert [(b.generation, b.slot, b.uid, b.parent_uid, b.parent_slot) for b in offspring] == [
        (0, slot, slot, slot, slot) for slot in range(4)
    ]
    assert all(child.survives and child.mutations and child.genome != genomes[0] for child in offspring)
    assert len({child.genome for child in offspring}) > 1
    # a member's draw does not depend on the other members
    assert pre_training_mutations(genomes[2:3], [2], [CONFIG], explorer=ALWAYS, seed=5)[0].genome == offspring[2].genome
