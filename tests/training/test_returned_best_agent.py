"""Clones of the best agent of a run, which take the slots of members where the population has lost what it can do."""

import contextlib
from dataclasses import dataclass, replace

import numpy as np
import pytest
from small_runs import SMALL, CopyFolder, Records

from agilerl_like import DQN, PPO, HyperparameterConfig, RLParameter, Run, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import PopulationView, SlotForBest, SlotPlan, WeightMix, ranking
from agilerl_like.hpo.auto import AutoExplorer, AutoSelection, is_behind, returned_clone
from agilerl_like.hpo.selection import Selection, check_slot_for_best
from agilerl_like.reporting.callback import Callback
from agilerl_like.reporting.estimates import operator_effects, operator_gains
from agilerl_like.reporting.run_history import read_history
from agilerl_like.training.off_policy import train_off_policy

RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))
ENVS, STEPS = 2, 80


@dataclass(frozen=True)
class BestReturns(Selection):
    """The best agent returns in place of the worst member wherever no member leads it; all others stay."""

    explore: bool = False

    def slot_for_best(self, view):
        worst = int(ranking(view.fitness, view.uids)[-1])
        return None if view.best_returns is None else SlotForBest(worst, self.explore)

    def plan(self, view, rng):
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


class Watch(Callback):
    """Compares each clone of the best agent with that agent as it was evaluated."""

    def __init__(self, mutates):
        self.mutates = mutates
        self.agents, self.fitness, self.compared = {}, {}, []

    def on_generation(self, run, record):
        self.agents |= {(record.generation, agent.index): agent.clone() for agent in run.population}

    def on_offspring(self, run, offspring):
        for birth in offspring:
            if birth.parent_generation is not None:
                clone, parent = run.population[birth.slot], self.agents[birth.parent_generation, birth.parent_uid]
                assert clone.index == birth.uid
                assert clone.steps[-1] == parent.steps[-1]
                assert len(clone.steps) == 1 + len(clone.fitness) == 1 + len(clone.scores)  # one for each test
                assert (clone.hyperparameters == parent.hyperparameters) != self.mutates
                assert [*birth.parent_hyperparameters.values()] == [parent.lr]
                self.compared.append(weights_of(clone) == weights_of(parent))


def weights_of(agent):
    return {name: tensor.tolist() for name, tensor in agent.network.state_dict().items()}


def train(selection, *, size=3, generations=6, resume=None, **options):
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = PPO.population(
            size, *spaces, num_envs=ENVS, seed=1, learn_step=40, batch_size=20, lr=1e-2, net_config=SMALL,
            hp_config=RANGES, per_member=True,
        )  # fmt: skip
        return train_on_policy(
            env, pop=None if resume else pop, max_steps=STEPS * generations, evo_steps=STEPS,
            eval_loop=2, eval_steps=60, selection_strategy=selection, mutation=AutoExplorer(),
            resume=resume, verbose=False, **options,
        )  # fmt: skip


def returned(births):
    return [birth for birth in births if birth.parent_generation is not None]


@pytest.mark.slow
@pytest.mark.parametrize("explore", [False, True])
def test_the_clone_is_the_best_agent_as_it_was_evaluated_and_trains_on(tmp_path, explore):
    watch, records = Watch(explore), Records()
    pop, fitness = train(BestReturns(explore), callbacks=[watch], reporters=[records], run_dir=tmp_path / "run")
    births = returned(records.births)
    assert watch.compared
    assert all(watch.compared)
    assert len(births) == len(watch.compared)
    for birth in births:
        best = next(one.best for one in records.generations if one.generation == birth.generation)
        assert (birth.parent_uid, birth.parent_generation) == (best.uid, best.generation)
        assert birth.parent_generation < birth.generation
        assert not birth.survives
        assert birth.reason == ""
        assert ([change["kind"] for change in birth.mutations] == ["rl_hp"]) == explore
        if any(one.generation == birth.generation + 1 for one in records.generations):
            assert birth.uid in [m.uid for m in records.generations[birth.generation].members]
    assert len(pop) == len(fitness) == 3
    history = read_history(tmp_path / "run")
    rows = {row["uid"]: number for number, row in reversed([*enumerate(history.rows)])}
    for birth in births:
        if birth.uid in rows:
            before = history.rows[history.before[rows[birth.uid]]]
            assert (before["uid"], before["generation"]) == (birth.parent_uid, birth.parent_generation)
    assert operator_effects(history) == {}  # their parents have trained on for longer
    assert {*operator_gains(history)} == {"lr" if explore else "clone, unchanged"}


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    folder, part = tmp_path / "whole", tmp_path / "part"
    whole, fitness = train(BestReturns(), run_dir=folder, checkpoint=STEPS, callbacks=[CopyFolder(folder, part, 3)])
    resumed, again = train(BestReturns(), resume=part, checkpoint=STEPS)
    assert fitness == again
    assert [weights_of(agent) for agent in whole] == [weights_of(agent) for agent in resumed]
    ours, theirs = (Run.open(one) for one in (folder, part))
    assert returned(ours.lineage()) == returned(theirs.lineage())
    assert ours.ancestry() == theirs.ancestry()
    assert returned(ours.lineage())


@pytest.mark.slow
def test_two_processes_train_the_same_members_as_one(tmp_path):
    (one, fitness), (two, others) = (
        train(BestReturns(), processes=count, run_dir=tmp_path / str(count)) for count in (1, 2)
    )
    assert fitness == others
    assert [weights_of(agent) for agent in one] == [weights_of(agent) for agent in two]
    ours, theirs = (returned(Run.open(tmp_path / str(count)).lineage()) for count in (1, 2))
    assert ours == theirs
    assert ours


def test_members_that_keep_experience_stay():
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = DQN.population(3, *spaces, num_envs=ENVS, seed=1, learning_starts=20, net_config=SMALL, hp_config=RANGES)

        class Asked(BestReturns):
            def slot_for_best(self, view):
                raise AssertionError

        pop, _ = train_off_policy(
            env, pop=pop, max_steps=3 * STEPS, evo_steps=STEPS, eval_loop=1, selection_strategy=Asked(), verbose=False
        )
    assert [agent.index for agent in pop] == [0, 1, 2]


@pytest.mark.parametrize(
    ("row", "best_returns", "message"),
    [
        (
            SlotForBest(3, False),
            [1.0],
            r"returned SlotForBest\(slot=3, .*; allowed are SlotForBest with a slot from 0 to 2",
        ),
        (SlotForBest(-1, False), [1.0], r"returned SlotForBest\(slot=-1, .*; allowed are"),
        (SlotForBest(0.5, False), [1.0], r"returned SlotForBest\(slot=0\.5, .*; allowed are"),
        (1, [1.0], r"returned 1; allowed are SlotForBest"),
        (SlotForBest(1, False), None, r"allowed is None, because the best agent has not played"),
    ],
)
def test_wrong_slots_are_refused(row, best_returns, message):
    with pytest.raises(ConfigurationError, match=message):
        check_slot_for_best(row, view_of([1.0, 2.0, 3.0], best_returns=best_returns), BestReturns())


# -- evolution="auto"


AUTO = AutoSelection()


def view_of(means, generation=5, generations=20, state=None, best_returns=(9.0, 10.0, 11.0), **more):
    """Return a view of members whose returns lie 1 around their means, as those of the best agent around 10."""
    returns = np.array(means)[:, None] + np.array([-1.0, 0.0, 1.0])
    return PopulationView(
        np.array(means), [*range(10, 10 + len(means))], (), generation, returns=returns, generations=generations,
        state={} if state is None else state, best_returns=best_returns, **more,
    )  # fmt: skip


def slots(means, generations=20, state=None, **more):
    state = {} if state is None else state
    found = [AUTO.slot_for_best(view_of(means, one, generations, state=state, **more)) for one in (3, 4, 5, 6)]
    return [None if row is None else row.slot for row in found]


def test_auto_returns_the_best_agent_once_all_members_are_behind_it_for_a_tenth_of_the_budget():
    assert slots([5.0, 3.0, 8.0]) == [None, 1, None, 1]
    assert slots([5.0, 3.0, 8.0], generations=30) == [None, None, 1, None]
    assert slots([np.nan, 3.0, 8.0]) == [None, 0, None, 0]  # diverged members first
    assert slots([5.0, 3.0, 10.0]) == [None] * 4  # one is not behind
    assert slots([5.0, 3.0, 8.0], best_returns=None) == [None] * 4  # a member leads
    assert slots([5.0]) == slots([5.0, 3.0, 8.0], generations=9) == [None] * 4


def test_auto_counts_generations_in_succession():
    state = {}
    found = [
        AUTO.slot_for_best(view_of([5.0, mean], one, state=state)) for one, mean in enumerate([8.0, 10.0, 8.0, 8.0], 3)
    ]
    assert found == [None, None, None, SlotForBest(0, explore=False)]


def test_auto_counts_no_differences_that_may_be_noise():
    noisy = view_of([8.0, 9.0], best_returns=[20.0, 0.0, 10.0])
    state = noisy.state
    for generation in (3, 4, 5):
        assert AUTO.slot_for_best(replace(noisy, generation=generation)) is None
    assert state["behind"] == 0


def test_auto_does_not_return_an_agent_that_earns_what_a_constant_policy_does():
    assert slots([5.0, 3.0, 8.0], state={"baseline": [10.0, 20.0]}) == [None] * 4
    assert slots([5.0, 3.0, 8.0], state={"baseline": [-50.0, 20.0]}) == [None, 1, None, 1]


def test_fresh_members_come_though_a_clone_of_the_best_agent_earns_more_than_a_constant_policy():
    """As in Acrobot, where an untrained policy may earn much by luck, and its clones lose it in a generation."""
    state, rng, found = {"baseline": [-500.0, 0.0]}, np.random.default_rng(0), []
    for generation in range(3, 7):
        fitness, returns, lucky = np.full(4, -500.0), np.full((4, 3), -500.0), [-120.0, -130.0, -140.0]
        uids = [*range(10 * generation, 10 * generation + 4)]
        view = PopulationView(
            fitness, uids, (), generation, returns=returns, generations=20, state=state, best_returns=lucky
        )
        row = AUTO.slot_for_best(view)
        if row is not None:
            fitness[row.slot], returns[row.slot] = -130.0, lucky
        assert AUTO.removed(view) == []  # after a quarter of the budget, too
        plan = AUTO.plan(view, rng)
        found.append((None if row is None else row.slot, [slot for slot, its in enumerate(plan) if its.wider]))
    assert found == [(None, []), (3, [0, 1]), (None, []), (3, [2])]  # 0 and 1 have time to learn


def test_a_clone_of_the_best_agent_stays_in_the_generation_of_its_return_beside_finders():
    """It has no training return yet, so that the members that earn more in training come before it."""
    lucky, state = [-120.0, -130.0, -140.0], {"baseline": [-500.0, 0.0], "returned": [3, 6]}
    view = PopulationView(
        [-500.0, -500.0, -500.0, -130.0], [1, 2, 3, 9], (), 6, returns=[[-500.0] * 3] * 3 + [lucky], generations=20,
        state=state, best_returns=lucky, train_returns=[-450.0, -460.0, -500.0, np.nan],
    )  # fmt: skip
    plan = AUTO.plan(view, np.random.default_rng(0))
    assert [(row.weights_from, row.start) for row in plan] == [(0, None), (1, None), (0, None), (3, None)]


def test_the_slot_of_a_clone_of_the_best_agent_is_known_after_others_are_removed():
    state = {"returned": [3, 5]}
    assert AUTO.removed(view_of([1.0, 6.0, 2.0, 9.0], state=state)) == [0, 2]
    assert returned_clone(view_of([6.0, 9.0], state=state)) == state["returned"][0] == 1
    assert returned_clone(view_of([6.0, 9.0], 6, state=state)) is None
    state = {"returned": [0, 5]}
    assert AUTO.removed(view_of([1.0, 6.0, 2.0, 9.0], state=state)) == [0, 2]
    assert returned_clone(view_of([6.0, 9.0], state=state)) is None  # it was removed itself


def test_members_that_started_again_a_short_time_ago_stay():
    assert slots([5.0, 3.0, 8.0], state={"restarted": [[1, 9, 11]]}) == [None, 0, None, 0]
    every = [[slot, 9, 10 + slot] for slot in range(3)]
    assert slots([5.0, 3.0, 8.0], state={"restarted": every}) == [None] * 4


@pytest.mark.parametrize("warms_up", [True, False])
def test_the_clone_gets_other_hyperparameters_during_the_warm_up_alone(warms_up):
    view = view_of([5.0, 3.0, 8.0], state={"warms_up": warms_up, "behind": 1})
    assert AUTO.slot_for_best(view) == SlotForBest(1, explore=warms_up)


def test_a_member_that_earns_more_in_training_than_the_best_does_in_the_evaluation_does_not_start_again():
    rng, fresh = np.random.default_rng(0), SlotPlan(1, 1, explore=True, start=WeightMix())
    for trained, restarts in [(8.5, False), (7.5, True), (np.nan, True)]:
        view = view_of([5.0, 3.0, 8.0], 2, state={"warms_up": True}, train_returns=[0.0, trained, 0.0])
        assert (AUTO.plan(view, rng)[1] == fresh) == restarts


def test_a_member_without_a_common_seed_is_not_known_to_be_behind():
    """As with instances, of which the worst decides: the best agent's is another one than the members'."""
    nothing = [np.nan] * 2
    view = view_of([61.0, 70.0], best_returns=[10.0, 12.0, *nothing])
    apart = replace(view, returns=np.array([[*nothing, 60.0, 62.0], [*nothing, 70.0, 70.0]]))
    assert not is_behind(apart, 1.0)
    assert is_behind(replace(view, best_returns=np.full(4, 90.0), returns=apart.returns), 1.0)
