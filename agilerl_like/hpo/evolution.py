"""From one generation to the next: genomes and their fitness become offspring.

The result depends on the run's seed, the generation, the uids and what the strategies read of fitness and history, and
on nothing else: every process computes the same offspring, in whatever order the members are stored. Each offspring's
mutation has its own random stream, named by its uid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from agilerl_like.hpo.explorer import (
    Check,
    Explorer,
    Repair,
    RepairWithin,
    accepted,
    checked_proposal,
    repair_within,
    unchanged,
    with_hyperparameters,
)
from agilerl_like.hpo.genome import NO_PARENT, Genome, Mutation, Offspring
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.selection import (
    PopulationView,
    Selection,
    SlotForBest,
    SlotPlan,
    check_plan,
    check_state,
    ranking,
)
from agilerl_like.hpo.wider_exploration import with_wider_exploration
from agilerl_like.seeding import Purpose, generator


def next_generation(
    view: PopulationView,
    hp_configs: Sequence[HyperparameterConfig],
    *,
    selection: Selection,
    explorer: Explorer,
    seed: int,
    next_uid: int,
    repair: RepairWithin = unchanged,
    check: Check = accepted,
) -> tuple[Offspring, ...]:
    """Return one offspring for every slot; clones get uids from `next_uid` on.

    An offspring has the ranges of the parent of its weights. Survivors keep their slot and stay as they are, unless the
    explorer changes survivors or the best member too. Raises `PopulationDivergedError` if no fitness is finite. The
    strategy may write into `view.state`.
    """
    selection.validate(len(view))
    view = replace(view, hp_configs=tuple(hp_configs))
    plan = selection.plan(view, generator(seed, Purpose.SELECTION, view.generation))
    check_plan(plan, len(view), selection)
    check_state(view.state, selection)
    elite = ranking(view.fitness, view.uids)[0]
    new_uids = count(next_uid)
    history = view.history
    evaluated = {trial.uid for trial in history.trials}
    found = []
    for slot, row in enumerate(plan):
        parent_slot = int(row.weights_from)
        survives = slot == parent_slot and row.start is None
        is_fresh = row.start is not None and row.start.is_fresh
        uid = view.uids[slot] if survives else next(new_uids)
        hp_config = hp_configs[parent_slot]
        repair_here = repair_within(hp_config, repair)
        genome, changes = _inherited(view, row, hp_config, repair_here)
        changes_survivor = explorer.mutate_elite if slot == elite else explorer.mutate_survivors
        explores = row.explore or (survives and changes_survivor)
        if explores or is_fresh:
            # a clone of the best agent of the run was not evaluated, and has drawn from the stream of its uid before
            again = (2,) if survives and evaluated and uid not in evaluated else ()
            rng = generator(seed, Purpose.MUTATION, view.generation, uid, *again)
            propose = explorer.draw if is_fresh else explorer.propose
            proposal = propose(genome, history, rng, hp_config=hp_config, repair=repair_here)
            genome, more = checked_proposal(explorer, proposal, genome, hp_config, check)
            changes += more
        if row.wider:
            rng = generator(seed, Purpose.MUTATION, view.generation, uid, 1)
            genome, change = with_wider_exploration(genome, hp_config, rng, repair_here)
            changes += (change,) if change.kind != "none" else ()
        parent_uid = NO_PARENT if is_fresh else int(view.uids[parent_slot])
        has_donor = not is_fresh and row.hyperparameters_from != parent_slot
        offspring = Offspring(
            view.generation,
            slot,
            int(uid),
            parent_uid,
            parent_slot,
            genome,
            changes,
            row.start,
            int(view.uids[row.hyperparameters_from]) if has_donor else None,
        )
        found.append(offspring)
        if explores or is_fresh:
            history = history.with_pending(_pending(offspring, hp_config, view))
    return tuple(found)


def clone_of_best(
    row: SlotForBest,
    parent_uid: int,
    genome: Genome,
    hp_config: HyperparameterConfig,
    *,
    view: PopulationView,
    explorer: Explorer,
    seed: int,
    uid: int,
    repair: RepairWithin = unchanged,
    check: Check = accepted,
) -> Offspring:
    """Return the clone of the best agent of the run, with this genome and ranges, that takes a slot."""
    changes: tuple[Mutation, ...] = ()
    if row.explore:
        rng = generator(seed, Purpose.MUTATION, view.generation, uid)
        proposal = explorer.propose(
            genome, view.history, rng, hp_config=hp_config, repair=repair_within(hp_config, repair)
        )
        genome, changes = checked_proposal(explorer, proposal, genome, hp_config, check)
    return Offspring(view.generation, int(row.slot), uid, parent_uid, int(row.slot), genome, changes)


def _inherited(
    view: PopulationView, row: SlotPlan, hp_config: HyperparameterConfig, repair: Repair
) -> tuple[Genome, tuple[Mutation, ...]]:
    """Return the genome that a plan's row passes on; architecture and ranges belong to the weights."""
    genome = view.genomes[row.weights_from]
    if row.hyperparameters_from == row.weights_from:
        return genome, ()
    donor = view.genomes[row.hyperparameters_from]
    changed = hp_config.taken_over(genome.hyperparameters, donor.hyperparameters)
    genome, change = with_hyperparameters(genome, changed, repair, operator="copy")
    return genome, (change,) if change.kind != "none" else ()


def _pending(offspring: Offspring, hp_config: HyperparameterConfig, view: PopulationView) -> Trial:
    """Return the trial that an offspring is about to start."""
    uid, parent_uid = offspring.uid, offspring.parent_uid
    return Trial(
        generation=offspring.generation + 1,
        uid=uid,
        parent_uid=view.history.parent_of(uid) if offspring.survives else parent_uid,
        hyperparameters={name: offspring.genome.hyperparameters[name] for name in hp_config},
        architecture=offspring.genome.architecture.describe(),
        mutation=", ".join(change.label for change in offspring.mutations) or "None",
        fitness_before=float(view.fitness[offspring.parent_slot]) if offspring.start is None else math.nan,
        fitness=math.nan,
        env_steps=0,
        operators=", ".join(change.full_name for change in offspring.mutations if change.kind != "none"),
    )


def pre_training_mutations(
    genomes: Sequence[Genome],
    uids: Sequence[int],
    hp_configs: Sequence[HyperparameterConfig],
    *,
    explorer: Explorer,
    seed: int,
    repair: RepairWithin = unchanged,
    check: Check = accepted,
) -> tuple[Offspring, ...]:
    """Return the offspring of generation 0, in which every member is changed once before any training."""

    def make_offspring(slot: int) -> Offspring:
        rng = generator(seed, Purpose.MUTATION, 0, uids[slot])
        hp_config = hp_configs[slot]
        proposal = explorer.propose(
            genomes[slot],
            History(),
            rng,
            hp_config=hp_config,
            repair=repair_within(hp_config, repair),
            pre_training=True,
        )
        genome, changes = checked_proposal(explorer, proposal, genomes[slot], hp_config, check)
        return Offspring(0, slot, int(uids[slot]), int(uids[slot]), slot, genome, changes)

    return tuple(make_offspring(slot) for slot in range(len(genomes)))
