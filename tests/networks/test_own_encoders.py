"""Encoders of a user's own whose registered entry is a function with arguments that the class of the module lacks."""

from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import DQN, PPO
from agilerl_like.hpo import Mutation
from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.modules.flatten_inputs import FlattenedInputs
from agilerl_like.networks import EncoderKind
from agilerl_like.networks.architecture import ENCODERS


@dataclass(frozen=True)
class ScaledSpec(MLPSpec):
    pass


class Scaled(EvolvableMLP):
    def __init__(self, spec, inputs, num_outputs, scale=1.0):
        super().__init__(spec, inputs, num_outputs)
        self.scale = scale

    def forward(self, x):
        return super().forward(self.scale * x)

    def layer_input(self, name, x):
        return super().layer_input(name, self.scale * x)


class FlatScaled(FlattenedInputs, Scaled):
    def __init__(self, spec, inputs, num_outputs, scale=1.0):
        super().__init__(spec, inputs, num_outputs)
        self.scale = scale


VECTORS = gymnasium.spaces.Box(-1.0, 1.0, (4,))
IMAGES = gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "flattened images"])
def test_mutations_and_files_keep_the_arguments_of_the_entry(algorithm, space, monkeypatch, tmp_path):
    module, flat = partial(Scaled, scale=5.0), partial(FlatScaled, scale=5.0)
    monkeypatch.setitem(ENCODERS._entries, "scaled", EncoderKind(ScaledSpec, module, "vectors", flat))
    network = {"encoder": "scaled", "encoder_config": {"hidden_size": [16]}}
    agent = algorithm(space, gymnasium.spaces.Discrete(3), net_config=network, seed=1)
    seen = agent.learner.encoding.random_rows(6, torch.Generator().manual_seed(0))
    before = agent.network.actor(seen)
    for operator, arguments in (("encoder.add_node", {"layer": 0, "nodes": 16}), ("add_latent_node", {"nodes": 8})):
        architecture = agent.architecture.apply(operator, **arguments)
        change = Mutation("architecture", operator, arguments)
        agent.apply_genome(agent.genome.replace(architecture=architecture), (change,))
    loaded = algorithm.load(agent.save_checkpoint(tmp_path / "agent"))
    assert [one.network.actor.encoder.scale for one in (agent, agent.clone(), loaded)] == [5.0] * 3
    torch.testing.assert_close(agent.network.actor(seen), before)
    assert torch.equal(loaded.network.actor(seen), agent.network.actor(seen))
