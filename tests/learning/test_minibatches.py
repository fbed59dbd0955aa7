"""Minibatches leave out the steps in which agents wait; a member's own division does not depend on the others."""

import math
from itertools import chain

import pytest
import torch
from learner_examples import ENVS, STEPS, member, only, rollout_of, shuffle_of, values_of

from agilerl_like.learning.minibatches import Minibatches, sequences_in_use
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import RolloutUpdate, UpdateModes


def rows_of(slices, order, padding, member):
    """What one member learns from, minibatch by minibatch."""
    return [order[member, columns][~padding[member, columns]].tolist() for columns in slices]


def test_each_minibatch_has_its_share_of_the_steps_that_count():
    order = torch.tensor([[4, 2, 0, 5, 1, 3], [0, 1, 2, 3, 4, 5]])
    used = torch.tensor([[True, False, True, False, True, False], [True] * 6])
    slices, rows, padding = Minibatches(2, 6, used).of(order)
    # member 0 shuffles to 4, 2, 0 of which minibatches get 3 // 2 = 1 and 2; member 1 has 3 and 3
    assert rows_of(slices, rows, padding, 0) == [[4], [2, 0]]
    assert rows_of(slices, rows, padding, 1) == [[0, 1, 2], [3, 4, 5]]


def test_a_members_division_does_not_depend_on_the_others():
    generator = torch.Generator().manual_seed(0)
    used = torch.rand(5, 40, generator=generator) < torch.tensor([0.1, 0.3, 0.5, 0.9, 1.0]).unsqueeze(1)
    order = torch.stack([torch.randperm(40, generator=generator) for _ in range(5)])
    together = Minibatches(7, 40, used).of(order)
    for place in range(5):
        alone = Minibatches(7, 40, used[place : place + 1]).of(order[place : place + 1])
        assert rows_of(*alone, 0) == rows_of(*together, place)
        assert sorted(chain(*rows_of(*alone, 0))) == used[place].nonzero().squeeze(1).tolist()
        sizes = [len(rows) for rows in rows_of(*alone, 0)]
        assert max(sizes) - min(sizes) <= 1


def test_where_every_step_counts_the_division_is_that_without_flags():
    order = torch.randperm(23).unsqueeze(0)
    plain = [order[:, columns].tolist() for columns in Minibatches(4, 23).of(order)[0]]
    slices, rows, padding = Minibatches(4, 23, torch.ones(1, 23, dtype=torch.bool)).of(order)
    assert [[its] for its in rows_of(slices, rows, padding, 0)] == plain


def test_if_all_agents_waited_minibatches_hold_padding_alone():
    slices, rows, padding = Minibatches(2, 6, torch.zeros(1, 6, dtype=torch.bool)).of(torch.arange(6).unsqueeze(0))
    assert [rows[0, columns].numel() for columns in slices] == [1, 1]  # an update of no rows would have no metrics
    assert bool(padding.all())


def test_members_whose_agents_never_wait_use_all_rows():
    weight = torch.tensor([[[1.0], [0.0], [1.0]], [[1.0], [0.0], [1.0]]])
    waiting = torch.zeros(2, 2, 3, 1)  # [P, 2, T, E]
    waiting[1, 1, 0] = 1.0
    assert sequences_in_use(weight, waiting).tolist() == [[True] * 3, [True, False, True]]
    assert sequences_in_use(weight, None) is None


def in_turns(members):
    """A rollout of agents that act in every other step, and of a last member that always acts."""
    rollout = rollout_of(members)
    waits = torch.zeros(members, 2, STEPS, ENVS, dtype=torch.float64)
    waits[:-1, 0, 1::2] = waits[:-1, 1, 0::2] = 1.0
    inside = 1 - waits[:, 0]
    flags = {name: getattr(rollout, name) * inside for name in ("rewards", "terminated", "ended", "valid")}
    return rollout.replace(**flags, waiting=waits)


def acting_in(steps):
    """A rollout of two members, the first of which acts in its first `steps` of an env only."""
    rollout, inside = rollout_of(2), torch.ones(2, STEPS, ENVS, dtype=torch.float64)
    inside[0] = 0.0
    inside[0, :steps, 0] = 1.0
    waits = torch.stack([1 - inside, torch.zeros_like(inside)], 1)
    flags = {name: getattr(rollout, name) * inside for name in ("rewards", "terminated", "ended", "valid")}
    return rollout.replace(**flags, waiting=waits)


def learned(members, rollout, *, batch_size):
    cohort = PopulationLearner(*zip(*(member(place) for place in members), strict=True))
    update = RolloutUpdate(rollout, values_of(len(members)), batch_size, shuffle_of(members))
    return cohort.learn(range(len(members)), update), cohort.stacked.flat


@pytest.mark.parametrize("batch_size", [STEPS * ENVS, 10])
def test_teams_that_wait_learn_as_alone(batch_size):
    rollout = in_turns(3)
    report, weights = learned(range(3), rollout, batch_size=batch_size)
    for place in range(3):
        its, own = learned([place], only(rollout, place), batch_size=batch_size)
        torch.testing.assert_close(own[0], weights[place], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(its["approx_kl"][0], report["approx_kl"][place], rtol=1e-9, atol=1e-9)


def test_a_minibatch_of_the_whole_rollout_is_that_with_rows_of_weight_0(monkeypatch):
    rollout = in_turns(2)
    report, weights = learned(range(2), rollout, batch_size=STEPS * ENVS)
    monkeypatch.setattr("agilerl_like.learning.advantages.sequences_in_use", lambda weight, waiting: None)
    plain, plain_weights = learned(range(2), rollout, batch_size=STEPS * ENVS)
    torch.testing.assert_close(weights, plain_weights, rtol=1e-10, atol=1e-10)
    for name in ("loss", "entropy_loss", "approx_kl", "grad_norm"):
        torch.testing.assert_close(report[name], plain[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("target_kl", [math.inf, 1e9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_members_none_of_whose_agents_acted_take_no_step(target_kl, decay):
    rollout, weights = acting_in(0), {}
    for places in ((0, 1), (1,)):
        cohort = PopulationLearner(*zip(*(member(place) for place in places), strict=True))
        adam, before = cohort.stacked.optimizer, cohort.stacked.flat.clone()
        adam.exp_avg.fill_(1e-3)
        adam.exp_avg_sq.fill_(1e-6)
        values = values_of(len(places), target_kl=[target_kl] * len(places), weight_decay=[decay] * len(places))
        its = rollout if len(places) == 2 else only(rollout, 1)
        modes = UpdateModes(kl_stop="minibatch")
        report = cohort.learn(
            range(len(places)), RolloutUpdate(its, values, 10, shuffle_of(places), detailed=True, modes=modes)
        )
        weights[places] = cohort.stacked.flat
        assert report["gradient_steps"].tolist() == [0, 15][-len(places) :]
        if len(places) == 2:
            assert torch.equal(cohort.stacked.flat[0], before[0])
            assert adam.exp_avg[0].tolist() == [1e-3] * adam.exp_avg.shape[1]
            assert adam.steps.tolist() == [0, 15]
            assert report["healthy"].tolist() == [1, 1]
            assert report["loss"].isnan().tolist() == [True, False]
    torch.testing.assert_close(weights[0, 1][1], weights[(1,)][0], rtol=1e-10, atol=1e-10)


def test_minibatches_without_a_sample_are_no_steps():
    """Of 24 minibatches of 2 samples, the 3 samples of a member fill 3."""
    found = []
    for parts in (3, 24):
        cohort = PopulationLearner(*zip(member(0), strict=True))
        update = RolloutUpdate(only(acting_in(3), 0), values_of(1), 2, shuffle_of([0]), num_minibatches=parts)
        report = cohort.learn([0], update)
        assert cohort.stacked.optimizer.steps.tolist() == [9]
        found.append((cohort.stacked.flat, report["loss"], report["grad_norm"]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
