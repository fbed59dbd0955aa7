"""Observations normalised by running statistics, by the bounds of their space, or not at all."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like import DQN, PPO, HyperparameterConfig, Population, RLParameter, make_vect_envs, train_on_policy
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.observation_norm import make_observation_norm

POSITION = Box(np.float32([-1.2, -0.07]), np.float32([0.6, 0.07]))  # as MountainCar's
SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}


def agent_of(space=POSITION, **kwargs):
    return PPO(space, Discrete(3), **{"seed": 0, "net_config": SMALL, "learn_step": 32, "batch_size": 16, **kwargs})


def test_the_bounds_become_minus_one_and_one():
    agent = agent_of(normalize_observation="bounds")
    found = agent.preprocess_observation(np.float32([[-1.2, -0.07], [0.6, 0.07], [-0.3, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]))


@given(
    low=st.floats(-1e4, 1e4, width=32),
    span=st.floats(0.125, 1e4, width=32),
    share=st.floats(0, 1),
    clip=st.floats(1, 5),
)
@settings(max_examples=30)
def test_between_the_bounds_the_map_is_linear(low, span, share, clip):
    space = Box(np.float32([low]), np.float32([low + span]))
    norm = make_observation_norm(ObservationEncoder(space), "bounds", clip=clip)
    wide = float(space.high[0]) - float(space.low[0])
    x = np.float32(float(space.low[0]) + share * wide)
    assert float(norm(torch.tensor([x]))) == pytest.approx(2 * (float(x) - float(space.low[0])) / wide - 1, abs=2e-2)
    assert float(norm(torch.tensor([space.high[0] + 10 * np.float32(wide)]))) == pytest.approx(clip)


def test_a_constant_becomes_zero_and_other_parts_stay():
    space = Dict(
        camera=Box(0, 255, (1, 8, 8), np.uint8),
        depth=Box(0.0, 99.0, (1, 8, 8)),
        gear=Discrete(3),
        speed=Box(np.float32([0.0, 5.0]), np.float32([10.0, 5.0])),
    )
    encoding = ObservationEncoder(space)
    seen = {
        "camera": np.full((1, 8, 8), 7, np.uint8),
        "depth": np.full((1, 8, 8), 50, np.float32),
        "gear": np.int64(2),
        "speed": np.float32([10, 5]),
    }
    rows = torch.from_numpy(encoding.encode(seen))
    before = rows.clone()
    found = make_observation_norm(encoding, "bounds")(rows)
    assert torch.equal(rows, before)
    camera, depth, gear, speed = (leaf.read(found) * leaf.span + leaf.low for leaf in encoding.leaves)
    assert torch.all(camera == 7)
    torch.testing.assert_close(depth, torch.full((1, 8, 8), 50.0))
    assert gear.tolist() == [0, 0, 1]
    assert speed.tolist() == [1, 0]


def test_members_that_map_vectors_beside_categories_are_finite():
    spaces = Tuple((Box(-1, 1, (2,)), Discrete(3))), Discrete(2)
    assert all(kind(*spaces, seed=1, normalize_observation="bounds").learner.is_finite for kind in (PPO, DQN))


def test_infinite_bounds_are_named():
    space = Dict(angle=Box(-1.0, 1.0, (2,)), speed=Box(np.float32([0, -np.inf]), np.float32([1, np.inf])))
    with pytest.raises(
        ConfigurationError, match=r"finite bounds.*\[-inf, inf\] of observation.speed\[1\]; allowed are"
    ):
        agent_of(space, normalize_observation="bounds", net_config=None)


@pytest.mark.parametrize("kind", ["minmax", 1.5, None])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ConfigurationError, match="normalize_observation"):
        agent_of(normalize_observation=kind)


def test_clip_and_epsilon_are_those_of_the_settings():
    agent = agent_of(observation_clip=2.0, observation_eps=3.0)
    norm = agent.network.observation_norm
    norm.update_(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.ones(2))  # variances 1 and 0
    torch.testing.assert_close(norm(torch.tensor([[4.0, 5.0]])), torch.tensor([[1.0, 0.0]]))  # (4 - 2) / sqrt(1 + 3)
    assert norm(torch.tensor([[99.0, -99.0]])).tolist() == [[2.0, -2.0]]


def trained(**kwargs):
    env = make_vect_envs("MountainCar-v0", num_envs=2)
    agents = Population([agent_of(num_envs=2, index=index, **kwargs) for index in range(2)])
    population, _ = train_on_policy(env, "MountainCar-v0", "PPO", agents, max_steps=128, evo_steps=64, verbose=False)
    return population


def weights(agent):
    return torch.cat([tensor.flatten() for tensor in agent.network.state_dict().values()])


@pytest.mark.slow
def test_running_is_true():
    for one, other in zip(trained(normalize_observation=True), trained(normalize_observation="running"), strict=True):
        assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("kind", [{"normalize_observation": "bounds"}, {"observation_clip": 0.1}])
def test_a_saved_agent_reads_raw_numbers_as_before(kind, tmp_path):
    agent = trained(**kind)[0]
    raw = np.random.default_rng(0).uniform(POSITION.low, POSITION.high, (50, 2)).astype(np.float32)
    wanted = agent.preprocess_observation(raw)
    agent.save_checkpoint(tmp_path / "agent")
    for other in (PPO.load(tmp_path / "agent"), agent.clone()):
        assert torch.equal(other.preprocess_observation(raw), wanted)
        assert np.array_equal(other.predict(raw, deterministic=True)[0], agent.predict(raw, deterministic=True)[0])
        assert {name: getattr(other, name) for name in kind} == kind


def test_members_of_unlike_normalisers_compute_as_alone():
    kinds = [{}, {"normalize_observation": "bounds"}, {"observation_clip": 0.5}, {"normalize_observation": False}]
    agents = [agent_of(index=index, **kind) for index, kind in enumerate(kinds)]
    for agent in agents:
        agent.network.observation_norm.update_(torch.tensor([[0.1, 0.01], [-0.5, -0.02]]), torch.ones(2))
    raw = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (4, 5, 2)).astype(np.float32))
    alone = [agent.network.evaluate(agent.network.observation_norm(x))[0] for agent, x in zip(agents, raw, strict=True)]
    group = Population(agents).by_group[""]
    actions, _ = group.act(raw, group.initial_hidden_state.expand(4, 5, -1, -1, -1))
    wanted = [agent.learner.distribution.mode(outputs) for agent, outputs in zip(agents, alone, strict=True)]
    assert torch.equal(actions, torch.stack(wanted))


def test_clip_and_epsilon_do_not_evolve():
    for name in ("observation_clip", "observation_eps"):
        with pytest.raises(ConfigurationError, match=f"hp_config '{name}'"):
            agent_of(hp_config=HyperparameterConfig(**{name: RLParameter(min=0.1, max=20.0)}))
