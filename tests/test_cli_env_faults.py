"""An environment that fails ends the command with exit code 75, one line about it and the command that resumes."""

import pytest

from agilerl_like.cli import main

FLAWED = """
import sys
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

class Flawed(CartPoleEnv):
    steps = 0

    def __init__(self, flaw, at=100):
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

    def spoils(self, observation):
        return np.full_like(observation, np.nan)
"""

RUN = """
environment: {id: "ENV:Flawed", num_envs: 2, backend: sync, kwargs: {flaw: FLAW, at: AT}}
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

    def start(flaw, at=100):
        (tmp_path / "run.yaml").write_text(RUN.replace("ENV", name).replace("FLAW", flaw).replace("AT", str(at)))
        return main(["train", "run.yaml", "--seed", "1", "--run.name", "one"])

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
    assert line.endswith("; to go on: agilerl-like resume runs/one")
