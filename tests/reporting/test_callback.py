import subprocess
import sys
from pathlib import Path

import pytest
from reporting_examples import a_birth, a_generation, a_member, a_run, a_summary

import agilerl_like
from agilerl_like.reporting import CallbackList, Reporter, fittest


class Diary(Reporter):
    """Keeps what it hears."""

    def __init__(self):
        self.heard: list[object] = []

    def start(self, run):
        self.heard.append(run)

    def progress(self, env_steps):
        self.heard.append(env_steps)

    def generation(self, record):
        self.heard.append(record)

    def offspring(self, births):
        self.heard.append(births)

    def warning(self, text):
        self.heard.append(text)

    def finish(self, summary):
        self.heard.append(summary)

    def close(self):
        self.heard.append("closed")


class FullDisk(Reporter):
    """Fails as soon as it has something to write, and again when it is closed."""

    def __init__(self):
        self.asked = 0

    def generation(self, record):
        self.asked += 1
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


def test_every_sink_hears_everything_in_order():
    first, second = Diary(), Diary()
    said = (a_run(), 128, a_generation(a_member()), (a_birth(),), "careful", a_summary())
    with CallbackList([first, second]) as reporters:
        for method, what in zip(
            ("start", "progress", "generation", "offspring", "warning", "finish"), said, strict=True
        ):
            getattr(reporters, method)(what)
    assert first.heard == second.heard == [*said, "closed"]


def test_a_sink_that_cannot_write_is_dropped_with_one_warning():
    before, after, full = Diary(), Diary(), FullDisk()
    reporters = CallbackList([before, full, after])
    first, second = a_generation(a_member()), a_generation(a_member(), number=2)
    reporters.generation(first)
    reporters.generation(second)
    text = "FullDisk stopped: [Errno 28] No space left on device. Training continues without it."
    assert before.heard == [first, text, second]
    assert after.heard == [text, first, second]
    assert full.asked == 1
    assert list(reporters) == [before, after]


def test_two_sinks_that_fail_together_do_not_end_the_run():
    class FailsToWarn(FullDisk):
        def warning(self, text):
            raise OSError(32, "Broken pipe")

    reporters = CallbackList([FullDisk(), FailsToWarn()])
    reporters.generation(a_generation(a_member()))
    assert len(reporters) == 0


def test_an_error_that_is_no_failure_to_write_is_raised():
    class Wrong(Reporter):
        def progress(self, env_steps):
            raise KeyError(env_steps)

    with pytest.raises(KeyError):
        CallbackList([Wrong()]).progress(1)


def test_without_sinks_nothing_happens():
    reporters = CallbackList()
    reporters.start(a_run())
    reporters.finish(a_summary())
    reporters.close()
    assert list(reporters) == []


def test_the_fittest_is_never_one_without_a_fitness_and_of_equals_the_oldest():
    sick, old, young = a_member(uid=0, fitness=float("nan")), a_member(uid=1), a_member(uid=2)
    endless = a_member(uid=3, fitness=float("inf"))
    assert fittest([sick, young, old, endless]) is old


def test_importing_loads_no_optional_package():
    code = (
        "import agilerl_like, agilerl_like.reporting, sys;"
        "print(sorted({'matplotlib', 'tensorboard', 'wandb', 'torch.utils.tensorboard'} & set(sys.modules)))"
    )
    root = Path(agilerl_like.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
