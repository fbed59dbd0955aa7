"""Whole runs as a user starts them: processes of their own with the tiny run's configuration, and what is left of them.

Each has a session of its own, so that everything it has started can be killed, and found if it stays.
"""

import contextlib
import functools
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import yaml
from tiny_runs import digest, metrics

T = TypeVar("T")

DRIVER = Path(__file__).with_name("driver.py")
LAUNCHER = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
"""Two processes, also where there is no GPU: with --cpu Accelerate would start one, whatever number is given."""
APART = ("--algorithm.per_member", "true")
"""What lets a run be the same on any number of processes."""
LONG = 600.0
"""Seconds that nothing here takes, unless it hangs."""
LEAVE = 3.0
"""Seconds in which an ending process exits."""

GENERATIONS, GENERATION = 6, 384
CONFIG = {
    "seed": 4,
    "environment": {"id": "CartPole-v1", "num_envs": 4, "backend": "sync"},
    "algorithm": {"learn_step": 128, "batch_size": 64, "update_epochs": 2, "lr": 1e-3},
    "population": {"size": 4},
    "hyperparameters": {
        "lr": {"min": 1e-4, "max": 1e-2},
        "ent_coef": {"min": 1e-4, "max": 1e-1},
        "learn_step": {"min": 64, "max": 256},
        "batch_size": {"min": 32, "max": 128, "scale": "power_of_two"},
        "update_epochs": {"min": 1, "max": 3},
    },
    "network": {
        "encoder_config": {"hidden_size": [16]},
        "head_config": {"hidden_size": [16]},
        "latent_dim": 16,
    },
    "mutation": {
        "no_mutation": 0.1,
        "architecture": 0.3,
        "new_layer_prob": 0.4,
        "parameters": 0.2,
        "activation": 0.2,
        "rl_hp": 0.2,
    },
    "training": {
        "max_steps": GENERATIONS * GENERATION,
        "evo_steps": GENERATION,
        "eval_loop": 2,
        "eval_steps": 100,
        "checkpoint": GENERATION,
    },
    "run": {"name": "run", "plot": False},
}
TEAMS = {
    **CONFIG,
    "environment": {"id": "restless_teams:Restless", "num_envs": 4, "backend": "sync"},
    "algorithm": {"name": "IPPO", "learn_step": 64, "batch_size": 32, "update_epochs": 2, "lr": 1e-3},
    "hyperparameters": {
        "lr": {"min": 1e-4, "max": 1e-2},
        "learn_step": {"min": 32, "max": 128},
        "batch_size": {"min": 16, "max": 64, "scale": "power_of_two"},
    },
    "training": {"max_steps": 6 * 128, "evo_steps": 128, "eval_loop": 2, "checkpoint": 128},
}
REPLAYS = {
    **CONFIG,
    "algorithm": {
        "name": "DQN",
        "lr": 1e-3,
        "learn_step": 8,
        "gradient_steps": 2,
        "batch_size": 16,
        "n_step": 3,
        "memory": "shared",
        "memory_size": 600,  # the ring is full after two generations
        "learning_starts": 100,
        "save_memory": True,
    },
    "hyperparameters": {
        "lr": {"min": 1e-4, "max": 1e-2},
        "learn_step": {"min": 4, "max": 16},
        "batch_size": {"min": 8, "max": 32, "scale": "power_of_two"},
        "n_step": {"min": 1, "max": 4},
    },
}
CONFIGS = {"agents": CONFIG, "teams": TEAMS, "replays": REPLAYS}


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code; below zero: the signal that killed it."""
    said: str
    """On stdout and stderr."""
    left: tuple[str, ...]
    """Those that it has left behind."""
    seconds_after: float
    """Since its last fault; nan if it had none."""


class Command:
    """A command under way, and everything that it starts."""

    def __init__(self, arguments: Sequence[object], *, faults: str = "", launcher: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *launcher, str(DRIVER), *map(str, arguments)],
            env={**os.environ, "FAULTS": faults, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._said = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait(LONG)
        self._reader.join(LONG)
        self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._news:
                self._said += line
                self._news.notify()

    def wait_for(self, text: str) -> None:
        """Wait until it prints this."""
        with self._news:
            if not self._news.wait_for(lambda: text in self._said, LONG):
                raise TimeoutError(self._said)

    def wait_until_it_stops(self) -> None:
        """Wait until SIGSTOP has reached it."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise ChildProcessError(self._said)

    def ended(self) -> Ended:
        """Wait until it has ended; return how, and its remaining processes."""
        self.process.wait(LONG)
        end = time.time()
        _, left = psutil.wait_procs(self.members(), timeout=LEAVE)
        self._reader.join(None if not left else LEAVE)
        faults = re.findall(r"fault at ([\d.]+)", self._said)
        after = end - float(faults[-1]) if faults else math.nan
        return Ended(self.process.returncode, self._said, tuple(map(str, left)), after)

    def members(self) -> list[psutil.Process]:
        """Everybody who belongs to it and lives."""
        return [one for one in psutil.process_iter() if _session(one) == self.process.pid]


def _session(process: psutil.Process) -> int:
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.Error, ProcessLookupError):
        return 0


def run(arguments: Sequence[object], *, faults: str = "", launcher: Sequence[str] = ()) -> Ended:
    """Start a command, and wait until it has ended."""
    with Command(arguments, faults=faults, launcher=launcher) as command:
        return command.ended()


def train(
    folder: Path, *options: object, whom: str = "agents", faults: str = "", launcher: Sequence[str] = ()
) -> Ended:
    """Train in a folder, which becomes that of a run in `folder / "run"`."""
    return run(training(folder, *options, whom=whom), faults=faults, launcher=launcher)


def training(folder: Path, *options: object, whom: str = "agents") -> list[object]:
    """What to type to train there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(CONFIGS[whom]))
    return ["train", folder / "tiny.yaml", "--run.dir", folder, *options]


def resume_run(
    folder: Path, *options: object, whom: str = "agents", faults: str = "", launcher: Sequence[str] = ()
) -> Ended:
    """Resume the run in a folder; if it was killed before there was anything to resume, begin it."""
    if not (folder / "run" / "config.yaml").is_file():
        return train(folder, *options, whom=whom, faults=faults, launcher=launcher)
    return run(["resume", folder / "run", "--trust", *options], faults=faults, launcher=launcher)  # teams' env is ours


def advice(folder: Path) -> str:
    """The command that is printed when a run breaks off."""
    return f"agilerl-like resume {folder / 'run'}"


def at_once(work: Callable[[Any], T], many: Iterable[Any], *, workers: int = 2) -> list[T]:
    """Do it with each of many, a few at a time."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, many))


# -- what a run has left


def saved(folder: Path) -> list[int]:
    """The generations of which there are checkpoints."""
    found = (re.fullmatch(r"gen-(\d+)", path.name) for path in (folder / "run" / "checkpoints").glob("*"))
    return sorted(int(match[1]) for match in found if match)


def last_recorded_generation(folder: Path) -> int:
    """The last generation that was reported whole."""
    if not (folder / "run" / "metrics.csv").is_file():
        return 0
    generations = Counter(int(row["generation"]) for row in metrics(folder / "run"))
    return max((generation for generation, members in generations.items() if members == 4), default=0)


def traces(folder: Path) -> list[str]:
    """What faults have left in a run's folder and the run should have removed."""
    marks = re.compile(r"\.(tmp|old|new)-")
    return [path.name for path in (folder / "run").rglob("*") if marks.search(path.name)]


def state(folder: Path) -> tuple[str, list[int], list[str]]:
    """All that must not depend on what befell a run: its digest, its checkpoints, and what is left besides."""
    return digest(folder / "run"), saved(folder), traces(folder)


@functools.cache
def undisturbed(*options: object, whom: str = "agents") -> tuple[str, list[int], list[str]]:
    """The state of a run that nothing befell."""
    with tempfile.TemporaryDirectory() as folder:
        ended = train(Path(folder), *options, whom=whom)
        assert ended.code == 0, ended.said
        return state(Path(folder))


# -- lives


def survive(folder: Path, faults: Iterable[str], *options: object, whom: str = "agents") -> tuple[int, bool]:
    """Be killed by these, one life after the other, and live to the end; say how often, and whether all is as it was.

    Who is killed when there is nothing left to save leaves what the next save would have removed.
    """
    kills = 0
    for fault in faults:
        ended = resume_run(folder, *options, whom=whom, faults=fault)
        if ended.code == 0:
            break
        assert not ended.left, (faults, ended)
        assert last_recorded_generation(folder) - max(saved(folder), default=0) <= 1, (
            faults,
            ended,
        )  # no more than this is lost
        kills += 1
    ended = resume_run(folder, *options, whom=whom)
    assert ended.code == 0, (faults, ended.said)
    assert not ended.left
    wanted = undisturbed(*(APART if options else ()), whom=whom)
    is_same = digest(folder / "run") == wanted[0] if "has ended" in ended.said else state(folder) == wanted
    return kills, is_same


def survivors(
    folder: Path, plans: Sequence[Sequence[str]], *options: object, whom: str = "agents"
) -> tuple[int, list[Sequence[str]]]:
    """Do it with many runs, and return how often they were killed, and who is not as it was."""
    undisturbed(*(APART if options else ()), whom=whom)
    found = at_once(lambda i: survive(folder / str(i), plans[i], *options, whom=whom), range(len(plans)))
    return sum(kills for kills, _ in found), [plan for plan, (_, same) in zip(plans, found, strict=True) if not same]
