"""Curves in Weights & Biases: `member/<slot>/…` and `population/…` over the env steps of the whole population."""

from __future__ import annotations

import importlib.util
import uuid
from pathlib import Path
from typing import Any

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.metrics import scalars
from agilerl_like.reporting.records import GenerationRecord, RunRecord, SummaryRecord
from agilerl_like.reporting.reporter import Reporter
from agilerl_like.storage.durable_io import check_regular, replace_file

ID = "wandb-id"
"""The file in a run's folder that names its W&B run."""


class WandbReporter(Reporter):
    """Logs one step a generation; keywords go to `wandb.init` and win over what the run says of itself.

    A run with a folder keeps its W&B id there, so that it goes on in the same W&B run when it is resumed. Of
    generations that come again W&B keeps what it heard first.
    """

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
            **({} if run.run_dir is None else _place(run.run_dir)),
        }
        self._run = wandb.init(**{**said, **self._kwargs})

    def generation(self, record: GenerationRecord) -> None:
        """Log every finite number of the generation."""
        self._run.log(scalars(record), step=record.env_steps)

    def finish(self, summary: SummaryRecord) -> None:
        """Put the best agent of the run beside the curves."""
        best = summary.best
        self._run.summary.update(
            {
                "reason": summary.reason,
                "best/fitness": best.fitness,
                "best/confirmed_fitness": summary.confirmed_fitness,
                "best/uid": best.uid,
                "best/generation": best.generation,
                "best/architecture": best.architecture,
                **{f"best/hp/{name}": value for name, value in best.hyperparameters.items()},
            }
        )

    def close(self) -> None:
        """Upload what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _place(run_dir: Path) -> dict[str, str]:
    """Where W&B keeps its files, and in which of its runs this one goes on."""
    path = run_dir / ID
    if not check_regular(path):
        replace_file(path, uuid.uuid4().hex.encode())
    return {"dir": str(run_dir), "id": path.read_text(encoding="utf-8"), "resume": "allow"}
