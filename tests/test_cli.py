import contextlib
import csv
import io
import itertools
import json
import os
import re
import runpy
import select
import shlex
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Barrier

import gymnasium
import pytest
import yaml
from forked_ranks import run_forked
from rich.console import Console

import agilerl_like
from agilerl_like import PPO, OpenAIES, Population
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.cli import _reader_is_gone, demo, main
from agilerl_like.cli import train as train_command
from agilerl_like.cli.players import config_of
from agilerl_like.cli.probe import _rows, _table
from agilerl_like.cli.train import _create_run_dir, _reporters
from agilerl_like.config import Config, Draft, load
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.probe_envs import PROBES, ExpectedValue
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter
from agilerl_like.training.probe import Answer, ProbeRecord
from agilerl_like.training.training_arguments import TrainingArguments

SOON_OVER = """
environment:
  id: CartPole-v1
  num_envs: 4
  wrappers: [{name: TimeLimit, max_episode_steps: 5}]  # too short to fall: every return is 5
population: {size: 2}
algorithm: {learn_step: 64, batch_size: 32}
hyperparameters: {lr: {min: 1e-5, max: 1e-2}}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 8}
training: {max_steps: 256, evo_steps: 128, eval_loop: 2}
"""

SPACES = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)

WORDS = """
import gymnasium
def make(opponent="x"):
    print(repr(opponent))
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A run that takes a moment, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "soon_over.yaml"
    path.write_text(SOON_OVER)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run, which tests copy."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "soon_over.yaml").write_text(SOON_OVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ("--seed", "3", "--run.name", "first", "--run.plot", "false")
        assert main(["train", str(folder / "soon_over.yaml"), *options]) == 0
    return folder / "runs" / "first"


@pytest.fixture
def run(trained, file, tmp_path):
    """The folder of a finished run, in a folder of its own."""
    return shutil.copytree(trained, tmp_path / "runs" / "first")


@contextlib.contextmanager
def ctrl_c_after_the_first_generation():
    write = CsvReporter.generation

    def generation(reporter, record):
        write(reporter, record)
        if record.generation == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvReporter, "generation", generation)
        yield


def metrics(folder):
    with (folder / "metrics.csv").open() as table:
        return [
            {name: value for name, value in row.items() if not name.startswith("time/")}
            for row in csv.DictReader(table)
        ]


class TestTrain:
    def test_run_folder_has_all_files(self, file, tmp_path, capsys):
        assert main(["train", file, "--seed", "3", "--training.max-steps", "1.28e2"]) == 0
        (folder,) = (tmp_path / "runs").iterdir()
        assert folder.name.startswith("CartPole-v1-PPO-2")
        assert load(folder / "config.yaml") == load(file, ["--seed", "3", "--training.max-steps", "128"])
        assert [row["eval/mean_reward"] for row in metrics(folder)] == ["5.0", "5.0"]
        births = [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]
        assert [birth["uid"] for birth in births] == [0, 1]
        assert (folder / "evolution.png").read_bytes().startswith(b"\x89PNG")
        assert PPO.load(folder / "best").steps[-1] == 128
        assert len(Population.load(folder / "population")) == 2
        said = capsys.readouterr().out
        assert "best fitness" in said
        assert str(folder.relative_to(tmp_path)) in said

    @pytest.mark.slow
    def test_seeds_are_runs_of_their_own_and_one_report(self, file, tmp_path, capsys):
        assert main(["train", file, "--seeds", "2", "--seed", "7", "--run.name", "both"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "best fitness of 2 seeds: 5.00, 5.00; mean 5.00 ± 0.00" in out
        assert "`agilerl-like eval RUN --seed 1` has returns of other episodes" in out
        runs = tmp_path / "runs"
        assert [load(str(runs / f"both-seed-{seed}" / "config.yaml")).seed for seed in (7, 8)] == [7, 8]
        page = (runs / "both-2-seeds.html").read_text(encoding="utf-8")
        assert "Runs side by side" in page
        # the second name is taken: nothing is trained
        shutil.rmtree(runs / "both-seed-7")
        assert main(["train", file, "--seeds=2", "--seed", "7", "--run.name", "both"]) == 2
        assert "run.name='both-seed-8' is taken" in capsys.readouterr().err
        assert not (runs / "both-seed-7").exists()

    def test_one_command_starts_a_run_and_resumes_it_until_it_has_ended(self, file, tmp_path, capsys):
        command = ["train", file, "--run.name", "job", "--resume-existing", "--run.plot", "false"]
        folder = tmp_path / "runs" / "job"
        folder.mkdir(parents=True)
        (folder / ".lock").touch()  # of a process that was killed before it wrote anything
        checkpoint = ("--training.checkpoint", "128")
        with ctrl_c_after_the_first_generation():
            assert main([*command, *checkpoint]) == 130
        seed = load(folder / "config.yaml").seed
        assert main([*command, *checkpoint]) == 0
        assert [row["generation"] for row in metrics(folder)] == ["1", "1", "2", "2"]
        assert load(folder / "config.yaml").seed == seed  # that was drawn
        assert "resumed" in json.loads((folder / "run.json").read_text())
        capsys.readouterr()
        assert main([*command, *checkpoint]) == 0
        assert "has ended: budget spent; to continue it needs a larger --training.max-steps" in capsys.readouterr().out
        assert main([*command, *checkpoint, "--training.max-steps", "384"]) == 0
        assert metrics(folder)[-1]["generation"] == "3"
        assert main([*command, *checkpoint, "--algorithm.lr", "1e-3", "--seed", str(seed + 1)]) == 2
        said = capsys.readouterr().err
        assert "algorithm.lr=0.001 is 0.0001 in this run" in said
        assert f"seed={seed + 1} is {seed} in this run" in said

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "run.name is missing: --resume-existing"),
            (["--run.name", "a", "--run.overwrite", "true"], "run.overwrite=True removes the run"),
            (["--run.name", "a", "--seeds", "2"], "seed is missing: --resume-existing with --seeds"),
        ],
    )
    def test_a_command_that_would_not_find_its_run_again_is_refused(self, file, tmp_path, capsys, options, message):
        assert main(["train", file, "--resume-existing", *options]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("more", [[], ["--run.name", "x", "--run.overwrite", "true"]])
    def test_seeds_that_have_not_ended_are_continued_by_the_command_that_is_printed(self, file, tmp_path, capsys, more):
        given = ["--seed", "7", "--training.checkpoint", "128", "--run.report", "false", "--run.plot", "false", *more]
        with ctrl_c_after_the_first_generation():
            assert main(["train", file, "--seeds", "2", *given]) == 130
        said = capsys.readouterr().err
        assert "seeds that have not ended: 7, 8; to continue with them: agilerl-like train" in said
        command = shlex.split(said.rpartition("to continue with them: ")[2])[1:]
        assert main(command) == 0
        folders = sorted(path for path in (tmp_path / "runs").iterdir() if path.is_dir())
        assert [path.name[-7:] for path in folders] == ["-seed-7", "-seed-8"]
        before = [metrics(folder) for folder in folders]
        assert [len(rows) for rows in before] == [4, 4]
        assert main(command) == 0
        assert [metrics(folder) for folder in folders] == before
        assert capsys.readouterr().out.count("best fitness of 2 seeds: 5.00, 5.00") == 2

    def test_earlier_runs_that_the_printed_command_would_resume_are_named(self, file, tmp_path, monkeypatch, capsys):
        earlier = tmp_path / "runs" / "x-seed-8"
        earlier.mkdir(parents=True)
        (earlier / "config.yaml").write_text(Path(file).read_text())
        monkeypatch.setattr(train_command, "_check_folder", lambda config: None)
        monkeypatch.setattr(train_command, "train_config", lambda *_, **__: 75)
        given = ["--run.name", "x", "--seed", "7", "--run.overwrite", "true"]
        assert main(["train", file, "--seeds", "2", *given]) == 75
        folder = Path("runs", "x-seed-8")
        assert f"resumes each run that it finds; delete these earlier ones first: {folder}\n" in capsys.readouterr().err

    def test_a_report_of_seeds_that_cannot_be_written_is_a_warning(self, monkeypatch, tmp_path, capsys):
        def fails(runs, path):
            raise ConfigurationError("no Vega")

        monkeypatch.setattr(train_command, "write_report", fails)
        train_command._write_report_of_seeds([], tmp_path / "report.html", quiet=True)
        assert "no Vega" in capsys.readouterr().err

    @pytest.mark.parametrize("given", [["--seeds", "0"], ["--seeds=two"], ["--seeds"]])
    def test_other_numbers_of_seeds_are_refused(self, file, capsys, given):
        assert main(["train", file, *given]) == 2
        assert "must be an integer of at least 1" in capsys.readouterr().err

    @pytest.mark.slow
    def test_resume_of_a_finished_run_of_two_processes_prints_one_line(self, file, tmp_path, capfd):
        run_dir = str(tmp_path / "runs" / "two")
        options = ["--quiet", "--run.name", "two", "--seed", "3", "--training.max-steps", "128", "--run.processes", "2"]
        assert main(["train", file, *options]) == 0
        capfd.readouterr()
        assert main(["resume", run_dir]) == 0
        said = "".join(capfd.readouterr())  # of both processes
        assert "has ended: budget spent" in said
        assert "Traceback" not in said

    @pytest.mark.slow
    def test_quiet_prints_warnings_and_errors_only(self, file, tmp_path, capsys):
        assert main(["train", "--quiet", file, "--run.name", "q", "--seed", "3", "--training.max-steps", "256"]) == 0
        assert tuple(capsys.readouterr()) == ("", "")
        assert (tmp_path / "runs" / "q" / "evolution.png").exists()
        assert main(["resume", str(tmp_path / "runs" / "q"), "--quiet"]) == 0  # it has ended
        assert tuple(capsys.readouterr()) == ("", "")
        assert main(["resume", str(tmp_path / "runs" / "q"), "--training.max-steps", "512", "--quiet"]) == 0
        assert tuple(capsys.readouterr()) == ("", "")
        assert len(metrics(tmp_path / "runs" / "q")) == 8
        assert main(["train", file, "--quiet", "--run.name", "q"]) == 2
        assert "run.name='q' is taken" in capsys.readouterr().err

    def test_written_configuration_reproduces_the_run(self, run, tmp_path):
        assert main(["train", str(run / "config.yaml"), "--run.name", "again"]) == 0
        header = (run.parent / "again" / "config.yaml").read_text().splitlines()[0]
        assert header == "# agilerl-like train config.yaml --run.name ANOTHER repeats this run"
        assert main(["train", str(run / "config.yaml"), "--run.name", "other", "--seed", "4"]) == 0
        first, again, other = (metrics(tmp_path / "runs" / name) for name in ("first", "again", "other"))
        assert first == again
        assert first != other

    def test_two_runs_never_share_a_folder(self, file, tmp_path, monkeypatch):
        """Ten runs of one name that start in the same second, at once."""
        config, together = load(file), Barrier(10)

        class Frozen(datetime):
            @classmethod
            def now(cls, tz=None):
                together.wait()
                return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

        monkeypatch.setattr("agilerl_like.cli.train.datetime", Frozen)
        with ThreadPoolExecutor(10) as pool:
            names = {folder.name for folder in pool.map(_create_run_dir, [config] * 10)}
        stem = "CartPole-v1-PPO-20260102-030405"
        assert names == {stem, *(f"{stem}-{number}" for number in range(2, 11))}
        assert {path.name for path in (tmp_path / "runs").iterdir()} == names

    def test_existing_run_name_is_an_error_and_its_files_stay(self, run, file, capsys):
        before = (run / "metrics.csv").read_bytes()
        assert main(["train", file, "--run.name", "first"]) == 2
        assert "run.name='first' is taken" in capsys.readouterr().err
        assert (run / "metrics.csv").read_bytes() == before

    def test_print_config_prints_all_settings_and_exits(self, file, tmp_path, capsys):
        assert main(["train", file, "--print-config", "--seed", "3"]) == 0
        assert Config.model_validate(yaml.safe_load(capsys.readouterr().out)) == load(file, ["--seed", "3"])
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("given", [[], ["soon_over.yaml"]])
    def test_help_lists_every_setting_with_its_default(self, file, given, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            main(["train", *given, "--help"])
        assert stop.value.code == 0
        page = capsys.readouterr().out
        names = {"seed", "environment.id", "environment.num-envs", "network.head-config.hidden-size", "mutation.rl-hp"}
        names |= {f"algorithm.{field.name}" for field in fields(PPOConfig)} - {
            "algorithm.schedules"
        }  # empty: no entries
        names |= {f"training.{field.name}" for field in fields(TrainingArguments)}
        names |= {"run.threads", "selection.fraction", "population.size", "print-config"}
        assert [name for name in names if f"--{name.replace('_', '-')} " not in page] == []
        assert "The optimizer's learning rate (value). (default: 0.0001)" in page
        assert ("CartPole-v1)" in page) == bool(given)
        assert ("--hyperparameters.lr.min INT|FLOAT" in page) == bool(given)
        assert "--algorithm.lr-schedule YAML " in page
        assert "{fixed}" not in page  # tyro's word for a setting that it cannot parse, though the command can
        assert "--algorithm.bptt-sequence-type {chunked,maximum," in page

    def test_the_values_of_a_choice_that_help_lists_are_accepted(self, file, capsys):
        memory = ("--algorithm.recurrent", "true", "--print-config")
        for kind in ("chunked", "maximum", "fifty_percent_overlap"):
            assert main(["train", file, "--algorithm.bptt-sequence-type", kind, *memory]) == 0
            assert f"bptt_sequence_type: {kind}\n" in capsys.readouterr().out


WANDERER = """
import os
import re
import gymnasium
class Wanderer(gymnasium.Wrapper):
    def reset(self, **options):
        os.chdir("elsewhere" if os.path.isdir("elsewhere") else ".")
        return super().reset(**options)
def make():
    return Wanderer(gymnasium.make("CartPole-v1"))
"""


def test_an_env_that_changes_the_working_directory_moves_no_run(file, tmp_path, monkeypatch):
    (tmp_path / "wanderer.py").write_text(WANDERER)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--environment.id", "wanderer:make", "--environment.backend", "sync", "--run.processes", "1")
    options += ("--run.report", "false", "--run.plot", "false", "--training.max-steps", "128", "--evolution", "none")
    assert main(["train", file, *options, "--run.name", "two", "--seeds", "2", "--seed", "1", "--quiet"]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["two-seed-1", "two-seed-2"]
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    assert Path.cwd() == tmp_path


MOVER = """
import os
import gymnasium
def make(**options):
    os.chdir("elsewhere" if os.path.isdir("elsewhere") else ".")
    return gymnasium.make("CartPole-v1", **options)
"""


@pytest.mark.parametrize(
    ("command", "file", "options"),
    [
        ("eval", "returns.csv", ("--episodes", "1", "--out", "returns.csv")),
        ("trajectories", "steps.npz", ("steps.npz", "--steps", "10")),
        ("film", "episode.mp4", ("episode.mp4", "--max-steps", "3")),
    ],
)
def test_an_env_that_changes_the_working_directory_moves_no_file(
    run, tmp_path, monkeypatch, capsys, command, file, options
):
    if command == "film":
        pytest.importorskip("imageio_ffmpeg", reason="an extra")
    (tmp_path / "mover.py").write_text(MOVER)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ("--env", "mover:make", "--trust")
    assert main([command, str(run.relative_to(tmp_path)), *options, *given]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == file
    assert (tmp_path / file).is_file()
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_an_env_that_changes_the_working_directory_moves_no_measurement(tmp_path, monkeypatch, capsys):
    (tmp_path / "mover.py").write_text(MOVER)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ("--population", "1", "--num-envs", "1", "--seconds", "0.01", "--output", "results/speeds")
    assert main(["bench", "--env", "mover:make", *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: results/speeds.csv, results/speeds.md"
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["speeds.csv", "speeds.md"]
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_one_reporter_logs_to_a_tracker_that_is_named_twice(monkeypatch, tmp_path):
    monkeypatch.setattr(train_command, "WandbReporter", lambda: "flag")
    monkeypatch.setattr(train_command, "tracker_reporter", lambda given, run_dir: given["name"])
    data = {
        "environment": {"id": "CartPole-v1"},
        "run": {"wandb": True, "trackers": [{"name": "wandb", "project": "x"}]},
    }
    reporters = list(_reporters(Draft(data).validate(), tmp_path))
    assert [its for its in reporters if isinstance(its, str)] == ["wandb"]


def test_the_folder_of_a_demonstration_is_no_yaml(monkeypatch):
    given = []
    monkeypatch.setattr(demo, "train_config", lambda config: given.append(config) or 2)
    assert main(["demo", "--dir", "runs #1"]) == 2
    assert [config.run.dir for config in given] == [Path("runs #1")]


def test_a_demonstration_of_a_game_with_ratings_is_refused_before_it_is_trained(tmp_path, capsys):
    assert main(["demo", "ippo/tictactoe", "--dir", str(tmp_path / "out")]) == 2
    assert "config='ippo/tictactoe' has training.fitness='rating', which depends on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class TestResume:
    def test_evolution_may_change_though_actions_are_continuous(self, tmp_path, capsys):
        folder, file = tmp_path / "noisy", tmp_path / "noisy.yaml"
        short = SOON_OVER.replace("CartPole-v1", "Pendulum-v1").replace("max_steps: 256", "max_steps: 128")
        file.write_text(f"{short}run: {{dir: {tmp_path}, name: noisy, plot: false, report: false, processes: 1}}\n")
        assert main(["train", str(file), "--quiet", "--evolution", "auto"]) == 0
        assert main(["resume", str(folder), "--quiet", "--evolution", "none", "--training.max-steps", "256"]) == 0
        assert all(row["hp/action_std_init"] for row in metrics(folder))
        assert capsys.readouterr().err == ""

    def test_help_lists_the_settings_that_may_change_and_no_others(self, run, capsys):
        for arguments in (["--help"], [str(run), "--help"]):
            with pytest.raises(SystemExit):
                main(["resume", *arguments])
            said = capsys.readouterr().out
            listed = {*re.findall(r"^\W*--([a-z-]+\.[a-z.-]+) ", said, re.MULTILINE)}
            assert {"training.max-steps", "run.processes", "environment.backend", "mutation.rl-hp"} <= listed
            fixed = {"environment.id", "environment.num-envs", "training.eval-steps", "run.name", "run.dir"}
            assert not listed & {*fixed, "algorithm.lr", "population.size"}
            assert "--seed" not in said

    def test_help_names_the_settings_of_training_that_cannot_change(self, capsys):
        with pytest.raises(SystemExit):
            main(["resume", "--help"])
        assert "(except fitness, eval-steps and opponents)" in " ".join(capsys.readouterr().out.split())

    def test_printed_commands_can_be_executed(self, file, tmp_path, capsys):
        assert main(["train", file, "--run.dir", "my runs", "--run.name", "a b", "--run.plot", "false"]) == 0
        assert main(["train", file, "--run.dir", "my runs", "--run.name", "a b"]) == 2
        command = shlex.split(capsys.readouterr().err.rpartition("to resume that run: ")[2])
        assert command == ["agilerl-like", "resume", "my runs/a b"]
        assert main(command[1:]) == 0

    @pytest.mark.slow
    def test_finished_run_continues_with_larger_limits(self, file, tmp_path, capsys):
        def goes_on(*options):
            assert main(["resume", str(folder), *options]) == 0
            return "to continue it needs " not in capsys.readouterr().out

        def needs(*options):
            assert main(["resume", str(folder), *options]) == 0
            return capsys.readouterr().out.strip().rpartition("to continue it needs ")[2]

        folder = tmp_path / "runs" / "good"
        more_steps, higher = "a larger --training.max-steps", "a higher --training.target, or none"
        start = ("--run.name", "good", "--run.plot", "false", "--training.target", "4")  # every return is 5
        assert main(["train", file, *start]) == 0
        assert len(metrics(folder)) == 2  # one generation of two
        capsys.readouterr()
        assert needs() == needs("--training.max-steps", "512") == higher
        assert needs("--training.target", "5") == higher
        assert needs("--training.max-steps", "128") == f"{more_steps} and {higher}"
        assert needs("--training.max-steps", "128", "--training.target", "none") == more_steps
        assert goes_on("--training.target", "6")
        assert len(metrics(folder)) == 4
        assert needs() == more_steps
        assert goes_on("--training.target", "none", "--training.max-steps", "384")
        assert len(metrics(folder)) == 6

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--seed", "4"), "seed=4 is 3 in this run"),
            (("--algorithm.lr", "1e-3"), "algorithm.lr=0.001 is 0.0001 in this run"),
            (("--hyperparameters.lr.max", "0.1"), "hyperparameters.lr.max=0.1 is 0.01 in this run"),
            (
                ("--hyperparameters.gamma", "{min: 0.9, max: 0.99}"),
                "hyperparameters.gamma.min=0.9 is left out in this run",
            ),
            (("--network.latent-dim", "16"), "network.latent_dim=16 is 8 in this run"),
            (("--network.encoder-config", "{}"), "network.encoder_config.hidden_size=left out is [16] in this run"),
            (("--population.size", "3"), "population.size=3 is 2 in this run"),
            (("--environment.num-envs", "2"), "environment.num_envs=2 is 4 in this run"),
            (("--environment.id", "CartPole-v0"), "environment.id='CartPole-v0' is 'CartPole-v1' in this run"),
            (
                ("--environment.kwargs.sutton-barto-reward", "true"),
                "environment.kwargs.sutton_barto_reward=True is left out in this run",
            ),
            (("--environment.wrappers", "[]"), "environment.wrappers=[] is [{'name': 'TimeLimit', "),
            (("--environment.aggregate", "min"), "environment.aggregate='min' is 'mean' in this run"),
            (("--environment.seeds", "7"), "environment.seeds=7 is None in this run"),
            (("--environment.instances", "[{}, {length: 0.4}]"), "environment.instances=[{}, {'length': 0.4}] is"),
            (("--environment.max-total-reward", "9"), "environment.max_total_reward=9.0 is None in this run"),
            (("--training.eval-steps", "3"), "training.eval_steps=3 is None in this run"),
            (("--run.name", "second"), "run.name='second' is 'first' in this run"),
            (("--run.dir", "elsewhere"), "run.dir='elsewhere' is 'runs' in this run"),
        ],
    )
    def test_fixed_settings_cannot_be_changed_on_resume(self, run, capsys, options, message):
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        capsys.readouterr()
        assert main(["resume", str(run), *options, "--training.max-steps", "512"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert "allowed are changes of environment, evolution, selection, mutation, training, run, except" in said
        assert said.count("\n") == 1
        assert "max_steps" not in said
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    def test_all_forbidden_changes_are_reported_at_once(self, run, capsys):
        assert main(["resume", str(run), "--seed", "4", "--algorithm.lr", "1e-3", "--population.size", "3"]) == 2
        said = capsys.readouterr().err
        assert all(f"{name} in this run" in said for name in ("seed=4 is 3", "lr=0.001 is 0.0001", "size=3 is 2"))

    def test_changed_settings_take_effect_on_resume_and_are_saved(self, run, capsys):
        options = ("--training.max-steps", "512", "--training.evo-steps", "64", "--training.eval-loop", "3")
        options += ("--environment.backend", "sync", "--mutation", "none")
        assert main(["resume", str(run), *options]) == 0
        assert "envs: sync\n" in capsys.readouterr().out  # and no longer because it was the quickest
        rows = metrics(run)
        steps = [int(row["env_steps"]) for row in rows]
        assert steps == [128, 128, 256, 256, 320, 320, 384, 384, 448, 448, 512, 512]
        assert len({row["uid"] for row in rows[-8:]}) == 2  # no more offspring
        assert load(run / "config.yaml") == load(run / "config.yaml", options)

    def test_a_config_without_its_comments_can_be_repaired_for_resume(self, run, capsys):
        file, command = run / "config.yaml", ["resume", str(run), "--training.max-steps", "512", "--quiet"]
        settings = "".join(line for line in file.read_text().splitlines(True) if line[0] != "#")
        file.write_text(settings)
        assert main(command) == 2
        written = "".join(capsys.readouterr())
        assert "broke off" not in written
        first_line = re.search("begin it with '(.*?)'", written)
        assert first_line is not None
        file.write_text(f"{first_line[1]}\n{settings}")
        assert main(command) == 0
        assert file.read_text().startswith("# agilerl-like train config.yaml")

    def test_kwargs_text_none_stays_text_in_a_resumed_run(self, run, file, tmp_path, capsys):
        """The env must be given the same arguments, or it is another one."""
        (tmp_path / "worlds_of_words.py").write_text(WORDS)
        options = ("--environment.id", "worlds_of_words:make", "--environment.kwargs.opponent", "'none'")
        options += ("--environment.backend", "sync", "--run.name", "words", "--run.plot", "false")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            assert main(["train", file, *options]) == 0
            capsys.readouterr()
            assert main(["resume", str(tmp_path / "runs" / "words"), "--trust", "--training.max-steps", "384"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert "'none'" in said
        assert "None" not in said


class TestEval:
    def test_eval_writes_seed_and_return_of_each_episode(self, run, tmp_path, capsys):
        out = tmp_path / "new" / "returns.csv"
        assert main(["eval", str(run), "--episodes", "3", "--seed", "1", "--out", str(out)]) == 0
        head, *rows = csv.reader(out.read_text().splitlines())
        assert head == ["generation", "member", "seed", "return", "length"]
        assert [row[0] for row in rows] == ["", "", ""]
        assert len({row[2] for row in rows}) == 3
        assert f"mean return {sum(float(row[3]) for row in rows) / 3:.2f}" in capsys.readouterr().out

    def test_eval_plays_no_episode_whose_row_has_no_folder(self, run, file, capsys):
        assert main(["eval", str(run), "--episodes", "1", "--out", f"{file}/new/returns.csv"]) == 74
        out, error = capsys.readouterr()
        assert "mean return" not in out
        assert "Not a directory" in error

    def test_eval_runs_the_given_number_of_episodes_in_the_env_of_the_run(self, run, capsys):
        assert main(["eval", str(run), "--episodes", "70", "--seed", "1"]) == 0
        said = capsys.readouterr().out
        deviation, span = "5.00 ± 0.00 (standard deviation)", "from 5.00 to 5.00, 5 steps on average, seed 1"
        assert f"mean return {deviation} over 70 episodes ({span})" in said

    def test_seed_determines_the_episodes(self, run, capsys):
        def said(*arguments):
            assert main(["eval", *arguments, "--env", "CartPole-v1", "--episodes", "20"]) == 0
            return capsys.readouterr().out.splitlines()[-1]

        first = said(str(run), "--seed", "1")
        assert said(str(run), "--seed", "1") == first
        assert said(str(run / "best"), "--seed", "1") == first
        assert said(str(run), "--seed", "2").split(" (")[0] != first.split(" (")[0]
        assert said(str(run)).split("seed ")[1] != said(str(run)).split("seed ")[1]

    def test_agent_without_a_run_needs_an_env_option(self, run, tmp_path, capsys):
        PPO.load(run / "best").save_checkpoint(tmp_path / "elsewhere" / "agent")
        agent = str(tmp_path / "elsewhere" / "agent")
        (tmp_path / "elsewhere" / "config.yaml").write_text("environment: {id: CartPole-v1}")  # of another program
        assert main(["eval", agent]) == 2
        assert "env is missing" in capsys.readouterr().err
        assert main(["eval", agent, "--env", "CartPole-v1", "--episodes", "2"]) == 0
        assert main(["eval", agent, "--env", "Acrobot-v1"]) == 2
        assert "env='Acrobot-v1' has action_space=Discrete(3)" in capsys.readouterr().err

    def test_an_evolution_strategy_plays_in_another_env(self):
        agent = OpenAIES(*SPACES, num_envs=4)
        config = config_of(Path(), "CartPole-v1", agent, trust=False)
        assert (config.environment.num_envs, config.algorithm.name) == (4, "OpenAIES")

    def test_env_that_does_not_fit_the_agent_is_an_error(self, run, capsys):
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("CartPole-v1", "Acrobot-v1"))
        assert main(["eval", str(run)]) == 2
        assert "env='Acrobot-v1' has action_space=Discrete(3)" in capsys.readouterr().err


class TestProbe:
    def test_probe_prints_question_and_answers(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        assert main(["probe", "ConstantReward", "ActionSign"]) == 0
        said = capsys.readouterr().out
        for words in ("does the critic learn a constant?", "V(0) = 1", "ActionSign", "a(0) = 1", "yes"):
            assert words in said

    @pytest.mark.slow
    def test_probe_trains_other_algorithms(self, capsys):
        assert main(["probe", "ConstantReward", "--algorithm", "DQN"]) == 0
        assert main(["probe", "MemoryCue", "--algorithm", "DQN"]) == 2
        assert main(["probe", "--algorithm", "QDN"]) == 2
        assert "did you mean 'PQN' or 'DQN'?" in capsys.readouterr().err

    def test_exit_code_1_if_a_probe_is_not_solved(self, capsys, monkeypatch):
        right = PROBES["ConstantReward"]
        monkeypatch.setattr(
            "agilerl_like.cli.probe.PROBES",
            {"Right": right, "Wrong": replace(right, values=(ExpectedValue((0.0,), 2.0),))},
        )
        assert main(["probe"]) == 1
        rows = [row for row in capsys.readouterr().out.splitlines() if "V(0)" in row]
        assert [answer in row for row in rows for answer in (" yes ", " no ")] == [True, False, False, True]

    @pytest.mark.parametrize("worlds", [PROBES, MULTI_AGENT_PROBES], ids=["agents", "teams"])
    def test_all_columns_fit_into_80_characters(self, worlds):
        long = Answer("action", "[0.25, 0.75, -1]", (-0.123456,) * 3, (-0.123456,) * 3, 0.1, "adversary_0")
        console = Console(file=io.StringIO(), width=80)
        table = _table(worlds, 80)
        for probe in worlds.values():
            for row in _rows(ProbeRecord(probe, (long, long), 100, 12.3)):
                table.add_row(*row)
        console.print(table)
        lines = console.file.getvalue().splitlines()
        assert all(heading in lines[1] for heading in ("probe", "known", "found", "solved", "seconds"))
        assert sum("yes" in line and "12.3" in line for line in lines) == len(worlds)

    @pytest.mark.slow
    def test_multi_agent_probe_checks_every_agent(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        assert main(["probe", "OwnReward", "--teams"]) == 0
        said = capsys.readouterr().out
        for words in ("does each group's critic", "speaker_0: V(0) = 1", "listener_0: V(0) = -2", "listener_1: V"):
            assert words in said


class TestPlot:
    def test_plots_the_run(self, run, capsys):
        capsys.readouterr()
        assert main(["plot", str(run)]) == 0
        assert capsys.readouterr().out.strip() == str(run / "evolution.png")
        assert (run / "evolution.png").read_bytes().startswith(b"\x89PNG")


class TestProgram:
    def test_help_has_one_line_for_each_command(self, capsys):
        assert main(["--help"]) == main([]) == 0
        page = capsys.readouterr().out
        for command in ("train", "resume", "eval", "plot", "probe"):
            assert sum(line.startswith(f"  {command} ") for line in page.splitlines()) == 2  # the command ran twice
        assert max(map(len, page.splitlines())) <= 120

    @pytest.mark.parametrize("command", ["train", "resume", "tune", "film"])
    def test_lines_of_help_are_filled(self, command, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit):
            main([command, "--help"])
        texts = [re.fullmatch(r"│( {7,})(\S.*?) *│", line) for line in capsys.readouterr().out.splitlines()]
        early = []
        for above, below in itertools.pairwise(texts):
            if above and below and above[1] == below[1]:
                word = below[2].split()[0]
                if len(above[1] + above[2]) + 1 + len(word) < 78:  # the word would have fitted in the line above
                    early.append((above[2], word))
        assert early == []

    def test_version(self, capsys):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"agilerl-like {agilerl_like.__version__}\n"

    def test_unknown_command_suggests_the_nearest_one(self, capsys):
        assert main(["trian", "cartpole.yaml"]) == 2
        assert capsys.readouterr().err == "agilerl-like: command='trian' is unknown; did you mean 'train'?\n"


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["train"], 2, "config is missing; allowed are a YAML file"),
            (["train", "--seed", "3", "cartpole"], 2, "config is missing before --seed; allowed are a YAML file"),
            (["resume", "--trust=1", "runs/x"], 2, "run is missing before --trust=1; allowed is"),
            (["train", "nowhere.yaml"], 2, "config='nowhere.yaml' cannot be read"),
            (
                ["train", "soon_over.yaml", "--selection", "gated"],
                2,
                "mapping with the strategy's name, as in {name: gated}",
            ),
            (["train", "soon_over.yaml", "--algorithm.lt", "1"], 2, "did you mean 'lr'"),
            (["train", "soon_over.yaml", "--environment.id", "CartPol-v1"], 2, "did you mean 'CartPole-v1'"),
            (["train", "soon_over.yaml", "--environment.kwargs.colour", "red"], 2, "env_kwargs={'colour': 'red'}"),
            (["train", "soon_over.yaml", "--run.dir", "soon_over.yaml"], 74, "soon_over.yaml"),
            (["eval", "nowhere"], 74, "path='nowhere' does not exist"),
            (["eval", "nowhere", "--episodes", "0"], 2, "episodes=0 must be at least 1"),
            (["eval", "nowhere", "--episodes", f"{10**15}"], 2, "episodes=1000000000000000 needs at least"),
            (["eval", "nowhere", "--seed", "-1"], 2, "seed=-1 must be at least 0"),
            (["probe", "ActionSign", "--seed", "-1"], 2, "seed=-1 must be at least 0"),
            (["train", "soon_over.yaml", "--run.threads", "1e10"], 2, "run.threads=10000000000"),
            (["train", "soon_over.yaml", "--run.threads", "1025"], 2, "run.threads=1025: input should be less than"),
            (["train", "soon_over.yaml", "--run.processes", "1e10"], 2, "run.processes=10000000000 needs at least"),
            (
                ["train", "soon_over.yaml", "--run.processes", "5"],
                2,
                "run.processes=5: the num_envs=4 of each of 2 members cannot be divided among its processes; "
                "allowed are 1 to 2, or 2 times a divisor of num_envs: 4, 8 (--run.processes)",
            ),
            (["train", "soon_over.yaml", "--training.eval-loop", "1e10"], 2, "eval_loop=10000000000 needs at least"),
            (["probe", "ActionSing"], 2, "did you mean 'ActionSign'"),
            (["probe", "--teams", "--algorithm", "SAC"], 2, "algorithm='SAC' does not train teams"),
            (["probe", "ActionSign", "--teams"], 2, "probe='ActionSign'"),
            (["export", "nowhere", "."], 2, "file='.' has no name; allowed is the path of a file"),
            (["film", "nowhere", ".", "--history"], 2, "file='.' has no name; allowed is the path of a file"),
            (["plot", "nowhere"], 2, "run='nowhere' does not exist; allowed is the folder of a run"),
            (
                ["train", "soon_over.yaml", "--run.dir", "soon_over.yaml/below"],
                74,
                "path='soon_over.yaml/below' cannot be read or written: Not a directory",
            ),
        ],
    )
    def test_errors_are_one_line_and_leave_no_files(self, file, tmp_path, capsys, arguments, code, message):
        assert main(arguments) == code
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.startswith("agilerl-like: ")
        assert said.err.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["soon_over.yaml"]

    @pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
    def test_a_tracker_that_is_not_installed_leaves_no_folder(self, file, tmp_path, capsys, monkeypatch, tracker):
        monkeypatch.setitem(sys.modules, tracker, None)
        assert main(["train", file, f"--run.{tracker}", "true", "--run.name", "first"]) == 2
        assert f"pip install 'agilerl-like[{tracker}]'" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["soon_over.yaml"]

    def test_damaged_checkpoint(self, run, capsys):
        weights = run / "best" / "agent.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        assert main(["eval", str(run)]) == 74
        assert "agent.safetensors" in capsys.readouterr().err


def without_a_reader(*arguments):
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stdout.fileno())
    sys.argv = ["agilerl-like", *arguments]
    runpy.run_module("agilerl_like", run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("train", "--help"), ("--version",)])
def test_a_reader_who_has_enough_is_no_fault(tmp_path, arguments):
    assert run_forked(partial(without_a_reader, *arguments), folder=tmp_path) == (128 + signal.SIGPIPE, "", "")


class PollOfMacOS:
    """Reports nothing where no events are registered, and a reader that has closed its end as POLLHUP alone."""

    def register(self, descriptor, events):
        self.events = events

    def poll(self, timeout):
        return [(1, select.POLLHUP)] if self.events else []


def test_a_reader_who_has_enough_is_no_fault_on_macos(monkeypatch):
    monkeypatch.setattr(select, "poll", PollOfMacOS)
    assert _reader_is_gone()


def test_a_pipe_has_a_reader_until_it_is_closed(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert not _reader_is_gone()
        os.close(reader)
        assert _reader_is_gone()
        monkeypatch.undo()


SIGNALLED = """
import os
import re
from gymnasium.envs.classic_control import CartPoleEnv
class Signalled(CartPoleEnv):
    steps = 0
    def __init__(self, number):
        super().__init__()
        self.number = number
    def step(self, action):
        Signalled.steps += 1
        if Signalled.steps == 1_000:  # more than the checks and the first generation take
            os.kill(os.getpid(), self.number)
        return super().step(action)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_can_be_used(file, tmp_path, capsys, monkeypatch, number):
    """The signal comes during a step; tests/faults/test_signals.py sends signals to processes at other moments."""
    (tmp_path / f"signalled_{int(number)}.py").write_text(SIGNALLED)
    monkeypatch.syspath_prepend(tmp_path)
    endless = ("--training.max-steps", "1_000_000_000", "--run.name", "long", "--seed", "3", "--run.plot", "false")
    endless += ("--environment.id", f"signalled_{int(number)}:Signalled", "--environment.backend", "sync")
    endless += ("--environment.kwargs.number", str(int(number)))
    endless += ("--run.processes", "1", "--run.threads", "1")  # to choose them, copies would step for a time
    assert main(["train", file, *endless]) == 128 + number
    said = capsys.readouterr().out
    assert "gen    1" in said
    assert "interrupted" in said.partition("gen    1")[2]
    assert "best fitness" in said
    folder = tmp_path / "runs" / "long"
    assert len(Population.load(folder / "population")) == 2
    assert main(["eval", str(folder), "--episodes", "2", "--trust"]) == 0


def test_a_stream_that_knows_ascii_alone_is_written_to(run, monkeypatch):
    for encoding, sign in (("ascii", "?"), ("utf-8", "±")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["eval", str(run), "--episodes", "2", "--seed", "1"]) == 0
        stream.flush()
        assert f"mean return 5.00 {sign} 0.00" in stream.buffer.getvalue().decode(encoding)
