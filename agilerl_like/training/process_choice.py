"""Chooses the number of processes and threads of a run for `processes="auto"`.

A copy of the population trains for a few hundred milliseconds in envs of its own, once for each layout that suits the
machine: one process with one thread, one with all threads, and several processes, of which the largest shard is
measured here. `choose` then compares the predicted times of the whole run. The run's own envs and members are not
used, and results depend on the choice by rounding only, because there are at most as many processes as members that
evolution keeps; with `per_member` the number of threads is not changed, and results do not depend on the choice.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import torch

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.distributed.launcher import check_launch, unavailable_reason
from agilerl_like.distributed.process_group import ProcessGroup, check_shared_device
from agilerl_like.envs.factory import env_config_of
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.formatting import number_of
from agilerl_like.resources import available_cores
from agilerl_like.training.checkpoint_manager import Progress, load_population, newest_checkpoint
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.run_plan import RunPlan
from agilerl_like.training.session import worker_job, worker_main
from agilerl_like.training.training_arguments import OutputPaths

AUTO: Literal["auto"] = "auto"
SHORT_RUN = 20_000
"""Env steps of all members up to which a run is too short for a measurement."""
START_SECONDS = 4.0
"""Seconds of one core that a process needs to start, an estimate: its imports alone took 3.2 CPU seconds."""
TARGET_DIVISOR = 4
"""Divisor of the budget of a run with a target, which usually ends early."""
MARGIN = 0.9
"""Share of a simpler layout's predicted time below which another layout is chosen; smaller gains may be noise."""
SAMPLE_SECONDS = 0.12
"""Seconds of training that one layout is timed for, after a first round that is not timed."""
BUILD_SECONDS = 1.0
"""Seconds that making the envs of all layouts may take; else one member is measured."""
SLOWEST_ROUND = 0.6
"""Seconds after which a round ends early, without learning: the env takes most of the time then."""
MOST_SECONDS = 3.0
"""Seconds after which no further layout is measured, for overloaded machines."""
ROUND_STEPS = 8
"""Vector steps of one round, unless a minibatch needs more."""


class Layout(NamedTuple):
    """How many processes with how many threads each."""

    processes: int = 1
    threads: int = 1

    def __str__(self) -> str:
        return f"{number_of(self.processes, 'process', 'es')} with {number_of(self.threads, 'thread')}"


class Choice(NamedTuple):
    """The layout of a run, why it was chosen, and the steps/s of all members that were measured."""

    layout: Layout
    reason: str
    rates: Mapping[Layout, float]

    @property
    def line(self) -> str:
        """The line that a run prints; "" if nothing was measured."""
        return f"{self.layout}: {self.reason}" if self.rates else ""


class Sample(NamedTuple):
    """Seconds of one vector step of a shard: its envs, and everything else."""

    env: float
    compute: float


# -- the decision, a function of what was measured


def candidates(members: int, cores: int, threads: Sequence[int]) -> list[Layout]:
    """Return the layouts to compare, simpler ones first; `threads` are those that one process may have.

    `members` are those that are left at the end: with more processes, of which each keeps a member, fewer would be
    removed than in one process, and the run would find other agents.

    The layout with several processes has the fewest with which the largest shard is as small as with one process for
    each core (at most one for each member).
    """
    layouts = [Layout(1, count) for count in threads]
    most = min(members, cores)
    if most > 1:
        processes = -(-members // -(-members // most))
        layouts += [Layout(processes, count) for count in threads if processes * count <= cores]
    return layouts


def slowdown(layout: Layout, cores: int, load: float) -> float:
    """Return how many times longer each of several processes takes than it does alone, on cores with such a load.

    `load` counts the cores that other programs use; all programs get an equal share.
    """
    alone = min(1.0, cores / (layout.threads + load))
    together = min(1.0, cores / (layout.processes * layout.threads + load))
    return alone / together


def choose(rates: Mapping[Layout, float], steps: int, cores: int, load: float = 0.0) -> Choice:
    """Return the layout in which a run of so many env steps ends first; `rates` are env steps/s of all members.

    A layout replaces one before it only if it takes less than `MARGIN` of its time, the start of processes included.
    """
    layouts = iter(rates)
    best = next(layouts)
    for layout in layouts:
        if _run_seconds(layout, rates, steps, cores, load) < MARGIN * _run_seconds(best, rates, steps, cores, load):
            best = layout
    others = ", ".join(f"{rate:,.0f} in {layout}" for layout, rate in rates.items() if layout != best)
    reason = f"measured {rates[best]:,.0f} steps/s" + (f", {others}" if others else "")
    if len({layout.processes for layout in rates}) > 1:
        several = next(layout for layout in rates if layout.processes > 1)
        seconds = start_seconds(several, cores, load)
        reason += f"; to start {several.processes} processes takes about {seconds:.0f} s"
    return Choice(best, reason, rates)


def start_seconds(layout: Layout, cores: int, load: float) -> float:
    """Return the seconds until several processes train; 0 for one."""
    if layout.processes == 1:
        return 0.0
    return START_SECONDS / min(1.0, cores / (layout.processes - 1 + load))


def _run_seconds(layout: Layout, rates: Mapping[Layout, float], steps: int, cores: int, load: float) -> float:
    return start_seconds(layout, cores, load) + steps / rates[layout]


# -- measuring


def choose_layout(
    env_setup: EnvSetup,
    population: BasePopulation | None,
    plan: RunPlan,
    *,
    processes: int | Literal["auto"] = AUTO,
    threads: int | Literal["auto"] = AUTO,
    eval_setup: EnvSetup | None = None,
    process_group: ProcessGroup | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> Choice:
    """Return the processes and threads of a run; those that are given as numbers are not changed.

    If the run folder `resume` has a checkpoint, its members are measured, and the steps count that the run has left.

    Raises:
        ConfigurationError: several processes are set for a population on one GPU, such as "cuda:1".
    """
    given = Layout(processes if processes != AUTO else 1, threads if threads != AUTO else torch.get_num_threads())
    is_one_of_several = process_group is not None and process_group.size > 1
    if processes != AUTO:
        if isinstance(processes, int) and processes > 1 and population is not None and not is_one_of_several:
            check_shared_device(population.device)
        return Choice(given, "as set", {})
    cores = available_cores()
    if process_group is not None and is_one_of_several:
        return Choice(given, f"one of {process_group.size} processes that a launcher started", {})
    if cores == 1:
        return Choice(given, "one core", {})
    population, progress = _members_and_progress(env_setup, population, resume)
    if population is None:
        return Choice(given, "there is no population to measure", {})
    if population.device.type != "cpu":
        return Choice(given, f"networks are on {population.device}", {})
    if reason := population[0].group_class.one_process_reason:
        return Choice(given, reason, {})
    if population[0].compile:
        return Choice(given, "every process would compile (compile=True)", {})
    num_envs = population[0].num_envs
    steps_left = progress.vector_steps_left(len(population), plan.training_args.vector_steps(num_envs))
    steps = steps_left * num_envs * len(population)
    if plan.training_args.target is not None:
        steps //= TARGET_DIVISOR
    if steps <= SHORT_RUN:
        return Choice(given, f"a run of {steps:,} steps is short", {})
    choice_of_threads = [given.threads] if threads != AUTO or population[0].per_member else [1, cores]
    members, selection = len(population), plan.selection
    if selection is not None and plan.training_args.max_updates is None:  # with it, no member is removed
        members = min(members, selection.least_left(members + progress.removed))
    layouts = candidates(members, cores, choice_of_threads)
    refusal = _refusal(env_setup, eval_setup, population, plan)
    if refusal:
        layouts = [layout for layout in layouts if layout.processes == 1]
    if layouts == [given]:
        return Choice(given, refusal or "there is no other layout", {})
    try:
        # an env may change the working directory; the run itself shows its warnings
        with contextlib.chdir("."), warnings.catch_warnings(action="ignore"):
            rates, load = measure(env_setup, population, layouts)
    except Exception as error:  # an env's error, which the run reports
        return Choice(given, f"nothing could be measured ({error!r:.200})", {})
    choice = choose(rates, steps, cores, load)
    return choice._replace(reason=f"{choice.reason}; {refusal}") if refusal else choice


def measure(
    env_setup: EnvSetup, population: BasePopulation, layouts: Sequence[Layout]
) -> tuple[dict[Layout, float], float]:
    """Return env steps/s of all members in each layout, and the number of cores that other programs use."""
    members, envs = len(population), env_setup.env.num_envs
    others, cores = OtherLoad(), available_cores()
    shards = {layout: -(-members // layout.processes) for layout in layouts}
    built = time.perf_counter()
    with ExitStack() as stack:
        single = make_shard_env(stack, env_setup, 1)
        seconds_per_member = time.perf_counter() - built
        is_affordable = seconds_per_member * sum(shards.values()) <= BUILD_SECONDS
        samples: dict[Layout, Sample] = {}
        for layout, shard in shards.items():
            if samples and time.perf_counter() - built > MOST_SECONDS:
                break
            with _threads(layout):
                if is_affordable:
                    samples[layout] = sample_shard(
                        make_shard_env(stack, env_setup, shard), env_setup, population, shard
                    )
                else:  # a lower bound of the gain, since networks of several members take longer than those of one
                    sample = sample_shard(single, env_setup, population, 1)
                    samples[layout] = sample._replace(env=sample.env * shard)
    load = others.cores()
    rates = {
        layout: members * envs / (sum(sample) * slowdown(layout, cores, load)) for layout, sample in samples.items()
    }
    return rates, load


def make_shard_env(stack: ExitStack, env_setup: EnvSetup, members: int) -> Any:
    """Return new envs of so many members, which `stack` closes.

    Raises:
        ConfigurationError: the env cannot be made again.
    """
    if members > 1:
        env = env_setup.make_training_env(members, 1)
    else:
        env = type(env_setup).from_config(env_config_of(env_setup.vec_env)).env
    if env is env_setup.env:
        raise ConfigurationError(f"env={env} cannot be made again")
    stack.callback(env.close)
    return env


def sample_shard(env: Any, env_setup: EnvSetup, population: BasePopulation, members: int) -> Sample:
    """Train copies of the first members for a moment."""
    copies = population.clone_selected(range(members))
    epochs = sum(_shorten_rounds(agent, env_setup.env.num_envs) for agent in copies) / members
    timer = PhaseTimer(("env", "act", "learn"))
    collector = env_setup.make_collector(copies, env_setup.adapt(env), timer)
    collector.reset(range(members))
    start, steps = time.perf_counter(), 0
    now, is_warm = start, False

    def is_too_slow() -> bool:
        return time.perf_counter() - now > SLOWEST_ROUND

    while now - start <= SAMPLE_SECONDS:
        steps += collector.collect(collector.vector_steps_until_update, should_stop=is_too_slow)
        collector.learn()
        now = time.perf_counter()
        if not is_warm and now - start <= SAMPLE_SECONDS:
            timer.seconds.update(dict.fromkeys(timer.seconds, 0.0))  # the first round allocates and loads files
            start, steps, is_warm = now, 0, True
    spent = timer.seconds
    return Sample(spent["env"] / steps, (spent["act"] + epochs * spent["learn"]) / steps)


def _shorten_rounds(agent: EvolvableAlgorithm, num_envs: int) -> int:
    """Make the updates of a copy short, and return how many of them are an update of the agent."""
    agent.learning_starts = 0
    if not isinstance(agent, RolloutAlgorithm):  # a round of these ends after `SLOWEST_ROUND` seconds at most
        return 1
    epochs, agent.update_epochs = agent.update_epochs, 1
    steps = max(agent.batch_size, ROUND_STEPS * num_envs)
    if agent.num_steps is None:
        agent.learn_step = min(agent.learn_step, steps)
    else:
        agent.num_steps = min(agent.num_steps, -(-steps // num_envs))
    return epochs


def _refusal(env_setup: EnvSetup, eval_setup: EnvSetup | None, population: BasePopulation, plan: RunPlan) -> str:
    """Return why the run cannot have several processes; "" if it can."""
    if reason := unavailable_reason():
        return f"one process, because {reason}"
    try:
        check_launch(2, worker_main, (worker_job(env_setup, eval_setup, population, plan, cpu=True),))
    except ConfigurationError as error:
        cause = error.__cause__
        why = error if cause is None else f"env, hooks or networks cannot be sent to another process ({cause})"
        return f"one process, because {why!s:.200}"
    return ""


def _members_and_progress(
    env_setup: EnvSetup, population: BasePopulation | None, folder: str | os.PathLike[str] | None
) -> tuple[BasePopulation | None, Progress]:
    """Return the members and the progress of the newest checkpoint in a run's folder.

    Without a checkpoint these are `population` and the beginning of a run; with one that cannot be read, no members.
    """
    start = Progress(next_uid=0)
    try:
        checkpoint = newest_checkpoint(OutputPaths(run_dir=None if folder is None else Path(folder)))
        if checkpoint is None:
            return population, start
        progress = Progress.from_json(checkpoint.documents["run"]["progress"])
        return load_population(checkpoint, env_setup.population, population), progress
    except (CheckpointError, ConfigurationError, OSError):  # which the run reports
        return None, start


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _threads(layout: Layout) -> Iterator[None]:
    """Set the number of threads, and the share of the cores, of each process of a layout."""
    before = os.environ.get("LOCAL_WORLD_SIZE")
    os.environ["LOCAL_WORLD_SIZE"] = str(layout.processes)
    try:
        with torch_threads(layout.threads):
            yield
    finally:
        if before is None:
            del os.environ["LOCAL_WORLD_SIZE"]
        else:
            os.environ["LOCAL_WORLD_SIZE"] = before


class OtherLoad:
    """Counts the cores of this process's share that other programs use, from its construction on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._busy, self._own, self._time = *self._seconds(), time.perf_counter()

    def cores(self, seconds: float = 0.0) -> float:
        """Wait for some seconds, and return the mean number of cores that others have used."""
        time.sleep(seconds)
        busy, own = self._seconds()
        passed = max(1e-3, time.perf_counter() - self._time)
        return max(0.0, (busy - self._busy - (own - self._own)) / passed)

    def _seconds(self) -> tuple[float, float]:
        """Return CPU seconds of all programs on the cores of this process, and its own."""
        every = psutil.cpu_times(percpu=True)
        usable = os.sched_getaffinity(0) if sys.platform == "linux" else range(len(every))
        idle = ("idle", "iowait", "guest", "guest_nice")
        busy = sum(
            seconds
            for core in usable
            if core < len(every)
            for name, seconds in every[core]._asdict().items()
            if name not in idle
        )
        own = self._process.cpu_times()
        return busy, own.user + own.system
