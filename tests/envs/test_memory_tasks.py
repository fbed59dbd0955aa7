"""The memory tasks: returns of a player with a perfect memory, of a constant one, and errors."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agilerl_like.envs.memory_tasks import Autoencode, RepeatFirst, RepeatPrevious
from agilerl_like.errors import ConfigurationError


def suit_of(observation):
    return int(np.atleast_1d(observation)[-1])


def played(env, answer, seed=0):
    """The return of one episode and its number of steps; `answer` sees all observations so far."""
    observation, _ = env.reset(seed=seed)
    seen, total, over = [observation], 0.0, False
    while not over:
        observation, reward, over, _, _ = env.step(answer(seen))
        total += reward
        seen.append(observation)
    return total, len(seen) - 1


PERFECT = {
    RepeatFirst: lambda seen: suit_of(seen[0]),
    RepeatPrevious: lambda seen: suit_of(seen[-5]) if len(seen) > 4 else 0,
    Autoencode: lambda seen: suit_of(seen[2 * 6 - len(seen)]) if len(seen) > 6 else 0,
}


@pytest.mark.parametrize("task", PERFECT)
def test_a_perfect_memory_earns_one(task):
    for seed in range(20):
        total, steps = played(task(), PERFECT[task], seed)
        assert total == pytest.approx(1.0)
        assert steps == {RepeatFirst: 16, RepeatPrevious: 32, Autoencode: 12}[task]


@pytest.mark.parametrize("task", PERFECT)
def test_a_constant_answer_loses_half(task):
    returns = [played(task(), lambda _: 1, seed)[0] for seed in range(400)]
    # a return has at most the deviation of a single answer, sqrt(3)/2; 5 standard errors
    assert abs(np.mean(returns) + 0.5) < 5 * 0.87 / 20


@pytest.mark.parametrize("task", PERFECT)
def test_the_interface_is_gymnasiums(task):
    check_env(task(), skip_render_check=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RepeatPrevious(k=0), "k=0 must be an integer of at least 1"),
        (lambda: RepeatPrevious(k=4, length=4), "length=4 must be an integer of at least 5"),
        (lambda: RepeatFirst(length=True), "length=True must be an integer of at least 1"),
        (lambda: Autoencode(length=0), "length=0 must be an integer of at least 1"),
        (lambda: RepeatPrevious(suits=1), "suits=1 must be an integer of at least 2"),
    ],
)
def test_impossible_lengths_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
