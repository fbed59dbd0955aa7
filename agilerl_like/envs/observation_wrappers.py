"""Observation wrappers: a selection of entries, bins, stacked frames, past actions and rewards, CartPole as an image.

Without its velocities CartPole needs a recurrent network; with a rendered pole it needs a network for images and
vectors:

    environment:
      id: CartPole-v1
      wrappers: [{name: "agilerl_like.envs.observation_wrappers:SelectEntries", entries: [0, 2]}]

All but `PastActionReward` support batches (see `wrapper_specs`), so they can also wrap a native vector env.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete
from gymnasium.spaces import utils as space_utils
from gymnasium.utils import RecordConstructorArgs

from agilerl_like.envs.image_layout import channel_layout
from agilerl_like.envs.spaces import MAX_SPAN
from agilerl_like.errors import ConfigurationError, EnvStepError, unknown_name


class SelectEntries(gym.ObservationWrapper, RecordConstructorArgs):
    """Keeps some entries of a vector, given by index, or some entries of a Dict, given by name.

    The order is the given one for a vector and the space's own for a Dict.

    Raises:
        ConfigurationError: an entry that does not exist or is given twice, no entry at all, or another kind of space.
    """

    supports_batch: ClassVar[bool] = True

    def __init__(self, env: gym.Env, entries: Sequence[int] | Sequence[str]) -> None:
        RecordConstructorArgs.__init__(self, entries=entries)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        _check(space, entries)
        if isinstance(space, Dict):
            self._names = [name for name in space.spaces if name in entries]
            self.observation_space = Dict({name: space[name] for name in self._names})
        elif isinstance(space, Box):
            self._indices = np.array(entries)
            low, high = space.low[self._indices], space.high[self._indices]
            self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """Return the selected entries of an observation, or of a batch of them."""
        if isinstance(observation, Mapping):
            return {name: observation[name] for name in self._names}
        return observation[..., self._indices]


MAX_BINS = 2**20
"""Most bins of a number."""


class BinObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """Replaces each number of a vector by the number of its bin, for tables: the observation space is MultiDiscrete.

    The bins of a number are equally wide, between `low` and `high`; what lies outside is in the outer ones. `bins`,
    `low` and `high` are one number for all, or a list with one for each; bounds that are not given are the space's.

    Raises:
        ConfigurationError: another space than a vector, a bound that is not finite, or counts below 1.
    """

    supports_batch: ClassVar[bool] = True

    def __init__(
        self,
        env: gym.Env,
        bins: int | Sequence[int] = 10,
        low: float | Sequence[float] | None = None,
        high: float | Sequence[float] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, bins=bins, low=low, high=high)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigurationError(
                f"observation_space={space} has no bins; allowed are vectors, Box of one dimension"
            )
        size = space.shape[0]
        counts = _for_each("bins", bins, size)
        if not all(1 <= count <= MAX_BINS and count == int(count) for count in counts.tolist()):
            raise ConfigurationError(f"bins={bins!r}; allowed are whole numbers from 1 to {MAX_BINS}")
        self._low = _for_each("low", space.low if low is None else low, size)
        top = _for_each("high", space.high if high is None else high, size)
        for name, bounds in (("low", self._low), ("high", top)):
            for place, bound in enumerate(bounds.tolist()):
                if not abs(bound) <= MAX_SPAN:
                    raise ConfigurationError(
                        f"{name} of entry {place} of observation_space={space} is {bound:g}, and bins need finite "
                        f"bounds; set low and high of BinObservation: a number, or a list of {size}"
                    )
        if not (self._low < top).all():
            raise ConfigurationError(f"low={self._low.tolist()} must be below high={top.tolist()}")
        self._counts = counts.astype(np.int64)
        self._per_unit = counts / (top - self._low)
        self.observation_space = MultiDiscrete(self._counts)

    def observation(self, observation: Any) -> np.ndarray:
        """Return the bins of an observation, or of a batch of them.

        Raises:
            EnvStepError: a number is not finite.
        """
        places = np.floor((np.asarray(observation, np.float64) - self._low) * self._per_unit)
        if not np.isfinite(places).all():
            raise EnvStepError(f"observation={np.asarray(observation).tolist()} is not finite")
        return np.clip(places, 0, self._counts - 1).astype(np.int64)


class ConcatenateFrames(gym.ObservationWrapper, RecordConstructorArgs):
    """Concatenates the k frames of gymnasium's FrameStackObservation, the oldest first, along their channels.

    [k, H, W, C] becomes [H, W, k * C], [k, C, H, W] becomes [k * C, H, W], and vectors [k, n] become [k * n], as in
    Stable-Baselines3's VecFrameStack. Networks for images then read the frames as channels; they would read four axes
    as a volume. Where the shape [H, W, k * C] does not show that the channels are last, as that of colour images that
    are not square, [k, H, W, C] becomes [k * C, H, W] instead.

    `channels_last` is whether the last axis of an image has its channels; None: its shape shows it.

    Raises:
        ConfigurationError: another observation space than stacked images or vectors, or images of a shape in which the
            channels would not be found.
    """

    supports_batch: ClassVar[bool] = True

    def __init__(self, env: gym.Env, channels_last: bool | None = None) -> None:
        RecordConstructorArgs.__init__(self, channels_last=channels_last)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if channels_last not in (None, True, False):
            raise ConfigurationError(f"channels_last={channels_last!r}; allowed are true, false and null")
        if not isinstance(space, Box) or len(space.shape) not in (2, 4):
            raise ConfigurationError(
                f"observation_space={space} has no frames to concatenate; allowed are Box of [frames, length] and of "
                "[frames, height, width, channels] or [frames, channels, height, width]"
            )
        num_frames, *frame = space.shape
        if len(frame) == 1 and channels_last is not None:
            raise ConfigurationError(f"channels_last={channels_last} has no effect on vectors; allowed is null")
        if len(frame) == 1:
            self._shape, self._order = (num_frames * frame[0],), (-2, -1)
        else:
            self._shape, self._order = _frames_as_channels(num_frames, tuple(frame), channels_last)
        low, high = self.observation(space.low), self.observation(space.high)
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> np.ndarray:
        """Concatenate the frames of an observation, or of a batch of them."""
        frames = np.asarray(observation)
        batch = frames.shape[: frames.ndim - len(self._order)]
        return np.moveaxis(frames, self._order, sorted(self._order)).reshape(*batch, *self._shape)


def _frames_as_channels(
    num_frames: int, frame: tuple[int, ...], channels_last: bool | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of an image that has the channels of all frames, and the order of the axes of frames for it."""
    layout = channel_layout(frame)
    if channels_last is None and layout == "ambiguous":
        raise ConfigurationError(
            f"ConcatenateFrames: images of shape {frame} do not show which axis has their channels, and "
            "channels_last=None; allowed are true (the last axis) and false (the first one)"
        )
    are_last = layout == "last" if channels_last is None else channels_last
    height, width, channel = (-3, -2, -1) if are_last else (-2, -1, -3)
    sides, channels = (frame[height], frame[width]), num_frames * frame[channel]
    if are_last and channel_layout((*sides, channels)) == "last":
        return (*sides, channels), (height, width, -4, channel)
    if channel_layout((channels, *sides)) != "last":  # networks read an ambiguous image as channels first
        return (channels, *sides), (-4, channel, height, width)
    raise ConfigurationError(
        f"ConcatenateFrames: {num_frames} images of shape {frame} make one of shape {(channels, *sides)}, whose last "
        "axis looks like its channels; allowed are another size or number of images"
    )


class PastActionReward(gym.Wrapper, RecordConstructorArgs):
    """Adds the last action and the last reward to the observation (RL2, Duan et al. 2016).

    They are a vector: the action (one-hot for choices, see `gymnasium.spaces.flatten`), then the reward; zeros at the
    start of an episode. They are appended to an observation that is a vector; a Dict gets them as the entry "past"; any
    other observation becomes the Dict {"observation", "past"}.

    Raises:
        ConfigurationError: the Dict has an entry "past" already.
    """

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        space, actions = env.observation_space, space_utils.flatten_space(env.action_space)
        if not isinstance(actions, Box):
            raise ConfigurationError(f"action_space={env.action_space} has no vector of its own for PastActionReward")
        low, high = np.append(actions.low, -np.inf), np.append(actions.high, np.inf)
        self._past = Box(np.minimum(low, 0).astype(np.float32), np.maximum(high, 0).astype(np.float32))
        self._appends = isinstance(space, Box) and len(space.shape) == 1 and space.dtype != np.uint8
        if isinstance(space, Dict):
            if "past" in space.spaces:
                raise ConfigurationError(f"observation_space={space} has an entry 'past'; allowed is any other name")
            self.observation_space = Dict({**space.spaces, "past": self._past})
        elif self._appends and isinstance(space, Box):
            low, high = np.append(space.low, self._past.low), np.append(space.high, self._past.high)
            self.observation_space = Box(low.astype(np.float32), high.astype(np.float32))
        else:
            self.observation_space = Dict({"observation": space, "past": self._past})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._joined(observation, np.zeros(self._past.shape, np.float32)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        flat: Any = space_utils.flatten(self.env.action_space, action)
        past = np.append(flat, float(reward)).astype(np.float32)
        return self._joined(observation, past), reward, terminated, truncated, info

    def _joined(self, observation: Any, past: np.ndarray) -> Any:
        if isinstance(observation, Mapping):
            return {**observation, "past": past}
        if self._appends:
            return np.append(observation, past).astype(np.float32)
        return {"observation": observation, "past": past}


class RenderedPole(gym.ObservationWrapper, RecordConstructorArgs):
    """CartPole with {"cart": position and velocity, "pole": an image of the angle} for observations.

    Both are necessary; the pole's velocity is not, because it follows from the cart's. The image is uint8
    (1, size, size), magnified horizontally: the pole's tip leaves it slightly beyond the angle that ends the episode. A
    pole between two pixels lights both, so small angles remain distinguishable.
    """

    supports_batch: ClassVar[bool] = True
    EDGE = 0.25  # the angle at which the tip reaches the image's border, in rad; the episode ends at 0.21

    def __init__(self, env: gym.Env, size: int = 16) -> None:
        RecordConstructorArgs.__init__(self, size=size)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, Box) or space.shape != (4,):
            raise ConfigurationError(f"observation_space={space} is not CartPole's; allowed is a Box of 4 numbers")
        if not isinstance(size, int) or size < 4:
            raise ConfigurationError(f"size={size!r} must be an integer of at least 4")
        # positions in 255ths of a pixel: a pixel's distance from the pole is then its loss of brightness
        self._columns = 255 * (np.arange(size) - (size - 1) / 2)  # [size]
        self._reach = self._columns[-1] / self.EDGE * np.linspace(1.0, 0.0, size)[:, None]  # [size, 1], tip first
        cart, pole = Box(space.low[:2], space.high[:2]), Box(0, 255, (1, size, size), dtype=np.uint8)
        self.observation_space = Dict({"cart": cart, "pole": pole})

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        """Render the angle of an observation, or of a batch of them."""
        tip = self._reach * observation[..., 2, None, None]
        light = 255.5 - np.abs(self._columns - tip)  # […, size, size]; half for rounding
        return {"cart": observation[..., :2], "pole": np.maximum(light, 0).astype(np.uint8)[..., None, :, :]}


def _for_each(name: str, values: Any, size: int) -> np.ndarray:
    """Return one number for each entry of a vector."""
    try:
        found = np.array(values, np.float64)
        return np.broadcast_to(found, (size,)).copy() if found.ndim < 2 else found.reshape(size)
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"{name}={values!r}; allowed are a number and a list of {size} numbers") from fault


def _check(space: gym.Space, entries: Sequence[int] | Sequence[str]) -> None:
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ConfigurationError(f"entries={entries!r} must be a list of at least one place or name")
    if len(set(entries)) < len(entries):
        raise ConfigurationError(f"entries={entries!r} names one twice; allowed is each once")
    if isinstance(space, Dict):
        for entry in entries:
            if entry not in space.spaces:
                raise unknown_name("entries", entry, space.spaces)
    elif isinstance(space, Box) and len(space.shape) == 1:
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry < space.shape[0]:
                raise ConfigurationError(f"entries: {entry!r} is no place; allowed are 0 to {space.shape[0] - 1}")
    else:
        raise ConfigurationError(f"observation_space={space} has no entries to keep; allowed are vectors and Dict")


KeepEntries, DrawnPole = SelectEntries, RenderedPole  # former names, which configurations may still use
