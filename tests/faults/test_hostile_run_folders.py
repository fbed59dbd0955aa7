"""Every file of a run folder, forged: each command ends with one clear error or succeeds.

Nothing that is forged is executed, nothing blocks, and nothing takes a second of CPU time or 64 MB more than the folder
as it was written. The cases run in this process, for an interpreter each would take minutes.
"""

import contextlib
import io
import json
import math
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import yaml
from forgery import MEGABYTES, SECONDS, Carrier, forget_peak, peak

from agilerl_like import Population
from agilerl_like.cli import main

CONFIG = """
environment: {id: CartPole-v1, num_envs: 4, wrappers: [{name: TimeLimit, max_episode_steps: 5}]}
population: {size: 2}
algorithm: {learn_step: 64, batch_size: 32}
hyperparameters: {lr: {min: 1e-5, max: 1e-2}}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 8}
training: {max_steps: 192, evo_steps: 64, eval_loop: 2, checkpoint: 64}
run: {name: base, plot: false}
seed: 3
"""
EVAL = ("eval", "--episodes", "2", "--seed", "1")
RESUME = ("resume",)
ON = ("resume", "--training.max-steps", "256", "--run.plot", "false")
PLOT = ("plot",)
FILES = ("config.yaml", "metrics.csv", "lineage.jsonl", ".lock")
HANGS = 120
"""Seconds after which a command counts as hanging; none should take more than one."""


class Case(NamedTuple):
    """What is done to a folder, and the commands that are tried on it afterwards."""

    forge: Callable
    commands: tuple
    said: str = ""
    """What the error must contain; empty: anything."""


CASES: dict[str, Case] = {}


def case(name, forge, *commands, said=""):
    assert name not in CASES
    CASES[name] = Case(forge, commands, said)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of a moment, and what each command costs on it: CPU seconds, and megabytes at the most."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "base.yaml").write_text(CONFIG)
    assert main(["train", str(folder / "base.yaml"), "--run.dir", str(folder)]) == 0
    costs = {}
    for command in (EVAL, RESUME, ON, PLOT):
        for number in range(2):  # the first one loads what the others find
            copy = shutil.copytree(folder / "base", folder / f"{command[0]}-{len(command)}-{number}")
            costs[command] = tried(command, copy)[2:]
            assert tried(command, copy)[0] == 0
    return folder / "base", costs


def tried(command, folder):
    """Run a command on a folder; return its exit code, output and cost."""

    hung = []

    def stop(*_):
        hung.append(command)
        raise AssertionError(f"{command} hangs")

    said, shown = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    forget_peak()
    start, memory = time.process_time(), peak()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            code = main([command[0], str(folder), *command[1:]])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not hung  # shutil.rmtree catches what is raised within it
    # what a disk did not take of a run that was trained is a warning in its log, and an exit code
    warned = [line for line in shown.getvalue().splitlines() if "warning" in line]
    error = said.getvalue() or "".join(f"{line}\n" for line in warned[-1:] if code)
    return code, error, time.process_time() - start, peak() - memory


# -- text files: whatever they hold


def nested(depth, opening="[", closing="]"):
    return opening * depth + "1" + closing * depth


def text(name, content):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def appended(name, content):
    def forge(folder):
        with (folder / name).open("ab") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    return forge


def sparse(name, size):
    return lambda folder: os.truncate(folder / name, size)


def instead(name, make):
    """Something else where a file was."""

    def forge(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return forge


def make_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path.name)
    os.chdir(here)


ODD_ENTRIES = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
}
READERS = {"config.yaml": (EVAL, RESUME), "metrics.csv": (PLOT, ON), "lineage.jsonl": (ON,), ".lock": (RESUME,)}
for file in FILES:
    for what, make in ODD_ENTRIES.items():
        case(f"{file} is {what}", instead(file, make), *READERS[file])

GARBAGE = {
    "binary": bytes(range(256)) * 100,
    "of NUL bytes": b"\0" * 5000,
    "one long line": b"x" * 3 * 2**20,
    "of lines without end": b"\n" * 10**5,
    "of backslashes": b'"' + b"\\" * 2**20,
    "nested 100,000 deep": nested(10**5),
    "nested in braces": nested(10**5, '{"a":', "}"),
    "UTF-16": "generation: 1\n".encode("utf-16"),
    "of terminal escapes": b"\x1b]0;owned\x07\x1b[2J\n",
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}
for file in FILES[:3]:
    for what, content in GARBAGE.items():
        case(f"{file} is {what}", text(file, content), *READERS[file])
        if file != "config.yaml":
            case(f"{file} has more behind it that is {what}", appended(file, content), *READERS[file])
for file in FILES[:3]:
    case(f"{file} has 10 GB", sparse(file, 10**10), *READERS[file])

# -- config.yaml: syntax and content


def bomb(width, levels, start="1"):
    lines = [f"a0: &a0 [{', '.join([start] * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, levels)]
    return "\n".join(lines)


def settings(**changes):
    """Change settings, by their dotted names."""

    def forge(folder):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        for name, value in changes.items():
            *sections, last = name.split("__")
            section = config
            for part in sections:
                section = section[part]
            section[last] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    return forge


YAML = {
    "a bomb of aliases": bomb(9, 9),
    "a bomb in the kwargs": "environment: {id: CartPole-v1, kwargs: {x: *a8}}\n" + bomb(9, 9),
    "a bomb behind the environment": bomb(9, 9) + "\nenvironment: {id: CartPole-v1, kwargs: {x: *a8}}\n",
    "a bomb of merges": merge_bomb(9),
    "an alias of itself": "environment: &a {id: CartPole-v1, kwargs: *a}",
    "an alias of nothing": "environment: *nothing",
    "many anchors": "\n".join(f"k{i}: &k{i} 1" for i in range(20_000)),
    "many keys": "environment: {id: CartPole-v1, kwargs: {" + ", ".join(f"k{i}: 1" for i in range(50_000)) + "}}",
    "a long list": "environment: {id: CartPole-v1, kwargs: {x: [" + "1," * 10**6 + "]}}",
    "a long text": "environment: {id: " + "x" * 4 * 2**20 + "}",
    "a long comment": "# " + "x" * 10 * 2**20,
    "blocks nested": "\n".join(" " * i + "a:" for i in range(2000)),
    "lists nested": "environment: {id: CartPole-v1, kwargs: {x: " + nested(2000) + "}}",
    "a number of a million digits": "environment: {id: CartPole-v1}\nseed: " + "9" * 10**6,
    "a number in hexadecimal digits": "environment: {id: CartPole-v1}\nseed: 0x" + "f" * 10**5,
    "an exponent": "environment: {id: CartPole-v1}\nalgorithm: {lr: 1e999999999}",
    "a python object": "!!python/object/apply:os.mkdir ['canary']",
    "a python object among kwargs": "environment: {id: CartPole-v1, kwargs: {x: !!python/name:os.system }}",
    "a custom tag": "environment: !ours {id: CartPole-v1}",
    "a binary": "environment: {id: !!binary aGVsbG8=}",
    "two documents": "environment: {id: CartPole-v1}\n---\nenvironment: {id: CartPole-v1}",
    "a scalar": "CartPole-v1",
    "a list": "[1, 2]",
    "half a flow": "environment: {id: CartPole-v1",
    "tabs": "environment:\n\tid: CartPole-v1",
    "control characters": 'environment: {id: "Cart\\0Pole\\x1b[2J"}',
    "a surrogate": 'environment: {id: "\\ud800"}',
    "an escape beyond Unicode": 'environment: {id: "\\UFFFFFFFF"}',
    "another schema": "schema: agilerl-like/9\nenvironment: {id: CartPole-v1}",
}
for what, content in YAML.items():
    case(f"config.yaml holds {what}", text("config.yaml", content), EVAL)
CODE = {
    "a command of the shell": {
        "environment__id": "subprocess:call",
        "environment__kwargs": {"args": ["mkdir", "canary"]},
    },
    "os.mkdir": {"environment__id": "os:mkdir", "environment__kwargs": {"path": "canary"}},
    "builtins": {
        "environment__id": "builtins:exec",
        "environment__kwargs": {"source": "import os; os.mkdir('canary')"},
    },
    "a wrapper": {"environment__wrappers": [{"name": "os:mkdir", "path": "canary"}]},
    "a training wrapper": {"environment__training_wrappers": ["canary_module:x"]},
    "a module": {"environment__id": "canary_module:Env-v0"},
    "a relative module": {"environment__id": "..canary_module:x"},
    "a module in the folder": {"environment__id": "base.canary_module:x"},
    "load_env_creator": {
        "environment__id": "gymnasium.envs.registration:load_env_creator",
        "environment__kwargs": {"name": "canary_module:x"},
    },
    "a team's module": {"environment__id": "canary_module", "algorithm__name": "IPPO"},
}
for what, changes in CODE.items():
    case(f"config.yaml names {what}", settings(**changes), EVAL, RESUME)
VALUES = {
    "an id that is a path": {"environment__id": "../../etc/passwd"},
    "an id of a million characters": {"environment__id": "x" * 10**6},
    "an empty id": {"environment__id": ""},
    "another env": {"environment__id": "Acrobot-v1"},
    "arguments that do not suit": {"environment__kwargs": {"nothing": 1}},
    "a huge time limit": {"environment__wrappers": [{"name": "TimeLimit", "max_episode_steps": 10**30}]},
    "a wrapper that is none": {"environment__wrappers": ["spam"]},
    "a wrapper without a name": {"environment__wrappers": [{"x": 1}]},
    "a wrapper of numbers": {"environment__wrappers": [1, 2]},
    "wrappers nested": {"environment__wrappers": [{"name": {"name": "TimeLimit"}}]},
    "2**60 envs": {"environment__num_envs": 2**60},
    "2**60 members": {"population__size": 2**60},
    "2**40 epochs": {"algorithm__update_epochs": 2**40},
    "2**60 threads": {"run__threads": 2**60},
    "2**30 processes": {"run__processes": 2**30},
    "a million workers": {"environment__num_workers": 10**6, "environment__backend": "workers"},
    "a layer of 10**12 nodes": {"network__encoder_config": {"hidden_size": [10**12]}},
    "10**5 layers": {"network__encoder_config": {"hidden_size": [16] * 10**5}},
    "a seed of nan": {"seed": math.nan},
    "another folder": {"run__dir": "/etc", "run__name": "passwd"},
    "a name that leads out": {"run__name": "../../canary"},
}
for what, changes in VALUES.items():
    case(f"config.yaml has {what}", settings(**changes), EVAL, RESUME)

# -- metrics.csv and lineage.jsonl: their fields


def rows(change):
    """Change the fields of the last row of metrics.csv, which come with the header's."""

    def forge(folder):
        lines = (folder / "metrics.csv").read_text().splitlines()
        header, last = lines[0].split(","), lines[-1].split(",")
        change(header, last)
        lines[0], lines[-1] = ",".join(header), ",".join(last)
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")

    return forge


def field(name, value):
    def change(header, last):
        last[header.index(name)] = value

    return rows(change)


for name in ("generation", "uid", "parameters"):
    for value in ("nan", "-1", "1e308", "text", "9" * 5000):
        case(f"metrics.csv has {name} {value[:8]}", field(name, value), PLOT)
for name in ("eval/mean_reward", "hp/lr", "time/total_timesteps", "population/target"):
    for value in ("nan", "-inf", "1e308", "5e-324", "text"):
        case(f"metrics.csv has {name} {value}", field(name, value), PLOT)
for value in ("$\\frac{", "$$", "\x07\x1b[2J", "x" * 10**5, "\ud7ff", '"a""b"', "%s{}"):
    case(f"metrics.csv has a mutation {value[:8]!r}", field("mutation", value), PLOT)
case("metrics.csv has 5000 columns", rows(lambda header, last: header.extend(f"hp/{i}" for i in range(5000))), PLOT)
case(
    "metrics.csv has 900 hyperparameters",
    lambda folder: (folder / "metrics.csv").write_text(
        "\n".join(
            line + "," + ",".join(f"hp/{i}" if n == 0 else "1" for i in range(850))
            for n, line in enumerate((folder / "metrics.csv").read_text().splitlines())
        )
        + "\n"
    ),
    PLOT,
)
case("metrics.csv has a column twice", rows(lambda header, last: header.__setitem__(-1, header[-2])), PLOT)
case("metrics.csv has a header alone", rows(lambda header, last: last.clear()), PLOT)
case(
    "metrics.csv begins with another generation",
    lambda folder: (folder / "metrics.csv").write_text(
        "".join(reversed((folder / "metrics.csv").read_text().splitlines(keepends=True)))
    ),
    PLOT,
)
BIRTHS = {
    "a parent of itself": {"uid": 3, "parent_uid": 3, "survives": False},
    "no mutations": {"mutations": None},
    "mutations of numbers": {"mutations": [1]},
    "a generation of text": {"generation": "1"},
    "a generation of nan": {"generation": math.nan},
    "a negative generation": {"generation": -5},
    "a generation beyond all": {"generation": 10**400},
    "another key": {"__class__": "os.system"},
}
for what, changes in BIRTHS.items():

    def forge_line(folder, changes=changes):
        lines = (folder / "lineage.jsonl").read_text().splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | changes)
        (folder / "lineage.jsonl").write_text("\n".join(lines) + "\n")

    case(f"lineage.jsonl has {what}", forge_line, ON)

# -- a checkpoint whose digests are right and whose meaning is not


def newest(folder):
    return Carrier(max((folder / "checkpoints").glob("gen-*")), "member-000", Population.load)


def document(name, change):
    """Change a document of the newest checkpoint, and let the manifest admit it."""

    def forge(folder):
        carrier = newest(folder)
        file = carrier.folder / f"{name}.json"
        data = json.loads(file.read_text())
        changed = change(data)
        carrier.put(file, json.dumps(data if changed is None else changed).encode())

    return forge


def changed_run(**changes):
    return document("run", lambda run: {**run, **changes})


def progress(**changes):
    return document("run", lambda run: {**run, "progress": {**run["progress"], **changes}})


for name in ("generation", "next_uid", "restorations", "ticks", "evaluation_steps", "saved_at"):
    for value in (-1, 10**30, "1", None, 1.5):
        case(f"run.json has {name} {value!r:.8}", progress(**{name: value}), ON, said=f"progress: {name}=")
for value in ("text", None, [], {"env": "1"}, {"env": None}, {"env": math.nan}, {"env": -1}, {"env": math.inf}, 5):
    case(f"run.json has seconds by part of {value!r:.20}", progress(seconds_by_part=value), ON, said="seconds_by_part")
for name, value in (("seconds", math.nan), ("seconds", -1), ("evolved", 1), ("outcome", None), ("backdoor", 1)):
    case(f"run.json has {name} {value}", progress(**{name: value}), ON, said=name)
case("run.json has no generation", document("run", lambda run: run["progress"].pop("generation") and None), ON)
case("run.json has a uid too low", progress(next_uid=1), ON, said="next_uid=1; allowed are numbers above")
case("run.json is of another generation", progress(generation=1), ON, said="progress.generation=1")
for value in ([], None, "text", 5, [1.0], [1.0] * 3, ["1", "2"], [[1.0], [2.0]], [None, None], {"0": 1.0}):
    case(f"run.json has fitness {value!r}", changed_run(fitness=value), ON, said="run.fitness=")
for value in (None, 5, "text", {}, [1], [None], [{}], [[]], [{"uid": 1}]):
    case(f"run.json has births {value!r}", changed_run(births=value), ON, said="run.births")
for value in (None, 5, {}, [[1000.0, 0]], [[1000.0, 0, 0]], [["1000", 0]], [None], [[math.nan, 0]], [[1000.0, "0"]]):
    case(f"run.json has rivals {value!r}", changed_run(rivals=value), ON)
for value in (None, 5, {}, [], {"record": None, "ancestry": []}, {"record": {}, "ancestry": []}, {"record": 5}):
    case(f"run.json has the best {value!r}", changed_run(best=value), ON, said="run.best")
for value in (None, [], "text", 5, {}, {"progress": {}}):
    case(f"run.json is {value!r}", document("run", lambda run, value=value: value if value is not None else [None]), ON)
for name in ("fitness", "uid", "hyperparameters", "generation", "losses", "architecture"):
    for value in (None, "text", [], -2):

        def forge_best(run, name=name, value=value):
            run["best"]["record"][name] = value

        if (name, value) not in (("fitness", -2), ("architecture", "text")):
            case(f"run.json has a best with {name} {value!r}", document("run", forge_best), ON, said="run.best.record")


def birth(**changes):
    """A birth as run.json has it."""
    whole = {"generation": 1, "slot": 0, "uid": 2, "parent_uid": 0, "survives": False, "mutations": []}
    whole |= {"hyperparameters": {}, "architecture": "", "parent_hyperparameters": {}, "parent_architecture": ""}
    return {**whole, "parent_fitness": None, "reason": "", **changes}


case(
    "run.json has births in a cycle",
    changed_run(births=[birth(uid=0, parent_uid=1), birth(uid=1, parent_uid=0)]),
    ON,
    said="parent_uid=1 of uid=0; allowed is a smaller one",
)
for what, changes in {
    "itself as parent": {"parent_uid": 2},
    "a survivor of another": {"survives": True},
    "mutations null": {"mutations": None},
    "a mutation without a kind": {"mutations": [{}]},
    "a change of one number": {"mutations": [{"kind": "rl_hp", "operator": "", "details": {"lr": [1]}}]},
    "a slot of text": {"slot": "0"},
    "a uid beyond all": {"uid": 10**30},
    "parents of text": {"parent_uid": "0"},
    "hyperparameters null": {"hyperparameters": None},
    "hyperparameters of mappings": {"hyperparameters": {"lr": {"a": 1}}},
    "an architecture null": {"architecture": None},
}.items():
    case(f"run.json has a birth with {what}", changed_run(births=[birth(**changes)]), ON, said="run.births.0")
for value in (None, [], {}, {"generation": -1, "ordinal": 1, "score": 1.0}, {"generation": "1"}):
    case(f"milestone is {value!r:.40}", document("milestone", lambda _, value=value: value), ON)
for value in (math.nan, math.inf, "1", True, []):
    case(
        f"milestone has the score {value!r}",
        document("milestone", lambda changed_run, value=value: {**changed_run, "score": value}),
        ON,
    )


def without(name):
    def forge(folder):
        carrier = newest(folder)
        listed = json.loads(carrier.manifest.read_text())
        for suffix in ("json", "safetensors"):
            listed["files"].pop(f"{name}.{suffix}", None)
            (carrier.folder / f"{name}.{suffix}").unlink(missing_ok=True)
        carrier.manifest.write_text(json.dumps(listed))

    return forge


for name in ("run", "champion", "milestone", "population", "member-000"):
    case(f"a checkpoint has no {name}", without(name), ON)
for value in (None, [], {}, "text"):
    case(f"the champion is {value!r}", document("champion", lambda _, value=value: value), ON)


def everywhere(**changes):
    """Change a setting of all members of the newest checkpoint."""

    def forge(folder):
        for file in newest(folder).folder.glob("member-*.json"):
            newest(folder)._replace(member=file.stem).set("settings", **changes)

    return forge


for what, changes in {
    "2**40 epochs": {"update_epochs": 2**40},
    "a learning rate of 1e300": {"lr": 1e300},
    "a rollout of 2**39 steps": {"learn_step": 2**39},
    "a minibatch of 2**39": {"batch_size": 2**39},
    "a gradient norm of 1e300": {"max_grad_norm": 1e300},
    "an entropy bonus of 1e300": {"ent_coef": 1e300},
    "a clip of 1e39": {"clip_coef": 1e39},
    "sequences of 2**39": {"recurrent": True, "max_seq_len": 2**39},
}.items():
    case(f"all members have {what}", everywhere(**changes), ON)


def numbers(name, value, places=("best", "checkpoint")):
    def forge(folder):
        carrier = Carrier(folder / "best", "agent", None) if "best" in places else newest(folder)
        tensors = safetensors.torch.load_file(carrier.weights)
        key = next(key for key in tensors if name in key and tensors[key].is_floating_point())
        tensors[key].reshape(-1)[0] = value
        carrier.fill(**{key: tensors[key]})

    return forge


for name in ("encoder.linears.0.weight", "mean", "adam.exp_avg", "recent_observations"):
    for value in (math.nan, math.inf):
        said = f"holds {value} in "
        case(f"the best agent's {name} is {value}", numbers(name, value, ("best",)), EVAL, said=said)
        case(f"a member's {name} is {value}", numbers(name, value, ("checkpoint",)), ON, said="member-000': ")

# -- stray entries, and folders that are none

STRAYS = {
    "checkpoints": {"gen-999999": (ON,), "gen-000999": (ON,), "gen-999999999999999999999": (ON,), ".gen-000001": (ON,)},
    ".": {"best": (EVAL,), "population": (ON,), "checkpoints": (ON,), "tensorboard": (ON,), "evolution.png": (PLOT,)},
    "best": {"manifest.json": (EVAL,), "agent.json": (EVAL,), "agent.safetensors": (EVAL,)},
}
for place, names in STRAYS.items():
    for name, commands in names.items():
        for what, make in ODD_ENTRIES.items():
            if place == "checkpoints" and what in ("missing", "empty"):
                continue
            case(f"{place}/{name} is {what}", instead(f"{place}/{name}", make), *commands)
case("a stray file among the checkpoints", text("checkpoints/gen-999999", b"x" * 100), ON)
case("a folder of checkpoints that is empty", lambda folder: (folder / "checkpoints" / "gen-000777").mkdir(), ON)
case("best is empty", text("best/agent.json", b""), EVAL)
case("best's manifest is backslashes", text("best/manifest.json", b'"' + b"\\" * (8 * 2**20 - 1)), EVAL)
case("best's manifest is deep", text("best/manifest.json", nested(10**6)), EVAL)
case("best's manifest has 10 GB", sparse("best/manifest.json", 10**10), EVAL)
case("TensorBoard's folder is full of others", text("canary_events", b"x"), ON)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_run_folder_is_one_error_or_none(name, base, tmp_path, monkeypatch):
    original, costs = base
    monkeypatch.chdir(tmp_path)
    (tmp_path / "canary_module.py").write_text("import os; os.mkdir('canary')")
    monkeypatch.syspath_prepend(tmp_path)
    forge, commands, said = CASES[name]
    for number, command in enumerate(commands):
        folder = shutil.copytree(original, tmp_path / f"run-{number}", symlinks=True)
        forge(folder)
        code, error, seconds, megabytes = tried(command, folder)
        assert code in (0, 2, 74, 75)
        assert error.count("\n") == (0 if code == 0 else 1), error
        assert "Traceback" not in error
        assert len(error) < 3000
        assert not said or (code != 0 and said in error), error
        assert not (tmp_path / "canary").exists()
        assert seconds <= costs[command][0] + SECONDS
        assert megabytes <= costs[command][1] + MEGABYTES


def test_there_are_enough_of_them():
    assert len(CASES) >= 200
