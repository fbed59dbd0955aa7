"""From one generation to the next: genomes and their fitness become births.

The births depend on the run's seed, the generation, the uids and the ranks of fitness, and on nothing else: every
process that calls this with the same numbers gets the same births, in whatever order the members are stored. Each
child's mutation has a stream of its own, named by its uid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from agilerl_like.hpo.genome import Genome, Offspring
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.mutation import Mutations, Repair, unchanged
from agilerl_like.hpo.selection import Selection, assign_slots, ranking
from agilerl_like.seeding import Purpose, generator


def next_generation(
    genomes: Sequence[Genome],
    fitness: Sequence[float] | np.ndarray,
    uids: Sequence[int],
    hp_configs: Sequence[HyperparameterConfig],
    *,
    selection: Selection,
    mutations: Mutations,
    seed: int,
    generation: int,
    next_uid: int,
    repair: Repair = unchanged,
) -> tuple[Offspring, ...]:
    """Return one birth for every slot; `generation` counts from 1, and clones get uids from `next_uid` on.

    Members that are chosen keep their slots; clones take the places of the others. Survivors stay as they are, unless
    `mutations` says otherwise of them or of the best. Raises `PopulationDivergedError` if no fitness is finite.
    """
    selection.validate(len(genomes))
    fitness = np.asarray(fitness, dtype=float)
    parents = assign_slots(selection.parents(fitness, generator(seed, Purpose.SELECTION, generation), uids=uids))
    elite = ranking(fitness, uids)[0]
    new_uids = count(next_uid)

    def make_offspring(slot: int, parent: int) -> Offspring:
        survives = slot == parent
        uid = uids[slot] if survives else next(new_uids)
        genome, changes = genomes[parent], ()
        if not survives or (mutations.mutate_elite if slot == elite else mutations.mutate_survivors):
            rng = generator(seed, Purpose.MUTATION, generation, uid)
            genome, changes = mutations.draw(genome, hp_configs[parent], rng, repair=repair)
        return Offspring(generation, slot, int(uid), int(uids[parent]), parent, genome, changes)

    return tuple(make_offspring(slot, parent) for slot, parent in enumerate(parents.tolist()))


def pre_training_mutations(
    genomes: Sequence[Genome],
    uids: Sequence[int],
    hp_configs: Sequence[HyperparameterConfig],
    *,
    mutations: Mutations,
    seed: int,
    repair: Repair = unchanged,
) -> tuple[Offspring, ...]:
    """Return the births of generation 0, in which every member is mutated once before any training."""

    def make_offspring(slot: int) -> Offspring:
        rng = generator(seed, Purpose.MUTATION, 0, uids[slot])
        genome, changes = mutations.draw(genomes[slot], hp_configs[slot], rng, repair=repair, pre_training=True)
        return Offspring(0, slot, int(uids[slot]), int(uids[slot]), slot, genome, changes)

    return tuple(make_offspring(slot) for slot in range(len(genomes)))
