"""PettingZoo's images made small: shrunk and gray, of a few moments together, and with an action for several frames.

They go around a parallel env, in `extra_wrappers` or in a configuration, from the inside to the outside:

    environment:
      id: butterfly/cooperative_pong-v6
      wrappers:
        - {name: "agilerl_like.envs.multi_agent.wrappers:RepeatActions", times: 4}
        - {name: "agilerl_like.envs.multi_agent.wrappers:SmallImages", shrink: 10}
        - {name: "agilerl_like.envs.multi_agent.wrappers:StackImages", images: 2}

Images come with their channels behind, [H, W, C], as PettingZoo has them, and leave with their channels in front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

from agilerl_like.errors import ConfigurationError

Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class ParallelEnvWrapper:
    """A parallel env of which something is changed; whatever is not changed here is the env's own."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # a copy that is only being made has no env yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.env})"


class RepeatActions(ParallelEnvWrapper):
    """Takes each action several times, until some agent comes or goes; rewards add up.

    Raises:
        ConfigurationError: `times` is no whole number from 1.
    """

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self._times = _check_count("times", times)

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Take actions; what is seen is what there was after the last of them."""
        step = self.env.step(actions)
        earned = dict(step[1])
        for _ in range(self._times - 1):
            if {*self.env.agents} != {*actions}:
                break
            step = self.env.step(actions)
            for agent, reward in step[1].items():  # whoever arrives earns from then on
                earned[agent] = earned.get(agent, 0.0) + reward
        return step[0], earned, *step[2:]


class SmallImages(ParallelEnvWrapper):
    """Makes of every `shrink` by `shrink` pixels one, their mean; of all colours one too, if `gray`.

    Whole pixels only: what is left over at the lower and the right border is cut off.

    Raises:
        ConfigurationError: an agent sees no images of bytes, or they are too small.
    """

    def __init__(self, env: Any, shrink: int = 2, gray: bool = True) -> None:
        super().__init__(env)
        self._shrink, self._gray = _check_count("shrink", shrink), gray
        self._spaces = {agent: self._small_space(agent) for agent in env.possible_agents}

    def _small_space(self, agent: str) -> Box:
        space = self.env.observation_space(agent)
        if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) != 3:
            raise ConfigurationError(f"observation_space({agent!r})={space}; allowed are images of bytes, [H, W, C]")
        height, width, channels = space.shape
        if self._shrink > min(height, width):
            raise ConfigurationError(f"shrink={self._shrink} leaves nothing of images of {height} by {width}")
        shape = (1 if self._gray else channels, height // self._shrink, width // self._shrink)
        return Box(0, 255, shape, np.uint8)

    def observation_space(self, agent: str) -> Space:
        """What an agent sees, uint8 [C, H, W]."""
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._shrunk(observations), infos

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Take actions."""
        observations, *rest = self.env.step(actions)
        return self._shrunk(observations), *rest

    def _shrunk(self, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {agent: shrink_image(image, self._shrink, gray=self._gray) for agent, image in observations.items()}


def shrink_image(image: np.ndarray, by: int, *, gray: bool) -> np.ndarray:
    """An image [H, W, C] with one pixel for `by` times `by`, their mean rounded, [C or 1, H / by, W / by]."""
    height, width, channels = image.shape[0] // by, image.shape[1] // by, image.shape[2]
    whole = image[: height * by, : width * by]
    rows = whole.reshape(height, by, -1).sum(1, dtype=np.uint32)  # the rows first: most of the work, side by side
    blocks = rows.reshape(height, width, by, channels).sum(2)  # [H, W, C]
    many = by * by
    if gray:
        blocks, many = blocks.sum(-1, keepdims=True), many * channels
    return ((blocks + many // 2) // many).astype(np.uint8).transpose(2, 0, 1)


class StackImages(ParallelEnvWrapper):
    """Shows an agent its last few images, the newest last: one image tells nothing of where a ball flies.

    An agent's first image stands for those that it never saw.

    Raises:
        ConfigurationError: an agent sees no images with their channels in front, or `images` is no whole number from 1.
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
        low, high = (np.concatenate([bound] * self._images) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype.type)

    def observation_space(self, agent: str) -> Space:
        """What an agent sees, [images C, H, W]."""
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin an episode, of which nothing was seen."""
        self._frames.clear()
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._stacked(observations), infos

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Take actions."""
        observations, *rest = self.env.step(actions)
        return self._stacked(observations), *rest

    def _stacked(self, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for agent, image in observations.items():
            seen = self._frames.setdefault(agent, deque([image] * self._images, self._images))
            seen.append(image)
        return {agent: np.concatenate(self._frames[agent]) for agent in observations}


def _check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value!r} must be a whole number from 1")
    return value
