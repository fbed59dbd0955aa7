"""Sets up a run in each of its processes: envs, members, folder, loop.

A run has one process; or several that `accelerate launch` started, each of which calls this code; or several, of
which this one starts the others. Those receive only the run plan; their members arrive through the normal member
transfer.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from agilerl_like.algorithms.epsilon_greedy import EpsilonGreedyAgent
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, UnsavedState, differing_functions
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.distributed.launcher import WorkerProcesses, is_sendable, worker_processes
from agilerl_like.distributed.process_group import (
    MultiProcess,
    ProcessGroup,
    SingleProcess,
    destroy_process_group,
    init_process_group,
    shard_members,
)
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.envs.env_errors import close_quietly, env_name_of
from agilerl_like.envs.env_ids import TIME_LIMIT, register_missing, registered_specs
from agilerl_like.envs.factory import VecEnvConfig, describe_backend, env_config_of, have_equal_episodes
from agilerl_like.envs.multi_agent.packed_env import time_limit
from agilerl_like.errors import CheckpointError, ConfigurationError, PopulationDivergedError
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.reporting.callback import CallbackList
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.records import RunRecord
from agilerl_like.resources import check_memory
from agilerl_like.storage.checkpoint_folder import Checkpoint
from agilerl_like.storage.run_lock import RunLock
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.checkpoint_manager import (
    CheckpointManager,
    Progress,
    RunFinished,
    load_device,
    load_identity,
    load_opponents,
    load_population,
    newest_checkpoint,
    take_experience,
)
from agilerl_like.training.env_setup import EnvSetup, check_separate, warn_of_unequal_shares
from agilerl_like.training.evaluator import Evaluator
from agilerl_like.training.loop import RunResult, TrainingLoop
from agilerl_like.training.run_folder import (
    check_foreign_files,
    check_links,
    check_output_paths,
    check_unused,
    prepare_folder,
)
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.run_settings import (
    CHANGEABLE,
    DEVICE,
    SELECTION,
    check_identity,
    run_identity,
    selection_name,
    settings_back_at_default,
)
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments

PROCESS_BYTES = 2**26
"""A lower bound of the memory of a process."""


class RetryFromCheckpoint(PopulationDivergedError):
    """All members diverged, and the run can restart from a checkpoint of its own."""


def train_population(
    env_setup: EnvSetup,
    population: BasePopulation | None,
    plan: RunPlan,
    *,
    output_paths: OutputPaths,
    callbacks: CallbackList,
    eval_setup: EnvSetup | None = None,
    process_group: ProcessGroup | None = None,
    processes: int = 1,
    resume: bool = False,
) -> RunResult:
    """Train and evolve a population as `train_on_policy` describes; arguments are checked before training.

    Members train in `env_setup` and are evaluated in `eval_setup`, by default one like it. `process_group` are
    processes that a launcher started, of which this is one; `processes` is the number of processes to start here. With
    `resume` the main process reads the newest checkpoint in the run's folder; without one the run starts.

    Raises:
        RunFinished: the run that was to be resumed has ended.
        CallbackError: a callback raised an exception.
    """
    if process_group is not None and not process_group.is_main:
        output_paths, callbacks = OutputPaths(), CallbackList()
    if output_paths.run_dir is not None and not resume:
        check_unused(output_paths.run_dir, overwrite=output_paths.overwrite)
    check_output_paths(output_paths)
    evaluates_here = eval_setup is None and plan.training_args.eval_steps is None
    check_env_setup(env_setup, callbacks, until_end=evaluates_here)
    if eval_setup is not None:
        env_setup.check_eval_env(eval_setup)
    process_run = ProcessRun(
        process_group or SingleProcess(), env_setup, eval_setup, population, plan, output_paths, callbacks
    )
    if processes == 1:
        return process_run.run(resume=resume)
    if not isinstance(processes, int) or processes < 1 or (process_group is not None and process_group.size > 1):
        allowed = "whole numbers from 1, and 'auto'"
        if process_group is not None and process_group.size > 1:
            allowed = f"1, because this is one of {process_group.size} processes already"
        raise ConfigurationError(f"processes={processes!r}; allowed are {allowed}")
    num_members = None if population is None else len(population)
    device = None if population is None else population.device
    if resume and (checkpoint := newest_checkpoint(output_paths)) is not None:
        num_members = len(checkpoint.documents["run"]["fitness"])  # selection may have removed some
        device = device or load_device(checkpoint)
    check_processes(processes, num_members, env_setup.env.num_envs)
    job = worker_job(env_setup, eval_setup, population, plan, cpu=device is None or device.type == "cpu")
    with (
        worker_processes(processes, worker_main, (job,)) as workers,
        distributed_session(cpu=job.cpu, workers=workers) as process_group,
    ):
        with workers.guard_rendezvous("making the envs"):
            process_group.all_gather(None)  # before heartbeats are expected: see `worker_main`
        return replace(process_run, process_group=process_group).run(resume=resume)


def check_env_setup(env_setup: EnvSetup, callbacks: CallbackList, *, until_end: bool) -> None:
    """Check the env briefly before training, `until_end` whether its episodes end, and report warnings.

    Raises:
        ConfigurationError: the env breaks its contract; all errors are in the message.
    """
    name, errors = env_name_of(env_setup.vec_env), []
    for finding in env_setup.check(until_end=until_end):
        text = f"{finding.problem}; {finding.advice}"
        if finding.severity == "error":
            errors.append(text)
        elif finding.severity == "warning":
            callbacks.on_warning(f"env {name}: {text}")
    if errors:
        raise ConfigurationError(f"env {name} cannot be trained in: {'. '.join(errors)}")


def longest_episode(env: Any) -> int | None:
    """Return the time limit of an env's episodes, in steps; None if it has none, or it is unknown.

    A vector env of single envs has no spec of its own: its limit is that of its first env, whatever the backend. That
    of an `AsyncVectorEnv` that a user made is unknown, because a second env may want the port of the first. The spec of
    a native vector env has the limit of its id; one that replaces it is among the spec's arguments.
    """
    core = getattr(env, "unwrapped", env)
    if isinstance(core, SyncVectorEnv):
        return time_limit(core.envs[0])
    if isinstance(limit := getattr(core, TIME_LIMIT, None), int):
        return limit
    spec = getattr(env, "spec", None)
    return getattr(spec, "kwargs", {}).get(TIME_LIMIT, getattr(spec, TIME_LIMIT, None))


def check_processes(processes: int, num_members: int | None, num_envs: int) -> None:
    """Raise ConfigurationError unless memory suffices, and members or their envs can be divided among the processes.

    `num_envs` are the envs of each member; `num_members` is None if a checkpoint holds them.
    """
    check_memory(f"processes={processes}", processes, PROCESS_BYTES, "processes")
    if num_members is None or processes <= num_members:
        return
    if not _fits(processes, num_members, num_envs):
        divisors = [parts for parts in range(2, num_envs + 1) if num_envs % parts == 0]
        beyond = ", ".join(str(num_members * parts) for parts in divisors)
        several, up_to = ("s", f"1 to {num_members}") if num_members > 1 else ("", "1")
        raise ConfigurationError(
            f"processes={processes}: the num_envs={num_envs} of each of {num_members} member{several} cannot be "
            f"divided among its processes; allowed are {up_to}"
            + (f", or {num_members} times a divisor of num_envs: {beyond}" if beyond else "")
        )


def _fits(processes: int, num_members: int, num_envs: int) -> bool:
    """Whether the processes of every member divide its envs evenly."""
    return all(num_envs % shard.parts == 0 for shard in shard_members([None] * num_members, processes))


@dataclass(frozen=True)
class ProcessRun:
    """The run on one process; only the main process writes and has callbacks."""

    process_group: ProcessGroup
    env_setup: EnvSetup
    eval_setup: EnvSetup | None
    population: BasePopulation | None
    plan: RunPlan
    output_paths: OutputPaths = field(default_factory=OutputPaths)
    callbacks: CallbackList = field(default_factory=CallbackList)
    unsaved: UnsavedState | None = None

    def run(self, *, resume: bool = False) -> RunResult:
        """Run; if all members diverge, run once again from the newest checkpoint."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.process_group)
            lock = stack.enter_context(contextlib.ExitStack())  # released after callbacks have written and uploaded
            stack.callback(self.callbacks.close)
            if self.output_paths.run_dir is not None:
                self.callbacks.check_folder = lock.enter_context(RunLock(self.output_paths.run_dir)).check_place
            self.process_group.monitor.before_exit = self.callbacks.break_off
            try:
                result = self._run_or_end(resume=resume)
            except Exception:
                with contextlib.suppress(CheckpointError):  # the folder is no longer in its place, which is the cause
                    self.callbacks.break_off()
                raise
            if isinstance(result, RunResult) and self.callbacks.failure is not None:
                raise self.callbacks.failure
        if isinstance(result, RunFinished):
            raise result
        return result

    def _run_or_end(self, *, resume: bool) -> RunResult | RunFinished:
        """Run, and once again if all members diverge; an exception would be a failure of this process to the others."""
        try:
            return self._run_once(resume=resume)
        except RetryFromCheckpoint as end:  # raised on all processes
            diverged = str(end)
        except RunFinished as end:  # likewise
            return end
        gc.collect()  # the first attempt, which `end` held until here: its buffers and collectors hold each other
        return self._run_once(resume=True, diverged=diverged)

    def _run_once(self, *, resume: bool, diverged: str | None = None) -> RunResult:
        """Run from the start or a checkpoint; `diverged` is the message of the error of the attempt before."""
        population, run_dir, identity = self.population, self.output_paths.run_dir, self._identity()
        checkpoint = newest_checkpoint(self.output_paths, self.callbacks.on_warning) if resume else None
        saved_run = self.process_group.broadcast(None if checkpoint is None else checkpoint.documents["run"])
        if diverged is not None:
            self._warn_of_restart(diverged, saved_run)
        if checkpoint is not None:
            identity = self._resumed_identity(checkpoint, identity, restarts=diverged is not None)
            kind = self.env_setup.population
            population = load_population(checkpoint, kind, population, self.callbacks.on_warning)
        elif resume and run_dir is not None:
            has_begun = (run_dir / METRICS).is_file()
            state = "no checkpoint yet: the run starts again" if has_begun else "no run to resume: a new one starts"
            self.callbacks.on_warning(f"{self.output_paths.display_path} has {state}")
        if self.process_group.is_main and population is None:
            raise ConfigurationError(
                f"pop is missing, and there is no checkpoint in {run_dir} to resume from; allowed is pop=, members as "
                "at the start: the run begins again"
            )
        best = None if population is None else population.best_of_run
        members = self._shard(population)
        members.population.discard_experience()  # that of an earlier run, perhaps in other envs
        if saved_run is not None:
            self._check_unfinished(saved_run, members, best)
        else:
            self._warn_of_what_begins_again(members)
        if self.plan.selection is not None:
            self.plan.selection.validate(members.size)
            self.plan.explorer.validate(members.size)
            self.plan.explorer.check_ranges(members.first.hp_config)
        elif self.plan.explorer != NO_MUTATION:
            self.callbacks.on_warning(
                "mutation has no effect without selection_strategy (or tournament): no member is replaced or mutates"
            )
        self._check_members(members)
        members.population.set_training_mode(True)  # as those of a checkpoint, which does not hold it
        num_envs = members.first.num_envs
        with contextlib.ExitStack() as stack:
            removed = 0 if saved_run is None else Progress.from_json(saved_run["progress"]).removed
            loop = self._make_loop(stack, members, identity, members.size + removed)
            if saved_run is not None:
                check_num_envs(members.first.num_envs, num_envs)
            self._check_steps(members)
            if saved_run is not None:
                loop.restore(saved_run, best, [] if checkpoint is None else load_opponents(checkpoint))
                self._restore_experience(members, checkpoint)
                if diverged is not None:
                    loop.advance_rng()
            checkpoint = population = None  # else the tensors of the checkpoint stay in memory until the run ends
            if run_dir is not None:
                self._prepare_folder(run_dir, starts=saved_run is None, resume=resume)
                loop.checkpoint_manager.remove_weights_after(loop.progress)
            group = self.process_group
            with StopRequests(group.monitor, announces=group.is_main) as stop_requests:
                try:
                    result = loop.run(stop_requests)
                    late = max(stop_requests.stop_signal, 0)  # it arrived after the last evaluation
                    return result._replace(signal=result.signal or late)
                except PopulationDivergedError as end:
                    is_saved = loop.checkpoint_manager.saved_generation > 0
                    is_loadable = self.population is None or not differing_functions(self.population)
                    if diverged is None and is_saved and is_loadable:
                        raise RetryFromCheckpoint(str(end)) from end
                    raise

    def _warn_if_one_generation(self, num_envs: int) -> None:
        """Warn if the run has one generation, after which no selection follows."""
        args = self.plan.training_args
        if args.generations(num_envs) == 1:
            self.callbacks.on_warning(
                f"evo_steps={args.evo_steps} with max_steps={args.max_steps} gives one generation, and members are "
                "selected between two: none is replaced or mutates; allowed is a smaller evo_steps"
            )

    def _warn_of_what_begins_again(self, members: ShardedPopulation) -> None:
        """Warn if members that have learned before begin with an empty replay, or explore more than they did at last.

        There is one warning of each, of the first such member. Schedules begin again without a warning, since every run
        has them over its own `max_steps`.
        """
        keeps_experience = members.population.keeps_experience
        own = [what_begins_again(agent, keeps_experience=keeps_experience) for agent in members.population]
        for texts in zip(*members.all_gather_by_slot(own, encode=list, decode=list), strict=True):
            if found := [text for text in texts if text]:
                self.callbacks.on_warning(found[0])

    def _restore_experience(self, members: ShardedPopulation, checkpoint: Checkpoint | None) -> None:
        """Restore the members' experience; warn if there should be some and the checkpoint has none."""
        if not members.population.keeps_experience:
            return
        stored = [] if checkpoint is None else take_experience(checkpoint, members.size)
        if stored:
            members.population.load_experience(stored)
        else:
            self.callbacks.on_warning(
                "the checkpoint has no memory (save_memory=False): members refill theirs before they learn, so the run "
                "does not continue as it would have without the interruption"
            )

    def _identity(self) -> dict[str, Any]:
        if not self.process_group.is_main:
            return {}
        return run_identity(self.env_setup, self.population, self.plan)

    def _warn_of_restart(self, diverged: str, saved_run: Mapping[str, Any] | None) -> None:
        if saved_run is None:
            raise PopulationDivergedError(diverged)
        self.callbacks.on_warning(
            f"{diverged}. The run restarts, once, from its checkpoint of generation "
            f"{saved_run['progress']['generation']}, with other noise"
        )

    def _resumed_identity(
        self, checkpoint: Checkpoint, identity: Mapping[str, Any], *, restarts: bool
    ) -> dict[str, Any]:
        """Return the settings that the run keeps; ConfigurationError if the given ones contradict them."""
        saved, selection = load_identity(checkpoint), selection_name(self.plan.selection)
        if not restarts:
            unsaved = _unsaved_state(self.population)
            seed_is_drawn = unsaved is not None and unsaved.seed_is_drawn
            identity = with_initial_size(identity, checkpoint)
            check_identity(saved, identity, str(self.output_paths.display_path), seed_is_drawn=seed_is_drawn)
            before = saved.get(SELECTION)
            if before is not None and before != selection:
                self.callbacks.on_warning(
                    f"selection={selection}: this run was started with {before}; it continues with {selection}, "
                    "and view.state begins empty. A strategy of a script's own needs that script: "
                    f"{self.env_setup.train_function}(…, selection_strategy=…, resume=…)"
                )
            if missing := settings_back_at_default(saved, identity):
                self.callbacks.on_warning(f"the run continues with {missing}: pass what is to stay as it was")
            earlier, now = (section.get(CHANGEABLE) or {} for section in (saved, identity))
            device = now.get(DEVICE) or earlier.get(DEVICE)  # without given members, that of the checkpoint's
            saved = {**saved, CHANGEABLE: {**now, DEVICE: device}}
        return {**saved, SELECTION: selection}

    def _check_members(self, members: ShardedPopulation) -> None:
        """Check each member's settings; in a method, since a variable of `_run_once` would keep a learner in memory."""
        for agent in members.population:
            agent.check()
        own = [agent.unused_ranges() for agent in members.population]
        unused = members.all_gather_by_slot(own, encode=str, decode=str)
        if all(unused):
            self.callbacks.on_warning(unused[0])
        members.population.check_settings()
        for learner in members.population.all_learners():
            learner.check_network()

    def _check_steps(self, members: ShardedPopulation) -> None:
        """Check what depends on the steps of a run, and so on the envs of each member, which the loop has set.

        Each process checks its own members, and all raise the first error: the others would report a lost rank.
        """
        args = self.plan.training_args
        if self.plan.selection is not None:
            args.check_budget(self.plan.selection, members.first.num_envs)
            self._warn_if_one_generation(members.first.num_envs)
        longest, own = longest_episode(self.env_setup.vec_env), None
        try:
            for agent in members.population:
                for learner in agent.trained_learners.values():
                    learner.check_run(args.max_steps, longest, members.process_group.size)
        except ConfigurationError as error:
            own = error
        errors = [text for text in members.process_group.all_gather("" if own is None else str(own)) if text]
        if errors:
            raise own or ConfigurationError(errors[0])

    def _shard(self, population: BasePopulation | None) -> ShardedPopulation:
        unsaved = self.unsaved or _unsaved_state(population)
        if population is not None and self.process_group.size > 1:
            population.check_settings()  # later each process has some of the members
            unsaved = UnsavedState.shared(population)
        return ShardedPopulation.of(self.process_group, self.env_setup.population, population, unsaved)

    def _check_unfinished(
        self, saved_run: Mapping[str, Any], members: ShardedPopulation, best: EvolvableAlgorithm | None
    ) -> None:
        """Raise RunFinished if a run has ended and its settings do not let it continue."""
        if limits := limits_reached(saved_run, self.plan.training_args, members):
            population = members.gather_all()
            population.fitness, population.outcome = list(saved_run["fitness"]), saved_run["progress"]["outcome"]
            population.best_of_run = members.broadcast_agents(0, [best])[0]
            raise RunFinished(f"{self.output_paths.run_dir} has ended: {population.outcome}", population, limits)

    def _make_loop(
        self, stack: contextlib.ExitStack, members: ShardedPopulation, identity: Mapping[str, Any], initial_size: int
    ) -> TrainingLoop:
        """Make the envs, which `stack` closes, and the loop of a run that began with so many members."""
        env_setup, plan = self.env_setup, self.plan
        open_envs = stack.enter_context(contextlib.ExitStack())
        env, evaluator = self._make_envs(open_envs, members)
        num_envs = env.num_envs // len(members.population) * members.population.gradient_sync.num_ranks
        given = [env_setup.env, None if self.eval_setup is None else self.eval_setup.env]
        # a single member uses the given envs whole, which shows nothing: other processes may have several members
        is_single = len(members.population) == members.shard.parts == 1
        are_made = is_single or not any(its.env is one for its in (env, evaluator.env) for one in given)
        gathered = members.process_group.all_gather([are_made, num_envs])
        are_made = all(made for made, _ in gathered)
        check_equal_envs([count for _, count in gathered], env_setup.env)
        return TrainingLoop(
            members,
            env_setup,
            env,
            evaluator,
            plan,
            checkpoint_manager=CheckpointManager(
                self.output_paths, members, self.callbacks, plan.resume, identity, restart=plan.restart
            ),
            callbacks=self.callbacks,
            record=self._record(env.env, members, num_envs, initial_size),
            remake_envs=partial(self._make_envs, open_envs, members) if are_made else None,
            evaluates_training_episodes=self._evaluates_training_episodes(),
        )

    def _evaluates_training_episodes(self) -> bool:
        """Return whether an evaluation plays whole episodes of the env in which members train."""
        env, limit = self.env_setup.vec_env, self.plan.training_args.eval_steps
        longest = longest_episode(env)
        is_whole = limit is None or (longest is not None and longest <= limit)
        return is_whole and (self.eval_setup is None or have_equal_episodes(env, self.eval_setup.vec_env))

    def _make_envs(self, open_envs: contextlib.ExitStack, members: ShardedPopulation) -> tuple[Any, Evaluator]:
        """Close those of `open_envs`, and make the training env and the evaluator of this process's members."""
        open_envs.close()
        env_setup, args, shard = self.env_setup, self.plan.training_args, members.shard
        training_env = env_setup.make_training_env(len(members.population), shard.parts, shard.part)
        if training_env is not env_setup.env:
            open_envs.callback(close_quietly, training_env)
        eval_env = env_setup.adapt(self._eval_env(open_envs, len(members.population), training_env))
        return env_setup.adapt(training_env), env_setup.make_evaluator(args.fitness, eval_env, args.eval_steps)

    def _eval_env(self, stack: contextlib.ExitStack, num_members: int, training_env: Any) -> Any:
        """Return the env for evaluations: a new one if it can be made, else the one that was given."""
        eval_setup = self.eval_setup or self.env_setup
        try:
            env = eval_setup.make_eval_env(
                num_members * eval_setup.num_eval_episodes(self.plan.training_args.eval_loop)
            )
            check_separate(training_env, env)
        except ConfigurationError as error:
            env = eval_setup.env
            if self.eval_setup is None:
                raise
            if env.num_envs % num_members:
                raise ConfigurationError(
                    f"eval_env={env} has num_envs={env.num_envs}, which cannot be divided among {num_members} members; "
                    f"allowed are multiples of {num_members}, or an env that can be made again ({error})"
                ) from error
            warn_of_unequal_shares("eval_env", env, num_members)
            return env
        stack.callback(close_quietly, env)
        return env

    def _prepare_folder(self, run_dir: Path, *, starts: bool, resume: bool) -> None:
        check_links(run_dir)
        if starts and resume:
            check_foreign_files(run_dir)
        elif starts:
            prepare_folder(run_dir, overwrite=self.output_paths.overwrite)

    def _record(self, training_env: Any, members: ShardedPopulation, num_envs: int, initial_size: int) -> RunRecord:
        env_name, args = env_name_of(self.env_setup.vec_env), self.plan.training_args
        return RunRecord(
            name=self.plan.name or env_name,
            env=env_name,
            algorithm=members.first.algo,
            population_size=initial_size,
            num_envs=num_envs,
            seed=members.first.seed,
            max_env_steps=args.max_steps * initial_size,
            target=args.target,
            backend=describe_backend(getattr(training_env, "vector", training_env)),
            run_dir=self.output_paths.run_dir,
            generation_env_steps=args.generation_steps(num_envs) * initial_size,
            max_seconds=args.max_seconds,
            max_updates=args.max_updates,
            processes=members.process_group.size,
            layout=self.plan.layout,
            settings=self.plan.settings,
            equal_start=self._equal_start(members),
            steps_before=max(members.process_group.all_gather(max(int(its.steps[-1]) for its in members.population))),
        )

    def _equal_start(self, members: ShardedPopulation) -> Mapping[str, Any]:
        """Return the hyperparameters that evolution changes if all members have the same; collective."""
        own = [agent.hyperparameters for agent in members.population]
        first, *others = members.all_gather_by_slot(own, encode=dict, decode=FrozenMapping)  # lists as tuples
        evolves = self.plan.searches and self.plan.selection is not None and self.plan.explorer != NO_MUTATION
        is_searched = evolves and members.first.hp_config.has_several_values
        return first if is_searched and others and all(values == first for values in others) else {}


@dataclass(frozen=True)
class WorkerJob:
    """The part of a run that is sent to a process that this one starts; its members are transferred later."""

    plan: RunPlan
    env_setup: type[EnvSetup]
    env_config: VecEnvConfig
    eval_setup: VecEnvConfig | None
    cpu: bool
    unsaved: UnsavedState | None
    env_specs: tuple[EnvSpec, ...]
    """The ids of the envs, which the script may have registered in its own process only.

    One that cannot be pickled is left out, because the other process, which imports the script, may have it, too.
    """


def worker_job(
    env_setup: EnvSetup, eval_setup: EnvSetup | None, population: BasePopulation | None, plan: RunPlan, *, cpu: bool
) -> WorkerJob:
    """Return the job of the processes that this one starts, `cpu` whether their members are on the CPU.

    Raises:
        ConfigurationError: they cannot make the envs.
    """
    env_config = env_config_of(env_setup.vec_env)
    eval_config = None if eval_setup is None else env_config_of(eval_setup.vec_env)
    sources = [*env_config.sources, *(() if eval_config is None else eval_config.sources)]
    return WorkerJob(
        plan,
        type(env_setup),
        env_config,
        eval_config,
        cpu,
        None if population is None else UnsavedState.shared(population),
        tuple(filter(is_sendable, registered_specs(sources))),
    )


def worker_main(rank: int, job: WorkerJob) -> None:
    """Run the part of a run on a process that another one started.

    That one reports that the run has ended, or a wrong setting; here the exception would only print a traceback.
    """
    with contextlib.ExitStack() as stack:
        process_group = stack.enter_context(distributed_session(cpu=job.cpu))
        register_missing(job.env_specs)
        env_setup = job.env_setup.from_config(job.env_config)
        stack.callback(close_quietly, env_setup.env)
        eval_setup = None if job.eval_setup is None else job.env_setup.from_config(job.eval_setup)
        if eval_setup is not None:
            stack.callback(close_quietly, eval_setup.env)
        process_group.all_gather(None)  # no process expects heartbeats before, which begin with the run
        with contextlib.suppress(RunFinished, ConfigurationError):
            ProcessRun(process_group, env_setup, eval_setup, None, job.plan, unsaved=job.unsaved).run()


def what_begins_again(agent: EvolvableAlgorithm, *, keeps_experience: bool) -> list[str]:
    """Return warnings that a member has learned before and begins with an empty replay, and that it explores more.

    A warning that does not apply is ""; `keeps_experience` is whether members have a replay.
    """
    if not any(its.updates for its in agent.learners.values()):
        return ["", ""]
    of_replay = (
        f"member {agent.index} has learned before, and its replay begins empty: members collect new steps before they "
        "learn; resume= continues with the replay of a run that has save_memory=True"
    )
    of_exploration = ""
    if isinstance(agent, EpsilonGreedyAgent) and agent.eps_start > agent.eps_end:
        of_exploration = (
            f"member {agent.index} has learned before, and the share of random actions begins again at "
            f"eps_start={agent.eps_start:g}; with agent.eps_start = agent.eps_end it stays {agent.eps_end:g}"
        )
    return [of_replay * keeps_experience, of_exploration]


def _unsaved_state(population: BasePopulation | None) -> UnsavedState | None:
    return None if population is None else UnsavedState.of(population[0])


def with_initial_size(identity: Mapping[str, Any], checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the settings of a resumed run with the size of its population at the start.

    The population that a run returns has only the members that selection has left, as its checkpoint does.
    """
    run = checkpoint.documents["run"]
    if identity.get("population") != {"size": len(run["fitness"])}:
        return identity
    removed = Progress.from_json(run["progress"]).removed
    return {**identity, "population": {"size": len(run["fitness"]) + removed}}


def limits_reached(
    saved_run: Mapping[str, Any], training_args: TrainingArguments, members: ShardedPopulation
) -> list[str]:
    """Return the settings by which a run has ended; none if it has not ended, or they now allow it to continue.

    All processes return the same; collective with `max_updates`.
    """
    updates, seconds = training_args.max_updates, training_args.max_seconds
    progress, best = Progress.from_json(saved_run["progress"]), BestAgent.from_json(saved_run["best"], None).record
    is_spent = progress.vector_steps_left(members.size, training_args.vector_steps(members.first.num_envs)) <= 0
    is_good_enough = training_args.target is not None and best.is_confirmed and best.fitness >= training_args.target
    return [
        name
        for name, is_reached in (
            ("max_steps", is_spent),
            ("target", is_good_enough),
            ("max_updates", updates is not None and members.most_updates() >= updates),
            ("max_seconds", seconds is not None and progress.seconds >= seconds),
        )
        if is_reached and progress.outcome
    ]


def check_num_envs(num_envs: int, saved: int) -> None:
    """Raise ConfigurationError unless a resumed run has as many envs as before, because it counts their steps."""
    if num_envs != saved:
        raise ConfigurationError(
            f"num_envs={num_envs} of each member cannot resume a run of {saved}; allowed are {saved}"
        )


def check_equal_envs(counts: Sequence[int], env: Any) -> None:
    """Raise ConfigurationError unless the members of each process have the same number of envs, `counts` by rank.

    An env that cannot be made again is divided among the members of a process, of which another one may have more.
    """
    if len(set(counts)) > 1:
        raise ConfigurationError(
            f"env={env} with num_envs={env.num_envs} gives each member {list(counts)} envs on the {len(counts)} "
            "processes; allowed are equal numbers: an env of make_vect_envs(…), which is made again on each process, "
            "or as many members on each"
        )


@contextlib.contextmanager
def distributed_session(*, cpu: bool, workers: WorkerProcesses | None = None) -> Iterator[ProcessGroup]:
    """Join the process group of the processes that were started together, and leave it at the end.

    `workers` are those that this process started: if one exits before all have joined, all are stopped.
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
