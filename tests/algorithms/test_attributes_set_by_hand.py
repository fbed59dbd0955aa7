"""What a script sets on an agent is either saved and loaded, or refused by name before anything is written."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import (
    DQN,
    IPPO,
    PPO,
    TD3,
    ConfigurationError,
    Population,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.reporting.callback import Callback


class Clock(gymnasium.Env):
    """Each step pays its number, up to 30."""

    observation_space, action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.step_count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_count += 1
        return np.zeros(1, np.float32), float(self.step_count), False, self.step_count == 30, {}


BOX, DISCRETE = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)


def agent_of(**settings):
    return PPO(BOX, DISCRETE, seed=0, num_envs=2, **settings)


def team_of(**settings):
    return IPPO({"a_0": BOX, "b_0": BOX}, {"a_0": DISCRETE, "b_0": DISCRETE}, seed=0, **settings)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (agent_of, "recurrent", True), (team_of, "share_encoders", True), (agent_of, "normalize_observation", False),
        (agent_of, "squash_output", True), (lambda: DQN(BOX, DISCRETE, seed=0), "dueling", True),
        (lambda: TD3(BOX, BOX, seed=0), "twin_q", False), (agent_of, "action_std_init", -1.0),
        (agent_of, "normalize_images", False), (agent_of, "swap_channels", True), (team_of, "swap_channels", True),
        (agent_of, "critic_observation", "critic"),
    ],
)  # fmt: skip
def test_settings_that_networks_are_built_from_cannot_be_set(make, name, value, tmp_path):
    agent = make()
    assert getattr(agent, name) != value
    setattr(agent, name, value)
    with pytest.raises(ConfigurationError, match=f"{name}={value!r} cannot be set after the networks were built"):
        agent.save_checkpoint(tmp_path / "agent")
    copy = agent.clone()
    assert getattr(copy, name) != value  # a copy has the value that fits its networks
    copy.check()


def test_factors_of_groups_that_are_set_count_at_once_in_copies_and_in_files(tmp_path):
    team = team_of(groups={"a_0": "a", "b_0": "b"}, lr=1e-4)
    team.group_factors = {"lr": {"a": 10.0}}
    team.save_checkpoint(tmp_path / "team")
    for one in (team, team.clone(), IPPO.load(tmp_path / "team")):
        assert [one.learners[group].hyperparams()[0] for group in "ab"] == pytest.approx([1e-3, 1e-4])
    for wrong, message in (([1], "group_factors="), ({"lr": {"c": 2.0}}, "group_factors.lr group='c' is unknown")):
        with pytest.raises(ConfigurationError, match=message):
            team.group_factors = wrong
        with pytest.raises(ConfigurationError, match=message):
            team_of(groups={"a_0": "a", "b_0": "b"}, group_factors=wrong)
    assert team.group_factors == {"lr": {"a": 10.0}}


@pytest.mark.parametrize(("name", "value"), [("rewards", "total"), ("frozen_groups", ("q",))])
def test_illegal_settings_of_a_team_are_refused_when_a_run_begins(name, value):
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["OwnObservation"].make, 2, backend="sync")
    teams = IPPO.population(2, env.single_observation_spaces, env.single_action_spaces, num_envs=2, seed=0)
    setattr(teams[1], name, value)
    with pytest.raises(ConfigurationError, match=f"{name}.* is unknown"):
        train_multi_agent_on_policy(env, pop=teams, max_steps=128, evo_steps=128, verbose=False)
    assert teams[0].steps == [0]


@pytest.mark.parametrize(
    ("name", "given", "loaded"),
    [
        ("steps", 5, [5]),
        ("steps", np.int64(7), [7]),
        ("steps", [1, np.int32(2)], [1, 2]),
        ("mut", None, "None"),
        ("scores", [[1.0, 2.0], 3.0], [[1.0, 2.0], 3.0]),
        ("scores", [np.float32(0.5), np.array([1.5, 2.5])], [0.5, [1.5, 2.5]]),
        ("fitness", [np.float64(4.0), torch.tensor(2.0)], [4.0, 2.0]),
        ("lr", np.float32(0.5), 0.5),
        ("update_epochs", np.int64(3), 3),
        ("learn_step", np.int64(4096), 4096),
        ("progress", np.float64(0.5), 0.5),
    ],
)
@pytest.mark.parametrize("make", [agent_of, team_of])
def test_attributes_set_by_hand_are_saved_and_loaded(make, name, given, loaded, tmp_path):
    agent = make()
    setattr(agent, name, given)
    found = getattr(type(agent).load(agent.save_checkpoint(tmp_path / "agent")), name)
    assert found == loaded
    assert type(found) is type(loaded) or name == "steps"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("steps", [-1], r"agent 0 cannot be saved as it is: steps=-1 must be a whole number"),
        ("steps", "many", r"steps='many' must be a whole number"),
        ("scores", ["good"], r"scores=\['good'\] must be a list of numbers"),
        ("fitness", [[None]], r"fitness=\[\[None\]\] must be a list of numbers"),
        ("mut", 3, r"mut=3 must be a string"),
        ("progress", math.nan, r"progress=nan must be a finite number of at least 0"),
        ("learn_step", 32, r"batch_size=64 is larger than the rollout of learn_step=32"),
        ("gamma", 2.0, r"gamma=2\.0"),
    ],
)
@pytest.mark.parametrize("make", [agent_of, team_of])
def test_values_that_load_would_refuse_are_refused_before_writing(make, name, given, message, tmp_path):
    agent = make()
    setattr(agent, name, given)
    with pytest.raises(ConfigurationError, match=message):
        agent.save_checkpoint(tmp_path / "agent")
    assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize(
    ("make", "name", "given", "stored"),
    [
        (agent_of, "normalize_reward", "False", False),
        (team_of, "batch_size", 32.0, 32),
        (lambda: DQN(BOX, DISCRETE, seed=0), "double", "no", False),
        (lambda: DQN(BOX, DISCRETE, seed=0), "memory_size", 5e4, 50_000),
        (agent_of, "normalize_advantage", None, "none"),
        (agent_of, "betas", ("0.8", 0.99), (0.8, 0.99)),
        (agent_of, "optimizer_name", "sgd", "sgd"),
        (agent_of, "reward_transform", abs, abs),
    ],
)
def test_attributes_set_by_hand_become_what_the_constructor_would_store(make, name, given, stored):
    agent = make()
    setattr(agent, name, given)
    agent.check()
    found = getattr(agent, name)
    assert (found, type(found)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("clip_coef_vf", True, "clip_coef_vf=True: input should be a number, not a flag"),
        ("lr", -1.0, r"lr=-1\.0: input should be greater than 0"),
        ("update_epochs", "many", "update_epochs='many': input should be a valid integer"),
    ],
)
@pytest.mark.parametrize("make", [agent_of, team_of])
def test_a_clone_is_refused_with_the_settings_that_the_agent_refuses(make, name, given, message):
    agent = make()
    setattr(agent, name, given)
    for refuses in (agent.check, agent.clone):
        with pytest.raises(ConfigurationError, match=message):
            refuses()


def grow_by_hand(agent):
    agent.actor.head.add_node(layer=0, nodes=16)


def replace_by_hand(agent):
    agent.actor.head = torch.nn.Linear(64, 2)


@pytest.mark.parametrize("change", [grow_by_hand, replace_by_hand])
def test_networks_changed_by_hand_are_refused_before_writing_and_training(change, tmp_path):
    env = make_vect_envs(Clock, num_envs=2, backend="sync")
    pop = PPO.population(2, env.single_observation_space, DISCRETE, seed=0, num_envs=1, learn_step=4, batch_size=4)
    change(pop[1])
    message = "network.actor.head.linears.0.weight is .* where the architecture has .*: it was changed by hand"
    for save in (pop[1].save_checkpoint, pop.save_checkpoint):
        with pytest.raises(ConfigurationError, match=message):
            save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ConfigurationError, match=message):
        train_on_policy(env, pop=pop, max_steps=8, evo_steps=4, verbose=False)
    env.close()


@pytest.mark.parametrize("make", [agent_of, team_of])
def test_steps_count_as_a_list_and_as_a_whole_number(make):
    agent = make()
    agent.steps += 5
    agent.steps[-1] += 2
    assert agent.steps == [7]
    agent.steps.append(9)
    agent.steps += [10]
    assert agent.clone(index=1).steps == [7, 9, 10]


def test_numpy_integers_become_python_integers():
    agent = PPO(BOX, DISCRETE, seed=np.int64(3), num_envs=np.int64(2))
    assert (type(agent.seed), type(agent.num_envs)) == (int, int)


def test_repr_of_an_agent_names_fitness_lr_and_networks():
    agent = agent_of(lr=1e-3, index=3)
    weights = 2 * (4 * 64 + 64 + 64 * 64 + 64 + 64 * 64 + 64) + (64 * 2 + 2) + (64 + 1)
    assert agent.parameter_count == weights
    assert repr(agent) == f"PPO(index=3, fitness=None, lr=0.001, networks='64 | 64 | 64 ReLU', {weights:,} parameters)"
    agent.fitness.append(198.7654)
    assert "fitness=198.8" in repr(agent)
    assert repr(team_of()).startswith("IPPO(index=0, fitness=None, lr=0.0001, networks='a 64 | 64 | 64 ReLU; b 64")


def test_repr_of_a_population_lists_its_members():
    first, second = agent_of(), agent_of(index=1)
    first.fitness, second.fitness = [1.0], [2.5]
    lines = repr(Population([first, second])).splitlines()
    assert lines == ["Population(2 x PPO, best fitness 2.5:", f"  {first!r},", f"  {second!r},", ")"]
    teams = IPPO.population(20, {"a_0": BOX}, {"a_0": DISCRETE}, seed=0)
    assert repr(teams).startswith("MultiAgentPopulation(20 x IPPO, not tested yet:")
    assert repr(teams).endswith("  … 4 more\n)")


def test_a_longer_learn_step_counts_from_the_next_rollout_of_a_run():
    """The buffer begins as long as the rollouts of the first `learn_step`."""
    env = make_vect_envs(Clock, num_envs=1, backend="sync")
    pop = PPO.population(2, Clock.observation_space, DISCRETE, seed=0, num_envs=1, learn_step=4, batch_size=4)
    seen = []

    def transform(rewards, steps, max_steps):  # receives each rollout's rewards [T, P, E]
        seen.append(rewards[:, 0, 0].tolist())
        return rewards

    class Longer(Callback):
        def on_update(self, run, metrics):
            for agent in pop:
                agent.learn_step = 10

    for agent in pop:
        agent.reward_transform = transform
    train_on_policy(env, pop=pop, max_steps=24, evo_steps=24, eval_loop=1, verbose=False, callbacks=[Longer()])
    assert seen == [[*range(1, 5)], [*range(5, 15)], [*range(15, 25)]]
    env.close()


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (
            {"lr": 3e-4},
            r"lr=0.0003 is no argument of PPO.load, .* = PPO.load\(path\), and then agent.lr = 0.0003",
        ),
        ({"learning_rate": 3e-4}, r"and then agent.lr = 0.0003"),
        ({"env": None}, r"and then train_on_policy\(env, pop=agent, …\)"),
    ],
)
def test_load_takes_no_settings(given, advice, tmp_path):
    with pytest.raises(ConfigurationError, match=advice):
        PPO.load(tmp_path, **given)


@pytest.mark.parametrize(("name", "own"), [("lr", "lr"), ("learning_rate", "lr"), ("optimizer", "optimizer_name")])
def test_a_setting_of_a_population_is_refused_with_the_loop_that_sets_it(name, own):
    population = Population([agent_of()])
    with pytest.raises(AttributeError, match=rf"{name} of a population has no effect.* agent\.{own} = …"):
        setattr(population, name, 3e-4)
    population.label = "mine"
    assert population.label == "mine"
