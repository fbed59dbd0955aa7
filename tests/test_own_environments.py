"""Environments of the user's own, and packages that are not there, as the command sees them."""

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


def said_by(folder, *command, **environment):
    environment = {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not installed beside this interpreter")
def test_the_command_finds_an_environment_in_the_current_folder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "json.py").write_text("raise ImportError('a file here took the place of a module of Python')")
    done = said_by(tmp_path, COMMAND, "train", "own:Env", "--environment.backend", "workers", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "best fitness    8.00" in done.stdout


def errors_of(folder, preparation, *environments):
    """Return the exit codes of `train ENVIRONMENT`, and their lines of errors; one interpreter runs them all."""
    code = (
        f"import sys; {preparation}; from agilerl_like.cli import main\n"
        "print(*[main(['train', environment]) for environment in sys.argv[1:]])"
    )
    done = said_by(folder, sys.executable, "-c", code, *environments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr.splitlines()


def test_error_for_a_missing_path_gives_advice(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    codes, lines = errors_of(tmp_path, "sys.path.remove('')", "nowhere:Env", "own:Evn")
    assert codes == ["2", "2"]
    absent, misspelt = lines
    assert "it is not installed, and there is no nowhere.py in the current folder" in absent
    assert "name in own='Evn' is unknown; did you mean 'Env'?" in misspelt


def test_a_missing_extra_is_one_line_that_installs_it(tmp_path):
    missing = "sys.modules['pygame'] = sys.modules['minigrid'] = None"
    codes, lines = errors_of(tmp_path, missing, "butterfly/cooperative_pong-v6", "MiniGrid-Empty-5x5-v0")
    assert codes == ["2", "2"]
    for line, extra in zip(lines, ("multi-agent", "minigrid"), strict=True):
        assert f"pip install 'agilerl-like[{extra}]'" in line
