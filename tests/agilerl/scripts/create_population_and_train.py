"""INIT_HP, MUTATION_PARAMS, create_population and train_on_policy."""

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs

INIT_HP = {
    "ENV_NAME": "CartPole-v1",
    "ALGO": "PPO",
    "NUM_ENVS": 2,
    "POP_SIZE": 2,
    "TOURN_SIZE": 2,
    "ELITISM": True,
    "EVAL_LOOP": 1,
    "USE_ROLLOUT_BUFFER": True,
    "WANDB": False,
    "BATCH_SIZE": 16,
    "LR": 0.001,
    "LEARN_STEP": 32,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "ACTION_STD_INIT": 0.6,
    "CLIP_COEF": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "TARGET_KL": None,
    "UPDATE_EPOCHS": 2,
}
MUT_P = {"NO_MUT": 0.4, "ARCH_MUT": 0.2}
env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
pop = create_population(
    algo="PPO",
    net_config={"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}},
    INIT_HP=INIT_HP,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)),
    population_size=INIT_HP["POP_SIZE"],
    num_envs=2,
    device="cpu",
)
tournament = TournamentSelection(INIT_HP["TOURN_SIZE"], INIT_HP["ELITISM"], INIT_HP["POP_SIZE"])
mutations = Mutations(MUT_P["NO_MUT"], MUT_P["ARCH_MUT"], 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, mutate_elite=False)
trained, fitnesses = train_on_policy(
    env=env,
    env_name="CartPole-v1",
    algo="PPO",
    pop=pop,
    init_hp=INIT_HP,
    mut_p=MUT_P,
    max_steps=128,
    evo_steps=64,
    eval_steps=20,
    eval_loop=1,
    selection_strategy=tournament,
    mutation=mutations,
    wb=False,
    verbose=False,
)
assert len(trained) == 2
assert all(agent.update_epochs == 2 for agent in trained)
assert all(agent.steps >= 128 for agent in trained)
