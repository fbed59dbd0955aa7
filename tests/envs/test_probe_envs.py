"""The probes' expected answers are correct: checked by value iteration, not by training."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils.env_checker import check_env

from agilerl_like.envs import (
    PROBES,
    Probe,
    VecEnvAdapter,
    check_action_space,
    check_observation_space,
    make_vect_envs,
    mask_size,
    tree_map,
)
from agilerl_like.envs.memory_tasks import CardTask
from agilerl_like.envs.probe_envs import ExpectedAction, ExpectedValue, as_observation, describe
from agilerl_like.errors import EnvStepError

Situation = tuple[Hashable, ...]
"""The information an agent has: the last observation or, with memory, the episode so far."""


def key(obs: Any) -> Hashable:
    """A hashable key of an observation."""
    if isinstance(obs, Mapping):
        return tuple((name, key(part)) for name, part in obs.items())
    if isinstance(obs, tuple):
        return tuple(map(key, obs))
    array = np.asarray(obs)
    return array.dtype.str, array.shape, array.tobytes()


def asked(known: ExpectedValue | ExpectedAction) -> Situation:
    return tuple(key(as_observation(obs)) for obs in (*known.history, known.obs))


def candidates(space: gym.Space) -> list[Any]:
    """All actions, or a grid of them that includes the bounds."""
    if isinstance(space, Discrete):
        return list(range(int(space.start), int(space.start + space.n)))
    if isinstance(space, MultiDiscrete):
        return list(itertools.product(*(range(n) for n in space.nvec)))
    if isinstance(space, MultiBinary):
        return list(itertools.product((0, 1), repeat=int(space.n)))
    assert isinstance(space, Box)
    points = 61 if space.shape == (1,) else 21
    return list(itertools.product(*np.linspace(space.low, space.high, points).T))


def explore(probe: Probe) -> dict[Situation, dict[Any, tuple[float, Situation | None]]]:
    """Try every action in every situation: situation -> action -> (reward, next situation; None at an end).

    A truncation is no end: what follows it is what is seen last.
    """
    env = probe.make()
    moves: dict[Situation, dict[Any, tuple[float, Situation | None]]] = defaultdict(dict)
    for action in candidates(env.action_space):
        for seed in range(100 if isinstance(env, CardTask) else 25):  # at most 8 sequences
            now, over = (key(env.reset(seed=seed)[0]),), False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(np.asarray(action, dtype=env.action_space.dtype))
                after = ((*now, key(obs)) if probe.needs == "memory" else (key(obs),)) if not terminated else None
                moves[now][action] = (float(reward), after)
                now, over = after or (), terminated or truncated
    return moves


def solve(probe: Probe) -> dict[Situation, dict[Any, float]]:
    """Value iteration: situation -> action -> value of it and the best actions after it; without masked actions.

    With memory, no action follows the last observation before a time limit; its value is that of the one before,
    because the reward is constant.
    """
    masks = {asked(known): known.mask for known in probe.actions if known.mask}
    moves = {
        now: {a: move for a, move in there.items() if now not in masks or masks[now][a]}
        for now, there in explore(probe).items()
    }
    values: dict[Situation, float] = defaultdict(float)
    worth: dict[Situation, dict[Any, float]] = {}

    def follows(after: Situation) -> float:
        return values[after if after in moves else after[:-1]]

    for _ in range(400):
        worth = {
            now: {a: r + probe.gamma * (0.0 if after is None else follows(after)) for a, (r, after) in there.items()}
            for now, there in moves.items()
        }
        values.update({now: max(there.values()) for now, there in worth.items()})
    return worth


@pytest.mark.parametrize("name", PROBES)
def test_known_answers_equal_value_iteration(name):
    probe = PROBES[name]
    worth = solve(probe)
    assert probe.expectations
    for known in probe.values:
        assert max(worth[asked(known)].values()) == pytest.approx(known.value, abs=1e-6)
        # actions change nothing here, so the value holds however random the policy still is
        assert min(worth[asked(known)].values()) == pytest.approx(known.value, abs=1e-6)
    for known in probe.actions:
        there = worth[asked(known)]
        ranked = sorted(there, key=lambda action: there[action])
        np.testing.assert_allclose(ranked[-1], known.action, atol=1e-6)
        assert there[ranked[-2]] < there[ranked[-1]]  # and no other is as good


@pytest.mark.parametrize("name", PROBES)
def test_every_decisive_observation_has_an_expectation(name):
    probe = PROBES[name]
    ignored = solve(probe)
    for known in probe.expectations:
        ignored.pop(asked(known), None)
    if probe.needs == "memory":  # without a reward any action is as good, and values are discounted only
        assert all(len(set(there.values())) == 1 for there in ignored.values())
    else:
        assert not ignored


@pytest.mark.parametrize("name", PROBES)
def test_expectations_have_unique_names(name):
    names = [describe(known) for known in PROBES[name].expectations]
    assert len(set(names)) == len(names)


# gymnasium recommends [-1, 1]; ContinuousBounds is about other bounds
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space:UserWarning")
@pytest.mark.parametrize("name", PROBES)
def test_probes_are_proper_gymnasium_envs_that_agents_accept(name):
    env = PROBES[name].make()
    check_env(env, skip_render_check=True, skip_close_check=True)
    check_observation_space(env.observation_space)
    check_action_space(env.action_space)
    for known in PROBES[name].expectations:
        assert env.observation_space.contains(as_observation(known.obs))
    for known in PROBES[name].actions:
        assert len(known.mask) in (0, mask_size(env.action_space))
        assert env.action_space.contains(np.array(known.action, dtype=env.action_space.dtype))


@pytest.mark.parametrize("name", PROBES)
def test_every_observation_occurs_in_a_vector_env(name):
    probe = PROBES[name]
    env = VecEnvAdapter(make_vect_envs(probe.make, 4))
    seen = set()

    def look(obs: Any) -> None:
        seen.update(key(tree_map(lambda leaf, row=row: leaf[row], obs)) for row in range(4))

    look(env.reset(0))
    for _ in range(20):
        action = env.env.action_space.sample()
        if env.action_mask is not None:
            action = env.action_mask.argmax(axis=1)
        look(env.step(action).obs)
    assert seen >= {key(as_observation(known.obs)) for known in PROBES[name].expectations}
    env.close()


def best_of(probe: Probe, view: Callable[[Any], Any]) -> float:
    """The best mean reward of one-step episodes for an agent that sees only `view(observation)`."""
    moves, rewards = explore(probe), defaultdict(list)
    for known in probe.actions:
        rewards[key(view(as_observation(known.obs)))].append([moves[asked(known)][action][0] for action in (0, 1)])
    return sum(np.sum(there, axis=0).max() for there in rewards.values()) / len(probe.actions)


def test_the_best_action_needs_the_whole_image():
    for name in ("ImagePosition", "ImageOfBits"):
        assert best_of(PROBES[name], lambda image: image) == 1
        rows, columns = (1, 2) if name == "ImagePosition" else (0, 1)
        for view in (partial(np.sum, axis=rows), partial(np.sum, axis=columns), partial(np.sort, axis=None)):
            assert best_of(PROBES[name], view) == 0.5


def test_the_best_action_needs_both_parts():
    assert best_of(PROBES["SightAndTouch"], lambda obs: obs) == 1
    for part in ("sight", "touch"):
        assert best_of(PROBES["SightAndTouch"], lambda obs, part=part: obs[part]) == 0.5


def test_one_part_of_a_tuple_has_zero_mean_value():
    known = {(obs[0], obs[1]["number"][0]): value for obs, value, *_ in PROBES["TupleProduct"].values}
    assert sorted(known) == [(5, -1), (5, 1), (6, -1), (6, 1), (7, -1), (7, 1)]
    for part in (0, 1):
        for seen in {obs[part] for obs in known}:
            assert sum(value for obs, value in known.items() if obs[part] == seen) == 0


def test_without_memory_no_policy_earns_more_than_half():
    env = PROBES["MemoryCue"].make()
    for answers in itertools.product((0, 1), repeat=3):  # to the cues -1 and 1 and to a blank
        policy, total = dict(zip((-1.0, 0.0, 1.0), answers, strict=True)), {}
        for seed in range(10):
            obs, over = env.reset(seed=seed)[0], False
            cue, pay = float(obs[0]), 0.0
            while not over:
                obs, reward, terminated, truncated, _ = env.step(policy[float(obs[0])])
                pay, over = pay + float(reward), terminated or truncated
            total[cue] = pay
        assert sum(total.values()) / len(total) == 0.5


def test_answers_of_known_bugs_differ_clearly():
    # EndlessTruncation, limit taken for an end: the mean of (1 - .9^k) / .1 over k = 1 … 8
    wrong = np.mean([(1 - 0.9**k) / 0.1 for k in range(1, 9)])
    assert wrong == pytest.approx(3.6, abs=0.1)
    assert PROBES["EndlessTruncation"].values[0].value == pytest.approx(1 / (1 - 0.9))
    # MemoryTruncation: a blank without memory is worth the mean of both cues, 0, so the last step gets its reward alone
    right = {known.name: known.value for known in PROBES["MemoryTruncation"].values}
    assert right == {"-1": -2, "-1, then 5 blanks": -2, "+1": 2, "+1, then 5 blanks": 2}
    # MemoryValue: without memory a blank is worth the mean of the three, 0, and not the cue
    right = {known.name: known.value for known in PROBES["MemoryValue"].values}
    assert right["+1, then 5 blanks"] == -right["-1, then 5 blanks"] == 1
    assert right["+1"] == -right["-1"] == pytest.approx(0.59049)  # 0.9^5
    assert right["+0"] == right["+0, then 5 blanks"] == 0


def test_actions_outside_the_space_are_errors():
    for name, action in (("ContinuousBounds", [1.5]), ("ActionSign", 2), ("Counter", -1)):
        env = PROBES[name].make()
        env.reset(seed=0)
        with pytest.raises(EnvStepError, match="lies outside"):
            env.step(action)


def test_the_masked_action_has_the_highest_reward():
    probe = PROBES["ActionMask"]
    moves = explore(probe)
    for known in probe.actions:
        forbidden = known.mask.index(False)
        assert max(moves[asked(known)], key=lambda a: moves[asked(known)][a][0]) == forbidden
