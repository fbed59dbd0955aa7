"""Optuna's samplers as an explorer, and runs as trials of a study."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

optuna = pytest.importorskip("optuna", reason="an extra")

from agilerl_like import PPO, Choice, HyperparameterConfig, NumberArray, RLParameter, make_vect_envs, train_on_policy  # noqa: E402
from agilerl_like.errors import ConfigurationError  # noqa: E402
from agilerl_like.hpo import Genome, History, OptunaExplorer, Trial, TruncationSelection  # noqa: E402
from agilerl_like.hpo.optuna_steps import as_trial, distribution, from_optuna, label, to_optuna  # noqa: E402
from agilerl_like.reporting.callback import Callback  # noqa: E402
from agilerl_like.training.optuna_study import StudyCallback  # noqa: E402

RANGES = HyperparameterConfig(
    lr=RLParameter(1e-5, 1e-2),
    gamma=RLParameter(0.9, 0.999, scale="one_minus"),
    batch_size=RLParameter(16, 64, dtype=int, scale="power_of_two"),
    update_epochs=RLParameter(1, 8, dtype=int),
    target_kl=Choice([None, 0.02, 0.05]),
    ent_coef=RLParameter(0.0, 0.1, when={"target_kl": 0.02}),
)
VALUES = {"lr": 1e-3, "gamma": 0.99, "batch_size": 32, "update_epochs": 4, "target_kl": 0.02, "ent_coef": 0.01}


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def test_values_lead_to_a_study_and_back():
    for name, parameter in RANGES.items():
        there = to_optuna(parameter, VALUES[name])
        assert distribution(parameter)._contains(distribution(parameter).to_internal_repr(there))
        assert from_optuna(parameter, there) == pytest.approx(VALUES[name])
    assert [label(name, its) for name, its in RANGES.items()] == [
        "log2 batch_size", "ent_coef", "1 - gamma", "lr", "target_kl", "update_epochs",
    ]  # fmt: skip
    gamma = distribution(RANGES["gamma"])
    assert (round(gamma.low, 9), round(gamma.high, 9), gamma.log) == (0.001, 0.1, True)
    with pytest.raises(ConfigurationError, match="a NumberArray cannot be part of its study"):
        distribution(NumberArray([RLParameter(0, 1)]))


def test_lists_of_numbers_are_refused_before_anything_is_trained():
    env = make_vect_envs("CartPole-v1", num_envs=2)
    ranges = HyperparameterConfig(betas=NumberArray([RLParameter(0.8, 0.95), RLParameter(0.9, 0.999)]))
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(4, *spaces, betas=(0.9, 0.99), hp_config=ranges, num_envs=2)
    with pytest.raises(ConfigurationError, match=r"hp_config\.betas=.* which Optuna does not sample"):
        train_on_policy(
            env,
            pop=population,
            max_steps=200,
            selection_strategy=TruncationSelection(),
            mutation=OptunaExplorer(),
            verbose=False,
        )
    assert population[0].steps == [0]


def test_values_of_members_with_other_ranges_are_clamped():
    given = {**VALUES, "lr": 1.0, "update_epochs": 20, "batch_size": 8}
    found = as_trial(RANGES, given, 1.0).params
    assert (found["lr"], found["update_epochs"], found["log2 batch_size"]) == (1e-2, 8, 4)


def history_of(gain, count=60):
    rng = np.random.default_rng(0)
    trials = []
    for uid in range(count):
        values = {**VALUES, **RANGES.sample(rng)}
        trials.append(Trial(1 + uid // 8, uid, -1, values, "", "None", 0.0, gain(values), 64))
    return History(tuple(trials))


def proposals(history, count, layers, **options):
    rng, genome = np.random.default_rng(1), Genome(VALUES, layers())
    children = [OptunaExplorer(**options).propose(genome, history, rng, hp_config=RANGES)[0] for _ in range(count)]
    return [child.hyperparameters for child in children]


class Layers:
    def describe(self):
        return ""


def test_proposals_go_where_gains_were_and_obey_ranges_and_conditions():
    history = history_of(lambda values: -abs(math.log10(values["lr"]) + 3) + (values["target_kl"] == 0.05))
    found = proposals(history, 30, Layers)
    for values in found:
        RANGES.check(values)
        assert values["ent_coef"] == 0.01 or values["target_kl"] == 0.02  # inactive elsewhere
    assert np.median([abs(math.log10(values["lr"]) + 3) for values in found]) < 0.6  # at random: 0.9
    assert sum(values["target_kl"] == 0.05 for values in found) > 15  # at random: 10
    assert found == proposals(history, 30, Layers)  # a resumed run proposes the same


def test_an_unknown_sampler_is_refused():
    with pytest.raises(ConfigurationError, match="sampler='TPE' is unknown; allowed are: GPSampler"):
        OptunaExplorer(sampler="TPE")
    with pytest.raises(ConfigurationError, match=r"is an object; allowed is a name, .*: 'TPESampler', 'RandomSampler'"):
        OptunaExplorer(sampler=optuna.samplers.TPESampler(seed=1))
    with pytest.raises(ConfigurationError, match=r"argument='n_startup_trials' is unknown; allowed are: sampler$"):
        OptunaExplorer(n_startup_trials=4)


@pytest.mark.parametrize("sampler", ["QMCSampler", "CmaEsSampler", "NSGAIISampler"])
def test_a_sampler_that_needs_its_own_suggestions_is_refused(sampler):
    """In studies that are built again for each proposal it proposed the same point, or did not see the gains."""
    with pytest.raises(ConfigurationError, match=f"sampler='{sampler}' proposes by its own earlier"):
        OptunaExplorer(sampler=sampler)


def test_a_gaussian_process_proposes_different_values_in_a_generation():
    ranges, rng = HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)), np.random.default_rng(0)
    drawn = [ranges.sample(rng) for _ in range(12)]
    gains = [-abs(math.log10(values["lr"]) + 3) for values in drawn]
    trials = (Trial(1, uid, -1, drawn[uid], "", "None", 0.0, gains[uid], 64) for uid in range(12))
    history, genome, found = History(tuple(trials)), Genome({"lr": 1e-4}, Layers()), []
    for uid in range(3):
        child, _ = OptunaExplorer("GPSampler").propose(genome, history, np.random.default_rng(uid), hp_config=ranges)
        found.append(math.log10(child.hyperparameters["lr"]))
        trial = Trial(2, 20 + uid, 0, child.hyperparameters, "", "None", 0.0, math.nan, 0)
        history = history.with_pending(trial)
    assert abs(found[0] + 3) < 0.3  # near the largest gain
    assert np.diff(sorted(found)).min() > 0.02  # 0 without the proposals before


class Stop(Callback):
    def on_generation(self, run, record):
        if record.generation == 2:
            run.stop()


@pytest.mark.slow
def test_a_stopped_and_resumed_run_has_the_trials_of_an_uninterrupted_one(tmp_path):
    ranges, studies = HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)), []
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    for folder, parts in (("whole", [[]]), ("parts", [[Stop()], []])):
        studies.append(optuna.create_study(direction="maximize"))
        callback = StudyCallback(studies[-1], ranges)
        for number, others in enumerate(parts):
            pop = PPO.population(4, *spaces, num_envs=2, learn_step=32, batch_size=32, seed=1, hp_config=ranges)
            train_on_policy(
                env, "CartPole-v1", "PPO", None if number else pop, max_steps=192, evo_steps=64, eval_loop=2,
                eval_steps=20, verbose=False, selection_strategy=TruncationSelection(), mutation=OptunaExplorer(),
                checkpoint=64, callbacks=[callback, *others], **{"resume" if number else "run_dir": tmp_path / folder},
            )  # fmt: skip
    env.close()
    whole, parts = ([(one.user_attrs["uid"], one.intermediate_values) for one in study.trials] for study in studies)
    assert len(whole) == 4 + 2
    assert parts == whole


LR = HyperparameterConfig(lr=RLParameter(1e-5, 1e-2))


def observe(callback, run_dir, *fitness, generation=0):
    """Begin a run after a generation, and give each further one the fitness of its members by uid."""
    record = SimpleNamespace(name="run", env="e", seed=1, run_dir=run_dir)
    run = SimpleNamespace(record=record, generation=generation, population=[SimpleNamespace(hp_config=LR)])
    callback.on_run_begin(run)
    same = {"parent_uid": -1, "hyperparameters": {"lr": 1e-3}, "architecture": "", "mutation": ""}
    for number, by_uid in enumerate(fitness, generation + 1):
        members = [SimpleNamespace(uid=uid, fitness=score, **same) for uid, score in by_uid.items()]
        callback.on_generation(run, SimpleNamespace(generation=number, members=members))
    return run


def test_ranges_that_members_lack_are_refused_before_anything_is_trained():
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    callback = StudyCallback(optuna.create_study(direction="maximize"), RANGES)
    for own, allowed in ((LR, "lr"), (None, "none")):
        pop = PPO.population(2, *spaces, num_envs=2, learn_step=32, batch_size=32, seed=1, hp_config=own)
        with pytest.raises(ConfigurationError, match=rf"hp_config of StudyCallback has .*gamma.* theirs: {allowed}$"):
            train_on_policy(env, pop=pop, max_steps=64, evo_steps=64, verbose=False, callbacks=[callback])
        assert pop[0].steps == [0]
    env.close()


@pytest.mark.parametrize("directions", [["minimize"], ["maximize", "minimize"]])
def test_a_study_that_does_not_maximize_one_value_is_refused(directions):
    message = re.escape(f"study.directions={directions}; allowed is ['maximize'], because a member has one fitness")
    with pytest.raises(ConfigurationError, match=message):
        StudyCallback(optuna.create_study(directions=directions), LR)


def found_in(study):
    return [(trial.user_attrs["uid"], trial.intermediate_values, trial.value) for trial in study.trials]


def test_a_run_that_restarts_from_a_checkpoint_has_no_trials_of_what_followed_it(tmp_path):
    study = optuna.create_study(direction="maximize")
    callback, both = StudyCallback(study, LR), {0: 1.0, 1: 2.0}
    observe(callback, tmp_path, both, {0: 1.5, 1: 2.5}, {0: 1.5, 1: 2.5}, {0: 3.0, 2: 4.0})
    added = (1, {1: 2.0, 2: 2.5, 3: 2.5}, 2.5)
    assert found_in(study) == [added]  # Optuna removes no trial
    run = observe(callback, tmp_path, {0: 1.0, 1: 2.5}, generation=1)
    callback.on_run_end(run, SimpleNamespace(resume=""))
    assert found_in(study) == [added, (0, {1: 1.0, 2: 1.0}, 1.0), (1, {2: 2.5}, 2.5)]


def test_a_member_that_the_continued_run_has_lost_is_added_as_it_was_at_the_checkpoint(tmp_path):
    study = optuna.create_study(direction="maximize")
    callback = StudyCallback(study, LR)
    observe(callback, tmp_path, {0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.5})
    observe(callback, tmp_path, {0: 1.0, 2: 2.0}, generation=1)
    assert found_in(study) == [(1, {1: 2.0}, 2.0)]


def test_members_of_a_stopped_run_are_not_trials_of_a_new_one(tmp_path):
    study = optuna.create_study(direction="maximize")
    callback = StudyCallback(study, LR)
    observe(callback, tmp_path / "first", {0: 1.0, 1: 2.0})
    run = observe(callback, tmp_path / "second", {0: 3.0})
    callback.on_run_end(run, SimpleNamespace(resume=""))
    assert found_in(study) == [(0, {1: 3.0}, 3.0)]


def test_a_member_that_was_added_after_the_last_checkpoint_is_not_added_again_by_the_resumed_run(monkeypatch, tmp_path):
    study = optuna.create_study(direction="maximize")
    get_trials, copies = study.get_trials, []
    monkeypatch.setattr(
        study, "get_trials", lambda deepcopy=True, **given: copies.append(deepcopy) or get_trials(deepcopy, **given)
    )

    def generations(run_dir):
        observe(StudyCallback(study, LR), run_dir, {0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})

    generations(Path("runs/a/seed1")), generations(Path("runs/a/seed1").resolve())
    assert not any(copies)  # copies of all trials for each member would take long in long studies
    assert [trial.user_attrs["uid"] for trial in study.trials] == [1]
    generations(Path("runs/b/seed1"))  # another run of the same name and seed
    assert len(study.trials) == 2
    generations(None), generations(None)  # runs without a folder cannot be resumed
    assert len(study.trials) == 4
    for begun in ("2026-11-30 10:00:00 UTC", "2026-11-30 11:00:00 UTC"):  # a second run in the folder of the first
        (tmp_path / "run.json").write_text(json.dumps({"begun": begun}))
        generations(tmp_path), generations(tmp_path)
    assert [trial.user_attrs["begun"][11:13] for trial in study.trials[4:]] == ["10", "11"]


def test_the_params_of_a_trial_become_settings_again():
    study = optuna.create_study(direction="maximize")
    callback = StudyCallback(study, RANGES)
    study.add_trial(as_trial(RANGES, VALUES, 1.0))
    settings = callback.settings(study.best_params)
    assert settings == {**VALUES, "lr": pytest.approx(1e-3), "gamma": pytest.approx(0.99)}
    assert PPO(Box(-1, 1, (2,)), Discrete(2), **settings).batch_size == 32
    assert callback.settings({"1 - gamma": 0.05}) == {"gamma": pytest.approx(0.95)}
    with pytest.raises(ConfigurationError, match="params='gamma' is unknown; did you mean '1 - gamma'"):
        callback.settings({"gamma": 0.95})


def test_a_run_is_searched_by_a_sampler_and_shown_in_a_study():
    ranges = HyperparameterConfig(lr=RLParameter(1e-5, 1e-2), target_kl=Choice([None, 0.02]))
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(4, *spaces, num_envs=2, learn_step=32, batch_size=32, seed=1, hp_config=ranges)
    study = optuna.create_study(direction="maximize")
    train_on_policy(
        env, "CartPole-v1", "PPO", pop, max_steps=192, evo_steps=64, eval_loop=2, eval_steps=20, verbose=False,
        selection_strategy=TruncationSelection(), mutation=OptunaExplorer(), callbacks=[StudyCallback(study, ranges)],
    )  # fmt: skip
    env.close()
    assert len(study.trials) == 4 + 2  # two selections, each of which replaced one member
    assert sum(len(trial.intermediate_values) for trial in study.trials) == 3 * 4
    last = [trial for trial in study.trials if max(trial.intermediate_values) == 3]
    assert len(last) == 4
    assert all(trial.datetime_start < trial.datetime_complete for trial in study.trials)
    (first_end,) = {trial.datetime_complete for trial in study.trials if max(trial.intermediate_values) == 1}
    (second_start,) = {trial.datetime_start for trial in study.trials if min(trial.intermediate_values) == 2}
    assert first_end == second_start
    assert all(trial.value == trial.intermediate_values[3] for trial in last)
    assert {trial.user_attrs["mutation"] for trial in study.trials} > {"None"}
    assert study.best_trial.params.keys() == {"lr", "target_kl"}
    other = HyperparameterConfig(lr=RLParameter(1e-6, 1e-2))
    with pytest.raises(
        ConfigurationError, match=r"has lr=FloatDistribution.*allowed are equal ranges, or another study"
    ):
        StudyCallback(study, other)
    with pytest.raises(ConfigurationError, match=r"study=3 and hp_config=.*; allowed are a study of Optuna"):
        StudyCallback(3, ranges)
