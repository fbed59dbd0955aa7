"""Laws 2 and 5: members trained together equal members trained alone, and training one changes no other member."""

import math

import pytest
import torch
from learner_examples import BOX, DIFFERENT, DISCRETE, STATE, member, only, pick, rollout_of, shuffle_of, values_of

from agilerl_like.learning.advantages import RolloutStates, next_values
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import RolloutUpdate
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout


def buffers_of(cohort):
    (part,) = cohort.stacked.parts
    return part.stack.buffers


def state_of(cohort):
    return [cohort.stacked.flat, cohort.stacked.optimizer.exp_avg, *buffers_of(cohort).values()]


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("invalid", [False, True], ids=["all valid", "some invalid"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
def test_trained_together_equals_trained_alone(action_space, share, invalid, dtype, tolerance):
    rollout = rollout_of(3, action_space, dtype, invalid=invalid)
    values = values_of(3, dtype, **DIFFERENT)
    together = PopulationLearner(*zip(*(member(i, action_space, dtype, share=share) for i in range(3)), strict=True))
    report = together.learn(range(3), RolloutUpdate(rollout, values, batch_size=10, shuffle=shuffle_of(range(3))))
    assert report["epochs"].tolist()[1] == 1  # its KL went over 1e-6 in the first epoch
    for i in range(3):
        alone = PopulationLearner(*zip(member(i, action_space, dtype, share=share), strict=True))
        its_report = alone.learn(
            [0], RolloutUpdate(only(rollout, i), pick(values, i), batch_size=10, shuffle=shuffle_of([i]))
        )
        torch.testing.assert_close(together.stacked.flat[i], alone.stacked.flat[0], rtol=tolerance, atol=tolerance)
        for mine, its in zip(vars(together.moments(i)).values(), vars(alone.moments(0)).values(), strict=True):
            torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance)
        for name, buffer in buffers_of(alone).items():
            torch.testing.assert_close(buffers_of(together)[name][i], buffer[0], rtol=tolerance, atol=tolerance)
        for name, its in its_report.items():
            torch.testing.assert_close(
                report[name][i : i + 1], its, rtol=10 * tolerance, atol=10 * tolerance, equal_nan=True
            )


def test_permuting_members_permutes_results():
    rollout, values, order = rollout_of(3), values_of(3, **DIFFERENT), [2, 0, 1]
    straight = PopulationLearner(*zip(*(member(i) for i in range(3)), strict=True))
    straight.learn(range(3), RolloutUpdate(rollout, values, batch_size=10, shuffle=shuffle_of(range(3))))
    permuted = PopulationLearner(*zip(*(member(i) for i in order), strict=True))
    permuted.learn(range(3), RolloutUpdate(rollout[order], values[order], batch_size=10, shuffle=shuffle_of(order)))
    torch.testing.assert_close(permuted.stacked.flat, straight.stacked.flat[order], rtol=1e-10, atol=1e-10)


def test_training_one_member_moves_its_row_and_no_other_bit():
    cohort = PopulationLearner(*zip(*(member(i) for i in range(3)), strict=True))
    kept = [x.clone() for x in state_of(cohort)]
    cohort.learn(
        [1], RolloutUpdate(only(rollout_of(3), 1), pick(values_of(3), 1), batch_size=10, shuffle=shuffle_of([1]))
    )
    for old, new in zip(kept, state_of(cohort), strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]])
    assert not torch.equal(kept[0][1], cohort.stacked.flat[1])
    # and the member that the user holds is that row
    flat = torch.cat([p.detach().reshape(-1) for p in cohort.networks[1].parameters()])
    assert torch.equal(flat, cohort.stacked.flat[1])


def test_invalid_rows_do_not_affect_updates():
    first = rollout_of(1, invalid=True, seed=3)
    garbage = first.valid.unsqueeze(-1) == 0
    other = first.replace(
        observations=torch.where(garbage, torch.full_like(first.observations, 77.0), first.observations),
        rewards=torch.where(garbage.squeeze(-1), torch.full_like(first.rewards, -99.0), first.rewards),
        # an invalid row follows the end of an episode, so nothing may flow from it into the one before
        ended=torch.ones_like(first.ended),
        terminated=torch.ones_like(first.terminated),
    )
    clean = first.replace(ended=other.ended, terminated=other.terminated)
    cohorts = []
    for rollout in (clean, other):
        cohort = PopulationLearner(*zip(member(0), strict=True))
        cohort.learn([0], RolloutUpdate(rollout, values_of(1), batch_size=10, shuffle=shuffle_of([0])))
        cohorts.append(cohort)
    assert torch.equal(cohorts[0].stacked.flat, cohorts[1].stacked.flat)
    for name, buffer in buffers_of(cohorts[0]).items():
        assert torch.equal(buffer, buffers_of(cohorts[1])[name])


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_the_scale_of_rewards_does_not_matter(scale):
    """Values and advantages are normalised, so rewards a million times larger give the same policy."""
    rollout = rollout_of(1)
    flats = []
    for factor in (1.0, scale):
        cohort = PopulationLearner(*zip(member(0), strict=True))
        cohort.networks[0].critic.head.linears[-1].weight.data.zero_()  # V = 0 in both units before the first update
        cohort.learn(
            [0],
            RolloutUpdate(
                rollout.replace(rewards=rollout.rewards * factor),
                values_of(1),
                batch_size=10,
                shuffle=shuffle_of([0]),
            ),
        )
        flats.append(cohort.stacked.flat[0, : cohort.stacked.critic_at].clone())
    torch.testing.assert_close(flats[0], flats[1], rtol=1e-4, atol=1e-5)


def test_the_scale_of_observations_does_not_matter():
    rollout = rollout_of(1)
    flats = []
    for factor in (1.0, 1e3):
        cohort = PopulationLearner(*zip(member(0), strict=True))
        last = rollout.final_observations
        scaled = rollout.replace(
            observations=rollout.observations * factor,
            next_observations=rollout.next_observations * factor,
            final_observations=last.replace(observations=last.observations * factor),
        )
        cohort.learn([0], RolloutUpdate(scaled, values_of(1), batch_size=10, shuffle=shuffle_of([0])))
        flats.append(cohort.stacked.flat[0].clone())
    torch.testing.assert_close(flats[0], flats[1], rtol=1e-6, atol=1e-7)


def test_a_truncated_step_bootstraps_from_its_own_last_observation():
    """One step, cut by a time limit: what follows is worth V(last), not V of the next episode's first observation."""
    network, adam = member(0)
    cohort = PopulationLearner([network], [adam])
    here, after, last = torch.randn(3, 1, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).unbind(
        0
    )
    zero = torch.zeros(1, dtype=torch.int64)
    flag = torch.ones(1, 1, 1, dtype=torch.float64)
    rollout = Rollout.from_steps(
        here.unsqueeze(0),
        torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        2 * flag,
        0 * flag,
        flag,
        flag,
        after,
        FinalObservations.of(zero, zero, zero, last[0], members=1),
        None,
        torch.zeros(1, 1, *STATE),
    )
    (part,) = cohort.stacked.parts
    stacked = part.stack.module
    norm = stacked.observation_norm
    norm.count.fill_(1.0)  # statistics are known: mean 0, variance 1
    with torch.no_grad():
        at_here, at_last, at_after = (float(stacked.value(norm(x))) for x in (here, last, after))
        found = next_values(
            stacked, rollout, torch.full((1, 1, 1), at_here, dtype=torch.float64), RolloutStates(rollout.state)
        )
    assert math.isclose(found.item(), at_last)
    assert abs(at_last - at_after) > 1e-3


def test_diverged_member_is_reported_and_others_are_unaffected():
    rollout = rollout_of(2)
    sick = PopulationLearner(*zip(*(member(i) for i in range(2)), strict=True))
    with torch.no_grad():
        sick.stacked.flat[0, 5] = torch.nan
    report = sick.learn(range(2), RolloutUpdate(rollout, values_of(2), batch_size=10, shuffle=shuffle_of(range(2))))
    assert report["healthy"].tolist() == [0.0, 1.0]
    alone = PopulationLearner(*zip(member(1), strict=True))
    alone.learn([0], RolloutUpdate(only(rollout, 1), values_of(1), batch_size=10, shuffle=shuffle_of([1])))
    torch.testing.assert_close(sick.stacked.flat[1], alone.stacked.flat[0], rtol=1e-10, atol=1e-10)


def test_large_value_loss_does_not_shrink_the_policy_gradient():
    """The actor's gradient is clipped by its own norm: a million times the vf_coef moves the actor no differently."""
    rollout = rollout_of(1)
    actors = []
    for vf_coef in (0.5, 5e5):
        cohort = PopulationLearner(*zip(member(0), strict=True))
        values = values_of(1, vf_coef=[vf_coef], update_epochs=[1.0])
        cohort.learn([0], RolloutUpdate(rollout, values, batch_size=48, shuffle=shuffle_of([0])))
        actors.append(cohort.stacked.flat[0, : cohort.stacked.critic_at].clone())
    assert torch.equal(*actors)
