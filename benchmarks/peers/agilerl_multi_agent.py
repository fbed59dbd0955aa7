"""Returns and speed of AgileRL's IPPO in the environments of ``multi_agent_envs.py``, with its own training function.

Learning takes the values of AgileRL's ``configs/training/multi_agent/ippo.yaml``, which is for simple_speaker_listener;
only the environment, the seed and the budget are the benchmark's, nothing is compiled. Speed takes the common work of
``measurement.py``: without evolution, and without LayerNorm, which is on by default in AgileRL. Envs have a process
each: AgileRL has no other way to step many of them.

AgileRL tests with drawn actions, and so its curve is made; its last elite, before mutation, is evaluated with drawn
actions and with the most probable ones. Steps are counted as its training function takes them. Runs do not repeat bit
for bit, for AgileRL gives its envs no seeds.
"""

import time
from typing import Any

import numpy as np
import torch
from agilerl.algorithms import IPPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_multi_agent_vect_envs
from numpy.typing import NDArray

from benchmarks import measurement as m
from benchmarks import multi_agent_envs as w

PEER = "AgileRL"
EVO_STEPS = 10_000


class WatchedSelection(TournamentSelection):
    """AgileRL's tournament, which sees every generation after its evaluation: what a curve needs."""

    def __init__(self) -> None:
        super().__init__(tournament_size=2, elitism=True, population_size=w.MEMBERS)
        self.env_steps = 0
        self.curve: list[tuple[int, float]] = []
        self.elite: Any = None

    def select(self, population: list[IPPO]) -> tuple:
        """Take down steps, best fitness and elite, then select."""
        self.env_steps += sum(steps_taken(agent) for agent in population)
        self.curve.append((self.env_steps, max(agent.fitness[-1] for agent in population)))
        elite, *rest = super().select(population)
        self.elite = elite.clone(wrap=False)
        return elite, *rest


def steps_taken(agent: IPPO) -> int:
    """Return a member's env steps in a generation: whole rollouts, of whole steps of all envs."""
    rollouts = -(-EVO_STEPS // agent.learn_step)
    return rollouts * -(-agent.learn_step // m.ENVS_PER_MEMBER) * m.ENVS_PER_MEMBER


def vector(env_name: str) -> Any:
    """Make the vector env."""
    return make_multi_agent_vect_envs(w.ENVS[env_name].factory, num_envs=m.ENVS_PER_MEMBER, max_cycles=w.CYCLES)


def build_population(env: Any, *, layer_norm: bool, **settings: Any) -> list[IPPO]:
    """Make agents for an env, of the networks and numbers that learning and speed have in common."""
    mlp = {"activation": "ReLU", "layer_norm": layer_norm, "min_mlp_nodes": 32}
    head = {"hidden_size": [m.WIDTH], **mlp, "max_mlp_nodes": 256, "min_hidden_layers": 1, "max_hidden_layers": 3}
    return IPPO.population(
        size=w.MEMBERS,
        observation_space=[env.single_observation_space(agent) for agent in env.agents],
        action_space=[env.single_action_space(agent) for agent in env.agents],
        agent_ids=list(env.agents),
        net_config={
            "latent_dim": m.WIDTH,
            "encoder_config": {"hidden_size": [m.WIDTH], **mlp, "max_mlp_nodes": 500},
            "head_config": head,
        },
        learn_step=m.UPDATE_STEPS,
        batch_size=m.MINIBATCH,
        update_epochs=m.EPOCHS,
        gamma=m.GAMMA,
        gae_lambda=m.GAE_LAMBDA,
        action_std_init=0.0,
        clip_coef=m.CLIP,
        vf_coef=m.VALUE,
        max_grad_norm=m.GRADIENT_NORM,
        **settings,
    )


def most_probable(agent: IPPO) -> w.Act:
    """Act without noise, which AgileRL has no switch for: the largest logit."""

    def of(agent_id: str, observations: NDArray) -> NDArray:
        actor = agent.actors[agent.get_group_id(agent_id) if agent.has_grouped_agents() else agent_id]
        with torch.no_grad():
            return actor.head_net.wrapped(actor.extract_features(torch.as_tensor(observations))).argmax(-1).numpy()

    return lambda seen: {agent_id: of(agent_id, observations) for agent_id, observations in seen.items()}


def drawn(agent: IPPO) -> w.Act:
    """Act as ``IPPO.test`` does."""
    return lambda seen: {agent_id: np.asarray(actions) for agent_id, actions in agent.get_action(seen)[0].items()}


def learn(task: w.Task) -> w.Learned:
    """Run AgileRL from start to end, and evaluate its last elite."""
    env = vector(task.env_name)
    population = build_population(
        env,
        layer_norm=True,
        lr=1e-4,
        ent_coef=0.05,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-6, max=1e-2),
            batch_size=RLParameter(min=8, max=1024),
            learn_step=RLParameter(min=256, max=8192),
        ),
    )
    selection, start = WatchedSelection(), time.perf_counter()
    train_multi_agent_on_policy(
        env,
        task.env_name,
        "IPPO",
        population,
        max_steps=task.steps_per_member,
        evo_steps=EVO_STEPS,
        eval_loop=1,
        selection_strategy=selection,
        mutation=Mutations(
            no_mutation=0.4,
            architecture=0.4,
            new_layer_prob=0.2,
            parameters=0.2,
            activation=0.0,
            rl_hp=0.35,
            mutation_sd=0.1,
            rand_seed=task.seed,
        ),
        verbose=False,
    )
    seconds, elite = time.perf_counter() - start, selection.elite
    elite.set_training_mode(False)
    found = ", ".join(f"{name}={getattr(elite, name):.3g}" for name in elite.registry.hp_config.names())
    best, noisy = (w.mean_return(w.ENVS[task.env_name], act(elite)) for act in (most_probable, drawn))
    return w.Learned.of(PEER, task, seconds, selection.curve, best, found, drawn=noisy)


def speed(task: w.Task) -> m.Measurement:
    """Train without evolution: a warm-up, then more with the clock running; every call closes its envs."""
    env = vector(task.env_name)
    population = build_population(env, layer_norm=False, lr=m.LEARNING_RATE, ent_coef=m.ENTROPY)
    env.close()

    def train(until: int, evo_steps: int) -> float:
        env, start = vector(task.env_name), time.perf_counter()
        train_multi_agent_on_policy(
            env, task.env_name, "IPPO", population, max_steps=until, evo_steps=evo_steps, eval_loop=1, verbose=False
        )
        return time.perf_counter() - start

    train(m.UPDATE_STEPS, m.UPDATE_STEPS)
    seconds = train(m.UPDATE_STEPS + task.steps_per_member, min(m.GENERATION_STEPS, task.steps_per_member))
    work = m.Work(task.env_name, w.MEMBERS, task.steps_per_member, task.threads, task.seed)
    networks = {"actor": population[0].actors, "critic": population[0].critics}
    layers = [
        f"{group} {part}: {layer}"
        for part, by_group in networks.items()
        for group, network in by_group.items()
        for layer in network.modules()
        if not list(layer.children())
    ]
    return m.Measurement.of(PEER, "agilerl", work, seconds, layers)


def main() -> None:
    task = w.parse_task((__doc__ or "").splitlines()[0])
    torch.set_num_threads(task.threads)
    set_global_seed(task.seed)
    print((learn if task.part == w.LEARN else speed)(task).to_json())


if __name__ == "__main__":
    main()
