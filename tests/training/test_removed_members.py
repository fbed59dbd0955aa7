"""Members that leave the population: the others train on as before, in fewer envs, and a resumed run equals it."""

import contextlib
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL, CopyFolder

from agilerl_like import DQN, PPO, HyperparameterConfig, RLParameter, Run, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import PopulationView, SlotPlan, ranking
from agilerl_like.hpo.auto import AutoExplorer, AutoSelection
from agilerl_like.hpo.selection import Selection, check_removed
from agilerl_like.reporting.callback import Callback
from agilerl_like.training.checkpoint_manager import Progress
from agilerl_like.training.off_policy import train_off_policy

RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))
ENVS, STEPS = 2, 80


@dataclass(frozen=True)
class WorseHalfRemoved(Selection):
    """The worse half leaves after each generation, until `least` members are left; the others survive."""

    least: int = 1

    def removed(self, view):
        kept = max(self.least, view.least_members, len(view) // 2)
        return [] if kept >= len(view) else ranking(view.fitness, view.uids)[kept:].tolist()

    def plan(self, view, rng):
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


class Fixed(gymnasium.vector.VectorWrapper):
    """Envs that cannot be made again."""


class Watch(Callback):
    """The uids of each generation, and the steps that are reported."""

    def __init__(self):
        self.uids, self.steps, self.most, self.best = [], [], [], []

    def on_run_begin(self, run):
        self.run = run.record

    def on_generation(self, run, record):
        assert [member.slot for member in record.members] == [*range(len(record.members))]
        self.uids.append([member.uid for member in record.members])
        self.steps.append(record.env_steps)
        self.most.append(record.max_env_steps)
        self.best.append([*ranking(np.array([m.fitness for m in record.members]), self.uids[-1])])

    def on_run_end(self, run, summary):
        self.summary = summary


def train(selection, *, size=4, generations=4, env=None, resume=None, members=None, **options):
    with contextlib.closing(env or make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = PPO.population(
            size, *spaces, num_envs=ENVS, seed=1, learn_step=40, batch_size=20, net_config=SMALL, hp_config=RANGES,
            per_member=True, normalize_reward=True,
        )  # fmt: skip
        return train_on_policy(
            env, pop=members if resume else pop, max_steps=STEPS * generations, evo_steps=STEPS,
            eval_loop=2, eval_steps=60, selection_strategy=selection, mutation=AutoExplorer(),
            resume=resume, verbose=False, **options,
        )  # fmt: skip


def check_equal(ours, theirs):
    assert [agent.index for agent in ours] == [agent.index for agent in theirs]
    for one, other in zip(ours, theirs, strict=True):
        pairs = zip(one.network.state_dict().values(), other.network.state_dict().values(), strict=True)
        assert all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.slow
def test_the_worse_half_leaves_and_the_others_train_on(tmp_path):
    watch = Watch()
    pop, fitness = train(WorseHalfRemoved(), callbacks=[watch], run_dir=tmp_path / "run")
    assert [*map(len, watch.uids)] == [4, 2, 1, 1]
    for before, after, best in zip(watch.uids[:2], watch.uids[1:], watch.best[:2], strict=False):
        assert after == sorted(before[slot] for slot in best[: len(before) // 2])  # uids and order stay
    assert watch.steps == [4 * STEPS, 8 * STEPS, 12 * STEPS, 16 * STEPS]  # those that stay take all of them
    assert watch.most == [16 * STEPS] * 4
    assert watch.summary.env_steps == 16 * STEPS
    assert len(pop) == len(fitness) == 1
    assert pop[0].steps[-1] == (1 + 2 + 4 + 4) * STEPS
    assert pop[0].learner.updates == pop[0].steps[-1] // 40  # one for each rollout of 40 env steps
    assert pop[0].progress == pytest.approx(1 - 40 / (16 * STEPS))  # where its last rollout began
    run = Run.open(tmp_path / "run")
    assert len(run.population()) == 1
    assert len(run.metrics()) == 8
    entries = run.history()
    assert [entry.share for entry in entries] == [0, 0.25, 0.5, 0.75, 1.0]
    of_all = [entry.env_steps * len(entry.population()) + entry.moment.steps_of_removed for entry in entries]
    assert of_all == [0, *watch.steps]


def test_a_run_is_continued_with_the_population_that_it_returned(tmp_path):
    pop, _ = train(WorseHalfRemoved(least=2), generations=2, run_dir=tmp_path / "run")
    assert len(pop) == 2
    pop, _ = train(WorseHalfRemoved(least=2), generations=3, resume=tmp_path / "run", members=pop)
    assert len(pop) == 2
    with pytest.raises(ConfigurationError, match=r"population\.size=1 is 4 in this run"):
        train(WorseHalfRemoved(least=2), generations=4, resume=tmp_path / "run", members=type(pop)([pop[0]]))


def test_the_last_generation_is_in_the_history_where_the_steps_left_cannot_be_divided(tmp_path):
    """25 steps of each of 3 envs: 6 with three members, and 57 are left for two, which take 56."""
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(3, *spaces, num_envs=ENVS, seed=1, learn_step=12, batch_size=12, net_config=SMALL)
    pop, _ = train_on_policy(
        env, pop=pop, max_steps=50, evo_steps=12, eval_loop=1, eval_steps=2, history=5, verbose=False,
        selection_strategy=WorseHalfRemoved(least=2), run_dir=tmp_path / "run",
    )  # fmt: skip
    assert len(pop) == 2
    assert Run.open(tmp_path / "run").history()[-1].env_steps == pop[0].steps[-1] == 2 * (6 + 28)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, copied):
    folder, part = tmp_path / "whole", tmp_path / "part"
    whole, fitness = train(
        WorseHalfRemoved(), run_dir=folder, checkpoint=STEPS, callbacks=[CopyFolder(folder, part, copied)]
    )
    watch = Watch()
    resumed, again = train(WorseHalfRemoved(), resume=part, checkpoint=STEPS, callbacks=[watch])
    assert fitness == again
    assert (watch.run.population_size, watch.run.max_env_steps) == (4, 16 * STEPS)  # as where the run began
    assert watch.run.generation_env_steps == 4 * STEPS
    check_equal(whole, resumed)
    ours, theirs = (
        [{name: value for name, value in row.items() if name.startswith(("eval/", "hp/", "train/"))} for row in rows]
        for rows in (Run.open(folder).metrics(), Run.open(part).metrics())
    )
    assert ours == theirs
    assert len(ours) == 8


@pytest.mark.slow
def test_two_processes_train_the_same_members_as_one(tmp_path):
    (one, fitness), (two, others) = (
        train(WorseHalfRemoved(least=2), size=8, processes=count, run_dir=tmp_path / str(count)) for count in (1, 2)
    )
    assert len(one) == 2
    assert fitness == others
    check_equal(one, two)


@pytest.mark.slow
def test_processes_with_one_member_and_with_several_remove_the_same_members():
    """A process of one member trains in the given env, and yet knows that the envs of others can be made again."""
    (one, fitness), (two, others) = (
        train(WorseHalfRemoved(least=2), size=3, generations=3, processes=count) for count in (1, 2)
    )
    assert len(one) == 2
    assert fitness == others
    check_equal(one, two)


def test_processes_that_cannot_divide_the_members_that_are_left_are_refused_before_they_start(tmp_path):
    train(WorseHalfRemoved(2), generations=3, run_dir=tmp_path / "run", checkpoint=STEPS)
    with pytest.raises(ConfigurationError, match=r"processes=5: the num_envs=2 of each of 2 members cannot be divided"):
        train(WorseHalfRemoved(2), resume=tmp_path / "run", processes=5)


def test_at_least_one_member_stays_for_each_process():
    pop, _ = train(WorseHalfRemoved(), generations=3, processes=2)
    assert len(pop) == 2


def test_all_stay_where_the_envs_cannot_be_made_again():
    env = make_vect_envs("CartPole-v1", num_envs=8, backend="sync")
    fixed = Fixed(env)
    pop, _ = train(WorseHalfRemoved(), generations=2, env=fixed, eval_env=fixed)
    assert len(pop) == 4


def test_all_stay_where_each_has_a_limit_of_updates():
    pop, _ = train(WorseHalfRemoved(), generations=2, max_updates=3)
    assert len(pop) == 4


def test_all_stay_where_they_keep_experience():
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = DQN.population(4, *spaces, num_envs=ENVS, seed=1, learning_starts=20, net_config=SMALL, hp_config=RANGES)
        pop, _ = train_off_policy(
            env, pop=pop, max_steps=2 * STEPS, evo_steps=STEPS, eval_loop=1, selection_strategy=WorseHalfRemoved(),
            verbose=False,
        )  # fmt: skip
    assert len(pop) == 4


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 1, 2, 3], r"Wrong\.removed leaves 0 of 4 members; allowed are at least 1"),
        ([0, 0], r"Wrong\.removed returned \[0, 0\]; allowed is a list of different slots from 0 to 3"),
        ([4], r"Wrong\.removed returned \[4\]; allowed is a list of different slots from 0 to 3"),
        (None, r"Wrong\.removed returned None; allowed is a list of different slots from 0 to 3"),
        (2, r"Wrong\.removed returned 2; allowed is a list of different slots from 0 to 3"),
        ([1.0], r"Wrong\.removed returned \[1\.0\]; allowed is a list of different slots from 0 to 3"),
        (
            np.array([True, False, False, True]),
            r"Wrong\.removed returned array.*True.*; allowed is a list of different",
        ),
    ],
)
def test_slots_that_cannot_leave_are_refused(slots, message):
    class Wrong(Selection):
        pass

    with pytest.raises(ConfigurationError, match=message):
        check_removed(slots, view_of([1.0, 2.0, 3.0, 4.0]), Wrong())


def test_checkpoints_of_earlier_versions_have_no_steps_of_members_that_left():
    progress = vars(Progress(next_uid=3)).copy()
    del progress["removed"], progress["ticks_of_removed"], progress["updates_before"]
    assert Progress.from_json(progress) == Progress(next_uid=3)


# -- evolution="auto"


def view_of(fitness, generation=5, generations=20, state=None, **more):
    return PopulationView(
        np.array(fitness), [*range(10, 10 + len(fitness))], (), generation, generations=generations,
        state={} if state is None else state, **more,
    )  # fmt: skip


AUTO = AutoSelection()


def test_auto_removes_the_worse_half_after_each_share_of_the_budget():
    state, thrice = {}, AutoSelection(halve_at=(1 / 4, 1 / 2, 3 / 4))
    members = [3.0, 1.0, 4.0, 2.0, 8.0, 7.0, 6.0, 5.0]
    assert AUTO.removed(view_of(members, 4)) == []
    assert AUTO.removed(view_of(members, 5, state=state)) == [0, 1, 2, 3]
    assert AUTO.removed(view_of([8.0, 7.0, 6.0, 5.0], 19, state=state)) == []  # once
    assert thrice.removed(view_of([8.0, 7.0, 6.0, 5.0], 9, state=state)) == []
    assert thrice.removed(view_of([8.0, 7.0, 6.0, 5.0], 10, state=state)) == [2, 3]
    assert thrice.removed(view_of([8.0, 7.0], 15, state=state)) == []  # two stay
    assert AutoSelection(halve_at=()).removed(view_of([3.0, 1.0, 4.0, 2.0])) == []
    assert AUTO.removed(view_of([3.0, 1.0, 4.0, 2.0], 5, generations=9)) == []


def test_auto_removes_members_that_diverged_first_and_keeps_as_many_as_must_stay():
    assert AUTO.removed(view_of([np.nan, 1.0, np.nan, 2.0])) == [0, 2]
    assert AUTO.removed(view_of([np.nan, np.nan, np.nan, 2.0])) == [1, 2]
    assert AUTO.removed(view_of([5.0, 1.0, 4.0, 2.0], least_members=3)) == [1]


def test_auto_removes_none_while_fitness_is_that_of_a_constant_policy():
    state = {"baseline": [0.0, 100.0]}
    assert AUTO.removed(view_of([0.0, -1.0, -2.0, -3.0], state=state)) == []
    assert AUTO.removed(view_of([50.0, -1.0, -2.0, -3.0], 6, state=state)) == [2, 3]


def test_members_that_started_again_keep_their_grace_in_their_new_slots():
    state = {"restarted": [[3, 9, 13], [1, 9, 11]]}
    assert AUTO.removed(view_of([0.0, 1.0, 5.0, 9.0], state=state)) == [0, 1]
    assert state["restarted"] == [[1, 9, 13]]


@pytest.mark.parametrize("shares", [(0,), (1.0,), (0.25, "x"), 0.25, None])
def test_shares_outside_the_budget_are_refused(shares):
    with pytest.raises(ConfigurationError, match="halve_at"):
        AutoSelection(halve_at=shares)


@pytest.mark.slow
def test_auto_shrinks_a_population_in_a_run():
    watch = Watch()
    train(AutoSelection(halve_at=(1 / 4, 1 / 2)), size=5, generations=12, callbacks=[watch])
    assert [*map(len, watch.uids)] == [5] * 3 + [3] * 3 + [2] * 6  # as many generations as planned, though 5 / 3 is odd
