"""`agilerl-like bench`: env steps per second of populations of several sizes on a device."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.cli.output import checked_file, checked_seed, write_line
from agilerl_like.config import Draft, build
from agilerl_like.config.schema import MAX_THREADS
from agilerl_like.envs.array_backend import resolve_device
from agilerl_like.envs.factory import describe_backend
from agilerl_like.envs.multi_agent.pettingzoo import is_multi_agent
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.storage.durable_io import make_folder, replace_file
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.provenance import provenance

SIZES = "1,8,64,256,1024"
PATIENCE = 10
"""How many times its seconds a population may take at most; larger ones are left out."""


@dataclass(frozen=True)
class Row:
    """What one population made; parts are shares of its time."""

    members: int
    steps_per_second: float
    update_seconds: float
    """From one update to the next: acting, envs and learning."""
    growth: float
    """How many times as long as the smallest population it takes, with the same steps of each member."""
    env: float
    act: float
    learn: float


def bench(
    env: str = "CartPole-v1",
    device: str = "cpu",
    population: str = SIZES,
    num_envs: int = 16,
    seconds: float = 5.0,
    threads: int = 1,
    output: Path = Path("bench"),
    seed: int = 0,
) -> int:
    """Measure how many env steps per second populations of several sizes make in the whole training loop.

    Evaluation and evolution are left out. The table is printed, and written as CSV and Markdown.

    Args:
        env: An environment as in `environment.id`.
        device: cpu, cuda, cuda:1, ..., or auto (cuda if there is one, else cpu).
        population: Sizes, separated by commas.
        num_envs: Copies of the env for each member.
        seconds: Time of one population; those that could need ten times as long are left out.
        threads: torch threads.
        output: Path of the files, without .csv and .md; an earlier file is replaced.
        seed: Seed of the run.
    """
    sizes = _sizes(population)
    checked_file("output", output)
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"seconds={seconds!r} must be finite and above 0")
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigurationError(f"threads={threads!r}; allowed are 1 to {MAX_THREADS}")
    name = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    where = resolve_device(name)
    checked_seed(seed)
    target = output.absolute()  # an environment may change the working directory
    make_folder(target.parent)
    torch.set_num_threads(threads)
    rows: list[Row] = []
    head = [f"{env}, {num_envs} envs a member, on {_describe(where)}", *provenance("measured")]
    write_line("\n".join(head))
    for row in _rows(env, where, sizes, num_envs, seconds, seed):
        rows.append(row)
        write_line(_line(row))
    if not rows:
        raise ConfigurationError(f"population={population!r}: not one of these sizes could be measured")
    table = [*_markdown(rows), "", *(f"{line}  " for line in head)]
    for suffix, text in ((".md", "\n".join(table) + "\n"), (".csv", _csv(rows))):
        replace_file(target.with_name(f"{target.name}{suffix}"), text.encode())
    write_line(f"written: {output}.csv, {output}.md")
    return ExitCode.DONE


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(size) for size in text.split(",")})
    except ValueError:
        sizes = [0]
    if sizes[0] < 1:
        raise ConfigurationError(f"population={text!r}; allowed are whole numbers from 1, separated by commas: {SIZES}")
    return sizes


def _rows(
    env: str, device: torch.device, sizes: Sequence[int], num_envs: int, seconds: float, seed: int
) -> Iterator[Row]:
    """Measure one size after the other, as long as memory and time suffice."""
    smallest = last = 0.0
    for number, members in enumerate(sizes):
        if number and last * members / sizes[number - 1] > PATIENCE * seconds:
            write_line(f"P={members} and more left out: one update could take over {PATIENCE * seconds:g} s")
            return
        try:
            row, last = _measure(env, device, members, num_envs, seconds, seed, is_first=not number)
        except (torch.OutOfMemoryError, MemoryError):
            write_line(f"P={members} and more left out: they do not fit into the memory of {device}")
            return
        except ConfigurationError as error:
            if not number or "of memory" not in str(error):
                raise
            write_line(f"P={members} and more left out: {error}")
            return
        per_step = members / row.steps_per_second
        smallest = smallest or per_step
        yield replace(row, growth=round(per_step / smallest, 2))


def _measure(
    env: str, device: torch.device, members: int, num_envs: int, seconds: float, seed: int, *, is_first: bool
) -> tuple[Row, float]:
    """Train a population for so many seconds after a first update; return the row, and the seconds of that update."""
    algorithm = {"name": IPPO.algo if is_multi_agent(env) else "PPO", "batch_size": 128, "learn_step": 2048}
    settings = {
        "environment": {"id": env, "num_envs": num_envs},
        "algorithm": algorithm,
        "population": {"size": members},
        "mutation": None,
        "seed": seed,
    }
    experiment = build(Draft(settings).validate(), device)
    timer = PhaseTimer(("env", "act", "learn"))
    with contextlib.ExitStack() as stack:
        stack.callback(experiment.env.close)
        env_setup = experiment.env_setup
        wide = env_setup.make_training_env(members, 1)
        if wide is not experiment.env:
            stack.callback(wide.close)
        if is_first:
            write_line(f"envs: {describe_backend(getattr(wide, 'vector', wide))}\n{_HEAD}")
        collector = env_setup.make_collector(experiment.population, env_setup.adapt(wide), timer)
        collector.reset(range(members))

        def update() -> tuple[int, float]:
            start = time.perf_counter()
            steps = collector.collect(collector.vector_steps_until_update)
            collector.learn()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return steps * num_envs * members, time.perf_counter() - start

        first = update()[1]
        timer.seconds.update(dict.fromkeys(timer.seconds, 0.0))
        steps, passed, updates = 0, 0.0, 0
        while passed < seconds:
            taken, took = update()
            steps, passed, updates = steps + taken, passed + took, updates + 1
    shares = {phase: round(spent / passed, 3) for phase, spent in timer.seconds.items()}
    row = Row(members, round(steps / passed, 1), round(passed / updates, 4), 1.0, **shares)
    return row, min(first, passed / updates)


_HEAD = f"{'P':>6}{'steps/s':>12}{'s/update':>10}{'time, same steps':>18}{'env':>7}{'act':>7}{'learn':>7}"


def _line(row: Row) -> str:
    return (
        f"{row.members:>6}{row.steps_per_second:>12,.0f}{row.update_seconds:>10.3g}{row.growth:>17.2f}x"
        f"{row.env:>7.0%}{row.act:>7.0%}{row.learn:>7.0%}"
    )


def _markdown(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| P | steps/s, all members | seconds of an update | time with the same steps of each | env | act | learn |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        lines.append(
            f"| {row.members} | {row.steps_per_second:,.0f} | {row.update_seconds:.3g} | {row.growth:.2f}x | "
            f"{row.env:.0%} | {row.act:.0%} | {row.learn:.0%} |"
        )
    return lines


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    return text.getvalue()


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
