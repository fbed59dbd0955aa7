"""R9, whole runs: a disk that takes no more costs a warning, and no checkpoint; three in a row end the run."""

import pytest
from tiny_runs import NIGHTLY, digest
from whole_runs import Path, advice, at_once, resume_run, saved, state, traces, train, undisturbed

from agilerl_like import Run
from agilerl_like.errors import ExitCode
from agilerl_like.storage.checkpoint_folder import Checkpoints

FAILURES = ["write:3:full;fsync:40:full;put:6:full", "replace:5:full;write+:40:full;fsync+:90:full"]
"""Of three saves of a run, never three in a row."""
MORE = [f"write:{n}:full" for n in range(1, 85, 3)]
NO_HISTORY = "--training.history", "0"
"""Its entries are written by the same functions, whose calls the faults count."""
BYTES = 8000
"""Less than a file of a checkpoint has."""


def newest(folder: Path) -> int:
    """The generation of the newest checkpoint, all of which have to be whole."""
    warnings: list[str] = []
    checkpoint = Checkpoints(folder / "run" / "checkpoints").newest(warnings.append)
    assert warnings == []
    return checkpoint.generation if checkpoint else 0


def test_a_failed_save_costs_a_warning_only(tmp_path):
    def equals(faults):
        folder = tmp_path / faults.replace(":", "-")
        ended = train(folder, *NO_HISTORY, faults=faults)
        assert ended.code == 0, (faults, ended)
        assert ended.said.count("could not be written") == len(faults.split(";")), (faults, ended.said)
        assert newest(folder) == 6
        return digest(folder / "run") == undisturbed()[0] and not traces(folder)

    undisturbed()
    assert all(at_once(equals, FAILURES + MORE if NIGHTLY else FAILURES))


@pytest.mark.parametrize("fault", ["write:20+:full", f"byte:{BYTES}:full"], ids=["ENOSPC", "a real limit"])
def test_three_failed_saves_end_a_run_that_can_be_resumed(tmp_path, fault):
    before = 1 if fault.startswith("write") else 0
    ended = train(tmp_path, *NO_HISTORY, faults=fault)
    assert ended.code == ExitCode.IOERR, ended
    assert "disk full" in ended.said
    assert advice(tmp_path) in ended.said
    assert newest(tmp_path) == saved(tmp_path)[-1] if before else saved(tmp_path) == []
    assert traces(tmp_path) == []
    assert resume_run(tmp_path).code == 0
    assert state(tmp_path) == undisturbed()


def test_a_failed_entry_of_the_history_costs_a_warning_only(tmp_path):
    ended = train(tmp_path, faults="write:2:full")  # of the initial members
    assert ended.code == 0, ended
    assert ended.said.count("history/steps-000000000000' could not be written") == 1, ended.said
    assert [entry.generation for entry in Run.open(tmp_path / "run").history()] == [1, 2, 3, 4, 5, 6]
    assert state(tmp_path) == undisturbed()


def test_records_are_written_when_the_disk_has_space_again(tmp_path):
    ended = train(tmp_path, faults="record:3:full;record:4:full;record:6:full")
    assert ended.code == 0, ended
    for name in ("CsvReporter", "LineageReporter"):
        assert ended.said.count(f"{name} cannot write: [Errno 28] No space left on device") == 1, ended.said
    assert state(tmp_path) == undisturbed()
