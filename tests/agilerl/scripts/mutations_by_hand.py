"""Kinds of mutation one by one, of chosen agents."""

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
pop = PPO.population(
    size=3,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
)
rates = [agent.lr for agent in pop]
pop = Mutations(0, 0, 0, 0, 0, 1, rand_seed=1).mutation(pop, indices=[2])
assert [pop[0].lr, pop[1].lr] == rates[:2]
changed = {name: getattr(pop[2], name) for name in ("lr", "batch_size", "learn_step")}
assert changed != {"lr": rates[2], "batch_size": 16, "learn_step": 32}
pop = Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=1).mutation(pop)
pop = Mutations(0, 0, 0, 1, 0, 0, rand_seed=1).mutation(pop)
action, *_ = pop[1].get_action(env.reset(seed=0)[0])
assert action.shape == (2,)
