"""Agents that remember: within an episode and not across, while they act, learn, are tested, mutated and saved."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from recurrent_envs import Walk

from agilerl_like import PPO, ConfigurationError, Population, make_vect_envs
from agilerl_like.algorithms.agilerl_experiences import as_rollout
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Mutation, Offspring
from agilerl_like.learning.advantages import AdvantageEstimator, compute_advantages
from agilerl_like.learning.sequences import SequenceSplit
from agilerl_like.modules.param_stack import ParamStack
from agilerl_like.networks.recurrent_state import SequenceInfo
from agilerl_like.training.collector import Collector, PhaseTimer

ENVS, STEPS = 4, 12
MODES = {mode.name: mode for mode in AutoresetMode}
MLP = {"hidden_size": [16], "activation": "Tanh"}
SIZES = {"encoder_config": MLP, "head_config": {**MLP, "output_vanish": False}, "latent_dim": 16}
LSTM = {"hidden_state_size": 16}


def world(*, truncates=True):
    return partial(Walk, truncates=truncates)


def settings_of(memory=LSTM, **kwargs):
    usual = {"seed": 3, "num_envs": ENVS, "learn_step": ENVS * STEPS, "batch_size": 24, "lr": 1e-2, "recurrent": True}
    return {**usual, "net_config": {**SIZES, "memory_config": memory}, **kwargs}


SPACES = Walk.observation_space, Walk.action_space


def agent_of(**kwargs):
    return PPO(*SPACES, **settings_of(**kwargs))


def population_of(size=2, **kwargs):
    return PPO.population(size, *SPACES, **settings_of(**kwargs))


def collector_of(population, env):
    collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset(range(len(collector.population)))
    return collector


def sync(members=2, *, mode=AutoresetMode.SAME_STEP, **kwargs):
    return SyncVectorEnv([world(**kwargs)] * (members * ENVS), autoreset_mode=mode)


def at_start(observations):
    return observations[..., 0] == 0


def over(observations):
    """Where the last observation of an episode is seen, and the next action is ignored."""
    return observations[..., 0] == observations[..., 1]


# -- while acting


@pytest.mark.parametrize("truncates", [False, True], ids=["terminates", "truncates"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_hidden_state_is_reset_at_episode_starts(mode, truncates, share):
    population = population_of(share_encoders=share)
    collector = collector_of(population, sync(mode=mode, truncates=truncates))
    expected, starts, overs = collector.groups[""].state.clone(), 0, 0
    for _ in range(30):
        seen = collector.groups[""].observations
        starts, overs = starts + int(at_start(seen).sum()), overs + int(over(seen).sum())
        expected[at_start(seen)] = 0.0
        counts = ~over(seen)
        torch.testing.assert_close(collector.groups[""].state[counts], expected[counts], rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for place, agent in enumerate(population):
                x = agent.network.observation_norm(seen[place])
                expected[place] = agent.network.step(x, collector.groups[""].state[place])[1]
        collector.collect(1)
    assert starts > 2 * ENVS * 5
    assert (overs > 0) == (mode is AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_hidden_states_are_bit_identical_with_two_env_groups(mode):
    whole, parted = (
        collector_of(
            population_of(share_encoders=True),
            make_vect_envs(world(), 2 * ENVS, backend=backend, autoreset=MODES[mode], num_workers=workers),
        )
        for backend, workers in (("sync", None), ("workers", 2))
    )
    assert (len(whole.groups[""].env_groups), len(parted.groups[""].env_groups)) == (1, 2)
    for ticks in (1, STEPS - 1, 7, STEPS - 7):
        for collector in (whole, parted):
            collector.collect(ticks)
        assert torch.equal(whole.groups[""].state, parted.groups[""].state)
        assert torch.equal(whole.groups[""]._initial_state, parted.groups[""]._initial_state)
        for collector in (whole, parted):
            assert (len(collector.learn()) > 0) == (collector.groups[""].steps_since_update[0] == 0)
    for mine, its in zip(whole.population, parted.population, strict=True):
        assert all(torch.equal(*pair) for pair in zip(mine.network.parameters(), its.network.parameters(), strict=True))
    parted.env.close()


def test_rollouts_store_the_hidden_state_before_their_first_step():
    population = population_of(size=3)
    for agent, steps in zip(population, (12, 5, 8), strict=True):
        agent.learn_step, agent.batch_size = ENVS * steps, 8
    collector = collector_of(population, sync(3))
    before, checked = [], 0
    for _ in range(40):
        before.append(collector.groups[""].state.clone())
        collector.collect(1)
        for place, agent in enumerate(population):
            if collector.groups[""].steps_since_update[place] == agent.rollout_steps:
                rollout = collector.groups[""].experience([place], agent.rollout_steps)
                assert torch.equal(rollout.state[0], before[-agent.rollout_steps][place])
                checked += 1
        collector.learn()
    assert checked == 40 // 12 + 40 // 5 + 40 // 8


def test_a_rollout_that_becomes_shorter_restarts():
    """The hidden state at the start of the shorter rollout is unknown."""
    population = population_of()
    collector = collector_of(population, sync())
    collector.collect(7)
    population[0].learn_step, population[0].batch_size = 5 * ENVS, 8
    assert collector.learn() == {}
    assert collector.groups[""].steps_since_update.tolist() == [0, 7]
    begins = collector.groups[""].state[0].clone()
    collector.collect(5)
    assert torch.equal(collector.groups[""].experience([0], 5).state[0], begins)
    assert [*collector.learn()] == [0, 1]


def test_a_plain_member_beside_a_recurrent_one_learns_from_a_shortened_rollout():
    recurrent = agent_of(index=1)
    plain = agent_of(recurrent=False, net_config=SIZES)
    collector = collector_of(Population([plain, recurrent]), sync())
    collector.collect(7)
    for agent in (plain, recurrent):
        agent.learn_step, agent.batch_size = 5 * ENVS, 8
    assert [*collector.learn()] == [0]
    assert (plain.learner.updates, recurrent.learner.updates) == (1, 0)


# -- through births


def born(population, slot, parent, uid, *mutations):
    """A birth with these mutations, as evolution would write it down."""
    agent = population[parent]
    genome = agent.genome
    for change in mutations:
        genome = genome.replace(architecture=genome.architecture.apply(change.operator, **change.details))
    return Offspring(1, slot, uid, agent.index, parent, genome, mutations)


def change(operator, **details):
    return Mutation("architecture", operator, details)


def deafen(agent, units):
    """Zero the outgoing weights of some units of the recurrent networks."""
    with torch.no_grad():
        for branch in (agent.network.actor, agent.network.critic):
            for cell in branch.memory.cells:
                if hasattr(cell, "recurrent_weight"):
                    cell.recurrent_weight[..., units] = 0.0
            branch.head.linears[0].weight[:, units] = 0.0


CHANGES = {
    "wider": change("memory.add_node", nodes=32),
    "deeper": change("memory.add_layer", layer=1),
    "narrower": change("memory.remove_node", nodes=16),
    "elsewhere": change("encoder.add_node", layer=0, nodes=16),
}


@pytest.mark.parametrize("done", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "minGRU"])
def test_a_mutated_survivor_keeps_its_hidden_state(done, cell):
    population = population_of(memory={"cell": cell, "hidden_state_size": 40})
    deafen(population[0], torch.arange(3, 19))
    collector = collector_of(population, sync())
    collector.collect(STEPS)
    collector.learn()
    deafen(population[0], torch.arange(3, 19))  # it has learned to listen
    collector.collect(5)
    old, before = (
        [agent.clone() for agent in population],
        [collector.groups[""].state, collector.groups[""]._initial_state],
    )
    population.evolve([born(population, 0, 0, 0, done), born(population, 1, 1, 1)])
    assert population[0].mut == done.operator
    assert collector.collect(0) == 0
    assert collector.groups[""].steps_since_update.tolist() == [5, 5]
    x = collector.groups[""].observations
    with torch.no_grad():
        for then, now in zip(before, (collector.groups[""].state, collector.groups[""]._initial_state), strict=True):
            assert then[:, ~at_start(x)[0]].any()
            for place, (parent, heir) in enumerate(zip(old, population, strict=True)):
                seen = parent.network.observation_norm(x[place])
                room, its_room = parent.network.state_shape, heir.network.state_shape
                its = then[place][..., : room[1], : room[2]], now[place][..., : its_room[1], : its_room[2]]
                outputs = [agent.network.step(seen, state)[0] for agent, state in zip((parent, heir), its, strict=True)]
                torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
    assert not collector.groups[""].state[1, ..., 40:].any()
    collector.collect(STEPS - 5)
    assert [*collector.learn()] == [0, 1]


def test_a_replaced_member_starts_with_zero_hidden_state():
    population = population_of(size=3)
    collector = collector_of(population, sync(3))
    collector.collect(STEPS)
    collector.learn()
    collector.collect(5)
    kept = collector.groups[""].state.clone(), collector.groups[""]._initial_state.clone()
    wider = born(population, 1, 0, 7, change("memory.add_layer", layer=1), change("memory.add_node", nodes=16))
    population.evolve([born(population, 0, 0, 0), wider, born(population, 2, 2, 2)])
    collector.reset_member(1)
    for state, before in zip((collector.groups[""].state, collector.groups[""]._initial_state), kept, strict=True):
        assert state.shape[-2:] == (4, 32)
        assert not state[1].any()
        assert torch.equal(state[[0, 2], ..., :2, :16], before[[0, 2]])
        assert not state[[0, 2], ..., 2:, :].any()
        assert not state[[0, 2], ..., 16:].any()
    assert collector.groups[""].steps_since_update.tolist() == [5, 0, 5]
    # what was carried over once is not carried over again
    collector.collect(1)
    state = collector.groups[""].state[1].clone()
    population.evolve(
        [
            born(population, i, i, agent.index, *([CHANGES["elsewhere"]] if i else []))
            for i, agent in enumerate(population)
        ]
    )
    collector.collect(0)
    assert torch.equal(collector.groups[""].state[1], state)


# -- by hand


def loop(agent, steps=6, batch=3, seed=0):
    """What an agent does by hand on random observations, as (observation, memory before, reply)."""
    rng, hidden, found = np.random.default_rng(seed), agent.get_initial_hidden_state(batch), []
    for _ in range(steps):
        obs = rng.normal(size=(batch, 2)).astype(np.float32)
        reply = agent.get_action(obs, hidden_state=hidden)
        found.append((obs, hidden, reply))
        hidden = reply[4]
    return found


KINDS = {
    "LSTM": {"memory": LSTM},
    "shared": {"memory": LSTM, "share_encoders": True},
    "GRU of two layers": {"memory": {**LSTM, "cell": "GRU", "num_layers": 2}},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_get_action_and_predict_follow_the_network_step_by_step(kind):
    agent = agent_of(**kind)
    found = loop(agent)
    first = found[0][1]
    assert not any(state.any() for state in first.values())
    assert [*first] == (["shared"] if kind.get("share_encoders") else ["actor", "critic"])
    for obs, hidden, (action, *said, _) in found:
        again = agent.evaluate_actions(obs, action, hidden_state=hidden)
        for mine, its in zip(said, again, strict=True):
            np.testing.assert_allclose(mine, its.detach().numpy(), rtol=1e-5, atol=1e-5)
    rows = torch.from_numpy(np.stack([obs for obs, *_ in found], 1)).flatten(0, 1)  # [3 L, D]
    course = SequenceInfo.beginning(torch.zeros(3, 6, 2), agent.network.state_shape, torch.float32)
    with torch.no_grad():
        values = agent.network.value(agent.network.observation_norm(rows), course).view(3, 6)
    np.testing.assert_allclose(np.stack([reply[3] for *_, reply in found], 1), values, rtol=1e-5, atol=1e-5)
    forgetful = [agent.get_action(obs)[3] for obs, *_ in found]
    np.testing.assert_allclose(forgetful[0], found[0][2][3], rtol=1e-5, atol=1e-5)
    assert np.abs(forgetful[-1] - found[-1][2][3]).max() > 1e-3


def test_gradients_flow_from_evaluate_actions():
    agent = agent_of()
    obs, hidden, reply = loop(agent)[-1]
    log_prob, _, value = agent.evaluate_actions(obs, reply[0], hidden_state=hidden)
    (log_prob.sum() + value.sum()).backward()
    for branch in (agent.network.actor, agent.network.critic):
        assert all(parameter.grad.any() for parameter in branch.memory.parameters())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_predict_resets_the_hidden_state_at_episode_start(kind):
    agent = agent_of(**kind)
    agent.set_training_mode(False)
    obs, (_, state, _) = np.ones((3, 2), np.float32), loop(agent)[-1]
    action, after = agent.predict(obs, state, deterministic=True)
    reply = agent.get_action(obs, hidden_state=state)
    np.testing.assert_array_equal(action, reply[0])
    assert all(torch.equal(after[name], reply[4][name]) for name in after)
    _, mixed = agent.predict(obs, state, episode_start=np.array([True, False, True]), deterministic=True)
    _, fresh = agent.predict(obs, deterministic=True)
    for name, its in mixed.items():
        torch.testing.assert_close(its[[0, 2]], fresh[name][[0, 2]])
        torch.testing.assert_close(its[1], after[name][1])
        assert (its[0] - after[name][0]).abs().max() > 1e-3
    single, its_state = agent.predict(obs[0], {name: its[:1] for name, its in state.items()}, deterministic=True)
    assert single == action[0]
    torch.testing.assert_close(
        *(torch.cat([*its.values()]) for its in (its_state, {n: v[:1] for n, v in after.items()}))
    )


def wrong_memories(agent):
    right = agent.get_initial_hidden_state(3)
    return {
        "another batch": agent.get_initial_hidden_state(2),
        "no critic": {"actor": right["actor"]},
        "another size": {**right, "critic": right["critic"][..., :-1]},
        "a name of another": {"shared": right["actor"]},
    }


@pytest.mark.parametrize("what", wrong_memories(agent_of()))
def test_hidden_states_of_wrong_shape_are_refused(what):
    agent, obs = agent_of(), np.zeros((3, 2), np.float32)
    hidden = wrong_memories(agent)[what]
    for ask in (
        lambda: agent.get_action(obs, hidden_state=hidden),
        lambda: agent.evaluate_actions(obs, np.zeros(3), hidden_state=hidden),
        lambda: agent.predict(obs, hidden),
    ):
        with pytest.raises(ConfigurationError, match=r"state has shapes .* allowed is \(3, 2, 16\) for each"):
            ask()


def test_without_sequence_info_each_row_is_a_first_step():
    agent = agent_of()
    rows = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    expected, _ = agent.network.evaluate(rows, agent.network.sequence_info_of(rows))
    torch.testing.assert_close(agent.actor(rows), expected)


def test_hidden_states_of_wrong_type_are_refused():
    agent = agent_of()
    obs = np.zeros((3, *agent.observation_space.shape), np.float32)
    with pytest.raises(ConfigurationError, match="hidden_state is a Tensor; allowed is a mapping"):
        agent.get_action(obs, hidden_state=torch.zeros(3, 2, 16))
    with pytest.raises(ConfigurationError, match=r"episode_start has shape \(2,\); allowed is \(3,\), one for each"):
        agent.predict(obs, episode_start=np.zeros(2, bool))
    numbers = {name: state.numpy() for name, state in agent.get_initial_hidden_state(3).items()}
    agent.get_action(obs, hidden_state=numbers)  # numpy will do


def test_hidden_states_of_feedforward_agents_are_refused():
    agent = PPO(*SPACES, **{**settings_of(recurrent=False), "net_config": SIZES})
    assert agent.get_initial_hidden_state(3) == {}
    with pytest.raises(ConfigurationError, match="hidden_state is given, but this agent is not recurrent"):
        agent.get_action(np.zeros((3, 2), np.float32), hidden_state=agent_of().get_initial_hidden_state(3))
    masks = {"action_mask": np.ones((3, 2))}
    with pytest.raises(ConfigurationError, match=r"^state is given, but this agent is not recurrent"):
        agent.predict(np.zeros((3, 2), np.float32), masks)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_seq_len": 0}, r"max_seq_len=0"),
        ({"max_seq_len": -3}, r"max_seq_len=-3"),
        ({"bptt_sequence_type": "half"}, r"bptt_sequence_type='half'"),
        (
            {"recurrent": False, "net_config": {}, "max_seq_len": 4},
            "max_seq_len=4: has no meaning with recurrent=False",
        ),
        ({"memory": {"hidden_size": 16}}, "'hidden_size' is unknown"),
    ],
)
def test_wrong_settings_are_named(given, message):
    with pytest.raises(ConfigurationError, match=message):
        agent_of(**given)


def test_max_seq_len_of_the_encoder_config_is_the_default():
    recurrent = {"encoder_config": {"hidden_state_size": 32, "num_layers": 1, "max_seq_len": 512}}
    assert agent_of(net_config=recurrent).max_seq_len == 512
    assert agent_of(net_config=recurrent).architecture.memory.hidden_state_size == 32
    assert agent_of(net_config=recurrent, max_seq_len=4).max_seq_len == 4
    with pytest.raises(ConfigurationError, match=r"max_seq_len=0"):
        agent_of(net_config={"memory_config": {"max_seq_len": 0}})
    with pytest.raises(ConfigurationError, match=r"encoder_config key='hidden_state_size' is unknown"):
        agent_of(net_config=recurrent, recurrent=False)


def experiences_of(agent, seed=0, steps=STEPS, hidden=None, begins=None):
    """Experiences of a hand-written loop that resets hidden states at episode ends; it may start with given ones."""
    return loop_by_hand(agent, seed, steps, hidden, begins)[0]


def loop_by_hand(agent, seed=0, steps=STEPS, hidden=None, begins=None):
    """Experiences, and the hidden state after them."""
    rng, columns = np.random.default_rng(seed), [[] for _ in range(6)]
    hidden = agent.get_initial_hidden_state(ENVS) if hidden is None else hidden
    begins = np.ones(ENVS) if begins is None else begins
    for _ in range(steps):
        obs = rng.normal(size=(ENVS, 2)).astype(np.float32)
        hidden = {name: state * torch.from_numpy(1 - begins).float().view(-1, 1, 1) for name, state in hidden.items()}
        action, log_prob, _, value, hidden = agent.get_action(obs, hidden_state=hidden)
        for column, entry in zip(columns, (obs, action, log_prob, rng.normal(size=ENVS), begins, value), strict=True):
            column.append(entry)
        begins = (rng.random(ENVS) < 0.2).astype(float)
    return (*columns, rng.normal(size=(ENVS, 2)), begins), hidden


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("in_episode", [False, True])
def test_hand_written_loops_and_updates_compute_equal_log_probs_and_values(kind, in_episode):
    agent = agent_of(normalize_observation=False, normalize_value=False, **kind)
    experiences, hidden = loop_by_hand(agent)
    hidden_state_before = None
    if in_episode:  # some envs are in the midst of an episode, others begin one
        hidden_state_before = hidden
        experiences = experiences_of(agent, 1, hidden=hidden, begins=np.array([0.0, 1.0, 0.0, 0.0]))
    rollout, precomputed = as_rollout(
        experiences,
        agent.learner.encode,
        agent.learner.raw_actions,
        hidden_state_before=lambda begins: agent.learner._begin_rollout(hidden_state_before, begins),
    )
    network, one = ParamStack.of([agent.clone().network]).module, torch.ones(1)
    batch, _ = compute_advantages(
        network, rollout, AdvantageEstimator(one, one), cut=SequenceSplit(STEPS, STEPS)
    )  # [1, E, T]
    torch.testing.assert_close(batch.old_log_probs[0].T, precomputed.old_log_probs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch.old_values[0].T, precomputed.old_values[0], rtol=1e-4, atol=1e-5)


def test_a_rollout_that_begins_while_agents_wait_continues_their_hidden_states():
    agent, begins = agent_of(normalize_observation=False, normalize_value=False), np.array([0.0, 1.0, 0.0, 0.0])
    before = agent.get_action(np.ones((ENVS, 2), np.float32), hidden_state=agent.get_initial_hidden_state(ENVS))[-1]
    hidden = {name: state * torch.from_numpy(1 - begins).float().view(-1, 1, 1) for name, state in before.items()}
    acting, rows = np.array([[step >= 2, True, step % 2 == 1, True] for step in range(STEPS)]), []
    for step in range(STEPS):
        obs = np.full((ENVS, 2), np.sin(step), np.float32)
        action, log_prob, _, value, hidden = agent.get_action(obs, hidden_state=hidden)
        rows.append((obs, action, log_prob, np.zeros(ENVS), np.zeros(ENVS) if step else begins, value))
    rollout, precomputed = as_rollout(
        (*(list(column) for column in zip(*rows, strict=True)), obs, np.zeros(ENVS)),
        agent.learner.encode,
        agent.learner.raw_actions,
        hidden_state_before=lambda begins: agent.learner._begin_rollout(before, begins),
        acting=list(acting),
    )
    network, one = ParamStack.of([agent.clone().network]).module, torch.ones(1)
    batch, _ = compute_advantages(network, rollout, AdvantageEstimator(one, one), cut=SequenceSplit(STEPS, STEPS))
    for found, expected in (
        (batch.old_log_probs, precomputed.old_log_probs),
        (batch.old_values, precomputed.old_values),
    ):
        torch.testing.assert_close(found[0].T[acting], expected[0][acting], rtol=1e-4, atol=1e-5)


def test_learn_in_mid_episode_warns_without_hidden_state():
    agent = agent_of()
    _, hidden = loop_by_hand(agent)
    experiences = experiences_of(agent, 1, hidden=hidden, begins=np.zeros(ENVS))
    with_state, without_state, initial_hidden_state = agent, agent.clone(), agent.clone()
    with_state.learn(experiences, hidden_state=hidden)
    with pytest.warns(UserWarning, match=r"in the midst of an episode .* hidden_state is missing"):
        without_state.learn(experiences)
    initial_hidden_state.learn(experiences, hidden_state=agent.get_initial_hidden_state(ENVS))
    weights = [
        torch.cat([p.detach().flatten() for p in one.network.parameters()])
        for one in (with_state, without_state, initial_hidden_state)
    ]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_without_max_seq_len_a_hand_written_rollout_is_one_sequence():
    short, whole = (agent_of(learn_step=2 * ENVS, batch_size=8, **more) for more in ({}, {"max_seq_len": STEPS}))
    assert short.settings()["max_seq_len"] is None
    losses = [agent.learn(experiences_of(agent)) for agent in (short, whole)]
    assert losses[0] == losses[1]


def test_max_seq_len_of_a_loaded_agent_may_be_set_to_none():
    agent = agent_of(max_seq_len=4)
    loaded = PPO.from_documents(*agent.to_documents(), device="cpu", where="memory")
    agent.max_seq_len = loaded.max_seq_len = None
    assert loaded.learner.cut_of(STEPS) == agent.learner.cut_of(STEPS) == SequenceSplit(STEPS, STEPS)


def test_a_hidden_state_that_does_not_fit_is_an_error_of_learn():
    agent = agent_of()
    experiences, hidden = loop_by_hand(agent)
    narrow = {name: state[:1] for name, state in hidden.items()}
    with pytest.raises(ConfigurationError, match=r"hidden_state has shapes .*\(1, 2, 16\).*; allowed is \(4, 2, 16\)"):
        agent.learn(experiences, hidden_state=narrow)
    endless = {name: state * np.inf for name, state in hidden.items()}
    with pytest.raises(ConfigurationError, match="hidden_state holds numbers that are not finite"):
        agent.learn(experiences, hidden_state=endless)
    obs = np.zeros((ENVS, 2), np.float32)
    with pytest.raises(ConfigurationError, match="hidden_state holds numbers that are not finite"):
        agent.get_action(obs, hidden_state=endless)
    with pytest.raises(ConfigurationError, match="state holds numbers that are not finite; allowed is what the agent"):
        agent.predict(obs, endless)
    with pytest.raises(ConfigurationError, match="hidden_state is given, but this agent is not recurrent"):
        agent_of(recurrent=False, net_config=SIZES).learn(experiences, hidden_state=hidden)


# -- copies, files, tests

EVERYTHING = {
    "memory": {**LSTM, "cell": "GRU", "num_layers": 2, "dropout": 0.2},
    "max_seq_len": 5,
    "bptt_sequence_type": "fifty_percent_overlap",
    "share_encoders": True,
}


def test_clones_and_loaded_agents_continue_bit_identically(tmp_path):
    agent = agent_of(**EVERYTHING)
    agent.learn(experiences_of(agent))
    others = [PPO.load(agent.save_checkpoint(tmp_path / "agent")), agent.clone(), agent_of(**EVERYTHING)]
    others[2].load_checkpoint(tmp_path / "agent")
    for seed in (1, 2):
        loss = agent.learn(experiences_of(agent, seed))
        assert [other.learn(experiences_of(other, seed)) for other in others] == [loss] * 3
    for other in others:
        assert other.settings() == agent.settings()
        assert other.learner.cut_of(8) == agent.learner.cut_of(8) == SequenceSplit(5, 2)
        assert all(
            torch.equal(*pair)
            for pair in zip(agent.to_documents()[1].values(), other.to_documents()[1].values(), strict=True)
        )


def stubborn(agent, seed):
    """Give an agent large weights, so that with some seeds its hidden state determines its actions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return agent


def scores_by_hand(agent, seeds, *, forgets=False):
    scores = []
    agent.set_training_mode(False)
    for seed in seeds:
        env, score, over, hidden = Walk(), 0.0, False, agent.get_initial_hidden_state(1)
        obs, _ = env.reset(seed=seed)
        while not over:
            action, *_, after = agent.get_action(obs[None], hidden_state=hidden)
            hidden = hidden if forgets else after
            obs, reward, terminated, truncated, _ = env.step(action[0])
            score, over = score + reward, terminated or truncated
        scores.append(score)
    return scores


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_hidden_state_lasts_for_one_test_episode(mode):
    population, seeds = population_of(), list(range(10))
    for agent, seed in zip(population, (4, 7), strict=True):
        stubborn(agent, seed)
    expected = [scores_by_hand(agent.clone(), seeds) for agent in population]
    assert expected[0] != scores_by_hand(population[0].clone(), seeds, forgets=True)
    env = VecEnvAdapter(sync(mode=mode))  # 4 envs of each member: three rounds
    np.testing.assert_array_equal(population.run_episodes(env, seeds).returns, expected)
    np.testing.assert_array_equal(population[1].run_episodes(env, seeds).returns[0], expected[1])


@pytest.mark.slow
def test_a_saved_population_continues_bit_identically(tmp_path):
    population = population_of(**{**EVERYTHING, "share_encoders": False})
    population.evolve([born(population, 0, 0, 0), born(population, 1, 1, 1, change("memory.add_node", nodes=16))])
    collector = collector_of(population, sync())
    for _ in range(2):
        collector.collect(STEPS)
        collector.learn()
    loaded = type(population).load(population.save_checkpoint(tmp_path / "population"))
    weights = []
    for each in (population, loaded):
        collector = collector_of(each, sync())
        for _ in range(2):
            collector.collect(STEPS)
            collector.learn()
        weights.append(torch.cat([p.flatten() for agent in each for p in agent.network.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    "kinds",
    [
        [{"share_encoders": True}, {}],
        [{}, {"share_encoders": True}],
        [{"max_seq_len": 1}, {"recurrent": False}],
        [{"recurrent": False}, {"memory": {**LSTM, "cell": "GRU"}}],
    ],
    ids=["shared and not", "not and shared", "one step and none", "none and GRU"],
)
def test_members_of_different_kinds_compute_as_each_alone(kinds):
    def agent(place):
        given = settings_of(**kinds[place])
        if not given["recurrent"]:
            given["net_config"] = SIZES
        return PPO(*SPACES, index=place, **given)

    together = Population([agent(0), agent(1)])
    collectors = [collector_of(together, sync())]
    for place in (0, 1):
        env = sync(1)
        alone = Collector(Population([agent(place)]), VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
        alone.reset([place])
        collectors.append(alone)
    for collector in collectors:
        for _ in range(2):
            collector.collect(STEPS)
            collector.learn()
    for member, alone in zip(together, collectors[1:], strict=True):
        for mine, its in zip(member.network.parameters(), alone.population[0].network.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
