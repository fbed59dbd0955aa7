"""R7: a seed means the same bits, whatever else is different about the run."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from restless_teams import Restless
from tiny_runs import ENVS, SETTINGS, SMALL, Memory, digest, member_digest, population_for, tier, tiny_run

from agilerl_like import IPPO, Population, make_multi_agent_vect_envs, make_vect_envs
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.reporting import Reporter
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector

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
    "more reporters": {"verbose": True, "tensorboard": True, "reporters": [Memory(), Memory()]},
    "processes, one for each env": {"backend": "async"},
    "one worker": {"backend": "workers", "num_workers": 1},
    "two workers, in parts": {"backend": "workers", "num_workers": 2},
    "three workers": {"backend": "workers", "num_workers": 3},
    "the global generators are used": {"reporters": [Meddler()]},
    "members in a list": {"population": lambda: as_a_list(4)},
    "members that were copied": {"population": lambda: Population([agent.clone() for agent in as_a_list(4)])},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_results_depend_on_the_seed_only(variant, expected, tmp_path):
    made = {name: value() if callable(value) else value for name, value in variant.items()}
    population = tiny_run(run_dir=tmp_path / "run", generation=STEPS, **made)
    assert digest(tmp_path / "run") == expected
    assert digest(population) == digest(tmp_path / "run" / "population")


def test_results_do_not_depend_on_process_folder_or_hash_seed(expected, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "run"), str(STEPS)],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        check=True,
    )
    assert digest(tmp_path / "run") == expected


def test_every_seed_gives_another_run():
    seeds = range(tier(20, 60))
    digests = {digest(tiny_run(seed=seed, generations=2, generation=256)) for seed in seeds}
    assert len(digests) == len(seeds)


def test_a_teams_bits_do_not_depend_on_the_teams_beside_it():
    """Whose agents sit out and die at other times than its own."""

    def lived(size):
        env = make_multi_agent_vect_envs(Restless, ENVS * size, backend="sync")
        spaces = env.single_observation_spaces, env.single_action_spaces
        settings = {"net_config": SMALL, **SETTINGS, "learn_step": 64, "batch_size": 32}
        teams = IPPO.population(size, *spaces, num_envs=ENVS, seed=4, per_member=True, **settings)
        collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset(range(size))
        for _ in range(48):
            collector.collect(1)
            collector.learn()
        trials = MultiAgentVecEnvAdapter(env.eval_env(2 * size))
        returns = teams.run_episodes(trials, [1, 2]).returns
        return (
            [member_digest(team) for team in teams],
            returns.tolist(),
            teams[0].run_episodes(trials, [1, 2]).returns.tolist(),
        )

    (few, earned, alone), (many, all_earned, alone_too) = lived(2), lived(4)
    assert many[:2] == few
    assert all_earned[:2] == earned
    assert alone_too == alone  # in an env of more rows
