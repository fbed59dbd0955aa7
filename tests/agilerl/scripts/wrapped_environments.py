"""Wrappers and constructor arguments of vectorised environments."""

from functools import partial

import gymnasium
from agilerl.utils.utils import make_vect_envs
from gymnasium.wrappers import TimeLimit

env = make_vect_envs(
    "Pendulum-v1",
    num_envs=2,
    should_async_vector=False,
    extra_wrappers=[partial(TimeLimit, max_episode_steps=3)],
    g=5.0,
)
env.reset(seed=0)
for _ in range(3):
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
assert truncated.all()
made = make_vect_envs(num_envs=2, make_env=lambda: gymnasium.make("CartPole-v1"), should_async_vector=False)
assert made.num_envs == 2
