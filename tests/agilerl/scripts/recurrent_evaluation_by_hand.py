"""Hidden states by their names: [layers, envs, units]."""

import numpy as np
import torch
from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
agent = PPO(
    env.single_observation_space,
    env.single_action_space,
    recurrent=True,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    net_config={"encoder_config": {"hidden_state_size": 32, "num_layers": 1, "max_seq_len": 8}},
)
agent.set_training_mode(False)
obs, info = env.reset(seed=3)
hidden_state = agent.get_initial_hidden_state(2)
assert {name: tuple(state.shape) for name, state in hidden_state.items()} == {
    "shared_encoder_h": (1, 2, 32),
    "shared_encoder_c": (1, 2, 32),
}
for _ in range(4):
    action, _, _, _, hidden_state = agent.get_action(obs, hidden_state=hidden_state)
    obs, reward, terminated, truncated, info = env.step(action)
    for name in hidden_state:
        hidden_state[name][:, torch.from_numpy(np.logical_or(terminated, truncated)), :] = 0.0
assert hidden_state["shared_encoder_h"].abs().max() > 0
