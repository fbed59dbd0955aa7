"""Memories that users register: the shapes of their outputs and states are checked when a network is built."""

from dataclasses import dataclass

import pytest
import torch
from gymnasium.spaces import Box, Discrete

from agilerl_like import PPO
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import MemoryKind, MemoryModule, MemorySpec
from agilerl_like.modules.layers import Linear
from agilerl_like.modules.memories import MEMORIES
from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec


@dataclass(frozen=True)
class SumSpec(MemorySpec):
    hidden_state_size: int = 8
    fault: str = ""

    @property
    def state_shape(self):
        return 1, self.hidden_state_size

    def choices(self, operator):
        return ()

    def multiply_adds(self, padded, inputs, num_outputs):
        return inputs * self.hidden_state_size

    def describe(self):
        return "sum"


class Sum(MemoryModule[SumSpec]):
    def __init__(self, spec, inputs):
        super().__init__(spec, inputs)
        self.linear = Linear(inputs, spec.hidden_state_size)

    def reset_(self, generator, *, output_gain):
        self.linear.reset_(1.0, generator)

    def step(self, x, state):
        total = state[..., 0, :] + self.linear(x)
        after = total.unsqueeze(-2)
        if self.spec.fault == "state":
            after = after.repeat_interleave(2, -2)
        return (total[..., 1:] if self.spec.fault == "outputs" else total), after

    def unit_axes(self):
        return {"linear.weight": ("out", "in"), "linear.bias": ("out",)}


@pytest.fixture(autouse=True)
def registered_sum(monkeypatch):
    monkeypatch.setitem(MEMORIES._entries, "sum", MemoryKind(SumSpec, Sum))


def agent_of(**memory):
    network = {"memory_config": {"cell": "sum", **memory}}
    return PPO(Box(-1, 1, (3,)), Discrete(2), recurrent=True, net_config=network)


def test_a_memory_of_the_users_own_is_built():
    assert agent_of().get_initial_hidden_state(1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("state", r"Sum.step returns a state of shape \(2, 2, 8\); allowed is \(2, 1, 8\), as its spec gives"),
        ("outputs", r"Sum.step returns outputs of shape \(2, 7\); allowed is \(2, 8\), as its spec gives"),
    ],
)
def test_a_step_that_changes_shapes_is_one_clear_error(fault, message):
    with pytest.raises(ConfigurationError, match=message):
        agent_of(fault=fault)


@dataclass(frozen=True)
class SquashedSpec(LSTMSpec):
    pass


class SquashedLSTM(EvolvableLSTM):
    def step(self, x, state):
        y, after = super().step(x, state)
        return torch.tanh(y), after


def test_a_subclass_of_the_lstm_is_named_saved_and_loaded(monkeypatch, tmp_path):
    monkeypatch.setitem(MEMORIES._entries, "squashed", MemoryKind(SquashedSpec, SquashedLSTM))
    agent = agent_of(cell="squashed", hidden_state_size=16)
    assert type(agent.actor.memory) is SquashedLSTM
    loaded = PPO.load(agent.save_checkpoint(tmp_path / "agent"))
    assert type(loaded.actor.memory) is SquashedLSTM
    assert loaded.architecture == agent.architecture
