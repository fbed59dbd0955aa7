"""A user's memory learns, mutates and is stacked as the built-in ones are."""

import runpy
from pathlib import Path

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from scripts import own_registrations

from agilerl_like import PPO
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.network_mutation import MutationSource, mutate_network

SPACES = Box(-1.0, 1.0, (3,)), Discrete(2)
NETWORK = {"memory_config": {"cell": "trace", "hidden_state_size": 8}}


@pytest.fixture(autouse=True, scope="module")
def trace():
    """Register the memory "trace" for the tests of this file: another file executes the script, which registers it."""
    with own_registrations():
        runpy.run_path(str(Path(__file__).parents[2] / "tutorials" / "own_memory.py"))
        yield


def agent(**settings):
    return PPO(*SPACES, recurrent=True, max_seq_len=8, net_config=NETWORK, seed=1, **settings)


def test_sequences_equal_steps_and_starts_reset_the_state():
    module = agent().actor.memory
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, module.inputs, generator=generator)
    state = torch.randn(2, 1, 8, generator=generator)
    starts = torch.zeros(2, 5)
    starts[1, 3] = 1.0
    outputs, states = module.unroll(x, starts, state)
    fresh, _ = module.step(x[1, 3], torch.zeros(1, 8))
    torch.testing.assert_close(outputs[1, 3], fresh)
    expected = 0.9 * state[0, 0] + module.linear(x[0, 0])
    torch.testing.assert_close(outputs[0, 0], expected)
    torch.testing.assert_close(states.after([4])[0, 0, 0], outputs[0, -1])


def test_an_encoder_may_grow_before_it_without_a_change_of_outputs():
    made = agent()
    network, moments = made.network, (torch.zeros(made.parameter_count), torch.zeros(made.parameter_count))
    observations = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(2))
    source = MutationSource(network, moments, lambda: observations)
    grown = mutate_network(source, "add_latent_node", {"nodes": 8}, torch.Generator().manual_seed(3)).network
    info = network.sequence_info_of(observations)
    for before, after in zip(
        network.evaluate(observations.flatten(0, 1), info),
        grown.evaluate(observations.flatten(0, 1), info),
        strict=True,
    ):
        torch.testing.assert_close(after, before, atol=1e-5, rtol=0)


def test_a_saved_agent_names_its_memory(tmp_path):
    made = agent()
    made.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent")
    assert loaded.architecture == made.architecture
    assert loaded.architecture.to_config()["memory_config"] == {"cell": "trace", "hidden_state_size": 8}


def test_an_unknown_memory_is_named_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"memory_config: cell='LSTN'.*LSTM"):
        PPO(*SPACES, recurrent=True, net_config={"memory_config": {"cell": "LSTN"}})
