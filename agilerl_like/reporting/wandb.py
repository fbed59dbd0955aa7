"""Curves in Weights & Biases: `member/<slot>/…` and `population/…` over the env steps of the whole population."""

from __future__ import annotations

import importlib.util
from typing import Any

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.measures import scalars
from agilerl_like.reporting.records import GenerationRecord, RunRecord, SummaryRecord
from agilerl_like.reporting.reporter import Reporter


class WandbReporter(Reporter):
    """Logs one step a generation; keywords go to `wandb.init` and win over what the run says of itself."""

    def __init__(self, **wandb_kwargs: Any):
        if importlib.util.find_spec("wandb") is None:
            raise ConfigurationError("wb=True needs one more package: pip install 'agilerl-like[wandb]'")
        self._kwargs = wandb_kwargs
        self._run: Any = None

    def start(self, run: RunRecord) -> None:
        """Begin a W&B run that carries the settings."""
        wandb = importlib.import_module("wandb")
        said = {
            "project": "agilerl-like",
            "name": run.name,
            "config": dict(run.settings),
            "tags": [run.algorithm, run.env],
            **({} if run.run_dir is None else {"dir": str(run.run_dir)}),
        }
        self._run = wandb.init(**{**said, **self._kwargs})

    def generation(self, record: GenerationRecord) -> None:
        """Log every finite number of the generation."""
        self._run.log(scalars(record), step=record.env_steps)

    def finish(self, summary: SummaryRecord) -> None:
        """Put the best member beside the curves."""
        best = summary.best
        self._run.summary.update(
            {
                "reason": summary.reason,
                "best/fitness": best.fitness,
                "best/confirmed_fitness": summary.confirmed_fitness,
                "best/architecture": best.architecture,
                **{f"best/hp/{name}": value for name, value in best.hyperparameters.items()},
            }
        )

    def close(self) -> None:
        """Upload what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None
