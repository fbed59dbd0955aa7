"""Returns and speed of `agilerl_like`'s teams in the environments of `multi_agent_envs.py`, by its public API."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from agilerl_like import (
    IPPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    train_multi_agent_on_policy,
)
from agilerl_like.algorithms.ippo import MultiAgentPopulation
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentBackend, MultiAgentVectorEnv
from agilerl_like.reporting import GenerationRecord, Reporter, SummaryRecord
from benchmarks import measurement as m
from benchmarks import multi_agent_envs as w
from benchmarks.agilerl_like_setup import Ear, settings
from benchmarks.multi_agent_envs import Learned, Task

PEER = "agilerl_like"
EVALUATIONS = 50  # episodes of each member at the end of a generation: good teams differ by little, episodes by much
GENERATIONS = 10
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 3e-3), ent_coef=RLParameter(1e-3, 5e-2))
SETTINGS: Mapping[str, Any] = {
    "num_envs": 32,
    "learn_step": 3200,  # 128 episodes
    "batch_size": 800,
    "update_epochs": 10,  # a member's 250,000 steps are few
    "lr": 1e-3,
    "gamma": 0.9,  # what an action does is seen within ten steps
    "gae_lambda": 0.8,  # with teammates who draw their actions too, what comes later is mostly noise
    "ent_coef": 0.01,
    "rewards": "sum",  # they are teams
    "net_config": {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}},
}
"""Initial settings in both environments; lr, ent_coef and architectures evolve from them."""


class Curve(Reporter):
    """Keeps the best member's fitness of each generation, and the env steps of all members until then."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def generation(self, record: GenerationRecord) -> None:
        self.points.append((record.env_steps, max(member.fitness for member in record.members)))

    def finish(self, summary: SummaryRecord) -> None:
        if summary.reason != "budget spent":
            raise RuntimeError(f"the run is no measurement, for it ended early: {summary.reason}")


def vector(env_name: str, num_envs: int, backend: MultiAgentBackend = "auto") -> MultiAgentVectorEnv:
    """Make the vector env."""
    return make_multi_agent_vect_envs(w.ENVS[env_name].factory, num_envs, backend=backend, max_cycles=w.CYCLES)


def best_actions(teams: Mapping[str, IPPO]) -> w.Act:
    """Return agents acting without exploration, each as the team does that stands beside its name."""
    learners = {agent: team.learner_of(agent) for agent, team in teams.items()}
    return lambda seen: {agent: learners[agent].predict(obs, deterministic=True)[0] for agent, obs in seen.items()}


def described(team: IPPO) -> str:
    """Say what evolution made of a team."""
    numbers = ", ".join(f"{name}={value:.3g}" for name, value in team.hyperparameters.items())
    return f"{team.architecture.describe()}; {numbers}"


def learn(task: Task) -> Learned:
    """Evolve a population and evaluate the member that was best in the last evaluation, as AgileRL's side does."""
    env = vector(
        task.env_name, SETTINGS["num_envs"], "sync"
    )  # runs of one core each, of which some can go side by side
    population = IPPO.population(
        w.MEMBERS,
        env.single_observation_spaces,
        env.single_action_spaces,
        hp_config=RANGES,
        seed=task.seed,
        critic_observation=task.critic,
        **SETTINGS,
    )
    curve, start = Curve(), time.perf_counter()
    population, _ = train_multi_agent_on_policy(
        env,
        pop=population,
        max_steps=task.steps_per_member,
        evo_steps=-(-task.steps_per_member // GENERATIONS),
        eval_loop=EVALUATIONS,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0.4, architecture=0.2, parameters=0.0, activation=0.0, rl_hp=0.4),
        verbose=False,
        reporters=[curve],
    )
    seconds, best = time.perf_counter() - start, population.fittest
    env.close()
    earned = w.mean_return(w.ENVS[task.env_name], best_actions(dict.fromkeys(best.agent_ids, best)))
    return Learned.of(PEER, task, seconds, curve.points, earned, described(best))


def equal_work(env: MultiAgentVectorEnv, seed: int) -> MultiAgentPopulation:
    """Make teams of the common work; actor and critic have an encoder each, as AgileRL's have."""
    spaces = env.single_observation_spaces, env.single_action_spaces
    return IPPO.population(w.MEMBERS, *spaces, **settings(share_encoders=False, seed=seed))


def speed(task: Task) -> m.Measurement:
    """Train without evolution; the clock runs from the end of the first generation to that of the last."""
    env = vector(task.env_name, m.ENVS_PER_MEMBER)
    population, ear = equal_work(env, task.seed), Ear()
    train_multi_agent_on_policy(
        env,
        pop=population,
        max_steps=m.GENERATION_STEPS + task.steps_per_member,
        evo_steps=min(m.GENERATION_STEPS, task.steps_per_member),
        eval_loop=m.ENVS_PER_MEMBER,
        processes=task.processes,
        verbose=False,
        reporters=[ear],
    )
    env.close()
    steps, seconds = ear.after_first()
    work = m.Work(task.env_name, w.MEMBERS, steps // w.MEMBERS, task.threads, task.seed, task.processes)
    return m.Measurement.of(PEER, "agilerl-like", work, seconds, [population[0].architecture.describe()])


def main() -> None:
    task = w.parse_task(__doc__ or "")
    torch.set_num_threads(task.threads)
    print((learn if task.part == w.LEARN else speed)(task).to_json())


if __name__ == "__main__":
    main()
