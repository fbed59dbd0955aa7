"""The wheel: what it holds, and that its command works in an empty folder without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lowest_versions import lowest_versions

ROOT = Path(__file__).parents[1]
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
CONFIG = """# Stand still.
environment: {id: own:Env, num_envs: 2, backend: workers}
population: {size: 2}
algorithm: {learn_step: 128, batch_size: 64}
training: {max_steps: 256, evo_steps: 256}
run: {name: standing, plot: false, threads: 1, processes: 1}
"""


def run(*command, cwd, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=ROOT)
    (built,) = folder.iterdir()
    return built


def files_below(folder):
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_it_holds_package_configurations_and_license_and_nothing_else(wheel):
    names = {*zipfile.ZipFile(wheel).namelist()}
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    configs = files_below("configs")
    assert "configs/ppo/cartpole.yaml" in configs
    assert names - metadata == files_below("agilerl_like") | {f"agilerl_like/{name}" for name in configs}
    licenses = {name.partition("/licenses/")[2] for name in metadata} - {""}
    assert licenses == {"LICENSE"}


@pytest.mark.slow
def test_its_command_reads_its_own_configurations_and_an_environment_in_the_current_folder(wheel, tmp_path):
    installed, folder = tmp_path / "installed", tmp_path / "folder"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        installed,
        wheel,
        cwd=ROOT,
    )
    (installed / "agilerl_like" / "configs" / "ppo" / "only.yaml").write_text(CONFIG)
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    (folder / "json.py").write_text("raise ImportError('a file here took the place of a module of Python')")
    output = run(installed / "bin" / "agilerl-like", "train", "only", cwd=folder, PYTHONPATH=str(installed))
    assert "best fitness    8.00" in output
    assert [path.name for path in (folder / "runs").iterdir()] == ["standing"]


def test_each_dependency_has_a_lowest_version_that_the_tests_can_run_with():
    found = lowest_versions((ROOT / "pyproject.toml").read_text())
    assert {"gymnasium", "pettingzoo", "tensordict"} <= {line.partition("==")[0] for line in found}
    assert not any(line.startswith("torch==") for line in found)
    with pytest.raises(ValueError, match="'numpy<3' has no lowest version"):
        lowest_versions("[project]\ndependencies = ['torch>=2.12', 'numpy<3']")
