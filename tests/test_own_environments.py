"""Environments of the user's own, as the command sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("agilerl-like")
OWN = """
import gymnasium
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low * 0, {}
    def step(self, action):
        self.steps += 1
        return self.observation_space.low * 0, 1.0, self.steps == 8, False, {}
"""
SMALL = ("--population.size", "2", "--training.max-steps", "256", "--training.evo-steps", "256", "--run.plot", "false",
         "--algorithm.learn-step", "128", "--algorithm.batch-size", "64")  # fmt: skip


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not installed beside this interpreter")
def test_the_command_finds_an_environment_in_the_current_folder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "json.py").write_text("raise ImportError('a file here took the place of a module of Python')")
    command = [COMMAND, "train", "own:Env", "--environment.backend", "workers", *SMALL]
    environment = {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "best fitness    8.00" in done.stdout
