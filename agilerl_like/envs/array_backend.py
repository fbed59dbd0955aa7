"""What stepping needs of arrays, once for numpy and once for torch, so that nobody else asks which kind an env returns.

The subtlety is `maybe_any`. Looking into numpy is free. Looking into a tensor on an accelerator waits for everything that
was asked of it before, so for tensors `maybe_any` says yes without looking: what stands behind it must be right, if idle,
where no flag is set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.spaces import Leaf, ObservationEncoder
from agilerl_like.errors import ConfigurationError

Array = Any  # np.ndarray or torch.Tensor: all arrays of one Transition are of one kind


class ArrayBackend(ABC):
    """One kind of arrays."""

    @abstractmethod
    def to_float32(self, given: Any, *, copy: bool) -> Array:
        """Return float32 numbers; with `copy` never the very array that came in."""

    @abstractmethod
    def to_bool(self, given: Any, *, copy: bool) -> Array:
        """Return booleans; with `copy` never the very array that came in."""

    @abstractmethod
    def zeros(self, *shape: int, dtype: type[np.generic]) -> Array:
        """Return zeros of one of numpy's types."""

    @abstractmethod
    def copy(self, tree: Tree) -> Tree:
        """Copy every array of a tree."""

    @abstractmethod
    def maybe_any(self, flags: Array) -> bool:
        """Say whether some flag may be set; numpy knows, a tensor is not looked into."""

    @abstractmethod
    def where(self, flags: Array, yes: Tree, no: Tree) -> Tree:
        """Take the rows of `yes` where flags [N] are set and those of `no` elsewhere."""

    @abstractmethod
    def from_numpy(self, array: np.ndarray) -> Array:
        """Return what numpy holds as this kind."""

    @abstractmethod
    def to_env_actions(self, given: Any) -> Any:
        """Return actions as the env takes them; from a tensor to numpy this is the exchange with the host."""

    @abstractmethod
    def make_encode_fn(self, encoding: ObservationEncoder) -> Callable[[Tree], Tensor]:
        """Return what turns observations into rows `[..., size]`, on the device that they are on."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray:
        """Return numpy, waiting for the device if it has to be."""


class NumpyBackend(ArrayBackend):
    """numpy."""

    def to_float32(self, given: Any, *, copy: bool) -> np.ndarray:
        return np.array(given, dtype=np.float32) if copy else np.asarray(given, dtype=np.float32)

    def to_bool(self, given: Any, *, copy: bool) -> np.ndarray:
        return np.array(given, dtype=np.bool_) if copy else np.asarray(given, dtype=np.bool_)

    def zeros(self, *shape: int, dtype: type[np.generic]) -> np.ndarray:
        return np.zeros(shape, dtype=dtype)

    def copy(self, tree: Tree) -> Tree:
        return tree_map(np.array, tree)

    def maybe_any(self, flags: np.ndarray) -> bool:
        return bool(np.count_nonzero(flags))

    def where(self, flags: np.ndarray, yes: Tree, no: Tree) -> Tree:
        def pick(one: np.ndarray, other: Any) -> np.ndarray:
            return np.where(flags if one.ndim == 1 else flags.reshape(-1, *(1,) * (one.ndim - 1)), one, other)

        return pick(yes, no) if isinstance(yes, np.ndarray) else tree_map(pick, yes, no)

    def from_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_env_actions(self, given: Any) -> Any:
        return given.cpu().numpy() if isinstance(given, Tensor) else given

    def make_encode_fn(self, encoding: ObservationEncoder) -> Callable[[Tree], Tensor]:
        return lambda observations: torch.from_numpy(encoding.encode(observations))

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array


class TorchBackend(ArrayBackend):
    """torch, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_float32(self, given: Any, *, copy: bool) -> Tensor:
        return self._tensor(given, np.float32).to(torch.float32, copy=copy)

    def to_bool(self, given: Any, *, copy: bool) -> Tensor:
        return self._tensor(given, np.bool_).to(torch.bool, copy=copy)

    def _tensor(self, given: Any, dtype: type[np.generic]) -> Tensor:
        """Whatever an env of tensors tells on the host, masks for example, on its device."""
        return given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, dtype)).to(self.device)

    def zeros(self, *shape: int, dtype: type[np.generic]) -> Tensor:
        return torch.zeros(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=self.device)

    def copy(self, tree: Tree) -> Tree:
        return tree_map(torch.clone, tree)

    def maybe_any(self, flags: Tensor) -> bool:
        return True

    def where(self, flags: Tensor, yes: Tree, no: Tree) -> Tree:
        def pick(one: Tensor, other: Any) -> Tensor:
            return torch.where(flags.reshape(-1, *(1,) * (one.dim() - 1)), one, other)

        return tree_map(pick, yes, no)

    def from_numpy(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def to_env_actions(self, given: Any) -> Tensor:
        return torch.as_tensor(given, device=self.device)

    def make_encode_fn(self, encoding: ObservationEncoder) -> Callable[[Tree], Tensor]:
        parts = [(leaf, self._leaf_encode_fn(leaf)) for leaf in encoding.leaves]
        return lambda observations: encoding.join([part(leaf.get(observations)) for leaf, part in parts], torch)

    def _leaf_encode_fn(self, leaf: Leaf) -> Callable[[Tensor], Tensor]:
        """Return what turns arrays of a leaf into its part of rows, as `Leaf.encode` does it."""
        if not leaf.counts.size:
            dtype = torch.uint8 if leaf.is_uint8 else torch.float32
            return lambda numbers: numbers.to(dtype).reshape(*leaf.batch_shape(numbers.shape), leaf.size)
        counts, starts, places = (
            torch.from_numpy(part).to(self.device) for part in (leaf.counts, leaf.starts, leaf.places)
        )

        def one_hot(given: Tensor) -> Tensor:
            batch_shape = leaf.batch_shape(given.shape)
            categories = given.reshape(-1, len(counts)).long() - starts
            outside = (categories < 0) | (categories >= counts)
            rows = torch.zeros(len(categories), leaf.size, device=self.device)
            rows.scatter_(1, places + categories.clamp(min=0).minimum(counts - 1), 1.0)
            # to raise an error here would wait for the device; learning looks for numbers that are not finite
            rows.masked_fill_(outside.any(1, keepdim=True), torch.nan)
            return rows.reshape(*batch_shape, leaf.size)

        return one_hot

    def to_numpy(self, array: Tensor) -> np.ndarray:
        return array.cpu().numpy()


def array_backend_of(observations: Tree) -> ArrayBackend:
    """Return the kind of arrays that observations are of.

    Raises:
        ConfigurationError: neither numpy nor torch.
    """
    leaf = observations
    while isinstance(leaf, (Mapping, tuple)) and leaf:
        leaf = next(iter(leaf.values())) if isinstance(leaf, Mapping) else leaf[0]
    if isinstance(leaf, Tensor):
        return TorchBackend(leaf.device)
    if isinstance(leaf, np.ndarray):
        return NumpyBackend()
    raise ConfigurationError(
        f"the env's observations are a {type(leaf).__module__}.{type(leaf).__name__}; allowed are numpy arrays and "
        "torch tensors (gymnasium.wrappers.vector.JaxToTorch makes tensors of jax arrays)"
    )
