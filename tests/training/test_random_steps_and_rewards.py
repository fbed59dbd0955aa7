"""What happens before learning starts, and rewards as they are learned from, in runs and in hand-written loops."""

import json
import math
import sys

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from duel_envs import Duel
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from small_runs import SMALL

from agilerl_like import (
    IPPO,
    PPO,
    HyperparameterConfig,
    Population,
    RLParameter,
    RolloutBuilder,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.algorithms.learner_host import SettingFunctions
from agilerl_like.algorithms.ppo_learner import learned_rewards
from agilerl_like.cli import main
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.probe_envs import PROBES
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning import ppo_update
from agilerl_like.learning.own_time import own_time
from agilerl_like.learning.rewards import ReturnStatistics, check_reward_transform, transformed
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector, MultiAgentEnvSetup
from agilerl_like.training.probe import solve

ENVS = 4


class FourActions(gymnasium.Env):
    """Episodes of 10 steps; the action taken is the reward."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, actions=None):
        self.action_space = self.action_space if actions is None else actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._step += 1
        return np.full(2, self._step / 10, np.float32), float(np.sum(action)), False, self._step == 10, {}


def collector_of(env, population):
    collector = SingleAgentEnvSetup(env).make_collector(
        population, SingleAgentEnvSetup(env).adapt(env), PhaseTimer(("env", "act", "learn"))
    )
    collector.reset(range(len(population)))
    return collector


def population_of(env, size=1, **settings):
    settings = {"seed": 1, "num_envs": ENVS, "learn_step": 40, "batch_size": 40, "lr": 1e-3} | settings
    return PPO.population(size, env.single_observation_space, env.single_action_space, **settings)


def weights(agent):
    return torch.cat([x.detach().reshape(-1) for x in agent.network.parameters()])


def test_random_actions_are_uniform_and_known_to_the_update():
    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    population = population_of(env, learn_step=4000, batch_size=4000, random_steps=4000)
    with torch.no_grad():  # a policy that always takes action 1
        population[0].network.actor.head.get_parameter("linears.1.bias")[1] += 100
    collector = collector_of(env, population)
    collector.collect(1000)
    (group,) = collector.groups.values()
    rollout = group.experience([0], 1000)
    counts = np.bincount(rollout.actions.flatten().numpy(), minlength=4)
    # chi squared of 4 equal shares with 3 degrees of freedom is below 16.3 with probability .999
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3
    assert bool(rollout.uniform.all())
    stacked = population[0].learner.cohort.stacked.parts[0].stack.module
    log_prob = stacked.actor.distribution.uniform_log_prob(rollout.actions)
    assert log_prob.unique().item() == pytest.approx(-math.log(4))  # -1.386
    env.close()


@pytest.mark.parametrize(
    ("space", "log_prob", "low", "high"),
    [
        (gymnasium.spaces.Box(-2.0, 6.0, (1,)), -math.log(8), -2, 6),
        (gymnasium.spaces.MultiDiscrete([2, 5]), -math.log(10), 0, 4),
        (gymnasium.spaces.MultiBinary(3), -math.log(8), 0, 1),
    ],
)
@pytest.mark.parametrize("squash", [False, True])
def test_uniform_actions_of_every_space(space, log_prob, low, high, squash):
    if squash and not isinstance(space, gymnasium.spaces.Box):
        pytest.skip("only Box actions are squashed")
    agent = PPO(FourActions.observation_space, space, seed=0, squash_output=squash)
    distribution = agent.learner.distribution
    raw = distribution.uniform(distribution.noise((4000,), torch.Generator().manual_seed(0)))
    actions = distribution.to_env(raw).reshape(4000, -1)
    assert distribution.uniform_log_prob(raw).unique().item() == pytest.approx(log_prob)
    assert (actions.min(), actions.max()) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))
    mean, largest = (low + high) / 2, (high - low) / math.sqrt(12) / math.sqrt(4000) * 5
    if isinstance(space, gymnasium.spaces.Box):
        assert abs(actions.mean() - mean) < largest  # five standard errors


def test_uniform_actions_are_legal():
    agent = PPO(FourActions.observation_space, FourActions.action_space, seed=0)
    distribution, mask = agent.learner.distribution, torch.tensor([True, False, True, False]).expand(100, 4)
    raw = distribution.uniform(distribution.noise((100,), torch.Generator().manual_seed(0)), mask)
    assert set(raw.flatten().tolist()) == {0, 2}
    assert distribution.uniform_log_prob(raw, mask).unique().item() == pytest.approx(-math.log(2))


def test_only_the_first_steps_of_each_member_are_random():
    # 4 envs: 10 random env steps are 3 steps of each env, 5 are 2
    env = make_vect_envs(FourActions, num_envs=2 * ENVS, backend="sync")
    population = population_of(env, 2, random_steps=10)
    population[1].random_steps = 5
    collector = collector_of(env, population)
    found = []
    for _ in range(2):  # rollouts
        collector.collect(10)
        (group,) = collector.groups.values()
        found.append(group.experience([0, 1], 10).uniform[:, :, 0].int().tolist())
        collector.learn()
    assert found[0] == [[1] * 3 + [0] * 7, [1] * 2 + [0] * 8]
    assert found[1] == [[0] * 10] * 2
    env.close()


def test_weights_are_the_first_ones_until_learning_starts():
    env = make_vect_envs(FourActions, num_envs=2 * ENVS, backend="sync")
    population = population_of(env, 2, learning_starts=80)  # two rollouts of 40 env steps
    population[1].learning_starts = 0
    first = [weights(agent) for agent in population]
    collector, reported = collector_of(env, population), []
    for _ in range(3):
        collector.collect(10)
        reported.append(sorted(collector.learn()))
        if len(reported) == 2:
            assert torch.equal(weights(population[0]), first[0])
            assert bool(population[0].network.observation_norm.count > 0)  # normalisers are fed before
            assert population[0].learner.optimizer.steps.item() == 0
    assert reported == [[1], [1], [0, 1]]
    assert not torch.equal(weights(population[0]), first[0])
    env.close()


def test_a_team_waits_and_acts_randomly_by_its_own_env_steps():
    env = make_multi_agent_vect_envs(next(iter(MULTI_AGENT_PROBES.values())).make, ENVS, backend="sync")
    settings = {"random_steps": 8, "learning_starts": 40, "learn_step": 40, "batch_size": 20, "num_envs": ENVS}
    teams = IPPO.population(1, env.single_observation_spaces, env.single_action_spaces, seed=0, **settings)
    setup = MultiAgentEnvSetup(env)
    collector = setup.make_collector(teams, setup.adapt(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    reported = []
    for _ in range(2):
        collector.collect(10)
        reported.append(len(collector.learn()))
    assert reported == [0, 1]
    assert {learner.env_steps for learner in teams[0].learners.values()} == {80}
    env.close()


def test_a_second_run_may_be_shorter_than_learning_starts_where_a_group_is_frozen():
    env = make_multi_agent_vect_envs(Duel, ENVS, backend="sync")
    settings = {"learning_starts": 40, "learn_step": 40, "batch_size": 20, "num_envs": ENVS, "net_config": SMALL}
    teams = IPPO.population(
        1, env.single_observation_spaces, env.single_action_spaces, seed=0, frozen_groups=["blue"], **settings
    )
    with pytest.raises(ConfigurationError, match="learning_starts=40 is more than 0"):
        train_multi_agent_on_policy(env, pop=teams, max_steps=40, evo_steps=40, verbose=False)
    for steps in (80, 40):
        train_multi_agent_on_policy(env, pop=teams, max_steps=steps, evo_steps=40, verbose=False)
    assert {name: learner.env_steps for name, learner in teams[0].learners.items()} == {"red": 120, "blue": 0}
    env.close()


def test_a_frozen_group_acts_by_its_policy_from_the_first_step():
    """Its env steps are not counted, so the random steps of its team would begin again at every rollout."""
    env = make_multi_agent_vect_envs(Duel, ENVS, backend="sync")
    settings = {"random_steps": 8, "learn_step": 40, "batch_size": 20, "num_envs": ENVS}
    teams = IPPO.population(
        1, env.single_observation_spaces, env.single_action_spaces, seed=0, frozen_groups=["blue"], **settings
    )
    setup = MultiAgentEnvSetup(env)
    collector = setup.make_collector(teams, setup.adapt(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    random = {"red": [], "blue": []}
    for _ in range(2):
        collector.collect(10)
        for name, group in collector.groups.items():
            uniform = group.experience([0], 10).uniform
            random[name].append(0 if uniform is None else int(uniform[0, :, 0].sum()))
        collector.learn()
    assert random == {"red": [2, 0], "blue": [0, 0]}  # 8 env steps of 4 envs
    env.close()


def prefer_one_action_(actor):
    """Move a new policy away from the uniform one."""
    with torch.no_grad():
        actor.head.get_parameter("linears.1.bias")[1] += 1


def test_a_hand_written_loop_acts_randomly_and_waits():
    agent = PPO(FourActions.observation_space, FourActions.action_space, seed=0, num_envs=ENVS, learn_step=8,
                batch_size=8, random_steps=8, learning_starts=8)  # fmt: skip
    prefer_one_action_(agent.actor)
    log_probs, before = [], weights(agent)
    for _ in range(2):
        states, steps = [np.zeros((ENVS, 2), np.float32)] * 2, []
        for state in states:
            steps.append(agent.get_action(state))
        actions, its_log_probs, _, values = (list(column) for column in zip(*steps, strict=True))
        log_probs.append(np.concatenate(its_log_probs))
        flags = [np.zeros(ENVS)] * 2
        rewards = [np.ones(ENVS)] * 2
        loss = agent.learn((states, actions, its_log_probs, rewards, flags, values, states[0], flags[0]))
        assert math.isnan(loss) == (len(log_probs) == 1)
        assert torch.equal(weights(agent), before) == (len(log_probs) == 1)
    assert np.allclose(log_probs[0], -math.log(4))
    assert not np.isclose(log_probs[1], -math.log(4)).any()


def test_a_copy_and_a_loaded_agent_take_as_many_random_steps(tmp_path):
    settings = {"num_envs": ENVS, "learn_step": 16, "batch_size": 16, "random_steps": 8}
    agent = PPO(FourActions.observation_space, FourActions.action_space, seed=0, **settings)
    prefer_one_action_(agent.actor)
    agent.get_action(np.zeros((ENVS, 2)))
    copies = [agent.clone(), PPO.load(agent.save_checkpoint(tmp_path / "agent"))]
    for is_random in (True, False):
        for one in (agent, *copies):
            *_, log_prob, _, _ = one.get_action(np.zeros((ENVS, 2)))
            assert np.allclose(log_prob, -math.log(4)) == is_random
    assert agent.clone(index=1).learner._random_steps_taken == 0


def test_random_steps_of_a_team_count_where_agents_are_absent():
    names = ["a_0", "a_1", "a_2"]
    spaces = dict.fromkeys(names, FourActions.observation_space), dict.fromkeys(names, FourActions.action_space)
    team = IPPO(*spaces, seed=0, num_envs=2, learn_step=16, batch_size=16, random_steps=4)
    prefer_one_action_(team.actors["a"])
    for is_random in (True, True, False):
        _, log_probs, *_ = team.get_action({"a_1": np.zeros((2, 2))})
        assert np.allclose(log_probs["a_1"], -math.log(4)) == is_random


def test_a_run_that_ends_before_learning_starts_is_refused():
    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    (agent,) = population_of(env, learning_starts=80)
    agent.learner.check_run(120, None, 1)
    with pytest.raises(ConfigurationError, match=r"learning_starts=80 is more than 40, .* max_steps=81.*at most 40"):
        train_on_policy(env, pop=Population([agent]), max_steps=81, evo_steps=40, eval_loop=1, verbose=False)
    agent.learner.env_steps = 40  # in earlier runs
    agent.learner.check_run(80, None, 1)
    (agent,) = population_of(env, learning_starts=8, hp_config=HyperparameterConfig(learning_starts=RLParameter(0, 90)))
    with pytest.raises(ConfigurationError, match="learning_starts=90 is more than 40"):
        agent.learner.check_run(80, None, 1)
    env.close()


def test_rollouts_before_learning_starts_are_no_updates_of_max_updates(tmp_path):
    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    limits = {"max_steps": 400, "evo_steps": 40, "eval_loop": 1, "max_updates": 2, "verbose": False}
    (agent,), _ = train_on_policy(env, pop=population_of(env, learning_starts=120), **limits)
    env.close()
    assert (agent.learner.updates, agent.learner.env_steps) == (5, 200)  # 3 rollouts of 40 env steps before
    loaded = PPO.load(agent.save_checkpoint(tmp_path / "agent"))
    assert loaded.learner.updates_without_learning == agent.clone().learner.updates_without_learning == 3


def test_random_runs_resume_to_the_bit(tmp_path):
    def run(folder, *stages):
        for max_steps in stages:
            env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
            settings = {"random_steps": 100, "learning_starts": 60, "normalize_reward": True, "lr_schedule": "kl"}
            population = population_of(env, 2, target_kl=0.1, **settings)
            resume = {"resume": folder} if folder.exists() else {"run_dir": folder}
            population, _ = train_on_policy(
                env,
                pop=population,
                max_steps=max_steps,
                evo_steps=80,
                eval_loop=1,
                checkpoint=80,
                verbose=False,
                **resume,
            )
            env.close()
        return population

    whole, parts = run(tmp_path / "whole", 240), run(tmp_path / "parts", 160, 240)
    for ours, theirs in zip(whole, parts, strict=True):
        assert torch.equal(weights(ours), weights(theirs))
        assert ours.learner.moments.lr_scale.item() == theirs.learner.moments.lr_scale.item() != 1.0
        assert all(map(torch.equal, ours.learner.return_statistics, theirs.learner.return_statistics))
        assert ours.learner.env_steps == theirs.learner.env_steps == 240


# -- rewards


def rollout_of(rewards, ended=None):
    rewards = torch.tensor(rewards, dtype=torch.float32)  # [T, P, E]
    ended = torch.zeros_like(rewards) if ended is None else torch.tensor(ended, dtype=torch.float32)
    nothing = torch.zeros(*rewards.shape, 1)
    none = FinalObservations.none(nothing, rewards.shape[1])
    ones = torch.ones_like(rewards)
    return Rollout.from_steps(nothing, nothing, rewards, ended, ended, ones, nothing[0], none, None, nothing[0])


def learners_of(*settings):
    agents = [
        PPO(FourActions.observation_space, FourActions.action_space, index=i, **its) for i, its in enumerate(settings)
    ]
    return agents, [agent.learner for agent in agents]


def test_rewards_of_a_standard_deviation_of_two_become_one():
    # with gamma 0 the discounted return is the reward: +-2 has mean 0 and standard deviation 2
    agents, learners = learners_of({"gamma": 0.0, "normalize_reward": True}, {})
    rewards = [[[2.0], [2.0]], [[-2.0], [-2.0]]]
    found = learned_rewards(learners, rollout_of(rewards)).rewards
    assert found[0, :, 0].tolist() == pytest.approx([1.0, -1.0])
    assert found[1, :, 0].tolist() == [2.0, -2.0]  # the other member's are its own
    assert agents[0].learner.return_statistics.moments[0] == 2


@given(
    rewards=st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=4, max_size=20),
    gamma=st.sampled_from([0.0, 0.5, 0.9]),
    data=st.data(),
)
def test_the_scale_is_that_of_stable_baselines_whatever_the_rollouts(rewards, gamma, data):
    """VecNormalize: R <- gamma R + r, which joins the variance; R <- 0 where the episode ended."""
    total, sums = 0.0, []
    for reward, ended in rewards:
        total = gamma * total + reward
        sums.append(total)
        total = 0.0 if ended else total
    cut = data.draw(st.integers(1, len(rewards) - 1))
    statistics = ReturnStatistics.new()
    for part in (rewards[:cut], rewards[cut:]):
        own, ended = torch.tensor(part, dtype=torch.float64).unbind(1)
        statistics = statistics.updated(own.unsqueeze(1), 1 - ended.unsqueeze(1), torch.ones(len(part), 1), gamma)
    assert statistics.scale == pytest.approx(math.sqrt(np.var(sums) + 1e-8), rel=1e-6)


def test_rewards_paid_to_a_waiting_agent_are_part_of_its_return():
    # acts in steps 0 and 2, and is paid 1 while it waits: R is 0, then gamma * 1 + 0 = .5; mean .25, deviation .25
    rewards, always, valid = torch.tensor([[0.0], [1.0], [0.0]]), torch.ones(3, 1), torch.tensor([[1.0], [0.0], [1.0]])
    found = ReturnStatistics.new().updated(rewards, always, valid, 0.5)
    assert found.moments.tolist() == pytest.approx([2.0, 0.25, 2 * 0.25**2])


def test_what_an_agent_is_paid_where_its_episode_ends_while_it_waits_is_part_of_its_returns():
    # of two envs R is 0 where the agent acts, and .3 and .7 at the end: mean .25, variance .58 / 4 - .0625 = .0825
    agents, learners = learners_of({"gamma": 0.5, "normalize_reward": True})
    acts = torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]])
    rewards, waits = torch.tensor([[[0.0, 0.0]], [[0.3, 0.7]]]), torch.stack([1 - acts, acts])
    nothing = torch.zeros(2, 1, 2, 1)
    none = FinalObservations.none(nothing, 1)
    ended = 1 - acts
    rollout = Rollout.from_steps(
        nothing, nothing, rewards, ended, ended, acts, nothing[0], none, None, nothing[0], waits
    )
    found = learned_rewards(learners, rollout).rewards[0, 1]
    assert agents[0].learner.return_statistics.moments.tolist() == pytest.approx([4, 0.25, 4 * 0.0825])
    assert found.tolist() == pytest.approx([0.3 / math.sqrt(0.0825), 0.7 / math.sqrt(0.0825)])


class Mortal(ParallelEnv):
    """Agent a ends after two of four steps; b is paid 1 in every step, and a with `pay` 1e-9 after its end."""

    def __init__(self, pay=0.0):
        self.metadata, self.possible_agents, self.render_mode, self.pay = {"name": "mortal"}, ["a", "b"], None, pay

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1, 1, (1,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.count, self.agents = 0, ["a", "b"]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.count += 1
        acted, over = list(self.agents), self.count == 4
        rewards = {"b": 1.0, **({"a": 0.0} if "a" in acted else {"a": self.pay} if self.pay else {})}
        ends = {agent: over or (agent == "a" and self.count == 2) for agent in acted}
        self.agents = [agent for agent in acted if not ends[agent]]
        seen = {agent: np.zeros(1, np.float32) for agent in acted}
        return seen, rewards, ends, dict.fromkeys(acted, False), {agent: {} for agent in acted}


def mortal_rollout(steps=8, pay=0.0, **settings):
    """Return the learner of agent a and its rollout of two episodes."""
    env = make_multi_agent_vect_envs(Mortal, 1, backend="sync", env_kwargs={"pay": pay})
    spaces = env.single_observation_spaces, env.single_action_spaces
    team = IPPO.population(1, *spaces, num_envs=1, learn_step=steps, batch_size=steps, gamma=0.5, seed=1, **settings)
    collector = MultiAgentCollector(team, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    collector.collect(steps)
    env.close()
    return team[0].learners["a"], collector.groups["a"].experience([0], steps)


def test_what_an_agent_is_paid_after_its_end_is_no_part_of_the_next_episodes_returns():
    learner, rollout = mortal_rollout(normalize_reward=True, rewards="sum")
    assert rollout.rewards[0, :, 0].tolist() == [1.0] * 8  # b's, also after the end of a
    learned_rewards([learner], rollout)
    assert learner.return_statistics.moments[:2].tolist() == pytest.approx([4, 1.25])  # R is 1 and 1.5 in each episode


@pytest.mark.parametrize("pay", [0.0, 1e-9])
def test_a_shift_of_rewards_is_not_paid_for_steps_in_which_an_agent_does_not_act(pay):
    learner, rollout = mortal_rollout(pay=pay, reward_transform={"shift": 1.0})
    found = own_time(learned_rewards([learner], rollout), torch.tensor([[0.5]])).rewards[:, 0, 0]
    acted = rollout.valid[0, :, 0] > 0
    # an env that pays an agent after its end has its payments transformed, too: two of 1 + 1e-9
    assert found[acted].tolist() == pytest.approx([1, 1 + (0.75 if pay else 0)] * 2)


def test_rewards_are_transformed_then_normalised_then_clipped():
    settings = {"reward_transform": {"scale": 2.0, "shift": 1.0, "clip": 4.0}, "reward_clip": 2.5}
    agents, learners = learners_of(settings)
    # 2 x + 1 = 3, -5, 9; to +-4: 3, -4, 4; to +-2.5
    found = learned_rewards(learners, rollout_of([[[1.0]], [[-3.0]], [[4.0]]])).rewards
    assert found.flatten().tolist() == [2.5, -2.5, 2.5]
    assert agents[0].reward_clip == 2.5


def test_normalised_rewards_are_clipped_to_ten_by_default():
    agents, learners = learners_of({"gamma": 0.0, "normalize_reward": True})
    rewards = [[[0.0]]] * 999 + [[[1.0]]]  # standard deviation sqrt(.001 - .001²) = .0316: 31.6 to 10
    assert learned_rewards(learners, rollout_of(rewards)).rewards.max().item() == 10.0
    assert len(agents) == 1


def test_a_function_sees_the_progress_of_the_run():
    seen = []

    def halved(rewards, steps, max_steps):
        seen.append((tuple(rewards.shape), steps, max_steps))
        return rewards / 2

    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    population = population_of(env, 2, reward_transform=halved)
    train_on_policy(env, pop=population, max_steps=80, evo_steps=80, eval_loop=1, verbose=False)
    assert seen == [((10, 2, ENVS), 0, 80), ((10, 2, ENVS), 40, 80)]
    for agent in (*population, population.best):  # a hand-written loop after the run is not at its end for ever
        learned_rewards([agent.learner], rollout_of([[[1.0]]]))
        assert seen[-1] == ((1, 1, 1), agent.learner.env_steps, None)
    env.close()


def test_a_function_that_members_share_sees_the_steps_of_each():
    def counted(rewards, steps, max_steps):
        return rewards + steps

    _, learners = learners_of({"reward_transform": counted}, {"reward_transform": counted}, {})
    learners[1].env_steps = 50
    assert learned_rewards(learners, rollout_of([[[1.0]] * 3])).rewards.flatten().tolist() == [1.0, 51.0, 1.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rewards, steps, max_steps: rewards[0], r"returned shape \(1, 1\); allowed is \(2, 1, 1\)"),
        (lambda rewards, steps, max_steps: 1 / 0, "failed: ZeroDivisionError"),
        ("package.module:function", "is a function, which a file cannot store; set agent.reward_transform to it"),
    ],
)
def test_faults_of_a_function_are_one_error(function, message):
    with pytest.raises(ConfigurationError, match=message):
        transformed(torch.ones(2, 1, 1), check_reward_transform(function), 0, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")
def test_truncation_is_termination_without_bootstrap():
    """EndlessTruncation: reward 1, a limit of 1 to 8 steps, gamma .9."""
    record = solve(PROBES["EndlessTruncation"], bootstrap_truncated=False)
    # the mean of (1 - .9^k) / .1 over k = 1 … 8
    assert record.answers[0].found[0] == pytest.approx(3.59, abs=0.2)
    assert solve(PROBES["EndlessTruncation"]).answers[0].found[0] == pytest.approx(10.0, abs=1.0)


REWARDS = """
def doubled(rewards, steps, max_steps):
    return 2 * rewards
"""


def test_a_configuration_names_a_function_by_its_import_path(tmp_path, monkeypatch):
    (tmp_path / "reward_functions_of_a_test.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    run = {"name": "r", "dir": str(tmp_path), "plot": False, "report": False}
    text = {
        "seed": 1,
        "environment": {"id": "CartPole-v1", "num_envs": 4, "backend": "sync"},
        "algorithm": {
            "reward_transform": "reward_functions_of_a_test:doubled",
            "lr_schedule": "linear",
            "lr_end": 1e-5,
            "learn_step": 64,
            "batch_size": 32,
        },
        "population": {"size": 2},
        "training": {"max_steps": 128, "evo_steps": 64, "eval_loop": 1},
        "run": run,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(text))
    assert main(["train", str(tmp_path / "c.yaml"), "--print-config"]) == 0  # imports nothing
    assert "reward_functions_of_a_test" not in sys.modules
    assert main(["train", str(tmp_path / "c.yaml")]) == 0
    stored = PPO.load(tmp_path / "r" / "best")
    assert stored.reward_transform == "reward_functions_of_a_test:doubled"
    assert main(["resume", str(tmp_path / "r"), "--trust", "--training.max-steps", "192"]) == 0
    population = Population.load(tmp_path / "r")
    assert [agent.steps[-1] for agent in population] == [192, 192]
    text["algorithm"]["reward_transform"] = "reward_functions_of_a_test:absent"
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(text))
    assert main(["train", str(tmp_path / "c.yaml"), "--run.name", "other"]) == 2


def test_agents_keep_functions_when_they_are_sent_or_resumed():
    function, schedule = (lambda rewards, steps, max_steps: rewards), (lambda progress: 1 - progress / 2)
    agent, _ = learners_of({"reward_transform": function, "lr_schedule": schedule})
    document, tensors = agent[0].to_documents()
    sent = PPO.from_documents(json.loads(json.dumps(document)), tensors, device="cpu", where="memory")
    assert isinstance(sent.reward_transform, str)
    SettingFunctions.of(agent[0]).set_in(sent)
    assert (sent.reward_transform, sent.lr_schedule) == (function, schedule)


def test_agents_keep_functions_whose_names_a_checkpoint_has(tmp_path):
    function, schedule = (lambda rewards, steps, max_steps: rewards), (lambda progress: 1 - progress / 2)
    own = {"reward_transform": function, "schedules": {"ent_coef": schedule}, "lr_schedule": schedule}
    (agent, without), _ = learners_of(own, {})
    hooks = []
    agent.register_mutation_hook(hooks.append)
    agent.load_checkpoint(agent.save_checkpoint(tmp_path / "agent"))
    assert (agent.reward_transform, dict(agent.schedules), agent.lr_schedule) == (
        function,
        {"ent_coef": schedule},
        schedule,
    )
    assert agent._hooks == [hooks.append]
    agent.load_checkpoint(without.save_checkpoint(tmp_path / "without"))  # which has no functions
    assert (agent.reward_transform, dict(agent.schedules), agent.lr_schedule) == (None, {}, None)


@pytest.mark.parametrize("normalize", [True, False])
def test_random_actions_of_a_hand_written_loop_are_known_to_the_update(normalize, monkeypatch):
    found = []
    plain = ppo_update.compute_advantages

    def recorded(*args, **kwargs):
        batch, explained = plain(*args, **kwargs)
        found.append(batch.old_log_probs.flatten().tolist())
        return batch, explained

    monkeypatch.setattr(ppo_update, "compute_advantages", recorded)
    agent = PPO(
        FourActions.observation_space, gymnasium.spaces.Box(-2.0, 2.0, (1,)), seed=0, num_envs=2, learn_step=16,
        batch_size=16, update_epochs=1, random_steps=24, normalize_observation=normalize,
    )  # fmt: skip
    obs, flags = np.zeros((2, 2), np.float32), np.zeros(2, np.bool_)
    for _ in range(2):
        builder = RolloutBuilder(agent, autoreset="SameStep")
        for _ in range(8):
            action, *_ = agent.get_action(obs)
            builder.add(obs, action, np.ones(2), flags, flags, obs, {})
        agent.learn(builder)
    uniform = [value == pytest.approx(-math.log(4)) for its in found for value in its]
    assert uniform == [True] * 24 + [False] * 8


@pytest.mark.parametrize("event", ["reset", "replacement"])
def test_normalised_rewards_of_new_episodes_do_not_continue_those_before(event):
    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    population = population_of(env, learn_step=4 * ENVS, batch_size=16, normalize_reward=True)
    collector = collector_of(env, population)
    learner = population[0].learner
    collector.collect(4)  # of 10 steps of an episode
    learned_rewards([learner], collector.groups[""].experience([0], 4))
    moments = learner.return_statistics.moments
    assert len(learner.return_statistics.returns) == ENVS
    if event == "reset":
        collector.reset([0])
    else:  # the running episodes are those of the member that was replaced
        collector.reset_member(0)
    assert len(learner.return_statistics.returns) == 0
    assert torch.equal(learner.return_statistics.moments, moments)
    loaded = PPO.from_documents(*population[0].to_documents(), device="cpu", where="memory")
    assert all(map(torch.equal, loaded.learner.return_statistics, learner.return_statistics))
    env.close()


def test_normalised_rewards_of_a_shortened_rollout_do_not_continue_those_of_steps_that_it_leaves_out():
    env = make_vect_envs(FourActions, num_envs=ENVS, backend="sync")
    agents = population_of(env, learn_step=12 * ENVS, batch_size=16, normalize_reward=True)
    collector, agent = collector_of(env, agents), agents[0]
    collector.collect(12)
    collector.learn()
    before = agent.learner.return_statistics
    collector.collect(8)
    agent.learn_step = 4 * ENVS
    collector.collect(1)
    rollout = collector.groups[""].experience([0], 4)
    collector.learn()
    own = rollout.rewards[0], rollout.continues[0], rollout.valid[0]
    expected = before.of_new_episodes().updated(*own, agent.gamma)
    assert all(map(torch.equal, agent.learner.return_statistics, expected))
    env.close()
