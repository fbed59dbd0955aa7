"""Training against frozen opponents."""

import contextlib
import itertools
import math
from collections import Counter
from functools import partial

import game_envs as games
import numpy as np
import pytest
import torch
from duel_envs import Duel
from gymnasium.spaces import Box, Discrete
from small_runs import SMALL, CopyFolder, Records

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    MultiAgentPopulation,
    Mutations,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.distributed.process_group import SingleProcess
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.learning.own_time import own_time
from agilerl_like.saved_runs import Run
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.evaluator import INITIAL_RATING
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector
from agilerl_like.training.opponents import opponent_rows, sample_opponents, scripted_rows
from agilerl_like.training.sharding import ShardedPopulation

pytestmark = pytest.mark.usefixtures("empty_folder")


def population(env, size=2, seed=0, **more):
    given = {"num_envs": env.num_envs, "learn_step": 128, "batch_size": 64, "net_config": SMALL, "seed": seed, **more}
    return IPPO.population(size, env.single_observation_spaces, env.single_action_spaces, **given)


def test_an_opponent_controls_a_side_of_every_other_env_or_of_all():
    spaces = {"player_0": Box(-1, 1, (2,)), "player_1": Box(-1, 1, (2,))}
    shared = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), net_config=SMALL)
    rows = opponent_rows(shared, 5, 0, everywhere=False)["player"].reshape(5, 2).tolist()
    assert rows == [[False, False], [False, True], [False, False], [True, False], [False, False]]
    rows = opponent_rows(shared, 2, 0, everywhere=True)["player"].reshape(2, 2).tolist()
    assert rows == [[False, True], [True, False]]
    apart = IPPO(
        spaces, dict.fromkeys(spaces, Discrete(2)), net_config=SMALL, groups={"player_0": "a", "player_1": "b"}
    )
    rows = {group: flags.tolist() for group, flags in opponent_rows(apart, 4, 0, everywhere=True).items()}
    assert rows == {"a": [False, True, False, True], "b": [True, False, True, False]}


@pytest.mark.parametrize(
    ("agents", "sides"), [(2, [[0], [1]]), (3, [[0], [1], [2], [1, 2], [0, 2], [0, 1]])], ids=["two", "three"]
)
def test_a_member_plays_each_side_equally_often_whatever_the_number_of_its_envs(agents, sides):
    """In as many generations as there are sides, each side is played as often as a generation has envs with opponents.

    The sides of a group are each single agent, and all agents but one.
    """
    spaces = {f"player_{number}": Box(-1, 1, (2,)) for number in range(agents)}
    team = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), net_config=SMALL)
    for envs, everywhere in itertools.product([1, 2, 3, 4, 7], [False, True]):
        rows = [opponent_rows(team, envs, number, everywhere=everywhere)["player"] for number in range(len(sides))]
        played = [np.flatnonzero(~env).tolist() for env in np.stack(rows).reshape(-1, agents) if env.any()]
        with_opponent = envs if everywhere or envs == 1 else envs // 2
        assert [played.count(side) for side in sides] == [with_opponent] * len(sides)
    team.num_envs = 1
    scripted = [scripted_rows(lambda *_: 0, team, [0], number, slice(None))[1] for number in range(len(sides))]
    assert [np.flatnonzero(~rows["player"]).tolist() for rows in scripted] == sides


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("envs", [2, 4, 6])
def test_a_member_plays_each_side_of_each_instance_equally_often(envs, everywhere):
    """Env i is of instance i modulo two, and there are as many generations as sides."""
    spaces = {"player_0": Box(-1, 1, (2,)), "player_1": Box(-1, 1, (2,))}
    team, played = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), net_config=SMALL), Counter()
    for generation in range(2):
        rows = opponent_rows(team, envs, generation, everywhere=everywhere, instances=2)["player"].reshape(envs, 2)
        played.update((env % 2, *taken) for env, taken in enumerate(rows.tolist()) if any(taken))
    sets = envs // 2
    with_opponent = sets if everywhere or sets == 1 else sets // 2
    sides = [(False, True), (True, False)]
    assert played == {(instance, *side): with_opponent for instance in (0, 1) for side in sides}


@pytest.mark.parametrize("kind", ["team", "function"])
def test_opponents_in_training_take_each_side_of_each_instance(kind):
    env = make_multi_agent_vect_envs(Duel, 4, instances=[{"steps": 4}, {"steps": 8}], backend="sync")
    groups = {"red_0": "player", "blue_0": "player"}
    teams, others = (population(env, 1, seed, groups=groups) for seed in (1, 2))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    played = set()
    for generation in range(2):
        opponents = others if kind == "team" else lambda observation, mask, rng: 0
        collector.set_opponents(opponents, generation, everywhere=True)
        rows = collector.groups["player"]._opponent_rows.reshape(4, 2).tolist()
        played |= {(place % 2, *taken) for place, taken in enumerate(rows)}
    env.close()
    assert played == {(instance, *side) for instance in (0, 1) for side in [(False, True), (True, False)]}


@pytest.mark.slow
def test_members_learn_to_beat_a_given_team_which_learns_nothing():
    """The opponent names always colour 0; a member that names what it sees wins from either side."""
    env = make_multi_agent_vect_envs(Duel, 8, backend="sync")
    groups = {"red_0": "player", "blue_0": "player"}
    (opponent,) = population(env, 1, seed=9, groups=groups)
    with torch.no_grad():
        head = opponent.learners["player"].network.actor.head.linears[-1]
        head.weight.zero_()
        head.bias[:] = torch.tensor([20.0, 0.0, 0.0])
    before = {name: x.clone() for name, x in opponent.learners["player"].network.state_dict().items()}
    teams = population(env, 2, groups=groups, lr=1e-2, gamma=0.5)
    records = Records()
    trained, _ = train_multi_agent_on_policy(
        env,
        pop=teams,
        max_steps=4096,
        evo_steps=1024,
        opponents=opponent,
        fitness="rating",
        eval_loop=4,
        verbose=False,
        reporters=[records],
    )
    after = opponent.learners["player"].network.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert len(records.generations) == 4
    for team in trained:
        team.set_training_mode(False)
        action, *_ = team.get_action({"red_0": np.eye(3, dtype=np.float32)})
        assert action["red_0"].tolist() == [0, 1, 2]


def trained(
    opponents,
    processes=1,
    *,
    pop=True,
    generations=2,
    folder=None,
    resume=None,
    backend="sync",
    callbacks=(),
    change=lambda teams: teams,
    **more,
):
    workers = {"num_workers": 2} if backend == "workers" else {}
    env = make_multi_agent_vect_envs(partial(games.Nim, 5), 4, backend=backend, **workers)
    teams = change(population(env, 3, lr=3e-3, **more)) if pop else None
    try:
        return train_multi_agent_on_policy(
            env,
            pop=teams,
            max_steps=256 * generations,
            evo_steps=256,
            eval_loop=3,
            fitness="rating",
            checkpoint=256,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(architecture=0.3),
            opponents=opponents,
            processes=processes,
            verbose=False,
            run_dir=folder,
            resume=resume,
            callbacks=callbacks,
        )
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("opponents", ["past", "population"])
def test_a_resumed_run_with_opponents_is_bit_identical(tmp_path, opponents):
    copied = CopyFolder(tmp_path / "whole", tmp_path / "killed")
    whole, fitness = trained(opponents, folder=tmp_path / "whole", callbacks=[copied])
    resumed, again = trained(opponents, pop=False, resume=tmp_path / "killed")
    assert again == fitness
    assert resumed.to_documents()[0] == whole.to_documents()[0]
    alone, _ = trained("self", folder=tmp_path / "alone")
    assert alone.to_documents()[0] != whole.to_documents()[0]


@pytest.mark.slow
def test_two_processes_have_the_opponents_and_the_ratings_of_one():
    def mutated(teams):
        """The first team has another architecture, so of two processes the second has it."""
        mutations = Mutations(no_mutation=0, architecture=1, parameters=0, rl_hp=0, rand_seed=1)
        return MultiAgentPopulation([mutations.mutation([teams[0]], pre_training_mut=True)[0], *teams[1:]])

    (alone, fitness), (apart, the_same) = (
        trained("population", processes, per_member=True, change=mutated) for processes in (1, 2)
    )
    assert the_same == fitness
    assert all(map(math.isfinite, fitness))  # ratings, from games against the pool
    assert apart.to_documents()[0] == alone.to_documents()[0]


def test_the_past_is_kept_without_ratings_and_a_sum_of_zero_warns():
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    records = Records()
    train_multi_agent_on_policy(
        env,
        pop=population(env),
        max_steps=256,
        evo_steps=128,
        eval_loop=2,
        opponents="past",
        run_dir="past",
        checkpoint=128,
        verbose=False,
        reporters=[records],
        selection_strategy=TournamentSelection(2),
    )
    assert len([text for text in records.warnings if "fitness='rating' compares members by games" in text]) == 1
    pool = Run.open("past").opponent_pool()
    assert len(pool) > 1
    assert all(math.isnan(opponent.rating) for opponent in pool)


def test_the_pool_of_a_short_rating_run_has_the_first_rating():
    with contextlib.closing(make_multi_agent_vect_envs(Duel, 4)) as env:
        settings = {"max_steps": 128, "evo_steps": 128, "eval_loop": 2, "verbose": False}
        train_multi_agent_on_policy(env, pop=population(env), fitness="rating", run_dir="short", **settings)
    assert [opponent.rating for opponent in Run.open("short").opponent_pool()] == [INITIAL_RATING]


def test_rows_that_pass_from_an_opponent_to_a_member_begin_without_a_hidden_state():
    env = make_multi_agent_vect_envs(partial(Duel, steps=40), 3, backend="sync")
    groups = {"red_0": "player", "blue_0": "player"}
    teams, others = (population(env, 1, seed, recurrent=True, groups=groups) for seed in (1, 2))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    group = collector.groups["player"]
    collector.set_opponents(others, 0, everywhere=True)
    collector.collect(4)
    assert (group.state[0].flatten(1).abs().sum(1) > 0).all()
    collector.set_opponents(others, 1, everywhere=True)  # of three envs with two sides, all sides are switched
    was, now = (torch.from_numpy(opponent_rows(teams[0], 3, turn, everywhere=True)["player"]) for turn in (0, 1))
    assert (was & ~now).sum() == 3
    assert (group.state[0].flatten(1).abs().sum(1) > 0).tolist() == (~(was & ~now)).tolist()
    collector.collect(4)
    rollout = group.experience([0], 8)
    assert rollout.starts[0, 4].bool().tolist() == (was & ~now).tolist()
    env.close()


def test_the_first_state_of_a_running_rollout_stays_where_an_opponent_hands_a_row_back():
    """The member's first steps in that row belong to an episode that had begun before the rollout."""
    env = make_multi_agent_vect_envs(partial(Duel, steps=40), 3, backend="sync")
    groups = {"red_0": "player", "blue_0": "player"}
    teams, others = (population(env, 1, seed, recurrent=True, groups=groups) for seed in (1, 2))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    group = collector.groups["player"]
    collector.set_opponents(others, 0, everywhere=True)
    collector.collect(2)
    group._start_rollouts([0])
    kept = group.state.clone()
    for turn, steps in ((0, 2), (1, 4), (2, 4)):  # of three envs with two sides, all sides are switched
        collector.set_opponents(others, turn, everywhere=True)
        collector.collect(steps)
    rows = torch.from_numpy(~opponent_rows(teams[0], 3, 0, everywhere=True)["player"])
    assert kept[0, rows].flatten(1).any(1).all()
    assert torch.equal(group.experience([0], 10).state[0, rows], kept[0, rows])
    group._start_rollouts([0])
    collector.set_opponents(others, 3, everywhere=True)  # a rollout that begins with rows that are handed back
    state = group.experience([0], 1).state[0]
    assert state.flatten(1).any(1).tolist() == rows.tolist()
    env.close()


def test_a_rollout_ends_where_an_opponent_takes_over():
    """A player that waits there does not learn from its last move, whose outcome is unknown.

    Nim pays 1 or -1 at its end alone, so 0.9 x 1 would be a reward of a later game.
    """
    env = make_multi_agent_vect_envs(partial(games.Nim, stones=6), 3, backend="sync")
    teams, others = (population(env, 1, seed) for seed in (1, 2))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    group, rows, waited = collector.groups["player"], [], 0
    for turn in range(3):  # of three envs with two sides, all sides are switched
        rows.append(opponent_rows(teams[0], 3, turn, everywhere=True)["player"])
        taken = group.experience([0], 4 * turn).valid[0].clone() if turn else None
        collector.set_opponents(others, turn, everywhere=True)
        if taken is not None:
            waits = np.stack([*collector.step_sync._latest[0].waits.values()], 1).ravel()
            removed = taken - group.experience([0], 4 * turn).valid[0]
            assert removed.sum(0).tolist() == (waits & rows[-1] & ~rows[-2]).tolist()
            waited += int(removed.sum())
        collector.collect(4)
    env.close()
    own = own_time(group.experience([0], 12), torch.tensor(0.9))
    assert waited
    assert {*own.rewards[own.valid > 0].tolist()} == {-1.0, 0.0, 1.0}


@pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")
@pytest.mark.parametrize("bootstraps", [True, False])
def test_a_takeover_by_an_opponent_is_no_termination(bootstraps):
    """Its value is bootstrapped, or, where a truncation counts as a termination, that step is left out."""
    env = make_multi_agent_vect_envs(partial(Duel, steps=40), 3, backend="sync")
    groups = {"red_0": "player", "blue_0": "player"}
    teams, others = (population(env, 1, seed, groups=groups, bootstrap_truncated=bootstraps) for seed in (1, 2))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset([0])
    for turn in range(2):  # of three envs with two sides, all sides are switched
        collector.set_opponents(others, turn, everywhere=True)
        collector.collect(4)
    env.close()
    was, now = (opponent_rows(teams[0], 3, turn, everywhere=True)["player"] for turn in (0, 1))
    rollout = collector.groups["player"].experience([0], 8)
    assert rollout.ended[0, 3].tolist() == (now & ~was).tolist()
    assert rollout.terminated[0, 3].tolist() == [0] * 6
    assert rollout.valid[0, 2].tolist() == (~was).tolist()
    assert rollout.valid[0, 3].tolist() == (~was & (bootstraps | ~now)).tolist()


def test_a_team_on_another_device_plays_on_that_of_the_members():
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    members = ShardedPopulation.of(SingleProcess(), MultiAgentPopulation, population(env), None)
    (team,) = population(env, 1, seed=9)
    weights = [*team.learners["red"].network.parameters()]
    team.device = torch.device("meta")
    for opponent in sample_opponents("team", members, [], 1, len(members.population), team):
        assert opponent.device == members.first.device
        assert all(map(torch.equal, opponent.learners["red"].network.parameters(), weights))


def test_no_two_opponents_of_a_run_have_the_same_index_where_members_are_removed():
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    (team,) = population(env, 1, seed=9)
    indices = []
    for size, generations in ((4, range(1, 5)), (2, range(5, 9))):
        members = ShardedPopulation.of(SingleProcess(), MultiAgentPopulation, population(env, size), None)
        for generation in generations:
            indices += [one.index for one in sample_opponents("team", members, [], generation, 4, team)]
    assert len({*indices}) == len(indices) == 4 * 4 + 4 * 2


def test_opponents_that_cannot_play_are_refused():
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    other = make_multi_agent_vect_envs(games.Nim, 4, backend="sync")
    (stranger,) = population(other, 1)
    for opponents, message in (
        (stranger, "opponents: the team has groups"),
        (3, "opponents=3; allowed are 'self', 'past', 'population', a team"),
        ("future", "opponents='future' is unknown; allowed are 'self', 'past', 'population', a team and functions"),
        ("team", "opponents='team'; allowed are"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            train_multi_agent_on_policy(env, pop=population(env), max_steps=128, opponents=opponents, verbose=False)
    single = make_vect_envs("CartPole-v1", num_envs=2)
    agents = PPO.population(1, single.single_observation_space, single.single_action_space, batch_size=16)
    with pytest.raises(ConfigurationError, match="opponents='past' is for teams; allowed is 'self'"):
        train_on_policy(single, pop=agents, opponents="past", verbose=False)
    with pytest.raises(ConfigurationError, match=r"opponents=IPPO.*; allowed is 'self', and in train_multi_agent_on_"):
        train_on_policy(single, pop=agents, opponents=stranger, verbose=False)


def test_frozen_groups_act_but_neither_learn_nor_mutate(tmp_path):
    env = make_multi_agent_vect_envs(Duel, 8, backend="sync")
    teams = population(env, 2, frozen_groups=["blue"], lr=1e-2, gamma=0.5)
    before = {
        group: [{name: x.clone() for name, x in team.learners[group].network.state_dict().items()} for team in teams]
        for group in ("red", "blue")
    }
    architectures = {team.architecture.of("blue") for team in teams}
    records = Records()
    trained, _ = train_multi_agent_on_policy(
        env,
        pop=teams,
        max_steps=512,
        evo_steps=256,
        eval_loop=2,
        verbose=False,
        reporters=[records],
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0, architecture=0.5, parameters=0.5),
    )
    assert all(np.isfinite(member.losses["loss"]) for member in records.members)
    assert {team.architecture.of("blue") for team in trained} == architectures

    def is_initial(team, group):
        its = team.learners[group].network.state_dict()
        return any(all(torch.equal(its[name], x) for name, x in first.items()) for first in before[group])

    assert all(is_initial(team, "blue") for team in trained)
    assert not any(is_initial(team, "red") for team in trained)
    copy = IPPO.from_documents(*trained[0].to_documents(), device="cpu", where="memory")
    assert copy.frozen_groups == trained[0].clone().frozen_groups == ("blue",)
    with pytest.raises(ConfigurationError, match=r"frozen_groups entry='green' is unknown"):
        population(env, frozen_groups=["green"])
    with pytest.raises(ConfigurationError, match=r"frozen_groups=.*are all groups"):
        population(env, frozen_groups=["red", "blue"])


@pytest.mark.slow
def test_env_groups_of_workers_have_the_opponents_of_one_process():
    """Recurrent, so that opponents have hidden states of their own in each env group."""
    one, other = (
        trained("past", generations=1, backend=backend, recurrent=True, max_seq_len=4)
        for backend in ("sync", "workers")
    )
    assert other[1] == one[1]
    assert other[0].to_documents()[0] == one[0].to_documents()[0]
