"""Fitness by rating: games against the opponent pool."""

import math
import signal
from functools import partial
from types import MappingProxyType

import game_envs as games
import numpy as np
import pytest
import torch
from duel_envs import Duel
from gymnasium.spaces import Discrete
from small_runs import SMALL, CopyFolder, Records

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    HyperparameterConfig,
    MultiAgentPopulation,
    Mutations,
    RLParameter,
    Run,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.algorithms.openings import Openings, has_chance
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.elo_evaluator import (
    PRIOR_PRECISION,
    RERATING_GAMES,
    SCALE,
    EloEvaluator,
    fit_bradley_terry,
    fit_ratings,
    independent_prior,
    rated_pool,
)
from agilerl_like.training.evaluator import INITIAL_RATING, EvalResult, Opponent
from agilerl_like.training.sides import SidesPlayed, group_sides, player_sides

pytestmark = pytest.mark.usefixtures("empty_folder")


def team(index=0, seed=0, **more):
    env = make_multi_agent_vect_envs(Duel, 1, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    return IPPO(*spaces, index=index, seed=seed, net_config=SMALL, **more)


def skilled(index, *groups):
    """A team whose `groups` name the colour they observe; other groups name a wrong one."""
    its = team(index)
    for group, learner in its.learners.items():
        actor = learner.network.actor
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.zero_()
            for layer in (*actor.encoder.linears, *actor.head.linears):
                layer.weight[:3, :3] = torch.eye(3)
            if group not in groups:
                actor.head.linears[-1].weight[:3, :3] = torch.eye(3).roll(1, 0)
    return its


def evaluator_of(num_envs, *opponent_pool):
    env = make_multi_agent_vect_envs(Duel, num_envs, backend="sync")
    found = EloEvaluator(MultiAgentVecEnvAdapter(env.eval_env(num_envs)), None)
    found.opponent_pool = list(opponent_pool)
    return found


def test_even_scores_give_the_opponents_rating_and_ten_to_one_gives_400_more():
    ratings, _ = fit_ratings(np.array([[0.5], [10 / 11], [1 / 11]]), 10**9, [1200.0], 1000.0)
    assert np.allclose(ratings, [1200, 1600, 800], atol=0.01)


def test_winning_all_games_gives_a_finite_rating_and_errors_shrink_with_games():
    few, many = (float(fit_ratings(np.array([[1.0]]), games, [1000.0], 1000.0)[0][0]) for games in (4, 40))
    error, smaller = (float(fit_ratings(np.array([[0.5]]), games, [1000.0], 1000.0)[1][0]) for games in (4, 40))
    assert 1000 < few < many < 3000
    assert smaller < error


def test_a_rating_fits_all_opponents_at_once():
    opponents = [900.0, 1100.0, 1300.0]
    truth = 1150.0
    scores = np.array([[1 / (1 + 10 ** ((other - truth) / 400)) for other in opponents]])
    assert np.allclose(fit_ratings(scores, 10**9, opponents, 1000.0)[0], truth, atol=0.01)


def test_sides_are_each_group_and_its_complement():
    assert group_sides({"a": (), "b": ()}) == [frozenset("a"), frozenset("b")]
    assert group_sides({"a": (), "b": (), "c": ()}) == [frozenset(side) for side in ("a", "b", "c", "bc", "ac", "ab")]


@pytest.mark.parametrize(
    ("mine", "theirs", "score"),
    [
        (("red", "blue"), (), 1.0),
        ((), ("red", "blue"), 0.0),
        (("red", "blue"), ("red", "blue"), 0.5),
        (("red",), ("red",), 0.5),
        (("red", "blue"), ("red",), 1.0),  # red against red is a draw; blue takes what it can
        (("red",), ("blue",), 0.5),  # both have one good side, though red's points count double
    ],
)
def test_games_are_played_from_both_sides(mine, theirs, score):
    evaluator = evaluator_of(4, Opponent(skilled(9, *theirs), INITIAL_RATING, 0))
    scores, steps = evaluator._play_games(skilled(1, *mine), evaluator.opponent_pool[0].player, [1, 2, 3, 4, 5])
    assert scores.tolist() == [[score] * 5]
    assert steps.tolist() == [2 * 5 * 4]


def test_opponents_are_the_newest_and_a_sample_of_the_others():
    evaluator = evaluator_of(2, *(Opponent(None, 1000.0 + i, i) for i in range(8)))
    drawn = [
        [opponent.generation for opponent in evaluator._sample_opponents(1, generation, 3)] for generation in range(20)
    ]
    assert all(first == 7 and len(set(others)) == 2 for first, *others in drawn)
    assert {other for _, *others in drawn for other in others} == set(range(7))
    assert [one.generation for one in evaluator._sample_opponents(1, 0, 9)] == [7, *range(7)]


def trained(*, pop=True, generations=4, steps=512, episodes=4, world=Duel, **more):
    env = make_multi_agent_vect_envs(world, 4, backend="sync")
    teams = IPPO.population(
        4,
        env.single_observation_spaces,
        env.single_action_spaces,
        num_envs=4,
        learn_step=128,
        batch_size=64,
        lr=3e-3,
        net_config=SMALL,
        seed=2,
        hp_config=HyperparameterConfig(lr=RLParameter(1e-3, 1e-2)),
    )
    try:
        return train_multi_agent_on_policy(
            env,
            pop=teams if pop else None,
            max_steps=steps * generations,
            evo_steps=steps,
            eval_loop=episodes,
            fitness="rating",
            checkpoint=steps,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(no_mutation=0.5, architecture=0.2, parameters=0.1, activation=0.0, rl_hp=0.2),
            verbose=False,
            **more,
        )
    finally:
        env.close()


@pytest.mark.slow
def test_ratings_rise_with_training_and_a_resumed_run_is_bit_identical(tmp_path):
    copied = CopyFolder(tmp_path / "whole", tmp_path / "killed")
    whole, fitness = trained(run_dir=tmp_path / "whole", callbacks=[copied])
    founder = team(seed=2)
    evaluator = evaluator_of(4, Opponent(founder, INITIAL_RATING, 0))
    scores, _ = evaluator._play_games(whole.best, founder, list(range(20)))
    assert scores.mean() >= 0.8
    assert max(fitness) > INITIAL_RATING + 100
    pool = Run.open(tmp_path / "whole").opponent_pool()
    assert [one.generation for one in pool] == [0, 1, 2, 3]
    assert pool[0].rating == INITIAL_RATING < pool[-1].rating
    scores, _ = evaluator._play_games(pool[-1].player, founder, list(range(20)))
    assert scores.mean() > 0.5
    resumed, again = trained(pop=False, resume=tmp_path / "killed")
    assert again == fitness
    assert resumed.to_documents()[0] == whole.to_documents()[0]


def test_a_team_of_one_agent_is_refused():
    env = make_multi_agent_vect_envs(partial(games.PaysAll, red_0="ooT"), 4, backend="sync")
    team = IPPO(
        env.single_observation_spaces,
        env.single_action_spaces,
        num_envs=4,
        net_config=SMALL,
        learn_step=16,
        batch_size=8,
    )
    with pytest.raises(ConfigurationError, match=r"needs two agents or more.*red_0"):
        train_multi_agent_on_policy(env, pop=team, fitness="rating", max_steps=16, verbose=False)


def test_ratings_of_a_single_agent_are_refused():
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = PPO.population(1, env.single_observation_space, env.single_action_space, batch_size=16)
    with pytest.raises(ConfigurationError, match="for teams; allowed is 'return'"):
        train_on_policy(env, pop=agents, fitness="rating")
    with pytest.raises(ConfigurationError, match=r"fitness.*'elo'.*rating, return"):
        train_on_policy(env, pop=agents, fitness="elo")


@pytest.mark.parametrize(("lost", "counts"), [(15, 15), (30, 0)])
def test_games_that_were_lost_with_their_process_do_not_count(monkeypatch, lost, counts):
    """The first of two members, which both win all games, loses some of 30 games from one side with their process."""

    def play(sides, mine, others, env, seeds, *, members, **more):
        won, flags = np.ones((2, members, 30)), np.zeros((2, members, 30), np.bool_)
        flags[0, 0, :lost] = True
        return SidesPlayed(won, -won, won, flags, np.full(members, 60))

    monkeypatch.setattr("agilerl_like.training.elo_evaluator.play_sides", play)
    evaluator = evaluator_of(2, Opponent(team(2), INITIAL_RATING, 0))
    found = evaluator.evaluate(MultiAgentPopulation([team(0), team(1)]), range(30), 1)
    for place, number in enumerate((counts, 30)):
        (rating,), (error,) = fit_ratings(np.ones((1, 1)), number, [INITIAL_RATING], INITIAL_RATING)
        assert found.fitness[place] == pytest.approx(rating)
        assert found.errors[place] == (pytest.approx(error) if number else math.inf)
    assert evaluator._pool_games(team(0), range(30), 1, None).games == [[0, counts, counts]]


# ---- games in which nothing is random


def nim_team(index=0, *, best=False, seed=0):
    """A team of one policy for both players of Nim, which takes one stone, or with `best` the right number."""
    env = make_multi_agent_vect_envs(games.Nim, 1, backend="sync")
    team = IPPO(env.single_observation_spaces, env.single_action_spaces, index=index, seed=seed, net_config=SMALL)
    actor = team.learners["player"].network.actor
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
        for layer in actor.encoder.linears:
            layer.weight[:8, :8] = torch.eye(8)
        actor.head.linears[0].weight[:8, :8] = torch.eye(8)
        last = actor.head.linears[-1]
        for left in range(8):
            last.weight[(left % 4 or 1) - 1 if best else 0, left] = 1.0
    return team


def nim_evaluator(num_envs, *opponent_pool, **more):
    env = make_multi_agent_vect_envs(partial(games.Nim, **more), num_envs, backend="sync")
    found = EloEvaluator(MultiAgentVecEnvAdapter(env.eval_env(num_envs)), None)
    found.opponent_pool = list(opponent_pool)
    return found


def test_chance_is_found_by_playing():
    assert has_chance(evaluator_of(3).env, 0)
    assert not has_chance(nim_evaluator(3).env, 0)


def test_a_policy_that_plays_both_sides_is_rated_in_different_games():
    """Of 7 stones the first player wins by taking 3, whatever the other does."""
    weak, strong = nim_team(1), nim_team(2, best=True)
    evaluator = nim_evaluator(4, Opponent(weak, INITIAL_RATING, 0))
    assert player_sides(weak.groups) == [frozenset({"player_0"}), frozenset({"player_1"})]
    seeds = list(range(12))
    scores, _ = evaluator._play_games(strong, weak, seeds)
    openings = scores.shape[1]
    assert 4 <= openings < 12  # the game without an opening, and different ones with one
    assert (scores == 1.0).all()  # a game that its opening decides would be a draw over both sides
    even, _ = evaluator._play_games(weak, weak, seeds)
    assert even.tolist() == [[0.5] * openings]
    better, same = evaluator.evaluate(strong, seeds, 1), evaluator.evaluate(weak, seeds, 1)
    assert same.fitness == [pytest.approx(INITIAL_RATING, abs=1e-3)]
    assert better.fitness[0] > INITIAL_RATING + 50
    assert better.errors[0] > 100  # of so few games, not of twelve
    assert better.episodes == 2 * openings


def test_further_games_repeat_none_and_have_no_weight_where_none_is_left():
    """On the same seeds only the first game, which now has an opening, differs from those before."""
    teams = MultiAgentPopulation([nim_team(1), nim_team(2, best=True)])
    evaluator, seeds = nim_evaluator(4, Opponent(nim_team(3), INITIAL_RATING, 0)), range(2, 8)
    first = evaluator.evaluate(teams, seeds, 1)
    further = [evaluator.evaluate_some(teams, [0, 1], seeds, 1) for _ in range(2)]
    assert [its.episodes for its in further] == [2, 0]
    assert (first.episodes + further[0].episodes) / 2 == len(evaluator._openings[0]) - 1  # one lasts until the end
    both = first.averaged([0, 1], further[1])
    assert (both.fitness, both.errors) == (first.fitness, first.errors)
    assert both.steps == [sum(steps) for steps in zip(first.steps, further[1].steps, strict=True)]
    assert evaluator.evaluate(teams, seeds, 2) == first


def test_all_instances_of_a_game_without_chance_count():
    seeds, teams = list(range(6)), (nim_team(1), nim_team(2, best=True))
    alone, _ = nim_evaluator(4)._play_games(*teams, seeds)
    env = make_multi_agent_vect_envs(games.Nim, 4, backend="sync", instances=[{"bonus": 0.0}, {"bonus": 9.0}])
    both, _ = EloEvaluator(MultiAgentVecEnvAdapter(env.eval_env(4)), None)._play_games(*teams, seeds)
    env.close()
    assert both.shape[1] == 2 * alone.shape[1]
    assert both[:, ::2].tolist() == alone.tolist()


def test_openings_are_the_same_for_all_members_and_both_sides():
    seeds = list(range(8))
    spaces = dict.fromkeys(("player_0", "player_1"), Discrete(3))
    openings = [Openings(seeds, spaces), Openings(seeds, spaces)]
    for its in openings:
        env = nim_evaluator(8).env
        env.reset(seeds)
        for step in range(4):
            nothing = {agent: np.zeros(8, np.int64) for agent in spaces}
            env.step(its.replace(step, nothing, env, seeds))
    assert openings[0]._moves == openings[1]._moves
    lengths = [max((move[0] for move in moves), default=-1) + 1 for moves in openings[0]._moves.values()]
    assert lengths[0] == 0
    assert all(length <= 1 + (place - 1) % 4 for place, length in enumerate(lengths) if place)
    assert any(move[2] for moves in openings[0]._moves.values() for move in moves)


def test_bradley_terry_ratings_fit_the_games_and_do_not_run_away():
    wins, games_of = np.array([[0, 1e9], [1e10, 0]]), np.array([[0, 1.1e10], [1.1e10, 0]])
    assert np.diff(fit_bradley_terry(wins, games_of, independent_prior(2))) == pytest.approx(400, abs=0.01)
    pool = [Opponent(None, INITIAL_RATING, 0)]
    for generation in range(1, 16):  # each beats the one before in all of 20 games
        pool = rated_pool([*pool, Opponent(None, INITIAL_RATING, generation, [[generation - 1, 20.0, 20]])])
    ratings = [opponent.rating for opponent in pool]
    assert ratings[0] == INITIAL_RATING
    rises = np.diff(ratings)  # finite: what the 20 wins exceed the expected ones by is what the prior holds against
    assert 20 * (1 - 1 / (1 + 10 ** (-rises / 400))) == pytest.approx(PRIOR_PRECISION * rises / SCALE)
    assert rated_pool(pool[1:])[0].rating == INITIAL_RATING  # games against a team that has left do not count


class KnownStrengths(EloEvaluator):
    """Players are strengths in units of Elo; a game is two draws, from each side one."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.opponent_pool = [Opponent(Strength(INITIAL_RATING), INITIAL_RATING, 0)]

    def _play_games(self, home, visitor, seeds, should_stop=None, seen=None):
        chance = 1 / (1 + 10 ** ((visitor.strength - home.strength) / 400))
        return self.rng.binomial(2, chance, (1, len(seeds))) / 2, np.zeros(1)


class Strength:
    """A player that is only strong."""

    seed = 0
    groups = MappingProxyType({"player": ("player_0", "player_1")})

    def __init__(self, strength):
        self.strength = strength


def generations_of(strengths, seed=0):
    """Return the pool, and the fitness of the best of each generation when it was evaluated."""
    evaluator, fitness = KnownStrengths(seed), []
    for generation, strength in enumerate(strengths, 1):
        best, seeds = Strength(strength), range(RERATING_GAMES)
        fitness += evaluator.evaluate(best, seeds, generation).fitness
        games = evaluator._pool_games(best, seeds, generation, None).games
        evaluator.opponent_pool = rated_pool(
            [*evaluator.opponent_pool, Opponent(best, INITIAL_RATING, generation, games)]
        )
    return evaluator.opponent_pool, fitness


def rank_correlation(one, other):
    return np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1]


def test_ratings_order_the_teams_of_all_generations_by_strength():
    """Each is 15 stronger than the last, so that it scores 52 % against it: less than the errors."""
    strengths = INITIAL_RATING + 15 * np.arange(1, 16)
    pools = [generations_of(strengths, seed)[0] for seed in range(10)]
    found = [rank_correlation([one.rating for one in pool], [one.player.strength for one in pool]) for pool in pools]
    assert min(found) >= 0.9
    assert np.mean(found) >= 0.95  # 0.92 with three opponents


def test_ratings_far_from_the_initial_one_are_not_held_back():
    """A prior around 1000 would take 60 off the last of these ratings on average, and 40 more off its fitness."""
    strengths = INITIAL_RATING + 60 * np.arange(1, 16)
    runs = [generations_of(strengths, seed) for seed in range(10)]
    last = np.mean([pool[-1].rating for pool, _ in runs])
    assert last == pytest.approx(strengths[-1], abs=30)
    assert np.mean([fitness[-1] for _, fitness in runs]) == pytest.approx(last, abs=20)


def test_ratings_of_equal_teams_stay_at_the_initial_one():
    last = [generations_of([INITIAL_RATING] * 15, seed)[0][-1].rating for seed in range(5)]
    assert np.mean(last) == pytest.approx(INITIAL_RATING, abs=40)
    assert max(map(abs, np.array(last) - INITIAL_RATING)) < 100


@pytest.mark.parametrize(("selection", "rounds"), [(None, 1), (TournamentSelection(2), 4)])
def test_members_with_equal_ratings_play_more_games(selection, rounds):
    """With one stone the first player always wins, so all ratings stay equal; a game has one step."""
    env = make_multi_agent_vect_envs(partial(games.Nim, 1), 4, backend="sync")
    teams = IPPO.population(
        2,
        env.single_observation_spaces,
        env.single_action_spaces,
        num_envs=4,
        learn_step=16,
        batch_size=8,
        net_config=SMALL,
        seed=0,
    )
    records = Records()
    train_multi_agent_on_policy(
        env,
        pop=teams,
        max_steps=16,
        evo_steps=16,
        eval_loop=4,
        fitness="rating",
        verbose=False,
        selection_strategy=selection,
        reporters=[records],
    )
    assert [member.fitness for member in records.members] == [pytest.approx(INITIAL_RATING, abs=1e-3)] * 2
    assert [member.evaluation_steps for member in records.members] == [rounds * 2 * 4] * 2


@pytest.mark.parametrize(("again", "generation", "fitness"), [(1300.0, 2, 1400.0), (1450.0, 1, 1450.0)])
def test_the_best_agent_is_rated_again_against_the_opponents_of_later_generations(
    monkeypatch, again, generation, fitness
):
    """The members have 1600 against the untrained team and 1400 later; the best one of the first then has `again`."""
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    teams = IPPO.population(2, *spaces, num_envs=4, learn_step=16, batch_size=8, net_config=SMALL, seed=0)

    def evaluate(self, players, seeds, generation, **_):
        first = players if isinstance(players, IPPO) else players[0]
        now = 1600.0 if generation == 1 else again if len(first.fitness) == 1 and players is first else 1400.0
        count = 1 if isinstance(players, IPPO) else len(players)
        return EvalResult([now] * count, [10.0] * count, [10.0] * count, len(seeds), [1] * count)

    monkeypatch.setattr(EloEvaluator, "evaluate", evaluate)
    records = Records()
    teams, _ = train_multi_agent_on_policy(
        env, pop=teams, max_steps=32, evo_steps=16, fitness="rating", verbose=False, reporters=[records]
    )
    best = records.summary.best
    assert (best.generation, best.fitness, teams.best.fitness[-1]) == (generation, fitness, fitness)


def test_ratings_of_several_rounds_are_averaged_by_their_errors():
    more = EvalResult([1000.0, 1100.0], [0.0] * 2, [100.0, 50.0], 8, [8, 8])
    both = more.averaged([1], EvalResult([1000.0], [50.0], [50.0], 8, [8]))
    assert both.fitness == [1000.0, 1050.0]
    assert both.errors == [100.0, pytest.approx(50 / math.sqrt(2))]
    assert both.steps == [8, 16]
    assert both.episodes_by_member == both.of([0, 1]).episodes_by_member == [8, 16]
    assert both.averaged([1], more.of([1])).episodes_by_member == [8, 24]


class EndlessWhenRerated(Duel):
    """The rerating games of the second generation never end, and send SIGINT when they start."""

    has_signalled = False

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.is_crowning = seed in integers(RERATING_GAMES, 2, Purpose.POOL_UPDATE, 2)
            if self.is_crowning and not EndlessWhenRerated.has_signalled:  # a second signal would end the run at once
                EndlessWhenRerated.has_signalled = True
                signal.raise_signal(signal.SIGINT)
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        self.steps = 1_000_000_000 if self.is_crowning and EndlessWhenRerated.is_endless else 4
        return super().step(actions)

    is_endless = True


SHORT = {"generations": 3, "steps": 128, "episodes": 2, "world": EndlessWhenRerated}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The fitness of a run without an interrupt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("undisturbed"))
        patch.setattr(EndlessWhenRerated, "is_endless", False)
        patch.setattr(EndlessWhenRerated, "has_signalled", True)
        _, fitness = trained(**SHORT)
    return fitness


@pytest.mark.parametrize("ended", [False, True], ids=["between generations", "in a run that is resumed after its end"])
@pytest.mark.slow
def test_an_interrupt_stops_rerating_games_and_the_resumed_run_is_bit_identical(
    tmp_path, monkeypatch, undisturbed, ended
):
    folder = tmp_path / "run"
    if ended:
        monkeypatch.setattr(EndlessWhenRerated, "is_endless", False)
        monkeypatch.setattr(EndlessWhenRerated, "has_signalled", True)
        trained(**{**SHORT, "generations": 2}, run_dir=folder)
    monkeypatch.setattr(EndlessWhenRerated, "is_endless", True)
    monkeypatch.setattr(EndlessWhenRerated, "has_signalled", False)
    how = {"pop": False, "resume": folder} if ended else {"run_dir": folder}
    trained(**SHORT, **how)
    assert EndlessWhenRerated.has_signalled
    rows = (folder / "metrics.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"1", "2"}
    monkeypatch.setattr(EndlessWhenRerated, "is_endless", False)
    _, fitness = trained(**SHORT, pop=False, resume=folder)
    assert fitness == undisturbed
