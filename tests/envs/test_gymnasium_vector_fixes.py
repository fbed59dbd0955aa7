"""Last observations are kept, even if the env writes the next one into the same array."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from functools import partial

import failing_envs
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agilerl_like import EnvStepError
from agilerl_like.agilerl.vector import DummyVecEnv
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.envs import SubprocVectorEnv, VecEnvAdapter, make_vect_envs, with_num_envs
from agilerl_like.envs.gymnasium_vector_fixes import ClosableAsyncVectorEnv, async_worker, fix_infos
from agilerl_like.training.env_setup import SingleAgentEnvSetup

SAME_STEP = AutoresetMode.SAME_STEP
SEEDS = [3, 1, 4]


def by_hand(steps):
    """Per step: first and last observation and the last info of each env, stepped separately."""
    rows = []
    for seed in SEEDS:
        env = failing_envs.SharedBufferEnv()
        seen, heard = np.array(env.reset(seed=seed)[0]["here"]), 0.0
        for _ in range(steps):
            obs, _, ended, _, info = env.step(0)
            last, heard = np.array(obs["here"]), float(info["heard"][0])
            seen = np.array(env.reset()[0]["here"]) if ended else last
            rows.append((seen, last, ended, heard))
    return [[rows[row * steps + step] for row in range(len(SEEDS))] for step in range(steps)]


def widened(kind):
    return with_num_envs(kind([failing_envs.SharedBufferEnv], autoreset_mode=SAME_STEP), 3)


WAYS = {
    "sync": lambda: make_vect_envs(failing_envs.SharedBufferEnv, 3, backend="sync"),
    "async": lambda: make_vect_envs(failing_envs.SharedBufferEnv, 3, backend="async"),
    "workers": lambda: make_vect_envs(failing_envs.SharedBufferEnv, 3, backend="workers", num_workers=2),
    "sync by hand": lambda: SyncVectorEnv([failing_envs.SharedBufferEnv] * 3, autoreset_mode=SAME_STEP),
    "sync, widened": lambda: widened(SyncVectorEnv),
    "async, widened": lambda: widened(AsyncVectorEnv),
    "async, in training": lambda: SingleAgentEnvSetup(async_by_hand()).make_training_env(1, 1),
    "workers, widened": lambda: widened(SubprocVectorEnv),
}


def async_by_hand():
    return AsyncVectorEnv([failing_envs.SharedBufferEnv] * 3, autoreset_mode=SAME_STEP)


@pytest.mark.parametrize("way", WAYS)
def test_a_last_observation_is_not_the_first_of_the_next_episode(way):
    env = WAYS[way]()
    adapter = VecEnvAdapter(env)
    adapter.reset(SEEDS)
    ends = 0
    for rows in by_hand(8):
        step = adapter.step(np.zeros(3, int))
        np.testing.assert_array_equal(step.obs["here"], [seen for seen, *_ in rows])
        np.testing.assert_array_equal(step.next_obs["here"], [last for _, last, *_ in rows])
        ends += sum(ended for *_, ended, _ in rows)
    assert ends > 3
    env.close()


def test_a_last_observation_of_a_dummy_vec_env_is_not_the_first_of_the_next_episode():
    adapter = VecEnvAdapter(DummyVecEnv(failing_envs.SharedBufferEnv()))
    adapter.reset([3])
    steps = [adapter.step(np.zeros(1, int)) for _ in range(4)]
    assert [int(step.next_obs["here"][0, 1]) for step in steps if step.terminated[0]] == [3, 1]


class OwnInfos(SyncVectorEnv):
    def _add_info(self, vector_infos, env_info, env_num):
        return {**vector_infos, env_num: env_info}


def test_a_vector_env_that_merges_infos_itself_is_left_unchanged():
    env = OwnInfos([failing_envs.SharedBufferEnv])
    fix_infos(env)
    assert "_add_info" not in vars(env)


def test_training_replaces_an_async_env_only_if_it_does_not_copy_last_observations():
    for env in (
        make_vect_envs(failing_envs.SharedBufferEnv, 3, backend="async"),
        AsyncVectorEnv([failing_envs.SharedBufferEnv] * 3),  # NEXT_STEP
    ):
        assert SingleAgentEnvSetup(env).make_training_env(1, 1) is env
        env.close()


@pytest.mark.parametrize("options", [{}, {"shared_memory": False}])
def test_workers_of_async_envs_leave_ctrl_c_to_their_parent(options):
    env = AsyncVectorEnv([failing_envs.SharedBufferEnv] * 2, worker=async_worker, autoreset_mode=SAME_STEP, **options)
    env.reset(seed=SEEDS[:2])  # pyright: ignore[reportArgumentType]
    for process in env.processes:
        os.kill(process.pid or 0, signal.SIGINT)
    assert env.step(np.zeros(2, int))[1].shape == (2,)
    env.close()


def test_async_envs_of_this_package_have_that_worker():
    for env in (WAYS["async"](), WAYS["async, in training"]()):
        assert env.worker is async_worker
        env.close()


def failing(num_envs=3):
    env = make_vect_envs(failing_envs.FailingEnv, num_envs, backend="async")
    assert isinstance(env, AsyncVectorEnv)
    env.reset(seed=list(range(num_envs)))  # pyright: ignore[reportArgumentType]
    return env


def closes(env):
    """Close an env, and return whether all of its processes have ended."""
    env.close()
    return not any(process.is_alive() for process in env.processes)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_an_async_env_closes_after_a_worker_was_lost_in_a_step(row):
    env, actions = failing(), np.zeros(3, int)
    actions[row] = failing_envs.EXITS
    with pytest.raises((EOFError, ConnectionResetError)):
        env.step(actions)
    assert closes(env)


def test_an_async_env_closes_after_a_worker_was_lost_between_steps():
    env = failing()
    env.processes[1].kill()
    env.processes[1].join()
    assert closes(env)


def test_an_async_env_closes_after_ctrl_c_between_the_replies_to_a_step():
    env = failing()
    env.step_async(np.zeros(3, int))
    env.parent_pipes[0].recv()
    assert closes(env)


def test_a_worker_of_an_async_env_that_hangs_ends_also_if_it_was_forked_during_a_run():
    with StopRequests(announces=False):
        env = failing()
        env.step_async(np.array([0, failing_envs.HANGS, 0]))
        assert closes(env)


def test_a_signal_to_the_processes_of_a_run_does_not_reach_workers_of_async_envs():
    env = failing()
    groups = [os.getpgid(process.pid) for process in env.processes]
    assert groups == [process.pid for process in env.processes]
    assert closes(env)


UNGUARDED = """
import multiprocessing
from agilerl_like import make_vect_envs
multiprocessing.set_start_method("spawn", force=True)
make_vect_envs("CartPole-v1", 1, backend="async")
"""


def test_the_error_of_a_script_without_main_guard_names_the_guard_where_processes_are_not_forked(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    ended = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    last = ended.stderr.splitlines()[-1]
    assert re.search(r"ConfigurationError: backend='async': .* 'spawn' .*if __name__ == '__main__':$", last), last


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's logger prints the worker's traceback
@pytest.mark.parametrize("error", [failing_envs.decode_error, failing_envs.error_with_lock])
def test_an_exception_that_cannot_be_sent_is_reported_with_its_type_message_and_line(error):
    env = make_vect_envs(partial(failing_envs.RaisesAny, error), 3, backend="async")
    adapter = VecEnvAdapter(env)
    adapter.reset(SEEDS)
    name = type(error()).__name__
    with pytest.raises(EnvStepError, match=rf"failed with RuntimeError: {name}: no answer.* \(File .*failing_envs"):
        adapter.step(np.zeros(3, int))
    assert closes(env)


@pytest.mark.parametrize("backend", ["sync", "async", "workers"])
def test_final_info_is_not_of_the_next_episode(backend):
    env = make_vect_envs(failing_envs.SharedBufferEnv, 3, backend=backend)
    env.reset(seed=SEEDS)  # pyright: ignore[reportArgumentType]
    for rows in by_hand(8):
        *_, info = env.step(np.zeros(3, int))
        for row, (*_, last, ended, heard) in enumerate(rows):
            if ended:
                np.testing.assert_array_equal(info["final_obs"][row]["here"], last)
                np.testing.assert_array_equal(info["final_info"]["heard"][row], [heard])
    env.close()


def test_an_error_of_the_env_in_this_process_is_not_one_of_a_missing_guard(monkeypatch):
    def refused():
        raise ConnectionRefusedError("the simulator takes one client")

    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    with pytest.raises(ConnectionRefusedError, match="one client"):
        ClosableAsyncVectorEnv([refused])
