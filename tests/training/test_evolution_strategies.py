"""OpenAIES and CMAES in runs: exact resume, evolution, processes that share a member's envs, configurations."""

import contextlib
import pickle
import threading
from pathlib import Path

import gymnasium
import pytest
import torch
from paying_envs import Paid
from small_runs import StopAfter

from agilerl_like import CMAES, Mutations, OpenAIES, TournamentSelection, make_vect_envs, train_on_policy
from agilerl_like.algorithms.population import Population
from agilerl_like.config import load
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.foreign_settings import convert
from agilerl_like.hpo import HyperparameterConfig, RLParameter
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.reporting import Callback
from agilerl_like.training.collector import Collector, PhaseTimer

PART = {"hidden_size": [8], "min_mlp_nodes": 4}
SMALL = {"latent_dim": 8, "encoder_config": PART, "head_config": PART}
RANGES = HyperparameterConfig(sigma=RLParameter(0.05, 1.0))
RUN = {"max_steps": 720, "evo_steps": 144, "eval_loop": 1, "eval_steps": 20, "verbose": False, "checkpoint": 288}


def cartpole(envs=6):
    return make_vect_envs("CartPole-v1", num_envs=envs, backend="torch")


def population(kind=OpenAIES, size=2, **changed):
    env = cartpole(1)
    settings = {"net_config": SMALL, "num_envs": 6, "seed": 2, "hp_config": RANGES, "learn_step": 96, **changed}
    return kind.population(size, env.single_observation_space, env.single_action_space, **settings)


def evolution():
    return {
        "selection_strategy": TournamentSelection(tournament_size=2, elitism=True),
        "mutation": Mutations(no_mutation=0.2, architecture=0.3, parameters=0.2, activation=0.0, rl_hp=0.3),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OpenAIES, CMAES])
def test_a_resumed_run_is_the_uninterrupted_one(kind, tmp_path):
    whole, _ = train_on_policy(cartpole(), pop=population(kind), run_dir=tmp_path / "whole", **RUN, **evolution())
    part = {**RUN, **evolution()}
    stop = StopAfter(3)
    train_on_policy(cartpole(), pop=population(kind), callbacks=[stop], run_dir=tmp_path / "part", **part)
    *_, last = sorted((tmp_path / "part" / "checkpoints").iterdir())
    for file in last.iterdir():  # as if the process had been killed: the last save of a stopped run is its end
        file.unlink()
    last.rmdir()
    resumed, _ = train_on_policy(cartpole(), pop=population(kind), resume=tmp_path / "part", **part)
    assert max(agent.learner.updates for agent in whole) > 4
    for one, other in zip(whole, resumed, strict=True):
        ours, theirs = one.to_documents()[1], other.to_documents()[1]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert whole.fitness == resumed.fitness


class Replica(GradientSync):
    """One of two threads that share the envs of each member."""

    def __init__(self, rank, shared):
        self.rank, self.num_ranks, self._shared = rank, 2, shared

    def all_reduce_(self, x):
        barrier, values = self._shared
        values[self.rank] = x.clone()
        barrier.wait(60)
        x.copy_(values[0] + values[1])
        barrier.wait(60)
        return x


def collected(pop, envs, steps, *, masks=False):
    collector = Collector(pop, VecEnvAdapter(envs), PhaseTimer(("env", "act", "learn")))
    collector.reset(range(len(pop)))
    pop.by_group[""].returns.has_masks = masks
    while steps > 0:
        steps -= collector.collect(min(steps, collector.vector_steps_until_update))
        collector.learn()


@pytest.mark.parametrize("kind", [OpenAIES, CMAES])
def test_replicas_that_exchange_returns_learn_as_one_process(kind):
    whole = population(kind, size=2)
    collected(whole, cartpole(12), 120)
    shared = threading.Barrier(2), [None, None]
    replicas = [population(kind, size=2) for _ in range(2)]
    threads = []
    for rank, replica in enumerate(replicas):
        replica.gradient_sync = Replica(rank, shared)
        how = {"args": (replica, cartpole(6), 120), "kwargs": {"masks": rank == 1}}  # the first has had none yet
        threads.append(threading.Thread(target=collected, daemon=True, **how))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, agent in enumerate(whole):
        assert agent.learner.updates > 2
        for replica in replicas:
            other = replica[place]
            assert other.learner.updates == agent.learner.updates
            assert (agent.learner.learned_with_masks, other.learner.learned_with_masks) == (False, True)
            for one, its in zip(agent.network.parameters(), other.network.parameters(), strict=True):
                torch.testing.assert_close(one, its, rtol=1e-5, atol=1e-6)
            norm = agent.network.observation_norm, other.network.observation_norm
            torch.testing.assert_close(norm[0].mean, norm[1].mean)
            torch.testing.assert_close(norm[0].var, norm[1].var)
        measured, other = (replica[place].learner.recent_observations for replica in replicas)
        assert torch.equal(measured, other)  # or a mutation would change each replica in another way
        torch.testing.assert_close(measured, agent.learner.recent_observations)


def paid(kind, envs, pays):
    env = make_vect_envs(Paid, num_envs=envs, backend="sync", instances=[{"pay": pay} for pay in pays])
    pop = kind.population(1, env.single_observation_space, env.single_action_space, num_envs=envs, seed=1)
    return env, pop


@pytest.mark.parametrize("shaping", ["ranks", "standardized"])
def test_an_instance_that_pays_more_moves_no_weights(shaping):
    env, pop = paid(OpenAIES, 8, [1.0, 1_000.0])
    pop[0].shaping = shaping
    before = torch.cat([x.detach().flatten().clone() for x in pop[0].network.parameters()])
    collected(pop, env, 24)
    assert pop[0].learner.updates > 1
    # all policies earn 5 on one instance, and 5000 on the other
    assert torch.equal(before, torch.cat([x.detach().flatten() for x in pop[0].network.parameters()]))
    env.close()


@pytest.mark.parametrize(
    ("kind", "envs", "instances", "message"),
    [
        (OpenAIES, 6, 2, r"num_envs=6 with 2 instances is no multiple of 4, .* allowed are multiples of 4"),
        (CMAES, 4, 4, r"num_envs=4 is too few for CMAES with 4 instances, .* allowed are 8 and more"),
    ],
)
def test_policies_that_no_other_is_compared_with_are_refused(kind, envs, instances, message):
    env, pop = paid(kind, envs, range(instances))
    with pytest.raises(ConfigurationError, match=message):  # when it is made, before a run replaces another one
        Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    env.close()


def test_envs_in_worker_processes_give_the_same():
    found = []
    for backend in ("workers", "sync"):
        env = make_vect_envs("CartPole-v1", num_envs=12, backend=backend)
        pop = population(size=2)
        try:
            collected(pop, env, 60)
        finally:
            env.close()
        found.append(torch.cat([x.detach().flatten() for agent in pop for x in agent.network.parameters()]))
        assert pop[0].learner.updates > 1
    assert torch.equal(*found)


def test_a_population_is_pickled_after_a_run(tmp_path):
    run = {**RUN, "max_steps": 144, "run_dir": tmp_path / "run"}
    pop, _ = train_on_policy(cartpole(), pop=population(size=1), **run)
    twin = pickle.loads(pickle.dumps(pop))[0]  # what it wrote itself a moment ago
    assert twin.learner.updates == pop[0].learner.updates > 0


def test_a_run_without_an_update_is_refused():
    pop = population(size=1)
    with pytest.raises(ConfigurationError, match="max_steps=40 is less than 48, the 8 steps of num_envs=6"):
        train_on_policy(cartpole(), pop=pop, max_steps=40, evo_steps=40, verbose=False)


def test_a_run_with_a_learn_step_of_fewer_steps_may_be_as_short():
    (agent,) = population(size=1, learn_step=12)
    agent.learner.check_run(12, None, 1)
    with pytest.raises(ConfigurationError, match="max_steps=11 is less than 12, the 2 steps of num_envs=6"):
        agent.learner.check_run(11, None, 1)


def test_odd_pairs_of_an_environment_are_refused():
    with pytest.raises(ConfigurationError, match="num_envs=5 is odd"):
        train_on_policy(cartpole(5), pop=population(size=1), max_steps=400, evo_steps=400, verbose=False)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs" / "openaies").glob("*.yaml")), ids=lambda path: path.stem
)
def test_bundled_configurations_are_valid(path):
    config = load(str(path))
    assert config.algorithm_class is OpenAIES
    assert config.environment.num_envs % 2 == 0


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("{name: OpenAIES, sigma: 0.1, optimizer: lion}", "optimizer='lion'"),
        ("{name: OpenAIES, clip_coef: 0.2}", "clip_coef"),
        ("{name: CMAES, lr: 0.1}", "'lr'"),
    ],
)
def test_bad_configurations(algorithm, message, tmp_path):
    (tmp_path / "run.yaml").write_text(f"environment: {{id: CartPole-v1, num_envs: 8}}\nalgorithm: {algorithm}\n")
    with pytest.raises(ConfigurationError, match=message):
        load(str(tmp_path / "run.yaml"))


def test_the_arguments_of_rlib():
    found = convert("rlib", {"num_agents": 30, "sigma": 0.1, "lr": 0.03, "stop_max_score": 500, "num_iterations": 300})
    assert found.settings == {
        "environment.num_envs": 30,
        "algorithm.name": "OpenAIES",
        "algorithm.sigma": 0.1,
        "algorithm.lr": 0.03,
        "training.target": 500,
        "training.max_updates": 300,
    }
    assert not found.refused
    for strategy in ({"num_agents": 30}, {"sigma": 0.1}):
        refused = convert("rlib", {**strategy, "test_every": 50}).refused
        assert "counts updates" in refused["test_every=50"]
    assert convert("rlib", {"test_every": 10_000}).settings == {"training.evo_steps": 10_000}


def test_the_iterations_of_rlib_end_a_run_that_max_steps_does_not_end_before():
    comment = convert("rlib", {"num_iterations": 300}).comments["training.max_updates"]
    assert comment == "num_iterations; here it ends the run, unless training.max_steps does before"


def test_observations_that_the_search_cannot_normalise():
    space = gymnasium.spaces.Box(-float("inf"), float("inf"), (3,))
    with pytest.raises(ConfigurationError, match="normalize_observation='bounds' needs finite bounds"):
        OpenAIES(space, gymnasium.spaces.Discrete(2), normalize_observation="bounds")


def test_a_population_is_of_one_kind():
    with pytest.raises(ConfigurationError, match="of one kind"):
        Population([population(size=1)[0], population(CMAES, size=1)[0]])


class Rates(Callback):
    """Collects the reported learning rates of the first member."""

    def __init__(self):
        self.found = []

    def on_update(self, context, metrics):
        self.found.append(metrics[0]["lr"])


def test_a_scheduled_learning_rate_is_reported():
    pop, rates = population(OpenAIES, 1, schedules={"lr": "linear"}, lr=0.1), Rates()
    train_on_policy(cartpole(), pop=pop, callbacks=[rates], **{**RUN, "max_steps": 288, "checkpoint": None})
    # the first update is that of env step 96, whose step of all six envs began at 90 of 288
    assert rates.found[0] == pytest.approx(0.1 * (1 - 90 / 288))
    assert rates.found[-1] < rates.found[0]


def test_a_schedule_of_the_selection_has_no_effect_on_an_algorithm_without_that_setting() -> None:
    """`evolution="auto"` lowers lr, which CMAES does not have."""

    class Schedules(Callback):
        def on_generation(self, run, record):
            found.update(*(agent.active_schedules for agent in run.population))

    for kind, schedules in ((CMAES, set()), (OpenAIES, {"lr"})):
        found = set()
        with contextlib.closing(cartpole()) as env:
            options = RUN | {"checkpoint": None, "callbacks": [Schedules()]}
            train_on_policy(env, pop=population(kind), evolution="auto", **options)
        assert found == schedules
