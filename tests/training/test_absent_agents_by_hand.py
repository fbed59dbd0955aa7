"""Custom loops learn only from the steps in which agents acted."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_runs import SMALL

from agilerl_like import IPPO, PPO, ConfigurationError, RolloutBuilder
from agilerl_like.algorithms.agilerl_experiences import as_rollout
from agilerl_like.errors import PopulationDivergedError
from agilerl_like.learning.gae import gae
from agilerl_like.learning.own_time import own_time
from agilerl_like.learning.ppo_loss import ppo_loss

SPACE, ACTIONS = Box(-1.0, 1.0, (3,)), Discrete(2)
STEPS = 8
THERE = [*[[True, True]] * 2, *[[True, False]] * 3, *[[True, True]] * 3]
"""Of two envs: in the second the agent is dead from step 2 on, until its next episode begins at step 5."""
ENDS = [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]]
"""Whether a step ended the agent's episode: its death is at step 1."""


def agent_of(**more):
    return PPO(SPACE, ACTIONS, seed=0, num_envs=2, learn_step=16, batch_size=16, net_config=SMALL, **more)


def team_of():
    return IPPO({"a_0": SPACE}, {"a_0": ACTIONS}, seed=0, num_envs=2, learn_step=16, batch_size=16, net_config=SMALL)


def collected(filler):
    """Experiences of one agent, with `filler` in the rows that did not act."""
    rng = np.random.default_rng(0)
    absent = ~np.array(THERE)
    states, rewards, values = rng.normal(size=(STEPS, 2, 3)), rng.normal(size=(STEPS, 2)), rng.normal(size=(STEPS, 2))
    log_probs, actions = np.full((STEPS, 2), np.log(0.5)), rng.integers(0, 2, (STEPS, 2)).astype(float)
    states[absent], rewards[absent], values[absent], log_probs[absent] = (filler,) * 4
    actions[absent] = 0 if np.isnan(filler) else 1
    begins = np.concatenate([np.ones((1, 2)), np.array(ENDS[:-1], float)])
    parts = states.astype(np.float32), actions.astype(int), log_probs, rewards, begins, values
    return (*(list(part) for part in parts), np.zeros((2, 3), np.float32), np.array(ENDS[-1], float))


def weights(agent):
    return torch.cat([parameter.reshape(-1) for parameter in agent.network.parameters()]).detach().clone()


def by_agent(experiences):
    return tuple({"a_0": part} for part in experiences)


def test_rows_of_absent_agents_do_not_affect_learning():
    learned = []
    for filler in (0.0, 7.0, np.nan):
        agent = agent_of()
        agent.learn(collected(filler), acting=THERE)
        learned.append(weights(agent))
    assert torch.equal(learned[0], learned[1])
    assert torch.equal(learned[0], learned[2])
    careless = agent_of()
    careless.learn(collected(7.0))
    assert not torch.equal(weights(careless), learned[0])


class Wide(gymnasium.Env):
    """A hundred actions, far from whose standard deviation is the placeholder 0; an episode has 3 steps."""

    observation_space, action_space = Box(-1.0, 1.0, (4,)), Box(0.0, 1.0, (100,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action[0]), False, self.left == 0, {}


def wide_agent(mean=0.0, std=-2.0, **more):
    """An agent of `Wide` whose policy begins near a mean, in half-widths from the centre of the actions."""
    settings = {"num_envs": 2, "learn_step": 16, "batch_size": 8, "net_config": SMALL, "normalize_observation": False}
    agent = PPO(Wide.observation_space, Wide.action_space, seed=0, action_std_init=std, **{**settings, **more})
    with torch.no_grad():
        (bias,) = (its for name, its in agent.actor.named_parameters() if name.endswith("bias") and len(its) == 100)
        bias.fill_(mean)
    return agent


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(("known", "mean"), [(True, 0.0), (False, 0.9)], ids=["log_prob given", "far from the mean"])
def test_the_placeholder_of_a_missing_action_does_not_overflow(known, mean, recurrent):
    """Its probability may grow without bound in an update, because no loss limits it."""
    learned, fillers = [], (0.0, 0.75) if known else (0.0,)
    for filler in fillers:
        agent = wide_agent(mean, recurrent=recurrent, lr=0.01)
        builder, rng, state = RolloutBuilder(agent, autoreset="Disabled"), np.random.default_rng(0), None
        for step in range(STEPS):
            obs = rng.uniform(-1, 1, (2, 4)).astype(np.float32)
            state = agent.get_initial_hidden_state(2) if recurrent and state is None else state
            action, log_prob, _, value, *after = agent.get_action(obs, hidden_state=state)
            acting = np.array([True, step != 3])
            action[~acting], log_prob[~acting], value[~acting] = filler, filler, filler
            given = {"log_prob": log_prob, "value": value} if known else {}
            ends, never = np.array([False, step == 2]), np.zeros(2, bool)  # in step 3 it waits for nothing
            builder.add(obs, action, obs[:, 0], ends, never, obs, acting=acting, hidden_state=state, **given)
            state = after[0] if recurrent else None
        assert np.isfinite(agent.learn(builder))
        learned.append(weights(agent))
    assert all(torch.isfinite(its).all() and torch.equal(its, learned[0]) for its in learned)


def test_steps_that_next_step_autoreset_ignores_do_not_overflow():
    env = SyncVectorEnv([Wide] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    agent = wide_agent()
    builder = RolloutBuilder(agent, env)
    obs, _ = env.reset(seed=1)
    for _ in range(STEPS):
        action, log_prob, _, value = agent.get_action(obs)
        seen, reward, terminated, truncated, infos = env.step(np.clip(action, 0, 1))
        builder.add(obs, action, reward, terminated, truncated, seen, infos, log_prob=log_prob, value=value)
        obs = seen
    assert np.isfinite(agent.learn(builder))
    assert torch.isfinite(weights(agent)).all()


def test_a_loss_of_ones_own_has_a_ratio_near_one_where_no_action_was_taken():
    ratios = []

    class Recorded(PPO):
        @staticmethod
        def loss(evaluation, targets, coefs):
            absent = targets.share == 0
            ratios.extend((evaluation.log_probs - targets.log_probs).exp()[absent].tolist())
            return ppo_loss(evaluation, targets, coefs)

    settings = {"num_envs": 2, "learn_step": 16, "batch_size": 16, "net_config": SMALL, "normalize_observation": False}
    agent = Recorded(SPACE, ACTIONS, seed=0, **settings)
    agent.learn(collected(0.0), acting=THERE)
    assert ratios
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.01)


def test_an_agent_that_is_absent_at_first_may_have_nan_as_its_flag():
    learned = []
    for flag in (0.0, np.nan):
        agent, experiences = agent_of(), collected(flag)
        experiences[4][0][1] = flag
        agent.learn(experiences, acting=[[True, False], *THERE[1:]])
        learned.append(weights(agent))
    assert torch.equal(*learned)


def test_returns_do_not_cross_absences():
    """gamma = lambda = 1, V = 0, rewards 1: the second env's returns are 2, 1 before the absence, 3, 2, 1 after it."""
    agent = agent_of()
    states, actions, log_probs, _, begins, values, last, done = collected(np.nan)
    rewards = [np.where(there, 1.0, np.nan) for there in THERE]
    rollout, _ = as_rollout(
        (states, actions, log_probs, rewards, begins, values, last, done),
        agent.learner.encode,
        agent.learner.raw_actions,
        hidden_state_before=lambda begins: torch.zeros(len(begins), 0, 0, 0),
        acting=THERE,
    )
    ones = torch.ones(1)
    flags = {name: getattr(rollout, name).transpose(0, 1) for name in ("terminated", "ended", "valid")}
    rewards = rollout.rewards.transpose(0, 1)
    zeros = torch.zeros_like(rewards)
    advantages = gae(rewards, zeros, zeros, **flags, gamma=ones, gae_lambda=ones)
    assert rollout.valid[0].bool().tolist() == THERE
    assert advantages[:, 0, 1][rollout.valid[0, :, 1].bool()].tolist() == [2, 1, 3, 2, 1]


@pytest.mark.parametrize("with_acting", [True, False], ids=["acting", "NaN rewards"])
def test_a_team_learns_from_acting_agents_only(with_acting):
    team = team_of()
    team.learners["a"].learn(collected(0.0), acting=THERE)
    expected = weights(team.learners["a"])
    team = team_of()
    team.learn(by_agent(collected(5.0 if with_acting else np.nan)), acting={"a_0": THERE} if with_acting else None)
    assert torch.equal(weights(team.learners["a"]), expected)


def test_invalid_acting_flags_are_named():
    agent = agent_of()
    with pytest.raises(ConfigurationError, match="acting has 3 steps; states has 8"):
        agent.learn(collected(0.0), acting=THERE[:3])
    with pytest.raises(ConfigurationError, match=r"acting has shape \(8, 3\); allowed is \(8, 2\)"):
        agent.learn(collected(0.0), acting=[[True] * 3] * STEPS)
    with pytest.raises(ConfigurationError, match="acting is False everywhere"):
        agent.learn(collected(0.0), acting=[[False] * 2] * STEPS)
    with pytest.raises(ConfigurationError, match="rewards holds nan"):
        agent.learn((*collected(0.0)[:3], [np.full(2, np.nan)] * STEPS, *collected(0.0)[4:]))


def test_an_agent_that_waits_is_paid_for_its_last_step():
    """gamma = lambda = 1, V = 0: it acts in steps 0, 2 and 4; in step 5 it loses 1 while it waits, which ends it."""
    agent = PPO(SPACE, ACTIONS, seed=0, learn_step=8, batch_size=8, net_config=SMALL)
    acting = [[t % 2 == 0] for t in range(6)]
    rewards = [[0.0], [0.5], [0.0], [np.nan], [2.0], [-1.0]]
    zeros = [np.zeros(1)] * 6
    rollout, _ = as_rollout(
        (
            [np.zeros((1, 3), np.float32)] * 6,
            [np.zeros(1, int)] * 6,
            zeros,
            rewards,
            [np.ones(1), *zeros[1:]],
            zeros,
            np.zeros((1, 3), np.float32),
            np.ones(1),
        ),
        agent.learner.encode,
        agent.learner.raw_actions,
        hidden_state_before=lambda begins: torch.zeros(len(begins), 0, 0, 0),
        acting=acting,
    )
    own = own_time(rollout, torch.ones(1))
    assert own.rewards[:, 0, 0][::2].tolist() == [0.5, 0.0, 1.0]
    assert own.ended[:, 0, 0][::2].tolist() == [0.0, 0.0, 1.0]
    assert own.valid[:, 0, 0].tolist() == [1, 0] * 3


PAIR = ("a_0", "b_0")


def pair_of(**more):
    """A team of two agents in groups of their own."""
    settings = {"seed": 0, "num_envs": 2, "learn_step": 16, "batch_size": 16, "net_config": SMALL, **more}
    return IPPO(dict.fromkeys(PAIR, SPACE), dict.fromkeys(PAIR, ACTIONS), **settings)


def test_a_group_that_was_absent_in_the_whole_rollout_is_left_out():
    team, nowhere = pair_of(), [[False, False]] * STEPS
    experiences = tuple(dict.fromkeys(PAIR, part) for part in collected(0.0))
    before = weights(team.learners["b"])
    losses = team.learn(experiences, acting={"a_0": THERE, "b_0": nowhere})
    assert [*losses] == ["a"]
    assert torch.equal(weights(team.learners["b"]), before)
    assert [learner.env_steps for learner in team.learners.values()] == [16, 16]
    with pytest.raises(ConfigurationError, match="acting is False everywhere"):
        team.learn(experiences, acting=dict.fromkeys(PAIR, nowhere))


@pytest.mark.parametrize("fault", ["rewards", "lr"])
def test_an_error_in_one_group_leaves_no_group_updated(fault):
    experiences = tuple(dict.fromkeys(PAIR, part) for part in collected(0.0))
    team, twin = (pair_of(normalize_reward=True) for _ in range(2))
    if fault == "rewards":
        rewards = {"a_0": experiences[3]["a_0"], "b_0": [np.full(2, np.inf)] * STEPS}
        with pytest.raises(ConfigurationError, match="rewards holds inf"):
            team.learn((*experiences[:3], rewards, *experiences[4:]))
    else:
        team.learners["b"].group = team.learners["b"].group._replace(factors={"lr": 1e38})
        with pytest.raises(PopulationDivergedError):
            team.learn(experiences)
        team.learners["b"].group = twin.learners["b"].group
    team.learn(experiences)
    twin.learn(experiences)
    for group in "ab":
        repeated, once = team.learners[group], twin.learners[group]
        assert (repeated.updates, repeated.env_steps) == (once.updates, once.env_steps) == (1, 16)
        assert torch.equal(repeated.return_statistics.moments, once.return_statistics.moments)
        assert torch.equal(weights(repeated), weights(once))


def test_random_steps_are_those_of_the_team_where_groups_take_turns():
    """Six env steps of two envs are three steps, in which the first group acts twice, in steps 0 and 2."""
    team, seen = pair_of(random_steps=6), np.ones((2, 3), np.float32)
    random = {agent: [] for agent in PAIR}
    for step in range(STEPS):
        agent = PAIR[step % 2]
        log_probs = team.get_action({agent: seen})[1][agent]
        random[agent].append(bool(np.allclose(log_probs, np.log(0.5), rtol=0, atol=1e-6)))
    assert random == {"a_0": [True, True, False, False], "b_0": [True, False, False, False]}
    assert [learner._random_steps_taken for learner in team.learners.values()] == [6, 6]  # the first three steps
