"""Functions as opponents, and as the policies of groups that are not trained."""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import ClassVar

import game_envs as games
import numpy as np
import pytest
import torch
from duel_envs import Duel
from gymnasium.spaces import Discrete
from pettingzoo.utils.wrappers import BaseParallelWrapper
from small_runs import SMALL, Records
from steady_teams import Steady

from agilerl_like import (
    IPPO,
    ConfigurationError,
    Mutations,
    TournamentSelection,
    make_multi_agent_vect_envs,
    play_games,
    rate_players,
    train_multi_agent_on_policy,
)
from agilerl_like.cli import main
from agilerl_like.envs.multi_agent.pettingzoo import single_env_vector
from agilerl_like.envs.multi_agent.scripted import random_moves
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.hpo import Selection
from agilerl_like.training.elo_evaluator import fit_bradley_terry, independent_prior
from agilerl_like.training.evaluator import seed_effects
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.sides import play_sides, scripted_agents

BOTH = {"red_0": "player", "blue_0": "player"}


pytestmark = pytest.mark.usefixtures("empty_folder")


def population(env, size=2, **more):
    given = {"num_envs": env.num_envs, "learn_step": 128, "batch_size": 64, "net_config": SMALL, "seed": 1, **more}
    return IPPO.population(size, env.single_observation_spaces, env.single_action_spaces, **given)


def zero(observation, mask, rng):
    return 0


def perfect_nim(observation, mask, rng):
    """Leave a multiple of four stones, if that is possible."""
    stones = int(observation.argmax())
    assert mask.any()
    assert mask.shape == (3,)
    return max(0, stones % 4 - 1)


def train(env, pop, opponents, steps=4096, **more):
    given = {"max_steps": steps, "evo_steps": 1024, "eval_loop": 8, "verbose": False, "opponents": opponents, **more}
    return train_multi_agent_on_policy(env, pop=pop, **given)


@pytest.mark.slow
def test_members_learn_to_beat_a_function_from_either_side():
    """`zero` names colour 0: right in a third of all steps.

    Who names every colour wins two points (red) or one (blue) in the other two thirds: 16/3 or 8/3 in four steps, a
    mean of 4. An untrained team is right about as often as `zero`, and earns about nothing.
    """
    env = make_multi_agent_vect_envs(partial(Duel, steps=4), 8, backend="sync")
    teams = population(env, groups=BOTH, lr=1e-2, gamma=0.5)
    _, fitness = train(env, teams, zero, eval_loop=100)
    assert max(fitness) == pytest.approx(4.0, abs=0.4)


def perfect_duel(observation, mask, rng):
    return int(np.argmax(observation))


@pytest.mark.parametrize("opponents", [perfect_duel, {"player": perfect_duel}], ids=["function", "group"])
def test_constant_policies_play_as_members_that_always_take_one_action(opponents):
    """Their return is what `evolution="auto"` compares the fitness with; where both sides are constant it is 0."""
    env = make_multi_agent_vect_envs(partial(Duel, steps=4), 8, backend="sync")
    groups = {"red_0": "red", "blue_0": "player"} if isinstance(opponents, dict) else BOTH
    teams, setup = population(env, groups=groups), MultiAgentEnvSetup(env, opponents)
    evaluator = setup.make_evaluator("return", setup.adapt(setup.make_eval_env(8)), None)
    found = evaluator.play_constant(teams, [0, 1], [5, 6, 7])
    for number, team in enumerate(teams):
        for learner in team.learners.values():
            head = learner.network.actor.head.linears[-1]
            with torch.no_grad():
                head.weight.zero_()
                head.bias.copy_(20 * torch.eye(3)[number])
    played = evaluator.evaluate(teams, [5, 6, 7], 1)
    evaluator.env.env.close()
    env.close()
    assert found == (played.fitness, played.steps)
    assert max(played.fitness) < 0


def test_further_evaluation_episodes_against_a_function_have_a_column_for_each_seed():
    """Each seed is played from both sides, whose mean is one return."""
    env = make_multi_agent_vect_envs(partial(Duel, steps=4), 8, backend="sync")
    teams, setup = population(env, groups=BOTH), MultiAgentEnvSetup(env, perfect_duel)
    evaluator = setup.make_evaluator("return", setup.adapt(setup.make_eval_env(8)), None)
    first = evaluator.evaluate(teams, [5, 6, 7], 1)
    more = evaluator.evaluate_some(teams, [0], [8, 9], 1)
    assert (first.episodes, more.episodes) == (3, 2)
    found = first.extended([0], more, more.episodes)
    assert [len(its) for its in found.returns] == [5] * len(teams)
    assert len(found.on_equal_terms(seed_effects(np.array(found.returns))).fitness) == len(teams)
    evaluator.env.env.close()
    env.close()


class RightAnswers(Duel):
    """Infos hold how many answers of the first side were right."""

    def reset(self, seed=None, options=None):
        self.right = 0
        return super().reset(seed, options)

    def step(self, actions):
        self.right += int(actions["red_0"] == self.colour)
        *parts, infos = super().step(actions)
        return *parts, {**infos, "red_0": {"right": float(self.right)}}


def test_instances_and_infos_count_in_games_against_functions():
    """An untrained member, right in some of the steps, plays against a function that always is: the worst instance is
    the longest. The info counts the right answers of the first side, which either of them controls in turn."""
    options = {"instances": [{"steps": 2}, {"steps": 8}], "info_keys": {"right": "red_0.right"}}
    env = make_multi_agent_vect_envs(RightAnswers, 8, backend="sync", aggregate="min", **options)
    setup, teams = MultiAgentEnvSetup(env, perfect_duel), population(env, size=1, groups=BOTH)
    adapter = setup.adapt(env.eval_env(8))
    found = setup.make_evaluator("return", adapter, None).evaluate(teams, range(10, 14), 1)
    by_instance = [found.measures[f"fitness_by_instance/{i}"][0] for i in range(2)]
    assert found.fitness == [min(by_instance)] == [by_instance[1]]
    assert found.episodes == 2 * 2 * 4  # sides, instances, seeds
    info = setup.make_evaluator("info.right", adapter, None).evaluate(teams, range(10, 14), 1)
    assert info.measures["return"] == [np.mean(by_instance)]
    assert 1 <= info.fitness[0] <= 2  # of two steps: the function is right in both, in half of the games
    adapter.env.close()
    env.close()


@pytest.mark.slow
def test_a_function_acts_for_its_group_and_the_others_are_trained():
    """Blue's function always names 0; a red that names every colour wins two points in two of three steps."""
    env = make_multi_agent_vect_envs(Duel, 8, backend="sync")
    teams = population(env, lr=1e-2, gamma=0.5, frozen_groups=["blue"])
    before = {name: x.clone() for name, x in teams[0].learners["blue"].network.state_dict().items()}
    trained, fitness = train(env, teams, {"blue": zero}, eval_loop=100)
    assert max(fitness) == pytest.approx(16 / 3, abs=0.5)
    after = trained[0].learners["blue"].network.state_dict()
    assert all((after[name] == x).all() for name, x in before.items())
    red = trained.best
    red.set_training_mode(False)
    action, *_ = red.get_action({"red_0": np.eye(3, dtype=np.float32)})
    assert action["red_0"].tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_functions_act_only_for_agents_that_are_to_act_in_every_backend(backend):
    """In Nim an absent player's mask would be empty; `random_moves` refuses one, and `perfect_nim` asserts."""
    workers = {"num_workers": 2} if backend == "workers" else {}
    env = make_multi_agent_vect_envs(partial(games.Nim, 5), 4, backend=backend, **workers)
    teams = population(env, 2)
    _, fitness = train(env, teams, perfect_nim, steps=512, evo_steps=256)
    env.close()
    assert len(fitness) == 2
    assert all(np.isfinite(fitness))


@pytest.mark.slow
def test_runs_against_functions_repeat_and_resume(tmp_path):
    def run(generations, *, folder=None, resume=None):
        env = make_multi_agent_vect_envs(partial(games.Nim, 5), 4, backend="sync")
        return train_multi_agent_on_policy(
            env,
            pop=None if resume else population(env, 2, lr=3e-3),
            max_steps=256 * generations,
            evo_steps=256,
            eval_loop=3,
            checkpoint=256,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(architecture=0.3),
            opponents=random_moves,
            verbose=False,
            run_dir=folder,
            resume=resume,
        )

    _, whole = run(2, folder=tmp_path / "whole")
    run(1, folder=tmp_path / "half")
    _, again = run(2, resume=tmp_path / "half")
    assert again == whole


def test_an_optimal_function_wins_all_games_and_has_the_highest_rating():
    """Five stones: the first player takes one, and leaves four, from which the second loses.

    The second player wins if the first does not take one stone at first.
    """
    env = make_multi_agent_vect_envs(partial(games.Nim, 5), 1, backend="sync")
    won = play_games(perfect_nim, random_moves, env, games=60, seed=3)
    assert won.share(1)[0] == 1.0
    assert won.share(0)[1] < 0.5
    assert won.share(1)[1] > 0.5
    assert repr(won).startswith("Games(60 from each side; player_0: mean return 1.00, won 100%, drawn 0%; ")
    assert won.mean[0] == 1.0
    ratings = rate_players({"random": random_moves, "perfect": perfect_nim, "team": population(env, 1)[0]}, env, 20, 1)
    assert max(ratings, key=lambda name: ratings[name].rating) == "perfect"
    assert np.mean([its.rating for its in ratings.values()]) == pytest.approx(1000)
    assert ratings["perfect"].games == 80  # 20 from each of two sides, against two
    assert all(0 < its.error < 200 for its in ratings.values())


def test_a_team_plays_beside_functions_of_some_groups():
    """The team has the group red alone, so what it earns is its fitness in a run against these functions."""
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    (team,) = population(env, 1)
    played = play_games(team, {"blue": zero}, env, games=40, seed=1)
    assert [[*side] for side in played.sides] == [["red_0"]]
    assert (played.returns == play_games(team, zero, env, games=40, seed=1).returns[0]).all()
    with pytest.raises(ConfigurationError, match="'green' is unknown"):
        play_games(team, {"green": zero}, env)
    with pytest.raises(ConfigurationError, match=r"\['red', 'blue'\] are all groups; allowed are functions for some"):
        play_games(team, {"red": zero, "blue": zero}, env)
    with pytest.raises(ConfigurationError, match="allowed with functions by group is a team"):
        play_games(zero, {"blue": zero}, env)


def test_players_play_as_many_games_in_each_instance():
    """Of five stones the first player takes 1 and 3, and `zero` 1 between; as the second it takes 1 and 2.

    It wins 1, and a bonus of 0.5 for each stone that it takes more: 3 more as the first player, 1 more as the second.
    """
    nim, bonus = partial(games.Nim, 5), [{}, {"bonus": 0.5}]
    env = make_multi_agent_vect_envs(nim, 2, instances=bonus, backend="sync")
    for number in (1, 3):
        played = play_games(perfect_nim, zero, env, games=number, seed=3)
        assert played.returns.tolist() == [[1.0, 2.5] * number, [1.0, 1.5] * number]
    ratings = rate_players({"zero": zero, "perfect": perfect_nim}, env, games=3, seed=1)
    assert ratings["zero"].games == 12  # 3 from each of two sides, in each of two instances


class Hunt(Duel):
    """The hunter, red, earns 10 and its action without that of its prey, which pays for it."""

    def step(self, actions):
        catch = 10.0 + actions["red_0"] - actions["blue_0"]
        observations, _, *rest = super().step(actions)
        return observations, {"red_0": catch, "blue_0": -catch}, *rest


def two(observation, mask, rng):
    return 2


def test_players_of_roles_that_are_paid_unequally_are_rated_by_the_sum_over_both():
    """The hunter always earns more; in both roles together `two` earns 4 a step more than `zero`.

    All games end with equal returns, but they differ, because the env has chance.
    """
    env = make_multi_agent_vect_envs(Hunt, 2, backend="sync")
    ratings = rate_players({"strong": two, "weak": zero}, env, games=5, seed=1)
    assert [(its.score, its.games) for its in ratings.values()] == [(1.0, 10), (0.0, 10)]
    fitted = fit_bradley_terry(np.array([[0, 5], [0, 0]]), np.array([[0, 5], [5, 0]]), independent_prior(2))
    assert [its.rating for its in ratings.values()] == pytest.approx(fitted)


PAID = {"speaker_0": 1.0, "listener_0": 1e17, "listener_1": -1e17, "listener_2": 5.0}
"""Rewards by agent. The sum of the first three depends on its order, because 1 is lost beside 1e17."""


class PaysUnequally(Steady):
    """Pays each agent `PAID`."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: PAID[agent] for agent in rewards}, *rest


def test_returns_of_a_side_are_summed_in_the_order_of_the_envs_agents():
    """The order of a set of names depends on the hash seed of the process."""
    *three, other = PAID
    env = make_multi_agent_vect_envs(partial(PaysUnequally, 1, tuple(PAID)), 1, backend="sync")
    scripts = scripted_agents(zero, {"": tuple(PAID)}, env.single_action_spaces)
    adapter = MultiAgentVecEnvAdapter(env.eval_env(1))

    def policies(side):
        return [scripts.part(side)]

    for side in permutations(three):
        played = play_sides([side, (other,)], policies, policies, adapter, [1])
        assert played.mine.tolist() == [[[0.0]], [[5.0]]]
        assert played.others.tolist() == [[[5.0]], [[0.0]]]


class NimFromOne(games.Nim):
    """Nim whose actions are the numbers of stones themselves."""

    def action_space(self, agent):
        return Discrete(3, start=1)

    def step(self, action):
        super().step(None if action is None else action - 1)


def test_a_function_that_waits_for_its_turn_has_a_legal_action_where_actions_begin_with_one():
    env = make_multi_agent_vect_envs(partial(NimFromOne, 5), 1, backend="sync")

    def perfect(observation, mask, rng):
        return 1 + perfect_nim(observation, mask, rng)

    assert play_games(perfect, lambda *_: 1, env, games=2, seed=3).returns.tolist() == [[1.0, 1.0], [1.0, 1.0]]


class NimThatExitsOnce(games.Nim):
    """Its process exits in the second move of a game, unless that has happened before."""

    def step(self, action):
        super().step(action)
        with suppress(FileExistsError), Path("exited").open("x"):
            os._exit(3)


@pytest.mark.slow
def test_games_that_were_lost_with_their_process_do_not_count():
    env = make_multi_agent_vect_envs(partial(NimThatExitsOnce, 5), 1, backend="workers", num_workers=2)
    with pytest.warns(RuntimeWarning, match="exit"):
        played = play_games(perfect_nim, zero, env, games=8, seed=3)
    assert played.lost.any()
    assert not played.lost.all()
    assert (np.isnan(played.scores) == played.lost).all()
    assert played.share(1).tolist() == [1.0, 1.0]
    Path("exited").unlink()
    with pytest.warns(RuntimeWarning, match="exit"):
        ratings = rate_players({"zero": zero, "perfect": perfect_nim}, env, games=8, seed=3)
    assert ratings["perfect"].score == 1.0
    assert ratings["perfect"].games == 16 - 2 * played.lost.sum()  # a seed counts with the games from both sides
    env.close()


def test_games_repeat_with_their_seed_and_two_functions_draw_apart():
    env = make_multi_agent_vect_envs(partial(games.Nim, 9), 1, backend="sync")
    one, again, other = (play_games(random_moves, random_moves, env, 50, seed) for seed in (1, 1, 2))
    assert (one.returns == again.returns).all()
    assert (one.returns != other.returns).any()
    assert 0.1 < one.share(1)[0] < 0.9  # with equal draws, every game would have one winner
    assert (one.returns == -one.others).all()


def test_teams_without_chance_play_different_openings_once():
    """Of three stones these take 1, 2, or 1 and 1; longer ones last until the end, and equal ones count once."""
    env = make_multi_agent_vect_envs(partial(games.Nim, 3), 1, backend="sync")
    first, second = population(env, 2)
    found = play_games(first, second, env, 50, 1)
    assert found.returns.shape == (2, 4)  # with the game that has no opening
    assert (found.steps[:, 1:] > 1).all()


@pytest.mark.parametrize(
    ("opponents", "more", "message"),
    [
        (lambda observation, mask, rng: 7, {}, "returned 7; allowed is an action of Discrete"),
        (lambda observation, mask, rng: None, {}, "returned None; allowed is an action of Discrete"),
        (lambda observation, mask, rng: True, {}, "returned True"),
        ({"player": zero}, {"frozen_groups": ()}, "are all groups"),
        ({"blue": zero}, {"groups": None}, "allowed is frozen_groups=\\['blue'\\]"),
        ({"green": zero}, {"groups": None}, "group of opponents"),
        ({"blue": 3}, {"groups": None, "frozen_groups": ["blue"]}, "allowed is a function"),
        ({}, {}, "names no group"),
        (3, {}, "allowed are 'self', 'past', 'population', a team"),
        (None, {}, "opponents=None; allowed are 'self'"),
        (IPPO, {}, "opponents=<class .*; allowed are 'self'"),
        (lambda observation, mask: 0, {}, "allowed is a function of observation, mask and rng"),
        ("scripted", {}, "a team or functions themselves"),
    ],
)
def test_wrong_functions_are_named(opponents, more, message):
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    teams = population(env, **{"groups": BOTH, **more})
    with pytest.raises(ConfigurationError, match=message):
        train(env, teams, opponents, steps=256, evo_steps=256)


def test_a_masked_action_of_a_function_is_named():
    env = make_multi_agent_vect_envs(partial(games.Nim, 1), 1, backend="sync")
    with pytest.raises(ConfigurationError, match=r"agent 'player_0' returned 2; .* with the mask \[1, 0, 0\]"):
        play_games(lambda observation, mask, rng: 2, random_moves, env, 1)


def test_ratings_and_processes_are_refused_where_functions_cannot_have_them():
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    teams = population(env, frozen_groups=["blue"])
    with pytest.raises(ConfigurationError, match="fitness='rating' with opponents by group"):
        train(env, teams, {"blue": zero}, fitness="rating")
    with pytest.raises(ConfigurationError, match="processes=2 with functions as opponents"):
        train(env, teams, zero, processes=2)


@pytest.mark.parametrize(
    ("first", "games_", "message"),
    [
        (3, 1, "player=3"),
        (random_moves, 0, "games=0 must be at least 1"),
        ("duel", 1, "the agent was made for"),
    ],
)
def test_players_that_cannot_play_are_named(first, games_, message):
    env = make_multi_agent_vect_envs(partial(games.Nim, 5), 1, backend="sync")
    if first == "duel":
        first = population(make_multi_agent_vect_envs(Duel, 1, backend="sync"), 1)[0]
    with pytest.raises(ConfigurationError, match=message):
        play_games(first, random_moves, env, games_)


class Alone(Duel):
    possible_agents = ("red_0",)


def test_games_need_two_sides():
    env = make_multi_agent_vect_envs(Alone, 1, backend="sync")
    with pytest.raises(ConfigurationError, match="allowed in games are two sides or more"):
        play_games(zero, zero, env, 1)


def test_a_team_of_other_critics_is_refused_as_opponent():
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    other = population(env, 1, groups=BOTH, critic_observation="joint")[0]
    with pytest.raises(ConfigurationError, match="opponents: the team has critic_observation joint"):
        train(env, population(env, groups=BOTH), other, steps=256, evo_steps=256)


def test_a_run_against_functions_names_why_its_file_does_not_repeat_it(tmp_path, capsys):
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    train(env, population(env, groups=BOTH), zero, steps=256, evo_steps=128, run_dir=tmp_path / "run")
    assert "# not in this file: training.opponents=scripted" in (tmp_path / "run" / "config.yaml").read_text()
    for command in (["resume"], ["replay"]):
        assert main([*command, str(tmp_path / "run"), "--trust"]) == 2
        assert "opponents='scripted', a script's own, which needs that script" in capsys.readouterr().err


def test_players_and_observations_of_no_mapping_are_named():
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    (team,) = population(env, 1, groups=BOTH)
    with pytest.raises(ConfigurationError, match="allowed are two or more, by name"):
        rate_players([team, zero], env, 1)
    seen = {agent: np.zeros(3, np.float32) for agent in env.agent_ids}
    for call in (
        lambda: team.predict(seen["red_0"]),
        lambda: team.get_action(seen["red_0"]),
        lambda: team.predict(seen, [0]),
        lambda: team.predict(seen, action_masks=np.ones((1, 3))),
    ):
        with pytest.raises(ConfigurationError, match="allowed is a mapping from agents"):
            call()


def test_one_player_has_no_rating():
    env = make_multi_agent_vect_envs(partial(games.Nim, 5), 1, backend="sync")
    with pytest.raises(ConfigurationError, match="allowed are two or more"):
        rate_players({"a": random_moves}, env)


def test_random_moves_need_masks():
    env = make_multi_agent_vect_envs(Duel, 1, backend="sync")
    with pytest.raises(ConfigurationError, match="needs action masks"):
        play_games(random_moves, zero, env, 1)


def test_team_envs_that_were_made_without_a_config_are_trained_in():
    envs = [single_env_vector(Duel()) for _ in range(2)]
    teams = population(envs[0], 1)
    train_multi_agent_on_policy(envs[0], pop=teams, eval_env=envs[1], **BRIEF)
    assert envs[0].env_config is None


BRIEF = {"max_steps": 128, "evo_steps": 128, "eval_loop": 1, "verbose": False}


def around(one, wrap=lambda one: one):
    """Return a vector env whose function wraps one and the same env."""
    return make_multi_agent_vect_envs(lambda: wrap(one), 1, backend="sync")


@pytest.mark.parametrize(
    "make",
    [
        lambda: single_env_vector(Duel()),
        lambda: around(Duel(), BaseParallelWrapper),
        lambda: around(games.Nim(5)),
    ],
    ids=["vector", "wrapped", "AEC"],
)
def test_no_evaluation_of_a_team_is_played_in_the_env_that_trains(make):
    env = make()
    with pytest.raises(ConfigurationError, match="returned the env in which members train"):
        train_multi_agent_on_policy(env, pop=population(env, 1), **BRIEF)


@dataclass(frozen=True)
class NotesTrainReturns(Selection):
    """Every member stays; the training returns that selection receives are noted."""

    noted: ClassVar[list] = []

    def parents(self, fitness, rng, uids=None):
        return np.arange(len(fitness))

    def plan(self, view, rng):
        self.noted.append(view.train_returns)
        return super().plan(view, rng)


@pytest.mark.parametrize(("opponents", "earned"), [({"listener": zero}, 3.0), ("self", 15.0)])
def test_the_training_return_is_that_of_the_members_own_agents(opponents, earned):
    """In three steps the speaker earns 3 and the listeners 12; selection compares training returns of "self" alone."""
    env, records = make_multi_agent_vect_envs(Steady, 2, backend="sync"), Records()
    teams = population(env, learn_step=12, batch_size=12, frozen_groups=["listener"])
    options = {"max_steps": 24, "evo_steps": 12, "eval_loop": 1, "reporters": [records]}
    NotesTrainReturns.noted.clear()
    train(env, teams, opponents, selection_strategy=NotesTrainReturns(), mutation=Mutations(), **options)
    env.close()
    assert [(member.train_return, member.fitness) for member in records.members] == [(earned, earned)] * 4
    (noted,) = NotesTrainReturns.noted
    assert (noted is not None) == (opponents == "self")
