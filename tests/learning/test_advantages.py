"""Samples made of a rollout: what is standardised, and what must not become noise."""

import pytest
import torch
from learner_examples import member, rollout_of
from recurrent_examples import network_of, spec_of, world_of

from agilerl_like.learning.advantages import (
    AdvantageEstimator,
    _explained_variance,
    compute_advantages,
    standardised,
)
from agilerl_like.learning.rollout_buffer import FinalObservations
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.modules import ParamStack
from agilerl_like.networks.recurrent_state import NO_SEQUENCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, -1e4])
def test_equal_advantages_are_normalised_to_zero(value, dtype):
    weight = (torch.arange(1000) % 3 > 0).to(dtype).repeat(2, 1)
    assert bool((standardised(torch.full((2, 1000), value, dtype=dtype), weight) == 0).all())


def test_a_single_sample_stays_as_it_is():
    x, weight = torch.tensor([[3.0, 5.0, 7.0]] * 2), torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    found = standardised(x, weight)
    assert found[0, 1] == 5.0
    assert found[1, :2].tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (100.0, 0.01), (-3.0, 1e-3)])
def test_advantages_are_standardised_over_valid_samples(mean, std):
    generator = torch.Generator().manual_seed(0)
    x = mean + std * torch.randn(2, 5000, generator=generator, dtype=torch.float64)
    weight = (torch.rand(2, 5000, generator=generator) < 0.7).double()
    found = standardised(torch.where(weight > 0, x, 1e6), weight)
    for row, its in zip(found, weight, strict=True):
        counted = row[its > 0]
        assert abs(float(counted.mean())) < 1e-6
        assert float(counted.std(correction=0)) == pytest.approx(1.0, abs=2e-5)


def test_the_explained_variance_of_returns_that_differ_by_rounding_is_nan():
    values = torch.linspace(-1, 1, 1000).unsqueeze(0)
    weight = torch.ones_like(values)
    returns = (0.1 - values) + values
    assert returns.std() > 0
    assert _explained_variance(values, returns, weight).isnan().all()
    assert _explained_variance(values, 0.1 + 1e-4 * values, weight).item() == pytest.approx(1 - 9999**2, rel=1e-3)
    weight[:, 500:] = 0.0
    varied = torch.where(weight > 0, returns, 1e6)
    assert _explained_variance(values, varied, weight).isnan().all()


@torch.no_grad()
def test_old_values_are_the_outputs_of_the_critic_although_its_statistics_change():
    """A value that is clipped begins at the value that it is compared with, before the first gradient step."""
    module = ParamStack.of([member(seed)[0] for seed in range(2)]).module
    estimator = AdvantageEstimator(torch.full((2,), 0.9).double(), torch.full((2,), 0.8).double())
    for update in range(2):
        rollout = rollout_of(2, seed=update)
        rollout.rewards *= 10.0**update
        before = module.value_norm.scale.clone()
        batch, _ = compute_advantages(module, rollout, estimator, cut=SINGLE_STEP)
        assert not torch.allclose(before, module.value_norm.scale, rtol=0.1)
        _, values = module.evaluate(batch.observations.flatten(1, 2), NO_SEQUENCE)
        torch.testing.assert_close(batch.old_values.flatten(1), values)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["LSTM", "transformer"])
def test_a_stack_may_be_without_truncated_episodes_where_another_has_them(cell):
    network = network_of(spec_of(cell), 0)
    module = ParamStack.of([network]).module
    rollout = world_of(0, 1, 2, 6, "next step", network.state_shape).rollout
    index = torch.full((1, 2), -1)
    padding = FinalObservations(
        time=index, env=torch.zeros_like(index), observations=torch.zeros(1, 2, 3).double(), batch_size=[1]
    )
    estimator = AdvantageEstimator(torch.full((1,), 0.9).double(), torch.full((1,), 0.8).double())
    found, expected = (
        compute_advantages(module, its, estimator, cut=SequenceSplit(6, 6))[0].returns
        for its in (rollout.replace(final_observations=padding), rollout)
    )
    assert torch.equal(found, expected)
