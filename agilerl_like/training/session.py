"""Carries out a plan: makes the envs of this process, meets the other processes, and runs.

A run may be one process; or many that `accelerate launch` started, each with this same code before it; or many of which
this one starts the others. To those nothing is sent but the plan: their members come as all members do that move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agilerl_like.algorithms.individuals import BasePopulation
from agilerl_like.distributed.launcher import WorkerProcesses, launched
from agilerl_like.distributed.process_group import (
    MultiProcess,
    ProcessGroup,
    SingleProcess,
    destroy_process_group,
    init_process_group,
    shard_members,
)
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.factory import VecEnvConfig, describe_backend, env_config_of
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import Mutations, Selection
from agilerl_like.modules.layers import check_activation
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.reporter import Reporters
from agilerl_like.room import check_room
from agilerl_like.storage.run_lock import RunLock
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.checkpoint_manager import (
    Archive,
    Finished,
    Progress,
    identity_in,
    newest_of,
    population_of,
    rivals_of,
)
from agilerl_like.training.env_setup import Stage, share_of
from agilerl_like.training.loop import Outcome, Run
from agilerl_like.training.run_folder import check_free, check_links, check_own, claim
from agilerl_like.training.run_settings import SELECTION, check_identity, identity_of, selection_name
from agilerl_like.training.sharding import Members, Unsent
from agilerl_like.training.training_config import Places, Schedule


@dataclass(frozen=True)
class Plan:
    """What is to be done, whichever process does it: everything about a run but its envs, members and reports."""

    schedule: Schedule
    selection: Selection | None
    mutations: Mutations
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    resume: str = ""
    """What to type to go on with it."""

    def __post_init__(self) -> None:
        """Check what can be checked before anything is made."""
        for activation in self.mutations.activation_selection:
            check_activation("activation_selection", activation)


PROCESS = 2**26
"""Bytes that a process takes at least: torch alone is more."""

STILL = Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0)
"""Children as their parents are."""


class Fallen(PopulationDivergedError):
    """Nobody is healthy any more, but the run has a checkpoint of its own to go back to."""


def evolve_on_policy(
    stage: Stage,
    population: BasePopulation | None,
    plan: Plan,
    *,
    places: Places,
    reporters: Reporters,
    trials: Stage | None = None,
    process_group: ProcessGroup | None = None,
    processes: int = 1,
    resume: bool = False,
) -> Outcome:
    """Do what `train_on_policy` describes; the arguments are checked before anything is trained.

    `stage` is where members train, and `trials` where they are tested: a stage like it, if left out.
    `process_group` are processes that somebody else started, of which this is one; `processes` says how many to start here.
    With `resume` the main process reads the newest checkpoint in the run's folder, and begins anew if there is none.

    Raises:
        Finished: there is nothing to go on with.
    """
    if process_group is not None and not process_group.is_main:
        places, reporters = Places(), Reporters()
    if places.run_dir is not None and not resume:
        check_free(places.run_dir, overwrite=places.overwrite)
    check_stage(stage, reporters)
    part = Part(process_group or SingleProcess(), stage, trials, population, plan, places, reporters)
    if processes == 1:
        return part.play(resume=resume)
    if not isinstance(processes, int) or processes < 1 or (process_group is not None and process_group.size > 1):
        allowed = (
            "whole numbers from 1"
            if process_group is None
            else f"1, for this is one of {process_group.size} processes already"
        )
        raise ConfigurationError(f"processes={processes!r}; allowed are {allowed}")
    check_processes(processes, None if population is None else len(population), stage.env.num_envs)
    cpu = population is None or population.device.type == "cpu"
    job = Job(
        plan,
        type(stage),
        env_config_of(stage.vector),
        None if trials is None else env_config_of(trials.vector),
        cpu,
        Unsent.of(population),
    )
    with launched(processes, assist, (job,)) as workers, joined(cpu=cpu, workers=workers) as process_group:
        return replace(part, process_group=process_group).play(resume=resume)


def check_stage(stage: Stage, reporters: Reporters) -> None:
    """Look at the env briefly before anything is trained in it, and report warnings.

    Raises:
        ConfigurationError: the env breaks its contract; all errors are in the message.
    """
    findings = stage.check()
    for finding in findings:
        if finding.severity == "warning":
            reporters.warning(f"env {env_name_of(stage.vector)}: {finding.problem}; {finding.advice}")
    if errors := [f"{finding.problem}; {finding.advice}" for finding in findings if finding.severity == "error"]:
        raise ConfigurationError(f"env {env_name_of(stage.vector)} cannot be trained in: {'. '.join(errors)}")


def check_processes(processes: int, members: int | None, num_envs: int) -> None:
    """Raise ConfigurationError unless there is room for so many processes, and something to do for each.

    `num_envs` are the envs of each member; None members: as many as a checkpoint says.
    """
    check_room(f"processes={processes}", processes, PROCESS, "processes")
    if members is not None and processes > 1:
        try:
            share_of(num_envs, max(share.parts for share in shard_members([None] * members, processes)))
        except ConfigurationError as error:
            raise ConfigurationError(f"processes={processes}: {error}") from error


@dataclass(frozen=True)
class Part:
    """One process's part in a run; only the main process writes and reports."""

    process_group: ProcessGroup
    stage: Stage
    trials: Stage | None
    population: BasePopulation | None
    plan: Plan
    places: Places = field(default_factory=Places)
    reporters: Reporters = field(default_factory=Reporters)
    unsent: Unsent | None = None

    def play(self, *, resume: bool = False) -> Outcome:
        """Play it, and if nobody is healthy any more, once again from the newest checkpoint."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.process_group)
            stack.callback(self.reporters.close)
            if self.places.run_dir is not None:
                stack.enter_context(RunLock(self.places.run_dir))
            try:
                return self._live(resume=resume)
            except Fallen as end:  # all processes alike have come to this
                return self._live(resume=True, lost=end)

    def _live(self, *, resume: bool, lost: Fallen | None = None) -> Outcome:
        """One life of a run; `lost` is how the one before it ended."""
        stage, population, plan, places = self.stage, self.population, self.plan, self.places
        schedule = plan.schedule
        with contextlib.ExitStack() as stack:
            checkpoint = newest_of(places, self.reporters.warning) if resume else None
            memory = self.process_group.broadcast(None if checkpoint is None else checkpoint.documents["run"])
            if lost is not None:
                if memory is None:
                    raise lost
                generation = memory["progress"]["generation"]
                self.reporters.warning(
                    f"{lost}. The run goes back, once, to its checkpoint of generation {generation}, "
                    "and on with other noise"
                )
            identity = identity_of(stage, population, schedule, plan.selection) if self.process_group.is_main else {}
            if checkpoint is not None:
                begun_with = identity_in(checkpoint)
                if lost is None:
                    drawn = population is not None and population[0].seed_is_drawn
                    check_identity(begun_with, identity, str(places.shown), seed_is_drawn=drawn)
                    self._warn_of_another_selection(begun_with)
                identity = {**begun_with, SELECTION: selection_name(plan.selection)}
                population = population_of(checkpoint, stage.population, population)
            elif resume and places.run_dir is not None and (places.run_dir / METRICS).is_file():
                self.reporters.warning(f"{places.shown} has no checkpoint yet: the run begins again")
            if self.process_group.is_main and population is None:
                raise ConfigurationError(
                    f"pop is missing, and there is no checkpoint in {places.run_dir} to go on from"
                )
            best = None if population is None else population.best_of_run
            unsent = self.unsent or Unsent.of(population)
            members = Members.of(self.process_group, stage.population, population, unsent)
            if memory is not None and (limits := reached(memory, schedule, members)):
                outcome, everybody = memory["progress"]["outcome"], members.everybody()
                everybody.best_of_run = members.spread(0, [best])[0]
                raise Finished(f"{places.run_dir} has ended: {outcome}", everybody, limits)
            if plan.selection is not None:
                plan.selection.validate(members.size)
            local, its_envs = len(members.population), members.first.num_envs
            training_env = stage.for_training(local, members.share.parts, members.share.part)
            if training_env is not stage.env:
                stack.callback(training_env.close)
            make_eval_env = self._trial_env(stack, local)
            run = Run(
                members,
                stage,
                stage.stepped(training_env),
                stage.judge(schedule.fitness, stage.stepped(make_eval_env), schedule.eval_steps),
                schedule=schedule,
                selection=plan.selection,
                mutations=plan.mutations,
                archive=Archive(places, members, self.reporters, plan.resume, identity),
                reporters=self.reporters,
            )
            if memory is not None:
                check_envs(members.first.num_envs, its_envs)
                run.restore(memory, best, [] if checkpoint is None else rivals_of(checkpoint))
                if lost is not None:
                    run.advance_rng()
            if places.run_dir is not None:
                check_links(places.run_dir)
            if places.run_dir is not None and memory is None:
                check_own(places.run_dir) if resume else claim(places.run_dir, overwrite=places.overwrite)
            self.reporters.start(_record(plan, stage, training_env, members, places))
            with StopRequests(self.process_group.monitor) as stop_requests:
                try:
                    return run.go(stop_requests)
                except PopulationDivergedError as end:
                    if lost is None and (memory is not None or run.progress.saved_at):
                        raise Fallen(str(end)) from end
                    raise

    def _warn_of_another_selection(self, begun_with: Mapping[str, Any]) -> None:
        """Warn if a resumed run selects in another way: no configuration can name a strategy of a script's own."""
        before, now = begun_with.get(SELECTION), selection_name(self.plan.selection)
        if before is not None and before != now:
            self.reporters.warning(
                f"selection={now}: this run was begun with {before}; it continues with {now}. A strategy of a script's "
                "own needs that script: train_on_policy(…, selection_strategy=…, resume=…)"
            )

    def _trial_env(self, stack: contextlib.ExitStack, members: int) -> Any:
        """Where members are tested: made for them, unless only the one env exists that was given for it."""
        trials = self.trials or self.stage
        episodes = members * trials.episodes(self.plan.schedule.eval_loop)
        try:
            env = trials.for_trials(episodes)
        except ConfigurationError as fault:
            env = trials.env
            if self.trials is None:
                raise
            if env.num_envs % members:
                raise ConfigurationError(
                    f"eval_env={env} has num_envs={env.num_envs}, which cannot be divided among {members} members; "
                    f"allowed are multiples of {members}, or an env that can be made again ({fault})"
                ) from fault
            return env
        stack.callback(env.close)
        return env


def _record(plan: Plan, stage: Stage, training_env: Any, members: Members, places: Places) -> RunRecord:
    return RunRecord(
        name=plan.name or env_name_of(stage.vector),
        env=env_name_of(stage.vector),
        algorithm=members.first.algo,
        population_size=members.size,
        num_envs=members.first.num_envs,
        seed=members.first.seed,
        max_env_steps=plan.schedule.max_steps * members.size,
        target=plan.schedule.target,
        backend=describe_backend(getattr(training_env, "vector", training_env)),
        run_dir=places.run_dir,
        processes=members.process_group.size,
        settings=plan.settings,
    )


@dataclass(frozen=True)
class Job:
    """What a process must know that was started to take part in a run: the members are sent to it later."""

    plan: Plan
    stage: type[Stage]
    recipe: VecEnvConfig
    trials: VecEnvConfig | None
    cpu: bool
    unsent: Unsent


def assist(rank: int, job: Job) -> None:
    """Take part in a run that another process started this one for."""
    with contextlib.ExitStack() as stack:
        process_group = stack.enter_context(joined(cpu=job.cpu))
        stage = job.stage.remade(job.recipe)
        stack.callback(stage.env.close)
        trials = None if job.trials is None else job.stage.remade(job.trials)
        if trials is not None:
            stack.callback(trials.env.close)
        Part(process_group, stage, trials, None, job.plan, unsent=job.unsent).play()


def reached(memory: Mapping[str, Any], schedule: Schedule, members: Members) -> list[str]:
    """The settings of a schedule that keep a run that has ended from continuing; none if it can, or has not ended.

    `memory` is the run's document in its newest checkpoint.
    """
    progress, best = Progress.from_json(memory["progress"]), BestAgent.from_json(memory["best"], None).record
    is_spent = schedule.ticks(members.first.num_envs) <= progress.ticks
    is_good_enough = schedule.target is not None and best.is_confirmed and best.fitness >= schedule.target
    return [
        name
        for name, is_reached in (("max_steps", is_spent), ("target", is_good_enough))
        if is_reached and progress.outcome
    ]


def check_envs(num_envs: int, its_own: int) -> None:
    """Raise ConfigurationError unless a run that goes on has as many envs as before: by their steps it counts."""
    if num_envs != its_own:
        raise ConfigurationError(
            f"num_envs={num_envs} of each member cannot go on with a run of {its_own}; allowed are {its_own}"
        )


@contextlib.contextmanager
def joined(*, cpu: bool, workers: WorkerProcesses | None = None) -> Iterator[ProcessGroup]:
    """Meet the processes that were started together with this one, and part from them.

    `workers` are those that this process started itself: if one ends before all have met, so do the others.
    """
    workers = workers or WorkerProcesses()
    with workers.guard_rendezvous():
        accelerator = init_process_group(cpu=cpu)
    try:
        with workers.guard_rendezvous():
            process_group = MultiProcess(accelerator, describe_exit=workers.describe_exit)
        yield process_group
    finally:
        destroy_process_group(accelerator)
