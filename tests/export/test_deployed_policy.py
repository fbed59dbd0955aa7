"""A policy that solves CartPole does so in a process that has neither this package nor torch."""

import subprocess
import sys

import numpy as np
import pytest

from agilerl_like import PPO, make_vect_envs, train_on_policy
from agilerl_like.envs.vec_adapter import VecEnvAdapter

PLAY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("agilerl_like", "torch"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import gymnasium
import numpy as np

{policy}
env = gymnasium.make("CartPole-v1")
for seed in {seeds}:
    (observation, _), total, over = env.reset(seed=seed), 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(int(act(observation[None])[0]))
        total, over = total + reward, terminated or truncated
    print(total)
assert not {{"agilerl_like", "torch"}} & sys.modules.keys()
"""
NUMPY = "from policy import policy as act"
ONNX = """\
import onnxruntime
session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
(name,) = (given.name for given in session.get_inputs())
act = lambda observations: session.run(None, {name: observations})[0]
"""


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


@pytest.fixture(scope="module")
def solved():
    env = make_vect_envs("CartPole-v1", num_envs=8)
    spaces = env.single_observation_space, env.single_action_space
    settings = {"lr": 1e-3, "learn_step": 1024, "batch_size": 256, "update_epochs": 8, "ent_coef": 0.0}
    pop = PPO.population(1, *spaces, num_envs=8, seed=2, **settings)
    target = {"target": 499.9, "max_steps": 200_000, "evo_steps": 10_240, "eval_loop": 10}
    pop, _ = train_on_policy(env, pop=pop, verbose=False, **target)
    assert pop.best.fitness[-1] == 500.0  # on 20 fresh episodes
    return pop.best


@pytest.fixture(scope="module")
def seeds(solved):
    """Three seeds on which the agent itself plays whole episodes; on a few of all seeds it may fail."""
    env = VecEnvAdapter(make_vect_envs("CartPole-v1", num_envs=20, backend="sync"))
    returns = solved.run_episodes(env, range(20)).returns[0]
    return [int(seed) for seed in np.flatnonzero(returns == 500.0)[:3]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "package"), [("policy.py", NUMPY, "numpy"), ("policy.onnx", ONNX, "onnxruntime")]
)
def test_an_exported_file_plays_whole_episodes_without_this_package(solved, seeds, tmp_path, name, code, package):
    pytest.importorskip(package, reason="the extra export is not installed")
    solved.export(tmp_path / name)
    (tmp_path / "play.py").write_text(PLAY.format(policy=code, seeds=seeds))
    done = subprocess.run([sys.executable, "play.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["500.0"] * len(seeds)
    assert len(seeds) == 3
