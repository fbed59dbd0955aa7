"""Wrappers of PettingZoo parallel envs for image observations: frame skip, downscaling with grayscale, frame stack.

Use them in `extra_wrappers` or in a configuration; the first is the innermost:

    environment:
      id: butterfly/cooperative_pong-v6
      wrappers:
        - {name: "agilerl_like.envs.multi_agent.wrappers:RepeatActions", times: 4}
        - {name: "agilerl_like.envs.multi_agent.wrappers:SmallImages", shrink: 10}
        - {name: "agilerl_like.envs.multi_agent.wrappers:StackImages", images: 2}

`SmallImages` takes PettingZoo's channels-last images [H, W, C] and returns channels-first ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from pettingzoo.utils.wrappers import BaseParallelWrapper

from agilerl_like.envs.image_layout import channel_layout
from agilerl_like.errors import ConfigurationError

Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class ParallelEnvWrapper(BaseParallelWrapper[str, Any, Any]):
    """Base class: PettingZoo's, with the wrapped env in its name."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.env})"


class RepeatActions(ParallelEnvWrapper):
    """Repeats each action until an agent appears or leaves; rewards are summed.

    Raises:
        ConfigurationError: `times` is not an integer >= 1.
    """

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self._times = _check_count("times", times)

    def step(self, actions: dict[str, Any]) -> Step:
        """Step repeatedly; observations are those after the last repetition."""
        step = self.env.step(actions)
        rewards = dict(step[1])
        for _ in range(self._times - 1):
            if {*self.env.agents} != {*actions}:
                break
            step = self.env.step(actions)
            for agent, reward in step[1].items():
                rewards[agent] = rewards.get(agent, 0.0) + reward
        return step[0], rewards, *step[2:]


class SmallImages(ParallelEnvWrapper):
    """Averages blocks of `shrink` by `shrink` pixels, and the colour channels if `gray`.

    Incomplete blocks at the lower and right border are cropped.

    Raises:
        ConfigurationError: an agent's observations are not uint8 images, or are smaller than a block.
    """

    def __init__(self, env: Any, shrink: int = 2, gray: bool = True) -> None:
        super().__init__(env)
        self._shrink, self._gray = _check_count("shrink", shrink), gray
        self._spaces = {agent: self._small_space(agent) for agent in env.possible_agents}

    def _small_space(self, agent: str) -> Box:
        space = self.env.observation_space(agent)
        if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) != 3:
            raise ConfigurationError(f"observation_space({agent!r})={space}; allowed are uint8 images, [H, W, C]")
        height, width, channels = space.shape
        if self._shrink > min(height, width):
            raise ConfigurationError(f"shrink={self._shrink} is larger than images of {height} by {width}")
        shape = (1 if self._gray else channels, height // self._shrink, width // self._shrink)
        return Box(0, 255, shape, np.uint8)

    def observation_space(self, agent: str) -> Space:
        """An agent's observation space, uint8 [C, H, W]."""
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._shrunk(observations), infos

    def step(self, actions: dict[str, Any]) -> Step:
        """Step the env."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._shrunk(observations), rewards, terminations, truncations, infos

    def _shrunk(self, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {agent: shrink_image(image, self._shrink, gray=self._gray) for agent, image in observations.items()}


def shrink_image(image: np.ndarray, by: int, *, gray: bool) -> np.ndarray:
    """Average an image [H, W, C] over blocks of `by` by `by` pixels, rounded; return [C or 1, H / by, W / by]."""
    height, width, channels = image.shape[0] // by, image.shape[1] // by, image.shape[2]
    cropped = image[: height * by, : width * by]
    rows = cropped.reshape(height, by, -1).sum(1, dtype=np.uint32)  # rows first: most of the work, on contiguous memory
    blocks = rows.reshape(height, width, by, channels).sum(2)  # [H, W, C]
    count = by * by
    if gray:
        blocks, count = blocks.sum(-1, keepdims=True), count * channels
    return ((blocks + count // 2) // count).astype(np.uint8).transpose(2, 0, 1)


class StackImages(ParallelEnvWrapper):
    """Stacks each agent's last few images along the channels, the newest last, to show motion.

    An agent's first image fills the stack.

    Raises:
        ConfigurationError: an agent's observations are not images [C, H, W], or `images` is not an integer >= 1.
    """

    def __init__(self, env: Any, images: int = 2) -> None:
        super().__init__(env)
        self._images = _check_count("images", images)
        self._spaces = {agent: self._stacked_space(agent) for agent in env.possible_agents}
        self._frames: dict[str, deque[np.ndarray]] = {}

    def _stacked_space(self, agent: str) -> Box:
        space = self.env.observation_space(agent)
        if not isinstance(space, Box) or len(space.shape) != 3:
            raise ConfigurationError(f"observation_space({agent!r})={space}; allowed are images, [C, H, W]")
        if channel_layout(space.shape) == "last":
            raise ConfigurationError(
                f"observation_space({agent!r}) has images of shape {space.shape}, whose channels are last; allowed are "
                "images [C, H, W], which SmallImages before StackImages returns (shrink: 1 leaves their size)"
            )
        low, high = (np.concatenate([bound] * self._images) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype.type)

    def observation_space(self, agent: str) -> Space:
        """An agent's observation space, [images C, H, W]."""
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Start an episode with empty stacks."""
        self._frames.clear()
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._stacked(observations), infos

    def step(self, actions: dict[str, Any]) -> Step:
        """Step the env."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._stacked(observations), rewards, terminations, truncations, infos

    def _stacked(self, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for agent, shown in observations.items():
            image = shown.copy()  # the env may write the next image into the same array
            frames = self._frames.setdefault(agent, deque([image] * self._images, self._images))
            frames.append(image)
        return {agent: np.concatenate(self._frames[agent]) for agent in observations}


def _check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value!r} must be an integer >= 1")
    return value
