"""A population with memory in train_on_policy."""

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts_recurrent
from agilerl.training.train_on_policy import train_on_policy
from agilerl.typing import BPTTSequenceType
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_state_size": 32, "num_layers": 1, "max_seq_len": 8}}
pop = PPO.population(
    size=2,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    recurrent=True,
    bptt_sequence_type=BPTTSequenceType.FIFTY_PERCENT_OVERLAP,
    max_seq_len=8,
)
trained, fitnesses = train_on_policy(
    env,
    "CartPole-v1",
    "PPO",
    pop,
    max_steps=64,
    evo_steps=32,
    eval_steps=20,
    selection_strategy=TournamentSelection(2, True, 2),
    mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2),
    collect_rollouts_fn=collect_rollouts_recurrent,
    verbose=False,
)
assert len(trained) == 2
assert all(agent.bptt_sequence_type == BPTTSequenceType.FIFTY_PERCENT_OVERLAP for agent in trained)
