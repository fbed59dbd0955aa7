"""One run: a whole search in its own process, and the row that is kept of it.

All methods train in `train_on_policy`. What a method would hand over at any time is `run.best`: the agent with the best
mean on fresh episodes, which are counted. It is evaluated once more on `TEST_EPISODES` episodes that no method sees;
these are not counted, and their seconds are taken out.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from agilerl_like import IPPO, PPO
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.hpo import (
    Explorer,
    Genome,
    History,
    HyperparameterConfig,
    Mutation,
)
from agilerl_like.hpo.explorer import Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.hyperparameters import Number
from agilerl_like.reporting.callback import Callback, CallbackList, RunContext
from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, SummaryRecord
from agilerl_like.saved_runs.replay import AllSurvive
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.checkpoint_manager import INTERRUPTED
from agilerl_like.training.env_setup import EnvSetup, SingleAgentEnvSetup
from agilerl_like.training.lineage import steps_before
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.on_policy import train_on_policy
from agilerl_like.training.run_plan import RunPlan
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments
from benchmarks.search.methods import METHODS
from benchmarks.search.protocol import ENVS, NUM_ENVS, TEST_EPISODES, Case, Env, hp_config, net_config
from benchmarks.tables import machine, versions

TEST_STREAM = 1_000_003
"""Added to a run's seed, so that test episodes have seeds that no run uses."""


@dataclass
class Row:
    """The result of one run, a row of the results file."""

    case: dict[str, Any]
    failure: str = ""
    """Why there is no result; the run then scores 0 of the target."""
    test_return: float = math.nan
    """Mean return of the agent that the method hands over."""
    test_std: float = math.nan
    chosen_fitness: float = math.nan
    """What the method believed of it, on the fresh episodes that confirmed it."""
    selected_fitness: float = math.nan
    """The evaluation for which it was chosen, in which it was the best of all members."""
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """Steps of all members with evaluation, seconds, and the test return of what would then be handed over."""
    steps: int = 0
    """Env steps of all members, with evaluation."""
    evaluation_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process, with imports and tests, which `seconds` leaves out; on a shared machine the steadier measure."""
    evolve_seconds: float = 0.0
    acts: int = 0
    """Generations after which evolution acted."""
    copies: int = 0
    """Members that became clones of others, and fresh ones."""
    generation: int = 0
    """Generation after which the agent was found. Rows from before it was recorded have 0."""
    schedule: list[tuple[float, dict[str, Number]]] = field(default_factory=list)
    """Hyperparameters of the agent and its ancestors, each from a share of their training on."""
    lineage_steps: int = 0
    """Env steps that the agent and its ancestors trained for. It is 0 in rows from before it was recorded, and where
    the last generation exceeded the budget and had a better agent: `schedule` then lacks the ancestors."""
    generations_to_usable_lr: int | None = None
    """Generations until a member has a learning rate in [1e-4, 3e-3]."""
    versions: str = ""
    machine: str = ""
    """Processor, cores and system; returns of one seed differ between processors, whose sums round differently."""
    method_version: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> Row:
        row = cls(**json.loads(line))
        row.curve = [(int(steps), seconds, value) for steps, seconds, value in row.curve]
        row.schedule = [(share, values) for share, values in row.schedule]
        return row

    @property
    def progress(self) -> float:
        """The share of the run's generations after which the agent was found, to which its schedules had come."""
        ended = (self.acts + 1) * self.curve[-1][0] / self.steps  # for rows from before `generation` was recorded
        return min(1.0, (self.generation or max(1, round(ended))) / self.case["generations"])

    @property
    def key(self) -> str:
        return Case(**self.case).key

    @property
    def is_current(self) -> bool:
        """Whether its method is still the one that was run."""
        method = METHODS.get(self.case["method"])
        return method is not None and method.version == self.method_version

    @property
    def counts(self) -> bool:
        """Whether its method is the one that was run, or differs from it in few runs alone (`Method.also_counts`)."""
        method = METHODS.get(self.case["method"])
        return self.is_current or (method is not None and self.method_version in method.also_counts)


class Observer(Callback):
    """Stops a run at its budget, and tests what it would hand over."""

    def __init__(self, setup: EnvSetup, case: Case, generations: int) -> None:
        self.case, self.generations = case, generations
        self.row = Row(
            asdict(case),
            versions=versions("agilerl-like", "torch", "gymnasium"),
            machine=machine(),
            method_version=METHODS[case.method].version,
        )
        self._setup, self._env = setup, setup.adapt(setup.make_eval_env(setup.num_eval_episodes(TEST_EPISODES)))
        self._seeds = integers(TEST_EPISODES, case.seed + TEST_STREAM, Purpose.EVALUATION_ENVS)
        self._member_steps = {0: 0}  # env steps of a member by generation; those that stay train longer
        self._tested, self._acted = 0.0, 0
        self.reason = ""
        """Why the run ended."""
        self._best: tuple[int, int] = (-1, -1)

    def on_offspring(self, run: RunContext, offspring: tuple[OffspringRecord, ...]) -> None:
        generation = max((birth.generation for birth in offspring), default=0)
        if generation > self._acted:  # a clone of the best agent is reported before the plan of its generation
            self.row.acts, self._acted = self.row.acts + 1, generation
        self.row.copies += sum(not birth.survives and birth.generation > 0 for birth in offspring)

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        row, best = self.row, record.best
        before, self._member_steps[record.generation] = row.steps, record.members[0].env_steps
        row.steps, row.evaluation_steps = record.env_steps + record.evaluation_steps, record.evaluation_steps
        row.seconds, row.evolve_seconds = record.seconds - self._tested, record.seconds_by_part["evolve"]
        if row.steps > self.case.budget and row.curve:  # what was found beyond the budget does not count
            run.stop("the budget is spent")
            return
        if (best.generation, best.uid) != self._best and best.generation == record.generation:
            self._best = best.generation, best.uid
            began = time.perf_counter()
            played = run.population[best.slot].run_episodes(self._env, self._seeds)
            self._tested += time.perf_counter() - began
            row.test_return, row.test_std = float(played.returns.mean()), float(played.returns.std())
            row.curve.append((row.steps, round(row.seconds, 2), round(row.test_return, 4)))
            row.schedule, row.generation = [(0.0, dict(best.hyperparameters))], record.generation
        row.chosen_fitness = best.fitness
        if best.generation == record.generation:
            row.selected_fitness = record.members[best.slot].fitness
        lrs = [member.hyperparameters["lr"] for member in record.members]
        if row.generations_to_usable_lr is None and any(1e-4 <= lr <= 3e-3 for lr in lrs):
            row.generations_to_usable_lr = record.generation
        if row.steps + (row.steps - before) > self.case.budget:
            run.stop("the budget is spent")

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        best, births, self.reason = summary.best, summary.ancestry, summary.reason
        if births and (best.generation, best.uid) == self._best:
            begins, steps = steps_before(births, self._member_steps), self._member_steps
            trained = begins[-1] + steps[best.generation] - steps[births[-1].generation]
            self.row.lineage_steps = trained
            self.row.schedule = [
                (at / trained, dict(birth.hyperparameters)) for at, birth in zip(begins, births, strict=True)
            ]

    def close(self) -> None:
        env = self._env
        if env is not None:
            self._env = None
            env.close()


def run(case: Case) -> Row:
    """Carry out one search; a failure is a row, too, but not one whose cause lies outside of the run."""
    torch.set_num_threads(1)
    env, method = ENVS[case.env], METHODS[case.method]
    setup = make_setup(env)
    search, observer = None, None
    try:
        search = method.make(case)
        observer = Observer(setup, case, search.generations)
        steps = env.generation_steps(case, search.evaluated)
        train_on_policy(
            setup,
            pop=make_population(env, setup, search.founders, search.ranges, case.seed),
            max_steps=steps * search.generations,
            evo_steps=steps,
            eval_loop=env.episodes,
            selection_strategy=search.selection,
            mutation=search.explorer,
            verbose=False,
            callbacks=[observer],
            **search.options,
        )
        if observer.reason == INTERRUPTED:
            raise SystemExit("interrupted: a part of a run is no result")
        observer.row.cpu_seconds = round(time.process_time(), 2)
        return observer.row
    except (OSError, MemoryError) as error:
        raise SystemExit(f"no result, for an external cause: {error!r}") from error
    except Exception as error:  # a failed run is a result: it is published with its reason
        row = Row(asdict(case), method_version=method.version) if observer is None else observer.row
        row.failure = f"{type(error).__name__}: {error}"[:500]
        return row
    finally:
        if search is not None:
            search.close()
        setup.vec_env.close()


def make_setup(env: Env) -> EnvSetup:
    """Make the training envs of one member, from which the loop makes those of all.

    "sync" and gymnasium's native CartPole need no further processes, since the benchmark has one for each core.
    """
    if env.teams:
        return MultiAgentEnvSetup(make_multi_agent_vect_envs(env.id, NUM_ENVS, backend="sync", env_kwargs=env.kwargs))
    backend = "vector" if env.id == "CartPole-v1" and not env.wrappers else "sync"
    return SingleAgentEnvSetup.from_config(
        VecEnvConfig(env.id, num_envs=NUM_ENVS, backend=backend, env_kwargs=env.kwargs, wrappers=env.wrappers)
    )


def make_population(
    env: Env, setup: EnvSetup, founders: Sequence[Mapping[str, Number]], ranges: HyperparameterConfig, seed: int
) -> BasePopulation:
    """Make members with these hyperparameters, as far as they are legal together."""
    kind = IPPO if env.teams else PPO
    start = dict(founders[0])
    start["batch_size"] = min(start["batch_size"], start["learn_step"])
    population = kind.population(
        len(founders), *setup.spaces, num_envs=NUM_ENVS, seed=seed, hp_config=ranges, net_config=net_config(env),
        **{**env.ppo, **start},
    )  # fmt: skip
    for agent, values in zip(population, founders, strict=True):
        genome = agent.genome
        agent.apply_genome(genome.replace(hyperparameters=agent.repair({**genome.hyperparameters, **values})), ())
    return population


# -- replay


@dataclass(frozen=True)
class Replayed(Explorer):
    """Sets the hyperparameters of a schedule, each from a share of the run on."""

    schedule: tuple[tuple[float, Mapping[str, Number]], ...]
    generations: int

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: Any,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        share = history.trials[-1].generation / self.generations
        values = [values for begins, values in self.schedule if begins <= share][-1]
        child, record = with_hyperparameters(genome, values, repair, operator="replay")
        return child, (record,)


REPLAY_SEEDS = 10


def replay(row: Row) -> dict[str, Any]:
    """Train ten new members by the schedule that a run found, without selection; return their test returns.

    Each trains as long as the agent and its ancestors, with the initial architecture, and with the schedules that the
    selection gives, such as a falling learning rate, up to the share of the run at which the agent was found; as one
    population, because members do not influence one another. The row has `lineage_steps`.
    """
    torch.set_num_threads(1)
    case = Case(**row.case)
    env, method, selection = ENVS[case.env], METHODS[case.method], None
    if not method.needs_venv:  # Optuna and SMAC give no schedules
        search = method.make(case)
        search.close()
        selection = search.strategy
    setup = make_setup(env)
    ranges, start = hp_config(case.start, powers_of_two=False), [row.schedule[0][1]] * REPLAY_SEEDS
    steps = max(1, row.lineage_steps // case.generations // NUM_ENVS) * NUM_ENVS
    total = steps * case.generations
    plan = RunPlan(
        TrainingArguments(max_steps=total, evo_steps=steps, eval_loop=1),
        AllSurvive(REPLAY_SEEDS, {} if selection is None else selection.schedules()),
        Replayed(tuple(row.schedule), case.generations),
        schedule_steps=round(total / row.progress),
    )
    population = train_population(
        setup,
        make_population(env, setup, start, ranges, case.seed + 500_000),
        plan,
        output_paths=OutputPaths(),
        callbacks=CallbackList(),
    ).population
    adapter = setup.adapt(setup.make_eval_env(setup.num_eval_episodes(TEST_EPISODES) * REPLAY_SEEDS))
    seeds = integers(TEST_EPISODES, case.seed + TEST_STREAM, Purpose.EVALUATION_ENVS)
    played = population.run_episodes(adapter, seeds)
    adapter.close()
    setup.vec_env.close()
    returns = played.returns.mean(axis=1).tolist()
    return {"case": row.case, "version": row.method_version, "returns": returns, "found": row.test_return}
