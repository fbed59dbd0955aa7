"""Tabular Q-learning: the update against a plain loop, runs, files, evolution, exports, and what is refused."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import StopAfter

from agilerl_like import (
    HyperparameterConfig,
    Mutations,
    Population,
    QLearning,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_off_policy,
)
from agilerl_like.cli import main
from agilerl_like.cli.found import found_yaml
from agilerl_like.config import load
from agilerl_like.envs.probe_envs import PROBES
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.export.numpy_policy import load_numpy_policy
from agilerl_like.learning.q_learning_update import QLearningUpdate
from agilerl_like.learning.replay_buffer import Batch
from agilerl_like.reporting import Callback
from agilerl_like.saved_runs import Run
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.probe import solve, suits

RUN = {"max_steps": 320, "evo_steps": 80, "eval_loop": 1, "eval_steps": 20, "verbose": False, "checkpoint": 160}
STATES, ACTIONS = 5, 3


pytestmark = pytest.mark.usefixtures("empty_folder")


# -- the update


def q_learning(table, visits, transitions, lr, gamma, decay=0.0):
    """Plain Q-learning in float32: one transition after another."""
    f = np.float32
    for state, action, reward, ends, following, legal in transitions:
        best = table[following][legal].max()
        goal = f(reward) if ends or gamma == 0 else f(f(reward) + f(f(gamma) * best))
        visits[state, action] += 1
        rate = f(np.float64(f(lr)) * np.float64(visits[state, action]) ** -np.float64(f(decay)))
        table[state, action] += f(rate * f(goal - table[state, action]))


@st.composite
def problems(draw):
    members, size = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    state, action = st.integers(0, STATES - 1), st.integers(0, ACTIONS - 1)
    mask = st.lists(st.booleans(), min_size=ACTIONS, max_size=ACTIONS).filter(any)
    reward = st.integers(-8, 8).map(lambda number: number / 4)
    row = st.tuples(state, action, reward, st.booleans(), state, mask, st.integers(0, 3).map(bool))
    rows = [draw(st.lists(row, min_size=size, max_size=size)) for _ in range(members)]
    share = st.floats(0.0625, 1.0, width=32)
    rates = [draw(st.tuples(share, share, st.sampled_from([0.0, 0.5, 1.0]))) for _ in range(members)]
    return rows, rates, draw(st.booleans()), draw(st.booleans())


def table_agents(count, seed=0):
    pop = QLearning.population(count, Discrete(STATES), Discrete(ACTIONS), seed=seed)
    rng = np.random.default_rng(seed)
    for agent in pop:
        agent.network.table.weight.data.copy_(torch.from_numpy(rng.normal(size=(STATES, ACTIONS))))
    return pop


def batch_of(rows, rates, masked):
    columns = [[[row[i] for row in its] for its in rows] for i in range(7)]
    state, action, reward, ends, following, mask, valid = (torch.tensor(column) for column in columns)
    gamma = torch.tensor([rate[1] for rate in rates]).unsqueeze(1)
    return Batch(
        state.unsqueeze(-1).float(),
        action.unsqueeze(-1),
        reward.float(),
        torch.where(ends, 0.0, gamma),
        following.unsqueeze(-1).float(),
        mask if masked else None,
        valid.float(),
    )


@settings(max_examples=40, deadline=None)
@given(problems())
def test_an_update_is_that_of_one_transition_after_another(problem):
    rows, rates, masked, some = problem
    pop = table_agents(len(rows) + some)  # with a further member, which does not learn
    places = [*range(len(rows))][::-1] if some else [*range(len(rows))]
    wanted = [(agent.table, np.zeros((STATES, ACTIONS), np.float32)) for agent in pop]
    for (table, visits), its, (lr, gamma, decay) in zip(wanted, rows, rates, strict=False):
        legal = [np.array(row[5]) if masked else np.ones(ACTIONS, bool) for row in its]
        steps = [(*row[:5], mask) for row, mask in zip(its, legal, strict=True) if row[6]]
        q_learning(table, visits, steps, lr, gamma, decay)
    numbers = torch.tensor([(lr, decay, 0.0) for lr, _, decay in rates])[places]
    batch = batch_of([rows[place] for place in places], [rates[place] for place in places], masked)
    pop.learners.cohort.learn(places, QLearningUpdate(batch, *numbers.unbind(1)))
    for agent, (table, visits) in zip(pop, wanted, strict=True):
        np.testing.assert_array_equal(agent.table, table)
        np.testing.assert_array_equal(agent.network.table.visits.numpy(), visits)


def test_more_transitions_than_are_compared_at_once_are_applied_in_order():
    rng = np.random.default_rng(1)
    size = 300  # of 128 at once
    rows = [
        [
            (int(s), int(a), float(r), bool(e), int(n), [True] * ACTIONS, True)
            for s, a, r, e, n in zip(
                rng.integers(STATES, size=size),
                rng.integers(ACTIONS, size=size),
                rng.normal(size=size).astype(np.float32),
                rng.integers(2, size=size),
                rng.integers(STATES, size=size),
                strict=True,
            )
        ]
    ]
    (agent,) = table_agents(1)
    table, visits = agent.table, np.zeros((STATES, ACTIONS), np.float32)
    q_learning(table, visits, [(*row[:5], np.ones(ACTIONS, bool)) for row in rows[0]], 0.5, 0.75)
    experiences = {
        "obs": np.array([row[0] for row in rows[0]]),
        "action": np.array([row[1] for row in rows[0]]),
        "reward": np.array([row[2] for row in rows[0]]),
        "next_obs": np.array([row[4] for row in rows[0]]),
        "done": np.array([row[3] for row in rows[0]]),
    }
    agent.lr, agent.gamma = 0.5, 0.75
    assert agent.learn(experiences) > 0
    np.testing.assert_array_equal(agent.table, table)


def test_a_number_that_is_not_finite_is_one_error_and_the_table_is_put_back():
    (agent,) = table_agents(1)
    before = agent.table
    row = {"obs": np.array([0]), "action": np.array([0]), "next_obs": np.array([1]), "done": np.array([0])}
    agent.lr = 1.0
    with pytest.raises(PopulationDivergedError, match="not finite"):  # 3e38 - -3e38 is infinite as float32
        agent.learn({name: np.repeat(x, 2) for name, x in row.items()} | {"reward": np.array([-3e38, 3e38])})
    np.testing.assert_array_equal(agent.table, before)
    with pytest.raises(ConfigurationError, match="experiences lack reward"):
        agent.learn(row)
    with pytest.raises(ConfigurationError, match="experiences: reward=nan; allowed are finite numbers"):
        agent.learn({**row, "reward": np.array([np.nan])})
    for action in (-1, ACTIONS):  # the entry of another state
        with pytest.raises(ConfigurationError, match=f"experiences: action={action}; allowed are those of Discrete"):
            agent.learn({**row, "reward": np.array([1.0]), "action": np.array([action])})
    np.testing.assert_array_equal(agent.table, before)


def test_a_table_learns_from_a_next_action_mask_that_allows_nothing_as_from_none():
    agent = QLearning(Discrete(2), Discrete(2), lr=0.1, gamma=0.99)
    row = {"obs": [0], "action": [0], "reward": [1.0], "next_obs": [1], "done": [0]}
    agent.learn({**row, "next_action_mask": [[0, 0]]})
    assert agent.table[0, 0] == pytest.approx(0.1)


def test_masked_actions_do_not_count_however_low_the_values_of_legal_ones_are():
    agent = QLearning(Discrete(2), Discrete(2), initial_value=-1e10, lr=1.0, gamma=0.5)
    row = {"obs": [0], "action": [0], "reward": [0.0], "next_obs": [1], "done": [0]}
    agent.learn({**row, "next_action_mask": [[0, 1]]})
    assert agent.table[0].tolist() == pytest.approx([-5e9, -1e10])
    action, _ = agent.predict(0, action_masks=np.array([False, True]))
    assert action == 1


# -- in environments


class Walk(gymnasium.Env):
    """A walk along ten places, ended by the last one or after six steps; every step is written into a log."""

    observation_space, action_space = Discrete(10, start=3), Discrete(3)

    def __init__(self, log, masked=False):
        self.log, self.masked = log, masked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(8)), 0
        return self.place + 3, self._info()

    def step(self, action):
        assert not self.masked or self._info()["action_mask"][action]
        before, self.steps = self.place, self.steps + 1
        self.place = int(np.clip(self.place + action - 1, 0, 9))
        reward, ends = float(self.place - before) - 0.25, self.place == 9
        legal = self._info().get("action_mask")
        self.log.append((before, int(action), reward, ends, self.place, legal))
        return self.place + 3, reward, ends, self.steps == 6, self._info()

    def _info(self):
        return {"action_mask": np.array([self.place % 2, 1, 1], np.int8)} if self.masked else {}


def collected(members, slots, *, mode, masked=False, envs=4):
    """Return the members and the steps of each env after 60 vector steps."""
    pop = Population(members)
    logs = [[] for _ in range(envs * len(members))]
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda log=log: Walk(log, masked) for log in logs],
        autoreset_mode=getattr(gymnasium.vector.AutoresetMode, mode),
        copy=False,
    )
    for log in logs:
        log.clear()
    setup = SingleAgentEnvSetup(vector)
    collector = setup.make_collector(pop, setup.adapt(vector), PhaseTimer(("env", "act", "learn")))
    collector.reset(slots)
    counts = []
    for step in range(60):
        for member in pop:
            member.progress = step / 60
        collector.collect(1)
        collector.learn()
        counts.append([len(log) for log in logs])
    return pop, logs, counts


def members(count, **more):
    settings = {"seed": 4, "num_envs": 4, "gamma": 0.875, "lr": 0.25, "visit_decay": 0.25, **more}
    return list(QLearning.population(count, Walk.observation_space, Walk.action_space, **settings))


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_table_is_that_of_a_plain_loop_over_the_steps_of_the_envs(mode, masked):
    (agent,), logs, counts = collected(members(1, initial_value=4.0), [0], mode=mode, masked=masked)
    table, visits = np.full((10, 3), 4.0, np.float32), np.zeros((10, 3), np.float32)
    before = [0] * 4
    for count in counts:
        for env, log in enumerate(logs):
            for *row, legal in log[before[env] : count[env]]:  # none in a step in which the env was reset
                mask = legal.astype(bool) if masked else np.ones(3, bool)
                q_learning(table, visits, [(*row, mask)], 0.25, 0.875, 0.25)
        before = count
    np.testing.assert_array_equal(agent.table, table)
    assert sum(len(log) for log in logs) == visits.sum() > 180
    assert any(row[3] for log in logs for row in log)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_members_learn_together_as_alone(mode):
    together = members(3)
    for member, lr in zip(together, (0.1, 0.3, 0.7), strict=True):
        member.lr, member.visit_decay = lr, lr
    pop, _, _ = collected(together, range(3), mode=mode)
    for member, other in zip(pop, members(3), strict=True):
        other.lr, other.visit_decay = member.lr, member.visit_decay
        (alone,), _, _ = collected([other], [other.index], mode=mode)
        assert alone.learner.updates == member.learner.updates == 60
        np.testing.assert_array_equal(alone.table, member.table)
        assert np.abs(alone.table).max() > 0.1


def test_a_value_counts_legal_actions_alone():
    (agent,) = members(1)
    agent.network.table.weight.data[:] = torch.tensor([3.0, 2.0, 1.0])
    places, legal = np.array([5, 6]), np.array([[False, True, True], [False, False, True]])
    np.testing.assert_array_equal(agent.value(places), [3, 3])
    np.testing.assert_array_equal(agent.value(places, legal), [2, 1])
    agent.learner.learned_with_masks = True
    with pytest.warns(UserWarning, match="value was called without them: it may return the value of an illegal action"):
        agent.value(places)


def test_agilerls_names_count_the_table_once():
    agent = QLearning(Discrete(16), Discrete(4), seed=1)
    assert agent.get_state_dim == QLearning.get_state_dim(Discrete(16)) == 1
    assert agent.get_action_dim == QLearning.get_action_dim(Discrete(4)) == 4
    assert [*agent.evolvable_attributes()] == ["actor"]


def test_exploration_falls_over_a_share_of_the_run():
    (agent,) = members(1, eps_start=0.9, eps_end=0.1, eps_share=0.5)
    found = []
    for progress in (0.0, 0.25, 0.5, 0.9):
        agent.progress = progress
        found.append(agent.epsilon)
    assert found == pytest.approx([0.9, 0.5, 0.1, 0.1])
    agent.network.table.weight.data[:, 2] = 1.0
    places = np.full(4000, 5)
    assert (agent.get_action(places) == 2).all()
    random = agent.get_action(places, epsilon=0.6)
    assert np.bincount(random).tolist() == pytest.approx([800, 800, 2400], abs=150)
    legal = np.tile(np.array([True, True, False]), (4000, 1))
    assert set(agent.get_action(places, epsilon=0.6, action_mask=legal).tolist()) == {0, 1}


def test_a_second_run_of_trained_members_warns_that_exploration_begins_again():
    env = make_vect_envs("FrozenLake-v1", num_envs=2, backend="sync")
    agent = QLearning(env.single_observation_space, env.single_action_space, num_envs=2, seed=1)

    def warnings_of_a_run():
        found = []
        callback = Callback()
        callback.on_warning = found.append
        budget = {"max_steps": 16, "evo_steps": 16, "eval_loop": 1, "verbose": False}
        train_off_policy(env, pop=agent, **budget, callbacks=[callback])
        return [text for text in found if "eps_start" in text]

    assert warnings_of_a_run() == []
    (text,) = warnings_of_a_run()
    assert "begins again at eps_start=1; with agent.eps_start = agent.eps_end it stays 0.05" in text
    agent.eps_start = agent.eps_end
    assert warnings_of_a_run() == []


@pytest.mark.parametrize(("name", "value"), [("lr", -1.0), ("gamma", 5)])
def test_settings_that_are_set_are_checked_before_a_step(name, value):
    (agent,) = members(1)
    setattr(agent, name, value)
    row = {"obs": [3], "action": [1], "reward": [1.0], "next_obs": [4], "done": [1]}
    with pytest.raises(ConfigurationError, match=f"{name}={value}"):
        agent.learn(row)
    assert not agent.table.any()


def test_a_schedule_is_a_factor_on_the_members_own_rate():
    (agent,) = members(1, schedules={"lr": "linear"}, visit_decay=0.0)
    agent.progress = 0.5
    row = {"obs": np.array([3]), "action": np.array([1]), "next_obs": np.array([4]), "done": np.array([1])}
    agent.learn({**row, "reward": np.array([1.0])})
    assert agent.table[0, 1] == 0.125  # 0.25 * 0.5


@pytest.mark.parametrize(
    ("space", "observations", "states"),
    [
        (Discrete(4, start=-2), [-2, 1], [0, 3]),
        (MultiDiscrete([2, 3, 4]), [[0, 0, 0], [1, 2, 3], [1, 0, 2]], [0, 23, 14]),
        (MultiDiscrete([[2, 3], [4, 1]]), [[[1, 2], [3, 0]]], [23]),
    ],
)
def test_states_are_places_in_the_product_of_the_categories(space, observations, states):
    agent = QLearning(space, Discrete(2), seed=0)
    agent.network.table.weight.data[:, 0] = torch.arange(len(agent.table))
    agent.network.table.weight.data[:, 1] = -1.0
    np.testing.assert_array_equal(agent.value(np.array(observations)), states)


def test_dicts_and_tuples_of_categories_are_observations():
    space = Dict({"card": Discrete(10, start=1), "hand": Tuple([Discrete(3), MultiDiscrete([2, 2])])})
    agent = QLearning(space, Discrete(2), seed=0)
    assert agent.table.shape == (10 * 3 * 4, 2)
    agent.network.table.weight.data[:, 1] = torch.arange(120)
    seen = {"card": np.array([10, 1]), "hand": (np.array([2, 0]), np.array([[1, 1], [0, 1]]))}
    np.testing.assert_array_equal(agent.value(seen), [119, 1])


# -- runs


def make(masked=False):
    return gymnasium.vector.SyncVectorEnv([lambda: Walk([], masked)] * 4, copy=False)


def population(size=3, **more):
    ranges = HyperparameterConfig(
        lr=RLParameter(0.05, 1.0), gamma=RLParameter(0.5, 1.0), eps_end=RLParameter(0.01, 0.5)
    )
    given = {"seed": 2, "num_envs": 4, "hp_config": ranges, **more}
    return QLearning.population(size, Walk.observation_space, Walk.action_space, **given)


def evolution():
    return {
        "selection_strategy": TournamentSelection(tournament_size=2, elitism=True),
        "mutation": Mutations(no_mutation=0.0, architecture=0.1, parameters=0.2, rl_hp=0.7),
    }


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole, _ = train_off_policy(make(), pop=population(), run_dir=tmp_path / "whole", **RUN, **evolution())
    part = {**RUN, **evolution(), "run_dir": tmp_path / "part"}
    train_off_policy(make(), pop=population(), callbacks=[StopAfter(3)], **part)
    for folder in sorted((tmp_path / "part" / "checkpoints").iterdir())[1:]:  # as if the process had been killed
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    del part["run_dir"]
    resumed, _ = train_off_policy(make(), pop=population(), resume=tmp_path / "part", **part)
    assert whole.fitness == resumed.fitness
    assert [(agent.lr, agent.gamma, agent.eps_end) for agent in whole] == [
        (agent.lr, agent.gamma, agent.eps_end) for agent in resumed
    ]
    for one, other in zip(whole, resumed, strict=True):
        (_, left), (_, right) = one.to_documents(), other.to_documents()
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert len({agent.lr for agent in whole}) > 1


def test_the_table_of_a_run_equals_value_iteration():
    env = make_vect_envs("FrozenLake-v1", num_envs=16, backend="sync", is_slippery=False)
    spaces = env.single_observation_space, env.single_action_space
    pop = QLearning.population(1, *spaces, seed=1, num_envs=16, lr=1.0, gamma=0.9, eps_end=1.0)
    train_off_policy(env, pop=pop, max_steps=3_000, eval_steps=20, verbose=False)
    env.close()
    dynamics, values = gymnasium.make("FrozenLake-v1", is_slippery=False).unwrapped.P, np.zeros((16, 4))
    for _ in range(20):  # the goal is 6 steps from the start
        for state, action in np.ndindex(values.shape):
            ((_, following, reward, ends),) = dynamics[state][action]
            values[state, action] = reward + (not ends) * 0.9 * values[following].max()
    np.testing.assert_allclose(pop[0].table, values, rtol=0, atol=1e-5)
    assert values[0].max() == pytest.approx(0.9**5)


def test_auto_removes_members_and_lowers_lr_as_they_learn_without_a_replay():
    callback, factors = Callback(), []
    callback.on_generation = lambda run, record: factors.append(run.population[0].active_schedules)
    search = {"evolution": "auto", "evo_steps": 32}  # ten generations
    pop, _ = train_off_policy(make(masked=True), pop=population(8), callbacks=[callback], **{**RUN, **search})
    assert len(pop) == 4
    assert factors == [{"lr": ((0.5, 1.0), (1.0, 0.05))}] * 10


def test_every_update_is_logged(tmp_path):
    run = {**RUN, "max_steps": 80, "run_dir": tmp_path / "run"}
    train_off_policy(make(), pop=population(1), log_every="update", **run)
    found = [row["update"] for row in Run.open(tmp_path / "run").updates()]
    assert found == [*range(1, 21)]  # after each step of 4 envs


@pytest.mark.slow
def test_two_processes_give_the_same_bits_as_one():
    found = []
    for processes in (1, 2):
        env = make_vect_envs("FrozenLake-v1", num_envs=4, is_slippery=False)
        spaces = env.single_observation_space, env.single_action_space
        ranges = HyperparameterConfig(lr=RLParameter(0.05, 1.0))
        pop = QLearning.population(3, *spaces, seed=2, num_envs=4, lr=0.5, hp_config=ranges, visit_decay=0.25)
        pop, fitness = train_off_policy(env, pop=pop, processes=processes, **RUN, **evolution())
        found.append((fitness, *pop.to_documents()))
        env.close()
    (fitness, documents, tensors), (their_fitness, their_documents, their_tensors) = found
    assert their_fitness == fitness
    assert json.dumps(their_documents) == json.dumps(documents)  # nan for a score without an episode is equal here
    for name, named in tensors.items():
        assert all(torch.equal(their_tensors[name][key], tensor) for key, tensor in named.items())


def test_a_loaded_agent_and_a_clone_have_the_table(tmp_path):
    pop, _ = train_off_policy(make(), pop=population(1), **RUN)
    agent = pop[0]
    agent.save_checkpoint(tmp_path / "agent")
    for copy in (QLearning.load(tmp_path / "agent"), agent.clone()):
        np.testing.assert_array_equal(copy.table, agent.table)
        assert torch.equal(copy.network.table.visits, agent.network.table.visits)
        copy.network.table.weight.data += 1
        assert not np.array_equal(copy.table, agent.table)


def test_noise_on_a_table_moves_the_values_of_states_that_were_visited():
    (agent,) = collected(members(1), [0], mode="NEXT_STEP")[0]
    before = agent.table
    child = agent.clone()
    child.mutate(
        Mutations(no_mutation=0, architecture=0, parameters=1, activation=0, rl_hp=0), np.random.default_rng(0)
    )
    assert not np.array_equal(child.table, before)
    np.testing.assert_array_equal(agent.table, before)
    child.mutate(
        Mutations(no_mutation=0, architecture=1, parameters=0, activation=0, rl_hp=0), np.random.default_rng(0)
    )
    assert child.mut == "None"


@pytest.mark.parametrize("masks", [False, True])
def test_a_table_is_exported_as_numpy(tmp_path, masks):
    (agent,) = collected(members(1), [0], mode="NEXT_STEP", masked=masks)[0]
    assert agent.learner.learned_with_masks == masks
    (path,) = agent.export(tmp_path / "policy.py", masks=masks)
    policy = load_numpy_policy(path)
    places = np.arange(10) + 3
    legal = np.ones((10, 3), bool)
    legal[:, 2] = False
    arguments = (places, legal) if masks else (places,)
    values = np.where(legal, agent.table, -np.inf) if masks else agent.table
    np.testing.assert_array_equal(policy(*arguments), values.argmax(1))


# -- configurations and what is refused

CONFIG = """
environment: {id: FrozenLake-v1, num_envs: 4}
algorithm: {name: QLearning, lr: 0.5, eps_share: 0.25}
population: {size: 2}
hyperparameters: {lr: {min: 0.05, max: 1.0}, gamma: {min: 0.9, max: 1.0}}
training: {max_steps: 400, evo_steps: 200}
"""


def test_configurations_name_the_algorithm(tmp_path):
    path = tmp_path / "q.yaml"
    path.write_text(CONFIG)
    config = load(str(path))
    assert config.algorithm_class is QLearning
    assert (config.algorithm.lr, config.algorithm.eps_share, config.algorithm.visit_decay) == (0.5, 0.25, 0.0)
    path.write_text(CONFIG + "network: {latent_dim: 16}\n")
    with pytest.raises(ConfigurationError, match="network: QLearning has no networks; leave it out"):
        load(str(path))
    path.write_text(CONFIG.replace("lr: 0.5", "eps_end: 1.5"))
    with pytest.raises(ConfigurationError, match=r"eps_end=1\.5: input should be less than or equal to 1"):
        load(str(path))


@pytest.mark.parametrize(
    ("spaces", "settings", "message"),
    [
        ((Box(-1.0, 1.0, (4,)), Discrete(2)), {}, r"Box\(.*\) is not for a table; allowed are Discrete, MultiDiscrete"),
        ((Dict({"a": Discrete(2), "b": Box(0, 1)}), Discrete(2)), {}, "is not for a table"),
        ((Discrete(2), MultiDiscrete([2, 2])), {}, r"action_space=.* is not for QLearning; allowed is Discrete"),
        ((Discrete(2), Box(-1.0, 1.0)), {}, r"action_space=.* is not for QLearning; allowed is Discrete"),
        ((Discrete(2**25), Discrete(2)), {}, "has a category of 33554432 values; allowed are at most 16777216"),
        (
            (MultiDiscrete([1000] * 8), Discrete(6)),
            {},
            r"a table of 1000000000000000000000000 x 6 values needs at least 9.6e\+07 EB of memory; this machine has "
            r".*: allowed are at most \d+ states",
        ),
        ((Discrete(2), Discrete(2)), {"eps_start": 1.5}, "eps_start=1.5"),
        ((Discrete(2), Discrete(2)), {"eps_end": -0.1}, "eps_end=-0.1"),
        ((Discrete(2), Discrete(2)), {"lr": 1.5}, "lr=1.5"),
        ((Discrete(2), Discrete(2)), {"initial_value": np.inf}, "initial_value=inf"),
        ((Discrete(2), Discrete(2)), {"learn_step": 4}, "learn_step"),
        ((Discrete(2), Discrete(2)), {"net_config": {"latent_dim": 8}}, "QLearning has a table; allowed is None"),
        ((Discrete(2), Discrete(2)), {"schedules": {"ent_coef": "linear"}}, "ent_coef"),
        (
            (Discrete(2), Discrete(2)),
            {"hp_config": HyperparameterConfig(initial_value=RLParameter(0, 1))},
            "'initial_value' is not a number of QLearning that can evolve",
        ),
    ],
)
def test_what_a_table_cannot_be_is_named(spaces, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        QLearning(*spaces, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "own"}, "memory='own' is no setting of QLearning; leave it out"),
        ({"learning_delay": 10}, "learning_starts=10 is no setting of QLearning; leave it out"),
    ],
)
def test_there_is_no_replay(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        train_off_policy(make(), pop=population(), **RUN, **arguments)


def test_agilerls_epsilon_decay_is_a_share_of_the_run():
    pop = population(1)
    train_off_policy(make(), pop=pop, eps_start=0.8, eps_end=0.2, eps_decay=0.95, **RUN)
    # 0.8 * 0.95**27.03 = 0.2, in steps of 4 envs of 320
    assert pop[0].eps_share == pytest.approx(27.03 * 4 / 320, rel=1e-3)


# -- probes

TABULAR = ["DiscountedReward", "EndlessTruncation", "AutoresetLeak", "ActionMask", "ActionByObservation", "Counter"]


@pytest.mark.parametrize("name", TABULAR)
def test_probes_are_solved(name):
    assert suits(PROBES[name], "QLearning")
    record = solve(replace(PROBES[name], steps=3_000), seed=1, algorithm="QLearning")
    for answer in record.answers:
        np.testing.assert_allclose(answer.found, answer.expected, rtol=0, atol=answer.tolerance, err_msg=answer.what)


@pytest.mark.slow
def test_a_table_that_does_not_learn_fails_a_probe():
    assert not solve(PROBES["DiscountedReward"], seed=1, algorithm="QLearning", lr=1e-12).solved
    assert not suits(PROBES["MemoryCue"], "QLearning")
    assert not suits(PROBES["ContinuousBounds"], "QLearning")


def test_what_tune_found_has_no_network(tmp_path):
    path, folder = tmp_path / "q.yaml", tmp_path / "run"
    path.write_text(CONFIG)
    assert (
        main(["train", str(path), "--run.dir", str(folder), "--run.processes", "1", "--training.eval-loop", "1"]) == 0
    )
    found = tmp_path / "found.yaml"
    (run,) = folder.glob("*/config.yaml")
    found.write_text(found_yaml(Run.open(run.parent), load(str(path))))
    assert load(str(found)).algorithm.name == "QLearning"
