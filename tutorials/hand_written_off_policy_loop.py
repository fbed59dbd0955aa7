"""Train one SAC agent with a loop of your own, on Pendulum-v1.

`train_off_policy` does all of this in one call. A loop by hand is for those who want to change something in the middle
of it. `TransitionBuffer` stores the transitions: a time limit is not a termination, its true last observation is
stored, and the step in which an env only resets is left out.

    python tutorials/hand_written_off_policy_loop.py --max-steps 20000
"""

import argparse

import torch

from agilerl_like import SAC, TransitionBuffer, make_vect_envs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--max-steps", type=int, default=20_000, help="env steps")
parser.add_argument("--random-steps", type=int, default=1_000, help="env steps with uniform actions before learning")
parser.add_argument("--save", default="pendulum", help="folder for the agent")
args = parser.parse_args()

torch.set_num_threads(1)  # small networks: one thread is fastest on a shared machine

env, eval_env = make_vect_envs("Pendulum-v1", num_envs=4), make_vect_envs("Pendulum-v1", num_envs=4)
agent = SAC(env.single_observation_space, env.single_action_space, lr=1e-3, gamma=0.98, num_envs=env.num_envs, seed=1)
buffer = TransitionBuffer(agent, env)  # of agent.memory_size transitions

env.action_space.seed(1)
obs, info = env.reset(seed=1)
learned = loss = 0
for step in range(0, args.max_steps, env.num_envs):
    # get_action explores in training mode; predict(obs, deterministic=True) returns the best actions
    action = env.action_space.sample() if step < args.random_steps else agent.get_action(obs)
    next_obs, reward, terminated, truncated, info = env.step(action)
    added = buffer.add(obs, action, reward, terminated, truncated, next_obs, info)
    obs = next_obs
    if step >= args.random_steps:
        for _ in range(added):  # a gradient step for each transition
            loss = agent.learn(buffer.sample())
            learned += 1
    if (step + env.num_envs) % 5_000 == 0:
        print(f"{step + env.num_envs:6d} steps   test {agent.test(eval_env, loop=8):7.1f}   loss {loss:.3g}")

path = agent.save_checkpoint(args.save)
loaded = SAC.load(path)
action, _ = loaded.predict(obs, deterministic=True)
print(f"{learned} gradient steps; saved to {path}; loaded again it scores {loaded.test(eval_env, loop=8):.0f}")
env.close()
eval_env.close()
