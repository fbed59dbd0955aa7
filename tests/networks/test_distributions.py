"""Action distributions against torch.distributions, closed forms and counts whose errors are known exactly."""

import math

import gymnasium
import numpy as np
import pytest
import torch
import torch.distributions as td
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.distributions import make_distribution
from agilerl_like.networks.exploration import NoisyTanh, SquashedGaussian

NVEC = (2, 4, 3)


def normal(*shape, seed=0, scale=1.5):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(distribution, outputs, count, mask=None, seed=0):
    """`count` raw actions for one set of outputs."""
    noise = distribution.noise((count,), torch.Generator().manual_seed(seed)).to(outputs)
    mask = None if mask is None else mask.expand(count, -1)
    return distribution.sample(outputs.expand(count, -1), noise, mask)


def assert_frequency(hits, trials, probability):
    """Fail if so many hits, or so few, have a chance of less than one in a million each (exact binomial tails)."""
    tail = td.Binomial(trials, torch.tensor(probability, dtype=torch.float64)).log_prob(
        torch.arange(trials + 1, dtype=torch.float64)
    )
    at_most, at_least = tail[: hits + 1].logsumexp(0).exp(), tail[hits:].logsumexp(0).exp()
    assert min(float(at_most), float(at_least)) > 1e-6, f"{hits} of {trials} for a probability of {probability}"


# -- categories


def product_of(logits, nvec):
    return [td.Categorical(logits=part) for part in logits.split(list(nvec), -1)]


@pytest.mark.parametrize("space", [Discrete(5), MultiDiscrete([5]), MultiDiscrete(NVEC)], ids=str)
def test_categories_are_a_product_of_torchs(space):
    nvec = (5,) if space != MultiDiscrete(NVEC) else NVEC
    distribution, logits, other = make_distribution(space), normal(7, sum(nvec)), normal(7, sum(nvec), seed=1)
    parts, others = product_of(logits, nvec), product_of(other, nvec)
    raw = torch.stack([part.probs.argmin(-1) for part in parts], -1)  # any legal action
    log_prob, entropy = distribution.evaluate(logits, raw)
    torch.testing.assert_close(log_prob, sum(part.log_prob(raw[:, i]) for i, part in enumerate(parts)))
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))
    kl = sum(td.kl_divergence(p, q) for p, q in zip(parts, others, strict=True))
    torch.testing.assert_close(distribution.kl_from(logits)(distribution, other), kl)
    torch.testing.assert_close(distribution.mode(logits), torch.stack([part.probs.argmax(-1) for part in parts], -1))


def test_categories_are_drawn_as_often_as_they_are_likely():
    probabilities = [0.5, 0.3, 0.15, 0.05]
    raw = drawn(make_distribution(Discrete(4)), torch.tensor(probabilities).double().log(), 20_000)
    for category, probability in enumerate(probabilities):
        assert_frequency(int((raw == category).sum()), 20_000, probability)


def test_choices_of_a_multidiscrete_are_drawn_independently():
    first, second = [0.7, 0.3], [0.2, 0.5, 0.3]
    raw = drawn(make_distribution(MultiDiscrete([2, 3])), torch.tensor(first + second).double().log(), 20_000)
    for i, p in enumerate(first):
        for j, q in enumerate(second):
            assert_frequency(int(((raw[:, 0] == i) & (raw[:, 1] == j)).sum()), 20_000, p * q)


def test_noise_follows_its_generator():
    for space in (Discrete(3), MultiBinary(3), Box(-1, 1, (3,))):
        distribution = make_distribution(space)
        noise = [distribution.noise((4, 5), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
        assert torch.equal(noise[0], noise[1])
        assert not torch.equal(noise[0], noise[2])


# -- masks


MASKED = {
    "discrete": (Discrete(5), [[True, False, True, False, True]], [[0, 2, 4]]),
    "one left": (Discrete(3), [[False, True, False]], [[1]]),
    "multidiscrete": (MultiDiscrete(NVEC), [[True] * 2 + [False, True, True, False] + [False, False, True]], None),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_categories_have_no_chance(name):
    space, mask, _ = MASKED[name]
    nvec = NVEC if name == "multidiscrete" else (int(space.n),)
    mask, logits = torch.tensor(mask), normal(1, sum(nvec))
    logits[~mask] += 30.0  # what is illegal would be by far the best
    distribution = make_distribution(space)

    raw = drawn(distribution, logits[0], 5000, mask[0])
    parts = mask[0].split(list(nvec))
    for i, legal in enumerate(parts):
        assert bool(legal[raw[:, i]].all())
        assert bool(legal[distribution.mode(logits, mask)[:, i]].all())

    # entropy and log-probability are those of the distribution renormalised over what is legal
    renormalised = [
        td.Categorical(logits=part[legal]) for part, legal in zip(logits[0].split(list(nvec)), parts, strict=True)
    ]
    legal_raw = raw[:1]
    log_prob, entropy = distribution.evaluate(logits, legal_raw, mask)
    place = [int(legal[: legal_raw[0, i]].sum()) for i, legal in enumerate(parts)]
    expected = sum(d.log_prob(torch.tensor(place[i])) for i, d in enumerate(renormalised))
    torch.testing.assert_close(log_prob[0], expected)
    torch.testing.assert_close(entropy[0], sum(d.entropy() for d in renormalised))


def test_a_masked_category_is_not_taken_however_low_the_outputs_of_legal_ones_are():
    mask = torch.tensor([[False, True, True, False, True]])
    outputs = torch.tensor([[1.0, -2e10, -1e10, 1.0, -1e10]])
    assert make_distribution(MultiDiscrete([3, 2])).mode(outputs, mask).tolist() == [[2, 1]]


def test_a_masked_category_has_probability_zero_to_the_bit():
    distribution, mask = make_distribution(Discrete(3)), torch.tensor([[True, False, True]])
    log_prob, _ = distribution.evaluate(normal(1, 3), torch.tensor([[1]]), mask)
    assert float(log_prob.exp()) == 0.0


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 2]), MultiBinary(4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_through_a_mask_are_finite_and_zero_where_it_is_closed(space, dtype):
    distribution, mask = make_distribution(space), torch.tensor([[True, False, True, False], [True] * 4])
    outputs = normal(2, 4).to(dtype).requires_grad_()
    raw = torch.zeros(2, distribution.size, dtype=distribution.raw_dtype).to(
        torch.int64 if distribution.raw_dtype == torch.int64 else dtype
    )
    log_prob, entropy = distribution.evaluate(outputs, raw, mask)
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), outputs)
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[~mask] == 0).all())
    assert bool((gradient[1] != 0).all())


def test_an_open_mask_changes_nothing():
    for space in (Discrete(4), MultiDiscrete([2, 2]), MultiBinary(4)):
        distribution, outputs = make_distribution(space), normal(6, 4)
        raw, mask = distribution.mode(outputs), torch.ones(6, 4, dtype=torch.bool)
        for masked, free in zip(
            distribution.evaluate(outputs, raw, mask), distribution.evaluate(outputs, raw), strict=True
        ):
            assert torch.equal(masked, free)


# -- bits


def test_bits_are_independent_bernoullis():
    distribution, logits, other = make_distribution(MultiBinary(4)), normal(7, 4), normal(7, 4, seed=1)
    reference = td.Independent(td.Bernoulli(logits=logits), 1)
    raw = (normal(7, 4, seed=2) > 0).double()
    log_prob, entropy = distribution.evaluate(logits, raw)
    torch.testing.assert_close(log_prob, reference.log_prob(raw))
    torch.testing.assert_close(entropy, reference.entropy())
    kl = td.kl_divergence(reference, td.Independent(td.Bernoulli(logits=other), 1))
    torch.testing.assert_close(distribution.kl_from(logits)(distribution, other), kl)
    torch.testing.assert_close(distribution.mode(logits), (logits > 0).double(), check_dtype=False)


def test_bits_are_drawn_as_often_as_they_are_likely_and_never_where_masked():
    probabilities = torch.tensor([0.9, 0.5, 0.1, 0.999], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    raw = drawn(make_distribution(MultiBinary(4)), probabilities.logit(), 20_000, mask)
    for bit in range(3):
        assert_frequency(int(raw[:, bit].sum()), 20_000, float(probabilities[bit]))
    assert float(raw[:, 3].sum()) == 0.0
    both = int((raw[:, 0] * raw[:, 1]).sum())
    assert_frequency(both, 20_000, 0.45)


def test_a_masked_bit_is_certainly_zero():
    distribution, mask = make_distribution(MultiBinary(2)), torch.tensor([[True, False]])
    logits = torch.tensor([[0.3, 5.0]], dtype=torch.float64)
    log_prob, entropy = distribution.evaluate(logits, torch.tensor([[1.0, 0.0]], dtype=torch.float64), mask)
    alone = td.Bernoulli(logits=logits[0, 0])
    torch.testing.assert_close(log_prob[0], alone.log_prob(torch.tensor(1.0)), check_dtype=False)
    torch.testing.assert_close(entropy[0], alone.entropy())


def test_certain_outputs_have_finite_numbers():
    # logits of 200 are certainties in float32: entropy 0, and nothing is nan
    for space in (Discrete(2), MultiBinary(2)):
        distribution = make_distribution(space)
        outputs = torch.tensor([[200.0, -200.0]], requires_grad=True)
        log_prob, entropy = distribution.evaluate(outputs, distribution.mode(outputs))
        (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), outputs)
        assert (log_prob.item(), entropy.item()) == (0.0, 0.0)
        assert bool(torch.isfinite(gradient).all())


# -- Gaussians


LOW, HIGH = np.array([-1.0, 0.0, -5.0]), np.array([1.0, 10.0, 15.0])
WIDTHS, CENTRES = (HIGH - LOW) / 2, (HIGH + LOW) / 2


def gaussian(squash=False, dtype=np.float64, log_std=(-0.5, 0.0, 0.3)):
    distribution = make_distribution(Box(LOW, HIGH, dtype=dtype), squash=squash).double()
    with torch.no_grad():
        distribution.log_std.copy_(torch.tensor(log_std))
    return distribution


def in_units(outputs, distribution, squash):
    """The same distribution written with torch's transforms, over actions in the environment's units."""
    transforms = [td.TanhTransform(cache_size=1)] if squash else []
    transforms.append(td.AffineTransform(torch.tensor(CENTRES), torch.tensor(WIDTHS), event_dim=0))
    base = td.Normal(outputs, distribution.log_std.detach().exp().expand_as(outputs))
    return td.Independent(td.TransformedDistribution(base, transforms), 1)


@pytest.mark.parametrize("squash", [False, True])
def test_log_probabilities_are_densities_in_the_environments_units(squash):
    distribution, outputs = gaussian(squash), normal(9, 3, scale=0.7)
    raw = outputs + normal(9, 3, seed=1, scale=0.5)
    unit = raw.tanh() if squash else raw
    action = unit * torch.tensor(WIDTHS) + torch.tensor(CENTRES)
    log_prob, _ = distribution.evaluate(outputs, raw)
    torch.testing.assert_close(log_prob, in_units(outputs, distribution, squash).log_prob(action), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(distribution.unbounded(raw), action, rtol=1e-12)


def test_densities_of_continuous_off_policy_actions_are_in_the_environments_units():
    """SAC's density over the legal actions integrates to 1; TD3's is highest, and equally high, at the policy's own."""
    space = Box(-3.0, 5.0, (1,))
    raw = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1, None]  # 4 units of the environment each
    outputs = torch.tensor([[0.4, -0.3]], dtype=torch.float64).expand(len(raw), -1)
    density = SquashedGaussian(space).double().evaluate(outputs, raw)[0].exp()
    assert float(density.sum()) * 4 * 1e-4 == pytest.approx(1.0, abs=1e-3)
    policy, outputs = NoisyTanh(space), torch.tensor([[0.0], [1.0], [3.0]])
    own = policy.evaluate(outputs, policy.mode(outputs))[0]
    torch.testing.assert_close(own, own[:1].expand(3))
    assert (policy.evaluate(outputs, policy.mode(outputs) - 0.1)[0] < own).all()


def test_entropy_is_the_gaussians_and_that_of_the_units():
    distribution, outputs = gaussian(), normal(9, 3)
    base = td.Independent(td.Normal(outputs, distribution.log_std.detach().exp().expand_as(outputs)), 1)
    _, entropy = distribution.evaluate(outputs, outputs)
    torch.testing.assert_close(entropy, base.entropy() + np.log(WIDTHS).sum())


@pytest.mark.parametrize(
    ("log_std", "tolerance"), [(-3.0, 0.001), (-1.0, 0.001), (0.0, 0.001), (1.0, 0.002), (2.0, 0.05)]
)
def test_the_squashed_entropy_is_that_of_its_actions(log_std, tolerance):
    distribution = gaussian(squash=True, log_std=(log_std,) * 3)
    outputs = normal(1, 3, scale=0.7)
    raw = drawn(distribution, outputs[0], 200_000)
    log_prob, entropy = distribution.evaluate(outputs.expand(len(raw), -1), raw)
    error = float(log_prob.detach().std()) / math.sqrt(len(raw))
    assert abs(float(-log_prob.detach().mean()) - float(entropy[0].detach())) < 3 * tolerance + 4 * error


def test_the_squashed_entropy_is_exact_where_networks_are_bfloat16():
    distribution, outputs = make_distribution(Box(-2, 3, (3,)), squash=True), normal(50, 3).float()
    exact = distribution.evaluate(outputs, outputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = distribution.evaluate(outputs, outputs)
    assert all(torch.equal(x, its) for x, its in zip(found, exact, strict=True))


def test_a_wider_squashed_policy_has_less_entropy_once_its_actions_gather_at_the_bounds():
    gradients = []
    for log_std in (-2.0, 0.0, 1.0, 2.0):
        distribution = gaussian(squash=True, log_std=(log_std,) * 3)
        outputs = torch.zeros(1, 3, dtype=torch.float64)
        distribution.evaluate(outputs, outputs)[1].sum().backward()
        gradients.append(float(distribution.log_std.grad.sum()))
    assert gradients[0] > 2.5
    assert all(gradient < 0 for gradient in gradients[1:])


def test_kl_of_gaussians_with_spreads_of_their_own():
    ours, theirs, outputs, other = gaussian(), gaussian(log_std=(0.2, -0.4, 0.0)), normal(9, 3), normal(9, 3, seed=1)

    def reference(distribution, mean):
        return td.Independent(td.Normal(mean, distribution.log_std.detach().exp().expand_as(mean)), 1)

    expected = td.kl_divergence(reference(ours, outputs), reference(theirs, other))
    torch.testing.assert_close(ours.kl_from(outputs)(theirs, other), expected)


def test_gaussian_draws_have_their_mean_and_deviation():
    distribution, outputs = gaussian(), torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    raw, spread = drawn(distribution, outputs, 40_000), distribution.log_std.detach().exp()
    # standard errors: sd / sqrt(n) of the mean, sd / sqrt(2 n) of the deviation
    assert bool(((raw.mean(0) - outputs).abs() < 5 * spread / 200).all())
    assert bool(((raw.std(0) - spread).abs() < 5 * spread / math.sqrt(80_000)).all())
    assert torch.equal(distribution.mode(outputs), outputs)


def test_a_stack_of_spreads_is_each_members_own():
    outputs, raw, spreads = normal(2, 5, 3), normal(2, 5, 3, seed=1), [(-0.5, 0.0, 0.3), (0.1, 0.2, -1.0)]
    alone = [gaussian(log_std=spread) for spread in spreads]
    stacked = gaussian()
    stacked.log_std = torch.nn.Parameter(torch.tensor(spreads, dtype=torch.float64))
    for i, member in enumerate(alone):
        for got, expected in zip(stacked.evaluate(outputs, raw), member.evaluate(outputs[i], raw[i]), strict=True):
            torch.testing.assert_close(got[i], expected)
        torch.testing.assert_close(
            stacked.kl_from(outputs)(stacked, raw)[i], member.kl_from(outputs[i])(member, raw[i])
        )
        torch.testing.assert_close(stacked.sample(outputs, raw)[i], member.sample(outputs[i], raw[i]))


def test_a_spread_beyond_its_range_is_held_at_the_border():
    low, high = gaussian(log_std=(-40.0,) * 3), gaussian(log_std=(9.0,) * 3)
    noise = torch.ones(1, 3, dtype=torch.float64)
    for distribution, spread in ((low, math.exp(-20)), (high, math.exp(2))):
        sample = distribution.sample(torch.zeros(1, 3), noise).detach()
        torch.testing.assert_close(sample, torch.full((1, 3), spread, dtype=torch.float64))


def test_correlated_noise_is_an_autoregressive_process_of_unit_variance():
    distribution = gaussian()
    fresh = normal(7, 5, 3)
    first = distribution.correlated(fresh[:4], None, 0.8)
    later = distribution.correlated(fresh[4:], first[-1], 0.8)
    expected = [fresh[0]]
    for drawn_now in fresh[1:]:  # 0.8 of the step before and 0.6 of its own: 0.64 + 0.36 is a variance of 1
        expected.append(0.8 * expected[-1] + 0.6 * drawn_now)
    torch.testing.assert_close(torch.cat([first, later]), torch.stack(expected))
    assert torch.equal(distribution.correlated(fresh, first[-1], 0.0), fresh)
    discrete = make_distribution(Discrete(3))
    assert torch.equal(discrete.correlated(fresh, first[-1], 0.8), fresh)  # what decides for a category stays Gumbel


def test_squashing_far_out_stays_finite():
    distribution = gaussian(squash=True)
    raw = torch.tensor([[40.0, -40.0, 300.0]], dtype=torch.float64, requires_grad=True)
    log_prob, _ = distribution.evaluate(torch.zeros(1, 3, dtype=torch.float64), raw)
    assert bool(torch.isfinite(log_prob).all())
    # d/dx -log(1 - tanh^2 x) = 2 tanh x = +-2, less the Gaussian's slope x / sd^2
    (gradient,) = torch.autograd.grad(log_prob.sum(), raw)
    spread = distribution.log_std.detach().exp()
    torch.testing.assert_close(gradient, 2 * raw.detach().sign() - raw.detach() / spread**2)


# -- spaces


@st.composite
def categorical_actions(draw):
    nvec = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    start = draw(st.lists(st.integers(-3, 9), min_size=len(nvec), max_size=len(nvec)))
    return np.array(nvec), np.array(start), draw(st.integers(0, 2**31))


@given(case=categorical_actions())
def test_categories_go_to_the_environment_and_back(case):
    nvec, start, seed = case
    rng = np.random.default_rng(seed)
    raw = np.stack([rng.integers(nvec) for _ in range(6)])
    space = MultiDiscrete(nvec, start=start)
    distribution = make_distribution(space)
    actions = distribution.to_env(torch.tensor(raw))
    np.testing.assert_array_equal(actions, raw + start)
    assert all(action in space for action in actions)
    np.testing.assert_array_equal(distribution.from_env(actions), raw)

    single = Discrete(int(nvec[0]), start=int(start[0]))
    distribution = make_distribution(single)
    actions = distribution.to_env(torch.tensor(raw[:, :1]))
    assert actions.shape == (6,)
    assert all(action in single for action in actions)
    np.testing.assert_array_equal(actions, raw[:, 0] + start[0])
    np.testing.assert_array_equal(distribution.from_env(actions), raw[:, :1])


def test_bits_of_a_matrix_go_to_the_environment_and_back():
    space = MultiBinary((2, 3))
    distribution = make_distribution(space)
    raw = (normal(5, 6) > 0).float()
    actions = distribution.to_env(raw)
    assert all(action in space for action in actions)
    np.testing.assert_array_equal(actions.reshape(5, 6), raw)
    assert torch.equal(distribution.from_env(actions), raw)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("squash", [False, True])
def test_actions_reach_the_environment_in_its_dtype_and_bounds(dtype, squash):
    space = Box(np.array([-0.1, 0.3, -1e-3], dtype), np.array([0.1, 7.7, 1e6], dtype), dtype=dtype)
    distribution = make_distribution(space, squash=squash)
    raw = torch.cat([normal(200, 3).float(), torch.full((1, 3), 50.0), torch.full((1, 3), -50.0)])
    actions = distribution.to_env(raw)
    assert actions.dtype == dtype
    assert all(action in space for action in actions)
    np.testing.assert_array_equal(actions[-2:], [space.high, space.low])
    width, centre = (space.high.astype(float) - space.low) / 2, (space.high.astype(float) + space.low) / 2
    unit = raw.double().tanh().numpy() if squash else raw.double().numpy().clip(-1, 1)
    np.testing.assert_allclose(actions, unit * width + centre, rtol=1e-6, atol=2e-7 * float(np.abs(space.high).max()))
    if squash:  # there is nothing beyond the border to be lost
        np.testing.assert_array_equal(distribution.unbounded(raw), actions)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-3), (np.float64, 1e-5)])
@pytest.mark.parametrize("squash", [False, True])
def test_raw_actions_come_back_from_the_unbounded_ones(dtype, tolerance, squash):
    # float32 near tanh(3.5) = 0.998: steps of 6e-8 over a slope of 4e-3 are 2e-5; centre 5 and width 5 cost a digit
    distribution = make_distribution(Box(LOW.astype(dtype), HIGH.astype(dtype), dtype=dtype), squash=squash)
    raw = normal(300, 3).float().clamp(-3.5, 3.5)
    np.testing.assert_allclose(distribution.from_env(distribution.unbounded(raw)), raw, atol=tolerance)


@pytest.mark.parametrize(("low", "high", "tolerance"), [(-1, 1, 0.2), (-3, 5, 0.3), (1000, 1001, 1.0)])
def test_squashed_actions_near_the_border_keep_their_density(low, high, tolerance):
    """As exactly as float32 has them: 1 - 8e-8, raw 8.5, stands between two of its numbers, raw 8.3 and 8.7."""
    distribution = make_distribution(Box(low, high, (1,), np.float32), squash=True)
    largest = 8.5 if low > -10 and high < 10 else 4.0  # of 1000 to 1001 the last digit is 6e-5
    raw = torch.linspace(-largest, largest, 101).unsqueeze(1)
    back = distribution.from_env(distribution.unbounded(raw))
    np.testing.assert_allclose(back, raw, atol=tolerance)
    outputs = torch.zeros(101, 1, requires_grad=True)
    mine, its = (distribution.evaluate(outputs, actions)[0] for actions in (back, raw))
    slope = 2 + largest  # of 2 raw - raw^2 / 2, which is the density's logarithm but for a constant
    np.testing.assert_allclose(mine.detach(), its.detach(), atol=slope * tolerance)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_border_of_a_squashed_space_is_its_last_number_before_it(dtype):
    distribution = make_distribution(Box(-1, 1, (1,), dtype), squash=True)
    before = np.nextafter(dtype(1), dtype(0)) if dtype != np.float64 else np.nextafter(np.float32(1), np.float32(0))
    border = distribution.from_env(np.array([[1.0], [-1.0]], dtype))
    torch.testing.assert_close(border, torch.tensor([[1.0], [-1.0]]) * float(np.arctanh(float(before))))
    outputs = torch.zeros(2, 1, requires_grad=True)
    (gradient,) = torch.autograd.grad(distribution.evaluate(outputs, border)[0].sum(), outputs)
    torch.testing.assert_close(gradient, border)  # (raw - mean) / std^2


def test_the_border_of_a_squashed_space_comes_back_finite():
    distribution = gaussian(squash=True)
    raw = distribution.from_env(np.stack([LOW, HIGH]))
    assert bool(torch.isfinite(raw).all())
    np.testing.assert_allclose(distribution.to_env(raw), [LOW, HIGH], atol=1e-4)


def test_actions_of_a_matrix_keep_their_shape():
    space = Box(-2.0, 2.0, (2, 3))
    distribution = make_distribution(space)
    raw = normal(4, 6, scale=0.3).float()
    actions = distribution.to_env(raw)
    np.testing.assert_allclose(actions, 2 * raw.clamp(-1, 1).reshape(4, 2, 3), rtol=1e-6)
    np.testing.assert_allclose(distribution.from_env(actions), raw.clamp(-1, 1), rtol=1e-5, atol=1e-7)


LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("bound", [np.inf, LARGEST])
def test_a_dimension_without_bounds_is_left_in_its_own_units(bound):
    # both bounds, one bound or an infinite bound: raw values are the action, clipped at finite bounds
    space = Box(np.array([-bound, 0.0, -2.0], np.float32), np.array([bound, bound, 2.0], np.float32))
    distribution = make_distribution(space)
    raw = torch.tensor([[5.0, 3.0, 0.5], [-7.0, -3.0, 3.0]])
    np.testing.assert_array_equal(distribution.to_env(raw), [[5, 3, 1], [-7, 0, 2]])
    np.testing.assert_array_equal(distribution.unbounded(raw), [[5, 3, 1], [-7, -3, 6]])
    log_prob, _ = distribution.evaluate(raw, raw)
    # at the mode: -log(sqrt(2 pi)) a dimension, and half-widths of 1, 1 and 2
    torch.testing.assert_close(log_prob, torch.full((2,), -1.5 * math.log(2 * math.pi) - math.log(2.0)))
    with pytest.raises(ConfigurationError, match="squash_output=True needs finite bounds, but action_space=Box"):
        make_distribution(space, squash=True)


@pytest.mark.parametrize("squash", [False, True])
def test_a_dimension_with_one_legal_number_always_is_that_number(squash):
    space = Box(np.array([3.0, -1.0], np.float32), np.array([3.0, 1.0], np.float32))
    distribution = make_distribution(space, squash=squash)
    actions = distribution.to_env(torch.tensor([[9.0, 0.0], [-9.0, 0.0]]))
    np.testing.assert_array_equal(actions, [[3, 0], [3, 0]])
    log_prob, entropy = distribution.evaluate(torch.zeros(1, 2), torch.zeros(1, 2))
    assert math.isfinite(log_prob.item())
    assert math.isfinite(entropy.item())


def test_huge_bounds_do_not_overflow():
    distribution = make_distribution(Box(-1e29, 1e29, (1,), np.float64))
    np.testing.assert_allclose(distribution.to_env(torch.tensor([[0.5]])), [[5e28]])


def test_the_initial_standard_deviation_is_the_setting():
    distribution = make_distribution(Box(-1, 1, (2,)), log_std=-1.5)
    assert torch.equal(distribution.log_std.detach(), torch.full((2,), -1.5))


def test_other_spaces_are_refused():
    with pytest.raises(ConfigurationError, match="allowed are Discrete, MultiDiscrete, MultiBinary and Box"):
        make_distribution(gymnasium.spaces.Text(3))


@pytest.mark.parametrize(("mean", "log_std", "error"), [(6.0, -1.0, 0.01), (8.0, -1.0, 0.5), (8.0, -2.3, 0.5)])
def test_the_density_of_a_squashed_action_near_a_bound_is_that_of_its_draw(mean, log_std, error):
    distribution = SquashedGaussian(Box(-1.0, 1.0, (1,)))
    outputs, noise = torch.tensor([[mean, log_std]]).repeat(2000, 1), torch.linspace(-3, 3, 2000).unsqueeze(1)
    raw, density = distribution.reparametrized(outputs, noise)
    assert abs(float((distribution.evaluate(outputs, raw)[0] - density).mean())) < error
