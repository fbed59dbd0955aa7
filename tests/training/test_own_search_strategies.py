"""Selection and exploration of a user's own in a run: they read fitness, hyperparameters and history, and resume."""

import multiprocessing
from dataclasses import dataclass, field

import numpy as np
import pytest
import yaml

from agilerl_like import (
    PPO,
    ConfigurationError,
    HyperparameterConfig,
    RLParameter,
    make_vect_envs,
    register,
    train_on_policy,
)
from agilerl_like.cli import main
from agilerl_like.hpo import Explorer, Selection, SlotPlan, ranking, with_hyperparameters
from agilerl_like.registry import registered
from agilerl_like.reporting import read_lineage

RANGE = RLParameter(1e-5, 1e-1)
RANGES = HyperparameterConfig(lr=RANGE)


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


def run(folder, max_steps, selection, mutation=HistoryAsSeed(), hp_config=RANGES, checkpoint=64, **options):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    pop = PPO.population(
        3,
        env.single_observation_space,
        env.single_action_space,
        seed=1,
        num_envs=2,
        learn_step=32,
        batch_size=32,
        hp_config=hp_config,
        sample_hyperparameters=True,
    )
    if "resume" in options:
        pop = None
    pop, fitness = train_on_policy(
        env,
        pop=pop,
        max_steps=max_steps,
        evo_steps=64,
        # envs are reset where a checkpoint is written, so two runs that are compared must write one at the same step
        checkpoint=checkpoint,
        eval_loop=2,
        selection_strategy=selection,
        mutation=mutation,
        run_dir=None if "resume" in options else folder,
        verbose=False,
        **options,
    )
    env.close()
    return pop, fitness


@pytest.mark.slow
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
    run(tmp_path / "run", 192, selection)
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


@dataclass(frozen=True)
class OfNumpy(Explorer):
    """Draws a length of rollouts and a learning rate as numbers of numpy, which JSON lacks."""

    mutate_survivors = True

    def propose(self, genome, history, rng, *, hp_config, repair, **_):
        drawn = {"learn_step": rng.integers(32, 65), "lr": np.float32(10 ** rng.uniform(-4, -2))}
        changed, record = with_hyperparameters(genome, drawn, repair)
        return changed, (record,)


def test_an_explorer_may_propose_numbers_of_numpy(tmp_path):
    selection, ranges = WorstLearnsFromBest(), HyperparameterConfig(lr=RANGE, learn_step=RLParameter(32, 64))
    pop, _ = run(tmp_path / "run", 256, selection, OfNumpy(), hp_config=ranges, checkpoint=256)
    trials = selection.views[-1].history.trials
    found = [one.hyperparameters for one in (*trials, *pop, *read_lineage(tmp_path / "run"))]
    assert {(type(its["learn_step"]), type(its["lr"])) for its in found} == {(int, float)}
    assert len({its["learn_step"] for its in found}) > 3  # those that were sampled before the run


def test_an_explorer_that_changes_a_setting_without_a_range_is_named(tmp_path):
    @dataclass(frozen=True)
    class Wrong(Explorer):
        def propose(self, genome, history, rng, *, hp_config, repair, **_):
            changed, record = with_hyperparameters(genome, {"gamma": 0.9}, repair)
            return changed, (record,)

    message = r"Wrong proposed gamma=0\.9 \(before: 0\.99\), and gamma has no range .*; allowed are .* a range: lr$"
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path / "run", 256, WorstLearnsFromBest(), mutation=Wrong())


@dataclass(frozen=True)
class ByProcess(Selection):
    """Replaces another member in each process, as a plan does that depends on what a callback has noted."""

    def plan(self, view, rng):
        replaced = 1 if multiprocessing.parent_process() is None else 2
        return [SlotPlan(0 if slot == replaced else slot, slot, explore=False) for slot in range(len(view))]


def test_a_plan_that_differs_between_processes_is_an_error_that_names_the_selection(tmp_path):
    message = r"ByProcess fills slot 1 from slot 0 in process 0 and from slot 1 in process 1; allowed is a plan that"
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path / "run", 256, ByProcess(), processes=2)


@pytest.fixture
def registered_explorers():
    """Explorers that configurations can name."""

    @register("explorer", "scaled")
    @dataclass(frozen=True)
    class Scaled(Explorer):
        factor: float = 2.0
        used: dict = field(default_factory=dict, init=False, compare=False)

        def propose(self, genome, history, rng, *, hp_config, repair, **_):
            changed = {name: hp.clip(self.factor * genome.hyperparameters[name]) for name, hp in hp_config.items()}
            genome, record = with_hyperparameters(genome, changed, repair)
            return genome, (record,)

    @register("explorer", "unchanged")
    class Unchanged(Explorer):  # no dataclass, because it has no settings
        def propose(self, genome, history, rng, *, hp_config, repair, **_):
            return genome, ()

    yield
    for name in ("scaled", "unchanged"):
        registered("explorer")._entries.pop(name)


def test_a_configuration_names_a_registered_explorer_and_its_fields(registered_explorers, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    settings = {
        "environment": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
        "algorithm": {"learn_step": 32, "batch_size": 32, "lr": 1e-3},
        "hyperparameters": {"lr": {"min": 1e-5, "max": 1e-1}},
        "population": {"size": 2, "sample_hyperparameters": False, "pre_training_mutation": True},
        "selection": {"tournament_size": 2},
        "mutation": {"name": "scaled"},
        "training": {"max_steps": 128, "evo_steps": 64, "eval_loop": 1},
        "run": {"dir": str(tmp_path), "name": "run", "plot": False},
    }
    file.write_text(yaml.safe_dump(settings))
    assert main(["train", str(file), "--mutation.factor", "4"]) == 0
    rates = [round(one.hyperparameters["lr"], 9) for one in read_lineage(tmp_path / "run")]
    assert rates[:2] == [4e-3, 4e-3]  # before training
    assert sorted(rates[2:]) == [4e-3, 1.6e-2]  # the survivor and its clone
    capsys.readouterr()
    assert main(["train", str(file), "--mutation.name", "unchanged", "--run.name", "second"]) == 0
    assert {one.hyperparameters["lr"] for one in read_lineage(tmp_path / "second")} == {1e-3}
    assert main(["train", str(file), "--mutation.name", "scale"]) == 2
    assert "mutation.name='scale' is unknown; did you mean 'scaled'" in capsys.readouterr().err
    assert main(["train", str(file), "--mutation.rl-hp", "0.5"]) == 2
    assert "mutation.rl_hp=0.5 has no meaning for name='scaled'; leave it out" in capsys.readouterr().err
