"""The array operations that stepping needs, once for numpy and once for torch.

The subtlety is `maybe_any`. Reading a numpy array is free; reading a tensor on an accelerator waits for all work queued
before it. `TorchBackend.maybe_any` therefore returns True without reading the tensor, so the code that it guards must
also be correct where no flag is set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.spaces import Leaf, ObservationEncoder
from agilerl_like.errors import ConfigurationError, EnvStepError

Array = Any  # np.ndarray or torch.Tensor: all arrays of one Transition have the same type
DType = type[np.generic]

_TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.int64: torch.int64,
    np.bool_: torch.bool,
}


class ArrayBackend(ABC):
    """Operations on one type of arrays."""

    @abstractmethod
    def as_array(self, given: Any, dtype: DType, *, copy: bool) -> Array:
        """Convert to an array of a dtype; with `copy` the result never shares memory with the argument."""

    @abstractmethod
    def zeros(self, *shape: int, dtype: DType) -> Array:
        """Return zeros."""

    @abstractmethod
    def copy(self, tree: Tree) -> Tree:
        """Copy every array of a tree."""

    @abstractmethod
    def maybe_any(self, flags: Array) -> bool:
        """Return whether any flag may be set; exact for numpy, always True for torch."""

    @abstractmethod
    def where(self, flags: Array, yes: Tree, no: Tree) -> Tree:
        """Return the rows of `yes` where flags [N] are set and those of `no` elsewhere."""

    @abstractmethod
    def from_numpy(self, array: np.ndarray) -> Array:
        """Convert a numpy array."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray:
        """Convert to numpy; waits for the device if there is one."""

    @abstractmethod
    def to_env_actions(self, given: Any) -> Any:
        """Convert actions to the type that the env takes; from a tensor to numpy this is the transfer to the host."""

    @abstractmethod
    def make_encode_fn(self, encoding: ObservationEncoder | AsymmetricEncoder) -> Callable[[Tree], Tensor]:
        """Return a function that encodes observations as rows `[..., size]` on the device that they are on."""


class NumpyBackend(ArrayBackend):
    """numpy."""

    def as_array(self, given: Any, dtype: DType, *, copy: bool) -> np.ndarray:
        return np.array(given, dtype=dtype) if copy else np.asarray(given, dtype=dtype)

    def zeros(self, *shape: int, dtype: DType) -> np.ndarray:
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

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_env_actions(self, given: Any) -> Any:
        return given.cpu().numpy() if isinstance(given, Tensor) else given

    def make_encode_fn(self, encoding: ObservationEncoder | AsymmetricEncoder) -> Callable[[Tree], Tensor]:
        return lambda observations: torch.from_numpy(encoding.encode(observations))


class TorchBackend(ArrayBackend):
    """torch, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def as_array(self, given: Any, dtype: DType, *, copy: bool) -> Tensor:
        if not isinstance(given, Tensor):  # an env of tensors may return masks, for example, on the host
            return torch.from_numpy(np.array(given, dtype)).to(self.device)
        return given.to(_TORCH_DTYPES[dtype], copy=copy)

    def zeros(self, *shape: int, dtype: DType) -> Tensor:
        return torch.zeros(shape, dtype=_TORCH_DTYPES[dtype], device=self.device)

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

    def to_numpy(self, array: Tensor) -> np.ndarray:
        return array.cpu().numpy()

    def to_env_actions(self, given: Any) -> Tensor:
        return torch.as_tensor(given, device=self.device)

    def make_encode_fn(self, encoding: ObservationEncoder | AsymmetricEncoder) -> Callable[[Tree], Tensor]:
        if isinstance(encoding, AsymmetricEncoder):
            both = [self.make_encode_fn(part) for part in encoding.parts]
            return lambda observations: encoding.join([encode(observations) for encode in both], torch)
        leaves = [(leaf, self._leaf_encode_fn(leaf)) for leaf in encoding.leaves]

        def encode_all(observations: Tree) -> Tensor:
            own = encoding.select(observations)
            return encoding.join([encode(leaf.get(own)) for leaf, encode in leaves], torch)

        return encode_all

    def _leaf_encode_fn(self, leaf: Leaf) -> Callable[[Tensor], Tensor]:
        """Return the counterpart of `leaf.encode` for tensors.

        It does not read values, which would wait for the device, so floats in the place of bytes or categories are an
        EnvStepError, also where they are whole numbers.
        """
        if leaf.is_uint8:
            return lambda values: (
                _whole_numbers(leaf, values).to(torch.uint8).reshape(*leaf.batch_shape(values.shape), leaf.size)
            )
        if not leaf.counts.size:
            return lambda values: values.to(torch.float32).reshape(*leaf.batch_shape(values.shape), leaf.size)
        counts, starts, places = (
            torch.from_numpy(array).to(self.device) for array in (leaf.counts, leaf.starts, leaf.places)
        )

        def encode_categories(given: Tensor) -> Tensor:
            batch_shape = leaf.batch_shape(given.shape)
            categories = _whole_numbers(leaf, given).reshape(-1, len(counts)).long() - starts
            outside = (categories < 0) | (categories >= counts)
            if leaf.is_one_hot:
                rows = torch.zeros(len(categories), leaf.size, device=self.device)
                rows.scatter_(1, places + categories.clamp(min=0).minimum(counts - 1), 1.0)
            else:
                rows = categories.float()
            # raising an error here would wait for the device; `learn` checks that observations are finite
            rows.masked_fill_(outside.any(1, keepdim=True), torch.nan)
            return rows.reshape(*batch_shape, leaf.size)

        return encode_categories


def _whole_numbers(leaf: Leaf, values: Tensor) -> Tensor:
    """Return the values of a leaf; EnvStepError if they are floats or complex numbers, which the cast would round."""
    if values.is_floating_point() or values.is_complex():
        allowed = "from 0 to 255" if leaf.is_uint8 else f"that lie in {leaf.space}"
        raise EnvStepError(f"{leaf.title} has dtype {values.dtype}; allowed are whole numbers {allowed}")
    return values


def resolve_device(device: Any) -> torch.device:
    """Return the device of that name.

    Raises:
        ConfigurationError: this machine lacks it, or it has no float64 (mps), in which statistics are computed.
    """
    try:
        found = torch.device(device)
        torch.empty(1, dtype=torch.float64, device=found)
    except Exception as error:  # RuntimeError, AssertionError, NotImplementedError, TypeError, …
        allowed = ", ".join(map(repr, ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]))
        raise ConfigurationError(
            f"device={str(device)!r} cannot be used: {str(error).splitlines()[0]:.100}; allowed here: {allowed}"
        ) from error
    return found


def device_from(device: Any, accelerator: Any) -> Any:
    """Return the device of a script's `accelerate.Accelerator`, or `device` without one.

    Raises:
        ConfigurationError: `accelerator` is something else.
    """
    if accelerator is None:
        return device
    if not isinstance(getattr(accelerator, "device", None), torch.device):
        raise ConfigurationError(f"accelerator={accelerator!r:.100} must be an accelerate.Accelerator")
    return accelerator.device


def array_backend_of(observations: Tree) -> ArrayBackend:
    """Return the backend for the arrays of an observation tree.

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
