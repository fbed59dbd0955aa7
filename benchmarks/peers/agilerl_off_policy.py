"""Gradient steps per CPU second of AgileRL from a full replay, of all members of a population.

The calls are those of its ``train_off_policy``: a minibatch of the shared replay, then ``learn``, one member after the
other. LayerNorm, on by default there, is switched off, so the networks are those of the comparison.
"""

import time

import torch
from agilerl.algorithms import DQN, TD3
from agilerl.components.data import Transition, transition_to_tensordict
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_vect_envs

from benchmarks import off_policy_work as w

ENVS = 8
KINDS = {
    "DQN": (DQN, {"lr": w.LEARNING_RATE, "double": False}),
    "TD3": (TD3, {"lr_actor": w.LEARNING_RATE, "lr_critic": w.LEARNING_RATE, "policy_freq": w.POLICY_DELAY}),
}


def fill(memory: ReplayBuffer, env, steps: int) -> None:
    """Store random transitions."""
    obs, _ = env.reset(seed=0)
    for _ in range(steps // ENVS):
        action = env.action_space.sample()
        next_obs, reward, done, _, _ = env.step(action)
        one = Transition(obs=obs, action=action, reward=reward, next_obs=next_obs, done=done)
        transition = transition_to_tensordict(one)
        transition.batch_size = torch.Size([ENVS])
        memory.add(transition)
        obs = next_obs


def learn(population, memory: ReplayBuffer, steps: int) -> float:
    """Let the members learn in turn; return the CPU seconds."""
    start = time.process_time()
    for _ in range(steps):
        for agent in population:
            agent.learn(memory.sample(agent.batch_size))
    return time.process_time() - start


def main() -> None:
    options = w.parse_options((__doc__ or "").splitlines()[0])
    torch.set_num_threads(options.threads)
    set_global_seed(options.seed)
    env = make_vect_envs(w.ENVS[options.algorithm], num_envs=ENVS, should_async_vector=False)
    kind, settings = KINDS[options.algorithm]
    mlp = {"hidden_size": [w.WIDTH], "activation": "ReLU", "layer_norm": False}
    population = [
        kind(
            env.single_observation_space,
            env.single_action_space,
            index=index,
            net_config={"latent_dim": w.WIDTH, "encoder_config": dict(mlp), "head_config": dict(mlp)},
            batch_size=w.BATCH,
            gamma=w.GAMMA,
            tau=w.TAU,
            **settings,
        )
        for index in range(options.members)
    ]
    memory = ReplayBuffer(max_size=w.STORED)
    fill(memory, env, w.STORED)
    learn(population, memory, 20)
    seconds = learn(population, memory, options.updates)
    first = population[0]
    networks = {"actor": first.actor, **({"critic": first.critic_1} if options.algorithm == "TD3" else {})}
    layers = [
        f"{name}: {layer}" for name, its in networks.items() for layer in its.modules() if not list(layer.children())
    ]
    print(w.Updates.of("AgileRL", "agilerl", options, seconds, layers).to_json())


if __name__ == "__main__":
    main()
