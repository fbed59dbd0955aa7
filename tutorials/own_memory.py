"""A memory of your own, named in `memory_config`: features that fade by a tenth in each step."""

from dataclasses import dataclass

from agilerl_like import PPO, Mutations, TournamentSelection, make_vect_envs, register, train_on_policy
from agilerl_like.modules import MemoryKind, MemoryModule, MemorySpec
from agilerl_like.modules.evolvable_module import UnitChange
from agilerl_like.modules.layers import Linear


@dataclass(frozen=True)
class TraceSpec(MemorySpec):
    hidden_state_size: int = 32

    @property
    def state_shape(self):
        return 1, self.hidden_state_size  # one vector

    def choices(self, operator):
        return ()  # no mutations of its own

    def multiply_adds(self, padded, inputs, num_outputs):
        return inputs * self.hidden_state_size

    def describe(self):
        return f"trace {self.hidden_state_size}"


class Trace(MemoryModule[TraceSpec]):
    input_consumers = ("linear",)  # refitted when the encoder loses units

    def __init__(self, spec, inputs):
        super().__init__(spec, inputs)
        self.linear = Linear(inputs, spec.hidden_state_size)

    def reset_(self, generator, *, output_gain):
        self.linear.reset_(1.0, generator)

    def step(self, x, state):  # the same code for one member [B, in] and for a stack of members [P, B, in]
        trace = 0.9 * state[..., 0, :] + self.linear(x)
        return trace, trace.unsqueeze(-2)

    def unit_axes(self):  # which axes have the units of the encoder ("in") and of this module ("out")
        return {"linear.weight": ("out", "in"), "linear.bias": ("out",)}

    def unit_change(self, operator, arguments):
        return UnitChange()

    def layer_input(self, name, x):
        return x.flatten(0, -2)


register("memory", "trace", MemoryKind(TraceSpec, Trace))

if __name__ == "__main__":
    env = make_vect_envs("CartPole-v1", num_envs=16)
    network = {"memory_config": {"cell": "trace", "hidden_state_size": 48}}
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(2, *spaces, num_envs=16, recurrent=True, max_seq_len=16, net_config=network, seed=1)
    search = {"selection_strategy": TournamentSelection(), "mutation": Mutations(architecture=1.0, rl_hp=0)}
    pop, _ = train_on_policy(env, pop=pop, max_steps=4_096, evo_steps=2_048, **search)
    pop.best.save_checkpoint("trace")
    print(PPO.load("trace"))
