"""`evaluate`: returns on fresh episodes under each way of drawing actions, and `agilerl-like eval`."""

import math
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from small_runs import SMALL

from agilerl_like import (
    IPPO,
    PPO,
    TD3,
    ConfigurationError,
    OpenAIES,
    evaluate,
    make_multi_agent_vect_envs,
    make_vect_envs,
)
from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.cli.evaluate import _write_result, _write_returns_by_agent
from agilerl_like.errors import EnvStepError
from agilerl_like.evaluation.policies import SampledPolicy, SeededEpisodes
from agilerl_like.networks import make_distribution
from agilerl_like.networks.sampling import Sampling

DRAWS = 10_000
LOGITS = torch.tensor([0.0, math.log(2), math.log(4)])


def shares(sampling, space, outputs, mask=None):
    """The shares of the categories of one discrete action in many draws."""
    distribution, rule = make_distribution(space), Sampling.parse(sampling)
    noise = distribution.noise((DRAWS,), torch.Generator().manual_seed(1))
    drawn = rule.draw(distribution, outputs.expand(DRAWS, -1), noise, None if mask is None else mask.expand(DRAWS, -1))
    sizes = getattr(distribution, "nvec", [2, 2])
    columns = zip(drawn.unbind(-1), sizes, strict=True)
    return [torch.bincount(column.long(), minlength=size).div(DRAWS).tolist() for column, size in columns]


class TestSampling:
    @pytest.mark.parametrize(
        ("sampling", "expected"),
        [
            ("sample", [1 / 7, 2 / 7, 4 / 7]),
            ("temperature(1)", [1 / 7, 2 / 7, 4 / 7]),
            ("temperature(0.5)", [1 / 21, 4 / 21, 16 / 21]),  # squares of 1, 2, 4
            ("top_k(2)", [0, 1 / 3, 2 / 3]),
            ("bottom_k(2)", [1 / 3, 2 / 3, 0]),
            ("top_k(1)", [0, 0, 1]),
            ("bottom_k(1)", [1, 0, 0]),
            ("top_k(9)", [1 / 7, 2 / 7, 4 / 7]),
            ("greedy", [0, 0, 1]),
        ],
    )
    def test_shares_of_three_actions(self, sampling, expected):
        (found,) = shares(sampling, spaces.Discrete(3), LOGITS)
        assert found == pytest.approx(expected, abs=0.02)

    def test_only_legal_actions_count(self):
        mask = torch.tensor([True, True, False])
        for sampling, expected in (
            ("sample", [1 / 3, 2 / 3]),
            ("top_k(1)", [0, 1]),
            ("bottom_k(1)", [1, 0]),
            ("top_k(3)", [1 / 3, 2 / 3]),
        ):
            (found,) = shares(sampling, spaces.Discrete(3), LOGITS, mask)
            assert found[:2] == pytest.approx(expected, abs=0.02)

    def test_a_low_temperature_takes_no_illegal_action(self):
        outputs, mask = torch.tensor([-0.01, -0.02, 1.0]), torch.tensor([True, True, False])
        assert shares("temperature(1e-12)", spaces.Discrete(3), outputs, mask) == [[1, 0, 0]]

    def test_each_variable_of_a_multi_discrete_action_has_its_own_choices(self):
        first, second = shares("top_k(1)", spaces.MultiDiscrete([3, 2]), torch.cat([LOGITS, torch.tensor([1.0, 0.0])]))
        assert (first, second) == ([0, 0, 1], [1, 0])
        first, second = shares("bottom_k(2)", spaces.MultiDiscrete([3, 2]), torch.cat([LOGITS, torch.zeros(2)]))
        assert first + second == pytest.approx([1 / 3, 2 / 3, 0, 0.5, 0.5], abs=0.02)

    def test_bits(self):
        outputs = torch.tensor([math.log(3), -math.log(3)])  # 1 with 3/4 and 1/4
        for sampling, expected in (
            ("sample", [0.75, 0.25]),
            ("temperature(0.5)", [0.9, 0.1]),  # odds 9 : 1
            ("top_k(1)", [1, 0]),
            ("bottom_k(1)", [0, 1]),
            ("top_k(2)", [0.75, 0.25]),
        ):
            found = [column[1] for column in shares(sampling, spaces.MultiBinary(2), outputs)]
            assert found == pytest.approx(expected, abs=0.02)

    def test_temperature_scales_the_variance_of_a_gaussian(self):
        distribution = make_distribution(spaces.Box(-1, 1, (1,)), log_std=math.log(0.5))
        noise = distribution.noise((DRAWS,), torch.Generator().manual_seed(1))
        for temperature, sampling in ((1, "sample"), (4, "temperature(4)"), (0.25, "temperature(0.25)")):
            drawn = Sampling.parse(sampling).draw(distribution, torch.full((DRAWS, 1), 0.2), noise)
            assert float(drawn.detach().var()) == pytest.approx(0.25 * temperature, rel=0.05)
            assert float(drawn.detach().mean()) == pytest.approx(0.2, abs=0.04)

    @pytest.mark.parametrize(
        "text", ["best", "temperature", "temperature(0)", "temperature(inf)", "top_k(0)", "top_k(1.5)"]
    )
    def test_refuses_others(self, text):
        with pytest.raises(ConfigurationError, match=r"sampling='.*'; allowed are greedy, sample, temperature\(t\)"):
            Sampling.parse(text)


def population(env_id="CartPole-v1", size=3, **settings):
    env = gym.make(env_id)
    return PPO.population(size, env.observation_space, env.action_space, **{"net_config": SMALL, "seed": 2, **settings})


class TestEvaluate:
    def test_shapes_and_statistics(self):
        played = evaluate(population(), "CartPole-v1", episodes=6, seed=1)
        assert played.returns.shape == played.lengths.shape == played.infos.shape == (3, 6)
        np.testing.assert_allclose(played.mean, played.returns.mean(1))
        np.testing.assert_allclose(played.std, played.returns.std(1))
        np.testing.assert_array_equal(played.returns, played.lengths)  # CartPole pays 1 a step
        assert set(map(type, played.infos.ravel())) == {dict}

    def test_episodes_can_be_repeated_by_hand_with_their_seeds(self):
        agents = population(size=2)
        played = evaluate(agents, "CartPole-v1", episodes=34, seed=1)
        assert played.seeds.shape == (2, 34)
        np.testing.assert_array_equal(*played.seeds)
        env = gym.make("CartPole-v1")
        for episode in (0, 33):  # of the first and of the last round
            observation, _ = env.reset(seed=int(played.seeds[0, episode]))
            total, done = 0.0, False
            while not done:
                action, _ = agents[0].predict(observation, deterministic=True)
                observation, reward, terminated, truncated, _ = env.step(action)
                total, done = total + reward, terminated or truncated
            assert total == played.returns[0, episode]

    def test_agents_play_the_same_seeds_alone_and_together(self):
        agents = population()
        for sampling in ("greedy", "sample"):
            together = evaluate(agents, "CartPole-v1", 4, 7, sampling)
            for agent, returns in zip(agents, together.returns, strict=True):
                np.testing.assert_array_equal(evaluate(agent, "CartPole-v1", 4, 7, sampling).returns[0], returns)
        other = evaluate(agents, "CartPole-v1", 4, 8)
        assert not np.array_equal(other.returns, evaluate(agents, "CartPole-v1", 4, 7).returns)

    def test_an_episode_does_not_depend_on_those_beside_it(self):
        """35 episodes take two rounds of 32 and 3 rows; the first three alone take one."""
        agent = population(size=1)[0]
        many = evaluate(agent, "CartPole-v1", 35, 3, "sample").returns[0]
        np.testing.assert_array_equal(evaluate(agent, "CartPole-v1", 3, 3, "sample").returns[0], many[:3])
        assert len(set(many)) > 5

    def test_a_given_env_of_any_kind(self):
        agent = population(size=1)[0]
        expected = evaluate(agent, "CartPole-v1", 3, 1, "sample").returns
        with_many_rows = make_vect_envs("CartPole-v1", 2)
        for env in (gym.make("CartPole-v1"), with_many_rows, gym.make_vec("CartPole-v1", 2)):
            np.testing.assert_array_equal(evaluate(agent, env, 3, 1, "sample").returns, expected)
            env.close()

    def test_recurrent_agents_and_boxes(self):
        agent = population("Pendulum-v1", 1, recurrent=True)[0]
        cold, hot = (evaluate(agent, "Pendulum-v1", 2, 1, f"temperature({t})").returns for t in (1e-12, 1.0))
        np.testing.assert_allclose(cold, evaluate(agent, "Pendulum-v1", 2, 1).returns, rtol=1e-3)
        assert not np.allclose(hot, cold)
        with pytest.raises(ConfigurationError, match=r"sampling=top_k\(2\) needs discrete actions"):
            evaluate(agent, "Pendulum-v1", 2, 1, "top_k(2)")

    @pytest.mark.parametrize("sampling", ["temperature(4)", "top_k(2)"])
    def test_a_deterministic_policy_has_no_probabilities(self, sampling):
        env = gym.make("Pendulum-v1")
        agent = TD3(env.observation_space, env.action_space, net_config=SMALL, seed=0)
        with pytest.raises(ConfigurationError, match=rf"sampling={re.escape(sampling)} needs .* are greedy and sample"):
            evaluate(agent, "Pendulum-v1", 1, 1, sampling)

    def test_cuts_long_episodes(self):
        played = evaluate(population("Pendulum-v1"), "Pendulum-v1", 2, 1, max_steps=5)
        assert (played.lengths == 5).all()

    def test_training_mode_is_restored(self):
        agent = population(size=1)[0]
        evaluate(agent, "CartPole-v1", 1, 1, "sample")
        assert agent.training

    def test_refuses(self):
        agents = population()
        with pytest.raises(ValueError, match="episodes=0 must be at least 1"):
            evaluate(agents, "CartPole-v1", 0)
        with pytest.raises(ConfigurationError, match=r"env='Acrobot-v1' has .*; the agent was made for"):
            evaluate(agents, "Acrobot-v1", 1)
        with pytest.raises(ConfigurationError, match="agents=None; allowed are an agent, a population"):
            evaluate(None, "CartPole-v1")
        with pytest.raises(ConfigurationError, match="allowed are an agent, a population"):
            evaluate([], "CartPole-v1")
        with pytest.raises(ConfigurationError, match="all agents need the same"):
            evaluate([agents[0], population("Acrobot-v1")[0]], "CartPole-v1")


def test_evolution_strategies_have_one_action_for_each_observation():
    space, outputs = spaces.Discrete(3), LOGITS
    agent = OpenAIES(spaces.Box(-1, 1, (2,)), space, net_config=SMALL, num_envs=2, seed=0)
    rule = Sampling.parse("sample").of_policy(agent.learner.distribution, is_deterministic=True)
    assert rule.draw(agent.learner.distribution, outputs, torch.zeros(3)).item() == 2
    policy = SampledPolicy(agent.learner, Sampling.parse("sample"), SeededEpisodes(None))
    x, state = torch.zeros(4, 2), torch.zeros(4, 0, 0, 0)
    actions, _ = policy(x, None, state)
    assert (actions == agent.predict(np.zeros((4, 2), np.float32))[0]).all()
    assert (
        policy.log_prob_and_value(x, state, torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64), None)[0] == 0
    ).all()
    for sampling in ("temperature(2)", "top_k(1)"):
        with pytest.raises(ConfigurationError, match="allowed are greedy and sample, which are the same"):
            SampledPolicy(agent.learner, Sampling.parse(sampling), SeededEpisodes(None))


def test_a_single_episode_has_no_deviation(capsys):
    alone = Episodes(np.array([[5.0]]), np.array([[4]]), np.array([[False]]))
    assert np.isnan(alone.std).all()
    assert math.isnan(summarise_episodes([5.0]).spread)
    _write_result("", alone, seed=7)
    assert capsys.readouterr().out.startswith("mean return 5.00 over 1 episode (from 5.00 to 5.00")


def test_lost_episodes_are_not_in_the_printed_mean(capsys):
    lost = np.array([[False, True, False]])
    _write_result("", Episodes(np.array([[1.0, 100.0, 3.0]]), np.array([[4, 9, 6]]), lost), seed=7)
    assert capsys.readouterr().out == (
        "mean return 2.00 ± 1.00 (standard deviation) over 2 episodes (from 1.00 to 3.00, 5 steps on average, seed 7, "
        "1 more were lost with their worker processes)\n"
    )
    with pytest.raises(EnvStepError, match="all 3 episodes were lost"):
        _write_result("", Episodes(np.ones((1, 3)), np.ones((1, 3), int), np.ones((1, 3), bool)), seed=7)


def test_lost_episodes_are_not_in_the_printed_means_of_agents(capsys):
    returns, lost = np.array([[1.0, 100.0, 3.0]]), np.array([[False, True, False]])
    by_agent = {"red": returns, "blue": -returns}
    _write_returns_by_agent(Episodes(returns * 0, np.ones((1, 3), int), lost, returns_by_agent=by_agent))
    assert capsys.readouterr().out == "red: 2.00, blue: -2.00\n"


def test_a_factory_is_made_as_an_id_is_and_unknown_arguments_have_a_hint():
    env = gym.make("CartPole-v1")
    agent = PPO(env.observation_space, env.action_space, seed=1)
    by_id = evaluate(agent, "CartPole-v1", 2, seed=1, max_steps=9)
    for factory in (lambda: gym.make("CartPole-v1"), type(env.unwrapped)):
        assert evaluate(agent, factory, 2, seed=1, max_steps=9).returns.tolist() == by_id.returns.tolist()
    for given, meant in (("seeds", "seed"), ("n_eval_episodes", "episodes")):
        with pytest.raises(ConfigurationError, match=f"argument='{given}' is unknown; did you mean '{meant}'"):
            evaluate(agent, "CartPole-v1", **{given: 3})


def test_an_id_is_that_of_an_env_of_several_agents_for_a_team():
    name = "mpe2.simple_spread_v3"
    env = make_multi_agent_vect_envs(name, 2)
    team = IPPO(env.single_observation_spaces, env.single_action_spaces, num_envs=2, seed=0)
    by_id, by_env = (evaluate(team, its, 2, seed=1, max_steps=5).returns for its in (name, env))
    env.close()
    assert np.array_equal(by_id, by_env)


class CountedResets(gym.Wrapper):
    resets = 0

    def reset(self, **given):
        self.resets += 1
        return super().reset(**given)


def test_episodes_are_rounded_up_before_their_seeds_are_drawn():
    env = SyncVectorEnv([lambda limit=limit: gym.make("CartPole-v1", max_episode_steps=limit) for limit in (3, 4, 5)])
    (agent,) = PPO.population(1, env.single_observation_space, env.single_action_space, net_config=SMALL, seed=0)
    four, six = (evaluate(agent, env, episodes, seed=1) for episodes in (4, 6))
    assert six.lengths.tolist() == [[3, 4, 5] * 2]
    assert four.seeds.tolist() == six.seeds.tolist()


def test_an_env_of_the_users_functions_is_copied_unless_they_return_the_same_env():
    def make():
        return CountedResets(gym.make("CartPole-v1"))

    env, one = SyncVectorEnv([make] * 2), make()
    (agent,) = PPO.population(1, env.single_observation_space, env.single_action_space, net_config=SMALL, seed=0)
    returns = [evaluate(agent, its, 3, seed=1).returns for its in (env, SyncVectorEnv([lambda: one]), "CartPole-v1")]
    assert env.get_attr("resets") == (0, 0)
    assert one.resets >= 3
    assert np.array_equal(returns[0], returns[1])
    assert np.array_equal(returns[0], returns[2])
