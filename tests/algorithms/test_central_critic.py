"""Central critics of teams: MAPPO's, on `env.state()` or on the observations of all agents."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv

from agilerl_like import IPPO, ConfigurationError, make_multi_agent_vect_envs, train_multi_agent_on_policy
from agilerl_like.config import build
from agilerl_like.config.multi_agent import MultiAgentConfig
from agilerl_like.errors import EnvStepError
from agilerl_like.hpo import Mutations, TournamentSelection
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup

SIGNS = (-1.0, 1.0)


class Product(ParallelEnv):
    """Each agent observes a sign; the reward of both is the product of the signs, so what the other observes decides.

    From one sign alone the value is 0; with both it is their product.
    """

    def __init__(self, names=("agent_0", "agent_1"), steps=1):
        self.metadata, self.render_mode = {"name": "product"}, None
        self.possible_agents, self.agents, self.steps = list(names), [], steps
        self.state_space = Box(-1, 1, (2,))

    def observation_space(self, agent):
        return Box(-1, 1, (1,)) if agent != "wide_0" else Box(-1, 1, (2,))

    def action_space(self, agent):
        return Discrete(2)

    def state(self):
        return self.signs.astype(np.float32)

    def _observe(self):
        return {
            agent: np.full(self.observation_space(agent).shape, sign, np.float32)
            for agent, sign in zip(self.possible_agents, self.signs, strict=True)
        }

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.signs, self.count, self.agents = self.rng.choice(SIGNS, 2), 0, list(self.possible_agents)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.count += 1
        ends = self.count == self.steps
        everyone, reward = self.possible_agents, float(self.signs.prod())
        self.agents = [] if ends else list(everyone)
        return (
            self._observe(),
            dict.fromkeys(everyone, reward),
            dict.fromkeys(everyone, ends),
            dict.fromkeys(everyone, False),
            {agent: {} for agent in everyone},
        )


class Unlike(Product):
    """The same with agents of two groups, whose observations differ in size."""

    def __init__(self):
        super().__init__(("narrow_0", "wide_0"))


class Endless(Product):
    """The same, four steps long."""

    def __init__(self):
        super().__init__(steps=4)


class Named(Product):
    """The same, whose observations have the name of the policy's part."""

    def observation_space(self, agent):
        return Dict(policy=super().observation_space(agent))

    def _observe(self):
        return {
            agent: {"policy": np.full(1, sign, np.float32)}
            for agent, sign in zip(self.possible_agents, self.signs, strict=True)
        }


SETTINGS = {
    "num_envs": 16,
    "learn_step": 256,
    "batch_size": 128,
    "lr": 2e-2,
    "update_epochs": 8,
    "gamma": 0.5,
    "seed": 0,
}


def team_of(env, critic="state", **kwargs):
    return IPPO(
        env.single_observation_spaces,
        env.single_action_spaces,
        critic_observation=critic,
        **{"state_space": env.state_space, **SETTINGS, **kwargs},
    )


def trained(source, critic, steps=96, **kwargs):
    env = make_multi_agent_vect_envs(source, 16, backend="sync", with_state="state" in critic)
    setup = MultiAgentEnvSetup(env)
    team = team_of(env, critic, **kwargs)
    collector = setup.make_collector(setup.population([team]), setup.adapt(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    for _ in range(steps):
        collector.collect(1)
        collector.learn()
    return team, collector


def values_of(team, agent, parts):
    """The values of an agent's critic for all four pairs of signs, with the critic's part of each."""
    learner = team.learner_of(agent)
    found = {}
    for own in SIGNS:
        for other in SIGNS:
            size = learner.encoding.size
            whole = {"policy": np.full((1, size), own, np.float32), "critic": parts(own, other)}
            found[own, other] = learner.value(whole if team.central_critics else whole["policy"]).item()
    return found


@pytest.mark.parametrize(
    ("source", "critic", "parts"),
    [
        (Product, "state", lambda own, other: np.float32([[own, other]])),
        (Product, "joint", lambda own, other: np.float32([[own, other]])),
        (
            Product,
            ["policy", "state"],
            lambda own, other: {"policy": np.float32([[own]]), "state": np.float32([[own, other]])},
        ),
        (Unlike, "joint", lambda own, other: np.float32([[own, other, other]])),
    ],
)
def test_the_value_needs_what_the_other_agent_observes(source, critic, parts):
    team, _ = trained(source, critic)
    for (own, other), value in values_of(team, team.agent_ids[0], parts).items():
        assert value == pytest.approx(own * other, abs=0.1)


@pytest.mark.parametrize("critic", ["state", "joint"])
def test_observations_may_have_an_entry_named_policy(critic):
    team, _ = trained(Named, critic, steps=1)
    assert abs(team.test(make_multi_agent_vect_envs(Named, 2, backend="sync"))) <= 2


def test_without_it_the_value_is_the_mean():
    team, _ = trained(Product, "policy")
    for value in values_of(team, "agent_0", lambda *_: None).values():
        assert abs(value) < 0.15  # at most 0.07 with seeds 0 to 4


def test_rows_are_ordered_by_env_then_agent_with_the_own_observation_first():
    env = make_multi_agent_vect_envs(Product, 3, backend="sync", with_state=True)
    team = team_of(env, ["joint", "state"], num_envs=3, learn_step=30, batch_size=15)
    setup = MultiAgentEnvSetup(env)
    collector = setup.make_collector(setup.population([team]), setup.adapt(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    rows = collector.groups["agent"].observations[0]  # [6, 1 + 2 + 2]
    own, joint, state = rows[:, :1], rows[:, 1:3], rows[:, 3:]
    assert torch.equal(joint[:, :1], own)
    assert torch.equal(joint[0::2, 1:], own[1::2])
    assert torch.equal(joint[1::2, 1:], own[0::2])
    assert torch.equal(state, torch.cat([own[0::2], own[1::2]], 1).repeat_interleave(2, 0))


@pytest.mark.parametrize("critic", ["state", ["policy", "joint"]])
def test_saved_and_cloned_teams_act_without_it(critic, tmp_path):
    team, _ = trained(Endless, critic, steps=40)
    team.set_training_mode(False)
    team.save_checkpoint(tmp_path / "team")
    x = np.float32([[-1.0], [1.0]])
    for other in (IPPO.load(tmp_path / "team"), team.clone()):
        assert other.state_space == team.state_space
        for one, its in zip(team.learners.values(), other.learners.values(), strict=True):
            assert its.observation_space == one.observation_space
            assert np.array_equal(its.predict(x, deterministic=True)[0], one.predict(x, deterministic=True)[0])
            for name, tensor in one.network.state_dict().items():
                assert torch.equal(tensor, its.network.state_dict()[name])
    assert np.isfinite(team.test(make_multi_agent_vect_envs(Endless, 2, backend="sync")))


def population_of(members, **kwargs):
    env = make_multi_agent_vect_envs(Endless, 4, backend="sync", with_state=True)
    settings = {**SETTINGS, "num_envs": 4, "learn_step": 64, "batch_size": 32, "state_space": env.state_space}
    spaces = env.single_observation_spaces, env.single_action_spaces
    return env, IPPO.population(members, *spaces, critic_observation="state", **{**settings, **kwargs})


def evolve(env, teams=None, **kwargs):
    return train_multi_agent_on_policy(
        env,
        "Endless",
        "IPPO",
        teams,
        evo_steps=64,
        verbose=False,
        selection_strategy=TournamentSelection(),
        mutation=Mutations(architecture=1.0),
        **kwargs,
    )[0]


def weights(team):
    return torch.cat([x.flatten() for its in team.learners.values() for x in its.network.state_dict().values()])


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole = evolve(*population_of(2), max_steps=256, run_dir=tmp_path / "whole", checkpoint=64)
    evolve(*population_of(2), max_steps=128, run_dir=tmp_path / "half", checkpoint=64)
    env, _ = population_of(1)
    resumed = evolve(env, max_steps=256, resume=tmp_path / "half", checkpoint=64)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(weights(one), weights(other))


@pytest.mark.slow
def test_members_learn_as_alone():
    together = evolve(*population_of(3), max_steps=192)
    alone = evolve(*population_of(3, per_member=True), max_steps=192)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("critic", "kwargs", "message"),
    [
        ("states", {}, "critic_observation='states' is unknown; did you mean 'state'"),
        ("state", {"state_space": None}, "needs the space of env.state"),
        ("joint", {"share_encoders": True}, "share_encoders=True and critic_observation='joint'"),
    ],
)
def test_errors(critic, kwargs, message):
    env = make_multi_agent_vect_envs(Product, 1, backend="sync")
    with pytest.raises(ConfigurationError, match=message):
        team_of(env, critic, num_envs=1, **kwargs)


def test_an_env_without_its_state_is_an_error():
    env = make_multi_agent_vect_envs(Product, 16, backend="sync")
    setup = MultiAgentEnvSetup(env)
    collector = setup.make_collector(setup.population([team_of(env)]), setup.adapt(env), PhaseTimer(("env", "act")))
    with pytest.raises(ConfigurationError, match="the env returns no state; make it with_state=True"):
        collector.reset([0])


class Undefined(Endless):
    """Its state is NaN in the fifth state that is computed."""

    states = 0

    def state(self):
        self.states += 1
        return super().state() * (np.nan if self.states == 5 else 1)


def test_a_state_that_is_not_finite_is_named():
    with pytest.raises(EnvStepError, match=r"Undefined, env 0: state\(\)\[0\]=nan is not finite"):
        trained(Undefined, "state")


def test_hand_written_loops_are_refused():
    team = team_of(make_multi_agent_vect_envs(Product, 1, backend="sync"), num_envs=1)
    with pytest.raises(ConfigurationError, match="get_action has no input for critic_observation='state'"):
        team.get_action({"agent_0": np.zeros(1)})


def test_a_file_needs_one_key():
    config = MultiAgentConfig.model_validate(
        {
            "environment": {"id": "algorithms.test_central_critic:Endless", "num_envs": 4, "backend": "sync"},
            "algorithm": {"name": "IPPO", "critic_observation": "state", "learn_step": 64, "batch_size": 32},
            "population": {"size": 2},
        }
    )
    experiment = build(config)
    assert experiment.env.with_state
    assert experiment.population[0].learners["agent"].rollout_encoding.is_asymmetric
    experiment.env.close()
