"""Selection and exploration of a user's own in a run: they read fitness, hyperparameters and history, and resume."""

from dataclasses import dataclass, field

import numpy as np

from agilerl_like import PPO, HyperparameterConfig, RLParameter, make_vect_envs, train_on_policy
from agilerl_like.hpo import Explorer, Selection, SlotPlan, ranking
from agilerl_like.hpo.explorer import with_hyperparameters
from agilerl_like.reporting import read_lineage

RANGE = RLParameter(1e-5, 1e-1)


@dataclass(frozen=True)
class WorstLearnsFromBest(Selection):
    """Every member survives; the worst takes over the best one's hyperparameters, and explores."""

    views: list = field(default_factory=list, compare=False)

    def plan(self, view, rng):
        self.views.append(view)
        by_rank = ranking(view.fitness, view.uids)
        rows = [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]
        rows[by_rank[-1]] = SlotPlan(by_rank[-1], by_rank[0], explore=True)
        return rows


@dataclass(frozen=True)
class HistoryAsSeed(Explorer):
    """Proposes a learning rate that depends on every trial so far, so that a lost history changes the run."""

    def propose(self, genome, history, rng, *, hp_config, repair, **_):
        total = sum(trial.fitness * trial.hyperparameters["lr"] for trial in history.trials)
        lr = hp_config["lr"].clip(1e-4 * (1 + total % 1) * rng.uniform(1, 2))
        changed, record = with_hyperparameters(genome, {"lr": lr}, repair)
        return changed, (record,)


def run(folder, max_steps, selection, **options):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    pop = PPO.population(
        3,
        env.single_observation_space,
        env.single_action_space,
        seed=1,
        num_envs=2,
        learn_step=32,
        batch_size=32,
        hp_config=HyperparameterConfig(lr=RANGE),
        sample_hyperparameters=True,
    )
    if "resume" in options:
        pop = None
    pop, fitness = train_on_policy(
        env,
        pop=pop,
        max_steps=max_steps,
        evo_steps=64,
        checkpoint=64,  # envs are reset where a checkpoint is written, so both runs must write one at the same step
        eval_loop=2,
        selection_strategy=selection,
        mutation=HistoryAsSeed(),
        run_dir=None if "resume" in options else folder,
        verbose=False,
        **options,
    )
    env.close()
    return pop, fitness


def test_a_run_with_own_selection_and_explorer_resumes_to_the_same_members(tmp_path):
    whole = WorstLearnsFromBest()
    pop, fitness = run(tmp_path / "whole", 256, whole)
    run(tmp_path / "half", 128, WorstLearnsFromBest())
    rest = WorstLearnsFromBest()
    resumed, resumed_fitness = run(tmp_path / "half", 256, rest, resume=tmp_path / "half")
    assert [agent.lr for agent in resumed] == [agent.lr for agent in pop]
    assert np.array_equal(resumed_fitness, fitness)
    assert [view.generation for view in whole.views] == [1, 2, 3]
    assert repr(rest.views[-1].history) == repr(whole.views[-1].history)  # nan differs from itself


def test_the_history_holds_one_trial_for_each_member_and_generation(tmp_path):
    selection = WorstLearnsFromBest()
    pop, _ = run(tmp_path / "run", 192, selection)
    first, second = selection.views
    trials = second.history.trials
    assert [(trial.generation, trial.uid, trial.parent_uid) for trial in trials] == [
        (generation, uid, -1) for generation in (1, 2) for uid in (0, 1, 2)
    ]
    assert {trial.env_steps for trial in trials} == {64}
    assert np.isnan([trial.fitness_before for trial in trials[:3]]).all()
    assert [trial.fitness_before for trial in trials[3:]] == [trial.fitness for trial in trials[:3]]
    assert [trial.fitness for trial in trials[:3]] == first.fitness.tolist()
    worst = ranking(first.fitness, first.uids)[-1]
    (change,) = [one for one in read_lineage(tmp_path / "run") if one.generation == 1 and one.mutations]
    assert change.slot == worst
    assert change.hyperparameters["lr"] == trials[3 + worst].hyperparameters["lr"]
