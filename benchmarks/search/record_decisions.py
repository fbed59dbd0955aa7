"""Record what the originals decide on fixed inputs, for `tests/benchmarks`; run by an interpreter that has them.

    PYTHON_WITH_RAY benchmarks/search/record_decisions.py ray FILE
    benchmarks/.venv-agilerl/bin/python benchmarks/search/record_decisions.py agilerl FILE

FILE is tests/benchmarks/recorded_decisions.json. The script imports nothing of the project, and replaces the part of
the file that it records.
"""

import json
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

EXPLORED = 40


def ray() -> dict:
    import ray as package  # pyright: ignore[reportMissingImports]
    from ray.tune.schedulers.async_hyperband import _Bracket  # pyright: ignore[reportMissingImports]
    from ray.tune.schedulers.pbt import PopulationBasedTraining, _explore  # pyright: ignore[reportMissingImports]

    lists = {"batch_size": [32, 64, 128, 256, 512], "learn_step": [32, 64, 128]}
    values = {"lr": 1e-3, "clip_coef": 0.2, "update_epochs": 4, "batch_size": 64, "learn_step": 128}
    mutations = {
        "lr": lambda: math.exp(random.uniform(math.log(1e-5), math.log(1e-2))),
        "clip_coef": lambda: random.uniform(0.05, 0.4),
        "update_epochs": lambda: random.uniform(1, 20),
        **lists,
    }
    explored = []
    for seed in range(EXPLORED):
        random.seed(seed)
        explored.append(_explore(values, mutations, 0.25, (1.2, 0.8), None)[0])
    quantiles = []
    for count in (1, 2, 3, 4, 5, 8, 10):
        scores = [float((7 * place) % count) for place in range(count)]
        trials = [mock.Mock(is_finished=lambda: False) for _ in range(count)]
        states = {trial: SimpleNamespace(last_score=score) for trial, score in zip(trials, scores, strict=True)}
        bottom, top = PopulationBasedTraining._quantiles(
            SimpleNamespace(_trial_state=states, _quantile_fraction=0.25)  # type: ignore[arg-type]
        )
        quantiles.append([scores, [trials.index(one) for one in bottom], [trials.index(one) for one in top]])
    rng, stops = random.Random(0), []
    bracket = _Bracket(1, 20, 3, 0)
    for resource in (1, 2, 3, 5, 9, 12, 18):
        for trial in range(8):
            score = round(rng.gauss(trial, 3), 3)
            action = bracket.on_result(SimpleNamespace(trial_id=trial), resource, score)  # type: ignore[arg-type]
            stops.append([trial, resource, score, action == "STOP"])
    return {
        "version": package.__version__, "values": values, "lists": lists, "explored": explored,
        "quantiles": quantiles, "asha": stops,
    }  # fmt: skip


def agilerl() -> dict:
    from importlib.metadata import version

    import numpy as np
    import torch
    from agilerl.algorithms.core.registry import RLParameter  # pyright: ignore[reportMissingImports]
    from agilerl.hpo.tournament import TournamentSelection  # pyright: ignore[reportMissingImports]

    selection, tournaments = TournamentSelection(3, True, 8), []
    for seed in range(EXPLORED):
        fitness = [float(value) for value in np.random.default_rng(seed).integers(0, 5, 8)]
        np.random.seed(seed)  # noqa: NPY002  # the original draws from the global generator
        winner = selection._tournament(fitness)
        np.random.seed(seed)  # noqa: NPY002
        tournaments.append([fitness, np.random.randint(0, 8, size=3).tolist(), winner])  # noqa: NPY002
    steps = []
    for low, high, kind, value in (
        (1e-4, 1e-2, float, 1e-3),
        (0.05, 0.4, float, 0.39),
        (1, 20, int, 4),
        (1, 20, int, 1),
    ):
        for draw in (0.1, 0.49, 0.5, 0.9):
            parameter = RLParameter(min=low, max=high, dtype=kind)
            parameter.value = value
            with mock.patch.object(torch, "rand", lambda *_, draw=draw: torch.tensor([draw], dtype=torch.float64)):
                steps.append([low, high, kind.__name__, value, draw, parameter.mutate()])
    return {"version": version("agilerl"), "tournaments": tournaments, "steps": steps}


def main() -> None:
    original, path = sys.argv[1], Path(sys.argv[2])
    known = json.loads(path.read_text()) if path.is_file() else {}
    known[original] = {"ray": ray, "agilerl": agilerl}[original]()
    path.write_text(json.dumps(known, sort_keys=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
