import contextlib
import json
import shutil
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from reporting_examples import a_generation, a_member, a_run, a_summary

from agilerl_like import registry
from agilerl_like.errors import ConfigurationError
from agilerl_like.registry import Registry
from agilerl_like.reporting import CallbackList, TensorBoardReporter, TrackerReporter, WandbReporter, tracker_reporter
from agilerl_like.reporting.trackers import TRACKERS, check_no_secret, wandb_films
from agilerl_like.storage.run_lock import RunLock

# The package needs an account: this module has its functions, and writes its calls to a file.
STAND_IN = """
import json, pathlib
def note(*what):
    with pathlib.Path(__file__).with_name("calls.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\\n")
class Summary:
    def update(self, values): note("summary", values)
class Run:
    summary = Summary()
    def log(self, values, step=None): note("log", {name: getattr(v, "file", v) for name, v in values.items()}, step)
    def finish(self): note("finish")
def init(**kwargs):
    note("init", kwargs)
    return Run()
class Video:
    def __init__(self, path, format): self.file = path
"""


@pytest.fixture
def wandb_calls(monkeypatch, tmp_path):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield lambda: [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    sys.modules.pop("wandb")


def test_all_of_accelerates_trackers_have_names():
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(TRACKERS) == set(LOGGER_TYPE_TO_CLASS)


@pytest.mark.parametrize(
    ("name", "install"),
    [
        ("tensorboard", r"pip install 'agilerl-like\[tensorboard\]'"),
        ("wandb", r"pip install 'agilerl-like\[wandb\]'"),
        ("comet_ml", "pip install comet-ml"),
    ],
)
def test_a_missing_package_names_its_pip_install(monkeypatch, name, install):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=rf"^tracker='{name}' needs one more package: {install}$"):
        tracker_reporter(name, None)


def test_unknown_and_missing_names_are_errors():
    with pytest.raises(ConfigurationError, match=r"^tracker='wanb' is unknown; did you mean 'wandb'"):
        tracker_reporter("wanb", None)
    with pytest.raises(ConfigurationError, match=r"^tracker=\{'dir': 'x'\} lacks its name; allowed are aim, clear"):
        tracker_reporter({"dir": "x"}, None)


def scalars_in(folder, tag):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="an extra")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_one_value_a_generation_over_env_steps(tmp_path):
    reporter = TensorBoardReporter(tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(slot=1, fitness=100.0)))
    reporter.generation(a_generation(a_member(slot=1, fitness=150.0), number=2))
    reporter.close()
    reporter.close()
    assert scalars_in(tmp_path, "member/1/eval/mean_reward") == [(100_000, 100.0), (200_000, 150.0)]
    assert scalars_in(tmp_path, "population/best")[-1] == (200_000, 150.0)


def test_a_run_that_restarts_from_a_checkpoint_stays_in_its_tracker_run():
    opened = []
    reporter = TrackerReporter.__new__(TrackerReporter)
    reporter._class = lambda *names, **options: (
        opened.append(names) or SimpleNamespace(start=lambda: None, store_init_configuration=lambda settings: None)
    )
    reporter._options, reporter._tracker, reporter._is_registered = {}, None, False
    reporter.start(a_run())
    reporter.start(a_run())
    assert len(opened) == 1


def test_tensorboard_takes_the_options_of_its_writer(tmp_path):
    reporter = tracker_reporter({"name": "tensorboard", "flush_secs": 5, "filename_suffix": ".mine"}, tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(slot=1, fitness=100.0)))
    reporter.close()
    assert [*(tmp_path / "tensorboard").glob("*tfevents*.mine")]


def test_an_error_of_the_thread_of_tensorboard_is_that_of_the_reporter_alone(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    reporter = tracker_reporter({"name": "tensorboard", "flush_secs": 0, "max_queue": 1}, tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member()))
    shutil.rmtree(tmp_path / "tensorboard")

    def generations():
        for number in range(2, 100):
            reporter.generation(a_generation(a_member(), number=number))
            time.sleep(0.01)

    with pytest.raises(FileNotFoundError):
        generations()
    assert reported == []
    other = threading.Thread(target=(tmp_path / "absent").read_text)
    other.start()
    other.join()
    assert [type(error.exc_value) for error in reported] == [FileNotFoundError]
    with contextlib.suppress(OSError):
        reporter.close()
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("tensorboard."):
            thread.join(1.0)
    assert len(reported) == 1


def test_a_reporter_of_tensorboard_that_is_closed_leaves_no_hook(tmp_path):
    before = threading.excepthook
    reporter = tracker_reporter("tensorboard", tmp_path)
    reporter.generation(a_generation(a_member()))
    assert threading.excepthook != before
    reporter.close()
    assert threading.excepthook == before


def test_two_reporters_of_tensorboard_leave_no_hook_in_whatever_order_they_are_closed(tmp_path):
    before = threading.excepthook
    reporters = [tracker_reporter("tensorboard", tmp_path / name) for name in ("a", "b")]
    for _ in range(2):  # a script may use them again
        for reporter in reporters:
            reporter.generation(a_generation(a_member()))
        for reporter in reporters:
            reporter.close()
        assert threading.excepthook == before


def test_a_function_of_the_script_that_calls_the_reporters_one_is_called_once(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    monkeypatch.setattr(threading, "__excepthook__", reported.append)
    first, second = (tracker_reporter("tensorboard", tmp_path / name) for name in ("a", "b"))
    first.generation(a_generation(a_member()))
    before = threading.excepthook

    def of_script(error):
        before(error)
        reported.append("script")

    threading.excepthook = of_script
    second.generation(a_generation(a_member()))
    other = threading.Thread(target=(tmp_path / "absent").read_text)
    other.start()
    other.join()
    assert [type(error) for error in reported] == [threading.ExceptHookArgs, str]
    for reporter in (first, second):
        reporter.close()


def test_tensorboard_discards_steps_that_a_resumed_run_logs_again(tmp_path):
    """A process reported three generations and was killed before it had saved the second."""
    for generations in ((1, 2, 3), (2, 3, 4)):
        reporter = tracker_reporter("tensorboard", tmp_path)
        reporter.start(a_run())
        for number in generations:
            reporter.generation(a_generation(a_member(fitness=10.0 * number + generations[0]), number=number))
        reporter.close()
    curve = scalars_in(tmp_path / "tensorboard", "member/0/eval/mean_reward")
    assert curve == [(100_000, 11.0), (200_000, 22.0), (300_000, 32.0), (400_000, 42.0)]


def log_fitness(reporter, run, fitness, *generations):
    reporter.start(run)
    for number in generations:
        reporter.generation(a_generation(a_member(fitness=fitness), number=number))
    reporter.close()


def test_a_new_run_leaves_the_events_of_others_in_a_folder_that_they_share(tmp_path):
    logs, run = tmp_path / "logs", a_run(name="mine", run_dir=tmp_path / "runs" / "mine")
    runs = [a_run(name="mine", run_dir=tmp_path / parent / "mine") for parent in ("a", "b", "c")]
    for fitness, run in enumerate(runs):
        run.run_dir.mkdir(parents=True)
        log_fitness(TensorBoardReporter(logs), run, float(fitness), 1, 2)
    log_fitness(TensorBoardReporter(logs), runs[1], 4.0, 2)  # a resumed run continues its own curve
    log_fitness(TensorBoardReporter(logs), runs[2], 5.0, 1)  # killed before its first checkpoint
    log_fitness(TensorBoardReporter(logs), a_run(name="mine"), 6.0, 1)
    curves = [scalars_in(logs / name, "member/0/eval/mean_reward") for name in ("", "mine", "mine-2", "mine-3")]
    assert curves == [
        [(100_000, 0.0), (200_000, 0.0)],
        [(100_000, 1.0), (200_000, 4.0)],
        [(100_000, 5.0)],
        [(100_000, 6.0)],
    ]


def test_a_run_that_starts_again_in_its_own_folder_discards_its_events_there(tmp_path):
    """It was killed before its first checkpoint."""
    for fitness in (1.0, 2.0):
        log_fitness(tracker_reporter("tensorboard", tmp_path), a_run(run_dir=tmp_path), fitness, 1)
    assert scalars_in(tmp_path / "tensorboard", "member/0/eval/mean_reward") == [(100_000, 2.0)]


@pytest.mark.parametrize(
    "options", [{"api_key": "hush"}, {"login": {"apiKey": "hush"}}, {"access_token": "hush"}, {"password": "hush"}]
)
def test_an_option_with_a_secret_is_refused_because_settings_are_written_and_sent(options):
    with pytest.raises(ConfigurationError, match=r"^tracker='comet_ml': .* is not taken, .*COMET_API_KEY$") as found:
        tracker_reporter({"name": "comet_ml", **options}, None)
    assert "hush" not in str(found.value)


def test_settings_of_the_users_program_and_trackers_of_their_own_may_have_such_names(monkeypatch, tmp_path):
    check_no_secret("wandb", {"config": {"pad_token": "<eos>"}})
    for name in ("openai_api_key", "access_token", "password"):
        with pytest.raises(ConfigurationError, match=name):
            check_no_secret("wandb", {"config": {"model": {name: "hush"}}})

    class Sends(FileTracker):
        def __init__(self, run_name, logging_dir, file, token):
            super().__init__(run_name, logging_dir, file)

    mine = Registry("tracker")
    mine.add("sends", Sends)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    tracker_reporter({"name": "sends", "file": "calls.json", "token": "mine"}, tmp_path)


def test_tensorboard_discards_steps_of_an_attempt_in_which_all_members_diverged(tmp_path):
    reporter = tracker_reporter("tensorboard", tmp_path)
    for generations in ((1, 2, 3), (2,)):  # the restart continues after the first
        reporter.start(a_run())
        for number in generations:
            reporter.generation(a_generation(a_member(fitness=10.0 * number + generations[0]), number=number))
    reporter.close()
    curve = scalars_in(tmp_path / "tensorboard", "member/0/eval/mean_reward")
    assert curve == [(100_000, 11.0), (200_000, 22.0)]


def test_wandb_logs_over_env_steps_and_is_finished_once(wandb_calls):
    reporter = tracker_reporter({"name": "wandb", "project": "mine"}, None)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member()))
    reporter.finish(a_summary())
    reporter.close()
    reporter.close()
    init, log, summary, _ = wandb_calls()
    assert [call[0] for call in wandb_calls()] == ["init", "log", "summary", "finish"]
    settings = {"project": "mine", "name": "lander", "config": {"lr": 0.001}, "tags": ["PPO", "LunarLander-v3"]}
    assert init[1] == settings
    assert (log[1]["member/0/eval/mean_reward"], log[2]) == (100.0, 100_000)
    best = summary[1]
    assert (best["best/hp/lr"], best["best/uid"], best["best/generation"], best["best/fitness"]) == (
        0.0012,
        2,
        1,
        205.0,
    )


def test_tags_of_wandb_have_at_most_64_characters(wandb_calls):
    reporter = WandbReporter()
    reporter.start(a_run(env="e" * 65))
    assert wandb_calls()[0][1]["tags"] == ["PPO", "e" * 64]


def test_names_of_metrics_in_mlflow_have_no_characters_that_it_refuses(monkeypatch):
    log = Mock()
    monkeypatch.setattr("agilerl_like.reporting.trackers._tracker_class", lambda name: log)
    reporter = tracker_reporter("mlflow", None)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(measures={"info/a-b c": 2.0}), tracked={"success %": 1.0}))
    (values,), _ = log.return_value.log.call_args
    assert (values["callback/success _"], values["member/0/eval/info/a-b c"]) == (1.0, 2.0)


def test_wandb_continues_the_run_of_a_folder(wandb_calls, tmp_path):
    folders = [tmp_path / name for name in ("a", "a", "b")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        reporter = WandbReporter()
        reporter.start(a_run(run_dir=folder))
        reporter.close()
    opened = [call[1] for call in wandb_calls() if call[0] == "init"]
    assert [(entry["dir"], entry["resume"]) for entry in opened] == [(str(folder), "allow") for folder in folders]
    assert opened[0]["id"] == opened[1]["id"] != opened[2]["id"]


def test_films_are_added_to_the_wandb_run_of_a_folder(wandb_calls, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="has no wandb-id: it was not logged to W&B"), wandb_films(folder):
        pass
    reporter = WandbReporter()
    reporter.start(a_run(run_dir=folder))
    reporter.close()
    with wandb_films(folder, ["mlflow", {"name": "wandb", "project": "mine"}]) as add:
        add(tmp_path / "best-000.mp4")
        add(tmp_path / "best-100.mp4")
    first, _, again, *films, end = wandb_calls()
    assert (again[0], again[1]["project"], again[1]["id"]) == ("init", "mine", first[1]["id"])
    assert films == [["log", {f"film/best-{n}": str(tmp_path / f"best-{n}.mp4")}, None] for n in ("000", "100")]
    assert end == ["finish"]
    with RunLock(folder), pytest.raises(ConfigurationError, match="is still running"), wandb_films(folder):
        pass


class FileTracker:
    """A tracker of one's own: the interface is that of `accelerate.tracking.GeneralTracker`."""

    requires_logging_directory = True

    def __init__(self, run_name, logging_dir, *, file):
        self.calls, self.path = [run_name], f"{logging_dir}/{file}"

    def start(self):
        self.calls.append("start")

    def store_init_configuration(self, values):
        self.calls.append(values)

    def log(self, values, step):
        self.calls.append((values["eval/mean_reward" if "eval/mean_reward" in values else "population/best"], step))

    def finish(self):
        with open(self.path, "w") as file:
            json.dump(self.calls, file)


class Unfinished:
    """A tracker without two of the methods that are called."""

    def store_init_configuration(self, values):
        pass

    def log(self, values, step):
        pass


def test_a_tracker_that_lacks_methods_is_refused_by_name(monkeypatch, tmp_path):
    mine = Registry("tracker")
    mine.add("mine", Unfinished)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    with pytest.raises(ConfigurationError, match="tracker='mine': Unfinished has no method start, finish; allowed"):
        tracker_reporter("mine", tmp_path)


def test_a_registered_tracker_is_used_by_name_and_gets_the_name_of_the_run(monkeypatch, tmp_path):
    mine = Registry("tracker")
    mine.add("file", FileTracker)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    monkeypatch.setitem(registry._REGISTRIES, "tracker", mine)
    reporter = tracker_reporter({"name": "file", "file": "calls.json"}, tmp_path)
    assert type(reporter) is TrackerReporter
    reporter.start(a_run(name="seed-1", settings={"algorithm": {"lr": 1e-3, "sizes": [64]}, "seed": 1}))
    reporter.generation(a_generation(a_member()))
    reporter.close()
    assert json.loads((tmp_path / "calls.json").read_text()) == [
        "seed-1",
        "start",
        {"algorithm.lr": 1e-3, "algorithm.sizes": "[64]", "seed": 1},
        [100.0, 100_000],
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"name": "tensorboard", "flush_sec": 10},
            "tracker='tensorboard': got an unexpected keyword argument 'flush_s",
        ),
        ({"name": "wandb", "projct": "mine"}, "tracker='wandb': got an unexpected keyword argument 'projct'"),
        ({"name": "file", "fil": "x"}, "tracker='file': missing a required argument: 'file'"),
    ],
)
def test_options_that_a_tracker_does_not_take_are_refused_before_a_run_begins(given, message, monkeypatch, tmp_path):
    wandb = SimpleNamespace(__spec__=Mock(), init=lambda *, project=None, entity=None: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    mine = Registry("tracker")
    for name, entry in {**TRACKERS, "file": FileTracker}.items():
        mine.add(name, entry)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        tracker_reporter(given, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_error_in_a_registered_tracker_names_it(monkeypatch, tmp_path):
    class Broken(FileTracker):
        def log(self, values, step):
            raise KeyError(step)

    mine = Registry("tracker")
    mine.add("broken", Broken)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    reporter = TrackerReporter("broken", run_dir=tmp_path, file="calls.json")
    reporter.start(a_run())
    callbacks = CallbackList([reporter])
    callbacks.on_generation(Mock(pop_tracked=dict), a_generation(a_member()))
    assert str(callbacks.failure) == "callback TrackerReporter('broken').on_generation raised KeyError: 100000"


def test_the_folder_of_a_tracker_may_be_given_by_name(monkeypatch, tmp_path):
    mine = Registry("tracker")
    mine.add("file", FileTracker)
    monkeypatch.setattr("agilerl_like.reporting.trackers.TRACKERS", mine)
    reporter = TrackerReporter("file", run_dir=tmp_path, file="calls.json")
    reporter.start(a_run())
    reporter.close()
    assert (tmp_path / "calls.json").is_file()


def test_options_that_the_run_provides_may_be_given(wandb_calls, tmp_path):
    reporter = WandbReporter(name="mine", tags=["a"])
    reporter.start(a_run())
    assert (wandb_calls()[0][1]["name"], wandb_calls()[0][1]["tags"]) == ("mine", ["a"])
    reporter = tracker_reporter({"name": "tensorboard", "purge_step": 0}, tmp_path)
    reporter.generation(a_generation(a_member()))
    reporter.close()
    assert [*(tmp_path / "tensorboard").glob("*tfevents*")]
