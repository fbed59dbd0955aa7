"""CMA-ES (Hansen 2016, arXiv:1604.00772) of a network's weights, through the package `cmaes`.

Samples are drawn from a seed and not from the package's generator, and all of the state that an update changes is read
and set here, so that a search continues to the bit. Needs the extra `cmaes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.perturbations import RETURN_METRICS, ReturnsUpdate, centred_ranks, within_instances
from agilerl_like.learning.stacked_networks import StackedNetworks

MOST_WEIGHTS = 2_000
"""The covariance of so many weights takes 32 MB, and its decomposition a second."""
LEAST_AXIS = 1e-4
"""The length that the package gives to axes whose square rounding has made negative."""
METRICS = (*RETURN_METRICS, "sigma")
STATE = ("mean", "C", "B", "D", "p_sigma", "pc", "sigma", "g")
"""The package's names, behind an underscore, of what an update changes; B and D are the decomposition of C."""


def new_search(mean: np.ndarray, sigma: float, rows: int) -> Any:
    """Return the package's search around a mean, with `rows` samples in a generation.

    Raises:
        ConfigurationError: the package is not installed.
    """
    try:
        from cmaes import CMA  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ConfigurationError("CMAES needs one more package: pip install 'agilerl-like[cmaes]'") from error
    return CMA(mean.astype(np.float64), float(sigma), population_size=rows)


class CovarianceSearch:
    """The mean, the covariance and the step size of one member."""

    def __init__(self, weights: np.ndarray, sigma: float, rows: int, *, given_sigma: float) -> None:
        self._cma = new_search(weights, sigma, rows)
        self._decompose()
        self.given_sigma = given_sigma
        """The setting `sigma` that the search began with."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the state: the package stores one half of the covariance, which rounding distinguishes."""
        return CovarianceSearch.from_tensors, (self.tensors(), self.rows)

    @property
    def sigma(self) -> float:
        """The step size."""
        return float(self._cma._sigma)

    @property
    def weights(self) -> np.ndarray:
        """The mean, as float32."""
        return self._cma.mean.astype(np.float32)

    @property
    def rows(self) -> int:
        """Samples in a generation."""
        return self._cma.population_size

    @property
    def generation(self) -> int:
        """Generations that were learned from."""
        return self._cma.generation

    def offsets(self, seed: int) -> np.ndarray:
        """Return the differences of this generation's samples from the mean, `[rows, N]`."""
        normal = np.random.Generator(np.random.Philox(seed)).standard_normal((self.rows, self._cma.dim))
        return self._cma._sigma * (normal * self._cma._D) @ self._cma._B.T

    def learn(self, seed: int, scores: np.ndarray, first: int = 0) -> None:
        """Move mean, covariance and step size by the scores `[rows]` of this generation's samples.

        Of samples with equal scores the earlier ones count more; their order begins with number `first`.
        """
        samples = self._cma.mean + self.offsets(seed)
        order = np.roll(np.arange(self.rows), -first)
        self._cma.tell([(samples[row], -float(scores[row])) for row in order])
        self._decompose()

    def _decompose(self) -> None:
        """Compute B and D from C; an axis of 0, by which an update would divide, gets the least length.

        The package does so for axes whose square rounding has made negative, and not for those of 0.
        """
        cma = self._cma
        basis, axes = cma._eigen_decomposition()
        if not axes.all():
            cma._D = np.where(axes == 0, LEAST_AXIS, axes)
            cma._C = basis @ np.diag(cma._D**2) @ basis.T

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, in float64."""
        state = {name: np.atleast_1d(getattr(self._cma, f"_{name}")).astype(np.float64) for name in STATE}
        return {name: torch.from_numpy(array.copy()) for name, array in state.items()} | {
            "given_sigma": torch.tensor([self.given_sigma], dtype=torch.float64)
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], rows: int) -> CovarianceSearch:
        """Return the search that `tensors` described.

        Raises:
            ValueError: a step size or an axis is not positive.
        """
        state = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        if not all((state[name] > 0).all() for name in ("sigma", "given_sigma", "D")):
            raise ValueError("cma.sigma, cma.given_sigma and cma.D must be positive")
        search = cls(state["mean"], float(state["sigma"][0]), rows, given_sigma=float(state["given_sigma"][0]))
        for name in STATE:
            value = state[name]
            setattr(search._cma, f"_{name}", int(value[0]) if name == "g" else value[0] if name == "sigma" else value)
        return search

    @staticmethod
    def shapes(weights: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of `tensors` for so many weights."""
        square = dict.fromkeys("CB", (weights, weights))
        return {name: square.get(name, (1,) if name in ("sigma", "g") else (weights,)) for name in STATE} | {
            "given_sigma": (1,)
        }


@dataclass(frozen=True, kw_only=True)
class CovarianceUpdate(ReturnsUpdate):
    """One generation of each member's search."""

    searches: Sequence[CovarianceSearch]
    seeds: Sequence[int]
    sigmas: Sequence[float]
    """The step size with which each member's samples were drawn; if its search has another one now, it was restarted
    meanwhile, and these returns are dropped."""

    def of_members(self, members: Tensor) -> CovarianceUpdate:
        names = ("searches", "seeds", "sigmas")
        lists = {name: [getattr(self, name)[member] for member in members.tolist()] for name in names}
        return replace(super().of_members(members), **lists)

    def take_step(self, stacked: StackedNetworks) -> Mapping[str, Tensor]:
        scores = within_instances(centred_ranks, self.returns, self.instances).cpu().numpy()
        are_finite = torch.isfinite(self.returns).all(1).tolist()
        for here, stack in stacked.parts:
            for row in range(here.start, here.stop):
                search = self.searches[row]
                if search.sigma == self.sigmas[row] and are_finite[row]:
                    # instances have equal ranks; each in turn has the samples that count more among equal ones
                    search.learn(self.seeds[row], scores[row], first=search.generation % self.instances)
                weights = torch.from_numpy(search.weights).to(stacked.flat)
                stacked.flat[row].index_copy_(0, stack.param_indices(row - here.start), weights)
        return {"sigma": torch.tensor([search.sigma for search in self.searches], device=stacked.flat.device)}
