"""Saving and loading teams; invalid teams, envs and populations give one clear error each."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text
from pettingzoo.utils.conversions import parallel_to_aec
from small_runs import SMALL
from steady_teams import Steady

from agilerl_like import (
    IPPO,
    PPO,
    CheckpointError,
    Choice,
    ConfigurationError,
    HyperparameterConfig,
    MultiAgentPopulation,
    RLParameter,
    make_multi_agent_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.storage import safe_folder

WORLD = MULTI_AGENT_PROBES["EarlyDeath"].make
SEES = {"blue_1": Box(-1, 1, (3,)), "red_0": Box(-1, 1, (5,)), "blue_0": Box(-1, 1, (3,))}
DOES = {"blue_1": Discrete(3), "red_0": MultiDiscrete([2, 3]), "blue_0": Discrete(3)}


def a_team(**more):
    return IPPO(SEES, DOES, **{"seed": 3, "num_envs": 2, "learn_step": 64, "net_config": SMALL, **more})


# -- files


def test_a_loaded_team_keeps_the_order_of_its_agents(tmp_path):
    team = a_team(rewards="mean", agent_id_one_hot=True)
    loaded = IPPO.load(team.save_checkpoint(tmp_path / "team"))
    assert [*loaded.groups.items()] == [("blue", ("blue_1", "blue_0")), ("red", ("red_0",))]
    assert loaded.agent_ids == ("blue_1", "red_0", "blue_0")
    assert (loaded.rewards, loaded.agent_id_one_hot) == ("mean", True)
    assert loaded.observation_space == team.observation_space
    team.set_training_mode(False)
    loaded.set_training_mode(False)
    seen = {agent: space.sample()[None] for agent, space in SEES.items()}
    for mine, theirs in zip(team.get_action(seen), loaded.get_action(seen), strict=True):
        for agent in SEES:
            np.testing.assert_array_equal(mine[agent], theirs[agent])


@pytest.mark.parametrize("of_team", [None, 4])
def test_a_loaded_team_has_the_max_seq_len_of_its_net_config(of_team):
    """It is of one group, and has an effect where the team has none."""
    blue = {**SMALL, "memory_config": {"hidden_state_size": 16, "max_seq_len": 6}}
    team = a_team(recurrent=True, max_seq_len=of_team, net_config={"blue": blue, "red": SMALL})
    loaded = IPPO.from_documents(*team.to_documents(), device="cpu", where="memory")
    loaded.max_seq_len = None
    assert [loaded.learners[group].cut_of(16).length for group in ("blue", "red")] == [6, 16]


@pytest.mark.parametrize("rewards", ["individual", "sum"])
@pytest.mark.parametrize("death", ["continue", "end"])
def test_a_loaded_team_has_its_death(tmp_path, rewards, death):
    team = a_team(rewards=rewards, death=death)
    assert IPPO.load(team.save_checkpoint(tmp_path / "team")).death == death


def test_load_checkpoint_needs_a_team_of_the_same_agents(tmp_path):
    team, path = a_team(), a_team(rewards="sum").save_checkpoint(tmp_path / "team")
    team.load_checkpoint(path)
    assert team.rewards == "sum"
    other = IPPO({"blue_1": SEES["blue_1"]}, {"blue_1": DOES["blue_1"]}, net_config=SMALL)
    with pytest.raises(CheckpointError, match="was saved with"):
        other.load_checkpoint(path)
    apart = {"blue_1": "one", "blue_0": "other", "red_0": "red"}
    for more in ({"groups": apart}, {"agent_id_one_hot": True}):
        with pytest.raises(CheckpointError, match=f"was saved with {next(iter(more))}=.*; this team has"):
            team.load_checkpoint(a_team(**more).save_checkpoint(tmp_path / "other"))
    assert team.rewards == "sum"


def test_teams_of_different_state_spaces_do_not_fit_together(tmp_path):
    team, other = (
        a_team(index=number, critic_observation="state", state_space=Box(-1, 1, (size,)))
        for number, size in enumerate((2, 5))
    )
    with pytest.raises(CheckpointError, match=r"was saved with state_space=Box.*\(5,\).*; this team has Box.*\(2,\)"):
        team.load_checkpoint(other.save_checkpoint(tmp_path / "other"))
    with pytest.raises(ConfigurationError, match=r"state_space=Box.*\(5,\).* must be equal for all teams"):
        MultiAgentPopulation([team, other])


def test_load_checkpoint_keeps_index_and_learners_in_the_population(tmp_path):
    saved = a_team(index=5, lr=0.01)
    path = saved.save_checkpoint(tmp_path / "team")
    teams = MultiAgentPopulation([a_team(index=0, seed=6), a_team(index=1, seed=6)])
    teams[1].load_checkpoint(path)
    assert (teams[1].lr, teams[1].index, teams[1].seed) == (0.01, 1, 6)
    for group, learner in teams[1].learners.items():
        assert teams.by_group[group][1] is learner
        assert (learner.hyperparams()[0], learner.index) == (0.01, 1)
        assert learner.seed == teams[0].learners[group].seed != saved.learners[group].seed
        its, theirs = (list(one.network.parameters()) for one in (learner, saved.learners[group]))
        assert all(map(torch.equal, its, theirs))


def test_tensors_with_a_prefix_are_listed_without_reading_them(tmp_path):
    path = safe_folder.write_folder(
        tmp_path / "x", "agent", {}, {"agent": {"a/x": torch.ones(2), "ab/x": torch.zeros(3), "a/b/x": torch.ones(4)}}
    )
    stored = safe_folder.read_folder(path, "agent")[1]["agent"]
    section = safe_folder.with_prefix(stored, "a/")
    assert safe_folder.tensor_infos(section) == {"x": ((2,), torch.float32), "b/x": ((4,), torch.float32)}
    assert (set(section), len(section), "x" in section, "a/x" in section) == ({"x", "b/x"}, 2, True, False)
    (path / "agent.safetensors").unlink()  # so nothing was read until now
    with pytest.raises(CheckpointError):
        section["x"]
    in_memory = safe_folder.with_prefix({"a/x": torch.ones(2), "ab/x": torch.zeros(3)}, "a/")
    assert {name: tensor.tolist() for name, tensor in in_memory.items()} == {"x": [1.0, 1.0]}


def test_tensors_of_several_prefixes_are_read_once(tmp_path):
    path = safe_folder.write_folder(
        tmp_path / "x", "agent", {}, {"agent": {"a/x": torch.ones(2), "b/x": torch.zeros(3)}}
    )
    stored = safe_folder.read_folder(path, "agent")[1]["agent"]
    one, other = safe_folder.with_prefix(stored, "a/"), safe_folder.with_prefix(stored, "b/")
    assert one["x"].tolist() == [1.0, 1.0]
    (path / "agent.safetensors").unlink()
    assert other["x"].tolist() == [0.0, 0.0, 0.0]


def test_power_of_two_ranges_suit_groups_of_any_size(tmp_path):
    ranges = HyperparameterConfig(learn_step=RLParameter(32, 128, dtype=int, scale="power_of_two"))
    names = [f"agent_{number}" for number in range(3)]
    team = IPPO(
        [SEES["blue_0"]] * 3, [Discrete(2)] * 3, names, hp_config=ranges, learn_step=64, batch_size=32, net_config=SMALL
    )
    team.learn_step = 128
    assert team.learners["agent"].rollout_rows == 3 * 128
    assert IPPO.load(team.save_checkpoint(tmp_path / "team")).hp_config == team.hp_config


@pytest.mark.parametrize("agents", [2, 3])
def test_teams_with_ranges_that_depend_on_learn_step_are_saved_and_trained(tmp_path, agents):
    names = [f"listener_{number}" for number in range(agents)]
    env = make_multi_agent_vect_envs(partial(Steady, agents=names), 2, backend="sync")
    ranges = HyperparameterConfig(
        learn_step=Choice([32, 64]), ent_coef=RLParameter(1e-3, 1e-1, when={"learn_step": 32})
    )
    spaces = env.single_observation_spaces, env.single_action_spaces
    team = IPPO(*spaces, hp_config=ranges, num_envs=2, learn_step=32, batch_size=16, net_config=SMALL, seed=1)
    assert IPPO.load(team.save_checkpoint(tmp_path / "team")).hp_config == ranges
    pop, _ = train_multi_agent_on_policy(
        env, pop=MultiAgentPopulation([team]), max_steps=64, evo_steps=64, verbose=False
    )
    assert len(pop[0].fitness) == 1
    env.close()


# -- what is wrong with a team


@pytest.mark.parametrize(
    ("observation_spaces", "action_spaces", "more", "message"),
    [
        ({}, {}, {}, "agent_ids has 0 names; allowed are 1 to 1024"),
        (
            [Box(-1, 1, (2,))] * 2,
            [Discrete(2)] * 2,
            {"agent_ids": ["a", "a"]},
            "agent_ids=.*allowed are distinct names",
        ),
        ([Box(-1, 1, (2,))] * 2, [Discrete(2)] * 2, {"agent_ids": [0, 1]}, "agent_ids=.*allowed are distinct names"),
        ([Box(-1, 1, (2,))] * 2000, [Discrete(2)] * 2000, {"agent_ids": range(2000)}, "agent_ids has 2000 names"),
        ({"a": 3}, {"a": Discrete(2)}, {}, "agent 'a' has 3; allowed are spaces"),
        ({"a": Box(-1, 1, (2,))}, {"a": "left"}, {}, "agent 'a' has 'left'; allowed are spaces"),
        ({"a": Text(4)}, {"a": Discrete(2)}, {}, "observation_space=.* is a Text; allowed are Box"),
        (SEES, DOES, {"groups": {"red_0": 3}}, "groups: 3 must be a name"),
        (SEES, {**DOES, "blue_0": Discrete(2)}, {}, r"blue_0.*Discrete\(2\).*blue_1.*Discrete\(3\).*group 'blue'"),
        (SEES, DOES, {"learn_step": 10**11}, r"learn_step=\d+ needs at least .* memory; this machine has .*allowed"),
    ],
)
def test_invalid_teams_are_refused(observation_spaces, action_spaces, more, message):
    with pytest.raises(ConfigurationError, match=message):
        IPPO(observation_spaces, action_spaces, **more)


def test_empty_masks_are_named_in_custom_loops():
    team, seen = a_team(), {agent: np.zeros((2, *space.shape)) for agent, space in SEES.items()}
    half = np.array([[True, True, False, False, True], [True, True, False, False, False]])
    with pytest.raises(ConfigurationError, match=r"action_mask=\[1, 1, 0, 0, 0\] allows no action"):
        team.get_action(seen, {"red_0": {"action_mask": half}})  # the second choice of the second env
    actions = team.get_action(seen, {"red_0": {"action_mask": half[:1].repeat(2, 0)}})[0]
    assert actions["red_0"][:, 1].tolist() == [2, 2]
    with pytest.raises(ConfigurationError, match=r"action_mask=\[0, 0, 0\] allows no action"):
        team.get_action(seen, {"blue_0": {"action_mask": np.zeros((2, 3))}})


# -- invalid envs and populations


@pytest.fixture(scope="module")
def env():
    env = make_multi_agent_vect_envs(WORLD, 2, backend="sync")
    yield env
    env.close()


def changed(spaces, without=(), **others):
    return {agent: space for agent, space in spaces.items() if agent not in without} | others


OTHERS = {
    "fewer agents": ({"without": ["listener_1"]}, r"env has agents .*'listener_1'\]; the team was made for"),
    "fewer groups": ({"without": ["speaker_0"]}, r"env has agents .*; the team was made for .*'listener_0'"),
    "more agents": ({"stranger_0": Discrete(2)}, r"the team was made for .*'stranger_0'"),
    "other spaces": ({"speaker_0": Discrete(7)}, r"agent 'speaker_0' has .*the team was made for Discrete\(7\)"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_an_env_of_other_agents_is_refused_before_training(env, what):
    change, message = OTHERS[what]
    spaces = (changed(its, **change) for its in (env.single_observation_spaces, env.single_action_spaces))
    teams = IPPO.population(2, *spaces, num_envs=2, learn_step=64, net_config=SMALL, seed=1)
    with pytest.raises(ConfigurationError, match=message):
        train_multi_agent_on_policy(env, pop=teams, max_steps=64, evo_steps=64, verbose=False)
    with pytest.raises(ConfigurationError, match=message):
        teams[0].test(env, loop=1)
    assert [team.steps for team in teams] == [[0], [0]]


def test_eval_env_must_have_the_same_agents(env):
    spaces = env.single_observation_spaces, env.single_action_spaces
    teams = IPPO.population(2, *spaces, num_envs=2, learn_step=64, net_config=SMALL, seed=1)
    trials = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["OwnObservation"].make, 2, backend="sync")
    with pytest.raises(ConfigurationError, match=r"eval_env: agent .* has .*; allowed are Box"):
        train_multi_agent_on_policy(env, pop=teams, eval_env=trials, max_steps=64, evo_steps=64, verbose=False)
    assert [team.steps for team in teams] == [[0], [0]]


def test_populations_of_the_other_kind_are_refused(env):
    agents = PPO.population(2, Box(-1, 1, (2,)), Discrete(2), net_config=SMALL)
    for pop in (agents, list(agents)):
        with pytest.raises(ConfigurationError, match=r"cannot .*; allowed are (MultiAgentPopulation|IPPO)"):
            train_multi_agent_on_policy(env, pop=pop, max_steps=64, evo_steps=64, verbose=False)
    teams = MultiAgentPopulation([a_team()])
    for pop in (teams, list(teams)):
        with pytest.raises(ConfigurationError, match=r"cannot .*; allowed are (Population|RLAlgorithm)"):
            train_on_policy(env.vector, pop=pop, max_steps=64, evo_steps=64, verbose=False)


@pytest.mark.parametrize("raw", [WORLD, partial(lambda: parallel_to_aec(WORLD()))], ids=["parallel", "AEC"])
def test_an_env_that_is_not_vectorised_is_refused(raw):
    with pytest.raises(
        ConfigurationError, match="is not a multi-agent vector env; make_multi_agent_vect_envs makes one"
    ):
        train_multi_agent_on_policy(
            raw(), pop=MultiAgentPopulation([a_team()]), max_steps=64, evo_steps=64, verbose=False
        )


def test_duplicated_facts_in_a_saved_document_are_compared(tmp_path):
    """A learner's document repeats envs, rollouts, ranges and spaces of its team; all of them are compared."""
    path = a_team().save_checkpoint(tmp_path / "team")
    document = json.loads((path / "agent.json").read_text())
    both = document.keys() & document["learners"]["blue"].keys()
    compared = {"index", "hp_config", "num_envs", "settings", "algorithm"}
    each_ones_own = {"seed", "architecture", "mut", "fitness", "scores", "steps", "updates", "draws", "variations"}
    assert both == compared | each_ones_own
