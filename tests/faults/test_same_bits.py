"""R7: a seed means the same bits, whatever else is different about the run."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import ENVS, Memory, digest, population_for, tier, tiny_run

from agilerl_like import Population, make_vect_envs
from agilerl_like.reporting import Reporter

HERE = Path(__file__).parent
STEPS = tier(512, 1024)
ELSEWHERE = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch
from tiny_runs import tiny_run
torch.set_num_threads(1)
tiny_run(run_dir=sys.argv[1], generation=int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The digest of the tiny run as it is."""
    folder = tmp_path_factory.mktemp("plain")
    tiny_run(run_dir=folder, generation=STEPS)
    return digest(folder)


class Meddler(Reporter):
    """Uses every global generator in the middle of a run, and wants threads and memory."""

    def progress(self, env_steps):
        torch.manual_seed(env_steps)
        np.random.seed(env_steps % 2**32)  # noqa: NPY002  # the global generator is what must not matter
        torch.rand(1000)

    def generation(self, record):
        thread = threading.Thread(target=lambda: torch.ones(64, 64) @ torch.ones(64, 64))
        thread.start()
        thread.join()


def as_a_list(size):
    """The members one by one, in a list, as AgileRL's users hold them."""
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
    env.close()
    return list(population_for(env, size))


VARIANTS = {
    "once more": {},
    "told to everybody": {"verbose": True, "tensorboard": True, "reporters": [Memory(), Memory()]},
    "processes, one for each env": {"backend": "async"},
    "one worker": {"backend": "workers", "num_workers": 1},
    "two workers, in parts": {"backend": "workers", "num_workers": 2},
    "three workers": {"backend": "workers", "num_workers": 3},
    "somebody uses the global generators": {"reporters": [Meddler()]},
    "members in a list": {"population": lambda: as_a_list(4)},
    "members that were copied": {"population": lambda: Population([agent.clone() for agent in as_a_list(4)])},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_nothing_but_the_seed_matters(variant, expected, tmp_path):
    made = {name: value() if callable(value) else value for name, value in variant.items()}
    population = tiny_run(run_dir=tmp_path / "run", generation=STEPS, **made)
    assert digest(tmp_path / "run") == expected
    assert digest(population) == digest(tmp_path / "run" / "population")


def test_another_process_folder_and_hash_seed_do_not_matter(expected, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "run"), str(STEPS)],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        timeout=120,
        check=True,
    )
    assert digest(tmp_path / "run") == expected


def test_every_seed_is_another_run():
    seeds = range(tier(20, 200))
    digests = {digest(tiny_run(seed=seed, generations=2, generation=256)) for seed in seeds}
    assert len(digests) == len(seeds)
