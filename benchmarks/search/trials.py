"""Search by single trials, in the slots of a population: a slot's trial ends, a fresh member starts the next one.

So a trial costs what a member costs, and a sampler receives results as it does from parallel workers. `Scheduler`
decides; `OptunaScheduler` and `SmacScheduler` pass its questions to the original libraries in an interpreter of their
own (`ask_tell.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from agilerl_like.hpo import (
    Explorer,
    Genome,
    History,
    HyperparameterConfig,
    Mutation,
    PopulationView,
    Selection,
    SlotPlan,
    WeightMix,
    with_hyperparameters,
)
from agilerl_like.hpo.explorer import Repair, unchanged
from agilerl_like.hpo.genome import NO_PARENT
from agilerl_like.hpo.hyperparameters import Number
from benchmarks.search.rules import AshaBracket

ROOT = Path(__file__).resolve().parents[2]


class Scheduler(Protocol):
    """Proposes trials and decides how long they run; resources count generations."""

    def ask(self) -> tuple[int, dict[str, Number]]:
        """Return a new trial's number and its hyperparameters."""
        ...

    def report(self, trial: int, resource: int, score: float | None) -> bool:
        """Receive a running trial's score, None if it diverged; return whether it ends."""
        ...

    def close(self) -> None: ...


class RandomTrials:
    """Draws from the ranges; every trial runs for `length` generations. `first` are tried first."""

    def __init__(
        self, ranges: HyperparameterConfig, rng: np.random.Generator, length: int, first: Sequence[Mapping[str, Number]]
    ) -> None:
        self.ranges, self.rng, self.length, self.first = ranges, rng, length, [*map(dict, first)]
        self.asked = 0

    def ask(self) -> tuple[int, dict[str, Number]]:
        trial, self.asked = self.asked, self.asked + 1
        return trial, self.first[trial] if trial < len(self.first) else self.ranges.sample(self.rng)

    def report(self, trial: int, resource: int, score: float | None) -> bool:
        return score is None or resource >= self.length

    def close(self) -> None:
        pass


class AshaTrials(RandomTrials):
    """Random trials that Ray's asynchronous successive halving stops: eta 3, one bracket, from one generation on."""

    def __init__(
        self, ranges: HyperparameterConfig, rng: np.random.Generator, length: int, first: Sequence[Mapping[str, Number]]
    ) -> None:
        super().__init__(ranges, rng, length, first)
        self.bracket = AshaBracket(1, length, 3)

    def report(self, trial: int, resource: int, score: float | None) -> bool:
        return super().report(trial, resource, score) or self.bracket.stops(trial, resource, score or 0.0)


class AskTellProcess:
    """A scheduler whose decisions a library takes, in a process of the interpreter that has it."""

    def __init__(
        self,
        interpreter: Path,
        kind: str,
        ranges: HyperparameterConfig,
        seed: int,
        length: int,
        first: Sequence[Mapping[str, Number]],
        trials: int,
    ) -> None:
        self._process = subprocess.Popen(
            [str(interpreter), str(ROOT / "benchmarks" / "search" / "ask_tell.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # SMAC's choices depend on the order of sets
        )
        self._request(
            op="start", kind=kind, ranges=ranges.to_json(), seed=seed, length=length, first=[*map(dict, first)],
            trials=trials,
        )  # fmt: skip

    def ask(self) -> tuple[int, dict[str, Number]]:
        answer = self._request(op="ask")
        return answer["trial"], answer["values"]

    def report(self, trial: int, resource: int, score: float | None) -> bool:
        return self._request(op="report", trial=trial, resource=resource, score=score)["ends"]

    def close(self) -> None:
        """End the process, which ends when its input does."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def _request(self, **request: Any) -> dict[str, Any]:
        stdin, stdout, answer = self._process.stdin, self._process.stdout, ""
        if stdin is not None and stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
                answer = stdout.readline()
        if not answer:
            self.close()
            is_killed = self._process.returncode < 0
            kind = ChildProcessError if is_killed else RuntimeError  # the first has an external cause
            raise kind(f"the sampler's process ended with {self._process.returncode}")
        return json.loads(answer)


@dataclass
class Running:
    """The trial of a slot."""

    trial: int
    uid: int
    resource: int = 0


@dataclass(frozen=True)
class TrialSelection(Selection):
    """Reports every slot's fitness to the scheduler, and starts a fresh member where a trial ended.

    A member that was replaced because it diverged has another uid than its trial's, or is a clone in its trial's first
    generation: that trial failed.
    """

    scheduler: Any = None
    running: list[Running] = field(default_factory=list)

    def begin(self, uids: Sequence[int]) -> list[dict[str, Number]]:
        """Ask for the first trial of each slot; return their hyperparameters."""
        asked = [self.scheduler.ask() for _ in uids]
        self.running.extend(Running(trial, uid) for (trial, _), uid in zip(asked, uids, strict=True))
        return [values for _, values in asked]

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        rows = []
        for slot, running in enumerate(self.running):
            uid, fitness, is_clone = view.uids[slot], float(view.fitness[slot]), False
            if running.uid < 0:  # a fresh member, whose uid the loop has given since
                running.uid, is_clone = uid, view.history.parent_of(uid) != NO_PARENT
            running.resource += 1
            failed = running.uid != uid or is_clone or not math.isfinite(fitness)
            ends = self.scheduler.report(running.trial, running.resource, None if failed else fitness)
            if ends:
                self.running[slot] = Running(-1, -1)
            rows.append(SlotPlan(slot, slot, explore=False, start=WeightMix() if ends else None))
        return rows

    def start_next(self) -> dict[str, Number]:
        """Ask for the trial of the first slot that has none; return its hyperparameters."""
        running = next(one for one in self.running if one.trial < 0)
        running.trial, values = self.scheduler.ask()
        return values


@dataclass(frozen=True)
class TrialExplorer(Explorer):
    """Gives fresh members the hyperparameters that the scheduler proposes; the loop calls it in the order of slots."""

    selection: TrialSelection

    def draw(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        drawn, record = with_hyperparameters(genome, self.selection.start_next(), repair, operator="trial")
        return drawn, (record,)

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        return genome, ()
