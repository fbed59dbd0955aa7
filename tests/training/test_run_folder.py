"""Files of an earlier run are removed or overwritten only with `overwrite`, and other files never."""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from agilerl_like import PPO, ConfigurationError, Run, make_vect_envs, train_on_policy
from agilerl_like.cli import main
from agilerl_like.config import load
from agilerl_like.errors import CheckpointError, EnvStepError
from agilerl_like.reporting import Callback, read_metrics
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.run_history import run_document
from agilerl_like.storage import safe_folder
from agilerl_like.storage.run_lock import RunLock
from agilerl_like.training import process_choice
from agilerl_like.training.checkpoint_manager import CheckpointManager
from agilerl_like.training.run_folder import (
    TrainingReporter,
    check_output_paths,
    check_unused,
    is_search,
    not_in_file,
    prepare_folder,
)
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
TRACES = ("config.yaml", "metrics.csv", "lineage.jsonl", "checkpoints", "best", "population", "evolution.png")


def script(env="CartPole-v1", **options):
    """A script that trains two members for two generations."""
    with contextlib.closing(make_vect_envs(env, num_envs=2, backend="sync")) as envs:
        settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0}
        pop = PPO.population(2, envs.single_observation_space, envs.single_action_space, **settings)
        training_args = {"max_steps": 64, "evo_steps": 32, "checkpoint": 32, "eval_loop": 1, "eval_steps": 20}
        return train_on_policy(envs, pop=pop, verbose=False, **{**training_args, **options})


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    script(run_dir=folder)
    (folder / "evolution.png").write_bytes(b"\x89PNG")
    (folder / "config.yaml").write_text("# agilerl-like train config.yaml does this run again\n")
    return folder


@pytest.fixture
def earlier(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "earlier")


def test_a_second_run_in_the_same_folder_is_refused(earlier):
    before = contents(earlier)
    with pytest.raises(ConfigurationError, match=r"holds an earlier run \(.*\); .* resume= .* or overwrite=True"):
        script(run_dir=earlier)
    assert contents(earlier) == before


@pytest.mark.parametrize("trace", TRACES)
def test_any_file_of_a_run_marks_its_folder(earlier, trace):
    for name in TRACES:
        if name != trace:
            shutil.rmtree(earlier / name) if (earlier / name).is_dir() else (earlier / name).unlink(missing_ok=True)
    with pytest.raises(ConfigurationError, match=trace):
        script(run_dir=earlier)
    assert (earlier / trace).exists()


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (
            {"elite_path": "mine"},
            r"elite_path: path='.*mine' exists and is not a checkpoint; .* allowed is a new folder",
        ),
        (
            {"checkpoint_path": "mine", "overwrite_checkpoints": True},
            r"checkpoint_path: path='.*mine' exists and is not",
        ),
        (
            {"elite_path": "runs/../run"},
            r"elite_path='.*run' is or holds run_dir='.*run'; allowed is a folder of its own",
        ),
        ({"elite_path": "x" * 240}, r"elite_path: path='.*x' cannot be written: File name too long; allowed is"),
        ({"elite_path": "x" * 300}, r"elite_path: path='.*x' cannot be written: File name too long; allowed is"),
        ({"elite_path": "run/checkpoints"}, r"elite_path='.*' is a place of the run's own files"),
        ({"elite_path": "run/history/mine"}, r"elite_path='.*' is a place of the run's own files"),
        (
            {"elite_path": "new", "checkpoint_path": "new/all"},
            r"elite_path='.*new' is or holds checkpoint_path='.*all-0'",
        ),
        (
            {"elite_path": "new", "checkpoint_path": "new", "overwrite_checkpoints": True},
            r"elite_path='.*new' is or holds checkpoint_path='.*new'",
        ),
    ],
)
def test_paths_that_cannot_be_written_are_refused_before_the_run(tmp_path, paths, said):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=said):
        check_output_paths(OutputPaths(run_dir=Path("run"), cwd=tmp_path, **paths))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_elite_and_populations_may_share_a_name_and_earlier_ones_are_replaced(tmp_path):
    script(elite_path=tmp_path / "saved", checkpoint_path=tmp_path / "saved")
    script(elite_path=tmp_path / "saved", checkpoint_path=tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "saved-32", "saved-64"]
    with pytest.raises(ConfigurationError, match=r"elite_path: path='.*' exists and is not a checkpoint"):
        script(elite_path=tmp_path)


def test_the_summary_names_the_folder_of_the_last_population(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script(checkpoint_path="all", reporters=[ConsoleReporter()])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "saved to" in line]
    assert line.split() == ["saved", "to", "all-64"]
    assert Path("all-64").is_dir()


def test_the_run_of_a_script_has_the_name_of_its_folder(finished):
    document = run_document(finished / "run.json")
    assert (document["name"], document["env"]) == ("finished", "CartPole-v1")


def test_empty_folders_and_other_files_are_allowed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    script(run_dir=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_overwrite_removes_only_files_of_the_run(earlier):
    (earlier / "notes.txt").write_text("mine")
    (earlier / "checkpoints" / "notes.txt").write_text("mine")
    (earlier / "checkpoints" / "gen-000777").mkdir()
    (earlier / "checkpoints" / "gen-000777" / "notes.txt").write_text("mine")
    prepare_folder(earlier, overwrite=True)
    left = sorted(str(path) for path in contents(earlier))
    assert left == ["checkpoints/gen-000777/notes.txt", "checkpoints/notes.txt", "notes.txt"]


def test_overwrite_sets_folders_of_a_run_aside_that_hold_files_of_the_user(earlier):
    entry = min((earlier / "history").iterdir()).name
    for name in ("best", "population", "checkpoints/gen-000001", f"history/{entry}"):
        (earlier / name / "notes.txt").write_text(name)
    (earlier / "tensorboard" / "tfevents of mine").mkdir(parents=True)
    (earlier / "tensorboard" / "tfevents of mine" / "notes.txt").write_text("tensorboard")
    prepare_folder(earlier, overwrite=True)
    left = [path.parent for path in contents(earlier) if path.name == "notes.txt"]
    assert sorted(re.sub("-[0-9a-f]{8}$", "", str(path)) for path in left) == [
        "aside-best",
        "aside-population",
        "checkpoints/aside-gen-000001",
        f"history/aside-{entry}",
        "tensorboard/tfevents of mine",
    ]
    assert {path.parent for path in contents(earlier)} == {*left}


@pytest.mark.parametrize(
    ("text", "is_removed"),
    [
        ("# Found by `agilerl-like tune`: member 3\nseed: 1\n", True),
        ("# The search has not ended: `agilerl-like resume` writes here what it finds.\n", True),
        ("seed: 1\n", False),
    ],
)
def test_overwrite_removes_what_an_earlier_search_has_found(earlier, text, is_removed):
    """By this file `resume` would take the new run for a search, and replace what was found."""
    (earlier / "found.yaml").write_text(text)
    prepare_folder(earlier, overwrite=True)
    assert (earlier / "found.yaml").exists() != is_removed


def test_a_copy_of_what_a_search_has_found_does_not_mark_a_folder_and_stays(tmp_path):
    (tmp_path / "found.yaml").write_text("# Found by `agilerl-like tune`: member 3\nseed: 1\n")
    for overwrite in (False, True):
        prepare_folder(tmp_path, overwrite=overwrite)
        assert (tmp_path / "found.yaml").exists()


def test_a_copy_of_what_a_search_has_found_stays_where_it_was_trained(file, tmp_path):
    """The run of a search has mutations; a configuration that a search has found has none."""
    folder, text = tmp_path / "runs" / "mine", f"# Found by `agilerl-like tune`: member 3\n{YAML}mutation: null\n"
    folder.mkdir(parents=True)
    (folder / "found.yaml").write_text(text)
    assert main(["train", "runs/mine/found.yaml"]) == 0
    assert main(["resume", "runs/mine", "--training.max-steps", "96"]) == 0
    assert (folder / "found.yaml").read_text() == text
    assert main(["train", "runs/mine/found.yaml", "--run.overwrite", "true"]) == 0
    assert (folder / "found.yaml").read_text() == text


def test_a_search_that_is_resumed_without_evolution_stays_a_search(earlier):
    (earlier / "config.yaml").write_text("# agilerl-like tune\nmutation: null\n")
    (earlier / "found.yaml").write_text(
        "# The search has not ended: `agilerl-like resume` writes here what it finds.\n"
    )
    assert is_search(earlier)
    (earlier / "found.yaml").write_text("# Found by `agilerl-like tune`: member 3\n")
    assert not is_search(earlier)


def test_overwrite_removes_stored_folders_that_a_killed_writer_left(earlier):
    (earlier / "best").rename(earlier / ".best.old-1")
    (earlier / ".best.tmp-1").mkdir()
    (earlier / "population").rename(earlier / ".population.old-1")
    prepare_folder(earlier, overwrite=True)
    assert contents(earlier) == {}
    with pytest.raises(CheckpointError):
        PPO.load(earlier)


def test_a_stored_folder_that_a_killed_writer_left_marks_the_folder_of_a_run(earlier):
    for path in earlier.iterdir():
        if path.name not in ("best", ".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (earlier / "best").rename(earlier / ".best.old-1")
    with pytest.raises(ConfigurationError, match=r"holds an earlier run \(best\)"):
        prepare_folder(earlier)


def test_an_overwriting_run_equals_one_in_an_empty_folder(earlier, finished):
    script(run_dir=earlier, overwrite=True)
    again, once = contents(earlier), contents(finished)
    assert once.keys() - again.keys() <= {Path("evolution.png"), Path("config.yaml")}  # which this script draws not
    for name in again.keys() - {Path("config.yaml")}:
        timed = ("metrics.csv", "checkpoints", "run.json", "report.html")  # they hold dates and seconds
        assert name.parts[0] in timed or again[name] == once[name]


@pytest.mark.parametrize("name", TRACES)
def test_files_that_no_run_has_written_are_not_overwritten(tmp_path, name):
    place = tmp_path / name
    if "." in name:
        place.write_text("mine\n")
    else:
        place.mkdir()
        (place / "mine.txt").write_text("mine")
    if name == "checkpoints":  # a folder that a run shares with others
        prepare_folder(tmp_path, overwrite=True)
    else:
        with pytest.raises(ConfigurationError, match=rf"has {name}, which no run has written"):
            prepare_folder(tmp_path, overwrite=True)
        with pytest.raises(ConfigurationError, match=rf"has {name}, which no run has written"):
            script(resume=tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] in (
        ["mine\n"],
        ["mine"],
    )


@pytest.mark.parametrize("name", TRACES)
def test_a_link_is_neither_followed_nor_removed(tmp_path, name):
    target = tmp_path / "mine"
    target.mkdir() if "." not in name else target.write_text("mine\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(target)
    with pytest.raises(ConfigurationError, match=name):
        prepare_folder(folder, overwrite=True)
    assert (folder / name).is_symlink()
    assert target.exists()


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(earlier):
    target = earlier.parent / "mine.txt"
    target.write_text("mine")
    (earlier / ".lock").unlink()
    (earlier / ".lock").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"\.lock' is a link to .*mine\.txt"):
        script(resume=earlier, max_steps=96)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("name", ["best", "population", "metrics.csv", "evolution.png"])
def test_a_link_is_refused_before_a_run_is_resumed(earlier, name):
    (earlier / name).rename(earlier.parent / "moved")
    (earlier / name).symlink_to(earlier.parent / "moved")
    with pytest.raises(ConfigurationError, match=f"{name} is a link"):
        script(resume=earlier, max_steps=96)
    assert (earlier / name).is_symlink()


def test_an_active_run_is_reported_first(earlier):
    with RunLock(earlier), pytest.raises(ConfigurationError, match="in use by another run"):
        check_unused(earlier, overwrite=True)


@pytest.mark.parametrize("emptied", [False, True])
def test_resume_is_refused_if_the_checkpoints_were_moved(earlier, emptied):
    """To begin again would replace its records."""
    shutil.move(earlier / "checkpoints", earlier.parent / "moved")
    if emptied:
        (earlier / "checkpoints").mkdir()
    before = contents(earlier)
    with pytest.raises(CheckpointError, match=r"has no checkpoint, .* put them back, or start again with overwrite"):
        script(resume=earlier, max_steps=96)
    assert contents(earlier) == before
    shutil.copytree(earlier.parent / "moved", earlier / "checkpoints", dirs_exist_ok=True)
    script(resume=earlier, max_steps=96)
    assert len({line.split(",")[0] for line in (earlier / "metrics.csv").read_text().splitlines()[1:]}) == 3


def test_the_configuration_has_the_training_arguments_of_the_script_that_resumed_its_run(tmp_path):
    """By a smaller max_steps in the file, `resume` would find that the run has ended, and a replay learn too fast."""
    folder, config = tmp_path / "mine", tmp_path / "mine" / "config.yaml"

    def parts():
        text = config.read_text()
        before, _, rest = text.partition("\ntraining:\n")
        _, end, after = rest.partition("\nrun:\n")
        return before.splitlines(), end + after

    script(run_dir=folder)
    head, end = parts()
    script(resume=folder, max_steps=96)
    assert load(config).training.max_steps == 96
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as envs:
        train_on_policy(envs, resume=folder, max_steps=128, eval_loop=1, eval_steps=20, verbose=False)
    training = load(config).training
    assert (training.max_steps, training.evo_steps) == (128, TrainingArguments.evo_steps)
    changed, same_end = parts()
    new = [line for line in changed if line not in head]
    assert [line.split()[:2] for line in new if " UTC by: " in line] == [["#", "changed"]] * 2
    assert (changed[0], same_end) == (head[0], end)
    assert [line for line in changed if line[0] != "#"] == [line for line in head if line[0] != "#"]


@pytest.mark.parametrize("rest", ["", "\n", "\n\n# of the folder\nrun: {plot: false}\n"])
def test_the_training_arguments_of_an_edited_configuration_are_replaced_as_a_whole(tmp_path, rest):
    head, others = "# agilerl-like run\n# note\n", "environment: {id: CartPole-v1}\nseed: 1\n"
    edited = "training:\n  max_steps: 8\n# longer\n\n  evo_steps: 4"
    (tmp_path / "config.yaml").write_text(f"{head}{others}{edited}{rest}")
    TrainingReporter(tmp_path, TrainingArguments(max_steps=16)).start(None)
    written = (tmp_path / "config.yaml").read_text()
    assert written.startswith(f"{head}# changed ")
    assert f"\n{others}training:\n  max_steps: 16\n" in written
    assert "longer" not in written
    assert written.endswith(rest)
    assert load(tmp_path / "config.yaml").training.evo_steps == TrainingArguments.evo_steps


@pytest.mark.parametrize("text", ["training: {max_steps: 8}\n", "# agilerl-like run\nseed: 1\n", None])
def test_a_configuration_without_training_arguments_of_a_run_stays(tmp_path, text):
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    TrainingReporter(tmp_path, TrainingArguments(max_steps=16)).start(None)
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if text is None else [text])


def test_an_overwriting_run_without_a_checkpoint_can_be_resumed(earlier):
    prepare_folder(earlier, overwrite=True)
    _, fitness = script(resume=earlier)
    assert len(fitness) == 2


def test_resume_and_overwrite_contradict_each_other(earlier):
    before = contents(earlier)
    with pytest.raises(ConfigurationError, match="overwrite=True would remove the run of resume="):
        script(resume=earlier, overwrite=True)
    assert contents(earlier) == before


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigurationError):
        script(run_dir=tmp_path / "runs" / "new", fitness="rating")
    assert not (tmp_path / "runs" / "new").exists()


class Wanderer(gymnasium.Wrapper):
    """Changes the working directory at every reset."""

    def reset(self, **kwargs):
        os.chdir(self.unwrapped.elsewhere)
        return super().reset(**kwargs)


@pytest.mark.parametrize("processes", [1, "auto"])
def test_an_environment_that_changes_the_working_directory_does_not_move_the_run(tmp_path, monkeypatch, processes):
    monkeypatch.setattr(process_choice, "available_cores", lambda: 2)
    monkeypatch.setattr(process_choice, "SHORT_RUN", 0)
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def wandering():
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.elsewhere = tmp_path / "elsewhere"
        return Wanderer(env)

    paths = {"run_dir": "runs/mine", "checkpoint_path": "all", "elite_path": "elite"}
    script(wandering, **paths, save_elite=True, processes=processes)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["all-32", "all-64", "elite", "runs"]
    assert {"metrics.csv", "lineage.jsonl", "checkpoints"} <= set(os.listdir(tmp_path / "here" / "runs" / "mine"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Spoiled(gymnasium.Wrapper):
    """Returns a reward of nan after so many steps."""

    steps = 0

    def step(self, action):
        self.steps += 1
        observation, reward, *rest = super().step(action)
        return observation, reward if self.steps < 200 else float("nan"), *rest


# -- the same guard on the command line

YAML = """
environment: {id: CartPole-v1, num_envs: 2}
population: {size: 2}
algorithm: {learn_step: 32, batch_size: 16}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 8}
training: {max_steps: 64, evo_steps: 32, checkpoint: 32, eval_loop: 1, eval_steps: 20}
run: {plot: false, name: mine}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(YAML)
    return "tiny.yaml"


def test_the_command_refuses_a_folder_with_any_file_of_a_run(file, tmp_path, capsys):
    assert main(["train", file]) == 0
    folder = tmp_path / "runs" / "mine"
    for name in ("metrics.csv", "config.yaml", "lineage.jsonl"):
        (folder / name).unlink()
        before = contents(folder)
        assert main(["train", file]) == 2
        assert "run.name='mine' is taken" in capsys.readouterr().err
        assert contents(folder) == before
    assert main(["train", file, "--run.overwrite", "true", "--training.max-steps", "32"]) == 0
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["gen-000001"]
    assert "overwrite: false" in (folder / "config.yaml").read_text()
    assert main(["resume", str(folder), "--run.overwrite", "true"]) == 2
    assert "run.overwrite=True is False in this run" in capsys.readouterr().err


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_the_users_own_file_is_never_overwritten(tmp_path, monkeypatch, capsys, overwrite):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "exp" / "config.yaml"
    own.parent.mkdir()
    own.write_text(YAML)
    options = ("--run.dir", ".", "--run.name", "exp", "--run.overwrite", overwrite)
    assert main(["train", "exp/config.yaml", *options]) == 2
    assert "config.yaml" in capsys.readouterr().err
    assert contents(tmp_path) == {own.relative_to(tmp_path): YAML.encode()}


class MoveFolder(Callback):
    """Renames the folder of a run in the second generation, before this one is written or after."""

    def __init__(self, folder, event):
        self.folder, self.event = folder, event

    def on_update(self, run, metrics):
        self._move(run, "update")

    def on_generation(self, run, record):
        self._move(run, "generation")

    def _move(self, run, event):
        if run.generation == 2 and event == self.event and self.folder.exists():
            self.folder.rename(self.folder.with_name("moved"))


@pytest.mark.parametrize("event", ["update", "generation"])
def test_a_run_whose_folder_is_moved_ends_and_writes_no_second_folder(tmp_path, event):
    folder = tmp_path / "mine"
    with pytest.raises(CheckpointError, match=rf"{folder}' is no longer .* now '{tmp_path / 'moved'}': the run ends"):
        script(run_dir=folder, max_steps=128, callbacks=[MoveFolder(folder, event)])
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    pop, _ = script(resume=tmp_path / "moved", max_steps=128)
    assert pop.outcome == "budget spent"
    assert {row["generation"] for row in read_metrics(tmp_path / "moved")} == {1, 2, 3, 4}


def test_a_run_that_an_error_ends_is_called_broken_off(tmp_path):
    folder = tmp_path / "mine"
    with pytest.raises(EnvStepError):
        script(lambda: Spoiled(gymnasium.make("CartPole-v1")), run_dir=folder, max_steps=1280)
    assert run_document(folder / "run.json")["outcome"] == "broken off"
    run = Run.open(folder)
    assert run.records.outcome == "broken off"
    newest = max(path.name for path in (folder / "checkpoints").iterdir())
    assert run.saved_best.record.generation <= int(newest.removeprefix("gen-"))


class Lever(gymnasium.Env):
    """Episodes of one step whose reward is the action; after generation 3 of the run it is nan."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, generations):
        self.generations = generations

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        reward = float("nan") if self.generations[-1:] == [3] else float(action[0])
        return np.ones(1, np.float32), reward, True, False, {}


class Generations(Callback):
    """Lists the generations of a run that have ended."""

    def __init__(self):
        self.ended = []

    def on_generation(self, run, record):
        self.ended.append(run.generation)


@pytest.mark.parametrize(("checkpoint", "described"), [(32, 3), (64, None)])
def test_saved_best_describes_the_agent_that_an_error_left_in_the_folder(tmp_path, checkpoint, described):
    folder, generations = tmp_path / "mine", Generations()
    options = {"max_steps": 1280, "checkpoint": checkpoint, "callbacks": [generations]}
    with pytest.raises(EnvStepError):
        script(lambda: Lever(generations.ended), run_dir=folder, **options)
    run = Run.open(folder)
    best = run.records.rows[run.records.best_row]
    assert (best["generation"], run.best().steps[-1]) == (3, 96)
    assert (run.saved_best and run.saved_best.record.generation) == described


def test_a_best_agent_that_cannot_be_saved_does_not_replace_the_error_that_ends_a_run(tmp_path, monkeypatch):
    def refused(*_):
        raise ConfigurationError("agent 0 cannot be saved as it is")

    monkeypatch.setattr(CheckpointManager, "save_best_after_error", refused)
    with pytest.raises(EnvStepError):
        script(lambda: Spoiled(gymnasium.make("CartPole-v1")), run_dir=tmp_path / "mine", max_steps=1280)


def test_the_last_line_is_why_a_run_ended_and_how_to_continue_it(file, tmp_path, capsys, monkeypatch):
    def full(path, *_):
        raise CheckpointError(f"path={str(path)!r} could not be written")

    monkeypatch.setattr(safe_folder, "write_folder", full)
    assert main(["train", file, "--quiet", "--training.max-steps", "512", "--run.processes", "1"]) == 74
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"agilerl-like: disk full: the last [34] saves could not be written; there is no .*", last)
    assert last.endswith("there is no checkpoint yet; to start it again: agilerl-like resume runs/mine")


@pytest.mark.parametrize("key", ["name", "dir"])
def test_a_null_character_in_the_folder_is_refused(file, tmp_path, capsys, key):
    assert main(["train", file, f"--run.{key}", '"a\\0b"']) == 2
    assert f"run.{key}='a\\x00b' has a null character" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [file]


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x", "."])
def test_a_run_name_outside_of_run_dir_is_refused(file, tmp_path, capsys, name):
    assert main(["train", file, "--run.name", name]) == 2
    assert f"run.name='{name}' leads out of run.dir" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [file]


@pytest.mark.parametrize(("option", "package"), [("--run.tensorboard", "tensorboard"), ("--run.wandb", "wandb")])
def test_a_missing_package_leaves_no_folder(file, tmp_path, capsys, monkeypatch, option, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("mine", "none"):
        assert main(["train", file, option, "true", "--run.name", name]) == 2
        assert f"agilerl-like[{package}]" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [file]


def test_the_configuration_records_its_provenance(file, tmp_path):
    assert main(["train", file]) == 0
    head = [line for line in (tmp_path / "runs/mine/config.yaml").read_text().splitlines() if line.startswith("#")]
    assert head[0] == "# agilerl-like train config.yaml --run.name ANOTHER repeats this run"
    for word in ("UTC by: ", "python 3.", "torch ", "gymnasium ", "agilerl-like ", "torch threads: 1"):
        assert any(word in line for line in head[1:]), word


@pytest.mark.parametrize("notes", [(), ("# not in this file: callbacks: 1 of the script's own",)])
def test_a_configuration_that_an_editor_saved_with_a_byte_order_mark_is_resumed(file, tmp_path, capsys, notes):
    assert main(["train", file]) == 0
    config = tmp_path / "runs" / "mine" / "config.yaml"
    first, *rest = config.read_text(encoding="utf-8").splitlines()
    config.write_text("\n".join((first, *notes, *rest, "")), encoding="utf-8-sig")
    assert len(not_in_file(config)) == len(notes)
    check_unused(config.parent, overwrite=True)
    assert main(["resume", "runs/mine", "--training.max-steps", "96"]) == 0
    assert load(config).training.max_steps == 96
    assert ("could not hold: callbacks: 1" in capsys.readouterr().err) == bool(notes)


def test_a_command_with_other_than_printable_text_is_escaped_in_the_files_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "\x1b[1m", "caf\udce9", "two\nlines"])
    folder = tmp_path / "mine"
    script(run_dir=folder)
    shown = r"train.py '\x1b[1m' 'caf\udce9' 'two\nlines'"
    assert f"UTC by: {shown}\n" in (folder / "config.yaml").read_text(encoding="utf-8")
    assert load(folder / "config.yaml").training.max_steps == 64
    assert run_document(folder / "run.json")["command"] == shown
    assert (folder / "report.html").is_file()


def test_a_value_that_is_not_utf_8_is_refused(file, tmp_path, capsys):
    assert main(["train", file, "--run.dir", "caf\udce9"]) == 2
    assert r"run.dir='caf\udce9' is not UTF-8 text; allowed is" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [file]
