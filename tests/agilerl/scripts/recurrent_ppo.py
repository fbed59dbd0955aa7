"""RecurrentPPO and collect_rollouts_recurrent."""

import numpy as np
from agilerl.algorithms import RecurrentPPO
from agilerl.rollouts import collect_rollouts_recurrent
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
agent = RecurrentPPO(
    env.single_observation_space,
    env.single_action_space,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    max_seq_len=8,
    net_config={"encoder_config": {"hidden_state_size": 32, "num_layers": 1}},
)
collected = collect_rollouts_recurrent(agent, env)
first = agent.learn()
collected = collect_rollouts_recurrent(
    agent, env, last_obs=collected[1], last_done=collected[2], last_scores=collected[3], last_info=collected[4]
)
assert np.isfinite([first, agent.learn()]).all()
