"""What agents are paid while they wait or after they have ended: in fitness and in learning."""

from functools import partial

import game_envs as games
import numpy as np
import pytest
import torch
from small_runs import SMALL

from agilerl_like import IPPO, ConfigurationError, MultiAgentPopulation, make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.learning.own_time import own_time
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector

LIVES = {"a_0": "oo..o.oT", "a_1": "ooT", "a_2": "..oooooT"}
STEPS = 7


lives = partial(games.PaysAll, **LIVES)


def team_of(env, **more):
    given = {"seed": 0, "num_envs": env.num_envs, "net_config": SMALL, "batch_size": 32, "learn_step": 64, **more}
    return IPPO(env.single_observation_spaces, env.single_action_spaces, **given)


def collector_of(team, env):
    collector = MultiAgentCollector(
        MultiAgentPopulation([team]), MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn"))
    )
    collector.reset([0])
    return collector


def test_a_successor_has_the_first_episode_of_an_env_whose_last_one_had_ended():
    env = make_multi_agent_vect_envs(lives, 2, backend="sync")
    teams = MultiAgentPopulation([team_of(env, num_envs=1, index=index) for index in range(2)])
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    for _ in range(2):
        collector.collect(STEPS)
        assert collector.pop_scores() == [3.0 * STEPS] * 2
        collector.reset_member(0)


def credited(**more):
    """What each agent's own steps of the first episode are credited with, without discounting."""
    env = make_multi_agent_vect_envs(lives, 1, backend="sync")
    team = team_of(env, gamma=1.0, groups={agent: agent for agent in LIVES}, learn_step=STEPS, batch_size=STEPS, **more)
    collector = collector_of(team, env)
    collector.collect(STEPS)
    found = {}
    for agent, group in collector.groups.items():
        own = own_time(group.experience([0], STEPS), torch.tensor(1.0))
        found[agent] = own.rewards[own.valid > 0].tolist()
    return found


def test_individual_rewards_reach_an_agents_own_steps():
    assert credited() == {"a_0": [1, 3, 2, 1], "a_1": [1, 6], "a_2": [3, 1, 1, 1, 1]}


def test_shared_rewards_continue_after_an_end_or_end_with_it():
    """Every step pays 3 to the team; before its first step agent a_2 is paid 2 itself."""
    assert credited(rewards="sum") == {"a_0": [3, 9, 6, 3], "a_1": [3, 18], "a_2": [2 + 3, 3, 3, 3, 3]}
    assert credited(rewards="sum", death="end")["a_1"] == [3, 3 + 5]  # what it is paid itself
    means = credited(rewards="mean")
    team = [3 / 2, 3 / 2, 3 / 1, 3 / 1, 3 / 2, 3 / 1, 3 / 2]  # of those that act
    assert means["a_2"] == [2 + team[2], *team[3:]]
    assert means["a_1"] == [team[0], sum(team[1:])]


def test_fitness_counts_every_reward():
    env = make_multi_agent_vect_envs(lives, 2, backend="sync")
    assert team_of(env).test(env, loop=2) == 3.0 * STEPS


def test_a_group_learns_nothing_from_a_rollout_after_its_end():
    env = make_multi_agent_vect_envs(lives, 1, backend="sync")
    team = team_of(env, groups={agent: agent for agent in LIVES}, learn_step=3, batch_size=3)
    collector, learner = collector_of(team, env), team.learners["a_1"]
    weights, reports = [], []
    for _ in range(2):  # of one episode, in the first two steps of which the agent acts
        collector.collect(3)
        reports.append(collector.learn()[0])
        weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.network.parameters()]))
    assert torch.equal(*weights)
    assert learner.moments.steps.item() == 4
    assert [bool(torch.isfinite(report["loss"])) for report in reports] == [True, True]  # the mean of the others


@pytest.mark.parametrize(("seed", "rewards"), [*zip(range(5), ["sum", "mean", "sum", "mean", "sum"], strict=True)])
def test_an_agent_ends_itself_for_what_its_team_earns_afterwards(seed, rewards):
    env = make_multi_agent_vect_envs(games.Sacrifice, 8, backend="sync")
    team = team_of(env, rewards=rewards, seed=seed, lr=1e-2, agent_id_one_hot=True, learn_step=64)
    collector = collector_of(team, env)
    for _ in range(25):
        collector.collect(8)
        collector.learn()
    assert team.test(env, loop=1) == 10.0


def test_with_death_end_it_does_not():
    env = make_multi_agent_vect_envs(games.Sacrifice, 8, backend="sync")
    team = team_of(env, rewards="sum", death="end", lr=1e-2, agent_id_one_hot=True, learn_step=64)
    collector = collector_of(team, env)
    for _ in range(25):
        collector.collect(8)
        collector.learn()
    assert team.test(env, loop=1) == 1.0


def test_death_is_saved_and_validated():
    env = make_multi_agent_vect_envs(games.Sacrifice, 1, backend="sync")
    for death in ("continue", "end"):
        team = team_of(env, rewards="sum", death=death)
        assert team.clone().death == death
        assert IPPO.from_documents(*team.to_documents(), device="cpu", where="memory").death == death
    document, tensors = team.to_documents()
    del document["death"]  # of an earlier version, in which a reward of the team ended with an agent
    assert IPPO.from_documents(document, tensors, device="cpu", where="memory").death == "end"
    with pytest.raises(ConfigurationError, match=r"death='never' is unknown.*continue, end"):
        team_of(env, death="never")
    with pytest.raises(ConfigurationError, match="death"):
        MultiAgentPopulation([team_of(env, death="end"), team_of(env, index=1)])


@pytest.mark.slow
def test_players_of_a_turn_based_game_learn_to_win():
    """Of 5 stones the first player wins by taking one, then all that the second one leaves."""
    env = make_multi_agent_vect_envs(lambda: games.Nim(5), 16, backend="sync")
    team = team_of(env, lr=1e-2, learn_step=256, batch_size=64, gamma=1.0)
    collector = collector_of(team, env)
    for _ in range(25):
        collector.collect(16)
        collector.learn()
    team.set_training_mode(False)
    for left, best in ((5, 1), (3, 3), (2, 2), (1, 1)):
        legal = np.arange(1, 4) <= left
        seen = np.eye(6, dtype=np.float32)[left]
        action, _, _, value = team.get_action({"player_0": seen}, {"player_0": {"action_mask": legal}})
        assert action["player_0"].item() + 1 == best
        assert value["player_0"].item() > 0.5
    masks = {"player_1": {"action_mask": np.ones(3, bool)}}
    _, _, _, value = team.get_action({"player_1": np.eye(6, dtype=np.float32)[4]}, masks)
    assert value["player_1"].item() < -0.5  # whatever it takes, the other one takes the rest
