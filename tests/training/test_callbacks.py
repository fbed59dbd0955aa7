"""Callbacks in a run: what they receive, stopping, errors, and resuming."""

import gc
import json
import math
import os
import signal

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from small_runs import SMALL

from agilerl_like import (
    DQN,
    IPPO,
    PPO,
    HyperparameterConfig,
    Mutations,
    Population,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
)
from agilerl_like.cli import main
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import Callback, CallbackError, Reporter, read_lineage, read_metrics
from agilerl_like.storage.run_lock import RunLock, is_locked
from agilerl_like.storage.safe_folder import LazyTensors
from agilerl_like.training import train_on_policy
from agilerl_like.training.loop import TrainingLoop
from agilerl_like.training.settings_guard import settings_guard
from agilerl_like.training.sharding import ShardedPopulation

MEMBERS, ENVS, EVO_STEPS, GENERATIONS = 3, 2, 64, 4


pytestmark = pytest.mark.usefixtures("empty_folder")


def train(callbacks=(), *, generations=GENERATIONS, folder=None, resume=None, verbose=False, **options):
    env = make_vect_envs("CartPole-v1", ENVS, backend="vector")
    population = PPO.population(
        MEMBERS,
        env.single_observation_space,
        env.single_action_space,
        num_envs=ENVS,
        learn_step=32,
        batch_size=16,
        update_epochs=1,
        seed=3,
        net_config=SMALL,
        hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)),
    )
    try:
        return train_on_policy(
            env,
            pop=population,
            max_steps=EVO_STEPS * generations,
            evo_steps=EVO_STEPS,
            eval_loop=1,
            eval_steps=20,
            checkpoint=EVO_STEPS,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(no_mutation=0.2, architecture=0.4, parameters=0.2, rl_hp=0.2),
            run_dir=folder,
            resume=resume,
            callbacks=callbacks,
            verbose=verbose,
            **options,
        )
    finally:
        env.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Population and fitness of a run without callbacks, which is not interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        return train()


def equal(one, other):
    (documents, tensors), (other_documents, other_tensors) = one.to_documents(), other.to_documents()
    return repr(documents) == repr(other_documents) and all(  # nan differs from itself
        torch.equal(tensor, other_tensors[name][key])
        for name, named in tensors.items()
        for key, tensor in named.items()
    )


class Recorder(Callback):
    """Records every event."""

    def __init__(self):
        self.events, self.steps, self.metrics, self.summary = [], 0, [], None

    def on_run_begin(self, run):
        self.events.append(("begin", run.record.population_size, run.env_steps))

    def on_step(self, run):
        self.steps += 1
        assert run.env_steps == self.steps * ENVS * MEMBERS
        assert run.generation == 1 + sum(event[0] == "generation" for event in self.events)

    def on_update(self, run, metrics):
        self.events.append(("update", run.env_steps))
        self.metrics.append(metrics)

    def on_generation(self, run, record):
        assert run.generation == record.generation
        assert [agent.fitness[-1] for agent in run.population] == [member.fitness for member in record.members]
        self.events.append(("generation", record.generation))

    def on_offspring(self, run, offspring):
        if offspring:
            self.events.append(("offspring", run.generation, len(offspring)))

    def on_run_end(self, run, summary):
        self.events.append("end")
        self.summary = summary

    def close(self):
        self.events.append("closed")


def test_events_and_their_order():
    recorder = Recorder()
    train([recorder], generations=2)
    samples = 32 * MEMBERS
    assert recorder.events == [
        ("begin", MEMBERS, 0),
        ("offspring", 0, MEMBERS),
        *(("update", count * samples) for count in (1, 2)),
        ("generation", 1),
        ("offspring", 1, MEMBERS),
        *(("update", count * samples) for count in (3, 4)),
        ("generation", 2),
        "end",
        "closed",
    ]
    assert recorder.steps == 2 * EVO_STEPS // ENVS
    assert all(set(metrics) == set(range(MEMBERS)) for metrics in recorder.metrics)
    assert all(math.isfinite(of_member["value_loss"]) for metrics in recorder.metrics for of_member in metrics.values())
    assert recorder.summary.reason == "budget spent"


class LockAtClose(Callback):
    """Records whether a folder is locked when the run closes its callbacks."""

    def __init__(self, folder):
        self.folder, self.locked = folder, []

    def close(self):
        self.locked.append(is_locked(self.folder))


def test_callbacks_are_closed_before_the_folder_is_unlocked(tmp_path):
    """Otherwise a second run could write its records, or log to W&B, while the first one still does."""
    folder = tmp_path / "run"
    callback = LockAtClose(folder)
    train([callback], generations=2, folder=folder)
    assert callback.locked == [True]
    assert not is_locked(folder)


def test_callbacks_of_a_run_whose_folder_is_in_use_are_closed(tmp_path):
    callback = LockAtClose(tmp_path / "run")
    with RunLock(tmp_path / "run"), pytest.raises(ConfigurationError, match="is in use by another run"):
        train([callback], folder=tmp_path / "run")
    assert len(callback.locked) == 1


def test_callbacks_change_nothing(whole):
    (with_callbacks, fitness), (without, same_fitness) = train([Recorder()]), whole
    assert fitness == same_fitness
    assert equal(with_callbacks, without)


class StopAt(Callback):
    """Stops the run at the n-th call of a method."""

    def __init__(self, method, call, reason=""):
        self.calls = 0

        def stop(run, *_):
            self.calls += 1
            if self.calls == call:
                run.stop(reason)

        setattr(self, method, stop)


class StopAtStep(Callback):
    def on_step(self, run):
        if run.env_steps >= 2.5 * EVO_STEPS * MEMBERS:
            run.stop("time is up")


class Counts(Callback):
    """Tracks the number of calls of `on_step` in a generation, once, and the number of each update: 1, 2, 3, 4."""

    def __init__(self):
        self.steps = self.updates = 0

    def on_step(self, run):
        self.steps += 1

    def on_update(self, run, metrics):
        self.updates += 1
        run.track("updates", self.updates)

    def on_generation(self, run, record):
        run.track("steps, of the vector env", self.steps)
        self.steps = 0


def test_tracked_numbers_are_in_the_records_of_their_generation(tmp_path, capsys):
    train([Counts()], generations=2, folder=tmp_path / "run", tensorboard=True)
    rows = read_metrics(tmp_path / "run")
    steps = EVO_STEPS / ENVS
    assert [row["callback/steps, of the vector env"] for row in rows] == [steps] * 2 * MEMBERS
    # two updates in each generation: (1 + 2) / 2 and (3 + 4) / 2
    assert [row["callback/updates"] for row in rows] == [1.5] * MEMBERS + [3.5] * MEMBERS
    pytest.importorskip("tensorboard", reason="an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = {path.parent for path in (tmp_path / "run").rglob("*tfevents*")}
    events = EventAccumulator(str(folder)).Reload()
    found = [(one.step, one.value) for one in events.Scalars("callback/updates")]
    assert found == [(EVO_STEPS * MEMBERS, 1.5), (2 * EVO_STEPS * MEMBERS, 3.5)]


def test_a_callback_that_stops_is_in_every_record_of_the_end(tmp_path, capsys):
    train([StopAt("on_generation", 2, "no progress")], folder=tmp_path / "run", verbose=True)
    assert "\nstopped: no progress\n" in capsys.readouterr().out
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (document["outcome"], document["generation"]) == ("stopped: no progress", 2)
    assert main(["runs", str(tmp_path)]) == 0
    assert "  stopped: no progress  " in capsys.readouterr().out


def test_stop_after_a_generation_resumes_from_it_to_the_same_bits(whole, tmp_path):
    population, fitness = whole
    end = Recorder()
    stopped, _ = train([StopAt("on_generation", 2, "no progress"), end], folder=tmp_path / "run")
    assert end.summary.reason == "stopped: no progress"
    assert "resume" in end.summary.resume
    assert len(stopped) == MEMBERS
    assert {row["generation"] for row in read_metrics(tmp_path / "run")} == {1, 2}
    assert [agent.steps[-1] for agent in stopped] == [2 * EVO_STEPS] * MEMBERS
    resumed, resumed_fitness = train([Callback()], resume=tmp_path / "run")
    assert resumed_fitness == fitness
    assert equal(resumed, population)
    assert {birth.generation for birth in read_lineage(tmp_path / "run")} == {0, 1, 2, 3}


def test_a_run_resumed_before_an_evolution_shards_its_members_after_it_as_an_uninterrupted_run_does(
    tmp_path, monkeypatch
):
    sharded, rebalance = [], ShardedPopulation.rebalance

    def record(members):
        sharded.append([agent.index for agent in members.population])
        rebalance(members)

    monkeypatch.setattr(ShardedPopulation, "rebalance", record)
    train()
    uninterrupted, sharded = sharded, []
    train([StopAt("on_generation", 2)], folder=tmp_path / "run")
    train(resume=tmp_path / "run")
    assert sharded == uninterrupted
    assert len(sharded) == GENERATIONS - 1


class CountsOffspring(Callback):
    """Tracks the number of births of each evolution, which counts for the next generation."""

    def on_offspring(self, run, offspring):
        if offspring:
            run.track("births", len(offspring))


def test_numbers_tracked_at_an_evolution_before_the_checkpoint_are_in_the_metrics_of_a_resumed_run(tmp_path):
    train([CountsOffspring(), StopAtStep()], folder=tmp_path / "run")
    train([CountsOffspring()], resume=tmp_path / "run")
    assert [row["callback/births"] for row in read_metrics(tmp_path / "run")] == [MEMBERS] * GENERATIONS * MEMBERS


@pytest.mark.parametrize(
    "callback",
    [
        StopAtStep(),
        StopAt("on_update", 5, "time is up"),
        StopAt("on_update", 6, "time is up"),  # the last of generation 3
        StopAt("on_offspring", 5, "time is up"),  # the evolution after generation 2
        StopAt("on_offspring", 6, "time is up"),  # what was replaced in generation 3: none
    ],
)
def test_stop_within_a_generation_resumes_from_the_checkpoint_before_it(whole, tmp_path, callback):
    population, fitness = whole
    end = Recorder()
    end.on_step = lambda run: None
    stopped, _ = train([callback, end], folder=tmp_path / "run")
    assert end.summary.reason == "stopped: time is up"
    assert len(stopped) == MEMBERS
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["gen-000001", "gen-000002"]
    resumed, resumed_fitness = train(resume=tmp_path / "run")
    assert resumed_fitness == fitness
    assert equal(resumed, population)


def test_a_resumed_run_does_not_keep_the_tensors_of_its_checkpoint(tmp_path):
    def alive():
        gc.collect()
        return sum(type(its) is LazyTensors for its in gc.get_objects())

    class Counts(Callback):
        def on_generation(self, run, record):
            counts.append(alive())

    train([StopAt("on_generation", 2, "enough")], folder=tmp_path / "run")
    before, counts = alive(), []
    train([Counts()], resume=tmp_path / "run")
    assert counts == [before] * (GENERATIONS - 2)


def test_a_signal_counts_more_than_a_callback(tmp_path):
    class Both(Callback):
        def on_update(self, run, metrics):
            run.stop()
            os.kill(os.getpid(), signal.SIGINT)

    end = Recorder()
    end.on_step = lambda run: None
    train([Both(), end], folder=tmp_path / "run")
    assert end.summary.reason == "interrupted"


def test_a_signal_breaks_off_the_evaluation_that_follows_a_callbacks_stop(monkeypatch, tmp_path):
    evaluate, ends = TrainingLoop._evaluate, []

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        records, stop_signal = evaluate(self)
        ends.append(stop_signal)
        return records, stop_signal

    monkeypatch.setattr(TrainingLoop, "_evaluate", interrupted)
    end = Recorder()
    end.on_step = lambda run: None
    train([StopAt("on_update", 1, "time is up"), end], folder=tmp_path / "run")
    assert ends == [signal.SIGINT]
    assert end.summary.reason == "stopped: time is up"


@pytest.mark.parametrize("method", ["on_step", "on_update", "on_generation", "on_offspring", "on_run_end"])
def test_an_error_of_a_callback_is_raised_after_the_run_was_saved(whole, tmp_path, method):
    def fail(self, *_):
        raise ZeroDivisionError("no episodes")

    callback = type("Broken", (Callback,), {method: fail})()
    with pytest.raises(CallbackError, match=rf"^callback Broken\.{method} raised ZeroDivisionError: no episodes$"):
        train([callback], folder=tmp_path / "run")
    assert (tmp_path / "run" / "population" / "manifest.json").is_file()
    assert (tmp_path / "run" / "best" / "manifest.json").is_file()
    resumed, fitness = train(resume=tmp_path / "run")
    population, whole_fitness = whole
    assert fitness == whole_fitness
    assert equal(resumed, population)


class Sets(Callback):
    """Sets an attribute of some members, by default of all, in the second generation."""

    def __init__(self, name, value, members=slice(None)):
        self.name, self.value, self.members = name, value, members

    def on_generation(self, run, record):
        if record.generation == 2:
            for agent in run.population[self.members]:
                setattr(agent, self.name, self.value)


def test_an_error_of_a_callback_that_has_set_an_illegal_value_is_the_one_that_is_raised(tmp_path):
    class Halves(Callback):
        def on_generation(self, run, record):
            for agent in run.population:
                agent.batch_size //= 1000
                agent.learn_step = 2048 // agent.batch_size

    with pytest.raises(CallbackError, match=r"^callback Halves\.on_generation raised ZeroDivisionError"):
        train([Halves()], folder=tmp_path / "run")
    assert all(agent.batch_size > 0 for agent in Population.load(tmp_path / "run" / "population"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", "fast", r"lr='fast': input should be a valid number"),
        ("lr", -1.0, r"lr=-1\.0: input should be greater than 0"),
        ("batch_size", 100_000, r"batch_size=100000 is larger than the rollout"),
        ("hp_config", None, r"hp_config=None; allowed is a HyperparameterConfig"),
        ("hp_config", HyperparameterConfig(lr=RLParameter(0.5, 0.6)), r"lr=\S+ lies outside its range \[0\.5, 0\.6\]"),
    ],
)
def test_an_illegal_setting_of_a_callback_names_it_and_the_run_is_saved_without(name, value, message, tmp_path):
    with pytest.raises(CallbackError, match=rf"callback Sets\.on_generation raised ValueError: member \d+: {message}"):
        train([Sets(name, value)], folder=tmp_path / "run")
    saved = Population.load(tmp_path / "run" / "population")
    assert all(getattr(agent, name) != value for agent in saved)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("normalize_advantage", "minibatch", r"normalize_advantage=\[.*\] must be the same for all agents"),
        (
            "index",
            99,
            r"index=99 \(before: \d+\) cannot be set in a run; allowed are hp_config and the settings of PPO",
        ),
        ("seed", 7, r"seed=7 \(before: 3\) cannot be set in a run"),
        ("hp_config", HyperparameterConfig(lr=RLParameter(0.5, 0.9)), r"lr=.* lies outside its range \[0\.5, 0\.9\]"),
        ("hp_config", {"lr": RLParameter(1e-4, 0.9)}, r"hp_config=\{.*; allowed is a HyperparameterConfig"),
    ],
)
def test_an_attribute_by_which_a_population_could_not_be_loaded_is_refused_and_not_saved(
    name, value, message, tmp_path
):
    with pytest.raises(CallbackError, match=rf"callback Sets\.on_generation raised ValueError: member \d+: {message}"):
        train([Sets(name, value, slice(1, 2))], folder=tmp_path / "run")
    saved = Population.load(tmp_path / "run" / "population")
    assert all(getattr(agent, name) != value for agent in saved)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", "sum", "rewards='sum' .* cannot be set in a run"),
        ("agent_id_one_hot", True, "agent_id_one_hot=True .* cannot be set in a run"),
        ("group_factors", {"lr": {"a": 0.5}}, "group_factors=.* must be equal for all teams"),
    ],
)
def test_an_attribute_of_one_team_is_refused_and_restored(name, value, message):
    spaces, actions = {"a_0": Box(-1, 1, (2,)), "b_0": Box(-1, 1, (2,))}, {"a_0": Discrete(2), "b_0": Discrete(2)}
    population = IPPO.population(2, spaces, actions, seed=0, net_config=SMALL)
    before = getattr(population[1], name)
    with pytest.raises(ValueError, match=f"member 1: {message}"), settings_guard(population, 1):
        setattr(population[1], name, value)
    assert getattr(population[1], name) == before


def test_the_size_of_a_replay_cannot_be_set_in_a_run():
    population = DQN.population(1, Box(-1, 1, (4,)), Discrete(2), seed=0, net_config=SMALL, memory_size=20_000)
    message = r"member 0: memory_size=40000 \(before: 20000\) cannot be set in a run"
    with pytest.raises(ValueError, match=message), settings_guard(population, 1):
        population[0].memory_size = 40_000


def test_a_legal_setting_of_a_callback_stays():
    population, _ = train([Sets("gamma", 0.9)], generations=2)
    assert {agent.gamma for agent in population} == {0.9}


def test_a_setting_of_a_callback_is_refused_where_several_processes_train_the_members():
    population = PPO.population(2, Box(-1, 1, (4,)), Discrete(2), seed=0, net_config=SMALL, lr=1e-3)
    message = (
        r"member 1: lr=0\.002 \(before: 0\.001\): with processes=2 a callback .*; allowed are schedules, an explorer"
    )
    with pytest.raises(ValueError, match=message), settings_guard(population, 2):
        population[1].lr = 2e-3
    assert population[1].lr == 1e-3
    with settings_guard(population, 2):
        population[1].lr *= 1.0
        population[1].note = "an attribute of the script's own"
    with settings_guard(population, 1):
        population[1].lr = 2e-3
    assert population[1].lr == 2e-3


def test_an_error_at_the_beginning_is_raised_before_anything_is_trained(tmp_path):
    class Broken(Callback):
        def on_run_begin(self, run):
            raise ZeroDivisionError

    with pytest.raises(CallbackError, match=r"callback Broken\.on_run_begin raised ZeroDivisionError"):
        train([Broken()], folder=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_reporters_may_be_passed_as_callbacks_and_fail_to_write():
    class Full(Reporter):
        def progress(self, env_steps):
            raise OSError(28, "No space left on device")

    warnings = Recorder()
    warnings.on_step = lambda run: None
    warnings.on_warning = warnings.events.append
    train([Full(), warnings], generations=1)
    assert "Full stopped: [Errno 28] No space left on device. Training continues without it." in warnings.events


class StopsAtUpdate(Callback):
    def on_update(self, run, metrics):
        if run.generation == 2:
            run.stop("enough")


def test_a_callback_stops_all_processes(tmp_path):
    end = Recorder()
    end.on_step = lambda run: None
    end.on_generation = lambda run, record: None  # this process has two of the members
    population, _ = train([StopsAtUpdate(), end], folder=tmp_path / "run", processes=2)
    assert end.summary.reason == "stopped: enough"
    assert len(population) == MEMBERS
