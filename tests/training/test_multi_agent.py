"""Multi-agent runs: training, evolution, two processes, resume."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from small_runs import SMALL, CopyFolder, Records, StopAfter
from steady_teams import Steady

from agilerl_like import (
    IPPO,
    ConfigurationError,
    HyperparameterConfig,
    MultiAgentPopulation,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, make_packed_env
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup

LIVELY = Mutations(no_mutation=0.1, architecture=0.4, parameters=0.2, activation=0.1, rl_hp=0.2)
WORLD = "agilerl_like.envs.multi_agent.probe_envs:early_death"


pytestmark = pytest.mark.usefixtures("empty_folder")


def trained(processes=1, *, generations=4, size=4, pop=True, **more):
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 4, backend="sync")
    teams = IPPO.population(
        size,
        env.single_observation_spaces,
        env.single_action_spaces,
        num_envs=4,
        learn_step=64,
        batch_size=32,
        update_epochs=2,
        per_member=True,
        net_config=SMALL,
        seed=2,
        hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), learn_step=RLParameter(32, 128, dtype=int)),
    )
    teams, fitness = train_multi_agent_on_policy(
        env,
        pop=teams if pop else None,
        max_steps=256 * generations,
        evo_steps=256,
        eval_loop=2,
        checkpoint=512,
        selection_strategy=TournamentSelection(2),
        mutation=LIVELY,
        processes=processes,
        verbose=False,
        **more,
    )
    env.close()
    return teams, fitness


def assert_same(some, others):
    (documents, tensors), (other_documents, other_tensors) = some.to_documents(), others.to_documents()
    assert other_documents == documents
    for name, named in tensors.items():
        assert other_tensors[name].keys() == named.keys()
        assert all(torch.equal(other_tensors[name][key], tensor) for key, tensor in named.items())


def test_processes_that_share_a_team_step_distinct_envs():
    makes = [partial(make_packed_env, partial(Steady, steps)) for steps in range(1, 5)]
    setup = MultiAgentEnvSetup(MultiAgentVectorEnv(SyncVectorEnv(makes)))
    for part, wanted in ((0, [1, 2]), (1, [3, 4])):
        made = setup.make_training_env(1, 2, part)
        assert [packed.unwrapped.env.steps for packed in made.vector.envs] == wanted
        made.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Teams of a whole run, their fitness, and a copy of its folder from the midst of the third generation."""
    folder = tmp_path_factory.mktemp("whole")
    copied = CopyFolder(folder / "run", folder / "killed", generation=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return *trained(run_dir="run", callbacks=[copied]), folder / "killed"


@pytest.mark.slow
def test_teams_are_trained_tested_and_evolved(whole):
    teams, fitness, _ = whole
    assert isinstance(teams, MultiAgentPopulation)
    assert any(team.index > 3 for team in teams)  # there were offspring
    assert len({team.learners["speaker"].updates for team in teams} | {0}) > 1
    # the team return in this env: the speaker 1 in its only step, one listener 1, the other 0.2 twice
    assert np.allclose(fitness, 2.4)


@pytest.mark.slow
def test_a_resumed_multi_agent_run_is_bit_identical(whole):
    whole, _, killed = whole
    resumed, _ = trained(pop=False, resume=killed)
    assert_same(whole, resumed)
    assert_same(whole, MultiAgentPopulation.load(killed / "population"))


def test_single_agent_envs_are_refused():
    env = make_vect_envs("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigurationError, match="make_multi_agent_vect_envs"):
        train_multi_agent_on_policy(env, pop=None)


def small_team(**settings):
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 4, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    return env, IPPO.population(1, *spaces, num_envs=4, learn_step=16, batch_size=8, net_config=SMALL, **settings)


def test_arguments_of_single_agents_are_refused_by_name():
    env, teams = small_team()
    with pytest.raises(ConfigurationError, match=r"swap_channels=True is .*; allowed is IPPO\(…, swap_channels=True\)"):
        train_multi_agent_on_policy(env, pop=teams, swap_channels=True)
    single = make_vect_envs("CartPole-v1", num_envs=4)
    with pytest.raises(
        ConfigurationError, match=r"eval_env=.* is not a multi-agent vector env; make_multi_agent_vect_envs makes"
    ):
        train_multi_agent_on_policy(env, pop=teams, eval_env=single)


def test_the_command_that_resumes_a_team_names_its_function(tmp_path):
    env, teams = small_team()
    memory, run = Records(), tmp_path / "run"
    options = {"eval_loop": 1, "eval_steps": 2, "verbose": False, "reporters": [memory], "callbacks": [StopAfter(1)]}
    train_multi_agent_on_policy(env, pop=teams, max_steps=128, evo_steps=16, run_dir=run, **options)
    assert memory.summary.resume == f"train_multi_agent_on_policy(…, resume={str(run)!r})"


def test_multi_agent_envs_are_refused_by_train_on_policy():
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 2, backend="sync")
    team = IPPO(env.single_observation_spaces, env.single_action_spaces, seed=1)
    with pytest.raises(ConfigurationError, match="train_multi_agent_on_policy trains in it"):
        train_on_policy(env, pop=[team], max_steps=100)
    env.close()
