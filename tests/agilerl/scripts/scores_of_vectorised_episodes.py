"""calculate_vectorized_scores splits rewards into episodes."""

import numpy as np
from agilerl.utils.utils import calculate_vectorized_scores

rewards = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
ends = np.array([[0, 1, 0, 0], [0, 0, 0, 0]])
assert calculate_vectorized_scores(rewards, ends, include_unterminated=False, only_first_episode=False) == [3.0, 4.0]
assert calculate_vectorized_scores(rewards, ends, include_unterminated=True, only_first_episode=False) == [
    3.0,
    7.0,
    4.0,
]
assert calculate_vectorized_scores(rewards, ends, include_unterminated=True, only_first_episode=True) == [3.0, 4.0]
