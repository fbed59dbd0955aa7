"""MiniGrid's observations as tensors that networks can read: one-hot planes, the direction, the words of the mission.

    environment:
      id: minigrid:MiniGrid-DoorKey-6x6-v0
      wrappers: ["agilerl_like.envs.grid_observations:GridObservation"]
    network:
      encoder_config: {extractors: {mission: {encoder: words}}}  # an embedding and a GRU, where missions vary

MiniGrid's own image holds the numbers of kinds, colours and states, which are names and not sizes, so each becomes a
plane of bits here. Needs the extra `minigrid`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from gymnasium.utils import RecordConstructorArgs

from agilerl_like.envs.image_layout import channel_layout
from agilerl_like.errors import ConfigurationError

View = Literal["partial", "full"]
KINDS, COLORS, STATES = 11, 6, 4
"""Planes of a cell: kinds of object, colours, and states of doors (three) or directions of the agent (four)."""
PLANES = KINDS + COLORS + STATES
BABYAI_MISSIONS = (
    "a after again and any ball behind blue box door doors front go green grey in key left location locked",
    "next object of on open pick purple put red right the then to twice up use wall with yellow you your",
)
"""The words of BabyAI's missions, whose space does not list them. Levels of one or two fixed instructions have missions
of at most as many words as a line."""
_WARNED: set[tuple[str, ...]] = set()
"""Vocabularies of which a warning has been issued: one for all copies of an environment in a process."""


class GridObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """The Dict {"image": bits (21, height, width), "direction": 0 to 3, "mission": word numbers}.

    Args:
        env: a MiniGrid environment.
        view: "partial", the 7x7 cells in front of the agent, or "full", the whole grid with the agent in it. Cells that
            are not seen surround a grid whose planes networks would read as channels-last, such as one 4 cells wide.
        mission: include the mission; by default if it can vary. Word numbers are 2 and above, and 0 follows the last
            word; 1 is a word outside the vocabulary, which `unknown_words` counts and one warning names.
        words: the vocabulary; by default the words of all missions of the environment.
        max_words: most words of a mission, by default at least as many as the longest has (72 in BabyAI's BossLevel);
            further words are dropped.

    Raises:
        ConfigurationError: the environment is not a MiniGrid, or an argument is not allowed.
    """

    def __init__(
        self,
        env: gym.Env,
        view: View = "partial",
        mission: bool | None = None,
        words: Sequence[str] | None = None,
        max_words: int | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, view=view, mission=mission, words=words, max_words=max_words)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, Dict) or not {"image", "direction", "mission"} <= space.spaces.keys():
            raise ConfigurationError(
                f"observation_space={space} is not MiniGrid's; allowed is Dict(direction, image, mission)"
            )
        if view not in ("partial", "full"):
            raise ConfigurationError(f"view={view!r}; allowed are 'partial' and 'full'")
        if max_words is not None and (isinstance(max_words, bool) or not isinstance(max_words, int) or max_words < 1):
            raise ConfigurationError(f"max_words={max_words!r} must be an integer of at least 1")
        missions = sample_missions(space["mission"])
        self.view, self.unknown_words = view, 0
        vocabulary = sorted({*chain.from_iterable(map(words_of, missions))}) if words is None else list(words)
        self._vocabulary = tuple(vocabulary)
        self._numbers = {word.lower(): number for number, word in enumerate(vocabulary, 2)}
        grid: Any = env.unwrapped
        self._max_words = max_words or max(_generated_words(grid), *(len(words_of(text)) for text in missions))
        image: Any = space["image"]
        width, height = (grid.width, grid.height) if view == "full" else image.shape[:2]
        while channel_layout((PLANES, height, width)) == "last":
            width, height = width + 1, height + 1
        bits: Any = np.bool_
        self._image_shape = PLANES, height, width
        spaces: dict[str, Space] = {
            "image": Box(0, 1, self._image_shape, dtype=bits),
            "direction": Discrete(4),
        }
        self._has_mission = len(missions) > 1 if mission is None else mission
        if self._has_mission:
            spaces["mission"] = MultiDiscrete([2 + len(vocabulary)] * self._max_words)
        self.observation_space = Dict(spaces)

    def observation(self, observation: Any) -> dict[str, Any]:
        """Return the planes, the direction and the word numbers."""
        seen = self._full_grid() if self.view == "full" else observation["image"]  # [width, height, 3]
        _, height, width = self._image_shape
        cells = np.pad(seen, ((0, width - seen.shape[0]), (0, height - seen.shape[1]), (0, 0)))  # 0: not seen
        planes = [np.arange(count)[:, None, None] == cells[..., i].T for i, count in enumerate((KINDS, COLORS, STATES))]
        found = {"image": np.concatenate(planes), "direction": np.int64(observation["direction"])}
        return {**found, "mission": self.encode(observation["mission"])} if self._has_mission else found

    def encode(self, mission: str) -> np.ndarray:
        """Return the word numbers of a mission."""
        words = words_of(mission)[: self._max_words]
        numbers = [self._numbers.get(word, 1) for word in words]
        if 1 in numbers:
            if self._vocabulary not in _WARNED:
                _WARNED.add(self._vocabulary)
                first = words[numbers.index(1)]
                warnings.warn(f"the mission {mission!r} has a word outside the vocabulary: {first!r}", stacklevel=2)
            self.unknown_words += numbers.count(1)
        return np.array(numbers + [0] * (self._max_words - len(words)), np.int64)

    def _full_grid(self) -> np.ndarray:
        env: Any = self.env.unwrapped
        cells = env.grid.encode()
        cells[tuple(env.agent_pos)] = 10, 0, env.agent_dir  # the kind "agent"
        return cells


def words_of(mission: str) -> list[str]:
    """Return the words of a mission in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", mission.lower())


def sample_missions(space: Any) -> list[str]:
    """Return missions that together have every word that the space's missions can have, and the longest of them."""
    placeholders: Iterable[Sequence[str]] = getattr(space, "ordered_placeholders", None) or ()
    options = [list(dict.fromkeys(values)) for values in placeholders]
    if not hasattr(space, "mission_func"):
        raise ConfigurationError(f"mission={space} is not MiniGrid's MissionSpace")
    if type(space).__name__.startswith("BabyAI"):
        return list(BABYAI_MISSIONS)
    longest = [max(values, key=lambda value: len(words_of(value))) for values in options]
    found = [space.mission_func(*longest)]
    for place, values in enumerate(options):
        found += [space.mission_func(*longest[:place], value, *longest[place + 1 :]) for value in values]
    return list(dict.fromkeys(found))


def _generated_words(level: Any) -> int:
    """Return the words of the longest mission that a BabyAI level with generated missions has; 0 of other levels.

    Objects are "the red ball", perhaps "in front of you". An instruction is an action, "… and …", or one of both before
    or after another ("… after you …").
    """
    if not hasattr(level, "instr_kinds"):
        return 0
    thing = 7 if level.locations else 3
    lengths = {"goto": 2 + thing, "pickup": 2 + thing, "open": 1 + thing, "putnext": 3 + 2 * thing}
    longest = max(lengths[kind] for kind in level.action_kinds)
    if "and" in level.instr_kinds or "seq" in level.instr_kinds:
        longest = 2 * longest + 1
    return 2 * longest + 2 if "seq" in level.instr_kinds else longest
