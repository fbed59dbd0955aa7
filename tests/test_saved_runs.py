"""`Run`, and the commands report, runs, compare, replay and demo, on runs of a few seconds."""

import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from agilerl_like import ConfigurationError, Run, evaluate
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.cli import main
from agilerl_like.hpo import Selection, SlotForBest, SlotPlan, ranking
from agilerl_like.modules import MLPSpec
from agilerl_like.networks import network_mutation
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.registry import registered
from agilerl_like.reporting import Callback, formatting
from agilerl_like.saved_runs import (
    Replay,
    find_runs,
    marl_eval,
    marl_eval_results,
    methods_of,
    replay,
    replay_run,
    train_initial_members,
)
from agilerl_like.saved_runs.replay import with_mutation
from agilerl_like.storage.run_lock import RunLock, is_locked
from agilerl_like.training.lineage import steps_before
from agilerl_like.training.provenance import git_state

TINY = """
environment:
  id: CartPole-v1
  num_envs: 4
  wrappers: [{name: TimeLimit, max_episode_steps: 20}]
population: {size: 4}
algorithm: {learn_step: 64, batch_size: 32}
hyperparameters: {lr: {min: 1e-5, max: 1e-2}, gamma: {min: 0.5, max: 0.999}}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 16}
mutation: {architecture: 0.5, rl_hp: 0.5}
training: {max_steps: 640, evo_steps: 128, eval_loop: 2}
"""


@dataclass(frozen=True)
class BestReturns(Selection):
    """A mutated clone of the best agent replaces the worst member wherever no member leads it; all others stay."""

    def slot_for_best(self, view):
        worst = int(ranking(view.fitness, view.uids)[-1])
        return None if view.best_returns is None else SlotForBest(worst, explore=True)

    def plan(self, view, rng):
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(TINY)
    for seed in (3, 4):
        options = ["--run.dir", str(folder / "runs"), "--run.name", f"s{seed}", "--run.plot", "false"]
        assert main(["train", str(folder / "tiny.yaml"), "--seed", str(seed), *options]) == 0
    return folder / "runs"


@pytest.fixture
def run_dir(runs, tmp_path):
    return shutil.copytree(runs / "s3", tmp_path / "s3")


def test_find_runs_refuses_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigurationError, match=r"folder='.*nope' does not exist; allowed is a folder with runs"):
        list(find_runs(tmp_path / "nope"))


class TestRun:
    def test_is_read_where_it_was_after_the_directory_changes(self, run_dir, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = Run.open("s3")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert (run.generations(), run.best().algo, len(run.history())) == (5, "PPO", 6)
        assert repr(run) == "Run('s3')"

    @pytest.mark.slow
    def test_has_the_records_of_the_folder(self, runs):
        run = Run.open(runs / "s3")
        assert (run.name, run.is_running, run.generations()) == ("s3", False, 5)
        assert run.config["environment"]["id"] == "CartPole-v1"
        assert len(run.metrics()) == 20
        assert [row["slot"] for row in run.members_in_generation(2)] == [0, 1, 2, 3]
        assert {birth.uid for birth in run.lineage() if birth.generation == 0} == {0, 1, 2, 3}
        with pytest.raises(ConfigurationError, match=r"generation=6; allowed are 1 to 5"):
            run.members_in_generation(6)
        with pytest.raises(ConfigurationError, match="has no opponents of earlier generations: allowed is a run with"):
            run.opponent_pool()

    def test_loads_the_best_agent_and_the_last_members(self, runs):
        run = Run.open(runs / "s3")
        best, last = run.best(), run.population()
        assert best.fitness[-1] == run.metrics()[-1]["population/best_ever"]
        assert [agent.index for agent in last] == [row["uid"] for row in run.members_in_generation(5)]

    def test_ancestry_leads_to_the_genome_of_the_best_agent(self, runs):
        for name in ("s3", "s4"):
            run = Run.open(runs / name)
            first, *_, last = [run.ancestry()[0], *run.ancestry()]
            assert first.parent_uid == -1
            assert dict(last.hyperparameters) == {name: run.best().hyperparameters[name] for name in ("gamma", "lr")}
            assert last.architecture == run.best().architecture.describe()

    def test_makes_its_environment(self, runs):
        run = Run.open(runs / "s3")
        with contextlib.closing(run.env(3)) as env:
            assert env.num_envs == 3
            played = evaluate(run.best(), env, episodes=4, seed=1)
        assert played.lengths.max() <= 20  # the TimeLimit of the run's configuration

    def test_makes_its_environment_where_ranges_alone_make_its_settings_valid(self, run_dir):
        settings = yaml.safe_load((run_dir / "config.yaml").read_text())
        settings["algorithm"]["batch_size"] = 128  # more than a rollout of 64 steps, but it evolves
        settings["hyperparameters"]["batch_size"] = {"min": 8, "max": 64}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(settings))
        run = Run.open(run_dir)
        assert run.validated_config().algorithm.batch_size == 128
        with contextlib.closing(run.env(3)) as env:
            assert env.num_envs == 3

    def test_refuses_a_folder_that_is_no_run(self, tmp_path):
        with pytest.raises(ConfigurationError, match="is no folder of a run"):
            Run.open(tmp_path)

    def test_sees_a_run_that_is_running(self, run_dir, capsys):
        assert not is_locked(run_dir)
        with RunLock(run_dir):
            assert Run.open(run_dir).is_running
            assert main(["report", str(run_dir)]) == 0
            assert "still running" in capsys.readouterr().out
        assert not is_locked(run_dir)


class TestProvenance:
    def test_run_document_has_command_versions_and_outcome(self, runs):
        document = Run.open(runs / "s3").provenance
        assert document["env"] == "CartPole-v1"
        assert document["outcome"] == "budget spent"
        assert document["versions"]["torch"] == torch.__version__
        assert document["best"]["fitness"] == Run.open(runs / "s3").metrics()[-1]["population/best_ever"]
        assert {"command", "begun", "ended", "host", "git", "torch_threads"} <= document.keys()

    def test_git_state_of_a_changed_file(self, tmp_path):
        if shutil.which("git") is None:
            pytest.skip("git is not installed")

        def git(*arguments):
            names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
            return subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)

        assert git_state(tmp_path) == {}
        git("init", "-q")
        (tmp_path / "file").write_text("1")
        git("add", ".")
        git("commit", "-qm", "first")
        commit = git("rev-parse", "HEAD").stdout.strip()
        assert git_state(tmp_path) == {"commit": commit, "dirty": False}
        (tmp_path / "file").write_text("2")
        assert git_state(tmp_path) == {"commit": commit, "dirty": True}

    def test_resumed_run_keeps_its_beginning(self, run_dir):
        before = json.loads((run_dir / "run.json").read_text())
        assert main(["resume", str(run_dir), "--training.max-steps", "768", "--run.plot", "false"]) == 0
        after = json.loads((run_dir / "run.json").read_text())
        assert (after["begun"], after["git"]) == (before["begun"], before["git"])
        assert [one["host"] for one in after["resumed"]] == [before["host"]]
        assert after["generation"] == 6


class KeepsMembers(Callback):
    """Keeps copies of the members as they were evaluated last."""

    def on_generation(self, run, record):
        self.members = [agent.clone() for agent in run.population]


def number_of_changes(run):
    return sum(
        (birth.hyperparameters, birth.architecture) != (birth.parent_hyperparameters, birth.parent_architecture)
        for birth in run.ancestry()[1:]
    )


class Diverges(Callback):
    """Makes the weights of the member in a slot nan in the first generation."""

    def __init__(self, slot):
        self.slot, self.is_done = slot, False

    def on_step(self, run):
        if not self.is_done:
            self.is_done = True
            with torch.no_grad():
                next(run.population[self.slot].learner.network.parameters()).fill_(math.nan)


class Start(Callback):
    """Keeps the record of a run."""

    def on_run_begin(self, run):
        self.record = run.record


class TestReplay:
    @pytest.mark.parametrize("slot", [1, 3])
    def test_an_agent_that_diverges_has_no_return_and_the_clone_of_another_no_part(self, runs, slot):
        start = Start()
        result = replay_run(Run.open(runs / "s3"), seeds=2, seed=9, callbacks=[Diverges(slot), start])
        assert start.record.equal_start == {}  # the members of a replay do not search from these values
        returns = [*result.replayed, *result.unchanged]
        assert [math.isnan(its) for its in returns] == [place == slot for place in range(4)]

    def test_a_run_that_was_resumed_with_longer_generations_is_replayed_in_those_it_began_with(self, runs, tmp_path):
        folder = shutil.copytree(runs / "s3", tmp_path / "longer")
        data = yaml.safe_load((folder / "config.yaml").read_text())
        data["training"]["evo_steps"] = 2000
        (folder / "config.yaml").write_text(yaml.safe_dump(data))
        result, run = replay_run(Run.open(folder), seeds=1, seed=9), Run.open(folder)
        assert result.changes > 0
        assert {name: result.hyperparameters[name] for name in ("gamma", "lr")} == {
            name: run.best().hyperparameters[name] for name in ("gamma", "lr")
        }

    def test_records_of_hyperparameters_and_architecture_are_changes_and_noise_is_none(self, runs, monkeypatch):
        run = Run.open(runs / "s3")
        first = run.ancestry()[0]
        kinds = ["parameters", "none", "rl_hp", "architecture", "activation"]
        births = [
            replace(first, generation=i, uid=8 + i, parent_uid=7 + i, mutations=({"kind": kind, "operator": "own"},))
            for i, kind in enumerate(kinds, 1)  # `describe` need not show the field that an operator changes
        ]
        monkeypatch.setattr(Run, "ancestry", lambda self: (first, *births))
        assert run.num_changes == 3

    @pytest.mark.parametrize(("before", "after"), [("auto", "none"), ("none", "auto")])
    def test_noise_evolves_as_in_the_run_before_evolution_was_changed(self, tmp_path, monkeypatch, before, after):
        settings = re.sub("mutation: .*", f"run: {{dir: {tmp_path}, name: noisy, plot: false}}", TINY)
        (tmp_path / "noisy.yaml").write_text(settings.replace("CartPole-v1", "Pendulum-v1"))
        for command, evolution, steps in (("train", before, "256"), ("resume", after, "640")):
            path = str(tmp_path / {"train": "noisy.yaml", "resume": "noisy"}[command])
            assert main([command, path, "--evolution", evolution, "--training.max-steps", steps, "--quiet"]) == 0
        run = Run.open(tmp_path / "noisy")
        assert replay_run(run, seeds=1, seed=9).hyperparameters.keys() == run.best().hyperparameters.keys()
        members = []
        monkeypatch.setattr(replay, "_trained", lambda experiment, *_: (None, members.extend(experiment.population)))
        train_initial_members(run)
        assert [agent.hyperparameters for agent in members] == [birth.hyperparameters for birth in run.lineage()[:4]]

    @pytest.mark.parametrize("name", ["s3", "s4"])
    def test_ends_with_the_genome_of_the_best_agent(self, runs, name):
        run = Run.open(runs / name)
        result = replay_run(run, seeds=2, seed=9)
        best = run.best()
        assert {n: result.hyperparameters[n] for n in ("gamma", "lr")} == {
            n: best.hyperparameters[n] for n in ("gamma", "lr")
        }
        assert result.architecture == best.architecture.describe()
        assert result.changes == number_of_changes(run)
        assert len(result.replayed) == len(result.unchanged) == 2
        assert np.isfinite([*result.replayed, *result.unchanged]).all()

    @pytest.mark.slow
    def test_removals_are_those_of_the_lineage(self, tmp_path, monkeypatch):
        """Also where they move the replayed agents' policy too far; the networks are so large that they only shrink."""
        part = "{hidden_size: [64], max_mlp_nodes: 64, max_hidden_layers: 1}"
        network = f"network: {{encoder_config: {part}, head_config: {part}, latent_dim: 64, max_latent_dim: 64}}"
        mutation = "mutation: {no_mutation: 0, architecture: 1, parameters: 0, rl_hp: 0, mutate_elite: true}"
        text = re.sub("mutation: .*", mutation, re.sub("network: .*", network, TINY))
        (tmp_path / "removals.yaml").write_text(text)
        options = ["--run.dir", str(tmp_path), "--run.plot", "false", "--quiet"]
        for seed in range(2, 10):
            assert (
                main(["train", str(tmp_path / "removals.yaml"), "--seed", str(seed), "--run.name", str(seed), *options])
                == 0
            )
            run = Run.open(tmp_path / str(seed))
            if any(change["kind"] == "architecture" for birth in run.ancestry() for change in birth.mutations):
                break
        monkeypatch.setattr(network_mutation, "KL_LIMIT", -1.0)
        replayed = replay_run(run, seeds=2, seed=9)
        assert replayed.changes > 0
        assert replayed.architecture == run.best().architecture.describe()

    def test_a_removal_may_be_smaller_than_those_that_are_drawn(self):
        architecture = NetworkSpec(encoder=MLPSpec((64,)))
        drawn = architecture.choices("encoder.remove_node")
        smaller = {"layer": 0, "nodes": 4, "kl": 0.01, "value_error": 0.1}
        assert all(choice["nodes"] != 4 for choice in drawn)
        assert with_mutation(architecture, "encoder.remove_node", smaller).encoder.hidden_size == (60,)
        for nodes in (0, 64, "4"):
            with pytest.raises(ConfigurationError, match="is not legal"):
                with_mutation(architecture, "encoder.remove_node", {"layer": 0, "nodes": nodes})

    @pytest.mark.slow
    def test_no_member_is_mutated_before_it_trains(self, tmp_path):
        text = TINY.replace("{size: 4}", "{size: 4, pre_training_mutation: true}")
        text = re.sub("mutation: {arch.*", "mutation: {no_mutation: 0, architecture: 0, parameters: 0, rl_hp: 1}", text)
        (tmp_path / "mutated.yaml").write_text(text)
        options = ["--seed", "1", "--run.dir", str(tmp_path), "--run.name", "1", "--run.plot", "false", "--quiet"]
        assert main(["train", str(tmp_path / "mutated.yaml"), *options]) == 0
        run, last = Run.open(tmp_path / "1"), KeepsMembers()
        replay_run(run, seeds=2, seed=9, callbacks=[last])
        initial = run.ancestry()[0].hyperparameters
        for unchanged in last.members[2:]:
            assert {name: unchanged.hyperparameters[name] for name in initial} == initial

    @pytest.mark.slow
    def test_is_reproducible_and_depends_on_the_seed(self, runs):
        run = Run.open(runs / "s3")
        first, again, other = (replay_run(run, seeds=2, seed=seed) for seed in (1, 1, 2))
        assert first.replayed == again.replayed
        assert first.replayed + first.unchanged != other.replayed + other.unchanged

    @pytest.mark.slow
    def test_an_initial_member_that_never_changed_is_replayed_to_the_bit(self, tmp_path):
        """With the run's own seed, the slot of that member is the same agent: its weights, moments and normaliser."""
        (tmp_path / "still.yaml").write_text(re.sub(r"mutation: .*", "mutation: {no_mutation: 1.0}", TINY))
        options = ["--run.dir", str(tmp_path), "--run.plot", "false", "--quiet"]
        for seed in range(4, 14):
            train = ["train", str(tmp_path / "still.yaml"), "--seed", str(seed), "--run.name", str(seed)]
            assert main([*train, *options]) == 0
            run = Run.open(tmp_path / str(seed))
            if len(run.ancestry()) == 1:  # else the best agent is a clone, which has noise of its own
                break
        (initial,) = run.ancestry()
        last = KeepsMembers()
        result = replay_run(run, seeds=4, seed=seed, callbacks=[last])
        best_row = run.records.rows[run.records.best_row]
        assert (result.changes, result.generations) == (0, best_row["generation"])
        replayed, best = (agent.to_documents()[1] for agent in (last.members[initial.slot], run.best()))
        assert replayed.keys() == best.keys()
        assert all(torch.equal(replayed[name], tensor) for name, tensor in best.items())
        replay_run(run, seeds=4, seed=seed + 1, callbacks=[last])
        other = last.members[initial.slot].to_documents()[1]
        assert not all(torch.equal(other[name], tensor) for name, tensor in best.items())

    @pytest.mark.slow
    def test_an_agent_from_a_clone_of_the_best_agent_trains_as_long_as_its_line_did(self, tmp_path, monkeypatch):
        monkeypatch.setitem(registered("selection")._entries, "best_returns", BestReturns)
        lines = [line for line in TINY.splitlines() if not line.startswith(("mutation", "training"))]
        lines += ["selection: {name: best_returns}", "mutation: {name: gaussian}"]
        lines += ["training: {max_steps: 1280, evo_steps: 128, eval_loop: 2}"]
        (tmp_path / "returns.yaml").write_text("\n".join(lines))
        options = ["--run.dir", str(tmp_path), "--run.plot", "false", "--quiet"]
        for seed in range(4, 20):
            train = ["train", str(tmp_path / "returns.yaml"), "--seed", str(seed), "--run.name", str(seed)]
            assert main([*train, *options]) == 0
            run = Run.open(tmp_path / str(seed))
            ancestry = run.ancestry()
            if any(birth.parent_generation is not None for birth in ancestry):
                break
        steps_after = {0: 0} | {int(row["generation"]): int(row["env_steps"]) for row in run.records.rows}
        best, trained = run.records.rows[run.records.best_row], run.best().steps[-1]
        last = steps_after[int(best["generation"])] - steps_after[ancestry[-1].generation]
        assert trained == steps_before(ancestry, steps_after)[-1] + last
        assert trained < steps_after[int(best["generation"])] - steps_after[ancestry[0].generation]
        result = replay_run(run, seeds=1, seed=1)
        assert result.changes == number_of_changes(run)
        assert result.generations == -(-trained // 128)
        assert result.hyperparameters["lr"] == ancestry[-1].hyperparameters["lr"]

    @pytest.mark.slow
    def test_a_replay_follows_all_schedules_up_to_where_the_best_agent_was_found(self, tmp_path):
        lines = [line for line in TINY.splitlines() if not line.startswith(("mutation", "training"))]
        lines += [
            "selection: {name: auto, anneal_from: 0.0}",
            "training: {max_steps: 1280, evo_steps: 128, eval_loop: 2}",
        ]
        (tmp_path / "auto.yaml").write_text("\n".join(lines))
        options = ["--run.dir", str(tmp_path), "--run.plot", "false", "--quiet", "--run.name", "auto", "--seed", "1"]
        assert main(["train", str(tmp_path / "auto.yaml"), *options]) == 0
        run, found, limits = Run.open(tmp_path / "auto"), [], set()

        class Rates(Callback):
            def on_update(self, context, metrics):
                agents = context.population
                found.extend((agents[slot].progress, its["lr"] / agents[slot].lr) for slot, its in metrics.items())
                limits.update(learner.max_steps for learner in agents.all_learners())

        replay_run(run, seeds=1, seed=1, callbacks=[Rates()])
        share = int(run.records.rows[run.records.best_row]["generation"]) / 10
        assert 0 < share < 1  # of the budget
        assert [rate for _, rate in found] == pytest.approx([1 - 0.95 * progress for progress, _ in found])
        assert share / 2 < max(progress for progress, _ in found) < share  # those of the settings depend on it, too
        assert limits == {1280}

    @pytest.mark.slow
    def test_a_replay_measures_what_the_run_measured(self, tmp_path):
        rewards = [{"sutton_barto_reward": True}, {"sutton_barto_reward": False}]
        environment = {"id": "CartPole-v1", "num_envs": 4, "aggregate": "min", "instances": rewards}
        (tmp_path / "min.yaml").write_text(yaml.safe_dump(yaml.safe_load(TINY) | {"environment": environment}))
        options = ["--run.dir", str(tmp_path), "--run.plot", "false", "--quiet", "--run.name", "min", "--seed", "1"]
        assert main(["train", str(tmp_path / "min.yaml"), *options]) == 0
        run = Run.open(tmp_path / "min")
        result = replay_run(run, seeds=2, seed=1)
        assert [result.found, *result.replayed, *result.unchanged] == [-1.0] * 5  # the mean over both is positive
        data = yaml.safe_load((run.folder / "config.yaml").read_text())
        data["training"]["fitness"] = "rating"
        (run.folder / "config.yaml").write_text(yaml.safe_dump(data))
        for compared in (replay_run, train_initial_members):
            with pytest.raises(ConfigurationError, match="rating"):
                compared(Run.open(run.folder))

    def test_a_signal_ends_a_replay_without_a_verdict(self, runs, capsys):
        class Interrupted(Callback):
            def on_generation(self, context, record):
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            replay_run(Run.open(runs / "s3"), seeds=1, seed=1, callbacks=[Interrupted()])

    def test_a_replay_has_the_steps_of_the_run_and_not_its_other_limits(self, runs, tmp_path):
        folder = tmp_path / "limited"
        shutil.copytree(runs / "s3", folder)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["training"] |= {"max_seconds": 1e-3, "max_updates": 1}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        generations = []

        class Counts(Callback):
            def on_generation(self, context, record):
                generations.append(record.generation)

        found = replay_run(Run.open(folder), seeds=1, seed=1, callbacks=[Counts()])
        assert generations[-1] == found.generations

    def test_command_states_whether_the_find_transfers(self, runs, capsys):
        assert main(["replay", str(runs / "s3"), "--seeds", "2", "--seed", "1", "--quiet"]) == 0
        assert "the find" in capsys.readouterr().out.splitlines()[-1]

    def test_folder_without_lineage_is_one_error(self, run_dir, capsys):
        (run_dir / "lineage.jsonl").unlink()
        assert main(["replay", str(run_dir)]) == 2
        assert "lineage.jsonl does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_results_for_marl_eval_have_its_structure(runs):
    """Five generations and the initial members are six steps; CartPole pays 1 a step, of which there are at most 20."""
    found = json.loads(json.dumps(marl_eval_results({"PPO": [runs / "s3", Run.open(runs / "s4")]}, episodes=3, seed=5)))
    assert [*found] == ["gymnasium"]
    assert [*found["gymnasium"]] == ["CartPole-v1"]
    results = found["gymnasium"]["CartPole-v1"]["PPO"]
    assert [*results] == ["run_1", "run_2"]
    for run, steps in results.items():
        assert [*steps] == [*(f"step_{i}" for i in range(1, 7)), "absolute_metrics"], run
        assert [steps[f"step_{i}"]["step_count"] for i in range(1, 7)] == [0, 512, 1024, 1536, 2048, 2560]
        assert len(steps["step_6"]["return"]) == 3
        assert len(steps["absolute_metrics"]["return"]) == 30
        for its in steps.values():
            assert its["return"] == its["episode_length"]
            assert all(0 < score <= 20 for score in its["return"])
    again = marl_eval_results({"PPO": [runs / "s3"]}, episodes=3, seed=5)
    assert again["gymnasium"]["CartPole-v1"]["PPO"]["run_1"] == results["run_1"]


@pytest.mark.parametrize(
    ("given", "episodes", "message"),
    [
        ({"PPO": []}, 3, "runs: 'PPO' has none"),
        ({}, 0, "episodes=0 must be at least 1"),
        ({}, True, "episodes=True must be"),
        ({"A": ["x"]}, np.int64(1), "run='x'"),
    ],
)
def test_wrong_arguments_of_marl_eval_results_are_named(given, episodes, message):
    with pytest.raises(ConfigurationError, match=message):
        marl_eval_results(given, episodes)


def test_steps_after_which_evaluations_cut_episodes_are_a_whole_number_and_no_bool(tmp_path):
    (tmp_path / "config.yaml").write_text("training: {eval_steps: true}")
    with pytest.raises(ConfigurationError, match=r"training\.eval_steps=True in .*; allowed are whole numbers"):
        Run(tmp_path).eval_steps  # noqa: B018  # a property
    (tmp_path / "config.yaml").write_text("training: {eval_steps: 7}")
    assert Run(tmp_path).eval_steps == 7


def test_a_run_whose_environment_no_file_names_has_no_results_for_marl_eval(tmp_path):
    (tmp_path / "config.yaml").write_text("environment: {name: mine}")
    with pytest.raises(ConfigurationError, match="env is missing"):
        marl_eval_results({"PPO": [tmp_path]})


def test_results_for_marl_eval_are_those_of_whole_episodes(monkeypatch):
    lost = np.array([[False, True, False]])
    episodes = Episodes(np.array([[1.0, 50.0, 2.0]]), np.array([[10, 5, 20]]), lost)
    monkeypatch.setattr(marl_eval, "evaluate", lambda *arguments, **options: episodes)
    run = SimpleNamespace(env=lambda trust: io.StringIO(), history=tuple, best=lambda: None, eval_steps=None)
    found = marl_eval._results(run, 3, 0, trust=False)
    assert found == {"absolute_metrics": {"return": [1.0, 2.0], "episode_length": [10, 20]}}


def a_replay(replayed, unchanged, changes=3, found=100.0):
    return Replay(5, changes, found, 1.0, replayed, unchanged, hyperparameters={}, architecture="")


@pytest.mark.parametrize(("error", "text"), [(0.04, "0.95 ± 0.04 (standard error)"), (math.nan, "0.95")])
def test_the_command_prints_the_standard_error_in_the_digits_of_the_fitness(monkeypatch, capsys, error, text):
    result = replace(a_replay([0.9], [0.5], found=0.95), standard_error=error)
    monkeypatch.setattr("agilerl_like.cli.replay.Run", SimpleNamespace(open=lambda folder: folder))
    monkeypatch.setattr("agilerl_like.cli.replay.replay_run", lambda *_, **options: result)
    assert main(["replay", "run", "--seeds", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split(maxsplit=5)[5] == text


def test_a_verdict_without_changes_is_of_all_agents_and_needs_more_than_one_of_two() -> None:
    """All have the same settings; a wide interval shows nothing."""
    assert a_replay([59.2, 500.0], [500.0, 60.0], changes=0, found=400.0).verdict.endswith("is within the noise")
    assert a_replay([8.0], [9.0], changes=0).verdict.endswith("is not shown: an interval needs 4 agents")


def test_two_seeds_do_not_show_that_a_find_transfers() -> None:
    """In 1 of 6 trials without any effect both replayed agents are above both others."""
    assert "is not shown to transfer: an interval needs 4" in a_replay([30, 500], [10, 20], found=500.0).verdict


def test_an_agent_that_diverged_counts_as_the_lowest() -> None:
    result = a_replay([500, 500, math.nan, math.nan, math.nan], [100, 120, 90, 80, 70], found=500.0)
    assert "is not shown to transfer" in result.verdict
    assert result.diverged == "3 of 5 replayed agents diverged, and count as the lowest fitness of all agents"
    assert result.estimate.value == pytest.approx((70 + 70 + 500) / 3)
    one = a_replay([1, 2, 3, math.nan], [1, math.nan, 2, 3])
    assert one.diverged.startswith("1 of 4 replayed and 1 of 4 unchanged agents diverged")
    assert not a_replay([1], [2]).diverged
    assert "is not shown to transfer" in a_replay([math.nan] * 4, [math.nan] * 4).verdict


def test_agents_that_may_be_below_the_best_one_are_not_called_as_good() -> None:
    result = a_replay([30, 40, 50, 60, 500], [9, 9, 9, 10, 10], found=300.0)
    assert result.verdict.endswith("the best agent of the run is within the noise")


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (
            a_replay([98, 99, 100, 101], [10, 11, 12, 13]),
            "transfers: better than the initial settings (by a rough interval); it reaches",
        ),
        (a_replay([98, 99, 100, 101] * 2, [10, 11, 12, 13] * 2), "transfers: better than the initial settings; it r"),
        (a_replay([50, 51, 52, 53], [10, 11, 12, 13]), "transfers: better"),
        (
            a_replay([198, 199, 200, 201], [197, 199, 200, 202]),
            "is not shown to transfer: the difference from the initial settings is within the noise; it reaches",
        ),
        (
            a_replay([10, 11, 12, 13], [98, 99, 100, 101]),
            "does not transfer: the replayed agents are worse than the initial settings (by a rough interval); it does",
        ),
        (a_replay([98, 99, 100, 101], [98, 99, 100, 101], changes=0), "is one setting without changes"),
        (a_replay([8, 9, 10, 11], [8, 9, 10, 11], changes=0), "is one setting without changes"),
        (a_replay([120], [10]), "is not shown to transfer: an interval needs"),  # one seed has no spread
        (a_replay([1], [10]), "is not shown to transfer: an interval needs"),
        (a_replay([98, 99, 100, 101], [10, 11, 12, math.nan]), "transfers: better"),
    ],
)
def test_verdict_needs_the_best_agent_and_the_initial_settings(result, verdict):
    assert f"the find {verdict}" in result.verdict
    if not result.changes:
        reaches = result.replayed[0] > 90
        assert result.verdict.endswith(f"it {'reaches' if reaches else 'does not reach'} the best agent of the run")


class TestCommands:
    def test_runs_lists_every_run(self, runs, capsys):
        assert main(["runs", str(runs)]) == 0
        head, first, second = capsys.readouterr().out.splitlines()
        assert head.split() == [
            "run",
            "env",
            "ended",
            "generations",
            "members",
            "training",
            "steps",
            "evaluation",
            "steps",
            "best",
            "±",
            "standard",
            "error",
            "time",
            "begun",
        ]
        assert first.split()[:4] == ["s3", "CartPole-v1", "budget", "spent"]
        last = Run.open(runs / "s3").records.rows[-1]
        best, error = (last[f"population/best_ever{name}"] for name in ("", "_standard_error"))
        assert f"  {formatting.with_error(best, error)}  " in first
        assert second.startswith("s4 ")

    def test_a_damaged_run_is_listed_with_the_reason(self, run_dir, capsys):
        (run_dir / "metrics.csv").rename(run_dir / "other.csv")
        (run_dir / "metrics.csv").symlink_to(run_dir / "other.csv")  # files of a run are no links
        assert main(["runs", str(run_dir.parent)]) == 0
        out, err = capsys.readouterr()
        assert re.search(rf"^{run_dir.name} +unreadable", out, re.MULTILINE)
        assert re.search(rf"^agilerl-like: {run_dir.name} is unreadable: .*metrics.csv", err, re.MULTILINE)

    def test_names_in_a_run_folder_and_of_it_do_not_control_the_terminal(self, runs, tmp_path, capsys):
        sequence = "\x1b]0;title\x07\x1b[31m\x9b\nforged row"
        folder = shutil.copytree(runs / "s3", tmp_path / f"folder{sequence}")
        document = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**document, "env": sequence, "outcome": sequence}))
        for command in (["runs", str(tmp_path)], ["compare", str(folder), str(runs / "s4")], ["report", str(folder)]):
            assert main(command) == 0
        out = str(tmp_path / f"out{sequence}.csv")
        assert main(["eval", str(folder), "--episodes", "1", "--out", out]) == 0
        assert main(["eval", str(folder), "--env", sequence]) == 2
        written = "".join(capsys.readouterr())
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", written)
        assert not re.search("^forged", written, re.MULTILINE)
        assert written.count(r"\x1b]0;title\x07\x1b[31m\x9b\nforged row") >= 6

    def test_run_without_an_evaluation_has_no_fitness(self, run_dir, capsys):
        """As a run that was stopped within its first generation."""
        with (run_dir / "metrics.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        for row in rows:
            for name in ("eval/mean_reward", "population/best_ever"):
                row[head.index(name)] = "nan"
        with (run_dir / "metrics.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows[:4]])
        assert main(["runs", str(run_dir)]) == 0
        cells = capsys.readouterr().out.splitlines()[1].split()
        assert cells[cells.index("budget") + 6] == "-"
        assert main(["report", str(run_dir)]) == 0
        page = (run_dir / "report.html").read_text(encoding="utf-8")
        assert "<b>-</b><span>best fitness" in page
        assert "inf" not in re.sub(r"<pre>.*?</pre>|[a-z]*inf[a-z]+", "", page)

    def test_film_without_wandb_run(self, runs, tmp_path, capsys):
        assert main(["film", str(runs / "s3"), str(tmp_path / "f.mp4"), "--wandb"]) == 2
        assert "has no wandb-id: it was not logged to W&B" in capsys.readouterr().err
        assert not (tmp_path / "f.mp4").exists()

    def test_report_of_two_runs(self, runs, tmp_path, capsys):
        target = tmp_path / "new" / "both.html"
        assert main(["report", str(runs / "s3"), str(runs / "s4"), "--out", str(target)]) == 0
        assert "Runs side by side" in target.read_text(encoding="utf-8")
        assert (runs / "s3" / "report.html").exists()  # written at the end of the run

    def test_plot_of_two_runs(self, runs, tmp_path, monkeypatch, capsys):
        pytest.importorskip("matplotlib", reason="an extra")
        monkeypatch.chdir(tmp_path)
        assert main(["plot", str(runs / "s3"), str(runs / "s4")]) == 0
        assert main(["plot", str(runs / "s3"), str(runs / "s4"), "--out", "new/paper.pdf"]) == 0
        assert capsys.readouterr().out.split() == ["runs.png", "new/paper.pdf"]
        assert (tmp_path / "new/paper.pdf").read_bytes().startswith(b"%PDF")
        assert main(["plot"]) == 2
        assert "runs are missing" in capsys.readouterr().err

    def test_compare_names_the_settings_that_differ(self, runs, capsys):
        assert main(["compare", str(runs / "s3"), str(runs / "s4")]) == 0
        out = capsys.readouterr().out
        assert re.search(r"\nmean of 2 runs +\d", out)
        assert re.search(r"hyperparameters and architecture of each run's best agent\nbest agent +s3 +s4\n", out)
        assert re.search(r"\narchitecture +16 .*\nweights +[\d,]+ +[\d,]+\n", out)
        assert re.search(r"settings: those that differ\nsetting +s3 +s4\nseed +3 +4\n$", out)
        assert main(["compare", str(runs / "s3")]) == 2
        assert "two runs or more" in capsys.readouterr().err

    def test_compare_prints_each_setting_by_the_name_of_its_option(self, runs, tmp_path, capsys):
        def changed(name, change):
            shutil.copytree(runs / "s3", tmp_path / name)
            config = yaml.safe_load((runs / "s3" / "config.yaml").read_text())
            change(config)
            (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
            return str(tmp_path / name)

        def other_batch(config):
            config["algorithm"]["batch_size"] = 64
            config["hyperparameters"]["clip_coef"] = {"min": 0.1, "max": 0.3, "scale": "log"}

        def other_growth(config):
            config["hyperparameters"]["lr"]["grow_factor"] = 2.0

        original, given = str(runs / "s3"), yaml.safe_load((runs / "s3" / "config.yaml").read_text())
        assert main(["compare", original, changed("batch", other_batch), changed("growth", other_growth)]) == 0
        table = [re.split(" {2,}", line) for line in capsys.readouterr().out.split("differ\n")[1].splitlines()]
        batch, growth = given["algorithm"]["batch_size"], given["hyperparameters"]["lr"]["grow_factor"]
        assert table == [
            ["setting", "s3", "batch", "growth"],
            ["algorithm.batch_size", str(batch), "64", str(batch)],
            ["hyperparameters.clip_coef", "-", "0.1 to 0.3, log", "-"],
            ["hyperparameters.lr.grow_factor", str(growth), str(growth), "2.0"],
        ]
        assert main(["compare", original, changed("copy", lambda config: None)]) == 0
        captured = capsys.readouterr()
        assert captured.out.endswith("settings: equal\n")
        assert "s3, copy are of one method and have seed=3: they are one run and its copies" in captured.err

    @pytest.mark.parametrize("command", ["compare", "plot", "report"])
    def test_a_run_that_is_given_twice_is_refused(self, runs, tmp_path, capsys, command):
        (tmp_path / "link").symlink_to(runs / "s3")
        for second in (f"{runs}/s3/", str(tmp_path / "link")):
            assert main([command, str(runs / "s3"), second]) == 2
            assert "is given twice; allowed is each folder once" in capsys.readouterr().err

    def test_compare_takes_a_setting_that_is_left_out_for_its_default(self, runs, tmp_path, capsys):
        config = yaml.safe_load((runs / "s3" / "config.yaml").read_text())
        shutil.copytree(runs / "s3", tmp_path / "short")
        del config["environment"]["seeds"], config["algorithm"]["max_grad_norm"], config["selection"]["elitism"]
        config["network"]["encoder_config"] = {}
        (tmp_path / "short" / "config.yaml").write_text(yaml.safe_dump(config))
        assert main(["compare", str(runs / "s3"), str(tmp_path / "short")]) == 0
        rows = capsys.readouterr().out.partition("settings: ")[2].splitlines()
        assert {row.split()[0] for row in rows} == {"those", "setting", "network.encoder_config"}

    def test_runs_that_differ_in_seed_and_outputs_are_of_one_method(self, runs, tmp_path):
        config = yaml.safe_load((runs / "s3" / "config.yaml").read_text())
        folders = [runs / "s3", runs / "s4"]
        for name, growth in (("slow", 1.1), ("fast", 2.0)):
            config["hyperparameters"]["lr"]["grow_factor"] = growth
            config["run"] |= {"name": name, "plot": True}
            folders.append(shutil.copytree(runs / "s3", tmp_path / name))
            (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
        opened = [Run.open(folder) for folder in folders]
        assert methods_of(opened[:2]) == ["", ""]
        prefix = "hyperparameters.lr.grow_factor"
        assert methods_of(opened) == [f"{prefix} {its}" for its in ("1.2", "1.2", "1.1", "2.0")]
        config["algorithm"] |= {"learn_step": 128, "update_epochs": 2, "gamma": 0.8}
        (tmp_path / "fast" / "config.yaml").write_text(yaml.safe_dump(config))
        assert methods_of(opened[2:]) == ["slow", "fast"]
        assert methods_of([*opened[:2], opened[3]]) == ["as s3", "as s3", "fast"]
        config["algorithm"]["gamma"], config["run"]["callbacks"] = 0.9, ["patience"]
        (tmp_path / "slow" / "config.yaml").write_text(yaml.safe_dump(config))
        assert methods_of(opened[2:])[0].endswith("run.callbacks ['patience']")

    def test_initial_members_without_evolution(self, runs):
        returns = train_initial_members(Run.open(runs / "s3"))
        assert len(returns) == 4
        assert all(1 <= value <= 20 for value in returns)

    def test_initial_members_follow_the_schedules_of_a_run_that_ended_early(self, run_dir, monkeypatch):
        lines = (run_dir / "metrics.csv").read_text().splitlines(keepends=True)
        (run_dir / "metrics.csv").write_text("".join(lines[:5]))  # the first of five generations
        plans = []
        monkeypatch.setattr(replay, "_trained", lambda experiment, config, plan, callbacks: (None, plans.append(plan)))
        train_initial_members(Run.open(run_dir))
        assert [(plan.training_args.max_steps, plan.schedule_steps) for plan in plans] == [(128, 640)]

    @pytest.mark.slow
    def test_demo_ends_with_what_was_found(self, tmp_path, capsys):
        (tmp_path / "tiny.yaml").write_text(TINY)
        assert main(["demo", str(tmp_path / "tiny.yaml"), "--dir", str(tmp_path / "out")]) == 0
        out = capsys.readouterr().out
        for text in ("How the best agent came about", "found ", "without evolution", "report.html"):
            assert text in out
        assert main(["demo", str(tmp_path / "tiny.yaml"), "--dir", str(tmp_path / "out")]) == 0  # it is replaced


class TestEval:
    def test_draws_actions_by_sampling(self, runs, capsys):
        means = {}
        for sampling in ("greedy", "sample", "temperature(1)", "bottom_k(1)"):
            assert main(["eval", str(runs / "s3"), "--seed", "1", "--episodes", "20", "--sampling", sampling]) == 0
            means[sampling] = capsys.readouterr().out.split()[2]
        assert means["sample"] == means["temperature(1)"]
        assert len(set(means.values())) == 3
        assert main(["eval", str(runs / "s3"), "--sampling", "best"]) == 2
        assert "sampling='best'; allowed are greedy" in capsys.readouterr().err

    def test_evaluates_a_checkpoint(self, runs, capsys):
        assert main(["eval", str(runs / "s3"), "--seed", "1", "--episodes", "3"]) == 0
        best = capsys.readouterr().out
        assert main(["eval", str(runs / "s3"), "--seed", "1", "--episodes", "3", "--checkpoint", "5"]) == 0
        assert capsys.readouterr().out == best  # the run's best agent so far
        assert main(["eval", str(runs / "s3"), "--checkpoint", "4"]) == 2
        assert "checkpoint=4 is not in" in (said := capsys.readouterr().err)
        assert "allowed are 5" in said

    def test_evaluates_the_history(self, runs, capsys):
        assert main(["eval", str(runs / "s3"), "--seed", "1", "--episodes", "3", "--history"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:4] for line in lines] == [
            [f"{20 * n}%", "generation", str(n), "member"] for n in range(6)
        ]
        last = Run.open(runs / "s3").population().fittest
        assert f"member {last.index}  mean return" in lines[-1]
        assert main(["eval", str(runs / "s3"), "--history", "--checkpoint", "5"]) == 2
        assert "exclude each other" in capsys.readouterr().err

    def test_needs_a_history(self, run_dir, capsys):
        shutil.rmtree(run_dir / "history")
        assert main(["eval", str(run_dir), "--history"]) == 2
        assert "has no history: an older version wrote it" in capsys.readouterr().err


class TestTrajectories:
    def test_of_the_best_agent_and_of_all_members(self, runs, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert main(["trajectories", str(runs / "s3"), "--steps", "50", "--seed", "1"]) == 0
        assert capsys.readouterr().out == "s3.npz\n"
        data, run = np.load("s3.npz"), Run.open(runs / "s3")
        assert set(data["episode_agent"]) == {run.best().index}
        assert set(data["episode_generation"]) == {run.metrics()[-1]["population/best_ever_generation"]}
        assert data["episode_length"].max() <= 20  # the TimeLimit of the run's configuration
        assert main(["trajectories", str(runs / "s3"), "of_5.npz", "--steps", "10", "--checkpoint", "5"]) == 0
        assert set(np.load("of_5.npz")["episode_generation"]) == set(data["episode_generation"]) != {5}
        options = ["--population", "--steps", "10", "--sampling", "greedy"]
        assert main(["trajectories", str(runs / "s3"), "all.npz", *options]) == 0
        data = np.load("all.npz")
        assert set(data["episode_agent"]) == {agent.index for agent in run.population()}
        assert set(data["episode_generation"]) == {5}

    def test_of_the_history(self, runs, tmp_path, capsys):
        file = str(tmp_path / "h.npz")
        assert main(["trajectories", str(runs / "s3"), file, "--history", "--steps", "10", "--num-envs", "2"]) == 0
        assert sorted(set(np.load(file)["episode_generation"])) == [0, 1, 2, 3, 4, 5]

    def test_refuses(self, runs, tmp_path, capsys):
        assert main(["trajectories", str(runs / "s3"), str(tmp_path / "t.csv")]) == 2
        assert "allowed is a file that ends in .npz" in capsys.readouterr().err
        assert main(["trajectories", str(runs / "s3"), "--population", "--checkpoint", "5"]) == 2
        assert "checkpoint=5 and all members exclude each other" in capsys.readouterr().err


class TestFilm:
    @pytest.mark.slow
    def test_of_the_best_agent_and_of_the_history(self, runs, tmp_path, monkeypatch, capsys):
        ffmpeg, _ = pytest.importorskip("imageio_ffmpeg"), pytest.importorskip("pygame")
        monkeypatch.chdir(tmp_path)
        assert main(["film", str(runs / "s3"), "--seed", "1"]) == 0
        assert capsys.readouterr().out == "s3.mp4\n"
        assert ffmpeg.count_frames_and_secs("s3.mp4")[0] <= 21
        assert main(["film", str(runs / "s3"), "all.mp4", "--history", "--grid", "--max-steps", "3"]) == 0
        names = [f"all-{20 * number:03d}-gen-{number:06d}.mp4" for number in range(6)]
        assert capsys.readouterr().out.split() == names
        assert {ffmpeg.count_frames_and_secs(name)[0] for name in names} == {4}

    def test_of_an_environment_without_frames(self, runs, tmp_path, capsys):
        pytest.importorskip("imageio_ffmpeg")
        best = str(runs / "s3" / "best")
        assert main(["film", best, str(tmp_path / "f.mp4"), "--env", "test_film:Blind", "--trust"]) == 2
        assert "has no rendering mode 'rgb_array', which a film needs; its modes: ansi" in capsys.readouterr().err


class TestUnfinishedRuns:
    """A run that is still running, was killed, or is of another schema: one message, and what there is."""

    def test_a_running_run(self, run_dir, tmp_path, capsys):
        file = str(tmp_path / "t.npz")
        shutil.rmtree(run_dir / "population")
        with RunLock(run_dir):
            assert main(["eval", str(run_dir), "--episodes", "2"]) == 0
            found = capsys.readouterr()
            assert found.out.startswith("mean return")
            assert found.err == f"agilerl-like: {run_dir} is still running: this is what it has saved so far\n"
            assert main(["trajectories", str(run_dir), file, "--history", "--steps", "5"]) == 0
            assert "is still running: this is what it has saved so far" in capsys.readouterr().err
            assert main(["trajectories", str(run_dir), file, "--population"]) == 74
            assert (
                "has no population, which a run saves at its end: the run is still running" in capsys.readouterr().err
            )
            shutil.rmtree(run_dir / "best")
            assert main(["film", str(run_dir)]) == 74
            assert "has no best, which a run saves with its first checkpoint" in capsys.readouterr().err

    def test_a_killed_run(self, run_dir, capsys):
        shutil.rmtree(run_dir / "best")
        assert main(["eval", str(run_dir)]) == 74
        said = capsys.readouterr().err
        assert "the run broke off before; allowed is --history" in said
        assert said.count("\n") == 1

    def test_another_schema(self, run_dir, capsys):
        manifest = run_dir / "history" / "steps-000000000000" / "manifest.json"
        manifest.write_text(manifest.read_text().replace("agilerl-like/1", "agilerl-like/0"))
        assert main(["eval", str(run_dir), "--history"]) == 74
        said = capsys.readouterr().err
        assert "has schema 'agilerl-like/0'; this version reads 'agilerl-like/1'" in said
        assert said.count("\n") == 1

    def test_a_run_without_updates(self, run_dir):
        with pytest.raises(ConfigurationError, match=r"only a run with run\.log_every: update writes it"):
            Run.open(run_dir).updates()
