"""`RolloutBuilder`: time limits of a hand-written loop are bootstrapped, as in `train_on_policy`."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_runs import SMALL

from agilerl_like import IPPO, PPO, ConfigurationError, RolloutBuilder, make_vect_envs, train_on_policy
from agilerl_like.learning import ppo_update
from agilerl_like.seeding import Purpose, integers

SETTINGS = {"net_config": SMALL, "num_envs": 2, "seed": 3, "learn_step": 64, "batch_size": 64, "update_epochs": 1}
SETTINGS |= {"normalize_observation": False}
LIMIT = 9


class Counter(gym.Env):
    """Observes the number of the step; ends after 4 steps of an odd episode, never of an even one; pays 1."""

    observation_space, action_space = gym.spaces.Box(0, 100, (1,)), gym.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        over = self.episode % 2 == 1 and self.step_number == 4
        return np.full(1, self.step_number, np.float32), 1.0, over, False, {}


@pytest.fixture
def captured(monkeypatch):
    """The advantages and returns of every update from now on."""
    found, plain = [], ppo_update.compute_advantages

    def recorded(*args, **kwargs):
        batch, explained = plain(*args, **kwargs)
        found.append((batch.advantages.clone(), batch.returns.clone(), batch.weight.clone()))
        return batch, explained

    monkeypatch.setattr(ppo_update, "compute_advantages", recorded)
    return found


def agent_for(env, **settings):
    return PPO(env.single_observation_space, env.single_action_space, **{**SETTINGS, **settings})


@pytest.mark.parametrize(
    ("autoreset", "recurrent", "gives_values"),
    [("SameStep", False, False), ("NextStep", False, True), ("SameStep", True, True), ("NextStep", True, False)],
)
def test_advantages_equal_those_of_train_on_policy(captured, autoreset, recurrent, gives_values, monkeypatch):
    """The same actions in the same envs, by `train_on_policy` and by a loop that adds both flags."""
    rollouts = []
    monkeypatch.setattr(
        ppo_update.RolloutUpdate,
        "run",
        lambda self, *args, plain=ppo_update.RolloutUpdate.run: rollouts.append(self.rollout) or plain(self, *args),
    )
    options = {
        "wrappers": [{"name": "TimeLimit", "max_episode_steps": LIMIT}],
        "backend": "sync",
        "autoreset": autoreset,
    }
    with contextlib.closing(make_vect_envs("CartPole-v1", 2, **options)) as env:
        agent = agent_for(env, recurrent=recurrent, max_seq_len=8 if recurrent else None)
        copy = agent.clone()
        train_on_policy(env, pop=agent, max_steps=64, evo_steps=64, eval_loop=1, verbose=False)
    (rollout,) = rollouts
    truncated = rollout.ended - rollout.terminated
    assert truncated.sum() >= 4
    with contextlib.closing(make_vect_envs("CartPole-v1", 2, **options)) as env:
        builder = RolloutBuilder(copy, env)
        obs, _ = env.reset(seed=integers(2, 3, Purpose.TRAINING_ENVS, 0))
        state = copy.get_initial_hidden_state(2) if recurrent else None
        for step in range(copy.rollout_steps):
            action = rollout.actions[0, step, :, 0].numpy()
            more = {"hidden_state": state} if recurrent else {}
            if gives_values:
                more["log_prob"] = copy.evaluate_actions(obs, action, state)[0]
                more["value"] = copy.get_action(obs, hidden_state=state)[3]
            next_obs, reward, terminated, truncated, infos = env.step(action)
            builder.add(obs, action, reward, terminated, truncated, next_obs, infos, **more)
            if recurrent:
                state = copy.get_action(obs, hidden_state=state)[-1]
                goes_on = torch.tensor(~(terminated | truncated) & builder._steps[-1].acting).view(-1, 1, 1)
                state = {name: x * goes_on for name, x in state.items()}
            obs = next_obs
        assert len(builder) == 32
        copy.learn(builder)
        assert len(builder) == 0
    (theirs, their_returns, their_weight), (ours, our_returns, our_weight) = captured
    assert torch.equal(our_weight, their_weight)
    counts = their_weight > 0
    torch.testing.assert_close(ours[counts], theirs[counts], atol=1e-6 if not recurrent else 2e-6, rtol=1e-6)
    torch.testing.assert_close(our_returns[counts], their_returns[counts], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_every_autoreset_mode_gives_the_same_targets(captured, mode):
    """With a constant value of 8 the return k steps before a limit is R(k) = 1 + R(k - 1) / 2 from R(0) = 8, or 0."""
    vector = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(Counter(), 5)], autoreset_mode=mode)
    settings = {
        "num_envs": 1,
        "learn_step": 12,
        "batch_size": 12,
        "gamma": 0.5,
        "gae_lambda": 1.0,
        "normalize_value": False,
    }
    agent = agent_for(vector, **settings)
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.zero_()
        last_bias = [x for name, x in agent.critic.named_parameters() if name.endswith("bias")][-1]
        last_bias.fill_(8.0)
    builder = RolloutBuilder(agent, vector)
    obs, _ = vector.reset(seed=1)
    for _ in range(12):
        next_obs, reward, terminated, truncated, infos = vector.step(np.zeros(1, np.int64))
        builder.add(obs, np.zeros(1, np.int64), reward, terminated, truncated, next_obs, infos)
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            next_obs, _ = vector.reset(options={"reset_mask": terminated | truncated})
        obs = next_obs
    agent.learn(builder)
    ((_, returns, weight),) = captured
    limit, end = [], []
    for bootstrap, steps, into in ((8.0, 5, limit), (0.0, 4, end)):
        value = bootstrap
        for _ in range(steps):
            value = 1 + 0.5 * value
            into.insert(0, value)
    assert returns[weight > 0][:9].tolist() == pytest.approx(limit + end)


def test_a_loop_may_overwrite_its_hidden_state():
    """The second rollout begins within an episode, with the state that its first step was added with."""
    settings = {**SETTINGS, "learn_step": 8, "batch_size": 8, "recurrent": True, "max_seq_len": 4}
    agents = [PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), **settings) for _ in range(2)]
    seen = np.random.default_rng(1).normal(size=(9, 2, 4)).astype(np.float32)
    for agent, overwrites in zip(agents, (False, True), strict=True):
        builder, state = RolloutBuilder(agent, autoreset="SameStep"), agent.get_initial_hidden_state(2)
        for step, obs in enumerate(seen[:-1]):
            action, _, _, _, after = agent.get_action(obs, hidden_state=state)
            builder.add(obs, action, obs[:, 0], [0, 0], [0, 0], seen[step + 1], hidden_state=state)
            if overwrites:
                for name, values in after.items():
                    state[name].copy_(values)
            state = state if overwrites else after
            if len(builder) == 4:
                agent.learn(builder)
    for mine, its in zip(*(agent.network.parameters() for agent in agents), strict=True):
        assert torch.equal(mine, its)


def test_refuses():
    env = gym.make_vec("CartPole-v1", 2)
    agent = agent_for(env)
    with pytest.raises(ConfigurationError, match=r"the rollout is empty: call add"):
        agent.learn(RolloutBuilder(agent, env))
    with pytest.raises(ConfigurationError, match="autoreset='never' is unknown"):
        RolloutBuilder(agent, autoreset="never")
    with pytest.raises(ConfigurationError, match=r"autoreset is missing, and env=None has no metadata"):
        RolloutBuilder(agent)
    team = IPPO({"a": env.single_observation_space}, {"a": env.single_action_space}, net_config=SMALL)
    with pytest.raises(ConfigurationError, match="allowed is an agent of one policy"):
        RolloutBuilder(team, env)
    builder = RolloutBuilder(agent, autoreset="SameStep")
    zeros, flags = np.zeros((2, 4), np.float32), np.array([True, False])
    with pytest.raises(ConfigurationError, match="infos has no final_obs, although an episode was truncated"):
        builder.add(zeros, [0, 0], [1, 1], ~flags & flags, flags, zeros)
    builder = RolloutBuilder(agent, env)
    builder.add(zeros, [0, 0], [1, 1], [0, 0], [0, 0], zeros, action_mask=np.ones((2, 2), np.bool_))
    builder.add(zeros, [0, 0], [1, 1], [0, 0], [0, 0], zeros)
    with pytest.raises(ConfigurationError, match="action_mask is missing in some steps"):
        agent.learn(builder)


@pytest.mark.parametrize(
    ("name", "given", "argument"),
    [("action_masks", [[[1, 1]]], "action_mask"), ("acting", [[1]], "acting"), ("hidden_state", {}, "hidden_state")],
)
def test_learn_refuses_arguments_beside_a_builder_that_its_steps_have(name, given, argument):
    agent = PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), **{**SETTINGS, "num_envs": 1})
    builder, obs = RolloutBuilder(agent, autoreset="SameStep"), np.zeros((1, 4), np.float32)
    builder.add(obs, [0], [1.0], [False], [False], obs)
    with pytest.raises(ConfigurationError, match=rf"{name}=.* allowed is builder\.add\(…, {argument}=…\)"):
        agent.learn(builder, **{name: given})


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("form", ["tuple", "builder"])
def test_masks_have_a_flag_for_each_action(form, choices):
    agent = PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(4), **SETTINGS)
    obs, zeros, masks = np.zeros((2, 4), np.float32), np.zeros(2), [np.ones((2, choices), np.bool_)] * 4
    experience = ([obs] * 4, [[0, 0]] * 4, [zeros] * 4, [zeros] * 4, [zeros] * 4, [zeros] * 4, obs, zeros)
    more = {"action_masks": masks}
    if form == "builder":
        experience, more = RolloutBuilder(agent, autoreset="Disabled"), {}
        for mask in masks:
            experience.add(obs, [0, 0], zeros, zeros, zeros, obs, action_mask=mask)
    with pytest.raises(
        ConfigurationError, match=rf"action_masks has shape \(4, 2, {choices}\); allowed is \(4, 2, 4\)"
    ):
        agent.learn(experience, **more)


def test_an_episode_begins_behind_an_ignored_step_that_ended_the_rollout():
    agent = PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), **{**SETTINGS, "num_envs": 1}, recurrent=True)
    builder, obs = RolloutBuilder(agent, autoreset="NextStep"), np.zeros((1, 4), np.float32)
    for rollout in range(2):  # the second one would warn that it begins in the midst of an episode, without its state
        for step in range(4):
            builder.add(obs, [0], [1.0], [rollout == 0 and step == 2], [False], obs)
        agent.learn(builder)


@pytest.mark.parametrize("autoreset", ["SameStep", "NextStep", "Disabled"])
def test_an_episode_may_end_while_its_agent_waits(autoreset):
    """It acts in steps 0 and 2, and waits in steps 1 and 3, which end in a termination and by a limit."""
    agent = PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), **{**SETTINGS, "num_envs": 1})
    builder, obs, last = RolloutBuilder(agent, autoreset=autoreset), np.zeros((1, 4)), np.full((1, 4), 0.5)
    own = agent.learner
    for terminated, truncated in ((False, False), (True, False), (False, False), (False, True)):
        if autoreset == "NextStep" and len(builder) == 2:  # an ignored step, whatever its flags are
            builder.add(obs, [0], [9.0], [True], [True], obs, acting=[True])
        acts, following = not (terminated or truncated), last if truncated and autoreset != "SameStep" else obs
        builder.add(obs, [0], [-1.0], [terminated], [truncated], following, {"final_obs": last}, acting=[acts])
    rollout, _ = builder.rollout(own.encode, own.raw_actions, own._begin_rollout, 2)
    keep = [0, 1, 3, 4] if autoreset == "NextStep" else [0, 1, 2, 3]
    assert rollout.valid[0, keep, 0].tolist() == [1, 0, 1, 0]
    assert rollout.valid.sum() == 2
    assert rollout.waiting[0, 0, keep, 0].tolist() == [0, 1, 0, 1]
    assert rollout.terminated[0, keep, 0].tolist() == [0, 1, 0, 0]
    assert rollout.ended[0, keep, 0].tolist() == [0, 1, 0, 1]
    assert rollout.final_observations.observations.tolist() == [[[0.5] * 4]]
    assert builder._starts_next.tolist() == [True]


@pytest.mark.parametrize("form", ["tuple", "builder"])
def test_normalised_rewards_of_a_hand_written_loop_do_not_continue_those_before_a_reset(form):
    """The second of two envs is reset before each rollout of 4 steps that pay 1, the first one never ends."""
    settings = {**SETTINGS, "learn_step": 8, "batch_size": 8, "gamma": 1.0, "normalize_reward": True}
    agent = PPO(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), **settings)
    obs, ones, zeros, starts = np.zeros((2, 4), np.float32), np.ones(2), np.zeros(2), np.array([0.0, 1.0])
    experience = ([obs] * 4, [[0, 0]] * 4, [zeros] * 4, [ones] * 4, [starts, *[zeros] * 3], [zeros] * 4, obs, zeros)
    for rollout in range(1, 4):
        if form == "builder":
            experience = RolloutBuilder(agent, autoreset="Disabled")
            for _ in range(4):
                experience.add(obs, [0, 0], ones, zeros, zeros, obs)
            experience._starts = starts > 0
        agent.learn(experience)
        assert agent.learner.return_statistics.returns.tolist() == [4.0 * rollout, 4.0]
