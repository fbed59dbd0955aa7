"""One meaning of "best": the same agent, with the same fitness, wherever a run names it."""

import math
import signal
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL, CopyFolder, Records

from agilerl_like import PPO, Mutations, Population, TournamentSelection, make_vect_envs, train_on_policy
from agilerl_like.algorithms.episode_guard import EvaluationStopped
from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.reporting import BestRecord, Callback, MemberRecord, figure, read_metrics
from agilerl_like.reporting.summary import summary_facts
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.best_agent import (
    CONFIRMATION_EPISODES,
    confirmed_record,
    difference_error,
    may_surpass,
    surpasses,
    unconfirmed_record,
)
from agilerl_like.training.evaluator import EvalResult, Evaluator


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


MEMBER = {
    "slot": 0,
    "uid": 0,
    "parent_uid": -1,
    "env_steps": 100,
    "fitness_std": 1.0,
    "episodes": 5,
    "train_return": 0.0,
    "hyperparameters": {},
    "architecture": "",
    "parameters": 1,
    "mutation": "None",
    "losses": {},
}


def a_member(fitness):
    return MemberRecord(**MEMBER, fitness=fitness)


def a_best(fitness, standard_error):
    return BestRecord(**MEMBER, fitness=fitness, generation=1, standard_error=standard_error)


def weights(agent):
    return torch.cat([p.detach().reshape(-1) for p in agent.network.parameters()])


def train(run_dir=None, *, lr=1e-3, max_steps=1200, **options):
    env, records = make_vect_envs("CartPole-v1", num_envs=2), Records()
    settings = {"num_envs": 2, "learn_step": 64, "batch_size": 32, "lr": lr, "seed": 0}
    spaces = env.single_observation_space, env.single_action_space
    options = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(), **options}
    population, _ = train_on_policy(
        env,
        pop=PPO.population(3, *spaces, net_config=SMALL, **settings),
        max_steps=max_steps,
        evo_steps=200,
        eval_loop=2,
        run_dir=run_dir,
        verbose=False,
        reporters=[records],
        **options,
    )
    return population, records


class Forget(Callback):
    """Sets all weights of all members to 0 after the seventh generation."""

    def on_generation(self, run, record):
        if record.generation == 7:
            with torch.no_grad():
                for agent in run.population:
                    for parameter in agent.network.parameters():
                        parameter.zero_()


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory):
    """A run whose members are not at their best in the last of eight generations, because they forget before it."""
    run_dir = tmp_path_factory.mktemp("runs") / "unsteady"
    return run_dir, *train(run_dir, lr=1e-2, max_steps=1600, selection_strategy=None, callbacks=[Forget()])


@pytest.mark.parametrize(
    ("fitness", "standard_error", "target", "is_better"),
    [
        (104.9, 4.0, None, False),  # the standard error of the difference is 5
        (105.1, 4.0, None, True),
        (100.0, 0.0, None, False),
        (101.0, 4.0, 100.5, True),  # it reaches a target that the other one has not reached
        (101.0, 4.0, 99.0, False),  # both have
        (200.0, math.nan, None, False),  # it was played on no fresh episodes
        (math.nan, 4.0, None, False),
    ],
)
def test_a_candidate_replaces_the_best_only_beyond_the_standard_error(fitness, standard_error, target, is_better):
    best = a_best(fitness=100.0, standard_error=3.0)
    candidate = a_best(fitness=fitness, standard_error=standard_error)
    assert surpasses(candidate, best, target, error=5.0) is is_better


def test_a_confirmed_candidate_replaces_an_unconfirmed_best():
    evaluated = unconfirmed_record(a_member(fitness=100.0), 1)
    assert surpasses(a_best(fitness=10.0, standard_error=1.0), evaluated, None, math.nan)
    assert not surpasses(replace(evaluated, fitness=200.0), evaluated, None, math.nan)
    assert surpasses(evaluated, replace(evaluated, fitness=math.nan), None, math.nan)


def trained(max_steps, **options):
    """Return a population of two that trained in generations of 64 steps, and the records of its run."""
    env, records = make_vect_envs("CartPole-v1", num_envs=2), Records()
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(2, *spaces, num_envs=2, learn_step=32, batch_size=8, net_config=SMALL, seed=0)
    options = {"reporters": [records], **options}
    train_on_policy(env, pop=population, max_steps=max_steps, evo_steps=64, verbose=False, **options)
    return population, records


def a_result(episodes, **changes):
    found = summarise_episodes(episodes)
    settings = {"returns": [list(episodes)], **changes}
    return EvalResult([found.mean], [found.spread], [found.error], len(episodes), [1], **settings)


@pytest.mark.parametrize(
    ("candidate", "best", "changes", "error"),
    [
        ([11.0, 101.0, 53.0], [10.0, 100.0, 50.0], {}, math.sqrt(4 / 9)),  # differences 1, 1, 3: variance 4/3
        ([11.0, math.nan, 53.0, 5.0], [10.0, 100.0, 50.0, math.nan], {}, 1.0),  # of 1 and 3 alone
        ([0.0, 2.0], [5.0, 13.0], {"returns": ()}, math.hypot(1.0, 4.0)),  # ratings have no episodes to pair
        ([0.0, 2.0], [5.0, 13.0], {"instances": 2, "aggregate": "min"}, math.hypot(1.0, 4.0)),
        ([1.0, 1.0], [1.0, 1.0], {}, 0.0),
    ],
)
def test_the_error_of_a_difference_is_that_of_paired_episodes(candidate, best, changes, error):
    assert difference_error(a_result(candidate, **changes), a_result(best, **changes)) == pytest.approx(error)


def test_fresh_episodes_run_only_for_possible_improvements():
    best = a_best(fitness=100.0, standard_error=3.0)
    assert not may_surpass(a_member(fitness=103.0), best, None)
    assert may_surpass(a_member(fitness=103.1), best, None)
    assert may_surpass(a_member(fitness=101.0), best, 100.5)
    assert not may_surpass(a_member(fitness=math.nan), best, 100.5)
    assert may_surpass(a_member(fitness=1.0), replace(best, standard_error=math.nan), None)


@pytest.mark.parametrize(
    ("leads", "plays_fresh"), [((1, 1, 1), True), ((-1, 0, 2), False), ((1, 1, 2), True), ((0, 0, 0), False)]
)
def test_a_candidate_of_harder_seeds_must_lead_by_the_standard_error_on_them(monkeypatch, leads, plays_fresh):
    """Members earn 100 less in the second generation, because its seeds are harder; the best agent does, too.

    Leads of -1, 0 and 2 have a mean of 0.33 and a standard error of 0.88, which is not enough.
    """
    played = []

    def evaluate(self, players, seeds, now, **_):
        earned = np.array([5.0, 3.0, 1.0]) - 100.0 * (now > 1)
        if isinstance(players, Population):
            return EvalResult([earned.mean()] * 2, [2.0] * 2, [1.0] * 2, 3, [7, 7], [earned.tolist()] * 2)
        played.append((now, len(seeds)))
        return a_result(earned - np.array(leads) if len(seeds) == 3 else [10.0] * len(seeds))

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    _, records = trained(max_steps=128, eval_loop=3)
    fresh = CONFIRMATION_EPISODES
    assert played == [(1, fresh), (2, 3), *([(2, fresh)] * 2 if plays_fresh else [])]
    assert records.generations[-1].evaluation_steps == 4 * 7 + len(played)


@pytest.mark.parametrize(("later", "generation", "fitness"), [(12.0, 2, 12.0), (10.2, 1, 10.0), (8.0, 1, 10.0)])
def test_the_best_agent_plays_the_fresh_episodes_of_a_candidate(monkeypatch, later, generation, fitness):
    """All members earn 10 in the first generation and `later` in the next, but for the luck of their initial states.

    The fresh episodes of the first generation are worth 100 more, which must not keep a better agent out.
    """
    luck = {False: np.tile([-50.0, 50.0], CONFIRMATION_EPISODES // 2), True: np.full(CONFIRMATION_EPISODES, 100.0)}
    noise = np.tile([-1.0, -1.0, 1.0, 1.0], CONFIRMATION_EPISODES // 4)

    def evaluate(self, players, seeds, now, **_):
        one = players[0] if isinstance(players, Population) else players
        skill = 10.0 if players is one and one.steps[-1] <= 64 else later
        if players is not one:
            return EvalResult([1000.0 * now] * 2, [1.0] * 2, [1.0] * 2, 1, [1, 1], [[0.0], [0.0]])
        return a_result(skill + luck[now == 1] + (noise if skill == later else 0.0))

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    population, records = trained(max_steps=128)
    best = records.summary.best
    assert (best.generation, best.fitness) == (generation, pytest.approx(fitness))
    assert population.best.fitness[-1] == best.fitness


def test_the_standard_error_counts_complete_episodes_only():
    returns = np.array([[1.0, 2.0, 3.0, 99.0], [5.0, 0.0, 0.0, 0.0]])
    lost = np.array([[False, False, False, True], [False, True, True, True]])
    errors = Episodes(returns, np.ones((2, 4), np.int64), lost).standard_errors
    assert errors[0] == pytest.approx(1 / math.sqrt(3))  # sample deviation 1, three episodes
    assert math.isnan(errors[1])


def test_fresh_episodes_that_were_lost_do_not_count_for_the_best_agent():
    fresh = a_result([1.0, math.nan, 3.0])
    assert confirmed_record(a_member(fitness=2.0), 1, fresh).episodes == 2
    assert confirmed_record(a_member(fitness=2.0), 1, fresh._replace(returns=())).episodes == 3  # games of a rating


@pytest.mark.slow
def test_the_returned_population_the_summary_the_folder_and_the_metrics_name_the_same_agent(unsteady):
    run_dir, population, records = unsteady
    best = records.summary.best
    assert best.generation < len(records.generations)  # it is none of the last generation
    assert population.fittest.fitness[-1] < best.fitness
    saved, restored = PPO.load(run_dir / "best"), Population.load(run_dir / "population").best
    for agent in (population.best, saved, restored):
        assert (agent.index, agent.fitness[-1]) == (best.uid, best.fitness)
        assert torch.equal(weights(agent), weights(population.best))
    last = read_metrics(run_dir)[-1]
    assert (last["population/best_ever_uid"], last["population/best_ever_generation"]) == (best.uid, best.generation)
    assert last["population/best_ever"] == best.fitness
    title = figure(run_dir)._suptitle.get_text()
    assert f"best fitness {best.fitness:.1f}, member {best.uid} in generation {best.generation}" in title
    assert summary_facts(records.summary)["best fitness"][0].startswith(f"{best.fitness:.1f} ± ")


@pytest.mark.slow
def test_fitness_of_the_best_agent_is_the_mean_of_fresh_episodes(unsteady):
    _, population, records = unsteady
    best = records.summary.best
    env = VecEnvAdapter(make_vect_envs("CartPole-v1", num_envs=CONFIRMATION_EPISODES, backend="sync"))
    last = next(record.generation for record in records.generations if record.best == best)  # it may be compared again
    seeds = integers(CONFIRMATION_EPISODES, population.seed, Purpose.CONFIRMATION_ENVS, last)
    played = population.best.run_episodes(env, seeds)
    assert played.mean[0] == best.fitness == population.best.fitness[-1]
    assert best.standard_error == pytest.approx(played.returns.std(ddof=1) / math.sqrt(CONFIRMATION_EPISODES))


@pytest.mark.slow
def test_a_resumed_run_finds_the_same_best_agent(tmp_path):
    copied = CopyFolder(tmp_path / "whole", tmp_path / "killed")
    whole, whole_records = train(tmp_path / "whole", checkpoint=200, max_steps=800, callbacks=[copied])
    resumed, resumed_records = train(resume=tmp_path / "killed", checkpoint=200, max_steps=800)
    assert resumed_records.summary.best == whole_records.summary.best
    assert resumed_records.summary.ancestry == whole_records.summary.ancestry
    assert torch.equal(weights(resumed.best), weights(whole.best))


def test_best_without_a_run_is_the_fittest_member():
    env = make_vect_envs("CartPole-v1", num_envs=2)
    population = PPO.population(2, env.single_observation_space, env.single_action_space, seed=1)
    for agent, fitness in zip(population, (3.0, 7.0), strict=True):
        agent.fitness.append(fitness)
    assert population.best is population.fittest is population[1]


class EndlessWhenFresh(gymnasium.Env):
    """Episodes of five steps; the fresh ones of the first generation never end, and send SIGINT as they begin."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    has_signalled = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_fresh, self.steps = seed in integers(CONFIRMATION_EPISODES, 0, Purpose.CONFIRMATION_ENVS, 1), 0
        if self.is_fresh and not EndlessWhenFresh.has_signalled:  # a second signal would end the run at once
            EndlessWhenFresh.has_signalled = True
            signal.raise_signal(signal.SIGINT)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5 and not self.is_fresh, False, {}


def test_an_interrupt_stops_the_fresh_episodes():
    env, records = make_vect_envs(EndlessWhenFresh, num_envs=2), Records()
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(2, *spaces, num_envs=2, learn_step=16, batch_size=8, seed=0)
    train_on_policy(env, pop=population, max_steps=64, evo_steps=32, verbose=False, reporters=[records])
    assert records.summary.reason == "interrupted"
    assert records.summary.best.fitness == 5.0
    assert not records.summary.best.is_confirmed


@pytest.mark.parametrize("stops_at", [(2, 5), (2, CONFIRMATION_EPISODES)])
def test_an_interrupt_while_the_best_agent_plays_again_leaves_it_the_best(monkeypatch, stops_at):
    """It plays the seeds of the second generation's evaluation, or, after the candidate, the fresh episodes."""
    played = []

    def evaluate(self, players, seeds, now, **_):
        if isinstance(players, Population):
            fitness = -1000.0 if stops_at == (2, 5) else 1000.0 * now
            return EvalResult([fitness] * 2, [1.0] * 2, [1.0] * 2, 1, [1, 1], [[fitness] * 5] * 2)
        is_candidate = len(seeds) == CONFIRMATION_EPISODES and (now, len(seeds)) not in played
        played.append((now, len(seeds)))
        if played[-1] == stops_at and not is_candidate:
            signal.raise_signal(signal.SIGINT)
            raise EvaluationStopped
        return a_result([10.0 * now, 12.0 * now])

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    _, records = trained(max_steps=192)
    best = records.summary.best
    assert played == [(1, CONFIRMATION_EPISODES), stops_at, *([stops_at] if stops_at[1] > 5 else [])]
    assert (records.summary.reason, best.generation, best.fitness) == ("interrupted", 1, 11.0)
