"""The wheel: what it holds, and that its command works in an empty folder without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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


def test_its_command_reads_its_own_configurations(wheel, tmp_path):
    installed, empty = tmp_path / "installed", tmp_path / "empty"
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
    only = installed / "agilerl_like" / "configs" / "ppo" / "only.yaml"
    only.write_text("# Balance a pole.\nenvironment: {id: CartPole-v1}\n")
    empty.mkdir()
    output = run(installed / "bin" / "agilerl-like", "configs", cwd=empty, PYTHONPATH=str(installed))
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "ppo/only CartPole-v1 Balance a pole." in lines
    assert any(line.startswith("ppo/cartpole CartPole-v1") for line in lines)
    assert list(empty.iterdir()) == []
