"""Envs in worker processes: the same bits as in one process, and every failure of a process."""

import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import failing_envs
import gymnasium as gym
import numpy as np
import pytest
from equal_results import same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from slowness import slowness

from agilerl_like import DQN, TransitionBuffer
from agilerl_like.envs import (
    SubprocVectorEnv,
    VecEnvAdapter,
    describe_backend,
    evaluation_env,
    make_vect_envs,
    with_num_envs,
)
from agilerl_like.envs.backend_timing import prefer_workers
from agilerl_like.envs.gymnasium_vector_fixes import fix_infos
from agilerl_like.envs.subproc.vec_env import STEP_TIMEOUT, resolve_num_workers
from agilerl_like.errors import ConfigurationError, EnvStepError

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


def at(rows, tree):
    if isinstance(tree, dict):
        return {key: at(rows, part) for key, part in tree.items()}
    return tuple(at(rows, part) for part in tree) if isinstance(tree, tuple) else tree[rows]


# ---- the same bits as in one process


@st.composite
def layouts(draw):
    num_members, envs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return (
        num_members,
        num_members * envs,
        draw(st.integers(1, 3)),
        draw(st.sampled_from([SAME_STEP, NEXT_STEP, DISABLED])),
    )


def sync_env(num_envs, mode):
    """gymnasium's SyncVectorEnv, which would cast the numbers of infos to the type of the first row's."""
    sync = SyncVectorEnv([failing_envs.AllSpaces] * num_envs, autoreset_mode=mode)
    fix_infos(sync)
    return sync


@pytest.mark.slow
@settings(max_examples=6)
@given(layouts(), st.integers(0, 99))
def test_results_equal_sync(layout, seed):
    num_members, num_envs, num_workers, mode = layout
    sync = sync_env(num_envs, mode)
    env = SubprocVectorEnv(
        [failing_envs.AllSpaces] * num_envs, num_workers=num_workers, num_members=num_members, autoreset_mode=mode
    )
    assert (env.observation_space, env.action_space) == (sync.observation_space, sync.action_space)
    assert env.metadata == sync.metadata
    sync.action_space.seed(seed)
    for seeds, options in ((seed, None), ([seed + 3 * row for row in range(num_envs)], {"level": 2}), (None, None)):
        same(env.reset(seed=seeds, options=options), sync.reset(seed=seeds, options=options))
        for step in range(10):
            actions = sync.action_space.sample()
            expected = sync.step(actions)
            if step % 3 == 2:
                in_parts(env, actions, expected)
            else:
                same(env.step(actions), expected)
            ended = expected[2] | expected[3]
            if mode is DISABLED and ended.any():
                same(env.reset(options={"reset_mask": ended}), sync.reset(options={"reset_mask": ended.copy()}))
    env.close()


def in_parts(env, actions, expected):
    for part, rows in enumerate(env.env_groups):
        env.step_async(part, at(rows, actions))
    for part, rows in reversed(list(enumerate(env.env_groups))):
        same(env.step_wait(part)[:4], at(rows, expected[:4]))


def test_each_group_equals_sync_while_the_other_group_steps():
    env = SubprocVectorEnv([failing_envs.AllSpaces] * 10, num_workers=2, num_members=2)
    same(env.env_groups, (np.array([0, 1, 2, 5, 6, 7]), np.array([3, 4, 8, 9])))
    alone = [sync_env(len(rows), SAME_STEP) for rows in env.env_groups]
    env.reset(seed=list(range(10)))
    for rows, sync in zip(env.env_groups, alone, strict=True):
        sync.reset(seed=rows.tolist())
    actions = [[sync.action_space.sample() for _ in range(12)] for sync in alone]
    env.step_async(0, actions[0][0])
    for step in range(12):
        env.step_async(1, actions[1][step])
        same(env.step_wait(0), alone[0].step(actions[0][step]))
        if step < 11:
            env.step_async(0, actions[0][step + 1])
        same(env.step_wait(1), alone[1].step(actions[1][step]))
    env.close()


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "num_members", "env_groups"),
    [
        (4, 2, 1, [[0, 1], [2, 3]]),
        (5, 2, 1, [[0, 1, 2], [3, 4]]),
        (6, 3, 2, [[0, 1, 3, 4], [2, 5]]),
        (4, 2, 4, [[0, 1, 2, 3]]),  # one env a member
        (4, 1, 1, [[0, 1, 2, 3]]),  # one worker
        (1, 8, 1, [[0]]),  # which is one worker, too
    ],
)
def test_groups_split_the_envs_of_every_member(num_envs, num_workers, num_members, env_groups):
    env = SubprocVectorEnv([failing_envs.FailingEnv] * num_envs, num_workers=num_workers)
    env.set_num_members(num_members)
    assert [rows.tolist() for rows in env.env_groups] == env_groups


def test_actions_of_another_dtype_are_passed_unchanged():
    actions = np.random.default_rng(0).uniform(-2, 2, (20, 3, 1))  # float64, for a space of float32
    sync = make_vect_envs("Pendulum-v1", 3, backend="sync")
    env = make_vect_envs("Pendulum-v1", 3, backend="workers", num_workers=2)
    same(env.reset(seed=1), sync.reset(seed=1))
    for action in actions:
        same(env.step(action), sync.step(action))
    env.close()


# ---- making


@pytest.fixture
def env_of():
    """Make an env of workers that is closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(SubprocVectorEnv(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_workers_do_not_import_torch_and_use_one_thread(env_of):
    env = env_of([failing_envs.FailingEnv] * 2, num_workers=2)
    for modules, threads in env.call("modules"):
        assert "gymnasium" in modules
        assert not {"torch", "agilerl_like.algorithms", "agilerl_like.envs.vec_adapter"} & set(modules)
        assert threads["OMP_NUM_THREADS"] == threads["MKL_NUM_THREADS"] == threads["OPENBLAS_NUM_THREADS"] == "1"


def test_a_vector_env_can_be_imported_without_torch():
    code = "import sys; from agilerl_like import make_vect_envs, envs; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_call_get_attr_and_set_attr_reach_the_envs(env_of):
    env = env_of([failing_envs.FailingEnv] * 3, num_workers=2)
    env.set_attr("mark", [1, 2, 3])
    assert env.get_attr("mark") == (1, 2, 3)
    env.set_attr("mark", 4)
    assert env.get_attr("mark") == (4, 4, 4)
    with pytest.raises(EnvStepError, match="no_such_thing"):
        env.call("no_such_thing")
    assert env.get_attr("mark") == (4, 4, 4)


def test_env_functions_of_scripts_and_closures_are_sent_by_value():
    class Local(failing_envs.FailingEnv):
        pass

    with failing_envs.registered("OnlyHere-v0", Local):
        for source in ("OnlyHere-v0", Local, lambda: Local()):
            one, other = (make_vect_envs(source, 2, backend=backend) for backend in ("sync", "workers"))
            same(one.reset(seed=3), other.reset(seed=3))
            other.close()


def test_workers_make_instances_of_ids_that_only_the_parent_has_registered():
    class Local(failing_envs.FailingEnv):
        pass

    ids = ["OnlyHere-v0", "OnlyThere-v0"]
    with failing_envs.registered(ids[0], failing_envs.FailingEnv), failing_envs.registered(ids[1], Local):
        one, other = (make_vect_envs(ids, 2, backend=backend) for backend in ("sync", "workers"))
        same(one.reset(seed=3), other.reset(seed=3))
        other.close()


def test_wrappers_and_arguments_reach_the_workers():
    env = make_vect_envs("Pendulum-v1", 2, backend="workers", wrappers=[("TimeLimit", {"max_episode_steps": 2})], g=3.0)
    assert env.get_attr("g") == (3.0, 3.0)
    env.reset(seed=1)
    assert [env.step(np.zeros((2, 1), np.float32))[3].tolist() for _ in range(2)] == [[False] * 2, [True] * 2]
    env.close()


def test_with_num_envs_keeps_workers():
    narrow = make_vect_envs(failing_envs.FailingEnv, 2, backend="workers", num_workers=2, step_timeout=7.0)
    for env in (with_num_envs(narrow, 6), evaluation_env(narrow, 6)):
        assert isinstance(env, SubprocVectorEnv)
        assert (env.num_envs, env.num_workers, env.timeout) == (6, 2, 7.0)
    by_hand = with_num_envs(SubprocVectorEnv([failing_envs.FailingEnv, failing_envs.Slow]), 3)
    assert isinstance(by_hand, SubprocVectorEnv)
    assert by_hand.env_fns == (failing_envs.FailingEnv, failing_envs.Slow, failing_envs.FailingEnv)
    assert (by_hand.num_workers, by_hand.timeout) == (resolve_num_workers(None, 3), STEP_TIMEOUT)
    for num_workers, num_envs, expected in ((1, 6, 1), (3, 6, 3), (3, 2, 2), (None, 6, resolve_num_workers(None, 6))):
        given = SubprocVectorEnv([failing_envs.FailingEnv] * 3, num_workers=num_workers, timeout=7.0)
        again = with_num_envs(with_num_envs(given, 1), num_envs)  # through one env, for which one worker does
        assert isinstance(again, SubprocVectorEnv)
        assert (again.num_workers, again.timeout) == (expected, 7.0)


# ---- choosing


def test_auto_takes_workers_for_slow_envs_and_sync_for_fast_ones():
    slow = make_vect_envs(failing_envs.Slow, 8, num_workers=2)  # 8 ms, or 4 ms and the exchange
    assert isinstance(slow, SubprocVectorEnv)
    assert describe_backend(slow).startswith("workers, because a step of 8 envs takes")
    quick = make_vect_envs(failing_envs.Quick, 8, num_workers=2)
    assert isinstance(quick, SyncVectorEnv)
    assert describe_backend(quick).startswith("sync, because a step of 8 envs takes")


def test_auto_chooses_again_for_another_number_of_envs():
    one = make_vect_envs(failing_envs.Slow, 1, num_workers=2)
    assert describe_backend(one) == "sync, because there is no second env or core for a second process"
    assert isinstance(with_num_envs(one, 8), SubprocVectorEnv)
    assert isinstance(
        with_num_envs(make_vect_envs(failing_envs.Slow, 1, backend="sync", num_workers=2), 8), SyncVectorEnv
    )


class Speaking(failing_envs.Slow):
    observation_space = gym.spaces.Text(5)


class OnlyHere:
    def __init__(self, lock):
        self.lock = lock

    def __call__(self):
        return failing_envs.Slow()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Speaking, "but not Text"),
        (OnlyHere(threading.Lock()), "cannot be sent to a worker process"),
    ],
)
def test_unsupported_envs_are_named_and_auto_takes_sync(source, why):
    with pytest.raises(ConfigurationError, match=f"backend='workers': .*{why}"):
        make_vect_envs(source, 8, backend="workers", num_workers=2)
    env = make_vect_envs(source, 8, num_workers=2)
    assert isinstance(env, SyncVectorEnv)
    assert why in describe_backend(env)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_workers": 0}, "num_workers=0; allowed are whole numbers from 1"),
        ({"num_workers": 1.5}, "num_workers=1.5; allowed"),
        ({"step_timeout": 0}, "step_timeout=0; allowed are seconds above 0"),
    ],
)
def test_settings_of_workers_are_checked(setting, message):
    with pytest.raises(ConfigurationError, match=message):
        make_vect_envs("CartPole-v1", 2, **setting)


def test_wrong_calls_are_errors(env_of):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(4, int))
    with pytest.raises(ConfigurationError, match="num_members=3; allowed are the divisors of num_envs=4"):
        env.set_num_members(3)
    with pytest.raises(ConfigurationError, match="seed has 1 entries"):
        env.reset(seed=[1])
    env.reset(seed=1)
    with pytest.raises(ConfigurationError, match="actions has 3 rows; allowed is one for each of 2 envs"):
        env.step_async(0, np.zeros(3, int))
    for step in (env.step, VecEnvAdapter(env).step):
        for wrong, rows in ((np.zeros(5, int), 5), (np.zeros(3, int), 3), ([], 0), (0, "no")):
            with pytest.raises(ConfigurationError, match=f"actions has {rows} rows; allowed is one for each of 4 envs"):
                step(wrong)
    with pytest.raises(gym.error.NoAsyncCallError):
        env.step_wait(0)
    env.step_async(0, np.zeros(2, int))
    with pytest.raises(gym.error.AlreadyPendingCallError):
        env.step_async(0, np.zeros(2, int))
    same(env.reset(seed=1)[0], env.reset(seed=1)[0])  # a reset forgets what was sent
    env.step(np.zeros(4, int))
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.step(np.zeros(4, int))


# ---- failures of workers


def derived(seed, restarts):
    """The documented seed of the episode after a failure."""
    return int(np.random.SeedSequence(seed, spawn_key=(restarts,)).generate_state(1)[0] >> 1)


def first_observation(seed):
    return failing_envs.FailingEnv().reset(seed=seed)[0]


FAILURES = [
    (failing_envs.RAISES, r"ended with exit code 1 \(ZeroDivisionError: one step too many"),
    (failing_envs.EXITS, r"ended with exit code 3 \(no traceback"),
    (failing_envs.IS_KILLED, "was killed by SIGKILL"),
    (failing_envs.CRASHES, r"was killed by SIGSEGV \(File .*in string_at"),
    (failing_envs.HANGS, r"gave no answer for [\d.]+ s \(step_timeout\) \(File .*in wait"),
    (failing_envs.CHANGES_SHAPE, r".*an observation has shape \(1,\) and dtype float32; its space has shape \(2,\)"),
    (
        failing_envs.LOSES_SERVER,
        r"ended with exit code 1 \(ConnectionResetError: the simulator does not answer \(File .*in step",
    ),
    (failing_envs.LOSES_SERVER, r"ended with exit code 1 \(ConnectionResetError"),
]


@pytest.mark.slow
def test_a_failure_truncates_its_episodes_and_stepping_continues(env_of):
    env = env_of(
        [failing_envs.FailingEnv] * 4, num_workers=2, num_members=2, timeout=2.0 * slowness()
    )  # rows 1 and 2 are worker 1's
    before, _ = env.reset(seed=[10, 20, 30, 40])
    for restarts, (failure, message) in enumerate(FAILURES, 1):  # more than three, but never in a row
        with pytest.warns(
            RuntimeWarning, match=rf"FailingEnv, member 0, env 1 .*\(seeded with 20\): worker 1 {message}"
        ):
            after, reward, terminated, truncated, info = env.step(np.array([0, failure, 0, 0]))
        same(reward, np.array([1.0, 0.0, 0.0, 1.0]))
        assert not terminated.any()
        same(truncated, np.array([False, True, True, False]))
        same(info["worker_lost"], truncated)
        same(np.stack(list(info["final_obs"][1:3])), before[1:3])
        fresh = [first_observation(derived(seed, restarts)) for seed in (20, 30)]
        same(after, np.stack([before[0] + np.float32([0, 1]), *fresh, before[3] + np.float32([0, 1])]))
        before, reward, *_, info = env.step(np.zeros(4, int))
        same(before, after + np.float32([0, 1]))
        same(reward, np.ones(4))
        assert info == {}


@pytest.mark.slow
def test_the_time_limit_is_that_of_one_env_and_not_of_all_rows_of_a_worker(env_of):
    count, limit = 8, 2.0 * slowness()
    env = env_of([failing_envs.SlowToReset] * count, num_workers=1, timeout=limit)
    start = time.monotonic()
    env.reset(seed=1)  # a restart would be a warning, which is an error
    assert time.monotonic() - start > 0.5 * count


def test_processes_that_an_env_started_end_with_its_worker(env_of):
    env = env_of([failing_envs.WithSimulator] * 2, num_workers=1)
    first = env.reset(seed=1)[1]["pid"].tolist()
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        env.step(np.array([failing_envs.IS_KILLED, 0]))
    second = env.reset(seed=1)[1]["pid"].tolist()
    assert not {*first} & {*second}
    assert all(map(has_ended, first))
    env.close()
    assert all(map(has_ended, second))


def has_ended(pid):
    """Whether a process ends within moments; one that has ended may still be in the table of its new parent."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_info_that_cannot_be_sent_is_named_and_auto_avoids_workers(env_of):
    env = env_of([failing_envs.Unsendable] * 2, num_workers=2)
    with pytest.raises(EnvStepError, match=r"an info cannot be sent to another process .*or backend='sync'") as error:
        env.reset(seed=1)
    assert "defect of the environment" not in str(error.value)
    preferred, reason = prefer_workers(failing_envs.Unsendable, num_envs=1000, num_workers=2)
    assert not preferred
    assert "an info cannot be sent to another process" in reason


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP, DISABLED])
def test_lost_steps_are_not_valid(env_of, mode):
    env = VecEnvAdapter(
        env_of([failing_envs.FailingEnv] * 4, num_workers=2, autoreset_mode=mode)
    )  # worker 0 has rows 0 and 3
    before = env.reset([10, 20, 30, 40])
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        step = env.step(np.array([failing_envs.IS_KILLED, 0, 0, 0]))
    lost = np.array([True, False, False, True])
    same(step.valid, ~lost)
    same(step.truncated, lost)
    same(step.next_obs[lost], before[lost])
    same(step.reward, np.array([0, 1, 1, 0], np.float32))


def test_with_next_step_a_reset_that_is_lost_is_not_valid_when_it_is_repeated(env_of):
    env = VecEnvAdapter(env_of([failing_envs.FailingEnv] * 2, num_workers=1, autoreset_mode=NEXT_STEP))
    env.reset([10, 20])
    assert env.step(np.array([failing_envs.ENDS, 0])).terminated.tolist() == [True, False]
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        lost = env.step(np.array([0, failing_envs.IS_KILLED]))  # in the step that resets row 0
    assert (lost.valid.tolist(), lost.truncated.tolist()) == ([False, False], [False, True])
    repeated = env.step(np.zeros(2, int))
    assert (repeated.valid.tolist(), repeated.ended.tolist()) == ([False, False], [False, False])
    assert repeated.obs[:, 1].tolist() == [0.0, 0.0]
    assert env.step(np.zeros(2, int)).valid.all()


@pytest.mark.parametrize("ends_before", [False, True])
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP, DISABLED])
def test_a_hand_written_loop_stores_the_steps_that_are_valid(env_of, mode, ends_before):
    """With `ends_before` the worker is lost in the step that resets row 0 with next-step autoreset."""
    env, other = (env_of([failing_envs.FailingEnv] * 2, num_workers=1, autoreset_mode=mode) for _ in range(2))
    adapter, agent = VecEnvAdapter(other), DQN(env.single_observation_space, env.single_action_space, num_envs=2)
    buffer = TransitionBuffer(agent, env)
    before, _ = env.reset(seed=[10, 20])
    adapter.reset([10, 20])
    for actions in [[failing_envs.ENDS, 0]] * ends_before + [[0, failing_envs.IS_KILLED], [0, 0], [0, 0]]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*SIGKILL", RuntimeWarning)
            (obs, reward, terminated, truncated, info), step = env.step(np.array(actions)), adapter.step(actions)
        assert buffer.add(before, actions, reward, terminated, truncated, obs, info) == step.valid.sum()
        if step.valid.any():
            same(buffer.newest()["obs"], before[step.valid])
            same(buffer.newest()["reward"], step.reward[step.valid])
        before = obs
        if mode is DISABLED and (terminated | truncated).any():
            before, _ = env.reset(options={"reset_mask": terminated | truncated})


def test_an_env_whose_mask_allows_nothing_is_named_by_its_row(env_of):
    env = VecEnvAdapter(env_of([failing_envs.NothingLeft] * 4, num_workers=2))
    env.set_num_members(2)
    assert env.columns == (slice(0, 1), slice(1, 2))  # rows 0 and 2, 1 and 3
    for stuck in range(4):
        env.reset([13 if row == stuck else row for row in range(4)])
        env.step(np.zeros(4, int))
        with pytest.raises(EnvStepError, match=f"env {stuck}: action_mask=.* allows no action"):
            env.step(np.zeros(4, int))


def test_a_lost_episode_ends_once_whether_or_not_its_step_was_sent(env_of):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2)
    assert [rows.tolist() for rows in env.env_groups] == [[0, 1], [2, 3]]
    seen, _ = env.reset(seed=[10, 20, 30, 40])
    env.step_async(0, np.array([failing_envs.IS_KILLED, failing_envs.CONTINUES]))  # worker 0 has rows 0 and 3
    with pytest.warns(RuntimeWarning, match=r"env 0 \(seeded with 10\): worker 0 was killed by SIGKILL"):
        _, _, _, truncated, info = env.step_wait(0)
    assert truncated.tolist() == [True, False]
    same(info["final_obs"].tolist()[0], seen[0])
    env.step_async(
        1, np.array([failing_envs.CONTINUES, failing_envs.ENDS])
    )  # the new env of row 3 must not see this action
    after, reward, terminated, truncated, info = env.step_wait(1)
    assert (reward.tolist(), terminated.tolist(), truncated.tolist()) == ([1.0, 0.0], [False] * 2, [False, True])
    same(info["final_obs"].tolist()[1], seen[3])
    same(info["worker_lost"], np.array([False, True]))
    same(after[1], first_observation(derived(40, 1)))
    obs, reward, terminated, truncated, info = env.step(np.zeros(4, int))
    assert (obs[:, 1].tolist(), reward.tolist(), info) == ([1.0, 2.0, 2.0, 1.0], [1.0] * 4, {})


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_in_the_other_autoreset_modes_a_lost_episode_waits_for_its_reset(env_of, mode):
    env = env_of([failing_envs.FailingEnv] * 2, num_workers=1, autoreset_mode=mode)
    seen, _ = env.reset(seed=[10, 20])
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        after, reward, _, truncated, info = env.step(np.array([failing_envs.IS_KILLED, 0]))
    same(after, seen)
    assert (reward.tolist(), truncated.tolist(), info["worker_lost"].tolist()) == ([0.0] * 2, [True] * 2, [True] * 2)
    if mode is NEXT_STEP:
        after, reward, _, truncated, _ = env.step(np.zeros(2, int))
        assert (reward.tolist(), truncated.tolist()) == ([0.0] * 2, [False] * 2)
    else:
        after, _ = env.reset(options={"reset_mask": truncated})
    assert not (after == seen).all()
    assert after[:, 1].tolist() == [0.0, 0.0]
    same(env.step(np.zeros(2, int))[0], after + np.float32([0, 1]))


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP, DISABLED])
def test_an_env_reset_by_a_mask_while_its_worker_exits_continues(env_of, tmp_path, mode):
    env = env_of([failing_envs.ExitsAtReset] * 4, num_workers=2, autoreset_mode=mode)  # worker 0 has rows 0 and 3
    seen, _ = env.reset(seed=[10, 20, 30, 40])
    file = tmp_path / "dies"
    file.touch()
    mask = np.array([True, False, False, False])
    with pytest.warns(RuntimeWarning, match="ended with exit code 3"):
        begun, info = env.reset(seed=[50, None, None, None], options={"reset_mask": mask, "file": str(file)})
    same(begun, np.stack([first_observation(50), *seen[1:]]))
    same(info["begun"], mask)
    after, reward, terminated, truncated, info = env.step(np.zeros(4, int))
    same(after[:3], begun[:3] + np.float32([[0, 0], [0, 1], [0, 1]]))
    same(reward, np.array([0.0, 1.0, 1.0, 0.0]))
    assert not terminated.any()
    same(truncated, np.array([False, False, False, True]))  # row 0 was already reset
    same(info["worker_lost"], np.array([True, False, False, True]))
    assert bool(info["begun"][0])
    if mode is DISABLED:
        env.reset(options={"reset_mask": truncated, "file": ""})
    again, reward, *_ = env.step(np.zeros(4, int))
    same(again[:3], after[:3] + np.float32([0, 1]))
    same(reward[:3], np.ones(3))


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP, DISABLED])
def test_an_env_reset_before_its_loss_is_reported_continues(env_of, mode):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2, autoreset_mode=mode)  # worker 0 has rows 0 and 3
    env.reset(seed=[10, 20, 30, 40])
    env.step_async(0, np.array([failing_envs.IS_KILLED, 0]))
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        assert env.step_wait(0)[3].tolist() == [True, False]
    begun, _ = env.reset(options={"reset_mask": np.array([False, False, False, True])})
    for steps, paid in enumerate([0.0, 1.0, 1.0]):
        env.step_async(1, np.zeros(2, int))
        after, reward, _, truncated, info = env.step_wait(1)
        same(after[1], begun[3] + np.float32([0, steps]))
        assert (reward.tolist(), truncated.tolist()) == ([1.0, paid], [False, False])
        assert ("worker_lost" in info) == (steps == 0)


def test_without_autoreset_an_env_whose_episode_has_ended_is_not_stepped(env_of):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2, autoreset_mode=DISABLED)
    first, _ = env.reset(seed=[1, 2, 3, 4])
    seen, *_ = env.step(np.array([failing_envs.ENDS, 0, 0, failing_envs.ENDS]))
    for step in (lambda: env.step(np.zeros(4, int)), lambda: env.step_async(1, np.zeros(2, int))):
        with pytest.raises(gym.error.ResetNeeded, match=r"envs \[(0, )?3\] have ended; reset\(.*reset_mask"):
            step()
    after, _ = env.reset(options={"reset_mask": np.array([True, False, False, False])})
    same(after[1:], seen[1:])
    with pytest.raises(gym.error.ResetNeeded, match=r"envs \[3\] have ended"):
        env.step(np.zeros(4, int))
    env.step_async(0, np.zeros(2, int))  # rows 0 and 1, whose episodes run
    same(env.step_wait(0)[0], after[:2] + np.float32([0, 1]))  # a refused step has no effect
    with pytest.raises(gym.error.ResetNeeded, match=r"envs \[3\] have ended"):
        env.step_async(1, np.zeros(2, int))
    same(env.reset(seed=[1, 2, 3, 4])[0], first)
    same(env.step(np.zeros(4, int))[0], first + np.float32([0, 1]))


def test_four_failures_in_a_row_are_one_error(env_of):
    env = env_of([failing_envs.FailingEnv] * 8, num_workers=2, num_members=2)
    env.reset(seed=1)
    fails = np.array([0, 0, 0, 0, 0, 0, 0, failing_envs.LOSES_SERVER])  # row 7 is in the second part
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert env.step(fails)[3][-1]
        with pytest.raises(EnvStepError) as error:
            env.step(fails)
    assert [str(warning.message).partition("(restart ")[2] for warning in caught] == [
        f"{count}, allowed are 3 in a row)" for count in (1, 2, 3)
    ]
    named = "FailingEnv, member 1, env 3 of its own (seeded with 8): worker 0 failed 4 times in a row, the last time"
    assert named in str(error)
    assert "exit code 1. Its last traceback:" in str(error.value)
    assert str(error.value).endswith("ConnectionResetError: the simulator does not answer\n")
    assert env.closed


DEFECTS = [
    (
        failing_envs.RAISES,
        r"ZeroDivisionError: one step too many \(File \S+failing_envs.py\", line \d+, in step\)",
    ),
    (
        failing_envs.CHANGES_SHAPE,
        r"an observation has shape \(1,\) and dtype float32; its space has shape \(2,\) and dtype",
    ),
    (
        failing_envs.CHANGES_DTYPE,
        r"an observation has shape \(2,\) and dtype complex128; its space has shape \(2,\) and dtype",
    ),
    (failing_envs.PAYS_AN_ARRAY, r"reward=array\(\[1., 1.\]\) of shape \(2,\); allowed is one real number"),
    (failing_envs.PAYS_A_COMPLEX, r"reward=1j; allowed is one real number"),
    (failing_envs.PAYS_NOTHING, r"reward=None; allowed is one real number"),
    (
        failing_envs.FORGETS_INFO,
        r"step returned \(.*\); allowed is \(observation, reward, terminated, truncated, info\)",
    ),
    (failing_envs.LEAVES, r"SystemExit: 0 \(File .*in step\)"),
]


@pytest.mark.parametrize(("defect", "message"), DEFECTS)
def test_a_failure_that_repeats_after_a_restart_is_a_defect_of_the_environment(env_of, defect, message):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2, num_members=2)
    env.reset(seed=[10, 20, 30, 40])
    with pytest.warns(
        RuntimeWarning, match=rf"FailingEnv, member 0, env 1 .*worker 1 ended with exit code 1 \({message}"
    ):
        env.step(np.array([0, defect, 0, 0]))
    for _ in range(5):  # it works in between, and elsewhere
        assert env.step(np.zeros(4, int))[1].tolist() == [1.0] * 4
    place = r"FailingEnv, member 1, env 1 of its own \(seeded with 40\): worker 0 failed again, as before a restart"
    with pytest.raises(EnvStepError, match=f"(?s){place}: {message}.*backend='sync' with the same seed.*Traceback"):
        env.step(np.array([0, 0, 0, defect]))
    assert env.closed


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (failing_envs.Unmade, "env 1: worker 0 failed: .*this env cannot be made"),
        (failing_envs.OfOtherWidth, r"env 1: .*the env has Box\(.*\(3,\).*the first one has Box\(.*\(2,\)"),
        (failing_envs.BrokenAtReset, r"env 1 \(seeded with 6\): .*no episode can start"),
    ],
)
def test_a_failure_before_the_first_reset_is_not_retried(env_of, second, message):
    env = env_of([failing_envs.FailingEnv, second], num_workers=1)
    with pytest.raises(EnvStepError, match=f"(?s){message}"):
        env.reset(seed=5)


def test_a_restarted_worker_whose_env_is_not_made_at_once_is_restarted_again(env_of, tmp_path):
    env = env_of([partial(failing_envs.UnmadeOnce, tmp_path / "down")], num_workers=1)
    env.reset(seed=5)
    (tmp_path / "down").touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert env.step(np.array([failing_envs.IS_KILLED]))[3].tolist() == [True]
    assert ["SIGKILL" in str(caught[0].message), "not up yet" in str(caught[1].message)] == [True, True]
    assert "(restart 2, allowed are 3 in a row)" in str(caught[1].message)
    assert env.step(np.array([0]))[1].tolist() == [1.0]


def test_one_env_returned_twice_is_refused(env_of):
    one = failing_envs.FailingEnv()
    with pytest.raises(EnvStepError, match="one and the same env twice"):
        env_of([lambda: one] * 2, num_workers=1).reset()


@pytest.mark.parametrize("lost", ["killed", "divided"])
def test_set_attributes_are_restored_after_a_restart(env_of, lost):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2)
    env.reset(seed=7)
    env.set_attr("mark", [1, 2, 3, 4])
    env.set_attr("pace", 5)
    env.set_attr("mark", [4, 3, 2, 1])
    if lost == "killed":
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            env.step(np.array([failing_envs.IS_KILLED, 0, 0, 0]))
    else:
        env.set_num_members(2)  # which ends all workers
    assert env.get_attr("mark") == (4, 3, 2, 1)
    assert env.get_attr("pace") == (5, 5, 5, 5)


def test_a_worker_that_exits_idle_is_replaced_at_the_next_reset(env_of):
    env = env_of([failing_envs.FailingEnv] * 2, num_workers=2)
    first = env.reset(seed=7)
    env._workers[1].process.kill()
    with pytest.warns(RuntimeWarning, match="envs 1 to 1: worker 1 was killed by SIGKILL"):
        again = env.reset(seed=7)
    same(again, first)  # the requested seeds


# ---- closing


def processes(env):
    return [worker.process for worker in env._workers]


def closes(env):
    """Close within a short time, and return each process's exit code."""
    ends = processes(env)
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start < 5.0 * slowness()
    env.close()
    return [process.returncode for process in ends]


def named_memory():
    return sorted(path.name for path in Path("/dev/shm").glob("*"))


@pytest.fixture
def two_workers(env_of):
    env = env_of([failing_envs.FailingEnv] * 4, num_workers=2)
    env.reset(seed=1)
    return env


def test_closing_ends_idle_workers_at_once(two_workers):
    before = named_memory()
    two_workers.step(np.zeros(4, int))
    assert named_memory() == before
    assert closes(two_workers) == [0, 0]  # no process had to be killed


def test_closing_ends_workers_that_hang_are_stopped_or_dead(two_workers):
    stopped, _ = processes(two_workers)
    two_workers.step_async(0, np.array([0, failing_envs.HANGS]))
    stopped.send_signal(signal.SIGSTOP)
    assert closes(two_workers) == [-signal.SIGKILL] * 2


def test_closing_does_not_wait_for_an_env_that_does_not_close(env_of):
    env = env_of([failing_envs.NeverClosed] * 2, num_workers=2)
    env.reset(seed=1)
    assert closes(env) == [-signal.SIGKILL] * 2


def test_closing_before_the_first_start(env_of):
    env = env_of([failing_envs.FailingEnv] * 4)
    env.close()
    env.close()


def test_a_garbage_collected_env_is_closed():
    env = SubprocVectorEnv([failing_envs.FailingEnv] * 2, num_workers=2)
    env.reset()
    ends = processes(env)
    del env
    gc.collect()
    assert None not in [process.returncode for process in ends]


SCRIPT = """
import ctypes, os, signal, sys, time
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete
from agilerl_like import make_vect_envs

class Own(gym.Env):
    observation_space, action_space = Box(-1, 1, (1,)), Discrete(3)
    steps = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(1, dtype=np.float32), {{}}
    def step(self, action):
        if action == 1:
            time.sleep(1000)
        if action == 2 and self.steps:
            ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock
        self.steps = 1
        return self.np_random.random(1, dtype=np.float32), 0.0, False, False, {{}}

gym.register("Own-v0", Own)
env = make_vect_envs("Own-v0", 2, backend="workers", num_workers=2)
env.reset(seed=1)
print(*[worker.process.pid for worker in env._workers], flush=True)
{rest}
"""


def run_script(rest):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(rest=textwrap.dedent(rest))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def workers_of(script):
    """Descriptors that become readable when the script's workers end."""
    pids = [int(word) for word in script.stdout.readline().split()]
    assert len(pids) == 2
    return [os.pidfd_open(pid) for pid in pids]


def ends(descriptor):
    ended = bool(select.select([descriptor], [], [], 10.0 * slowness())[0])
    os.close(descriptor)
    return ended


needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches processes as Linux can")


def test_a_script_without_main_guard_and_close_ends_silently():
    script = run_script(
        """
        if (child := os.fork()) == 0:
            sys.exit()  # a fork of the script leaves the workers alone
        os.waitpid(child, 0)
        assert env.step(np.zeros(2, int))[0].shape == (2, 1)
        """
    )
    out, error = script.communicate()
    assert (script.returncode, error) == (0, "")
    for pid in out.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@needs_pidfd
def test_hanging_workers_end_when_their_parent_is_killed():
    script = run_script("env.step_async(0, np.ones(1, int)); env.step_wait(0)")  # worker 0 hangs, worker 1 waits
    watched = workers_of(script)
    script.kill()
    script.communicate()
    assert [ends(worker) for worker in watched] == [True, True]


@needs_pidfd
@pytest.mark.skipif(sys.platform != "linux", reason="the signal that a parent's end sends is Linux's")
def test_stopped_workers_and_those_holding_the_gil_end_when_their_parent_is_killed():
    script = run_script(
        """
        env.step(np.full(2, 2))  # both will hold the interpreter's lock in their next step
        env.step_async(0, np.full(1, 2))
        os.kill(env._workers[1].process.pid, signal.SIGSTOP)
        print("ready", flush=True)
        env.step_wait(0)
        """
    )
    watched = workers_of(script)
    assert script.stdout.readline() == "ready\n"
    script.kill()
    script.communicate()
    assert [ends(worker) for worker in watched] == [True, True]


@needs_pidfd
def test_ctrl_c_reaches_the_parent_only():
    script = run_script("print('ready', flush=True); env.step_async(0, np.ones(1, int)); env.step_wait(0)")
    watched = workers_of(script)
    assert script.stdout.readline() == "ready\n"
    os.killpg(script.pid, signal.SIGINT)
    error = script.communicate()[1]
    assert [ends(worker) for worker in watched] == [True, True]
    assert error.count("Traceback") == error.count("KeyboardInterrupt") == 1
