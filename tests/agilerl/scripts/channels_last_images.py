"""Images whose channels stand last, transposed by the helper."""

import gymnasium
import numpy as np
from agilerl.utils.algo_utils import obs_channels_to_first
from agilerl.utils.utils import observation_space_channels_to_first

space = gymnasium.spaces.Box(0, 255, (8, 10, 3), np.uint8)
moved = observation_space_channels_to_first(space)
assert moved.shape == (3, 8, 10)
assert obs_channels_to_first(np.zeros((2, 8, 10, 3), np.uint8)).shape == (2, 3, 8, 10)
