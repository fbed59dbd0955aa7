"""R6: a configuration that is wrong is refused in one line that names every mistake, before any env is made."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

import gymnasium
import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from tiny_runs import NIGHTLY, tier

from agilerl_like.cli import main

GOOD = {
    "environment": {"id": "Untouched-v0", "num_envs": 4},
    "population": {"size": 4, "sample_hyperparameters": False},  # which would move values into their ranges
    "algorithm": {"learn_step": 256, "batch_size": 64},
    "training": {"max_steps": 256, "evo_steps": 256, "eval_loop": 1},
    "run": {"plot": False},
}
WITHIN = 2.0
"""Seconds of work for each refusal, besides the imports; a machine that is busy with other things does not count."""


@dataclass(frozen=True)
class Defect:
    """Something wrong at one place: the field and value that are to be named, and then (a pattern) what is allowed."""

    path: str
    value: object
    allowed: str
    named: str

    @property
    def section(self):
        return self.path.split(".")[0]

    def __call__(self, data):
        *above, name = self.path.split(".")
        for part in above:
            data = data.setdefault(part, {})
        data[name] = self.value


def wrong(path, values, *allowed):
    """A value that the field at a path cannot have; the message contains one of `allowed`."""
    return values.map(lambda value: Defect(path, value, "|".join(allowed), f"{path}={value!r}"))


NO_NUMBER = st.sampled_from(["fast", [1], {"a": 1}])
NO_FLAG = st.sampled_from(["perhaps", 3, [True]])
TOO_SMALL = st.integers(-(10**6), 0)
NEGATIVE = st.floats(-1e9, -1e-9)
HUGE, BEYOND = st.integers(10**12, 2**40), st.integers(2**40 + 1, 10**30)
NOT_FINITE = st.sampled_from([float("inf"), float("-inf"), float("nan")])
NO_SHARE = st.floats(1.001, 1e6) | NEGATIVE
NO_NAME = st.text("abcdefgh", min_size=9, max_size=12)
FRACTION = st.integers(1, 99).map(lambda number: number + 0.5)

AT_LEAST, WHOLE = "greater than", "whole number|positive integer|a number"
NUMBER = "a number|finite"

FIELDS = [
    *(wrong(f"algorithm.{name}", TOO_SMALL | FRACTION | NO_NUMBER, AT_LEAST, WHOLE) for name in
      ("batch_size", "learn_step", "update_epochs")),
    *(wrong(f"algorithm.{name}", NEGATIVE | NOT_FINITE | NO_NUMBER, AT_LEAST, NUMBER) for name in
      ("lr", "ent_coef", "vf_coef", "clip_coef", "max_grad_norm")),
    *(wrong(f"algorithm.{name}", NO_SHARE | NO_NUMBER, AT_LEAST, "less than or equal to 1", NUMBER) for name in
      ("gamma", "gae_lambda")),
    wrong("algorithm.precision", NO_NAME, "'bfloat16', float32|allowed are|did you mean"),
    wrong("algorithm.recurrent", NO_FLAG, "true or false"),
    wrong("environment.num_envs", TOO_SMALL | FRACTION | NO_NUMBER, AT_LEAST, WHOLE),
    wrong("environment.num_envs", HUGE, r"needs at least .*B of memory; .*: allowed are at most \d+ envs"),
    *(wrong(path, BEYOND, "less than or equal to 1099511627776") for path in
      ("algorithm.batch_size", "algorithm.learn_step", "population.size")),
    wrong("algorithm.update_epochs", st.integers(10_001, 10**30), "less than or equal to 10000"),
    wrong("environment.step_timeout", NEGATIVE | NO_NUMBER, AT_LEAST, NUMBER),
    wrong("environment.backend", NO_NAME, "allowed are|did you mean"),
    wrong("population.size", TOO_SMALL | FRACTION | NO_NUMBER, AT_LEAST, WHOLE),
    wrong("population.sample_hyperparameters", NO_FLAG, "true or false"),
    wrong("network.latent_dim", st.integers(-99, 7) | st.integers(129, 9999), r"outside its range \[8, 128\]"),
    wrong("network.encoder", NO_NAME, "allowed are|did you mean"),
    wrong("selection.tournament_size", TOO_SMALL, "at least 1"),
    wrong("selection.name", NO_NAME, "allowed are|did you mean"),
    *(wrong(f"mutation.{name}", NEGATIVE | NOT_FINITE, "relative weight") for name in ("rl_hp", "architecture")),
    wrong("mutation.new_layer_prob", NO_SHARE, "between 0 and 1"),
    wrong("mutation.activation_selection", st.just(["Rely"]), "did you mean").map(
        lambda defect: Defect(defect.path, ["Rely"], defect.allowed, "mutation.activation_selection='Rely'")
    ),
    *(wrong(f"training.{name}", TOO_SMALL, "must be a positive integer") for name in
      ("max_steps", "evo_steps", "eval_loop")),
    wrong("training.target", NOT_FINITE, "finite number"),
    wrong("run.threads", TOO_SMALL | FRACTION | NO_NUMBER, AT_LEAST, WHOLE),
    wrong("run.tensorboard", NO_FLAG, "true or false"),
    wrong("seed", st.integers(-(10**9), -1) | FRACTION | NO_NUMBER, AT_LEAST, WHOLE),
]  # fmt: skip


def misspelt(section, name):
    """A key that lacks one of its letters."""
    keys = st.integers(0, len(name) - 1).map(lambda at: name[:at] + name[at + 1 :])
    return keys.map(
        lambda key: Defect(f"{section}.{key}", 1, f"did you mean .*'{name}'", f"{section} key='{key}' is unknown")
    )


UNKNOWN = [
    misspelt("algorithm", "gae_lambda"),
    misspelt("training", "max_steps"),
    misspelt("environment", "num_envs"),
    misspelt("mutation", "mutation_sd"),
    misspelt("run", "tensorboard"),
]


def wrong_range(name, limits, allowed, named):
    """A range that no hyperparameter, or not this one, can have."""
    return st.just(Defect(f"hyperparameters.{name}", limits, allowed, named))


def upside_down(name, low, high):
    limits = {"min": high, "max": low}
    return wrong_range(name, limits, f"must not be greater than max={low}", f"hyperparameters.{name}.min={high}")


RANGES = [
    upside_down("lr", 0.001, 0.1),
    upside_down("gamma", 0.8, 0.99),
    upside_down("batch_size", 16, 64),
    wrong_range("gamma", {"min": 0.9}, "missing", "hyperparameters.gamma.max"),
    wrong_range("gama", {"min": 0.8, "max": 0.9}, "did you mean 'gamma'", "hyperparameters key='gama'"),
]

SELECTION = [
    wrong("selection.tournament_size", st.integers(5, 10**6), "must not be greater than the population's 4"),
]
TOO_LARGE = r"needs at least .*B of memory; this machine has .*: allowed are at most \d+ "


def wide(size):
    """A head with layers of a millionth of so many nodes."""
    nodes = size // 10**6
    named = f"net_config: 64 | 64 | {nodes}-{nodes} ReLU has"
    head = {"hidden_size": [nodes] * 2, "max_mlp_nodes": size}
    return Defect("network.head_config", head, rf"weights=\d+ and {TOO_LARGE}weights", named)


def long(size):
    limits = {"min": 64, "max": size}
    return Defect(
        "hyperparameters.learn_step", limits, f"{TOO_LARGE}env steps", f"hyperparameters.learn_step.max={size}"
    )


def outside(name, low, high, value):
    """A range without the initial value."""
    limits = {"min": low, "max": high}
    return Defect(
        f"hyperparameters.{name}", limits, rf"outside its range \[{low}, {high}\]", f"algorithm.{name}={value}"
    )


AGENT = [
    wrong("algorithm.learn_step", HUGE, f"{TOO_LARGE}env steps"),
    HUGE.map(long),
    HUGE.map(wide),
    wrong("algorithm.batch_size", st.integers(257, 10**6), "is larger than the rollout of learn_step=256"),
    st.floats(0.2, 0.9).map(lambda low: outside("lr", low, 1.0, "0.0001")),
    st.integers(300, 400).map(lambda low: outside("batch_size", low, 512, "64")),
    wrong_range("gamma", {"min": 0.9, "max": 1.5}, "less than or equal to 1", "hyperparameters.gamma.max=1.5"),
]


@pytest.fixture(scope="module")
def made():
    """Every env that was made."""
    envs = []
    gymnasium.register("Untouched-v0", lambda: envs.append("made") or gymnasium.make("CartPole-v1"))
    yield envs
    del gymnasium.registry["Untouched-v0"]


def refused(defects, folder, made):
    """Assert that a configuration with all these defects is refused early, in one line that has them all."""
    data = yaml.safe_load(yaml.safe_dump(GOOD))
    for defect in defects:
        defect(data)
    path = folder / "bad.yaml"
    path.write_text(yaml.safe_dump(data))
    said, start = io.StringIO(), time.process_time()
    with contextlib.redirect_stderr(said):
        code = main(["train", str(path), "--run.dir", str(folder / "runs")])
    assert time.process_time() - start < WITHIN
    text = said.getvalue()
    assert (code, made) == (2, [])
    assert not (folder / "runs").exists()
    assert text.startswith("agilerl-like: ")
    assert text.count("\n") == 1
    for word in ("Traceback", "pydantic", "function-"):
        assert word not in text
    for defect in defects:
        assert re.search(f"{re.escape(defect.named)}.*?({defect.allowed})", text), defect


SOME = settings(
    max_examples=tier(120, 1000),
    derandomize=not NIGHTLY,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ONE_EACH = st.lists(st.one_of(*FIELDS, *UNKNOWN), min_size=1, max_size=5, unique_by=lambda defect: defect.section)


@SOME
@given(defects=st.tuples(ONE_EACH, st.lists(st.one_of(*RANGES), max_size=1)).map(lambda both: both[0] + both[1]))
def test_all_errors_are_reported_together(defects, tmp_path, made):
    refused(defects, tmp_path, made)


@SOME
@given(selection=st.lists(st.one_of(*SELECTION), max_size=1), agent=st.lists(st.one_of(*AGENT), max_size=1))
def test_all_contradictions_are_reported_together(selection, agent, tmp_path, made):
    if defects := selection + agent:
        refused(defects, tmp_path, made)


NUMBERS = [f"algorithm.{name}" for name in ("lr", "gamma", "update_epochs")]
NUMBERS += ["training.max_steps", "run.threads", "seed", "mutation.rl_hp"]


@SOME
@given(defects=st.sets(st.sampled_from(NUMBERS), min_size=1, max_size=4).map(sorted))
def test_true_is_no_number(defects, tmp_path, made):
    """Though to Python, and so to pydantic, it is one."""
    refused([Defect(path, True, "should be a number, not a flag", f"{path}=True") for path in defects], tmp_path, made)


DIALS = {
    "n-step with lambda": ({"advantage": "n_step", "gae_lambda": 0.9}, "gae_lambda=0.9: has no meaning with advantage"),
    "two schedules of one rate": (
        {"lr_schedule": "linear", "schedules": {"lr": "cosine"}},
        "lr_schedule='linear' and schedules.lr='cosine' are two names of one schedule",
    ),
    "a schedule beyond the run": ({"lr_schedule": [[0, 1], [2, 0]]}, "progress=2 in point [2, 0]; allowed are numbers"),
    "a schedule below zero": ({"lr_schedule": [[0, 1], [1, -1]]}, "factor=-1 in point [1, -1]; allowed are finite"),
    "a rate outside of its schedule": (
        {"lr_schedule": "kl", "lr": 0.1},
        "algorithm.lr=0.1: is outside of lr_min=1e-06 and lr_max=0.01",
    ),
    "another algorithm's option": (
        {"eps_start": 1.0},
        "algorithm key='eps_start' is unknown here; it is a setting of DQN",
    ),
    "an unknown preset": ({"preset": "sb4"}, "algorithm.preset='sb4' is unknown; did you mean 'sb3'?"),
}


@pytest.mark.parametrize(("algorithm", "message"), DIALS.values(), ids=DIALS)
def test_options_that_contradict_each_other_are_refused_before_any_env_is_made(algorithm, message, tmp_path, made):
    data = {**GOOD, "algorithm": algorithm}
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(data))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["train", str(path), "--run.dir", str(tmp_path / "runs")])
    assert (code, made) == (2, [])
    assert message in said.getvalue()
    assert said.getvalue().count("\n") == 1
    assert not (tmp_path / "runs").exists()


BY_HAND = {
    "every section": (
        "algorithm: {lr: -1, gama: 0.9}\npopulation: {size: 0}\nseed: -1",
        ["algorithm.lr=-1", "did you mean 'gamma'", "population.size=0", "seed=-1"],
    ),
    "a contradiction": ("algorithm: {batch_size: 4096}", ["algorithm.batch_size=4096 is larger than the rollout"]),
}


REFUSALS = """
import sys, time
from agilerl_like.cli import main
for file in sys.argv[1:]:
    start = time.process_time()
    print(main(["train", file]), time.process_time() - start)
"""


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["python", "python -O"])
def test_errors_are_the_same_under_python_O(flags, tmp_path):
    for number, (text, _) in enumerate(BY_HAND.values()):
        (tmp_path / f"{number}.yaml").write_text("environment: {id: NoSuchEnv-v0}\n" + text)
    done = subprocess.run(
        [sys.executable, *flags, "-c", REFUSALS, *map(str, sorted(tmp_path.glob("*.yaml")))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for (_, parts), said, result in zip(
        BY_HAND.values(), done.stderr.splitlines(), done.stdout.splitlines(), strict=True
    ):
        code, seconds = result.split()
        assert code == "2"
        assert float(seconds) < WITHIN
        assert all(part in said for part in parts)
    assert not (tmp_path / "runs").exists()
