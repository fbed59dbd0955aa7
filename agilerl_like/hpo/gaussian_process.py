"""A Gaussian process whose function changes over time, in float64 numpy; for a few hundred rows."""

from __future__ import annotations

from functools import cache

import numpy as np

LENGTHS = (0.1, 0.2, 0.4, 0.8)
"""Candidate length scales, for inputs in [0, 1]."""
FORGETTING = (0.0, 0.02, 0.1, 0.3)
"""Candidate rates: the correlation of equal inputs a generation apart is sqrt(1 - rate)."""
NOISES = (0.02, 0.1, 0.4, 0.8)
"""Candidate variances of the noise, where the whole variance is 1."""


class GaussianProcess:
    """The posterior given inputs `[N, D]` in [0, 1], their times `[N]` and outputs `[N]`.

    Outputs are standardized and clipped to two deviations, because a single diverging member must not determine the
    scale. Length, forgetting and noise are those of the largest marginal likelihood on a grid.
    """

    def __init__(self, inputs: np.ndarray, times: np.ndarray, outputs: np.ndarray) -> None:
        self.inputs, self.times = np.atleast_2d(inputs).astype(float), np.asarray(times, dtype=float)
        outputs = np.asarray(outputs, dtype=float)
        self.mean, self.scale = float(outputs.mean()), float(outputs.std()) or 1.0
        self.outputs = np.clip((outputs - self.mean) / self.scale, -2.0, 2.0)
        self._squares = _squared_distances(self.inputs, self.inputs)
        self._lags = np.abs(self.times[:, None] - self.times)
        self.length, self.forgetting, self.noise = self._fit()
        self._condition()

    def _fit(self) -> tuple[float, float, float]:
        """Return length, forgetting and noise of the largest marginal likelihood found by changing one at a time."""
        likelihood = cache(self._log_likelihood)
        length, forgetting, noise = LENGTHS[2], FORGETTING[1], NOISES[1]
        for _ in range(2):
            length = max(LENGTHS, key=lambda its: likelihood(its, forgetting, noise))
            forgetting = max(FORGETTING, key=lambda its: likelihood(length, its, noise))
            noise = max(NOISES, key=lambda its: likelihood(length, forgetting, its))
        return length, forgetting, noise

    def _condition(self) -> None:
        """Invert the covariance of the rows."""
        self._inverse = np.linalg.inv(self._covariance(self.length, self.forgetting, self.noise))
        self._weights = self._inverse @ self.outputs

    def _covariance(self, length: float, forgetting: float, noise: float) -> np.ndarray:
        kernel = (1 - noise) * _kernel(self._squares, self._lags, length, forgetting)
        return kernel + (noise + 1e-9) * np.eye(len(kernel))

    def _log_likelihood(self, length: float, forgetting: float, noise: float) -> float:
        covariance = self._covariance(length, forgetting, noise)
        half_log_determinant = np.log(np.diag(np.linalg.cholesky(covariance))).sum()
        return float(-0.5 * self.outputs @ np.linalg.solve(covariance, self.outputs) - half_log_determinant)

    def _covariance_with(self, inputs: np.ndarray, times: np.ndarray) -> np.ndarray:
        squares = _squared_distances(np.atleast_2d(inputs), self.inputs)
        lags = np.abs(np.asarray(times, dtype=float)[:, None] - self.times)
        return (1 - self.noise) * _kernel(squares, lags, self.length, self.forgetting)

    def predict(self, inputs: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation `[M]` of the function, without noise, in units of the outputs."""
        across = self._covariance_with(inputs, times)
        explained = (across @ self._inverse * across).sum(axis=1)
        spread = np.sqrt(np.maximum(1 - self.noise - explained, 1e-12))
        return self.mean + self.scale * (across @ self._weights), self.scale * spread

    def with_pending(self, inputs: np.ndarray, times: np.ndarray) -> GaussianProcess:
        """Return the process after rows whose outputs are not known: the mean stays, the spread falls near them."""
        if not len(inputs):
            return self
        after = GaussianProcess.__new__(GaussianProcess)
        after.__dict__.update(self.__dict__)
        mean, _ = self.predict(inputs, times)
        after.inputs = np.concatenate([self.inputs, np.atleast_2d(inputs)])
        after.times = np.concatenate([self.times, np.asarray(times, dtype=float)])
        after.outputs = np.concatenate([self.outputs, (mean - self.mean) / self.scale])
        after._squares = _squared_distances(after.inputs, after.inputs)
        after._lags = np.abs(after.times[:, None] - after.times)
        after._condition()
        return after


def _kernel(squares: np.ndarray, lags: np.ndarray, length: float, forgetting: float) -> np.ndarray:
    return np.exp(-0.5 * squares / length**2) * (1 - forgetting) ** (lags / 2)


def _squared_distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    return np.maximum(squares, 0.0)
