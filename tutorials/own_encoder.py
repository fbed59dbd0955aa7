"""An encoder of your own, named in `net_config`: an MLP that reads observations on a logarithmic scale (DreamerV3).

A learned gate scales them first: a layer of the encoder's own.
"""

from dataclasses import dataclass

import torch

from agilerl_like import PPO, Mutations, TournamentSelection, make_vect_envs, register, train_on_policy
from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.modules.layers import Linear
from agilerl_like.networks import EncoderKind


@dataclass(frozen=True)
class SymlogSpec(MLPSpec):
    """Settings and mutations of an MLP; CONTRIBUTING.md ("a mutation of an architecture") lists how to add others."""


class SymlogMLP(EvolvableMLP):
    def __init__(self, spec, inputs, num_outputs):
        super().__init__(spec, inputs, num_outputs)
        # of modules.layers, because layers of torch.nn cannot compute several members at once
        self.gate = Linear(inputs, inputs)

    def reset_(self, generator, *, output_gain):  # initial weights
        super().reset_(generator, output_gain=output_gain)
        self.gate.reset_(1.0, generator)

    def forward(self, x):
        return super().forward(self.features(x))

    def features(self, x):  # the same code for one member [B, in] and for a stack of members [P, B, in]
        x = x.sign() * torch.log1p(x.abs())
        return torch.sigmoid(self.gate(x)) * x

    def layer_input(self, name, x):  # input of each layer: when units are removed, later layers are refitted to it
        return super().layer_input(name, self.features(x))


register("encoder", "symlog", EncoderKind(SymlogSpec, SymlogMLP, "vectors"))

if __name__ == "__main__":
    env = make_vect_envs("CartPole-v1", num_envs=16)
    network = {"encoder": "symlog", "encoder_config": {"hidden_size": [64]}}
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(2, *spaces, num_envs=16, net_config=network, seed=1)
    search = {"selection_strategy": TournamentSelection(), "mutation": Mutations(architecture=1.0, rl_hp=0)}
    pop, _ = train_on_policy(env, pop=pop, max_steps=4_096, evo_steps=2_048, **search)
    pop.best.save_checkpoint("symlog")
    print(PPO.load("symlog"))
