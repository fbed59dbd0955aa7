"""An environment that fails ends the command with one line about it.

After the run has begun, the exit code is 75 and the line has the command that resumes; before, it is 2.
"""

import csv
import re

import pytest
import yaml

from agilerl_like import Run
from agilerl_like.cli import main
from agilerl_like.envs.env_checker import BRIEF_REPLAYED, BRIEF_STEPS, STEPS

FLAWED = """
import os, signal, sys
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

class Flawed(CartPoleEnv):
    steps = 0

    def __init__(self, flaw="spoils", at=10**9):
        super().__init__()
        self.flaw, self.at = flaw, at

    def step(self, action):
        Flawed.steps += 1
        observation, *rest = super().step(action)
        if Flawed.steps == self.at:
            observation = getattr(self, self.flaw)(observation)
        return observation, *rest

    def opens(self, _):
        open("no such file")

    def leaves(self, _):
        sys.exit(0)

    def asserts(self, _):
        assert False, "the pole is gone"

    def narrows(self, observation):
        return observation[:3]

    def interrupts(self, observation):
        os.kill(os.getpid(), signal.SIGINT)
        return observation

    def spoils(self, observation):
        return np.full_like(observation, np.nan)


class Unlicensed(Flawed):
    made = 0

    def __init__(self, flaw="spoils", at=10**9):
        super().__init__(flaw, at=-1)
        Unlicensed.made += 1
        if Unlicensed.made == at:
            raise RuntimeError("no licence")


class Unclosable(Flawed):
    is_open = True

    def close(self):
        super().close()
        if self.is_open and Flawed.steps >= 100:  # more than the checks take, which close envs, too
            self.is_open = False
            raise OSError("the licence server does not answer")


class Endless(Flawed):
    def step(self, action):
        observation, reward, _, *rest = super().step(action)
        self.state, self.steps_beyond_terminated = np.zeros(4), None
        return observation, reward, False, *rest
"""

RUN = """
environment: {id: "ENV", num_envs: 2, backend: sync, kwargs: {flaw: FLAW, at: AT}}
population: {size: 2}
algorithm: {learn_step: 64, batch_size: 32}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 8}
training: {max_steps: 256, evo_steps: 128, eval_loop: 2, eval_steps: 100}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = "flawed_" + "".join(filter(str.isalnum, request.node.name))
    (tmp_path / f"{name}.py").write_text(FLAWED)

    def start(flaw, at=100, kind="Flawed", *options):
        (tmp_path / "run.yaml").write_text(
            RUN.replace("ENV", f"{name}:{kind}").replace("FLAW", flaw).replace("AT", str(at))
        )
        return main(["train", "run.yaml", "--seed", "1", "--run.name", "one", *options])

    return start


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("opens", "step failed with FileNotFoundError: [Errno 2] No such file or directory: 'no such file' (File "),
        ("leaves", "step failed with SystemExit: 0 (File "),
        ("asserts", "step failed with AssertionError: the pole is gone (File "),
        ("narrows", "an observation has shape (3,) and dtype float32; its space has shape (4,) and dtype float32"),
        ("spoils", "observation=nan is not finite: member "),
    ],
)
def test_in_training(run, capsys, flaw, message):
    assert run(flaw) == 75
    *_, line = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.startswith("agilerl-like: ")
    assert line.endswith("; there is no checkpoint yet; to start it again: agilerl-like resume runs/one --trust")


@pytest.mark.parametrize(("at", "backend"), [(1, "sync"), (1, "workers"), (1, "auto"), (8, "sync")])
def test_in_a_constructor_nothing_was_trained(run, capsys, at, backend):
    """The first env is made while the settings are read, the eighth when those of all members are."""
    assert run("opens", at, "Unlicensed", "--environment.backend", backend, "--environment.num-workers", "1") == 2
    *_, line = capsys.readouterr().err.splitlines()
    message = r"^agilerl-like: \S+:Unlicensed: construction failed with RuntimeError: no licence "
    assert re.search(
        message + r'\(File ".*", line \d+, in __init__\); nothing was trained, with environment.kwargs={.*\'at\': \d}$',
        line,
    )


def test_a_run_that_fails_before_it_replaces_an_earlier_one_names_no_command_for_it(run, capsys, tmp_path):
    assert run("spoils", 10**9) == 0
    rows = (tmp_path / "runs/one/metrics.csv").read_bytes()
    assert run("opens", 8, "Unlicensed", "--run.overwrite", "true") == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "RuntimeError: no licence" in line
    assert "; nothing was trained, with environment.kwargs=" in line
    assert "agilerl-like resume" not in line
    assert (tmp_path / "runs/one/metrics.csv").read_bytes() == rows


SINGLE = ("--population.size", "1", "--selection.tournament_size", "1", "--environment.num-envs", "1")
"""Options of a run that trains in the env that the command makes."""


@pytest.mark.parametrize(("flaw", "at", "code"), [("opens", 100, 75), ("spoils", 10**9, 0)])
def test_envs_that_fail_to_close_leave_the_exit_code(run, capsys, flaw, at, code):
    with pytest.warns(RuntimeWarning, match="Unclosable: close failed with OSError: the licence server") as warned:
        assert run(flaw, at, "Unclosable", *SINGLE, "--training.eval-loop", "1") == code
    assert len(warned) == 2
    if code:
        *_, line = capsys.readouterr().err.splitlines()
        assert line.endswith("; there is no checkpoint yet; to start it again: agilerl-like resume runs/one --trust")


def test_in_evaluation(run, capsys):
    before = BRIEF_STEPS + BRIEF_REPLAYED + 256  # the check, and the training of the first generation
    assert run("spoils", before + 8) == 75
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search(r"Flawed, member \d, env \d of its own, in evaluation: observation\[0\]=nan is not finite", line)
    assert line.endswith("; there is no checkpoint yet; to start it again: agilerl-like resume runs/one --trust")


@pytest.mark.slow
def test_eval_and_replay_end_where_the_runs_own_evaluations_do(run, capsys, tmp_path):
    """Episodes of this environment have no end, and the run cuts them after 100 steps (`training.eval_steps`)."""
    assert run("spoils", 10**9, "Endless") == 0
    capsys.readouterr()
    assert main(["eval", "runs/one", "--episodes", "2", "--trust"]) == 0
    assert "100 steps on average" in capsys.readouterr().out
    same = yaml.safe_load((tmp_path / "run.yaml").read_text())["environment"]["id"]
    assert main(["eval", "runs/one", "--episodes", "2", "--env", same, "--trust"]) == 0
    assert "100 steps on average" in capsys.readouterr().out
    assert main(["replay", "runs/one", "--seeds", "1", "--trust"]) == 0
    assert Run.open("runs/one").eval_steps == 100


@pytest.mark.slow
def test_one_interrupt_ends_an_evaluation_whose_episodes_never_end(run, capsys, tmp_path):
    before = STEPS + BRIEF_REPLAYED + 256
    assert run("interrupts", before + 80, "Endless", "--training.eval-steps", "none") == 130
    out = " ".join(capsys.readouterr().out.split())
    assert "agilerl-like resume runs/one --trust" in out
    assert re.search(
        r"warning: env \S+Endless: no episode ended in 300 .* set training.eval_steps, or .* plays whole", out
    )
    with (tmp_path / "runs/one/metrics.csv").open() as table:
        assert {row["eval/mean_reward"] for row in csv.DictReader(table)} == {"nan"}  # no episode has a return
