"""Statements of the page on distributed runs are true."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from scripts import run_script

from agilerl_like import PPO, Run, make_vect_envs
from agilerl_like.cli.train import RESUME_EXISTING, _without_flag, _without_seeds
from agilerl_like.config import load
from agilerl_like.errors import ExitCode

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "tutorials" / "distributed.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.DOTALL)
SHELL = [block for language, block in BLOCKS if language == "sh"]
COMMANDS = [line for block in SHELL for line in block.splitlines() if line and not line.startswith("#")]


@pytest.fixture(autouse=True, scope="module")
def ranks_are_forked():
    """They are new interpreters here, as users have them."""


def test_every_exit_code_is_explained():
    explained = re.findall(r"^\| ([\d, ]+) \|", PAGE, flags=re.MULTILINE)
    codes = {int(code) for row in explained for code in row.split(",")}
    assert codes == {*map(int, ExitCode), 130, 141, 143}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_settings_that_exist(command):
    words = shlex.split(command)
    verb = next(word for word in ("train", "resume") if word in words)
    file, *options = words[words.index(verb) + 1 :]
    config = ROOT / "configs" / "ppo" / "cartpole.yaml" if verb == "resume" else ROOT / file
    load(config, _without_flag(_without_seeds(options)[0], RESUME_EXISTING)[0])


@pytest.mark.slow
def test_the_script_runs_with_a_small_budget(tmp_path):
    (code,) = [block for language, block in BLOCKS if language == "python" and "processes=2" in block]
    for steps, fewer in (("max_steps=20_480", "max_steps=4_096"), ("evo_steps=5_120", "evo_steps=2_048")):
        assert steps in code
        code = code.replace(steps, fewer)
    script = tmp_path / "two.py"
    script.write_text(code, encoding="utf-8")
    run_script(script, tmp_path)
    run = Run.open(tmp_path / "runs" / "two")
    last = run.population()
    assert len(last) == 4
    # the main process writes the members of all processes, from the initial ones on
    env = make_vect_envs("CartPole-v1", num_envs=1)
    initial = PPO.population(4, env.single_observation_space, env.single_action_space, seed=1)
    history = [entry.population() for entry in run.history()]
    for saved, members in ((history[0], initial), (history[-1], last)):
        for one, other in zip(saved, members, strict=True):
            assert all(map(torch.equal, one.network.parameters(), other.network.parameters()))
