import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from reporting_examples import a_birth, a_generation, a_member, a_run, a_summary

import agilerl_like
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import Callback, CallbackError, CallbackList, Reporter, RunContext, fittest


class RecordingReporter(Reporter):
    """Records all calls."""

    def __init__(self):
        self.calls: list[object] = []

    def start(self, run):
        self.calls.append(run)

    def progress(self, env_steps):
        self.calls.append(env_steps)

    def generation(self, record):
        self.calls.append(record)

    def offspring(self, births):
        self.calls.append(births)

    def warning(self, text):
        self.calls.append(text)

    def finish(self, summary):
        self.calls.append(summary)

    def close(self):
        self.calls.append("closed")


class FullDisk(Reporter):
    """Fails at the first write, and again at close."""

    def __init__(self):
        self.asked = 0

    def generation(self, record):
        self.asked += 1
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


RUN = RunContext(a_run(), env_steps=64)


def test_reporters_receive_all_events_in_order():
    first, second = RecordingReporter(), RecordingReporter()
    generation, births, summary = a_generation(a_member()), (a_birth(),), a_summary()
    with contextlib.closing(CallbackList([first, second])) as callbacks:
        callbacks.on_run_begin(RUN)
        callbacks.on_update(replace(RUN, env_steps=128), {0: {"value_loss": 1.0}})
        callbacks.on_generation(RUN, generation)
        callbacks.on_offspring(RUN, births)
        callbacks.on_warning("careful")
        callbacks.on_run_end(RUN, summary)
    assert first.calls == second.calls == [RUN.record, 64, 128, generation, births, "careful", summary, "closed"]


def test_reporter_that_cannot_write_is_dropped_with_one_warning():
    before, after, full = RecordingReporter(), RecordingReporter(), FullDisk()
    callbacks = CallbackList([before, full, after])
    first, second = a_generation(a_member()), a_generation(a_member(), number=2)
    callbacks.on_generation(RUN, first)
    callbacks.on_generation(RUN, second)
    text = "FullDisk stopped: [Errno 28] No space left on device. Training continues without it."
    assert before.calls == [first, text, second]
    assert after.calls == [text, first, second]
    assert full.asked == 1
    assert list(callbacks) == [before, after]
    assert callbacks.failure is None


def test_a_reporter_that_fails_at_the_end_is_reported_without_a_claim_that_training_continues():
    class FullAtTheEnd(Reporter):
        def finish(self, summary):
            raise OSError(28, "No space left on device")

    others = RecordingReporter()
    CallbackList([FullAtTheEnd(), others]).on_run_end(RUN, a_summary())
    assert others.calls[0] == "FullAtTheEnd stopped: [Errno 28] No space left on device."


def test_two_failing_reporters_do_not_end_the_run():
    class FailsToWarn(FullDisk):
        def warning(self, text):
            raise OSError(32, "Broken pipe")

    callbacks = CallbackList([FullDisk(), FailsToWarn()])
    callbacks.on_generation(RUN, a_generation(a_member()))
    assert not [*callbacks]
    assert callbacks.failure is None


@pytest.mark.parametrize("kind", [Reporter, Callback])
def test_other_errors_are_the_failure_and_the_callback_is_dropped(kind):
    class Wrong(kind):
        calls = 0

        def on_update(self, run, metrics):
            self.calls += 1
            raise KeyError(run.env_steps)

    wrong, other = Wrong(), RecordingReporter()
    callbacks = CallbackList([wrong, other])
    for _ in range(2):
        callbacks.on_update(RUN, {})
    assert str(callbacks.failure) == "callback Wrong.on_update raised KeyError: 64"
    assert isinstance(callbacks.failure.__cause__, KeyError)
    assert wrong.calls == 1
    assert other.calls == [64, 64]


def test_oserror_of_a_callback_that_is_no_reporter_is_a_failure():
    class Writes(Callback):
        def on_warning(self, text):
            raise OSError(28, "No space left on device")

    callbacks = CallbackList([Writes()])
    callbacks.on_warning("careful")
    assert "callback Writes.on_warning raised OSError: [Errno 28]" in str(callbacks.failure)


def test_a_method_that_looks_like_an_event_and_is_none_is_refused_with_the_nearest_event():
    class Misnamed(Callback):
        def on_generation_end(self, run, record):
            pass

    message = "method of the callback Misnamed='on_generation_end' is unknown; did you mean 'on_generation'"
    with pytest.raises(ConfigurationError, match=message):
        CallbackList([RecordingReporter(), Misnamed()])


def test_what_is_no_callback_is_refused():
    class Alone:
        def on_generation(self, run, record):
            pass

    for wrong in (Alone(), None, RecordingReporter):
        with pytest.raises(ConfigurationError, match=r"^callback=.*; allowed are instances of Callback"):
            CallbackList([RecordingReporter(), wrong])


def test_errors_in_on_run_begin_are_raised_at_once():
    class Misconfigured(Reporter):
        def start(self, run):
            raise ConfigurationError("name='x' is taken")

    class Wrong(Callback):
        def on_run_begin(self, run):
            raise ZeroDivisionError

    with pytest.raises(ConfigurationError, match="name='x' is taken"):
        CallbackList([Misconfigured()]).on_run_begin(RUN)
    with pytest.raises(CallbackError, match=r"callback Wrong\.on_run_begin raised ZeroDivisionError"):
        CallbackList([Wrong()]).on_run_begin(RUN)


def test_first_stop_reason_is_kept():
    run = RunContext(a_run())
    assert run.stop_reason is None
    run.stop()
    run.stop("later")
    assert run.stop_reason == ""


def test_overrides():
    class Counts(Callback):
        def on_step(self, run):
            return

    assert CallbackList([RecordingReporter(), Counts()]).overrides("on_step")
    assert not CallbackList([RecordingReporter()]).overrides("on_step")


def test_empty_callback_list():
    callbacks = CallbackList()
    callbacks.on_run_begin(RUN)
    callbacks.on_run_end(RUN, a_summary())
    callbacks.close()
    assert list(callbacks) == []


def test_fittest_ignores_nan_and_breaks_ties_by_uid():
    sick, old, young = a_member(uid=0, fitness=float("nan")), a_member(uid=1), a_member(uid=2)
    endless = a_member(uid=3, fitness=float("inf"))
    assert fittest([sick, young, old, endless]) is old


@pytest.mark.slow
def test_importing_loads_no_optional_package():
    code = (
        "import agilerl_like, agilerl_like.reporting, sys;"
        "print(sorted({'matplotlib', 'tensorboard', 'wandb', 'torch.utils.tensorboard'} & set(sys.modules)))"
    )
    root = Path(agilerl_like.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Tracking(Callback):
    """Tracks 1, 2 and 6 in the first generation, and 10 in the second."""

    def on_step(self, run):
        run.track("loops", run.env_steps)

    def on_generation(self, run, record):
        run.track("loops", 6 if record.generation == 1 else 10)


def test_reporters_receive_the_mean_of_what_callbacks_tracked():
    reporter = RecordingReporter()
    callbacks, run = CallbackList([reporter, Tracking()]), RunContext(a_run())
    for env_steps in (1, 2):
        run.env_steps = env_steps
        callbacks.on_step(run)
    for number in (1, 2):
        callbacks.on_generation(run, a_generation(a_member(), number=number))
    callbacks.on_generation(RunContext(a_run()), a_generation(a_member(), number=3))
    first, second, third = (call.tracked for call in reporter.calls)
    assert (first, second) == ({"loops": 3.0}, {"loops": 10.0})  # (1 + 2 + 6) / 3
    assert third == {"loops": 10.0}  # of on_generation alone: each run has its own


@pytest.mark.parametrize(
    ("tag", "value", "message"),
    [
        ("", 1, r"tag=''; allowed is printable text of 1 to 100 characters"),
        ("a\nb", 1, r"tag='a\\nb'; allowed is printable text"),
        (7, 1, r"tag=7; allowed is printable text"),
        ("x" * 101, 1, r"allowed is printable text of 1 to 100 characters"),
        ("x", "one", r"value='one' of tag='x'; allowed is one number"),
        ("x", [1, 2], r"value=\[1, 2\] of tag='x'; allowed is one number"),
    ],
)
def test_what_cannot_be_tracked_is_named(tag, value, message):
    run = RunContext(a_run())
    with pytest.raises(ValueError, match=message):
        run.track(tag, value)
    assert run.pop_tracked() == {}


def test_a_run_has_at_most_100_tags():
    run = RunContext(a_run())
    for number in range(100):
        run.track(f"step {number}", number)
    run.pop_tracked()
    run.track("step 0", 1)
    with pytest.raises(ValueError, match="tag='step 100' is one more than the 100 tags that a run may track"):
        run.track("step 100", 1)
