"""What only an interpreter of its own shows: which imports happen when, and the errors of commands.

One interpreter runs all of it, one stage after another, because the imports alone take it 4 s.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import digest_of_run
from test_architecture import OPTIONAL

OWN = """
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
"""
TRAIN = ["train", "CartPole-v1", "--environment.num-envs", "4", "--population.size", "2", "--run.plot", "false",
         "--training.max-steps", "256", "--training.evo-steps", "128", "--training.eval-loop", "1",
         "--algorithm.learn-step", "64", "--algorithm.batch-size", "32",
         "--algorithm.recurrent", "true", "--network.memory_config", "{cell: GRU}"]  # fmt: skip
BLOCKED = {
    "atari": (["ale_py"], 'make_vect_envs("ALE/Pong-v5", 1)'),
    "box2d": (["Box2D"], 'make_vect_envs("LunarLander-v3", 1)'),
    "cmaes": (["cmaes"], "CMAES(*spaces)"),
    "envpool": (["envpool"], 'make_vect_envs("CartPole-v1", 1, backend="envpool")'),
    "export": (["onnxruntime", "onnxscript"], 'PPO(*spaces).export("policy.onnx")'),
    "games": (["chess"], 'make_multi_agent_vect_envs("classic/chess-v6", 1)'),
    "gymnax": (["gymnax"], 'make_vect_envs("CartPole-v1", 1, backend="gymnax")'),
    "hub": (["huggingface_hub"], 'from_hub("user/name")'),
    "minari": (["minari"], 'export_trajectories(PPO(*spaces), played, "cartpole/a-v0", format="minari")'),
    "mujoco": (["mujoco"], 'make_vect_envs("Hopper-v5", 1)'),
    "openspiel": (["pyspiel"], 'make_multi_agent_vect_envs("openspiel/kuhn_poker", 1)'),
    "optuna": (["optuna"], 'importlib.import_module("agilerl_like.training.optuna_study")'),
    "plot": (["matplotlib"], "reporting.plot_run(run)"),
    "tensorboard": (["tensorboard"], 'reporting.tracker_reporter("tensorboard", run)'),
    "video": (["imageio_ffmpeg"], 'record_film(PPO(*spaces), "CartPole-v1", "film.mp4")'),
    "wandb": (["wandb"], 'reporting.tracker_reporter("wandb", run)'),
}
"""What needs each extra, and the modules without which it fails; the extras that commands need are in STAGES."""
STAGES = f"""
import json, sys, time
before = time.process_time()
import torch
start = time.process_time()
from agilerl_like import PPO, Population, make_vect_envs, train_on_policy
found = {{"times torch": (time.process_time() - start) / (start - before), "after the import": [*sys.modules]}}
from agilerl_like.cli import main
found["before training"] = [*sys.modules]
codes = [main(["train", "cartpole", "--seed", "x"])]
found["after a mistake"] = [*sys.modules]
codes += [main({TRAIN!r})]
found["after training"] = [*sys.modules]
torch.set_num_threads(1)
sys.path.append({str(Path(__file__).parent)!r})
from small_runs import digest_of_run
found["digest"] = digest_of_run("workers", verbose=True)
sys.path.remove("")  # as for the command `agilerl-like`
codes += [main(["train", path]) for path in ("nowhere:make", "own:mkae")]
sys.modules["pygame"] = sys.modules["minigrid"] = None
codes += [main(["train", env]) for env in ("butterfly/cooperative_pong-v6", "MiniGrid-Empty-5x5-v0")]
from pathlib import Path
import importlib
import gymnasium
from agilerl_like import *
from agilerl_like import reporting
from agilerl_like.agilerl.hpo import mutation, tournament  # a name that is refused elsewhere, and a module here
def played():
    raise AssertionError("an episode was played")
make_vect_envs("ALE/Pong-v5", 1, backend="sync").close()
env, run = gymnasium.make("CartPole-v1"), next(Path("runs").iterdir())
spaces, found["errors"] = (env.observation_space, env.action_space), {{}}
for extra, (blocked, code) in {BLOCKED!r}.items():
    for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(blocked))
    try:
        eval(code)
    except ConfigurationError as error:
        found["errors"][extra] = str(error)
print()
print(json.dumps(found | {{"codes": codes}}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Names of loaded modules by stage, exit codes, and the lines on standard error."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "own.py").write_text(OWN)
    command = [sys.executable, "-W", "error", "-c", STAGES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "77"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, _, stages = done.stdout.rstrip().rpartition("\n")
    return {**json.loads(stages), "lines": done.stderr.splitlines(), "said": said}


@pytest.mark.slow
def test_importing_loads_no_extra_and_costs_little(found):
    assert not {*OPTIONAL, "accelerate", "pettingzoo", "Box2D"} & {*found["after the import"]}
    assert found["times torch"] < 3.0  # CPU seconds, in those of `import torch`: 1.9 to 2.3 on a slow machine


def test_a_command_loads_no_extra(found):
    assert not {"matplotlib", "tensorboard", "wandb"} & {*found["after a mistake"]}


def test_learning_imports_nothing_large(found):
    """Symbolic algebra takes half a second to import: tensordict imports it at the start, learning must not later."""
    new = {*found["after training"]} - {*found["before training"]}
    assert not new & {"sympy", "torch._inductor", "matplotlib", "scipy"}
    assert "budget spent" in found["said"]


def test_results_do_not_depend_on_process_folder_hash_seed_or_backend(found, tmp_path, monkeypatch):
    """Law 11. More ways to run the same, and other seeds, are in tests/faults/test_same_bits.py."""
    monkeypatch.chdir(tmp_path)
    assert digest_of_run("sync") == found["digest"]


def test_a_mistake_is_one_line_without_a_traceback(found):
    assert found["codes"] == [2, 0, 2, 2, 2, 2]
    assert len(found["lines"]) == 5  # none of the training, and not the banner of ALE
    assert found["lines"][0].startswith("agilerl-like: seed='x'; allowed is a whole number")


def test_error_for_a_missing_path_gives_advice(found):
    _, absent, misspelt, *_ = found["lines"]
    assert "it is not installed, and there is no nowhere.py in the current folder" in absent
    assert "env (in own)='mkae' is unknown; did you mean 'make'?" in misspelt


def test_a_missing_extra_is_one_line_that_installs_it(found):
    for line, extra in zip(found["lines"][3:], ("multi-agent", "minigrid"), strict=True):
        assert f"pip install 'agilerl-like[{extra}]'" in line


@pytest.mark.parametrize("extra", BLOCKED)
def test_what_needs_a_missing_extra_names_it(found, extra):
    assert f"pip install 'agilerl-like[{extra}]'" in found["errors"][extra]
