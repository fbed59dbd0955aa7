"""For every autoreset mode and backend, Transitions hold what the single envs did."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import failing_envs
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_envs import Named, Script, Scripted

from agilerl_like.envs import (
    EpisodeTracker,
    SubprocVectorEnv,
    Transition,
    VecEnvAdapter,
    check_finite,
    check_finite_array,
    make_vect_envs,
    tree_map,
)
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.errors import ConfigurationError, EnvStepError, Terminated


class OwnVector(VectorEnv):
    """A user's vector env that writes all results into the same arrays; `final` is the form of final observations."""

    def __init__(self, single_envs: Sequence[Scripted], mode: AutoresetMode, *, final: str = "stacked") -> None:
        self.single_envs = single_envs
        self.num_envs = len(single_envs)
        self.metadata = {"autoreset_mode": mode}
        self.mode, self.final = mode, final
        self.single_observation_space = single_envs[0].observation_space
        self.single_action_space = single_envs[0].action_space
        self.obs = np.zeros((self.num_envs, 3))
        self.reward = np.zeros(self.num_envs)
        self.terminated, self.truncated = np.zeros((2, self.num_envs), dtype=bool)
        self.over = np.zeros(self.num_envs, dtype=bool)

    def reset(self, *, seed=None, options=None):
        for row in np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))):
            self.obs[row] = self.single_envs[row].reset()[0]
            self.over[row] = False
        return self.obs, {}

    def step(self, actions):
        final = np.zeros_like(self.obs)
        for row, single_env in enumerate(self.single_envs):
            if self.mode is AutoresetMode.NEXT_STEP and self.over[row]:
                self.obs[row] = single_env.reset()[0]
                # what such rows bring is not to be trusted
                self.reward[row], self.terminated[row], self.truncated[row] = 9.0, True, True
                self.over[row] = False
                continue
            self.obs[row], self.reward[row], self.terminated[row], self.truncated[row], _ = single_env.step(
                actions[row]
            )
            self.over[row] = self.terminated[row] or self.truncated[row]
            if self.mode is AutoresetMode.SAME_STEP and self.over[row]:
                final[row] = self.obs[row]
                self.obs[row] = single_env.reset()[0]
        info = {"final_obs": final} if self.final == "stacked" and self.over.any() else {}
        return self.obs, self.reward, self.terminated, self.truncated, info


def scripts(count: int) -> list[Script]:
    """Different envs: ends of every kind, in consecutive steps, and one that never ends."""
    kinds: list[Script] = [
        [(3, True, False), (1, False, True)],
        [(1, True, False)],
        [(2, False, True), (2, True, True)],
        [(1000, True, False)],
    ]
    return [kinds[index % len(kinds)] for index in range(count)]


def run(env: VectorEnv, steps: int) -> tuple[list[Any], list[np.ndarray], list[Transition]]:
    """Return the observations that were acted on, the actions, and the transitions."""
    adapter = VecEnvAdapter(env)
    acted_on, actions, transitions = [adapter.reset(7)], [], []
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions.append(rng.integers(5, size=adapter.num_envs))
        transitions.append(adapter.step(actions[-1]))
        acted_on.append(transitions[-1].obs)
    return acted_on[:-1], actions, transitions


def as_journals(acted_on, actions, transitions, count: int) -> list[list[tuple[Any, ...]]]:
    """Reconstruct each env's journal from the valid rows."""
    journals: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    for obs, action, step in zip(acted_on, actions, transitions, strict=True):
        for row in np.flatnonzero(step.valid):
            before, after = (tree_map(lambda leaf, row=row: leaf[row], tree) for tree in (obs, step.next_obs))
            journals[row].append((before, int(action[row]), step.terminated[row], step.truncated[row], after))
            assert step.reward[row] == action[row] / 4
    return journals


def assert_same(journal, expected) -> None:
    assert len(journal) == len(expected) > 0
    for entry, truth in zip(journal, expected, strict=True):
        tree_map(np.testing.assert_array_equal, entry, truth)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", ["sync", "sync without copies", "sync of dicts", "own"])
def test_valid_rows_equal_the_envs_own_records(mode, kind):
    single_envs = [
        Scripted(index, script, space="dict" if kind == "sync of dicts" else "vector")
        for index, script in enumerate(scripts(4))
    ]
    if kind == "own":
        env = OwnVector(single_envs, mode)
    else:
        functions = [lambda single_env=single_env: single_env for single_env in single_envs]
        env = SyncVectorEnv(functions, autoreset_mode=mode, copy=kind != "sync without copies")
    journals = as_journals(*run(env, 12), count=4)
    for journal, single_env in zip(journals, single_envs, strict=True):
        assert_same(journal, single_env.journal)


@settings(max_examples=30, deadline=None)
@given(
    scripts=st.lists(
        st.lists(
            st.tuples(st.integers(1, 4), st.booleans(), st.booleans()).filter(lambda episode: episode[1] or episode[2]),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    mode=st.sampled_from(AutoresetMode),
)
def test_valid_rows_equal_the_envs_own_records_for_any_pattern_of_ends(scripts, mode):
    single_envs = [Scripted(index, script) for index, script in enumerate(scripts)]
    env = SyncVectorEnv([lambda single_env=single_env: single_env for single_env in single_envs], autoreset_mode=mode)
    journals = as_journals(*run(env, 15), count=len(single_envs))
    for journal, single_env in zip(journals, single_envs, strict=True):
        assert_same(journal, single_env.journal)


def reference(mode: AutoresetMode, seeds: list[int], actions: np.ndarray) -> list[Transition]:
    """Step single CartPoles by hand, as each mode is defined."""
    envs = [gym.make("CartPole-v1", max_episode_steps=12) for _ in seeds]
    obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    over = [False] * len(envs)
    transitions = []
    for row_actions in actions:
        rows = []
        for row, (env, action) in enumerate(zip(envs, row_actions, strict=True)):
            if over[row]:
                obs[row], over[row] = env.reset()[0], False
                rows.append((obs[row], 0.0, False, False, obs[row], False))
                continue
            after, reward, terminated, truncated, _ = env.step(action)
            obs[row] = after
            if terminated or truncated:
                if mode is AutoresetMode.NEXT_STEP:
                    over[row] = True
                else:
                    obs[row] = env.reset()[0]
            rows.append((obs[row], reward, terminated, truncated, after, True))
        transitions.append(Transition(*(np.array(column) for column in zip(*rows, strict=True)), action_mask=None))
    return transitions


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("backend", [SyncVectorEnv, AsyncVectorEnv])
def test_backends_and_modes_equal_a_loop_over_single_envs(mode, backend):
    seeds = [3, 1, 4]
    # pushing one way falls after 8 to 10 steps, pushing in turns is cut off at 12
    actions = np.stack([np.ones(50), np.arange(50) % 2, np.arange(50) // 2 % 2], axis=1).astype(np.int64)
    env = VecEnvAdapter(
        backend([lambda: gym.make("CartPole-v1", max_episode_steps=12)] * len(seeds), autoreset_mode=mode)
    )
    first = env.reset(seeds)
    singles = [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in seeds]
    np.testing.assert_array_equal(first, singles)
    kinds = set()
    for row_actions, expected in zip(actions, reference(mode, seeds, actions), strict=True):
        step = env.step(row_actions)
        for name in ("obs", "reward", "terminated", "truncated", "next_obs", "valid"):
            np.testing.assert_array_equal(getattr(step, name), getattr(expected, name), err_msg=name)
        kinds |= {(bool(t), bool(u)) for t, u in zip(step.terminated, step.truncated, strict=True)}
        assert step.reward.dtype == np.float32
    env.close()
    assert kinds >= {(False, False), (True, False), (False, True)}  # both ends were seen


@pytest.mark.parametrize("mode", AutoresetMode)
def test_next_obs_is_the_same_object_unless_a_row_differs(mode):
    _, _, transitions = run(SyncVectorEnv([lambda: Scripted(0, [(2, False, True)])], autoreset_mode=mode), 4)
    same = [step.next_obs is step.obs for step in transitions]
    assert same == ([True] * 4 if mode is AutoresetMode.NEXT_STEP else [True, False, True, False])


def test_rows_inserted_by_next_step_autoreset_are_not_valid():
    single_envs = [Scripted(0, [(1, True, False)]), Scripted(1, [(3, True, False)])]
    _, _, transitions = run(OwnVector(single_envs, AutoresetMode.NEXT_STEP), 5)
    # env 0 ends in every second step, env 1 in the third; OwnVector fills inserted rows with arbitrary values
    np.testing.assert_array_equal([step.valid[0] for step in transitions], [True, False, True, False, True])
    np.testing.assert_array_equal([step.valid[1] for step in transitions], [True, True, True, False, True])
    for step in transitions:
        assert not step.reward[~step.valid].any()
        assert not step.ended[~step.valid].any()


def test_after_a_reset_the_first_step_is_valid():
    adapter = VecEnvAdapter(OwnVector([Scripted(0, [(1, True, False)])], AutoresetMode.NEXT_STEP))
    adapter.reset()
    assert adapter.step([1]).terminated.all()
    adapter.reset()
    step = adapter.step([1])
    assert step.valid.all()
    assert step.terminated.all()


def test_returned_arrays_are_not_overwritten_by_later_steps():
    single_envs = [Scripted(index, script) for index, script in enumerate(scripts(4))]
    for mode in AutoresetMode:
        adapter = VecEnvAdapter(OwnVector(single_envs, mode))
        adapter.reset()
        kept = [adapter.step(np.arange(4)) for _ in range(1)]
        copies = [Transition(*(None if part is None else np.array(part) for part in step)) for step in kept]
        for _ in range(5):
            adapter.step(np.zeros(4, dtype=int))
        for step, copy in zip(kept, copies, strict=True):
            tree_map(np.testing.assert_array_equal, tuple(step)[:-1], tuple(copy)[:-1])


def test_same_step_without_final_obs_uses_the_last_known_and_warns_once():
    adapter = VecEnvAdapter(OwnVector([Scripted(0, [(2, False, True)])], AutoresetMode.SAME_STEP, final="missing"))
    adapter.reset()
    before_last = adapter.step([0]).obs
    with pytest.warns(UserWarning, match="final_obs"):
        step = adapter.step([0])
    np.testing.assert_array_equal(step.next_obs, before_last)
    np.testing.assert_array_equal(step.obs, [[0, 2, 0]])  # the second episode's first
    adapter.step([0])
    assert adapter.step([0]).truncated.all()  # no second warning, which would be an error here


@pytest.mark.parametrize("space", ["vector", "dict"])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, SubprocVectorEnv])
def test_policy_is_an_ordinary_key_in_vector_envs_of_single_envs(space, kind):
    script = [(2, False, True), (1, True, False)]
    env = kind([lambda: Named(Scripted(0, script, space=space))] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    adapter, single_env = VecEnvAdapter(env), Scripted(0, script, space=space)
    assert adapter.single_observation_space == Dict({"policy": single_env.observation_space})
    tree_map(np.testing.assert_array_equal, adapter.reset(), {"policy": twice(single_env.reset()[0])})
    for _ in range(5):
        step = adapter.step([1, 1])
        last, _, terminated, truncated, _ = single_env.step(1)
        first = single_env.reset()[0] if terminated or truncated else last
        tree_map(np.testing.assert_array_equal, step.next_obs, {"policy": twice(last)})
        tree_map(np.testing.assert_array_equal, step.obs, {"policy": twice(first)})
    env.close()


def twice(tree):
    return tree_map(lambda leaf: np.stack([leaf] * 2), tree)


class Bare:
    """Not derived from VectorEnv, like Isaac Lab's envs; last observations are stacked, or an object array."""

    def __init__(self, single_envs: Sequence[gym.Env], *, stacked: bool = True, tensors: bool = False) -> None:
        self.inner = SyncVectorEnv([lambda one=one: one for one in single_envs], autoreset_mode=AutoresetMode.SAME_STEP)
        self.num_envs, self.metadata = len(single_envs), self.inner.metadata
        self.stacked, self.of = stacked, torch.from_numpy if tensors else np.asarray
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, **given):
        obs, info = self.inner.reset(**given)
        return tree_map(self.of, obs), info

    def step(self, actions):
        obs, *rest, info = self.inner.step(actions)
        if self.stacked and "final_obs" in info:
            ended = info.pop("_final_obs")
            first = info["final_obs"][ended][0]
            final = [first if one is None else one for one in info["final_obs"]]
            stacked = tree_map(lambda *leaves: self.of(np.stack(leaves)), *final)
            info = {"final_obs": stacked, "_final_obs": self.of(ended)}
        return tree_map(self.of, obs), *map(self.of, rest), info


@pytest.mark.parametrize("space", ["vector", "dict"])
def test_tensor_dicts_of_simulators_are_reduced_to_the_policys_entry(space):
    singles = [Scripted(row, script, space=space) for row, script in enumerate(scripts(3))]
    env: Any = Bare([Named(single) for single in singles], tensors=True)
    assert VecEnvAdapter(env).single_observation_space == singles[0].observation_space
    journals = as_journals(*run(env, 9), count=3)
    for journal, single in zip(journals, singles, strict=True):
        assert_same(journal, single.journal)


@pytest.mark.parametrize("space", ["vector", "dict"])
@pytest.mark.parametrize("stacked", [True, False])
def test_policy_is_an_ordinary_key_in_numpy(space, stacked):
    singles = [Scripted(row, script, space=space) for row, script in enumerate(scripts(3))]
    env: Any = Bare([Named(single) for single in singles], stacked=stacked)
    assert VecEnvAdapter(env).single_observation_space == Dict({"policy": singles[0].observation_space})
    journals = as_journals(*run(env, 9), count=3)
    for journal, single in zip(journals, singles, strict=True):
        assert_same(
            journal,
            [({"policy": before}, *middle, {"policy": after}) for before, *middle, after in single.journal],
        )


def test_a_missing_autoreset_mode_is_next_step_with_a_warning():
    env = OwnVector([Scripted(0, [(1, True, False)])], AutoresetMode.NEXT_STEP)
    env.metadata = {}
    adapter = VecEnvAdapter(env)
    with pytest.warns(UserWarning, match="autoreset_mode.*NEXT_STEP"):
        adapter.reset()
    assert [bool(adapter.step([1]).valid[0]) for _ in range(3)] == [True, False, True]


def test_a_mode_may_be_a_string_and_an_unknown_one_is_refused():
    env = OwnVector([Scripted(0, [(1, True, False)])], AutoresetMode.SAME_STEP)
    env.metadata = {"autoreset_mode": "SameStep"}
    assert VecEnvAdapter(env).autoreset_mode is AutoresetMode.SAME_STEP
    env.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(ConfigurationError, match=r"'sometimes'.*NextStep"):
        VecEnvAdapter(env)


def test_a_single_env_is_refused_with_advice():
    with pytest.raises(ConfigurationError, match="make_vect_envs"):
        VecEnvAdapter(gym.make("CartPole-v1"))  # pyright: ignore[reportArgumentType]


# ---- seeds


def first_observations(env: VectorEnv, seeds) -> np.ndarray:
    return VecEnvAdapter(env).reset(seeds)


def test_rows_with_their_own_generator_follow_their_own_seed():
    env = make_vect_envs("CartPole-v1", 3, backend="sync")
    there = first_observations(env, [5, 6, 7])
    np.testing.assert_array_equal(first_observations(env, np.array([7, 6, 5])), there[::-1])
    np.testing.assert_array_equal(first_observations(env, 5), there)  # one seed counts up


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_inside_of_wrappers_rows_follow_their_own_seed(backend):
    single = make_vect_envs("CartPole-v1", 3, backend="sync")
    env = make_vect_envs("CartPole-v1", 3, backend=backend, num_workers=1 if backend == "workers" else None)
    wrapped = RecordEpisodeStatistics(RecordEpisodeStatistics(env))
    there = first_observations(single, [7, 2, 5])
    np.testing.assert_array_equal(first_observations(wrapped, [7, 2, 5]), there)
    wrapped.close()


def test_with_a_shared_generator_every_seed_of_the_list_matters():
    env = make_vect_envs("CartPole-v1", 3, backend="vector")
    base = first_observations(env, [5, 6, 7])
    np.testing.assert_array_equal(first_observations(env, [5, 6, 7]), base)
    for other in ([4, 6, 7], [5, 4, 7], [5, 6, 4]):
        assert (first_observations(env, other) != base).any()


def test_a_list_of_seeds_of_another_length_is_refused():
    adapter = VecEnvAdapter(make_vect_envs("CartPole-v1", 3, backend="sync"))
    with pytest.raises(ConfigurationError, match=r"seeds has 2 entries.*3 envs"):
        adapter.reset([1, 2])


# ---- action masks


class Masked(gym.Env):
    """Allows only action `time % 3`, nothing after the episode's end; may leave the mask out at even times."""

    def __init__(self, *, forgets: bool = False, as_list: bool = False, action_space: gym.Space | None = None) -> None:
        self.observation_space = Box(0, 9, (1,))
        self.action_space = action_space or Discrete(3)
        self.forgets, self.as_list = forgets, as_list

    def say(self) -> tuple[np.ndarray, dict[str, Any]]:
        mask = np.arange(3) == self.time % 3 if self.time < 4 else np.zeros(3, dtype=bool)
        info = {} if self.forgets and self.time % 2 == 0 else {"action_mask": mask.astype(np.int8)}
        if self.as_list and info:
            info = {"action_mask": mask.tolist()}
        return np.array([self.time], dtype=np.float32), info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.say()

    def step(self, action):
        self.time += 1
        obs, info = self.say()
        return obs, 0.0, False, self.time == 4, info


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("as_list", [False, True])
def test_the_mask_belongs_to_the_observation_to_act_on(mode, as_list):
    env = SyncVectorEnv([lambda: Masked(as_list=as_list)] * 2, autoreset_mode=mode)
    adapter = VecEnvAdapter(env)
    obs = adapter.reset()
    for _ in range(12):
        assert adapter.action_mask is not None
        time = int(obs[0, 0])
        # after the last step of an episode NEXT_STEP ignores the next action: all are allowed
        expected = np.ones(3, dtype=bool) if time == 4 else np.arange(3) == time % 3
        np.testing.assert_array_equal(adapter.action_mask, [expected] * 2)
        step = adapter.step([0, 0])
        assert step.action_mask is adapter.action_mask
        obs = step.obs


class MaskedToTheEnd(Masked):
    """Allows action `time % 3` after the episode's end, too."""

    def say(self):
        return super().say()[0], {"action_mask": np.arange(3) == self.time % 3}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("make", "expected"), [(MaskedToTheEnd, [0, 1, 0]), (Masked, [1, 1, 1]), (partial(Masked, forgets=True), [1, 1, 1])]
)
def test_the_mask_of_a_last_observation_is_that_of_the_last_step(mode, make, expected):
    adapter = VecEnvAdapter(SyncVectorEnv([make] * 2, autoreset_mode=mode))
    adapter.reset()
    *_, before, last = (adapter.step([0, 0]) for _ in range(4))
    assert last.truncated.all()
    assert before.last_mask is None
    np.testing.assert_array_equal(last.action_mask if last.next_obs is last.obs else last.last_mask, [expected] * 2)


def test_rows_and_steps_without_a_mask_allow_everything():
    adapter = VecEnvAdapter(
        SyncVectorEnv([Masked, lambda: Masked(forgets=True)], autoreset_mode=AutoresetMode.SAME_STEP)
    )
    adapter.reset()
    np.testing.assert_array_equal(adapter.action_mask, [[1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(adapter.step([0, 0]).action_mask, [[0, 1, 0], [0, 1, 0]])
    lone = VecEnvAdapter(SyncVectorEnv([lambda: Masked(forgets=True)], autoreset_mode=AutoresetMode.SAME_STEP))
    lone.reset()
    assert lone.action_mask is None  # no mask yet
    np.testing.assert_array_equal(lone.step([0]).action_mask, [[0, 1, 0]])
    np.testing.assert_array_equal(lone.step([0]).action_mask, [[1, 1, 1]])  # it has masks, and was silent


class MaskedLater(Masked):
    """Returns masks at the start of its second and all later episodes only."""

    episodes = 0

    def say(self):
        return super().say()[0], {}

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": np.array([True, False, False])} if self.episodes > 1 else {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_first_mask_may_come_with_a_later_episode(mode):
    adapter = VecEnvAdapter(SyncVectorEnv([MaskedLater] * 2, autoreset_mode=mode))
    adapter.reset()
    found_masks, masks = [], []
    for _ in range(9):
        step = adapter.step([0, 0])
        if step.obs[0, 0] == 0:  # an episode begins, the second or a later one
            found_masks.append(step.action_mask)
        elif found_masks:
            masks.append(step.action_mask)
    assert len(found_masks) == (2 if mode is not AutoresetMode.NEXT_STEP else 1)
    for mask in found_masks:
        np.testing.assert_array_equal(mask, [[True, False, False]] * 2)
    for mask in masks:
        np.testing.assert_array_equal(mask, np.ones((2, 3)))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("present", [np.array([True, False]), torch.tensor([True, False]), None])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_masks_of_a_tensor_env_may_be_numpy(mode, present, kind):
    class OnDevice(OwnVector):
        def reset(self, *, seed=None, options=None):
            return torch.from_numpy(super().reset()[0]), self.masks

        def step(self, actions):
            obs, *rest, _ = super().step(actions)
            return torch.from_numpy(obs), *map(torch.from_numpy, rest), self.masks

        @property
        def masks(self):
            rows = [[True, False, True, False, False], [False, True, False, False, False]]
            return {"action_mask": kind(rows), **({} if present is None else {"_action_mask": present})}

    adapter = VecEnvAdapter(OnDevice([Scripted(row, [(9, True, False)]) for row in range(2)], mode))
    adapter.reset()
    for mask in (adapter.action_mask, adapter.step([1, 1]).action_mask):
        assert isinstance(mask, torch.Tensor)
        second = [False, True, False, False, False] if present is None else [True] * 5
        assert mask.tolist() == [[True, False, True, False, False], second]


def test_gymnasiums_taxi_has_masks():
    adapter = VecEnvAdapter(make_vect_envs("Taxi-v4", 2, backend="sync"))
    adapter.reset([0, 1])
    singles = [gym.make("Taxi-v4").reset(seed=seed)[1]["action_mask"] for seed in (0, 1)]
    np.testing.assert_array_equal(adapter.action_mask, singles)


@pytest.mark.parametrize(
    ("space", "allowed"),
    [(Discrete(4), r"\(1, 4\)"), (MultiDiscrete([2, 2]), r"\(1, 4\)"), (MultiBinary(5), r"\(1, 5\)")],
)
def test_a_mask_of_the_wrong_shape_is_refused(space, allowed):
    adapter = VecEnvAdapter(SyncVectorEnv([lambda: Masked(action_space=space)]))
    with pytest.raises(ConfigurationError, match=rf"action_mask.*\(1, 3\).*{allowed}"):
        adapter.reset()


def test_a_mask_that_allows_nothing_names_the_env():
    class Stuck(Masked):
        def say(self):
            return super().say()[0], {"action_mask": np.array([True, True, False, False])}

    # MultiDiscrete([2, 2]): the first pair is free, the second has no choice at all
    adapter = VecEnvAdapter(SyncVectorEnv([lambda: Stuck(action_space=MultiDiscrete([2, 2]))] * 2))
    with pytest.raises(EnvStepError, match=r"env 0: action_mask=\[1, 1, 0, 0\]"):
        adapter.reset()


# ---- episodes, faults


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_tracker_sums_each_episode_once_and_skips_inserted_rows(mode):
    single_envs = [Scripted(index, script) for index, script in enumerate(scripts(4))]
    _, _, transitions = run(
        SyncVectorEnv([lambda single_env=single_env: single_env for single_env in single_envs], autoreset_mode=mode), 14
    )
    tracker = EpisodeTracker(4, NumpyBackend())
    halves = []
    for start in (0, 7):
        for step in transitions[start : start + 7]:
            tracker.update(step.reward, step.ended, step.valid)
        halves.append(tracker.take())
    for single_env in single_envs:
        returns, total = [], 0.0
        for _, action, terminated, truncated, _ in single_env.journal:
            total += action / 4
            if terminated or truncated:
                returns.append(total)
                total = 0.0
        assert sum(int(half.counts[single_env.index]) for half in halves) == len(returns)
        assert sum(float(half.returns[single_env.index]) for half in halves) == sum(returns)
        assert tracker.running[single_env.index] == total  # of the episode that still runs
    assert not tracker.take().counts.any()


def test_an_episode_whose_worker_was_lost_does_not_count():
    tracker = EpisodeTracker(2, NumpyBackend())
    ended, valid = np.array([True, True]), np.array([True, False])
    tracker.update(np.array([1.0, 1.0]), ended, valid)
    assert tracker.running.tolist() == [0.0, 0.0]
    counts, returns = tracker.take()
    assert (counts.tolist(), returns.tolist()) == ([1, 0], [1.0, 0.0])


def transition(obs: Any, reward: Sequence[float], next_obs: Any = None) -> Transition:
    flags = np.zeros(len(reward), dtype=bool)
    successor = obs if next_obs is None else next_obs
    return Transition(obs, np.array(reward, np.float32), flags, flags, successor, ~flags, None)


def test_non_finite_values_are_named_with_env_index_and_value():
    fine = np.zeros((2, 3), dtype=np.float32)
    broken = fine.copy()
    broken[1, 2] = np.nan
    check_finite(transition(fine, [0.0, 1e30]))
    with pytest.raises(EnvStepError, match=r"env 1: observation\[2\]=nan"):
        check_finite(transition(broken, [0.0, 0.0]))
    with pytest.raises(EnvStepError, match=r"env 1: last observation\[2\]=nan"):
        check_finite(transition(fine, [0.0, 0.0], broken))
    with pytest.raises(EnvStepError, match=r"env 0: reward=-inf"):
        check_finite(transition(fine, [-np.inf, 0.0]))
    with pytest.raises(EnvStepError, match=r"env 1: observation\['b'\]\[0\]\[2\]=nan"):
        check_finite(transition({"a": fine, "b": (broken,)}, [0.0, 0.0]))
    check_finite_array("observation", np.array([3, 4]))  # whole numbers are always finite


# ---- an environment that fails in this process


IN_SYNC = [
    (failing_envs.RAISES, r"step failed with ZeroDivisionError: one .* \(File \S+failing_envs.py\", line \d+, in step"),
    (
        failing_envs.LOSES_SERVER,
        r"step failed with ConnectionResetError: the simulator does not answer \(File .*in step",
    ),
    (failing_envs.LEAVES, r"step failed with SystemExit: 0 \(File .*failing_envs.py"),
    (failing_envs.FORGETS_INFO, "step failed with ValueError: not enough values to unpack"),
    (failing_envs.PAYS_AN_ARRAY, "step failed with ValueError: setting an array element with a sequence"),
    (failing_envs.PAYS_A_COMPLEX, "step failed with TypeError"),
    (failing_envs.CHANGES_SHAPE, r"an observation has shape \(1,\) and dtype float32; its space has shape \(2,\)"),
    (failing_envs.CHANGES_DTYPE, "an observation has shape .* and dtype complex128; its space has .* dtype float32"),
]


@pytest.mark.parametrize(("defect", "message"), IN_SYNC)
def test_an_exception_of_an_env_in_this_process_names_env_row_and_line(defect, message):
    env = VecEnvAdapter(SyncVectorEnv([failing_envs.FailingEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset([1, 2, 3])
    with pytest.raises(EnvStepError, match=f"^FailingEnv: env 1: {message}") as error:
        env.step(np.array([0, defect, 0]))
    assert error.value.__cause__ is not None


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's logger prints the worker's traceback
@pytest.mark.parametrize(("defect", "message"), IN_SYNC[:2])
def test_an_exception_of_an_env_in_a_worker_of_gymnasium_names_env_row_and_line(defect, message):
    env = VecEnvAdapter(make_vect_envs(failing_envs.FailingEnv, 3, backend="async"))
    env.reset([1, 2, 3])
    with pytest.raises(EnvStepError, match=f"^FailingEnv: env 1: {message}"):
        env.step(np.array([0, defect, 0]))
    env.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_exception_at_a_reset_in_a_worker_of_gymnasium_names_env_row_and_line():
    env = VecEnvAdapter(make_vect_envs(failing_envs.BrokenAtReset, 1, backend="async"))
    with pytest.raises(
        EnvStepError, match=r"^BrokenAtReset: env 0: reset failed with ZeroDiv.* no episode .*failing_env"
    ):
        env.reset([1])
    env.close()


def test_an_exception_at_a_reset_names_env_row_and_line():
    env = VecEnvAdapter(SyncVectorEnv([failing_envs.FailingEnv, failing_envs.BrokenAtReset]))
    with pytest.raises(EnvStepError, match=r"^FailingEnv: env 1: reset failed with ZeroDivisionError: no episode can"):
        env.reset([1, 2])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_signals_that_end_the_process_are_not_env_errors(stop):
    class Stopped(failing_envs.FailingEnv):
        def step(self, action):
            raise stop

    env = VecEnvAdapter(SyncVectorEnv([Stopped]))
    env.reset([1])
    with pytest.raises(stop):
        env.step(np.zeros(1, int))


class AsTensors(VectorWrapper):
    """Converts numpy arrays to tensors, as gymnasium's NumpyToTorch does."""

    def reset(self, *, seed=None, options=None):
        if options:
            options = {name: mask.numpy() for name, mask in options.items()}
        obs, info = self.env.reset(seed=seed, options=options)
        return torch.as_tensor(obs), info

    def step(self, actions):
        *arrays, info = self.env.step(np.asarray(actions))
        return *map(torch.as_tensor, arrays), info


def test_envs_of_numpy_that_return_tensors_are_reset_only_where_an_episode_ended():
    def made(wrap):
        fns = [partial(Scripted, index, script) for index, script in enumerate(scripts(4))]
        return VecEnvAdapter(wrap(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.DISABLED)))

    numpy, tensors = made(lambda env: env), made(AsTensors)
    numpy.reset(7), tensors.reset(7)
    for step in range(12):
        one, other = (env.step(np.full(4, step % 5)) for env in (numpy, tensors))
        for name in ("obs", "next_obs", "reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(one, name), np.asarray(getattr(other, name)))


def test_a_dict_space_that_is_made_for_each_access_is_not_taken_for_one_with_a_policy():
    class Fresh(VectorEnv):
        num_envs, single_action_space = 2, Discrete(2)

        def __init__(self):
            self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

        @property
        def single_observation_space(self):
            return Dict({"a": Box(-1, 1, (1,)), "b": Box(-1, 1, (2,))})

        def reset(self, *, seed=None, options=None):
            return {"a": np.zeros((2, 1), np.float32), "b": np.zeros((2, 2), np.float32)}, {}

    assert {*VecEnvAdapter(Fresh()).reset(0)} == {"a", "b"}
