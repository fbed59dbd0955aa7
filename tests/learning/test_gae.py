import torch
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.learning.gae import discounted_suffix_sum_, gae, next_of


def textbook(rewards, values, next_values, terminated, ended, valid, gamma, lam):
    """A_t = sum_k (gamma lam)^k delta_{t+k}, over the steps k until the first end at or after t: the double sum."""
    steps = len(rewards)
    delta = [rewards[t] + (0.0 if terminated[t] else gamma * next_values[t]) - values[t] for t in range(steps)]
    delta = [one if acted else 0.0 for one, acted in zip(delta, valid, strict=True)]
    advantages = []
    for t in range(steps):
        total, weight = 0.0, 1.0
        for k in range(t, steps):
            total += weight * delta[k]
            if ended[k]:
                break
            weight *= gamma * lam
        advantages.append(total)
    return advantages


numbers = st.floats(-10, 10, allow_nan=False, width=32)
step = st.tuples(numbers, numbers, numbers, st.sampled_from(["continues", "terminated", "truncated"]), st.booleans())


@given(st.lists(step, min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_double_sum_for_every_placement_of_ends(steps, gamma, lam):
    rewards, values, next_values, ends, valid = zip(*steps, strict=True)
    terminated = [end == "terminated" for end in ends]
    ended = [end != "continues" for end in ends]
    found = gae(
        *(torch.tensor(x, dtype=torch.float64) for x in (rewards, values, next_values)),
        terminated=torch.tensor(terminated, dtype=torch.float64),
        ended=torch.tensor(ended, dtype=torch.float64),
        valid=torch.tensor(valid, dtype=torch.float64),
        gamma=torch.tensor(gamma, dtype=torch.float64),
        gae_lambda=torch.tensor(lam, dtype=torch.float64),
    )
    expected = textbook(rewards, values, next_values, terminated, ended, valid, gamma, lam)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_credit_for_a_reward_at_the_end_reaches_every_step():
    # five steps, +1 at the last, V = 0, gamma 0.99, lambda 1: A_t = 0.99^(4 - t)
    # (AgileRL's buffer gives [0, 0, 0, 0, 1])
    reward, end = torch.tensor([0.0, 0, 0, 0, 1]), torch.tensor([0.0, 0, 0, 0, 1])
    zero = torch.zeros(5)
    discount = {"gamma": torch.tensor(0.99), "gae_lambda": torch.tensor(1.0)}
    found = gae(reward, zero, zero, terminated=end, ended=end, valid=torch.ones(5), **discount)
    torch.testing.assert_close(found, 0.99 ** torch.arange(4, -1, -1.0))


def test_a_time_limit_bootstraps_and_a_termination_does_not():
    # one step, r = 1, V(s) = 2, V(s') = 10, gamma 0.5: truncated 1 + 5 - 2 = 4, terminated 1 - 2 = -1
    one = torch.ones(1)
    for terminated, advantage in ((0.0, 4.0), (1.0, -1.0)):
        found = gae(
            one,
            2 * one,
            10 * one,
            terminated=terminated * one,
            ended=one,
            valid=one,
            gamma=torch.tensor(0.5),
            gae_lambda=torch.tensor(0.9),
        )
        assert found.item() == advantage


def test_each_member_has_its_own_discount():
    # [T=2, P=2, E=1], reward 1 at the last step, V = 0, lambda 1: A_0 = gamma
    rewards = torch.tensor([[[0.0], [0.0]], [[1.0], [1.0]]])
    zero, gamma = torch.zeros(2, 2, 1), torch.tensor([[0.5], [0.9]])
    end = torch.tensor([[[0.0], [0.0]], [[1.0], [1.0]]])
    valid = torch.ones(2, 2, 1)
    found = gae(rewards, zero, zero, terminated=end, ended=end, valid=valid, gamma=gamma, gae_lambda=torch.ones(2, 1))
    torch.testing.assert_close(found[0], gamma)


def test_suffix_sum_without_decay_is_a_reversed_cumulative_sum():
    terms = torch.arange(1.0, 8.0)
    found = discounted_suffix_sum_(terms.clone(), torch.ones(7))
    torch.testing.assert_close(found, torch.tensor([28.0, 27, 25, 22, 18, 13, 7]))


def test_next_values_are_shifted_by_one():
    assert next_of(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(9.0)).tolist() == [2, 3, 9]
