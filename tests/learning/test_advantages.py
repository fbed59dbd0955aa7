"""Samples made of a rollout: what is standardised, and what must not become noise."""

import pytest
import torch

from agilerl_like.learning.advantages import standardised


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
