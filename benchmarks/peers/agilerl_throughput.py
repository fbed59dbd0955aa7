"""Env steps per second of AgileRL's own training loop, without evaluation and evolution.

The loop is what its ``train_on_policy`` does between two evaluations: members take turns on one shared
``SyncVectorEnv``; each turn resets it, then alternates ``collect_rollouts`` and ``PPO.learn``. What AgileRL adds for
evolution (the gradient capture of its ReGraMa mutation) is off, as it is there without a mutation object.
LayerNorm, on by default in AgileRL, is switched off in encoder and heads, so the network is the one of
the comparison: Linear-ReLU-Linear-ReLU into two heads of Linear-ReLU-Linear. The encoder runs once for both heads.
"""

import time

import torch
from agilerl.algorithms import PPO
from agilerl.rollouts import collect_rollouts, collect_rollouts_recurrent
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_vect_envs
from gymnasium.vector import VectorEnv

from benchmarks import measurement as m


def build_population(env: VectorEnv, members: int) -> list[PPO]:
    mlp = {"activation": "ReLU", "layer_norm": False}
    return PPO.population(
        size=members,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        net_config={
            "latent_dim": m.WIDTH,
            "encoder_config": {"hidden_size": [m.WIDTH], **mlp},
            "head_config": {"hidden_size": [m.WIDTH], **mlp},
        },
        num_envs=m.ENVS_PER_MEMBER,
        learn_step=m.UPDATE_STEPS,
        batch_size=m.MINIBATCH,
        update_epochs=m.EPOCHS,
        lr=m.LEARNING_RATE,
        gamma=m.GAMMA,
        gae_lambda=m.GAE_LAMBDA,
        clip_coef=m.CLIP,
        ent_coef=m.ENTROPY,
        vf_coef=m.VALUE,
        max_grad_norm=m.GRADIENT_NORM,
        share_encoders=True,
    )


def train_one_turn(agent: PPO, env: VectorEnv, updates: int) -> None:
    """Do what ``train_on_policy`` does with one agent before it turns to the next."""
    collect = collect_rollouts_recurrent if agent.recurrent else collect_rollouts
    n_steps = m.UPDATE_STEPS // m.ENVS_PER_MEMBER
    agent.set_training_mode(True)
    agent.init_training_step(False)
    finished: list[float] = []
    carried = dict.fromkeys(("last_obs", "last_done", "last_scores", "last_info"))
    for _ in range(updates):
        scores, *state = collect(agent, env, n_steps=n_steps, **carried)
        carried = dict(zip(carried, state, strict=True))
        agent.learn()
        finished += scores
    agent.add_scores(finished)
    agent.finalize_training_step(updates * m.UPDATE_STEPS)


def layers(agent: PPO) -> list[str]:
    """Return the layers that take part: the critic's own encoder never runs when encoders are shared."""
    parts = {"encoder": agent.actor.encoder, "actor head": agent.actor.head_net, "critic head": agent.critic.head_net}
    return [
        f"{name}: {layer}" for name, part in parts.items() for layer in part.modules() if not list(layer.children())
    ]


def main() -> None:
    work = m.parse_work((__doc__ or "").splitlines()[0])
    torch.set_num_threads(work.threads)
    set_global_seed(work.seed)
    env = make_vect_envs(work.env, num_envs=m.ENVS_PER_MEMBER, should_async_vector=False)
    env.reset(seed=work.seed)
    population = build_population(env, work.members)

    for agent in population:
        train_one_turn(agent, env, updates=1)

    start = time.perf_counter()
    for updates in work.turns:
        for agent in population:
            train_one_turn(agent, env, updates)
    seconds = time.perf_counter() - start

    env.close()
    print(m.Measurement.of("AgileRL", "agilerl", work, seconds, layers(population[0])).to_json())


if __name__ == "__main__":
    main()
