"""The probe worlds' known answers are true: checked by solving each world, not by training on it."""

import itertools
from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils.env_checker import check_env

from agilerl_like.envs import (
    PROBES,
    Probe,
    TransitionEnv,
    check_action_space,
    check_observation_space,
    make_vect_envs,
    mask_size,
)
from agilerl_like.errors import EnvironmentFault

Key = tuple[float, ...]


def candidates(space: gym.Space) -> list[Any]:
    """All actions, or a grid of them that holds the bounds."""
    if isinstance(space, Discrete):
        return list(range(int(space.start), int(space.start + space.n)))
    if isinstance(space, MultiDiscrete):
        return list(itertools.product(*(range(n) for n in space.nvec)))
    if isinstance(space, MultiBinary):
        return list(itertools.product((0, 1), repeat=int(space.n)))
    assert isinstance(space, Box)
    points = 61 if space.shape == (1,) else 21
    return list(itertools.product(*np.linspace(space.low, space.high, points).T))


def explore(probe: Probe) -> dict[Key, dict[Any, tuple[float, Key | None]]]:
    """Try every action at every observation: obs -> action -> (reward, what follows; None at an end).

    A truncation is no end: what follows it is what is seen last.
    """
    env = probe.make()
    moves: dict[Key, dict[Any, tuple[float, Key | None]]] = defaultdict(dict)
    for action in candidates(env.action_space):
        for seed in range(12):
            obs, over = env.reset(seed=seed)[0], False
            while not over:
                after, reward, terminated, truncated, _ = env.step(np.asarray(action, dtype=env.action_space.dtype))
                moves[tuple(obs.tolist())][action] = (float(reward), None if terminated else tuple(after.tolist()))
                obs, over = after, terminated or truncated
    return moves


def solve(probe: Probe) -> dict[Key, dict[Any, float]]:
    """Value iteration: obs -> action -> what the action is worth, with the best afterwards; masked actions left out."""
    masks = {known.obs: known.mask for known in probe.actions if known.mask}
    moves = {
        obs: {a: move for a, move in there.items() if obs not in masks or masks[obs][a]}
        for obs, there in explore(probe).items()
    }
    values: dict[Key, float] = defaultdict(float)
    worth: dict[Key, dict[Any, float]] = {}
    for _ in range(400):
        worth = {
            obs: {a: r + probe.gamma * (0.0 if after is None else values[after]) for a, (r, after) in there.items()}
            for obs, there in moves.items()
        }
        values.update({obs: max(there.values()) for obs, there in worth.items()})
    return worth


@pytest.mark.parametrize("name", PROBES)
def test_the_known_answers_solve_the_world(name):
    probe = PROBES[name]
    worth = solve(probe)
    assert probe.values or probe.actions
    for obs, value in probe.values:
        assert max(worth[obs].values()) == pytest.approx(value, abs=1e-6)
        # actions change nothing here, so the value holds however random the policy still is
        assert min(worth[obs].values()) == pytest.approx(value, abs=1e-6)
    for known in probe.actions:
        ranked = sorted(worth[known.obs], key=lambda action: worth[known.obs][action])
        np.testing.assert_allclose(ranked[-1], known.action, atol=1e-6)
        assert worth[known.obs][ranked[-2]] < worth[known.obs][ranked[-1]]  # and no other is as good
    asked = {known.obs for known in (*probe.values, *probe.actions)}
    assert asked == set(worth), "every observation of the world is asked for"


# gymnasium recommends [-1, 1]; ContinuousBounds is about other bounds
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space:UserWarning")
@pytest.mark.parametrize("name", PROBES)
def test_probes_are_proper_gymnasium_envs_that_agents_accept(name):
    env = PROBES[name].make()
    check_env(env, skip_render_check=True, skip_close_check=True)
    check_observation_space(env.observation_space)
    check_action_space(env.action_space)
    for known in PROBES[name].actions:
        assert len(known.mask) in (0, mask_size(env.action_space))
        assert env.action_space.contains(np.array(known.action, dtype=env.action_space.dtype))


@pytest.mark.parametrize("name", PROBES)
def test_every_observation_turns_up_in_a_vector_env(name):
    probe = PROBES[name]
    env = TransitionEnv(make_vect_envs(probe.make, 4))
    obs = env.reset(0)
    seen = set(map(tuple, obs.tolist()))
    for _ in range(20):
        action = env.env.action_space.sample()
        if env.action_mask is not None:
            action = env.action_mask.argmax(axis=1)
        seen |= set(map(tuple, env.step(action).obs.tolist()))
    assert seen >= {known.obs for known in (*probe.values, *probe.actions)}
    env.close()


def test_the_wrong_answers_that_a_bug_gives_lie_far_from_the_known_ones():
    # EndlessTruncation, limit taken for an end: the mean of (1 - .9^k) / .1 over k = 1 … 8
    wrong = np.mean([(1 - 0.9**k) / 0.1 for k in range(1, 9)])
    assert wrong == pytest.approx(3.6, abs=0.1)
    assert PROBES["EndlessTruncation"].values[0].value == pytest.approx(1 / (1 - 0.9))


def test_actions_outside_the_space_are_faults():
    for name, action in (("ContinuousBounds", [1.5]), ("ActionSign", 2), ("Counter", -1)):
        env = PROBES[name].make()
        env.reset(seed=0)
        with pytest.raises(EnvironmentFault, match="lies outside"):
            env.step(action)


def test_the_forbidden_action_would_pay_most():
    probe = PROBES["ActionMask"]
    moves = explore(probe)
    for known in probe.actions:
        forbidden = known.mask.index(False)
        assert max(moves[known.obs], key=lambda a: moves[known.obs][a][0]) == forbidden
