import pytest
import torch

from agilerl_like.learning.optimizer import BETAS, Adam, clip_


def step(adam, flat, gradient, lr):
    (adam_step,) = adam.prepare_steps(lr, 1)
    adam.step_(flat, gradient.clone(), adam_step)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_one_member_is_torch_adam_over_20_steps(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, 50, dtype=dtype, generator=generator)
    theirs = torch.nn.Parameter(start[0].clone())
    reference = torch.optim.Adam([theirs], lr=3e-3, betas=BETAS, eps=1e-5)
    ours, adam = start.clone(), Adam.fresh(start, epsilon=1e-5)
    for count in (1, 4, 15):  # however many steps are worked out at once
        for adam_step in adam.prepare_steps(torch.tensor([3e-3], dtype=dtype), count):
            gradient = torch.randn(1, 50, dtype=dtype, generator=generator)
            theirs.grad = gradient[0].clone()
            reference.step()
            adam.step_(ours, gradient, adam_step)
    torch.testing.assert_close(ours[0], theirs.detach(), rtol=tolerance, atol=tolerance)


def test_members_with_different_rates_and_step_counts_step_as_alone():
    generator = torch.Generator().manual_seed(1)
    flat = torch.randn(3, 8, generator=generator)
    rates = torch.tensor([1e-1, 1e-2, 1e-3])
    alone, lone = flat.clone(), [Adam.fresh(flat[i : i + 1]) for i in range(3)]
    for age in range(3):  # member i has taken i steps before they meet
        for i in range(age + 1, 3):
            step(lone[i], alone[i : i + 1], torch.full((1, 8), 0.3), rates[i : i + 1])
    together, stacked = alone.clone(), Adam.fresh(alone)
    for i in range(3):
        stacked.put(torch.tensor([i]), lone[i])
    gradient = torch.randn(3, 8, generator=generator)
    step(stacked, together, gradient, rates)
    for i in range(3):
        step(lone[i], alone[i : i + 1], gradient[i : i + 1], rates[i : i + 1])
    assert torch.equal(together, alone)
    assert stacked.steps.tolist() == [1, 2, 3]


def test_copied_rows_step_independently():
    flat = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    adam, rows = Adam.fresh(flat), torch.tensor([2, 0])
    step(adam, flat, torch.ones(3, 8), torch.full((3,), 1e-2))
    before = [x.clone() for x in (flat, adam.exp_avg, adam.exp_avg_sq, adam.steps)]
    part, moved = adam.take(rows), flat[rows]
    step(part, moved, torch.ones(2, 8), torch.full((2,), 1e-2))
    moments = (adam.exp_avg, adam.exp_avg_sq, adam.steps)
    assert all(torch.equal(old, new) for old, new in zip(before[1:], moments, strict=True))
    adam.put(rows, part)
    for old, new in zip(before[1:], (adam.exp_avg, adam.exp_avg_sq, adam.steps), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])


def test_the_first_step_has_the_size_of_the_rate():
    # m^ / sqrt(v^) = g / |g| = 1 at the first step, whatever the gradient's size
    flat = torch.zeros(2, 1, dtype=torch.float64)
    adam = Adam.fresh(flat, epsilon=0.0)
    step(adam, flat, torch.tensor([[1e-3], [1e3]], dtype=torch.float64), torch.tensor([0.1, 0.2], dtype=torch.float64))
    torch.testing.assert_close(flat, torch.tensor([[-0.1], [-0.2]], dtype=torch.float64))


def test_moments_without_gradient_become_zero_and_never_subnormal():
    flat, tiny = torch.ones(2, 3), torch.finfo(torch.float32).tiny
    adam = Adam.fresh(flat)
    step(adam, flat, torch.tensor([[1.0, 1e-9, 0.0], [1.0, 1e-3, 1.0]]), torch.full((2,), 1e-2))
    stays = torch.zeros(2, 3)
    stays[1, 2] = 0.5  # this one does get some
    for _ in range(100):
        for adam_step in adam.prepare_steps(torch.full((2,), 1e-2), 10):
            adam.step_(flat, stays.clone(), adam_step)
    moments = torch.cat([adam.exp_avg, adam.exp_avg_sq])
    assert not ((moments.abs() > 0) & (moments.abs() < tiny)).any()
    assert adam.exp_avg[1, 2] == pytest.approx(0.5)
    adam.prepare_steps(torch.full((2,), 1e-2), 1)
    assert adam.exp_avg.count_nonzero() == 1
    adam.exp_avg[0, 0] = torch.nan  # what is not finite is found by others
    adam.prepare_steps(torch.full((2,), 1e-2), 1)
    assert adam.exp_avg[0, 0].isnan()


def test_clipping_scales_rows_above_max_norm_only():
    gradient = torch.tensor([[3.0, 4.0, 30.0], [0.3, 0.4, 0.1]])  # norms 5 and 0.5, 30 and 0.1
    norms = clip_((gradient[:, :2], gradient[:, 2:]), torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(norms, torch.tensor([[5.0, 0.5], [30.0, 0.1]]))
    torch.testing.assert_close(gradient, torch.tensor([[0.6, 0.8, 1.0], [0.3, 0.4, 0.1]]), rtol=1e-5, atol=1e-6)


def test_step_updates_the_given_tensor_and_no_earlier_one():
    """Rows are kept from step to step: never those of another tensor."""
    flats, gradients = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    adam = Adam.fresh(flats[0])
    for rates in ([0.1, 0.1], [0.1, 0.1, 0.2]):
        lr = torch.tensor([*rates, *rates][:3])
        for i, j in ((0, 0), (0, 1), (1, 1), (0, 0)):
            others = flats[1 - i].clone(), gradients.clone()
            alone = [
                Adam(*(x[row : row + 1].clone() for x in (adam.exp_avg, adam.exp_avg_sq, adam.steps)))
                for row in range(3)
            ]
            expected = flats[i].clone()
            for row, its in enumerate(alone):
                its.step_(
                    expected[row : row + 1], gradients[j][row : row + 1], its.prepare_steps(lr[row : row + 1], 1)[0]
                )
            adam.step_(flats[i], gradients[j], adam.prepare_steps(lr, 1)[0])
            assert torch.equal(flats[i], expected)
            assert torch.equal(flats[1 - i], others[0])
            assert torch.equal(gradients, others[1])
