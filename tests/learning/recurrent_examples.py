"""Rollouts of recurrent networks, and the reference values of a pass episode by episode.

Envs are played here as the two dialects of autoreset lay their episodes out in rows; the answers know nothing of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from learner_examples import DISCRETE, OBSERVATIONS
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec

ENDS = ["", "", "", "", "terminated", "truncated", "lost"]
SMALL = {"hidden_size": [6], "activation": "Tanh", "min_mlp_nodes": 2}


def spec_of(cell="LSTM", units=5, layers=1, latent=4, hidden=6, **memory):
    sizes = {"cell": cell, "hidden_state_size": units, "num_layers": layers, "min_hidden_state_size": 1}
    if cell == "transformer":
        sizes = {"cell": cell, "d_model": 5, "head_dim": 3, "num_heads": 1, "d_mlp": units, "num_layers": layers}
        memory = {"context": 4, "min_d_mlp": 1}  # without dropout
    part = {**SMALL, "hidden_size": [hidden]}
    return NetworkSpec.from_net_config(
        {
            "encoder_config": part,
            "memory_config": {**sizes, **memory},
            "head_config": part,
            "latent_dim": latent,
            "min_latent_dim": 2,
        },
        recurrent=True,
    )


def network_of(spec, seed, action_space=DISCRETE, *, share=False, normalised=False):
    """A network whose every number is its own; double."""
    network = ActorCritic(
        spec,
        ObservationEncoder(OBSERVATIONS),
        action_space,
        share_encoders=share,
        normalize_observation=normalised,
        normalize_value=normalised,
    ).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    return network


class Row(NamedTuple):
    """What an env shows at one step, and what became of it."""

    observation: Tensor  # [D]
    begins: bool  # an episode
    valid: bool
    end: str
    successor: Tensor  # [D], what the action truly led to


def played(rng, steps, mode):
    """The rows of one env, in which an episode was running already, and what is seen after the last."""

    def draw():
        return torch.from_numpy(rng.normal(size=3))

    rows, seen, begins, over = [], draw(), False, False
    for _ in range(steps):
        if over:  # next-step autoreset: the last observation once more, and the action is ignored
            rows.append(Row(seen, False, False, "", draw()))
            seen, begins, over = rows[-1].successor, True, False
            continue
        end, successor = str(rng.choice(ENDS)), draw()
        rows.append(Row(seen, begins, end != "lost", end, successor))
        if end and (mode == "same step" or end == "lost"):
            seen, begins = draw(), True
        else:
            seen, begins, over = successor, False, bool(end)
    return rows, seen


class World(NamedTuple):
    """Members' experience as rows, and the rows of each env by themselves."""

    rollout: Rollout
    rows: list[list[list[Row]]]  # [P][E][T]


def world_of(seed, members, envs, steps, mode, state_shape):
    rng = np.random.default_rng(seed)
    played_by = [[played(rng, steps, mode) for _ in range(envs)] for _ in range(members)]
    rows = [[rows for rows, _ in its] for its in played_by]

    def tensor(read):
        found = [[[read(row) for row in its] for its in member] for member in rows]
        return torch.from_numpy(np.array(found, dtype=float)).movedim(2, 0)  # [T, P, E, …]

    terminated = tensor(lambda row: row.end == "terminated")
    truncated = tensor(lambda row: row.end in ("truncated", "lost"))
    at = truncated.nonzero() if mode == "same step" else torch.zeros(0, 3, dtype=torch.int64)
    last = [rows[p][e][t].successor for t, p, e in at.tolist()]
    rollout = Rollout.from_steps(
        tensor(lambda row: row.observation.numpy()),
        torch.from_numpy(rng.integers(3, size=(steps, members, envs, 1))),
        torch.from_numpy(rng.normal(size=(steps, members, envs))) * tensor(lambda row: row.valid),
        terminated,
        terminated + truncated,
        tensor(lambda row: row.valid),
        torch.stack([torch.stack([seen for _, seen in its]) for its in played_by]),
        FinalObservations.of(
            *at.unbind(1),
            torch.stack(last) if last else torch.zeros(0, 3, dtype=torch.float64),
            members=members,
        ),
        None,
        torch.from_numpy(rng.normal(size=(members, envs, *state_shape))),
    )
    return World(rollout, rows)


# -- by hand


class Thought(NamedTuple):
    """What a network makes of one observation."""

    outputs: Tensor  # [A]
    value: Tensor
    state: Tensor  # [M, K, H], hidden state after it


def think(network, observation, state):
    """One step, of each branch by itself."""
    branches = [network.actor] if network.share_encoders else [network.actor, network.critic]
    said, states = [], []
    for branch, its in zip(branches, state, strict=True):
        y, after = branch.memory.step(branch.encoder(observation[None]), its[None])
        said.append(y[0])
        states.append(after[0])
    return Thought(network.actor.head(said[0]), network.critic.head(said[-1])[0], torch.stack(states))


class Remembered(NamedTuple):
    """Reference values of one row of an env."""

    before: Tensor  # [M, K, H], hidden state before it, zero where an episode begins
    thought: Thought
    next_value: Tensor  # of its successor


def walk(network, rows, state):
    """Reference values of an env's rows, computed one after the other from the hidden state `state`."""
    found = []
    for row in rows:
        before = torch.zeros_like(state) if row.begins else state
        thought = think(network, row.observation, before)
        found.append(Remembered(before, thought, think(network, row.successor, thought.state).value))
        state = thought.state
    return found


def judge(network, outputs, action):
    """Log-probability and entropy of a Categorical's action."""
    log_probs = outputs.log_softmax(-1)
    return log_probs[int(action)], -(log_probs.exp() * log_probs).sum()
