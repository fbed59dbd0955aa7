"""Env steps per second of a population of PPO agents in JAX: environments, networks and updates in one jitted `vmap`.

This is not a library but a program of ours, written as PureJaxRL writes them: CartPole is itself in JAX, so there is no
exchange with the host at all, and everything that a library needs beside the loop (other environments and networks,
evaluation, evolution, checkpoints) is absent. It shows what the same work costs on this machine at least. Time limits
count as terminations, which saves it the value of final observations. The first call compiles, and is not timed.
Seconds are those of the CPU.
"""

import os
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from benchmarks import measurement as m

STEPS = m.UPDATE_STEPS // m.ENVS_PER_MEMBER
OBSERVATION, ACTIONS = 4, 2
OPTIMIZER = optax.chain(optax.clip_by_global_norm(m.GRADIENT_NORM), optax.adam(m.LEARNING_RATE, eps=1e-5))
Tree = dict[str, Any]


def init_network(key: Array) -> Tree:
    """Return the layers of the comparison: encoder and latent layer, and a head for actor and critic."""
    sizes = {
        "encoder": (OBSERVATION, m.WIDTH, 2**0.5),
        "latent": (m.WIDTH, m.WIDTH, 2**0.5),
        "actor": (m.WIDTH, m.WIDTH, 2**0.5),
        "logits": (m.WIDTH, ACTIONS, 0.01),
        "critic": (m.WIDTH, m.WIDTH, 2**0.5),
        "value": (m.WIDTH, 1, 1.0),
    }
    keys = jax.random.split(key, len(sizes))
    return {
        name: {"w": jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs)), "b": jnp.zeros(outputs)}
        for key, (name, (inputs, outputs, gain)) in zip(keys, sizes.items(), strict=True)
    }


def forward(network: Tree, observations: Array) -> tuple[Array, Array]:
    """Return logits and values."""

    def layer(name: str, x: Array) -> Array:
        return x @ network[name]["w"] + network[name]["b"]

    latent = jax.nn.relu(layer("latent", jax.nn.relu(layer("encoder", observations))))
    values = layer("value", jax.nn.relu(layer("critic", latent)))[..., 0]
    return layer("logits", jax.nn.relu(layer("actor", latent))), values


def first_states(key: Array) -> Array:
    """Return the states of new episodes."""
    return jax.random.uniform(key, (m.ENVS_PER_MEMBER, OBSERVATION), minval=-0.05, maxval=0.05)


def step_cartpole(states: Array, ages: Array, actions: Array, key: Array) -> tuple[Array, Array, Array]:
    """Take one Euler step of cart and pole (Barto, Sutton, Anderson 1983); ended episodes restart."""
    _, x_dot, theta, theta_dot = states.T
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    push = (actions * 20.0 - 10.0 + 0.05 * theta_dot**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = push - 0.05 * turn * cos / 1.1
    moved = states + 0.02 * jnp.stack([x_dot, pull, theta_dot, turn], 1)
    ended = (jnp.abs(moved[:, 0]) > 2.4) | (jnp.abs(moved[:, 2]) > jnp.deg2rad(12)) | (ages + 1 >= 500)
    return jnp.where(ended[:, None], first_states(key), moved), jnp.where(ended, 0, ages + 1), ended


def log_probability(logits: Array, actions: Array) -> Array:
    """Return the logarithm of the probability of each action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]


def collect(member: Tree) -> tuple[Tree, Tree]:
    """Step the envs of a member for one rollout; return the member and the rollout `[T, E, …]`."""

    def tick(carry: tuple, _: None) -> tuple[tuple, Tree]:
        states, ages, key = carry
        key, key_action, key_reset = jax.random.split(key, 3)
        logits, values = forward(member["network"], states)
        actions = jax.random.categorical(key_action, logits)
        moved, ages, ended = step_cartpole(states, ages, actions, key_reset)
        seen = {
            "observations": states,
            "actions": actions,
            "log_probabilities": log_probability(logits, actions),
            "values": values,
            "ended": ended.astype(jnp.float32),
        }
        return (moved, ages, key), seen

    carry, rollout = jax.lax.scan(tick, (member["states"], member["ages"], member["key"]), None, STEPS)
    return {**member, **dict(zip(("states", "ages", "key"), carry, strict=True))}, rollout


def advantages(rollout: Tree, last_values: Array) -> Array:
    """Return generalized advantage estimates (Schulman 2016); every reward is 1."""

    def back(carry: tuple[Array, Array], at: Tree) -> tuple[tuple[Array, Array], Array]:
        advantage, next_values = carry
        goes_on = 1.0 - at["ended"]
        delta = 1.0 + m.GAMMA * next_values * goes_on - at["values"]
        advantage = delta + m.GAMMA * m.GAE_LAMBDA * goes_on * advantage
        return (advantage, at["values"]), advantage

    start = jnp.zeros_like(last_values), last_values
    return jax.lax.scan(back, start, {name: rollout[name] for name in ("values", "ended")}, reverse=True)[1]


def loss(network: Tree, batch: Tree) -> Array:
    """Return PPO's clipped loss of one minibatch."""
    logits, values = forward(network, batch["observations"])
    ratio = jnp.exp(log_probability(logits, batch["actions"]) - batch["log_probabilities"])
    normal = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    policy = -jnp.minimum(ratio * normal, jnp.clip(ratio, 1 - m.CLIP, 1 + m.CLIP) * normal).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return policy + m.VALUE * 0.5 * ((values - batch["returns"]) ** 2).mean() - m.ENTROPY * entropy


def update(member: Tree, _: None) -> tuple[Tree, None]:
    """Collect one rollout and learn from it."""
    member, rollout = collect(member)
    rollout["advantages"] = advantages(rollout, forward(member["network"], member["states"])[1])
    rollout["returns"] = rollout["advantages"] + rollout["values"]
    samples = jax.tree.map(lambda x: x.reshape((m.UPDATE_STEPS, *x.shape[2:])), rollout)

    def minibatch(carry: tuple, rows: Array) -> tuple[tuple, None]:
        network, moments = carry
        gradient = jax.grad(loss)(network, jax.tree.map(lambda x: x[rows], samples))
        change, moments = OPTIMIZER.update(gradient, moments, network)
        return (optax.apply_updates(network, change), moments), None

    def epoch(carry: tuple, key: Array) -> tuple[tuple, None]:
        rows = jax.random.permutation(key, m.UPDATE_STEPS).reshape(-1, m.MINIBATCH)
        return jax.lax.scan(minibatch, carry, rows)

    key, *keys = jax.random.split(member["key"], m.EPOCHS + 1)
    (network, moments), _ = jax.lax.scan(epoch, (member["network"], member["moments"]), jnp.stack(keys))
    return {**member, "network": network, "moments": moments, "key": key}, None


def init_member(key: Array) -> Tree:
    """Return one member: network, moments, envs and key."""
    key_network, key_states, key = jax.random.split(key, 3)
    network = init_network(key_network)
    return {
        "network": network,
        "moments": OPTIMIZER.init(network),
        "states": first_states(key_states),
        "ages": jnp.zeros(m.ENVS_PER_MEMBER, jnp.int32),
        "key": key,
    }


@partial(jax.jit, static_argnums=1)
def train(population: Tree, updates: int) -> Tree:
    """Train all members."""
    return jax.vmap(lambda member: jax.lax.scan(update, member, None, updates)[0])(population)


def main() -> None:
    work = m.parse_work((__doc__ or "").splitlines()[0], envs=m.ENVS[:1])
    if hasattr(os, "sched_setaffinity"):  # XLA has as many threads as cores that it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.threads])
    population = jax.vmap(init_member)(jax.random.split(jax.random.PRNGKey(work.seed), work.members))
    population = jax.block_until_ready(train(population, work.updates_per_member))  # compiles
    start = time.process_time()
    population = jax.block_until_ready(train(population, work.updates_per_member))
    seconds = time.process_time() - start
    layers = [f"{name}: {layer['w'].shape[1:]}" for name, layer in population["network"].items()]
    print(m.Measurement.of("JAX program", "jax", work, seconds, layers).to_json())


if __name__ == "__main__":
    main()
