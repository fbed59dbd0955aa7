"""Optuna's and SMAC's decisions, read and answered as lines of JSON, by the interpreter of benchmarks/.venv-search.

It imports nothing of the project. Requests: start (kind, ranges, seed, length, first, trials), ask, and report (trial,
resource, score; None if the trial diverged). Scores are returns, which Optuna maximises; SMAC minimises
their negative.
"""

import json
import math
import sys
import tempfile
import warnings
from typing import Any

STARTUP_TRIALS = {"tpe_median": 4, "tpe_hyperband": 2}
"""Trials that Optuna draws at random; with Hyperband they are of each bracket. A run has 8 to 40 trials, so with the
default of 10 most or all of them would be random."""
INITIAL_DESIGN = 8
"""Configurations that SMAC draws at random. By default they are a quarter of the most trials that a run may have, which
are more than all that it has time for."""


class Optuna:
    """TPE and a pruner: median of the trials that have ended, or Hyperband with reduction 3 from two generations on.

    `constant_liar` is what Optuna's manual advises for parallel trials. Random trials at the beginning are fewer than
    by default (`STARTUP_TRIALS`); all else of TPE is its default.
    """

    def __init__(self, kind: str, ranges: dict, seed: int, length: int, first: list, trials: int) -> None:
        import optuna  # pyright: ignore[reportMissingImports]

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.ranges, self.length = optuna, ranges, length
        pruner = (
            optuna.pruners.MedianPruner(n_startup_trials=2)
            if kind == "tpe_median"
            else optuna.pruners.HyperbandPruner(min_resource=2, max_resource=length, reduction_factor=3)
        )
        sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP_TRIALS[kind], seed=seed, constant_liar=True)
        # HyperbandPruner draws a trial's bracket by the study's name, which is random unless given
        self.study = optuna.create_study(
            study_name=f"{kind}-{seed}", direction="maximize", sampler=sampler, pruner=pruner
        )
        for values in first:
            self.study.enqueue_trial({name: _to_axis(ranges[name], value) for name, value in values.items()})
        self.trials: dict[int, Any] = {}

    def ask(self) -> dict:
        trial = self.study.ask()
        values = {name: self._suggest(trial, name, its) for name, its in self.ranges.items()}
        self.trials[trial.number] = trial
        return {"trial": trial.number, "values": values}

    def _suggest(self, trial: Any, name: str, its: dict) -> float:
        low, high = _bounds(its)
        if its["scale"] == "linear" and its["dtype"] == "int":
            return trial.suggest_int(name, int(low), int(high))
        if its["scale"] == "power_of_two":
            return _from_axis(its, trial.suggest_int(name, int(low), int(high)))
        return _from_axis(its, trial.suggest_float(name, low, high))

    def report(self, number: int, resource: int, score: float | None) -> dict:
        trial, state = self.trials[number], self.optuna.trial.TrialState
        if score is None:
            self.study.tell(trial, state=state.FAIL)
            return {"ends": True}
        trial.report(score, resource)
        if resource >= self.length:
            self.study.tell(trial, score)
            return {"ends": True}
        if trial.should_prune():
            self.study.tell(trial, state=state.PRUNED)
            return {"ends": True}
        return {"ends": False}


class Smac:
    """SMAC's multi-fidelity facade: Hyperband with reduction 3 and a random forest; a promoted trial starts again.

    The values of the start are tried first, for the length of a full trial.
    """

    def __init__(self, kind: str, ranges: dict, seed: int, length: int, first: list, trials: int) -> None:
        from ConfigSpace import Configuration, ConfigurationSpace, Float, Integer  # pyright: ignore[reportMissingImports]
        from smac import MultiFidelityFacade, Scenario  # pyright: ignore[reportMissingImports]
        from smac.runhistory.dataclasses import TrialInfo  # pyright: ignore[reportMissingImports]

        self.ranges, self.length = ranges, length
        space = ConfigurationSpace(seed=seed)
        for name, its in ranges.items():
            low, high = _bounds(its)
            whole = its["dtype"] == "int"
            space.add(Integer(name, (int(low), int(high))) if whole else Float(name, (low, high)))
        self.folder = tempfile.TemporaryDirectory()  # removed with this object
        scenario = Scenario(
            space, deterministic=True, n_trials=trials, min_budget=2, max_budget=length, seed=seed,
            output_directory=self.folder.name,
        )  # fmt: skip
        self.smac = MultiFidelityFacade(
            scenario,
            lambda config, seed, budget: 0.0,
            initial_design=MultiFidelityFacade.get_initial_design(scenario, n_configs=INITIAL_DESIGN),
            intensifier=MultiFidelityFacade.get_intensifier(scenario, eta=3),
            overwrite=True,
            logging_level=50,
        )
        # SMAC tries further configurations of the initial design last, after more trials than a run has
        self.first = [
            TrialInfo(
                Configuration(
                    space, values={name: _inside(ranges[name], _to_axis(ranges[name], v)) for name, v in one.items()}
                ),
                budget=length,
                seed=0,
            )
            for one in first
        ]
        self.infos: dict[int, Any] = {}

    def ask(self) -> dict:
        info = self.first.pop() if self.first else self.smac.ask()
        number = len(self.infos)
        self.infos[number] = info
        values = {name: _from_axis(its, dict(info.config)[name]) for name, its in self.ranges.items()}
        return {"trial": number, "values": values}

    def report(self, number: int, resource: int, score: float | None) -> dict:
        from smac.runhistory.dataclasses import TrialValue  # pyright: ignore[reportMissingImports]
        from smac.runhistory.enumerations import StatusType  # pyright: ignore[reportMissingImports]

        info = self.infos[number]
        if score is None:
            self.smac.tell(info, TrialValue(cost=1e9, status=StatusType.CRASHED))
            return {"ends": True}
        if resource < round(info.budget or self.length):
            return {"ends": False}
        self.smac.tell(info, TrialValue(cost=-score))
        return {"ends": True}


def _to_axis(its: dict, value: float) -> float:
    """Return a value on the axis that is searched uniformly."""
    match its["scale"]:
        case "log":
            return math.log(value)
        case "log_complement":
            return math.log(1 - value)
        case "power_of_two":
            return round(math.log2(value))
    return value


def _from_axis(its: dict, place: float) -> float:
    match its["scale"]:
        case "log":
            value = math.exp(place)
        case "log_complement":
            value = 1 - math.exp(place)
        case "power_of_two":
            return 2 ** int(place)
        case _:
            value = int(place) if its["dtype"] == "int" else float(place)
    return min(max(value, its["min"]), its["max"])


def _inside(its: dict, place: float) -> float:
    """Return a place that ConfigSpace, which rounds its bounds, finds inside of them."""
    low, high = _bounds(its)
    return int(place) if its["dtype"] == "int" else min(max(place, low + 1e-9), high - 1e-9)


def _bounds(its: dict) -> tuple[float, float]:
    low, high = sorted((_to_axis(its, its["min"]), _to_axis(its, its["max"])))
    return low, high


def main() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # a library that prints does not disturb the answers
    scheduler: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        match request.pop("op"):
            case "start":
                scheduler = (Smac if request["kind"] == "smac_hyperband" else Optuna)(**request)
                answer = {}
            case "ask":
                answer = scheduler.ask()
            case _:
                answer = scheduler.report(request["trial"], request["resource"], request["score"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
