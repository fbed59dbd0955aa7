"""The document of the run in a checkpoint is validated field by field: a valid digest is not enough."""

import errno
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from small_runs import Records, StopAfter

from agilerl_like import PPO, ConfigurationError, Population, make_vect_envs, train_on_policy
from agilerl_like.distributed.heartbeat import NullMonitor
from agilerl_like.errors import CheckpointError, EnvStepError
from agilerl_like.reporting import Callback
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import Checkpoint, Checkpoints
from agilerl_like.training import checkpoint_manager, session
from agilerl_like.training.checkpoint_manager import EXPERIENCE, load_population, newest_checkpoint, take_experience
from agilerl_like.training.training_arguments import OutputPaths


def members_of(env):
    spaces = env.single_observation_space, env.single_action_space
    return PPO.population(2, *spaces, num_envs=2, learn_step=32, batch_size=16, seed=1)


def train(folder):
    """A run of two generations."""
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    pop = members_of(env)
    sizes = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32}
    train_on_policy(env, pop=pop, **sizes, run_dir=folder, verbose=False)
    env.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a run, with its checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


def forged(original, folder, change):
    """A copy of a run whose newest checkpoint was changed, with valid digests."""
    shutil.copytree(original, folder)
    path = max((folder / "checkpoints").iterdir())
    documents, tensors = safe_folder.read_folder(path, "checkpoint")
    documents = json.loads(json.dumps(dict(documents)))
    change(documents["run"], documents)
    safe_folder.write_folder(path, "checkpoint", documents, {name: dict(named) for name, named in tensors.items()})
    return OutputPaths(run_dir=folder)


def refuse(text):
    raise AssertionError(text)


def test_an_unchanged_checkpoint_is_read(original, tmp_path):
    assert newest_checkpoint(forged(original, tmp_path / "run", lambda run, documents: None), refuse) is not None


def test_the_records_of_a_long_run_are_in_several_documents(original, tmp_path, monkeypatch):
    """One document has a limited size, above which a long run could neither be saved nor resumed."""
    whole = newest_checkpoint(OutputPaths(run_dir=original), refuse).documents["run"]
    assert (len(whole["births"]), len(whole["best"]["ancestry"])) == (2, 1)
    monkeypatch.setattr(checkpoint_manager, "MAX_RECORDS", 1)
    run = {"births": [0, 1, 2], "best": {"ancestry": [3, 4]}, "history": [5, 6], "search": {"returns": [[7], [8, 9]]}}
    further = checkpoint_manager._split_records(run)
    assert run == {"births": [0], "best": {"ancestry": [3]}, "history": [5], "search": {"returns": [[7]]}}
    births = {"births-001": [1], "births-002": [2], "ancestry-001": [4]}
    assert further == {**births, "history-001": [6], "returns-001": [[8, 9]]}
    train(tmp_path / "run")
    checkpoint = max((tmp_path / "run" / "checkpoints").iterdir())
    documents, _ = safe_folder.read_folder(checkpoint, "checkpoint")
    assert len(documents["run"]["births"]) == len(documents["births-001"]) == 1
    joined = newest_checkpoint(OutputPaths(run_dir=tmp_path / "run"), refuse).documents["run"]
    assert joined["births"] == whole["births"]
    assert joined["history"] == whole["history"]
    assert len(whole["search"]["returns"]) == 2
    assert joined["search"] == whole["search"]
    with pytest.raises(CheckpointError, match=r"run\.births"):
        newest_checkpoint(forged(original, tmp_path / "b", lambda _, its: its.update({"births-001": "no"})), refuse)


def test_one_document_holds_the_records_of_many_hyperparameters(original):
    whole = newest_checkpoint(OutputPaths(run_dir=original), refuse).documents["run"]
    values = {f"hyperparameter_number_{i:02d}": 0.0012345678901234567 for i in range(40)}
    named = {"hyperparameters": values, "architecture": "64 | 64 | 64-64 ReLU, " * 20}
    change = {"kind": "rl_hp", "operator": "gaussian", "details": {name: [x, x] for name, x in values.items()}}
    birth = whole["births"][0] | named | {"parent_" + name: value for name, value in named.items()}
    births, trials = [birth | {"mutations": [change]}] * 201, [whole["history"][0] | named] * 201
    run = {**whole, "births": births, "best": {**whole["best"], "ancestry": [*births]}, "history": trials}
    assert checkpoint_manager._split_records(run).keys() == {"births-001", "ancestry-001", "history-001"}
    assert len(json.dumps(run, indent=1)) < 0.9 * safe_folder.MAX_JSON_BYTES


def scaled(factor):
    return lambda rewards, steps, max_steps: factor * rewards


def decaying(rate):
    return lambda progress: 1 - rate * progress


def set_transform(agent, factor):
    agent.reward_transform = scaled(factor)


def set_schedule(agent, rate):
    agent.schedules = {"lr": decaying(rate)}


def add_hook(agent, value):
    agent.register_mutation_hook(lambda child: setattr(child, "note", value))


@pytest.mark.parametrize(
    ("setter", "name"),
    [(set_transform, "reward_transform"), (set_schedule, "schedules.lr"), (add_hook, "register_mutation_hook")],
)
def test_members_take_the_functions_of_the_first_only_if_all_have_equal_ones(original, setter, name):
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    checkpoint = newest_checkpoint(OutputPaths(run_dir=original), refuse)
    like = members_of(env)
    for agent in like:
        setter(agent, 0.5)  # a function of its own, of the same code
    assert len(load_population(checkpoint, Population, like, refuse)) == 2
    like = members_of(env)
    for number, agent in enumerate(like):
        setter(agent, 0.5 + number / 10)
    with pytest.raises(ConfigurationError, match=f"^{name} is not the same function for all members"):
        load_population(checkpoint, Population, like, refuse)
    env.close()


@pytest.mark.parametrize(("setter", "name"), [(set_transform, "reward_transform"), (set_schedule, "schedules.lr")])
def test_functions_that_the_first_member_lacks_are_those_of_the_others(tmp_path, setter, name):
    env = make_vect_envs("CartPole-v1", 2, backend="vector")

    def members(*rates):
        population = PPO.population(
            len(rates), env.single_observation_space, env.single_action_space, num_envs=2, learn_step=32,
            batch_size=16, seed=1,
        )  # fmt: skip
        for agent, rate in zip(population, rates, strict=True):
            if rate is not None:
                setter(agent, rate)
        return population

    sizes = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32}
    train_on_policy(env, pop=members(None, 0.5, 0.5), **sizes, run_dir=tmp_path / "run", verbose=False)
    checkpoint = newest_checkpoint(OutputPaths(run_dir=tmp_path / "run"), refuse)
    first, *others = load_population(checkpoint, Population, members(None, 0.5, 0.5), refuse)
    assert (first.reward_transform, dict(first.schedules)) == (None, {})
    assert all(callable(agent.reward_transform or agent.schedules["lr"]) for agent in others)
    with pytest.raises(ConfigurationError, match=f"^{name} is not the same function for all members"):
        load_population(checkpoint, Population, members(None, 0.5, 0.6), refuse)
    env.close()


def on_device(original, folder, device):
    """A copy of a run whose newest checkpoint has another device, or none."""
    return forged(original, folder, lambda run, documents: documents["identity"]["changeable"].update(device=device))


@pytest.mark.parametrize(("device", "loaded"), [("meta", "meta"), ("cuda:99", "cpu"), (None, "cpu")])
def test_members_are_loaded_on_the_device_of_the_run_if_the_machine_has_it(
    original, tmp_path, monkeypatch, device, loaded
):
    devices, warnings = [], []
    monkeypatch.setattr(Population, "from_documents", lambda *_, device, **__: devices.append(device))
    checkpoint = newest_checkpoint(on_device(original, tmp_path / "run", device), refuse)
    load_population(checkpoint, Population, None, warnings.append)
    assert devices == [torch.device(loaded)]
    expected = "the run continues on the CPU, because its device='cuda:99' cannot be used"
    assert [text.startswith(expected) for text in warnings] == [True] * (device == "cuda:99")


def test_changeable_settings_that_are_no_mapping_are_refused(original, tmp_path):
    paths = forged(original, tmp_path / "run", lambda run, documents: documents["identity"].update(changeable=["cpu"]))
    with pytest.raises(CheckpointError, match="does not hold the settings of a run"):
        load_population(newest_checkpoint(paths, refuse), Population, None, refuse)


class Launched(Exception):
    """Ends a script where it starts processes."""


@pytest.mark.parametrize(("device", "cpu"), [("meta", False), (None, True)])
def test_the_processes_of_a_resumed_run_are_connected_for_its_device(original, tmp_path, monkeypatch, device, cpu):
    def stop(processes, main, arguments):
        raise Launched(arguments[0].cpu)

    monkeypatch.setattr(session, "worker_processes", stop)
    paths = on_device(original, tmp_path / "run", device)
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    with pytest.raises(Launched) as end:
        train_on_policy(env, max_steps=96, evo_steps=32, resume=paths.run_dir, processes=2, verbose=False)
    env.close()
    assert end.value.args == (cpu,)


@pytest.mark.parametrize(("with_members", "kept"), [(False, "cuda:99"), (True, "cpu")])
def test_a_resumed_run_has_its_device_or_that_of_given_members(original, tmp_path, with_members, kept):
    paths, records = on_device(original, tmp_path / "run", "cuda:99"), Records()
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    sizes = {"max_steps": 96, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32}
    pop = members_of(env) if with_members else None
    train_on_policy(env, pop=pop, **sizes, resume=paths.run_dir, callbacks=[records], verbose=False)
    env.close()
    assert ["device='cuda:99'" in text for text in records.warnings] == [True] * (not with_members)
    checkpoint = newest_checkpoint(paths, refuse)
    assert (checkpoint.generation, checkpoint.documents["identity"]["changeable"]["device"]) == (3, kept)


@pytest.mark.parametrize("with_folder", [True, False])
def test_only_a_checkpoint_in_a_run_folder_is_advised_to_be_resumed(tmp_path, monkeypatch, with_folder):
    saved = []
    monkeypatch.setattr(NullMonitor, "record_checkpoint", lambda self, *advice: saved.append(advice))
    monkeypatch.chdir(tmp_path)
    train("run" if with_folder else None)
    command = "train_on_policy(…, resume='run')"
    assert saved == ([(1, command), (2, command)] if with_folder else [])


def test_an_invalid_info_document_counts_as_damage(original, tmp_path):
    places = forged(original, tmp_path / "run", lambda run, documents: documents["milestone"].update(score=math.nan))
    warnings = []
    checkpoint = newest_checkpoint(places, warnings.append)
    assert checkpoint is not None
    assert checkpoint.generation == 1
    assert (
        "milestone.json': score=nan: Input should be a finite number; the run continues from gen-000001" in warnings[0]
    )


class Block(Callback):
    """Writes a file, which is not one of a run, to a path that a run saves to."""

    def __init__(self, path):
        self.path = path

    def on_generation(self, context, record):
        self.path.mkdir(exist_ok=True)
        (self.path / "notes.txt").write_text("mine")


def test_a_checkpoint_is_written_although_the_elite_cannot_be(tmp_path):
    """Not that of the end: it would mark a run as ended that has not saved everything."""
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    pop = PPO.population(
        1, env.single_observation_space, env.single_action_space, num_envs=2, learn_step=32, batch_size=16, seed=1
    )
    sizes = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32, "history": 0}
    paths = {"run_dir": tmp_path / "run", "elite_path": tmp_path / "elite"}
    train_on_policy(env, pop=pop, **sizes, **paths, callbacks=[Block(tmp_path / "elite")], verbose=False)
    env.close()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["gen-000001"]


def test_a_file_in_a_folder_that_saves_replace_does_not_end_a_run_that_has_its_checkpoints(tmp_path):
    env, folder = make_vect_envs("CartPole-v1", 2, backend="vector"), tmp_path / "run"
    sizes = {"max_steps": 160, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32, "history": 0}
    callbacks = [Block(folder / "best")]
    pop, _ = train_on_policy(env, pop=members_of(env), **sizes, run_dir=folder, callbacks=callbacks, verbose=False)
    env.close()
    assert pop.outcome == "budget spent"
    assert max(path.name for path in (folder / "checkpoints").iterdir()) == "gen-000004"


class Outage(Callback):
    """Lets one call of a function fail after the second generation, as a network file system does for a moment."""

    def __init__(self, monkeypatch, owner, name, path):
        self.function, self.path, self.is_due = getattr(owner, name), path, False
        monkeypatch.setattr(owner, name, lambda path: self.call(path))

    def on_generation(self, context, record):
        self.is_due = record.generation == 2

    def call(self, path):
        if self.is_due and path == self.path:
            self.is_due = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return self.function(path)


@pytest.mark.parametrize(
    ("owner", "name", "saved"), [(Path, "iterdir", [1, 3, 4]), (shutil, "disk_usage", [1, 2, 3, 4])]
)  # the checkpoints before, and the free space after, one is written
def test_an_outage_costs_a_checkpoint_and_a_warning_at_most(tmp_path, monkeypatch, owner, name, saved):
    env, folder, records = make_vect_envs("CartPole-v1", 2, backend="vector"), tmp_path / "run", Records()
    sizes = {"max_steps": 128, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32, "history": 0}
    outage = Outage(monkeypatch, owner, name, folder / "checkpoints")
    callbacks = [outage, records]
    pop, _ = train_on_policy(env, pop=members_of(env), **sizes, run_dir=folder, callbacks=callbacks, verbose=False)
    env.close()
    assert (pop.outcome, outage.is_due) == ("budget spent", False)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [f"gen-{n:06d}" for n in saved]
    warning = f"a save failed ([Errno 5] Input/output error: '{folder / 'checkpoints'}'); what was saved before is "
    assert [text for text in records.warnings if "Errno" in text] == [f"{warning}untouched"] * (len(saved) == 3)


class Break(Callback):
    """Lets every step of the env fail after the second generation."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def on_generation(self, context, record):
        def step(env, action):
            raise OSError("serial port lost")

        if record.generation == 2:
            self.monkeypatch.setattr(CartPoleEnv, "step", step)


def test_the_warning_after_an_error_names_the_checkpoint_that_was_written_without_the_elite(tmp_path, monkeypatch):
    env, records = make_vect_envs("CartPole-v1", 2, backend="sync"), Records()
    sizes = {"max_steps": 128, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "checkpoint": 32, "history": 0}
    paths = {"run_dir": tmp_path / "run", "elite_path": tmp_path / "elite"}
    callbacks = [Block(tmp_path / "elite"), Break(monkeypatch), records]
    with pytest.raises(EnvStepError, match="serial port lost"):
        train_on_policy(env, pop=members_of(env), **sizes, **paths, callbacks=callbacks, verbose=False)
    env.close()
    assert "A resumed run repeats generation 3, from the checkpoint of generation 2" in records.warnings[-1]


class StopInUpdate(Callback):
    """Stops a run in the first update of its second generation."""

    def on_update(self, run, metrics):
        if run.generation == 2:
            run.stop()


@pytest.mark.parametrize(
    ("stop", "evo_steps"), [(StopAfter(2), 32), (StopInUpdate(), 32), (StopInUpdate(), 64)]
)  # after a generation, at its last update, and in its midst
def test_a_run_whose_only_checkpoint_could_not_be_written_is_not_resumed(tmp_path, monkeypatch, stop, evo_steps):
    def write(*args, **more):
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(Checkpoints, "write", write)
    env, records = make_vect_envs("CartPole-v1", 2, backend="vector"), Records()
    sizes = {"max_steps": 256, "evo_steps": evo_steps, "eval_loop": 1, "eval_steps": 5, "checkpoint": evo_steps}
    callbacks = [stop, records]
    train_on_policy(env, pop=members_of(env), **sizes, run_dir=tmp_path / "run", callbacks=callbacks, verbose=False)
    env.close()
    assert records.warnings[0] == "No space left on device"
    assert records.warnings[-1].startswith("the run has no checkpoint, since none could be written: resume starts it")
    assert records.summary.resume.startswith("no checkpoint yet; ")


def progress(**changes):
    return lambda run, documents: run["progress"].update(changes)


def changed_run(**changes):
    return lambda run, documents: run.update(changes)


BIRTH = {
    "generation": 1,
    "slot": 0,
    "survives": False,
    "mutations": [],
    "hyperparameters": {},
    "architecture": "",
    "parent_hyperparameters": {},
    "parent_architecture": "",
    "parent_fitness": None,
}
EACH_OTHER = [{**BIRTH, "uid": 0, "parent_uid": 1}, {**BIRTH, "uid": 1, "parent_uid": 0}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (progress(generation=-1), r"run\.progress: generation=-1: Input should be greater than or equal to 0"),
        (progress(next_uid=-1), r"run\.progress: next_uid=-1: "),
        (progress(next_uid=1), r"run\.progress\.next_uid=1; allowed are numbers above every uid, such as 1"),
        (progress(restorations=-1), r"run\.progress: restorations=-1: "),
        (progress(seconds_by_part={"env": "1"}), r"seconds_by_part\.env='1': Input should be a valid number"),
        (progress(seconds_by_part=None), r"seconds_by_part=None: "),
        (progress(tracked={"births": [3.0, -1]}), r"run\.progress: tracked\.births\.1=-1: "),
        (progress(backdoor=1), r"'backdoor' is unknown; allowed are next_uid, generation"),
        (lambda run, documents: run["progress"].pop("ticks"), r"progress\.ticks is missing"),
        (changed_run(fitness=[]), r"run\.fitness=\[\]; allowed is one number for each of 2 members"),
        (changed_run(fitness=["1", "2"]), r"run\.fitness=\['1', '2'\]; allowed is one number"),
        (changed_run(births=None), r"run\.births=None; allowed is a list"),
        (changed_run(births=[{}]), r"run\.births\.0: .*"),
        (changed_run(births=EACH_OTHER), r"run\.births\.0: parent_uid=1 of uid=0; allowed is a smaller one"),
        (changed_run(rivals=None), r"run\.rivals=None; allowed is a list"),
        (changed_run(rivals=[[1000.0, 0]]), r"has no rival-000\.json and rival-000\.safetensors"),
        (changed_run(best=None), r"run\.best=None is not the best agent"),
        (lambda run, documents: run["best"]["record"].update(fitness="1"), r"run\.best\.record: fitness='1': "),
        (lambda run, documents: documents.pop("champion"), r"has no champion\.json"),
        (lambda run, documents: documents["milestone"].update(generation=7), r"generation=2; the checkpoint is of 7"),
    ],
)
def test_an_invalid_field_is_refused_by_name(original, tmp_path, change, said):
    with pytest.raises(CheckpointError, match=said):
        newest_checkpoint(forged(original, tmp_path / "run", change), refuse)


def test_experience_is_in_the_order_of_slots_whatever_their_number(tmp_path):
    slots = range(1002)  # member-1000 comes before member-101 as text
    tensors = {f"{EXPERIENCE}-{slot:03d}": {"x": torch.tensor([slot])} for slot in slots}
    found = take_experience(Checkpoint(tmp_path, 1, {}, dict(reversed(tensors.items()))), len(slots))
    assert [int(one["x"]) for one in found] == [*slots]
