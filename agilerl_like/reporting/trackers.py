"""Curves in experiment trackers: `member/<slot>/…` and `population/…` over the env steps of the whole population.

The trackers are Accelerate's, by name (`accelerate.tracking.LOGGER_TYPE_TO_CLASS`), and classes of the same interface
that are registered with `register("tracker", name, cls)`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from agilerl_like.errors import ConfigurationError
from agilerl_like.registry import Registry, registered
from agilerl_like.reporting.callback import Reporter
from agilerl_like.reporting.metrics import scalars
from agilerl_like.reporting.records import GenerationRecord, RunRecord, SummaryRecord
from agilerl_like.storage.durable_io import check_regular, replace_file
from agilerl_like.storage.run_lock import is_locked

PROJECT = "agilerl-like"
WANDB_ID = "wandb-id"
"""The file in a run's folder that holds the id of its W&B run."""
TENSORBOARD_FOLDER = "tensorboard-folder"
"""The file in a run's folder that names the folder of its events within a `log_dir` elsewhere."""
MOST_FOLDERS = 10_000
"""Names of folders that such a file may have."""
METHODS = ("start", "store_init_configuration", "log", "finish")
"""The methods of a tracker that are called."""
_LONGEST_WANDB_TAG = 64
_REFUSED_BY_MLFLOW = re.compile(r"[^/\w.\- ]")
_SECRET = re.compile(r"(?:^|[._])(?:(?:api|access|secret)_?key|token|password|secret)$", re.IGNORECASE)
"""Names of options with a secret, which would be written to config.yaml and report.html, and sent to other trackers."""
_VOCABULARY = re.compile(r"^config\.(?:.*\.)?\w*(?<!access)(?<!auth)(?<!api)_token$", re.IGNORECASE)
"""Settings of the user's program that W&B stores, such as config.pad_token, which are no secrets."""


class Package(NamedTuple):
    """The package behind one of Accelerate's trackers."""

    module: str
    requirement: str
    """What pip installs."""


TRACKERS: Registry[Any] = registered(
    "tracker",
    {
        "tensorboard": Package("tensorboard", "'agilerl-like[tensorboard]'"),
        "wandb": Package("wandb", "'agilerl-like[wandb]'"),
        **{
            name: Package(name, name.replace("_", "-"))
            for name in ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio")
        },
    },
)
"""Every tracker by name: a `Package`, or a class with the interface of `accelerate.tracking.GeneralTracker`."""


class TrackerReporter(Reporter):
    """Logs one step a generation to the tracker `name`; `options` go to its constructor.

    The first argument of the constructor is a project for the trackers of Accelerate, and the name of the run for a
    registered class, which could not tell runs apart by a constant. A resumed run opens a new run of the tracker,
    except for TensorBoard and W&B, which continue the same one; generations after the checkpoint are logged again.

    Raises:
        ConfigurationError: the name is unknown, the package is not installed, or an option does not exist.
    """

    def __init__(self, name: str, /, run_dir: Path | str | None = None, **options: Any):
        self._class = _tracker_class(name)
        self._tracker_name = name
        self._is_registered = not isinstance(TRACKERS[name], Package)
        self._logging_dir = Path(run_dir or "runs").absolute()
        self._options = options
        self._tracker: Any = None
        _check_options(name, self._class, self._positional(PROJECT), options)

    @property
    def shown_name(self) -> str:
        return f"{super().shown_name}({self._tracker_name!r})" if self._is_registered else super().shown_name

    def start(self, run: RunRecord) -> None:
        """Open a run of the tracker and store the settings in it."""
        self._open(run.name if self._is_registered else PROJECT, **self._options)
        self._tracker.store_init_configuration(_flat(run.settings))

    def generation(self, record: GenerationRecord) -> None:
        """Log every finite number of the generation."""
        self._tracker.log(scalars(record), step=record.env_steps)

    def close(self) -> None:
        """Upload remaining data and close the run of the tracker."""
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None

    def _positional(self, project: str) -> tuple[str, ...]:
        needs_folder = getattr(self._class, "requires_logging_directory", False)
        return (project, str(self._logging_dir)) if needs_folder else (project,)

    def _open(self, project: str, **options: Any) -> None:
        if self._tracker is not None:  # the run restarted from a checkpoint because all members had diverged
            return
        self._tracker = self._class(*self._positional(project), **options)
        self._tracker.main_process_only = False  # only the main process has reporters: Accelerate need not check
        self._tracker.start()


class _WriterErrors:
    """The `threading.excepthook` while writers of TensorBoard are open; the former one is restored after the last.

    It reports an exception of a thread, unless the next call of the writer raises it again, as it does with OSError.
    """

    def __init__(self) -> None:
        self._writers = 0
        self._former = threading.excepthook

    def begin(self) -> None:
        self._writers += 1
        if threading.excepthook != self._report:  # may be a function of the script that calls this one
            self._former, threading.excepthook = threading.excepthook, self._report

    def end(self, close: Callable[[], None]) -> None:
        """Close a writer; after an error the function stays, because other threads of the writer may fail later."""
        self._writers = max(0, self._writers - 1)  # a writer whose end failed may be closed again
        close()
        if not self._writers and threading.excepthook == self._report:
            threading.excepthook = self._former

    def _report(self, error: threading.ExceptHookArgs) -> None:
        if not (isinstance(error.exc_value, OSError) and type(error.thread).__module__.startswith("tensorboard.")):
            former, self._former = self._former, threading.__excepthook__
            try:
                former(error)
            finally:
                self._former = former


_WRITER_ERRORS = _WriterErrors()


class TensorBoardReporter(TrackerReporter):
    """Writes events into `log_dir`; to view them, `tensorboard --logdir <log_dir>`.

    A new run whose `log_dir` is outside of its own folder and has events, which are another run's, writes into
    `log_dir`/NAME, or NAME-2 and so on. Keywords go to `SummaryWriter`, for example `flush_secs`.
    """

    def __init__(self, log_dir: Path | str, **options: Any):
        super().__init__("tensorboard", Path(log_dir).absolute().parent, **options)
        if options:
            _check_options("tensorboard", importlib.import_module("torch.utils.tensorboard").SummaryWriter, (), options)
        self._name = Path(log_dir).name
        self._run: RunRecord | None = None
        self._events = self._name

    def start(self, run: RunRecord) -> None:
        """Wait for the first generation, whose step opens a new event file, also where a run restarts."""
        self.close()
        self._run = run

    def generation(self, record: GenerationRecord) -> None:
        """Log every finite number; the first generation discards the steps that were logged from here on before."""
        if self._tracker is None:
            self._events = self._place(is_new=record.generation == 1)
            is_resumed = self._has_events(self._events)
            self._open(self._events, **{"purge_step": record.env_steps if is_resumed else None, **self._options})
            _WRITER_ERRORS.begin()
        super().generation(record)

    def close(self) -> None:
        if self._tracker is not None:
            _WRITER_ERRORS.end(super().close)

    def _place(self, *, is_new: bool) -> str:
        """Return the folder of the run's events; a file in the run's folder names it, unless it lies in that folder."""
        run_dir = None if self._run is None else self._run.run_dir
        if run_dir is not None and (self._logging_dir / self._name).is_relative_to(run_dir.absolute()):
            return self._name
        stored = None if run_dir is None else run_dir / TENSORBOARD_FOLDER
        if stored is not None and check_regular(stored):
            text = stored.read_text(errors="replace").strip()
            if text in islice(self._folders(), MOST_FOLDERS):
                return text
        found = next(its for its in self._folders() if not self._has_events(its)) if is_new else self._events
        if stored is not None:
            replace_file(stored, f"{found}\n".encode())
        return found

    def _folders(self) -> Iterator[str]:
        """Yield the folders for events: `log_dir`, then NAME, NAME-2 and so on in it."""
        name = "run" if self._run is None else self._run.name
        yield self._name
        yield str(Path(self._name, name))
        yield from (str(Path(self._name, f"{name}-{number}")) for number in count(2))

    def _has_events(self, folder: str) -> bool:
        return any((self._logging_dir / folder).glob("*tfevents*"))


class MlflowReporter(TrackerReporter):
    """Logs to MLflow; a character that it refuses in names of metrics, such as `%` in a callback's tag, becomes `_`."""

    def __init__(self, run_dir: Path | str | None = None, **options: Any):
        super().__init__("mlflow", run_dir, **options)

    def generation(self, record: GenerationRecord) -> None:
        """Log every finite number of the generation."""
        values = {_REFUSED_BY_MLFLOW.sub("_", tag): value for tag, value in scalars(record).items()}
        self._tracker.log(values, step=record.env_steps)


class WandbReporter(TrackerReporter):
    """Logs to Weights & Biases; keywords go to `wandb.init` and take precedence over what the run provides.

    The folder of a run holds its W&B id, so that a resumed run continues in the same W&B run. W&B keeps the first
    values of a step that is logged twice.
    """

    def __init__(self, **wandb_kwargs: Any):
        super().__init__("wandb", **wandb_kwargs)
        if wandb_kwargs:
            _check_options("wandb", importlib.import_module("wandb").init, (), wandb_kwargs)

    def start(self, run: RunRecord) -> None:
        """Open a W&B run with the settings."""
        options = {
            "name": run.name,
            "config": dict(run.settings),
            "tags": [tag[:_LONGEST_WANDB_TAG] for tag in (run.algorithm, run.env)],
            **({} if run.run_dir is None else _wandb_run_in(run.run_dir)),
            **self._options,
        }
        self._open(options.pop("project", PROJECT), **options)

    def add_film(self, run_dir: Path, film: Path) -> None:
        """Log a film as `film/NAME`, in the W&B run of the folder."""
        if self._tracker is None:
            options = {**_wandb_run_in(run_dir), **self._options}
            self._open(options.pop("project", PROJECT), **options)
        tracker: Any = self._tracker  # opened by now
        video = importlib.import_module("wandb").Video(str(film), format="mp4")
        tracker.tracker.log({f"film/{film.stem}": video})

    def finish(self, summary: SummaryRecord) -> None:
        """Add the best agent of the run to the summary of the W&B run."""
        best = summary.best
        self._tracker.tracker.summary.update(
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


def tracker_reporter(tracker: str | Mapping[str, Any], run_dir: Path | str | None) -> TrackerReporter:
    """Return the reporter of a tracker, given by name or as {name: ..., its options}.

    Raises:
        ConfigurationError: the name is missing or unknown, the package is not installed, or an option does not exist or
            would hold a secret.
    """
    name, options = TRACKERS.parse("tracker", tracker)
    if isinstance(TRACKERS[name], Package):
        check_no_secret(name, options)
    if name == "wandb":
        return WandbReporter(**options)
    if name == "tensorboard":
        return TensorBoardReporter(options.pop("log_dir", Path(run_dir or "runs") / "tensorboard"), **options)
    if name == "mlflow":
        return MlflowReporter(run_dir, **options)
    return TrackerReporter(name, run_dir, **options)


@contextlib.contextmanager
def wandb_films(run_dir: Path, trackers: Iterable[str | Mapping[str, Any]] = ()) -> Iterator[Callable[[Path], None]]:
    """Give a function that adds a film to the W&B run of a run folder, as `film/NAME`, which W&B plays.

    `trackers` as in the run's settings, for the project and the entity of the W&B run.

    Raises:
        ConfigurationError: the run was not logged to W&B, or is still running, or the package is not installed.
    """
    if not check_regular(run_dir / WANDB_ID):
        raise ConfigurationError(
            f"run={str(run_dir)!r} has no {WANDB_ID}: it was not logged to W&B; allowed is a run of run.wandb: true"
        )
    if is_locked(run_dir):
        raise ConfigurationError(f"run={str(run_dir)!r} is still running: its own process logs to W&B until it ends")
    named = [TRACKERS.parse("tracker", tracker) for tracker in trackers]
    reporter = WandbReporter(**next((options for name, options in named if name == "wandb"), {}))
    with contextlib.closing(reporter):
        yield lambda film: reporter.add_film(run_dir, film)


def _tracker_class(name: str) -> Any:
    entry = TRACKERS.find("tracker", name)
    if not isinstance(entry, Package):
        if lacking := [method for method in METHODS if not callable(getattr(entry, method, None))]:
            raise ConfigurationError(
                f"tracker={name!r}: {getattr(entry, '__name__', repr(entry)):.200} has no method {', '.join(lacking)}; "
                "allowed are subclasses of accelerate.tracking.GeneralTracker, and classes with the methods "
                f"{', '.join(METHODS)}"
            )
        return entry
    if importlib.util.find_spec(entry.module) is None:
        raise ConfigurationError(f"tracker={name!r} needs one more package: pip install {entry.requirement}")
    from accelerate import logging, tracking

    class PlainLogger(logging.MultiProcessAdapter):
        """Accelerate's logger without `PartialState()`, which would set up this process's group before a run does."""

        def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
            self.logger.log(level, msg, *args, **kwargs)

    tracking.logger = PlainLogger(tracking.logger.logger, {})
    return tracking.LOGGER_TYPE_TO_CLASS[name]


def _check_options(name: str, function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless the function of a tracker takes its options; nothing is called."""
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        raise ConfigurationError(f"tracker={name!r}: {error}") from error


def check_no_secret(name: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if an option has the name of a secret; its value is not in the message."""
    for option in filter(_SECRET.search, _flat(options)):
        if _VOCABULARY.search(option):
            continue
        raise ConfigurationError(
            f"tracker={name!r}: {option} is not taken, because a run writes its settings to files and sends them to "
            "its trackers; allowed is the environment variable that the package reads, such as COMET_API_KEY"
        )


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by dotted name; lists become text, because trackers take numbers, flags and text."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value if isinstance(value, bool | int | float | str | None) else str(value)
    return found


def _wandb_run_in(run_dir: Path) -> dict[str, str]:
    """The folder of W&B's files, and the W&B run that belongs to this run."""
    path = run_dir / WANDB_ID
    if not check_regular(path):
        replace_file(path, uuid.uuid4().hex.encode())
    return {"dir": str(run_dir), "id": path.read_text(encoding="utf-8"), "resume": "allow"}
