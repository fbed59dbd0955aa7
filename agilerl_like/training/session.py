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
from agilerl_like.hpo import Explorer, Mutations, Selection
from agilerl_like.modules.layers import check_activation
from agilerl_like.reporting.callback import CallbackList
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.records import RunRecord
from agilerl_like.resources import check_memory
from agilerl_like.storage.run_lock import RunLock
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.checkpoint_manager import (
    CheckpointManager,
    Progress,
    RunFinished,
    load_identity,
    load_opponents,
    load_population,
    newest_checkpoint,
)
from agilerl_like.training.env_setup import EnvSetup, divide_envs
from agilerl_like.training.loop import RunResult, TrainingLoop
from agilerl_like.training.run_folder import check_foreign_files, check_links, check_unused, prepare_folder
from agilerl_like.training.run_settings import SELECTION, check_identity, run_identity, selection_name
from agilerl_like.training.sharding import LocalState, ShardedPopulation
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments


@dataclass(frozen=True)
class RunPlan:
    """What is to be done, whichever process does it: everything about a run but its envs, members and reports."""

    training_args: TrainingArguments
    selection: Selection | None
    mutations: Explorer
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    resume: str = ""
    """What to type to go on with it."""

    def __post_init__(self) -> None:
        """Check what can be checked before anything is made."""
        for activation in self.mutations.activation_selection if isinstance(self.mutations, Mutations) else ():
            check_activation("activation_selection", activation)


PROCESS_BYTES = 2**26
"""Bytes that a process takes at least: torch alone is more."""

NO_MUTATION = Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0)
"""Children as their parents are."""


class RetryFromCheckpoint(PopulationDivergedError):
    """Nobody is healthy any more, but the run has a checkpoint of its own to go back to."""


def evolve_on_policy(
    env_setup: EnvSetup,
    population: BasePopulation | None,
    plan: RunPlan,
    *,
    output_paths: OutputPaths,
    reporters: CallbackList,
    eval_setup: EnvSetup | None = None,
    process_group: ProcessGroup | None = None,
    processes: int = 1,
    resume: bool = False,
) -> RunResult:
    """Do what `train_on_policy` describes; the arguments are checked before anything is trained.

    `env_setup` is where members train, and `eval_setup` where they are tested: a stage like it, if left out.
    `process_group` are processes that somebody else started, of which this is one; `processes` says how many to start here.
    With `resume` the main process reads the newest checkpoint in the run's folder, and begins anew if there is none.

    Raises:
        Finished: there is nothing to go on with.
    """
    if process_group is not None and not process_group.is_main:
        output_paths, reporters = OutputPaths(), CallbackList()
    if output_paths.run_dir is not None and not resume:
        check_unused(output_paths.run_dir, overwrite=output_paths.overwrite)
    check_env_setup(env_setup, reporters)
    process_run = ProcessRun(
        process_group or SingleProcess(), env_setup, eval_setup, population, plan, output_paths, reporters
    )
    if processes == 1:
        return process_run.run(resume=resume)
    if not isinstance(processes, int) or processes < 1 or (process_group is not None and process_group.size > 1):
        allowed = (
            "whole numbers from 1"
            if process_group is None
            else f"1, for this is one of {process_group.size} processes already"
        )
        raise ConfigurationError(f"processes={processes!r}; allowed are {allowed}")
    check_processes(processes, None if population is None else len(population), env_setup.env.num_envs)
    cpu = population is None or population.device.type == "cpu"
    job = WorkerJob(
        plan,
        type(env_setup),
        env_config_of(env_setup.vec_env),
        None if eval_setup is None else env_config_of(eval_setup.vec_env),
        cpu,
        LocalState.of(population),
    )
    with (
        launched(processes, worker_main, (job,)) as workers,
        distributed_session(cpu=cpu, workers=workers) as process_group,
    ):
        return replace(process_run, process_group=process_group).run(resume=resume)


def check_env_setup(env_setup: EnvSetup, reporters: CallbackList) -> None:
    """Look at the env briefly before anything is trained in it, and report warnings.

    Raises:
        ConfigurationError: the env breaks its contract; all errors are in the message.
    """
    findings = env_setup.check()
    for finding in findings:
        if finding.severity == "warning":
            reporters.warning(f"env {env_name_of(env_setup.vec_env)}: {finding.problem}; {finding.advice}")
    if errors := [f"{finding.problem}; {finding.advice}" for finding in findings if finding.severity == "error"]:
        raise ConfigurationError(f"env {env_name_of(env_setup.vec_env)} cannot be trained in: {'. '.join(errors)}")


def check_processes(processes: int, members: int | None, num_envs: int) -> None:
    """Raise ConfigurationError unless there is room for so many processes, and something to do for each.

    `num_envs` are the envs of each member; None members: as many as a checkpoint says.
    """
    check_memory(f"processes={processes}", processes, PROCESS_BYTES, "processes")
    if members is not None and processes > 1:
        try:
            divide_envs(num_envs, max(shard.parts for shard in shard_members([None] * members, processes)))
        except ConfigurationError as error:
            raise ConfigurationError(f"processes={processes}: {error}") from error


@dataclass(frozen=True)
class ProcessRun:
    """One process's part in a run; only the main process writes and reports."""

    process_group: ProcessGroup
    env_setup: EnvSetup
    eval_setup: EnvSetup | None
    population: BasePopulation | None
    plan: RunPlan
    output_paths: OutputPaths = field(default_factory=OutputPaths)
    reporters: CallbackList = field(default_factory=CallbackList)
    local_state: LocalState | None = None

    def run(self, *, resume: bool = False) -> RunResult:
        """Play it, and if nobody is healthy any more, once again from the newest checkpoint."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.process_group)
            stack.callback(self.reporters.close)
            if self.output_paths.run_dir is not None:
                stack.enter_context(RunLock(self.output_paths.run_dir))
            try:
                return self._run_once(resume=resume)
            except RetryFromCheckpoint as end:  # all processes alike have come to this
                return self._run_once(resume=True, diverged=end)

    def _run_once(self, *, resume: bool, diverged: RetryFromCheckpoint | None = None) -> RunResult:
        """One life of a run; `diverged` is how the one before it ended."""
        env_setup, population, plan, output_paths = self.env_setup, self.population, self.plan, self.output_paths
        training_args = plan.training_args
        with contextlib.ExitStack() as stack:
            checkpoint = newest_checkpoint(output_paths, self.reporters.warning) if resume else None
            saved_run = self.process_group.broadcast(None if checkpoint is None else checkpoint.documents["run"])
            if diverged is not None:
                if saved_run is None:
                    raise diverged
                generation = saved_run["progress"]["generation"]
                self.reporters.warning(
                    f"{diverged}. The run goes back, once, to its checkpoint of generation {generation}, "
                    "and on with other noise"
                )
            identity = (
                run_identity(env_setup, population, training_args, plan.selection) if self.process_group.is_main else {}
            )
            if checkpoint is not None:
                begun_with = load_identity(checkpoint)
                if diverged is None:
                    drawn = population is not None and population[0].seed_is_drawn
                    check_identity(begun_with, identity, str(output_paths.display_path), seed_is_drawn=drawn)
                    self._warn_of_another_selection(begun_with)
                identity = {**begun_with, SELECTION: selection_name(plan.selection)}
                population = load_population(checkpoint, env_setup.population, population)
            elif resume and output_paths.run_dir is not None and (output_paths.run_dir / METRICS).is_file():
                self.reporters.warning(f"{output_paths.display_path} has no checkpoint yet: the run begins again")
            if self.process_group.is_main and population is None:
                raise ConfigurationError(
                    f"pop is missing, and there is no checkpoint in {output_paths.run_dir} to go on from"
                )
            best = None if population is None else population.best_of_run
            local_state = self.local_state or LocalState.of(population)
            members = ShardedPopulation.of(self.process_group, env_setup.population, population, local_state)
            if saved_run is not None and (limits := limits_reached(saved_run, training_args, members)):
                outcome, gathered = saved_run["progress"]["outcome"], members.gather_all()
                gathered.best_of_run = members.broadcast_agents(0, [best])[0]
                raise RunFinished(f"{output_paths.run_dir} has ended: {outcome}", gathered, limits)
            if plan.selection is not None:
                plan.selection.validate(members.size)
            local, num_envs = len(members.population), members.first.num_envs
            training_env = env_setup.make_training_env(local, members.shard.parts, members.shard.part)
            if training_env is not env_setup.env:
                stack.callback(training_env.close)
            make_eval_env = self._eval_env(stack, local)
            run = TrainingLoop(
                members,
                env_setup,
                env_setup.adapt(training_env),
                env_setup.make_evaluator(
                    training_args.fitness, env_setup.adapt(make_eval_env), training_args.eval_steps
                ),
                training_args=training_args,
                selection=plan.selection,
                mutations=plan.mutations,
                checkpoint_manager=CheckpointManager(output_paths, members, self.reporters, plan.resume, identity),
                reporters=self.reporters,
            )
            if saved_run is not None:
                check_num_envs(members.first.num_envs, num_envs)
                run.restore(saved_run, best, [] if checkpoint is None else load_opponents(checkpoint))
                if diverged is not None:
                    run.advance_rng()
            if output_paths.run_dir is not None:
                check_links(output_paths.run_dir)
            if output_paths.run_dir is not None and saved_run is None:
                check_foreign_files(output_paths.run_dir) if resume else prepare_folder(
                    output_paths.run_dir, overwrite=output_paths.overwrite
                )
            self.reporters.start(_record(plan, env_setup, training_env, members, output_paths))
            with StopRequests(self.process_group.monitor) as stop_requests:
                try:
                    return run.run(stop_requests)
                except PopulationDivergedError as end:
                    if diverged is None and (saved_run is not None or run.progress.saved_at):
                        raise RetryFromCheckpoint(str(end)) from end
                    raise

    def _warn_of_another_selection(self, begun_with: Mapping[str, Any]) -> None:
        """Warn if a resumed run selects in another way: no configuration can name a strategy of a script's own."""
        before, now = begun_with.get(SELECTION), selection_name(self.plan.selection)
        if before is not None and before != now:
            self.reporters.warning(
                f"selection={now}: this run was begun with {before}; it continues with {now}. A strategy of a script's "
                "own needs that script: train_on_policy(…, selection_strategy=…, resume=…)"
            )

    def _eval_env(self, stack: contextlib.ExitStack, members: int) -> Any:
        """Where members are tested: made for them, unless only the one env exists that was given for it."""
        eval_setup = self.eval_setup or self.env_setup
        num_eval_episodes = members * eval_setup.num_eval_episodes(self.plan.training_args.eval_loop)
        try:
            env = eval_setup.make_eval_env(num_eval_episodes)
        except ConfigurationError as fault:
            env = eval_setup.env
            if self.eval_setup is None:
                raise
            if env.num_envs % members:
                raise ConfigurationError(
                    f"eval_env={env} has num_envs={env.num_envs}, which cannot be divided among {members} members; "
                    f"allowed are multiples of {members}, or an env that can be made again ({fault})"
                ) from fault
            return env
        stack.callback(env.close)
        return env


def _record(
    plan: RunPlan, env_setup: EnvSetup, training_env: Any, members: ShardedPopulation, output_paths: OutputPaths
) -> RunRecord:
    return RunRecord(
        name=plan.name or env_name_of(env_setup.vec_env),
        env=env_name_of(env_setup.vec_env),
        algorithm=members.first.algo,
        population_size=members.size,
        num_envs=members.first.num_envs,
        seed=members.first.seed,
        max_env_steps=plan.training_args.max_steps * members.size,
        target=plan.training_args.target,
        backend=describe_backend(getattr(training_env, "vector", training_env)),
        run_dir=output_paths.run_dir,
        processes=members.process_group.size,
        settings=plan.settings,
    )


@dataclass(frozen=True)
class WorkerJob:
    """What a process must know that was started to take part in a run: the members are sent to it later."""

    plan: RunPlan
    env_setup: type[EnvSetup]
    env_config: VecEnvConfig
    eval_setup: VecEnvConfig | None
    cpu: bool
    local_state: LocalState


def worker_main(rank: int, job: WorkerJob) -> None:
    """Take part in a run that another process started this one for."""
    with contextlib.ExitStack() as stack:
        process_group = stack.enter_context(distributed_session(cpu=job.cpu))
        env_setup = job.env_setup.from_config(job.env_config)
        stack.callback(env_setup.env.close)
        eval_setup = None if job.eval_setup is None else job.env_setup.from_config(job.eval_setup)
        if eval_setup is not None:
            stack.callback(eval_setup.env.close)
        ProcessRun(process_group, env_setup, eval_setup, None, job.plan, local_state=job.local_state).run()


def limits_reached(
    saved_run: Mapping[str, Any], training_args: TrainingArguments, members: ShardedPopulation
) -> list[str]:
    """The settings of a schedule that keep a run that has ended from continuing; none if it can, or has not ended.

    `saved_run` is the run's document in its newest checkpoint.
    """
    progress, best = Progress.from_json(saved_run["progress"]), BestAgent.from_json(saved_run["best"], None).record
    is_spent = training_args.vector_steps(members.first.num_envs) <= progress.ticks
    is_good_enough = training_args.target is not None and best.is_confirmed and best.fitness >= training_args.target
    return [
        name
        for name, is_reached in (("max_steps", is_spent), ("target", is_good_enough))
        if is_reached and progress.outcome
    ]


def check_num_envs(num_envs: int, its_own: int) -> None:
    """Raise ConfigurationError unless a run that goes on has as many envs as before: by their steps it counts."""
    if num_envs != its_own:
        raise ConfigurationError(
            f"num_envs={num_envs} of each member cannot go on with a run of {its_own}; allowed are {its_own}"
        )


@contextlib.contextmanager
def distributed_session(*, cpu: bool, workers: WorkerProcesses | None = None) -> Iterator[ProcessGroup]:
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
