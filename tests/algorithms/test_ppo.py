import copy
import math
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL

from agilerl_like import (
    PPO,
    CheckpointError,
    ConfigurationError,
    HyperparameterConfig,
    Population,
    PopulationDivergedError,
    RLParameter,
    RolloutBuilder,
    make_vect_envs,
)
from agilerl_like.algorithms.agilerl_experiences import as_rollout
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.ppo_learner import hyperparams_of
from agilerl_like.algorithms.settings import evolvable_settings, is_whole
from agilerl_like.hpo import Mutation
from agilerl_like.learning.ppo_update import PPOUpdate
from agilerl_like.learning.sequences import SINGLE_STEP
from agilerl_like.modules.layers import NoisyLinear

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (4,))


def agent_of(action_space=None, observation_space=BOX, **kwargs):
    settings = {"seed": 0, "net_config": SMALL, "num_envs": 2, "learn_step": 32, "batch_size": 8, **kwargs}
    return PPO(observation_space, action_space or gymnasium.spaces.Discrete(3), **settings)


def experiences_of(agent, steps=16, envs=2, seed=0, scale=1.0):
    """A loop by hand on random numbers, with the agent's own actions."""
    rng = np.random.default_rng(seed)
    states, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
    done = np.zeros(envs)
    for _ in range(steps):
        state = (
            np.stack([agent.observation_space.sample() for _ in range(envs)])
            if agent.observation_space != BOX
            else scale * rng.normal(size=(envs, 4))
        )
        action, log_prob, _, value = agent.get_action(state)
        for column, entry in zip(
            (states, actions, log_probs, rewards, dones, values),
            (state, action, log_prob, rng.normal(size=envs), done, value),
            strict=True,
        ):
            column.append(entry)
        done = (rng.random(envs) < 0.2).astype(float)
    return states, actions, log_probs, rewards, dones, values, states[0], done


SPACES = {
    "Discrete(start=1)": gymnasium.spaces.Discrete(3, start=1),
    "MultiDiscrete": gymnasium.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gymnasium.spaces.MultiBinary(3),
    "Box": gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "Box float64": gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64),
}


def test_a_step_of_a_hand_written_loop_computes_the_critic_once():
    agent, calls = agent_of(), []
    agent.learner.network.critic.head.register_forward_hook(lambda *_: calls.append(1))
    _, _, _, value = agent.get_action(np.zeros((4, 4), np.float32))
    assert len(calls) == 1
    assert value.tolist() == agent.learner.value(np.zeros((4, 4), np.float32)).tolist()


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_get_action_and_evaluate_actions_agree(space):
    agent = agent_of(space)
    obs = np.random.default_rng(0).normal(size=(5, 4))
    action, log_prob, entropy, value = agent.get_action(obs)
    again = agent.evaluate_actions(obs, action)
    for said, found in zip((log_prob, entropy, value), again, strict=True):
        np.testing.assert_allclose(said, found.detach().numpy(), rtol=1e-4, atol=1e-5)
    taken, _ = agent.predict(obs)
    assert all(space.contains(a) for a in taken)
    single, state = agent.predict(obs[0])
    assert space.contains(single)
    assert state is None


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(5, start=2),
        gymnasium.spaces.MultiDiscrete([3, 2]),
        gymnasium.spaces.MultiBinary(4),
        gymnasium.spaces.Box(0, 255, (3,), np.uint8),
        gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64),
    ],
    ids=str,
)
def test_every_observation_space_acts_and_learns(space):
    agent = agent_of(observation_space=space)
    before = agent.learner.cohort.stacked.flat.clone()
    assert math.isfinite(agent.learn(experiences_of(agent)))
    assert not torch.equal(before, agent.learner.cohort.stacked.flat)


def test_a_bool_box_is_observed_as_numbers():
    space = gymnasium.spaces.Box(0, 1, (2,), np.bool_)
    agent = agent_of(observation_space=space)
    assert agent.learner.encode(np.array([[True, False]])).tolist() == [[1.0, 0.0]]


def test_masked_actions_are_never_taken_and_have_no_probability():
    agent = agent_of()
    obs, mask = np.zeros((200, 4)), np.tile([True, False, True], (200, 1))
    action, log_prob, _, _ = agent.get_action(obs, action_mask=mask)
    assert set(action.tolist()) == {0, 2}
    # the mask holds in learning too: two near equal choices are left, so each has about log 1/2
    np.testing.assert_allclose(log_prob, math.log(0.5), atol=0.05)
    found, _, _ = agent.evaluate_actions(obs, action, action_mask=mask)
    np.testing.assert_allclose(found.detach(), log_prob, rtol=1e-5)
    with pytest.raises(ConfigurationError, match=r"action_mask has shape \(200, 2\); allowed is \(200, 3\)"):
        agent.get_action(obs, action_mask=mask[:, :2])


def test_squashed_actions_stay_inside_and_carry_their_density():
    agent = agent_of(SPACES["Box"], squash_output=True, action_std_init=1.0)
    obs = np.random.default_rng(1).normal(size=(500, 4))
    action, log_prob, _, _ = agent.get_action(obs)
    assert all(SPACES["Box"].contains(a) for a in action)
    assert not agent.actor.squash_output  # AgileRL's loops ask whether there is still something to scale
    # change of variables by hand: a = half tanh(u) + centre
    with torch.no_grad():
        mean = agent.actor(agent.preprocess_observation(obs)).numpy()
    half, centre = np.array([2.0, 5.0]), np.array([0.0, 5.0])
    y = (action.astype(np.float64) - centre) / half
    inside = np.abs(y).max(1) < 0.999  # float32 actions nearer to the border have lost their u
    y, mean, log_prob = y[inside], mean[inside], log_prob[inside]
    u = np.arctanh(y)
    density = -0.5 * ((u - mean) / math.e) ** 2 - 1.0 - 0.5 * math.log(2 * math.pi) - np.log(1 - y**2) - np.log(half)
    np.testing.assert_allclose(log_prob, density.sum(1), rtol=2e-3, atol=2e-3)
    agent.set_training_mode(False)
    acted = agent.get_action(obs)[0]
    np.testing.assert_allclose(acted, agent.predict(obs, deterministic=True)[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (["a", "b", "c", "d"], "observation has dtype <U1; allowed are numbers"),
        (np.ones(4, np.complex64), "observation has dtype complex64; allowed are real numbers"),
    ],
)
def test_an_observation_without_real_numbers_is_an_error_of_the_caller(obs, message):
    agent = agent_of()
    for act in (agent.predict, agent.get_action):
        with pytest.raises(ConfigurationError, match=message):
            act(obs)


@pytest.mark.parametrize("batch", [1, 3])
def test_flipped_arrays_act_as_their_copies(batch):
    agent, rng = agent_of(recurrent=True), np.random.default_rng(0)
    obs = rng.normal(size=(batch, 4)).astype(np.float32)[::-1]
    masks, starts = np.tile([False, True, True], (batch, 1))[::-1], (rng.random(batch) < 0.5)[::-1]
    state = {name: torch.ones_like(zeros) for name, zeros in agent.get_initial_hidden_state(batch).items()}
    found, copied = (
        agent.predict(x, state, begins, deterministic=True, action_masks=mask)
        for x, begins, mask in ((obs, starts, masks), (obs.copy(), starts.copy(), masks.copy()))
    )
    assert found[0].tolist() == copied[0].tolist()
    assert all(torch.equal(found[1][name], copied[1][name]) for name in state)


class SlowNetwork(torch.nn.Linear):
    """A linear map that stores its mode at the end of each slow pass."""

    modes: ClassVar = []

    def forward(self, x):
        y = super().forward(x)
        time.sleep(0.02)
        self.modes.append(self.training)
        return y


def test_deterministic_predictions_of_several_threads_are_all_in_evaluation_mode():
    agent = agent_of(net_config=None, actor_network=SlowNetwork(4, 3), critic_network=torch.nn.Linear(4, 1))

    def predict(number, deterministic):
        time.sleep(0.005 * number)
        agent.predict(np.zeros(4), deterministic=deterministic)

    for deterministic in ([True] * 4, [False] * 4, [True, False]):
        SlowNetwork.modes.clear()
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(predict, range(len(deterministic)), deterministic))
        assert sorted(SlowNetwork.modes) == sorted(not flag for flag in deterministic)
    assert agent.actor.training


def test_clipped_actions_are_clipped_in_training_testing_and_after_loading(tmp_path):
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    agent = agent_of(space, action_std_init=2.0)
    obs = np.zeros((300, 4))
    assert np.abs(agent.get_action(obs)[0]).max() > 1  # log_prob is that of the unclipped action
    for who in (agent, PPO.load(agent.save_checkpoint(tmp_path / "a"))):
        assert np.abs(who.predict(obs)[0]).max() == 1
        assert who.learner.distribution.to_env(torch.full((1, 2), 9.0)).tolist() == [[1.0, 1.0]]


def test_eval_mode_does_not_explore_and_freezes_the_statistics():
    agent = agent_of()
    agent.learn(experiences_of(agent))
    agent.set_training_mode(False)
    count = agent.network.observation_norm.count.clone()
    obs = np.random.default_rng(0).normal(size=(6, 4))
    assert np.array_equal(agent.get_action(obs)[0], agent.get_action(obs)[0])
    assert torch.equal(count, agent.network.observation_norm.count)
    assert count.item() == 32


def test_dones_flag_the_first_step_of_an_episode():
    """AgileRL's loop stores `done` before the step. One env, lambda 1, V = 0: a reward belongs to what led to it."""
    agent = agent_of(num_envs=1, gae_lambda=1.0, gamma=0.5, learn_step=4, batch_size=4)
    states = [np.zeros((1, 4))] * 4
    rewards = [np.array([r]) for r in (0.0, 1.0, 0.0, 1.0)]
    begins = [np.array([d]) for d in (1.0, 0.0, 1.0, 0.0)]  # episodes are steps 0, 1 and 2, 3
    zeros = [np.zeros(1)] * 4
    experiences = (states, [np.array([0])] * 4, zeros, rewards, begins, zeros, states[0], np.array([1.0]))
    rollout, precomputed = as_rollout(
        experiences,
        agent.learner.encode,
        agent.learner.raw_actions,
        hidden_state_before=lambda begins: torch.zeros(len(begins), 2, 0, 0),
    )
    assert rollout.ended[0, :, 0].tolist() == [0, 1, 0, 1]
    assert precomputed.old_values.shape == (1, 4, 1)
    update = PPOUpdate(agent.learner.cohort.stacked, hyperparams_of([agent.learner]), agent.learner.execution)
    with torch.no_grad():
        found = update.compute_advantages(rollout, SINGLE_STEP, precomputed)[0].advantages[0, :, 0]
    # advantages 0.5, 1, 0.5, 1 standardised: mean 0.75, deviation 0.25
    torch.testing.assert_close(found, torch.tensor([-1.0, 1, -1, 1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", ["Discrete(start=1)", "Box"])
def test_the_first_update_by_hand_compares_probabilities_of_normalised_observations(space):
    """A minibatch of the whole rollout is evaluated before any step, so the policy has not moved: the KL is 0."""
    head = {"hidden_size": [16], "output_vanish": False}
    agent = agent_of(SPACES[space], net_config={**SMALL, "head_config": head}, batch_size=32, update_epochs=1)
    reports, learn = [], agent.learner.cohort.learn
    agent.learner.cohort.learn = lambda *given: reports.append(learn(*given)) or reports[-1]
    for seed in range(2):
        agent.learn(experiences_of(agent, seed=seed, scale=100.0))
    assert [float(report["approx_kl"][0]) for report in reports] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert [float(report["clip_fraction"][0]) for report in reports] == [0.0, 0.0]


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_first_update_compares_probabilities_of_equal_precision(recurrent):
    """The narrow policy makes the ratio sensitive to the rounding of its mean."""
    agent = agent_of(
        gymnasium.spaces.Box(-1.0, 1.0, (6,)), net_config={"head_config": {"output_vanish": False}},
        recurrent=recurrent, precision="bfloat16", normalize_observation=False, action_std_init=-3.0, update_epochs=1,
        batch_size=32,
    )  # fmt: skip
    reports, learn = [], agent.learner.cohort.learn
    agent.learner.cohort.learn = lambda *given: reports.append(learn(*given)) or reports[-1]
    builder = RolloutBuilder(agent, autoreset="Disabled")
    add_bfloat16_steps(builder, agent)
    agent.learn(builder)
    assert float(reports[0]["approx_kl"][0]) == pytest.approx(0.0, abs=1e-5)


def add_bfloat16_steps(builder, agent):
    """Add a rollout of random observations, and check the types of what a loop receives."""
    rng, state = np.random.default_rng(0), None
    for _ in range(16):
        obs, nothing = rng.normal(size=(2, 4)), np.zeros(2, np.bool_)
        action, log_prob, entropy, value, *after = agent.get_action(obs, hidden_state=state)
        assert {found.dtype for found in (action, log_prob, entropy, value)} == {np.dtype(np.float32)}
        again, _, its_value = agent.evaluate_actions(obs, action, state)
        np.testing.assert_allclose(again.detach().numpy(), log_prob, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(its_value.detach().numpy(), value)
        builder.add(
            obs, action, rng.normal(size=2), nothing, nothing, obs, log_prob=log_prob, value=value, hidden_state=state
        )
        state = after[0] if after else None


def test_learn_needs_experience_of_the_right_shape():
    agent = agent_of()
    good = experiences_of(agent)
    for wrong in (None, 1000, good[:3]):  # SB3's learn takes a number of steps
        with pytest.raises(ConfigurationError, match=r"experiences must be .*; train_on_policy needs none"):
            agent.learn(wrong)
    with pytest.raises(ConfigurationError, match="rewards has 3 steps; states has 16"):
        agent.learn((*good[:3], good[3][:3], *good[4:]))
    with pytest.raises(ConfigurationError, match=r"rewards has shape \(16, 3\); allowed is \(16, 2\)"):
        agent.learn((*good[:3], [np.zeros(3)] * 16, *good[4:]))
    bad = [r.copy() for r in good[3]]
    bad[7][1] = np.nan
    with pytest.raises(ConfigurationError, match="rewards holds nan"):
        agent.learn((*good[:3], bad, *good[4:]))
    for flag in (7, -1, 0.5):
        dones = [*good[4][:-1], np.array([0, flag])]
        with pytest.raises(ConfigurationError, match=rf"dones or next_done holds {flag}; allowed are 0 and 1"):
            agent.learn((*good[:4], dones, *good[5:]))
        with pytest.raises(ConfigurationError, match=rf"dones or next_done holds {flag}; allowed are 0 and 1"):
            agent.learn((*good[:7], np.array([flag, 0])))
    with pytest.raises(ConfigurationError, match=r"observation=.* is not finite"):
        agent.get_action(np.array([[np.nan, 0, 0, 0]]))
    with pytest.raises(ConfigurationError, match=r"observation has shape \(2, 5\)"):
        agent.get_action(np.zeros((2, 5)))


def test_a_non_finite_update_is_undone():
    agent = agent_of()
    experiences = experiences_of(agent)
    before = agent.learner.cohort.stacked.flat.clone()
    agent.lr = 1e38
    with pytest.raises(PopulationDivergedError, match="agent 0: loss=nan is not finite; its weights were restored"):
        agent.learn(experiences)
    assert torch.equal(before, agent.learner.cohort.stacked.flat)
    agent.batch_size, agent.update_epochs = 32, 1  # one step, whose loss was that of the weights before it
    with pytest.raises(PopulationDivergedError, match="agent 0: a weight is not finite; its weights were restored"):
        agent.learn(experiences)
    assert torch.equal(before, agent.learner.cohort.stacked.flat)
    agent.lr = 1e-3
    agent.learn(experiences)


def add_steps(builder, agent, steps):
    for step in range(steps):
        obs = np.full((2, 4), 0.1 * step)
        builder.add(obs, agent.get_action(obs)[0], [step, 1.0], [0, 0], [0, 0], obs)


def test_an_undone_update_can_be_repeated_and_leaves_no_trace_in_the_next_rollout():
    agent = agent_of(normalize_reward=True, random_steps=20)
    agents = [agent.clone(index=agent.index) for _ in range(3)]
    builders = [RolloutBuilder(agent, autoreset="Disabled") for agent in agents]
    for one, builder in zip(agents, builders, strict=True):
        add_steps(builder, one, 16)
    for one, builder in zip(agents[:2], builders[:2], strict=True):
        one.lr = 1e38
        for _ in range(2):
            with pytest.raises(PopulationDivergedError):
                one.learn(builder)
        one.lr = agent.lr
    agents[0].learn(builders[0])
    agents[2].learn(builders[2])
    repeated, once = agents[0].learner, agents[2].learner
    assert torch.equal(repeated.return_statistics.moments, once.return_statistics.moments)
    assert torch.equal(repeated.cohort.stacked.flat, once.cohort.stacked.flat)
    add_steps(builders[1], agents[1], 4)
    assert len(builders[1]) == 4
    assert agents[1].learner._random_steps_taken == 8  # of this rollout


def test_discarded_steps_do_not_count_as_random_steps_of_the_next_rollout():
    agent = agent_of(random_steps=20)
    builder = RolloutBuilder(agent, autoreset="Disabled")
    add_steps(builder, agent, 8)
    builder.clear()
    add_steps(builder, agent, 4)
    assert agent.learner._random_steps_taken == 8


@pytest.mark.parametrize("undone", [False, True])
def test_normalised_rewards_do_not_continue_those_before_discarded_steps(undone):
    agent = agent_of(normalize_reward=True)
    builder = RolloutBuilder(agent, autoreset="Disabled")
    add_steps(builder, agent, 16)
    agent.learn(builder)
    before = agent.learner.return_statistics
    assert before.returns.all()
    builder.clear()  # of no steps
    assert torch.equal(agent.learner.return_statistics.returns, before.returns)
    add_steps(builder, agent, 16)
    if undone:
        lr, agent.lr = agent.lr, 1e38
        with pytest.raises(PopulationDivergedError):
            agent.learn(builder)
        agent.lr = lr
        assert torch.equal(agent.learner.return_statistics.returns, before.returns)  # to repeat the update
    else:
        builder.clear()
    add_steps(builder, agent, 1)
    assert not agent.learner.return_statistics.returns.any()
    assert torch.equal(agent.learner.return_statistics.moments, before.moments)


def test_a_copy_of_an_agent_can_repeat_an_undone_update():
    agent = agent_of(random_steps=20)
    builder = RolloutBuilder(agent, autoreset="Disabled")
    add_steps(builder, agent, 16)
    once = agent.clone(index=agent.index)
    once.learn(copy.copy(builder))
    agent.lr = 1e38
    with pytest.raises(PopulationDivergedError):
        agent.learn(builder)
    again = agent.clone(index=agent.index)
    again.lr = once.lr
    again.learn(builder)
    assert torch.equal(again.learner.cohort.stacked.flat, once.learner.cohort.stacked.flat)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", -1.0, "input should be "), ("lr", "fast", "input should be "), ("gamma", 2.0, "input should be "),
        ("batch_size", 0, "input should be "), ("n_step", 3, "has no meaning with advantage='gae'"),
        ("normalize_observation", False, "cannot be set after the networks were built with True"),
        ("share_encoders", True, "cannot be set after the networks were built with False"),
        ("hp_config", None, "allowed is a HyperparameterConfig"),
    ],
)  # fmt: skip
def test_learn_refuses_settings_that_became_illegal(name, value, message):
    agent = agent_of()
    experiences = experiences_of(agent)
    before = agent.learner.cohort.stacked.flat.clone()
    setattr(agent, name, value)
    with pytest.raises(ConfigurationError, match=rf"{name}={value!r}[:;]? {message}"):
        agent.learn(experiences)
    assert torch.equal(before, agent.learner.cohort.stacked.flat)


def test_a_changed_attribute_counts_from_the_next_update_on():
    moved = []
    for lr in (1e-5, 1e-3):
        agent = agent_of(lr=1e-2)
        agent.lr = lr
        before = agent.learner.cohort.stacked.flat.clone()
        agent.learn(experiences_of(agent))
        moved.append(float((agent.learner.cohort.stacked.flat - before).abs().max()))
    # Adam moves a weight by about lr a step: a hundred times the rate, about a hundred times the way
    assert 20 < moved[1] / moved[0] < 500


def test_precision_that_is_set_counts_from_the_next_update_on():
    agent = agent_of()
    agent.learn(experiences_of(agent))
    agent.precision = "bfloat16"
    clone = agent.clone(index=agent.index)
    for one in (agent, clone):
        one.learn(experiences_of(one))
    assert torch.equal(agent.learner.cohort.stacked.flat, clone.learner.cohort.stacked.flat)


@pytest.mark.parametrize("part", ["encoder_config", "head_config"])
def test_weight_noise_is_resampled_after_every_update(part):
    agent = agent_of(net_config={**SMALL, part: {"hidden_size": [16], "noisy": True}})
    seen = []
    for seed in range(3):
        agent.learn(experiences_of(agent, seed=seed))
        noise = [buffer.clone() for name, buffer in agent.network.named_buffers() if name.endswith("input_noise")]
        assert noise
        assert all(n.abs().sum() > 0 for n in noise)
        seen.append(torch.cat(noise))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("beside", [False, True])
def test_noisy_layers_learn_after_a_cohort_was_built_in_eval_mode(beside):
    """That has a gradient only where there is noise: in training mode."""
    noisy = {**SMALL, "encoder_config": {"hidden_size": [16], "noisy": True}}
    agent = agent_of(net_config=noisy)
    if beside:
        Population([agent, agent.clone(index=1)]).set_training_mode(False)
    for training in (False, True):
        agent.set_training_mode(training)
        for layer in agent.network.modules():
            if isinstance(layer, NoisyLinear):
                layer.resample_(torch.Generator().manual_seed(0))
        before = {name: p.detach().clone() for name, p in agent.network.named_parameters() if "sigma" in name}
        agent.learn(experiences_of(agent))
        now = dict(agent.network.named_parameters())
        assert any(not torch.equal(now[name], sigma) for name, sigma in before.items()) == training


def test_an_attached_learner_stores_no_moments_of_its_own():
    agent = agent_of()
    moments = weakref.ref(agent.optimizer.exp_avg)
    assert moments() is not None
    assert agent.learner.cohort is agent.learner.cohort
    assert moments() is None
    assert agent.optimizer.exp_avg.shape == (1, agent.parameter_count)


def test_a_clone_is_independent():
    agent = agent_of()
    agent.learn(experiences_of(agent))
    twin = agent.clone()
    obs = np.random.default_rng(0).normal(size=(6, 4))
    assert np.array_equal(agent.get_action(obs)[0], twin.get_action(obs)[0])  # the same index, the same streams
    kept = [t.clone() for t in (*agent.network.parameters(), *agent.network.buffers(), agent.optimizer.exp_avg)]
    loss = twin.learn(experiences_of(twin, seed=1))
    now = [*agent.network.parameters(), *agent.network.buffers(), agent.optimizer.exp_avg]
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    assert agent.learn(experiences_of(agent, seed=1)) == loss
    other = agent.clone(index=7)
    assert other.index == 7
    assert not np.array_equal(agent.get_action(np.zeros((50, 4)))[0], other.get_action(np.zeros((50, 4)))[0])


def grown(agent):
    """Sixteen more units in the encoder, whose weights are returned."""
    genome, arguments = agent.genome, {"layer": 0, "nodes": 16}
    architecture = genome.architecture.apply("encoder.add_node", **arguments)
    agent.apply_genome(
        genome.replace(architecture=architecture), (Mutation("architecture", "encoder.add_node", arguments),)
    )
    return agent.network.actor.encoder.linear(0).weight[-16:].detach().clone()


def test_consecutive_mutations_draw_different_numbers(tmp_path):
    agent = agent_of()
    first = grown(agent)
    loaded = PPO.load(agent.save_checkpoint(tmp_path / "agent"))
    second = grown(agent)
    assert not torch.isclose(first, second).any()  # else the new units would stay equal
    assert torch.equal(grown(agent_of()), first)
    for other in (loaded, loaded.clone()):
        assert torch.equal(grown(other), second)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_a_loaded_agent_continues_bit_identically(tmp_path, space):
    """Law 6: load(save(x)) continues as x would have."""
    agent = agent_of(
        space, hp_config=HyperparameterConfig(lr=RLParameter(1e-5, 1e-1)), share_encoders=True, target_kl=0.5
    )
    agent.learn(experiences_of(agent))
    path = agent.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(path)
    assert loaded.hp_config == agent.hp_config
    assert loaded.settings() == agent.settings()
    for step in range(3):
        assert loaded.learn(experiences_of(loaded, seed=step)) == agent.learn(experiences_of(agent, seed=step))
    ours, theirs = agent.to_documents(), loaded.to_documents()
    assert ours[0] == theirs[0]
    assert all(torch.equal(ours[1][name], theirs[1][name]) for name in ours[1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    agent = agent_of()
    with torch.no_grad():
        next(agent.actor.parameters()).view(-1)[3] = value
    agent.save_checkpoint(tmp_path / "diverged")
    with pytest.raises(
        CheckpointError, match=rf"diverged': network\.actor\..* holds {value} in 1 of \d+ places; allowed are"
    ):
        PPO.load(tmp_path / "diverged")


@pytest.mark.parametrize(("name", "value"), [("update_epochs", 2**40), ("update_epochs", 10_001), ("lr", 1e300)])
def test_settings_that_give_non_finite_updates_are_refused(name, value):
    with pytest.raises(ConfigurationError, match=rf"{name}=.*: input should be less than or equal to"):
        agent_of(**{name: value})


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    agent = agent_of()
    path = agent.save_checkpoint(tmp_path / "agent")
    other = agent_of(gymnasium.spaces.Discrete(4))
    with pytest.raises(CheckpointError, match=r"was saved with .*Discrete\(3\).*this agent has .*Discrete\(4\)"):
        other.load_checkpoint(path)
    same = agent_of(seed=5)
    same.load_checkpoint(path)
    assert torch.equal(same.learner.cohort.stacked.flat, agent.learner.cohort.stacked.flat)
    with pytest.raises(CheckpointError, match="does not exist"):
        PPO.load(tmp_path / "nowhere")


def test_a_name_that_is_too_long_is_a_checkpoint_error_of_agents_and_populations(tmp_path):
    agent, path = agent_of(), tmp_path / ("x" * 300)
    for function in (agent.save_checkpoint, agent.load_checkpoint, PPO.load, Population.load):
        with pytest.raises(CheckpointError, match=r"path='.*x' (cannot be written|cannot be read|does not exist)"):
            function(path)


@pytest.mark.parametrize("seed", [2**63, 2**70, 2**128 - 1])
def test_agents_with_large_seeds_are_loaded(seed, tmp_path):
    agent = agent_of(seed=seed)
    assert PPO.load(agent.save_checkpoint(tmp_path / "agent")).seed == seed


WRONG = {
    "lr=-1": ({"lr": -1.0}, r"lr=-1\.0"),
    "gamma=1.5": ({"gamma": 1.5}, r"gamma=1\.5.*less than or equal to 1"),
    "update_epochs=0": ({"update_epochs": 0}, "update_epochs=0.*greater than or equal to 1"),
    "two at once": ({"lr": "fast", "clip_coef": 0.0}, r"lr='fast'.*clip_coef=0\.0"),
    "batch": ({"batch_size": 64}, r"batch_size=64 is larger than the rollout of learn_step=32"),
    "activation": (
        {"net_config": {"encoder_config": {"activation": "Rellu"}}},
        "activation='Rellu' is unknown; did you mean .*'ReLU'",
    ),
    "key": ({"net_config": {"encoder_confg": {}}}, "'encoder_confg' is unknown; did you mean 'encoder_config'"),
    "inner key": (
        {"net_config": {"head_config": {"hiden_size": [3]}}},
        "'hiden_size' is unknown; did you mean 'hidden_size'",
    ),
    "size": ({"net_config": {"latent_dim": 4096}}, r"latent_dim=4096 is outside its range \[8, 128\]"),
    "hp name": (
        {"hp_config": HyperparameterConfig(learning_rate=RLParameter(0, 1))},
        "'learning_rate' is not a number of PPO that can evolve",
    ),
    "hp value": ({"hp_config": HyperparameterConfig(lr=RLParameter(1e-2, 1e-1))}, r"lr=0\.0001"),
    "hp range": ({"hp_config": HyperparameterConfig(gamma=RLParameter(0.5, 1.5))}, r"hp_config\.gamma\.max=1\.5"),
    "seed": ({"seed": -1}, "seed=-1 must be a non-negative integer"),
    "large seed": ({"seed": 2**128}, rf"seed={2**128} must be a non-negative integer below 2\*\*128"),
    "num_envs": ({"num_envs": 0}, "num_envs=0"),
    "large index": ({"index": 2**63}, rf"index={2**63} must be a non-negative integer below 2\*\*63"),
    "index": ({"index": "a"}, "index='a' must be a non-negative integer"),
    "device": ({"device": "gpu"}, "device='gpu' cannot be used: .*; allowed here: 'cpu'"),
    "device that is not here": ({"device": "cuda:99"}, "device='cuda:99' cannot be used: .*; allowed here: 'cpu'"),
}


@pytest.mark.parametrize(("kwargs", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_named_with_its_value(kwargs, message):
    with pytest.raises(ConfigurationError, match=message):
        agent_of(**kwargs)


def test_unsupported_spaces_are_named():
    with pytest.raises(ConfigurationError, match=r"Text"):
        agent_of(gymnasium.spaces.Text(3))
    with pytest.raises(ConfigurationError, match=r"Graph|Text"):
        agent_of(observation_space=gymnasium.spaces.Text(3))
    with pytest.raises(ConfigurationError, match="squash_output=True needs finite bounds"):
        agent_of(gymnasium.spaces.Box(-np.inf, np.inf, (1,)), squash_output=True)
    with pytest.raises(ConfigurationError, match="squash_output=True is for Box actions"):
        agent_of(squash_output=True)


DEPENDENT = {
    "kl": {"lr_schedule": "kl", "lr": 1e-3},
    "schedule": {"lr_schedule": "linear"},
    "n-step": {"advantage": "n_step"},
    "counts by env": {
        "num_steps": 16,
        "num_minibatches": 2,
        **{name: getattr(PPOConfig, name) for name in ("learn_step", "batch_size")},
    },
}
"""Settings that others need to have a meaning."""
NEEDS = {
    **dict.fromkeys(("lr_min", "lr_max", "kl_threshold", "kl_factor", "lr_factor"), "kl"),
    "lr_end": "schedule",
    "n_step": "n-step",
    **dict.fromkeys(("num_steps", "num_minibatches"), "counts by env"),
}
RANGES = {
    "action_std_init": RLParameter(-1, 1),
    "action_std_min": RLParameter(-20, -1),
    "action_std_max": RLParameter(0, 2),
    "action_noise_correlation": RLParameter(0, 0.99),
    "random_steps": RLParameter(0, 64),
    "learning_starts": RLParameter(0, 64),
    "weight_decay": RLParameter(0, 0.1),
    "lr_end": RLParameter(0, 1e-3),
    "lr_min": RLParameter(1e-7, 1e-5),
    "lr_max": RLParameter(1e-2, 1e-1),
    "kl_factor": RLParameter(1.5, 3),
    "lr_factor": RLParameter(1.1, 3),
}


@pytest.mark.parametrize("needed", [None, *DEPENDENT])
def test_every_number_of_ppo_can_evolve(needed):
    names = [name for name in evolvable_settings(PPOConfig) if NEEDS.get(name) == needed]
    wholes = [name for name in names if is_whole(PPOConfig, name)]
    ranges = {name: RLParameter(1, 64) if name in wholes else RLParameter(1e-5, 1.0) for name in names}
    ranges |= {name: its for name, its in RANGES.items() if name in names}
    numbers = {"clip_coef_vf": 0.2, "target_kl": 0.1, "lr_critic": 1e-3, "reward_clip": 1.0} | DEPENDENT.get(needed, {})
    agent = agent_of(hp_config=HyperparameterConfig(**ranges), **numbers)
    assert set(agent.hyperparameters) == set(names)
    assert all(agent.hp_config[name].dtype is int for name in wholes)
    assert {name for name in wholes if type(agent.genome.hyperparameters[name]) is not int} == set()


def test_integer_settings_evolve_as_integers():
    agent = agent_of(hp_config=HyperparameterConfig(learn_step=RLParameter(16, 64)))
    assert agent.hp_config["learn_step"].dtype is int


def test_the_test_method_runs_exactly_loop_episodes():
    env = make_vect_envs("CartPole-v1", num_envs=4, backend="sync")
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0, net_config=SMALL)
    heard = []
    for loop in (1, 3, 4, 7):
        heard.clear()
        score = agent.test(env, loop=loop, callback=lambda score, info: heard.append((score, info["episode_length"])))
        assert len(heard) == loop
        assert score == np.mean([s for s, _ in heard])
        assert all(s == length for s, length in heard)  # CartPole pays 1 a step
    assert agent.fitness[-1] == agent.test(env, loop=7)  # the same seeds
    assert agent.test(env, loop=2, max_steps=5) == 5.0
    single = gymnasium.make("CartPole-v1")
    assert agent.test(single, loop=3, vectorized=False) == agent.test(env, loop=3)
    for wrong, message in (({"loop": 0}, "loop=0"), ({"max_steps": "long"}, "max_steps='long' must be at least 1")):
        with pytest.raises(ConfigurationError, match=message):
            agent.test(env, **wrong)


@pytest.mark.parametrize("wrong", ["CartPole-v1", None, gymnasium.envs.classic_control.CartPoleEnv, gymnasium.make])
def test_a_test_needs_an_environment(wrong):
    agent = agent_of()
    with pytest.raises(ConfigurationError, match=r"^env=.*; allowed is an environment, such as gymnasium\.make"):
        agent.test(wrong)
    assert agent.fitness == []


def test_agilerl_names_are_there():
    agent = agent_of(hp_config=HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)), mut="mine")
    assert agent.mut == "mine"
    assert (agent.get_action_dim, agent.get_state_dim) == (3, 4)
    assert (PPO.get_action_dim(agent.action_space), PPO.get_state_dim(BOX)) == (3, 4)
    assert PPO.get_action_dim(gymnasium.spaces.MultiDiscrete([2, 5])) == 7
    assert set(agent.evolvable_attributes()) == {"actor", "critic", "lr"}
    assert set(agent.evolvable_attributes(networks_only=True)) == {"actor", "critic"}
    assert agent.get_policy() is agent.actor
    assert agent.get_initial_hidden_state(3) == {}
    agent.recompile()
    agent.clean_up()
    with pytest.raises(ConfigurationError, match="hidden_state is given"):
        agent.get_action(np.zeros((1, 4)), hidden_state={"actor": torch.zeros(1, 2, 64)})


def test_forward_hooks_on_layers_of_a_single_agent_run_in_acting_and_learning():
    agent, calls = agent_of(), []
    experiences = experiences_of(agent)
    linear, activation = agent.actor.encoder.linears[0], agent.actor.encoder.activations[0]
    for layer in (linear, activation):
        layer.register_forward_hook(lambda _, inputs, outputs: calls.append((outputs, torch.is_grad_enabled())))
    agent.get_action(np.ones((3, 4), dtype=np.float32))
    (sums, learns), (outputs, _) = calls
    assert not learns
    assert sums.shape == (3, len(linear.weight))
    assert torch.equal(outputs, torch.relu(sums))  # sums are not overwritten by the activation
    agent.learn(experiences)
    assert any(learns for _, learns in calls)


def test_backward_hooks_on_layers_of_a_single_agent_run_in_learning():
    agent, calls = agent_of(), []
    experiences = experiences_of(agent)
    linear = agent.actor.head.linears[-1]
    linear.register_full_backward_hook(lambda _, inputs, outputs: calls.append((inputs[0].shape, outputs[0].shape)))
    agent.learn(experiences)
    (inputs, outputs), *_ = calls
    assert (inputs[-1], outputs[-1]) == (linear.weight.shape[1], linear.weight.shape[0])


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (gymnasium.spaces.Discrete(2), 7, r"actions=7; allowed are those of Discrete\(2\)"),
        (gymnasium.spaces.Discrete(2), 0.7, r"actions=0\.7; allowed are those of Discrete\(2\)"),
        (gymnasium.spaces.Discrete(3, start=5), 0, r"actions=0; allowed are those of Discrete\(3, start=5\)"),
        (gymnasium.spaces.MultiDiscrete([2, 2]), [0, 5], r"actions=5; allowed are those of MultiDiscrete"),
        (gymnasium.spaces.MultiBinary(2), [0, 3], r"actions=3; allowed are those of MultiBinary\(2\)"),
        (gymnasium.spaces.Box(-1, 1, (1,)), [np.nan], "actions=nan; allowed are finite numbers"),
        (gymnasium.spaces.Discrete(2), [0, 1], "actions has [0-9]+ numbers; allowed are [0-9]+"),
    ],
)
def test_actions_that_do_not_fit_are_refused(space, action, message):
    agent = agent_of(space)
    states, actions, *others = experiences_of(agent, steps=4)
    wrong = np.stack([np.asarray(action)] * 2)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        agent.evaluate_actions(states[0], wrong)
    with pytest.raises(ConfigurationError, match=f"^experiences: {message}"):
        agent.learn((states, [wrong] * 4, *others))
    agent.learn((states, actions, *others))


def test_steps_of_different_numbers_of_actions_are_refused():
    agent = agent_of()
    states, actions, *others = experiences_of(agent, steps=4)
    with pytest.raises(ConfigurationError, match=r"actions has steps of shapes \[\(1,\), \(2,\)\]"):
        agent.learn((states, [*actions[:3], actions[3][:1]], *others))


def test_actions_of_rows_that_did_not_act_may_be_anything():
    agent = agent_of(gymnasium.spaces.Discrete(3, start=5))
    experiences = experiences_of(agent, steps=4)
    acting = [np.array([True, step != 2]) for step in range(4)]
    for filler in (0, 5):
        actions = [row.copy() for row in experiences[1]]
        actions[2][1] = filler
        agent.learn((experiences[0], actions, *experiences[2:]), acting=acting)


def test_the_inputs_of_mixed_observations_are_numbers_and_not_bytes():
    mixed = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8), speed=gymnasium.spaces.Box(-1, 1, (3,))
    )
    assert PPO.get_state_dim(mixed) == 3 * 8 * 8 + 3
