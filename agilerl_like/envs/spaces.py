"""Observation and action spaces: validation, encoding of observations as rows, and spaces as JSON.

`ObservationEncoder` encodes an observation of any space, however nested, as one flat row. Categories are one-hot and
never numbers, because action 3 is not three times action 1; `Discrete(n, start)` counts from `start`, which is
subtracted first.

The subtlety is images. As float32 they would need four times the memory, so a space with a uint8 image has rows of
bytes: first the float32 values of everything else, four bytes each, then the bytes of the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor

from agilerl_like.envs.image_layout import channel_layout
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.errors import ConfigurationError, EnvStepError

__all__ = [
    "Leaf",
    "ObservationEncoder",
    "Tree",
    "check_action_space",
    "check_observation_space",
    "mask_size",
    "space_from_json",
    "space_to_json",
    "tree_map",
]

MAX_DEPTH = 3
"""Maximal nesting of Dict and Tuple in an observation space."""

MAX_SPAN = 2.0**24
"""Bounds further apart count as unbounded: float32 cannot represent all whole numbers between them."""

FLOAT32_BYTES = 4
IMAGE_SIDE = 8
"""The smallest side of a uint8 Box of two dimensions that is taken for an image by mistake."""

Path = tuple[str | int, ...]
Kind = Literal["vector", "image", "categories"]


OF_AN_ENV = (
    ", such as env.single_observation_space of make_vect_envs(…). The policies of Stable-Baselines3 are no arguments "
    "here: the networks follow from the spaces, and net_config changes them"
)
"""A hint for those who call an algorithm as `PPO("MlpPolicy", env)`."""


def check_observation_space(space: Space, path: Path = ()) -> None:
    """Raise ConfigurationError unless agents can observe this space, which is found at a `path` of keys."""
    here = f"{'.'.join(('observation_space', *map(str, path)))}={space}"
    if isinstance(space, (Dict, Tuple)):
        if not len(space.spaces):
            raise ConfigurationError(f"{here} is empty; allowed are {type(space).__name__}s of at least one space")
        if len(path) >= MAX_DEPTH:
            raise ConfigurationError(
                f"{here} is nested too deep; allowed are at most {MAX_DEPTH} levels of Dict and Tuple"
            )
        for key, child in children(space):
            if isinstance(space, Dict) and not (isinstance(key, str) and key and "." not in key):
                raise ConfigurationError(f"{here} has the key {key!r}; allowed are strings without a dot in them")
            check_observation_space(child, (*path, key))
    elif not isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary)):
        raise ConfigurationError(
            f"{here} is a {type(space).__name__}; allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and "
            f"Tuple of these{OF_AN_ENV if isinstance(space, str) else ''}"
        )
    elif isinstance(space, Box) and (len(space.shape) > 4 or np.dtype(space.dtype).kind not in "fiub"):
        raise ConfigurationError(
            f"{here} has {len(space.shape)} dimensions of {space.dtype}; allowed are vectors (0 to 2 dimensions) and "
            "images (3 or 4, with that of the channels) of real numbers"
        )
    elif math.prod(space.shape or ()) == 0:
        raise ConfigurationError(f"{here} has shape {space.shape}; allowed are shapes with at least one number")


def children(space: Any) -> Iterable[tuple[str | int, Space]]:
    """Return the parts of a Dict or Tuple with their keys."""
    return space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)


def check_action_space(space: Space) -> None:
    """Raise ConfigurationError unless agents can act in this space."""
    allowed = "allowed are Discrete, MultiDiscrete (one-dimensional), MultiBinary and Box of floats"
    if isinstance(space, Box):
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigurationError(f"action_space={space} is a Box of {space.dtype}; {allowed}")
        if math.prod(space.shape) == 0:
            raise ConfigurationError(f"action_space={space} has no numbers to choose; {allowed}")
    elif isinstance(space, MultiDiscrete):
        if space.nvec.ndim != 1:
            raise ConfigurationError(f"action_space={space} has {space.nvec.ndim} dimensions; {allowed}")
    elif not isinstance(space, (Discrete, MultiBinary)):
        raise ConfigurationError(f"action_space={space} is a {type(space).__name__}; {allowed}")


def mask_size(space: Space) -> int:
    """Return the number of booleans in an action mask of this space; 0 where actions cannot be masked.

    Discrete(n): n, one per action. MultiDiscrete: sum(nvec), the choices concatenated. MultiBinary(n): n, False where
    the bit must stay 0.
    """
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, MultiBinary):
        return math.prod(space.shape)
    return 0


def legal_actions(space: Space, actions: np.ndarray) -> tuple[np.ndarray, str]:
    """Return flags `[N, size]` of the numbers in `actions` `[N, size]` that the space allows, and their description.

    A Box allows every finite number, since actions beyond its bounds are clipped.
    """
    if isinstance(space, Box):
        return np.isfinite(actions), "finite numbers"
    count, first = (2, 0) if isinstance(space, MultiBinary) else _categories(space)
    return (actions == np.floor(actions)) & (actions >= first) & (actions < first + count), f"those of {space}"


@dataclass(frozen=True, eq=False)
class Leaf:
    """One array of an observation: its place in the tree and in a row, and the form in which a network reads it."""

    path: Path
    """Keys from the root of the tree; empty for a space that is no tree."""
    space: Space
    kind: Kind
    """A Box of up to two dimensions is a vector, one of three or four an image; all else are categories."""
    env_shape: tuple[int, ...]
    """Shape in the env's observations."""
    shape: tuple[int, ...]
    """Shape that a network reads: images with the channels first, all else flat."""
    size: int
    """Number of values."""
    columns: slice
    """Columns of a row."""
    is_uint8: bool
    """Whether a row stores one byte for each value."""
    channels_last: bool
    """Whether it is an image with its channels last, in the env and in the row."""
    low: float
    span: float
    """A network reads (x - low) / span."""
    counts: np.ndarray
    """Number of values of each category; empty for a Box or MultiBinary."""
    starts: np.ndarray
    """First value of each category."""
    places: np.ndarray
    """Offset of each category's one-hot code among the leaf's values."""
    is_one_hot: bool = True
    """Whether categories are one-hot codes; else each is a number from 0 on."""

    @property
    def name(self) -> str:
        """The path in one word, "position.angle"."""
        return ".".join(map(str, self.path))

    @property
    def title(self) -> str:
        """The name in messages."""
        return ".".join(map(str, ("observation", *self.path)))

    @property
    def is_identity(self) -> bool:
        """Whether a network reads the values unscaled."""
        return (self.low, self.span) == (0.0, 1.0)

    def read(self, rows: Tensor) -> Tensor:
        """Return what a network reads from rows `[…, D]`: `[…, *shape]`, float32, or of the dtype of float rows."""
        x = rows[..., self.columns]
        if self.is_uint8:
            x = x.to(torch.float32)
        elif not rows.is_floating_point():
            x = x.view(torch.float32)
        if not self.is_identity:  # in place where the cast has made a new tensor: another allocation would be slow
            x = x.sub_(self.low).div_(self.span) if self.is_uint8 else (x - self.low) / self.span
        if self.kind != "image":
            return x
        x = x.unflatten(-1, self.env_shape)
        return x.movedim(-1, -len(self.shape)) if self.channels_last else x

    def get(self, tree: Tree) -> Any:
        """Return the leaf's array in an observation.

        Raises:
            EnvStepError: it is missing.
        """
        try:
            return reduce(lambda branch, key: branch[key], self.path, tree)
        except (KeyError, IndexError, TypeError) as fault:
            raise EnvStepError(f"{self.title} is missing from what the env observed ({fault!r})") from fault

    def batch_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the leading axes of an array of observations of this shape.

        Raises:
            EnvStepError: the other axes are not those of the space.
        """
        axes = len(shape) - len(self.env_shape)
        if shape[axes:] != self.env_shape:
            raise EnvStepError(
                f"{self.title} has shape {tuple(shape)}; allowed is {self.env_shape}, with any axes in front"
            )
        return shape[:axes]

    def encode(self, given: np.ndarray) -> np.ndarray:
        """Encode arrays `[…, *env_shape]` as values `[…, size]`, float32 or uint8; may return the argument itself.

        Raises:
            EnvStepError: another shape, values that are no numbers, a category that is no whole number or outside the
                space, or values of a uint8 image that are no bytes.
        """
        batch_shape = self.batch_shape(given.shape)
        if self.counts.size:
            return self._one_hot(given).reshape(*batch_shape, self.size)
        if self.is_uint8:
            return self._to_uint8(given).reshape(*batch_shape, self.size)
        if given.dtype.kind == "c":  # whose imaginary part a cast would drop
            raise EnvStepError(f"{self.title} has dtype {given.dtype}; allowed are real numbers")
        try:
            return given.astype(np.float32, copy=False).reshape(*batch_shape, self.size)
        except (TypeError, ValueError) as fault:
            raise EnvStepError(f"{self.title} has dtype {given.dtype}; allowed are numbers ({fault})") from fault

    def _to_uint8(self, given: np.ndarray) -> np.ndarray:
        if given.dtype == np.uint8:
            return given
        if given.dtype == np.bool_:
            return given.view(np.uint8)
        if given.dtype.kind not in "iuf":
            raise EnvStepError(f"{self.title} has dtype {given.dtype}; allowed are whole numbers from 0 to 255")
        with np.errstate(invalid="ignore"):
            found = given.astype(np.uint8)
        if (wrong := found != given).any():
            raise EnvStepError(
                f"{self.title} has {given[wrong][0]} among numbers of {given.dtype}; allowed in {self.space} are whole "
                "numbers from 0 to 255"
            )
        return found

    def _one_hot(self, given: np.ndarray) -> np.ndarray:
        if given.dtype.kind not in "iub":
            raise EnvStepError(
                f"{self.title} has dtype {given.dtype}; allowed are whole numbers that lie in {self.space}"
            )
        categories = given.reshape(-1, self.counts.size).astype(np.int64, copy=False) - self.starts  # [B, categories]
        if not ((categories >= 0) & (categories < self.counts)).all():
            raise EnvStepError(f"{self.title}={given} lies outside {self.space}")
        if not self.is_one_hot:
            return categories.astype(np.float32)
        rows = np.zeros((len(categories), self.size), dtype=np.float32)
        rows[np.arange(len(categories))[:, None], categories + self.places] = 1.0
        return rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Leaf:
        """Return the leaf itself: it is immutable, so copies of a network can share it."""
        return self


class ObservationEncoder:
    """Encodes observations of one space as rows `[…, size]`.

    Rows are float32, or uint8 if the space has a uint8 image. Networks read images with the channels first. Whether the
    env has them last, `[H, W, C]`, is inferred from the shapes (`channel_layout`), or `swap_channels` sets it for all
    images (True: last). With `normalize_images` networks read images scaled to [0, 1], where their bounds are finite.
    Without `one_hot` a category is one number, counted from 0, for tables.

    Raises:
        ConfigurationError: agents cannot observe this space.
    """

    def __init__(
        self,
        space: Space,
        *,
        swap_channels: bool | None = None,
        normalize_images: bool = True,
        one_hot: bool = True,
    ) -> None:
        check_observation_space(space)
        self.space, self.one_hot = space, one_hot
        parts = list(_walk(space, ()))
        is_uint8 = [_kind(part) == "image" and part.dtype in (np.uint8, np.bool_) for _, part in parts]
        unit = FLOAT32_BYTES if any(is_uint8) else 1  # columns of a row for one float
        widths = [_width(part, one_hot=one_hot) for _, part in parts]
        self.num_floats = sum(width for width, byte in zip(widths, is_uint8, strict=True) if not byte)
        """Number of float32 values in a row, without the bytes of images."""
        ends = {False: 0, True: unit * self.num_floats}
        leaves = []
        for (path, part), byte, width in zip(parts, is_uint8, widths, strict=True):
            start = ends[byte]
            ends[byte] += width if byte else unit * width
            columns = slice(start, ends[byte])
            channels_last = _kind(part) == "image" and _has_channels_last(part, swap_channels)
            leaves.append(_leaf(path, part, columns, byte, channels_last, normalize_images, one_hot=one_hot))
        self.leaves: tuple[Leaf, ...] = tuple(leaves)
        self.dtype = torch.uint8 if any(is_uint8) else torch.float32
        self.size: int = -(-ends[any(is_uint8)] // unit) * unit
        """Columns of a row; bytes are padded, so that the floats of every row are aligned."""
        self._padding = self.size - ends[any(is_uint8)]
        self._only_leaf = None if self._padding or leaves[0].path else leaves[0]

    is_asymmetric = False
    """Whether the critic reads other observations than the policy (see `envs.critic_observation`)."""

    @property
    def whole(self) -> ObservationEncoder:
        """The encoder of the whole observation."""
        return self

    @property
    def policy(self) -> ObservationEncoder:
        """The encoder of what the policy reads."""
        return self

    @property
    def critic(self) -> ObservationEncoder:
        """The encoder of what the critic reads."""
        return self

    def policy_rows(self, rows: Tensor) -> Tensor:
        """Return the policy's part of rows."""
        return rows

    def critic_rows(self, rows: Tensor) -> Tensor:
        """Return the critic's part of rows."""
        return rows

    def has_critic_part(self, rows: Tensor) -> bool:
        """Whether rows have what the critic reads."""
        return True

    def select(self, observation: Tree) -> Tree:
        """Return the part of an observation that this encoder reads."""
        return observation

    @property
    def swap_channels(self) -> bool | None:
        """Whether its images have their channels last; None if some have and some have not."""
        layouts = {leaf.channels_last for leaf in self.leaves if leaf.kind == "image"}
        return None if len(layouts) > 1 else True in layouts

    @property
    def normalised(self) -> np.ndarray:
        """The floats of a row that running statistics should centre and scale, those of vectors: [num_floats] bool."""
        flags = [np.full(leaf.size, leaf.kind == "vector") for leaf in self.leaves if not leaf.is_uint8]
        return np.concatenate([np.zeros(0, np.bool_), *flags])

    def float_columns(self, rows: Tensor) -> Tensor:
        """Return the float32 values `[…, num_floats]` of rows, as a view; float rows have nothing else."""
        return rows if rows.is_floating_point() else rows[..., : FLOAT32_BYTES * self.num_floats].view(torch.float32)

    def float_titles(self) -> list[str]:
        """Return the title of the leaf that each of `float_columns` belongs to, for messages."""
        return [leaf.title for leaf in self.leaves if not leaf.is_uint8 for _ in range(leaf.size)]

    def encode(self, observation: Tree) -> np.ndarray:
        """Encode observations, whose arrays are `[…, *shape of their space]`, as rows `[…, size]`.

        May return the argument itself.

        Raises:
            EnvStepError: an array is missing or of another shape, or a category lies outside the space.
        """
        observation = self.select(observation)
        if self._only_leaf is not None:
            return self._only_leaf.encode(observation)
        return self.join([leaf.encode(leaf.get(observation)) for leaf in self.leaves], np)

    def join(self, parts: Sequence[Any], xp: Any) -> Any:
        """Return rows from the encoded leaves in their order; `xp` is numpy or torch, the module of their arrays."""
        if self._only_leaf is not None:
            return parts[0]
        batches = {tuple(part.shape[:-1]) for part in parts}
        if len(batches) > 1:
            raise EnvStepError(f"the arrays of one observation have unequal leading axes: {sorted(batches)}")
        floats = [part for leaf, part in zip(self.leaves, parts, strict=True) if not leaf.is_uint8]
        if self.dtype is torch.float32:
            return xp.concatenate(floats, -1)
        images = [part for leaf, part in zip(self.leaves, parts, strict=True) if leaf.is_uint8]
        front = [_contiguous(xp.concatenate(floats, -1)).view(xp.uint8)] if floats else []
        padding = [xp.zeros_like(images[0][..., :1])] * self._padding
        return xp.concatenate([*front, *images, *padding], -1)

    def random_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random rows `[count, size]`: standard normal floats, as if normalised, and bytes within bounds.

        Numbers of categories are within the space.
        """
        floats = torch.randn(count, self.num_floats, generator=generator)
        if not self.one_hot:
            for leaf in self.leaves:
                if leaf.counts.size:
                    shares = torch.rand(count, leaf.size, generator=generator, dtype=torch.float64)
                    floats[:, leaf.columns] = (shares * torch.from_numpy(leaf.counts)).floor().float()
        if self.dtype is torch.float32:
            return floats
        rows = torch.zeros(count, self.size, dtype=torch.uint8)
        self.float_columns(rows).copy_(floats)
        for leaf in self.leaves:
            if leaf.is_uint8 and isinstance(leaf.space, Box):
                low, high = int(leaf.space.low.min()), int(leaf.space.high.max())
                rows[:, leaf.columns] = torch.randint(low, high + 1, (count, leaf.size), generator=generator).byte()
        return rows

    def as_batch(self, observation: Any) -> tuple[Tree, bool]:
        """Return an observation, or a batch of them, as a tree of arrays `[B, …]`, and whether it was a single one.

        Raises:
            ConfigurationError: its structure or a shape does not match the space.
        """
        tree = _to_tree(self.space, self.select(observation))
        batches = set()
        for leaf in self.leaves:
            shape, its = leaf.get(tree).shape, leaf.env_shape
            batches.add(shape[: len(shape) - len(its)])
            if shape[len(shape) - len(its) :] != its or len(shape) > len(its) + 1:
                raise ConfigurationError(
                    f"{leaf.title} has shape {shape}; allowed are {its} and (batch, {', '.join(map(str, its))})"
                )
        if len(batches) > 1:
            raise ConfigurationError(f"the parts of observation have unequal batch sizes: {sorted(batches)}")
        single = batches == {()}
        return (tree_map(lambda array: array[None], tree) if single else tree), single


def _contiguous(array: Any) -> Any:
    """Return the array with rows contiguous in memory; concatenated columns of a transposed array are not."""
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def ambiguous_images(space: Space) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of the images in a space whose channel axis is ambiguous."""
    images = [(path, part.shape or ()) for path, part in _walk(space, ()) if _kind(part) == "image"]
    return [(".".join(map(str, path)), shape) for path, shape in images if channel_layout(shape) == "ambiguous"]


def images_without_channels(space: Space) -> list[tuple[str, tuple[int, ...]]]:
    """Return the titles and shapes of the uint8 Boxes in a space that look like images without an axis for channels."""
    return [
        (f"observation{''.join(f'[{key!r}]' for key in path)}", part.shape)
        for path, part in _walk(space, ())
        if isinstance(part, Box) and part.dtype == np.uint8 and len(part.shape) == 2 and min(part.shape) >= IMAGE_SIDE
    ]


def _has_channels_last(image: Space, swap_channels: bool | None) -> bool:
    return channel_layout(image.shape or ()) == "last" if swap_channels is None else swap_channels


def _walk(space: Space, path: Path) -> Iterator[tuple[Path, Space]]:
    """Yield path and space of every leaf."""
    if isinstance(space, (Dict, Tuple)):
        for key, child in children(space):
            yield from _walk(child, (*path, key))
    else:
        yield path, space


def _to_tree(space: Space, observation: Any, path: Path = ()) -> Tree:
    """Return an observation as a tree of arrays with the keys of its space; further entries are left out.

    Raises:
        ConfigurationError: it has another structure; the message has the title of the part, which is found at `path`.
    """
    title = ".".join(map(str, ("observation", *path)))
    if isinstance(space, Dict):
        keys = ", ".join(map(repr, space.spaces))
        if not isinstance(observation, Mapping):
            raise ConfigurationError(
                f"{title} has type {_described(observation)}; allowed is a dict with the entries {keys}"
            )
        if missing := [key for key in space.spaces if key not in observation]:
            raise ConfigurationError(
                f"{title} has no entry {missing[0]!r} among {', '.join(map(repr, observation))}; required are {keys}"
            )
        return {key: _to_tree(child, observation[key], (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        count = len(space.spaces)
        if not isinstance(observation, (tuple, list, np.ndarray)) or len(observation) != count:
            raise ConfigurationError(f"{title} has type {_described(observation)}; allowed is a tuple of {count} parts")
        return tuple(_to_tree(child, observation[i], (*path, i)) for i, child in enumerate(space.spaces))
    try:
        return np.asarray(observation)
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"{title} has type {_described(observation)}, which is no array ({fault})") from fault


def _described(observation: Any) -> str:
    """Return the type of a value, and its length if it is a sequence."""
    kind = type(observation).__name__
    return f"{kind} with {len(observation)} parts" if isinstance(observation, (tuple, list)) else kind


def _kind(space: Space) -> Kind:
    if not isinstance(space, Box):
        return "categories"
    return "image" if len(space.shape) > 2 else "vector"


def _categories(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of values and the first value of each category of a space."""
    if isinstance(space, Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    if isinstance(space, MultiDiscrete):
        return space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _width(space: Space, *, one_hot: bool) -> int:
    """Return the number of encoded values of a leaf's space."""
    counts, _ = _categories(space)
    return int(counts.sum()) if counts.size and one_hot else math.prod(space.shape or ())


def _leaf(
    path: Path, space: Space, columns: slice, is_uint8: bool, channels_last: bool, normalize: bool, *, one_hot: bool
) -> Leaf:
    env_shape, kind = space.shape or (), _kind(space)
    shape = env_shape if kind == "image" else (_width(space, one_hot=one_hot),)
    shape = (*shape[-1:], *shape[:-1]) if channels_last else shape
    counts, starts = _categories(space)
    low, span = _scale(space) if normalize and isinstance(space, Box) and kind == "image" else (0.0, 1.0)
    return Leaf(
        path=path,
        space=space,
        kind=kind,
        env_shape=env_shape,
        shape=shape,
        size=math.prod(shape),
        columns=columns,
        is_uint8=is_uint8,
        channels_last=channels_last,
        low=low,
        span=span,
        counts=counts,
        starts=starts,
        places=np.cumsum(counts) - counts,
        is_one_hot=one_hot,
    )


def _scale(image: Box) -> tuple[float, float]:
    """Return the lower bound of an image and the distance to the upper one; 0 and 1 if they are not finite."""
    low, high = float(image.low.min()), float(image.high.max())
    return (low, high - low) if 0 < high - low <= MAX_SPAN else (0.0, 1.0)


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe a space exactly in plain data: bounds keep every bit, infinities are the strings "inf" and "-inf"."""
    if isinstance(space, Box):
        return {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
        }
    if isinstance(space, (Discrete, MultiDiscrete)):
        kind, count = ("Discrete", "n") if isinstance(space, Discrete) else ("MultiDiscrete", "nvec")
        counts = {name: np.asarray(getattr(space, name)).tolist() for name in (count, "start")}
        return {"type": kind, "dtype": str(space.dtype), **counts}
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.shape]}
    if isinstance(space, Dict) and all(isinstance(key, str) for key in space.spaces):
        return {"type": "Dict", "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    raise ConfigurationError(
        f"space={space} cannot be written to a file; allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
        "(with strings for keys) and Tuple of these"
    )


def space_from_json(data: Mapping[str, Any]) -> Space:
    """Return the space that `space_to_json` described.

    Raises:
        ConfigurationError: the data does not describe a space.
    """
    try:
        return _SPACES[data["type"]](data)
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as fault:
        raise ConfigurationError(
            f"space={data!r} is not a description of a space ({fault!r}); allowed types are {', '.join(_SPACES)}"
        ) from fault


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """Return one number if all are equal, else the flat list of all."""
    values = [("inf" if b > 0 else "-inf") if math.isinf(b) else b for b in bounds.ravel().tolist()]
    return values[0] if values and len(set(values)) == 1 else values


def _bounds_from_json(bounds: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if not isinstance(bounds, list):
        return np.full(shape, float(bounds) if isinstance(bounds, str) else bounds, dtype=dtype)
    values = [float(number) if isinstance(number, str) else number for number in bounds]
    return np.array(values, dtype=dtype).reshape(shape)


def _box(data: Mapping[str, Any]) -> Space:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    low, high = (_bounds_from_json(data[side], shape, dtype) for side in ("low", "high"))
    return Box(low, high, shape=shape, dtype=dtype.type)


def _discrete(data: Mapping[str, Any]) -> Space:
    # gymnasium before 1.2 has no dtype here, so it is given only if it is not the default
    dtype: dict[str, Any] = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
    return Discrete(data["n"], start=data["start"], **dtype)


def _multi_discrete(data: Mapping[str, Any]) -> Space:
    dtype = np.dtype(data["dtype"])
    return MultiDiscrete(np.array(data["nvec"], dtype), dtype=dtype.type, start=np.array(data["start"], dtype))


_SPACES: dict[str, Callable[[Mapping[str, Any]], Space]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda data: MultiBinary(data["n"]),
    "Dict": lambda data: Dict([(key, space_from_json(child)) for key, child in data["spaces"]]),
    "Tuple": lambda data: Tuple([space_from_json(child) for child in data["spaces"]]),
}
