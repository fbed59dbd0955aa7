"""DQN from create_population to a trained list, with a shared replay."""

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

NET_CONFIG = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
INIT_HP = {"BATCH_SIZE": 16, "LR": 1e-3, "GAMMA": 0.99, "LEARN_STEP": 4, "TAU": 0.01, "DOUBLE": True}

env = make_vect_envs("CartPole-v1", num_envs=4)
pop = create_population(
    algo="DQN",
    net_config=NET_CONFIG,
    INIT_HP=INIT_HP,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)),
    population_size=2,
    num_envs=4,
)
memory = ReplayBuffer(max_size=1000)
trained, fitnesses = train_off_policy(
    env=env,
    env_name="CartPole-v1",
    algo="DQN",
    pop=pop,
    memory=memory,
    max_steps=400,
    evo_steps=200,
    eval_steps=50,
    eval_loop=1,
    learning_delay=40,
    eps_start=1.0,
    eps_end=0.1,
    eps_decay=0.99,
    tournament=TournamentSelection(tournament_size=2, elitism=True, population_size=2, eval_loop=1),
    mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.2, 0.2),
    verbose=False,
)
assert len(trained) == 2
assert all(agent.learner.updates > 0 for agent in trained)
assert all(agent.memory_size == 500 for agent in trained)
