"""Envs that fail, for the tests of worker processes. Workers import this file, so it imports little."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

CONTINUES, RAISES, EXITS, IS_KILLED, CRASHES, HANGS, CHANGES_SHAPE, CHANGES_DTYPE, ENDS = range(9)
LOSES_SERVER, PAYS_AN_ARRAY, PAYS_A_COMPLEX, PAYS_NOTHING, FORGETS_INFO, LEAVES = range(9, 15)
PAYS = {PAYS_AN_ARRAY: np.ones(2), PAYS_A_COMPLEX: 1j, PAYS_NOTHING: None}


class FailingEnv(gym.Env):
    """Counts its steps; the action selects a failure."""

    observation_space = Box(-1e9, 1e9, (2,), np.float32)
    action_space = Discrete(15)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([self.np_random.integers(1_000_000), 0], dtype=np.float32)
        return self.state.copy(), {}

    def step(self, action):
        if action == RAISES:
            raise ZeroDivisionError("one step too many")
        if action == EXITS:
            os._exit(3)
        if action == IS_KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == CRASHES:
            ctypes.string_at(0)
        if action == HANGS:
            threading.Event().wait()
        if action == LOSES_SERVER:
            raise ConnectionResetError("the simulator does not answer")
        if action == LEAVES:
            sys.exit(0)
        self.state[1] += 1
        observation = self.state.copy()
        if action == FORGETS_INFO:
            return observation, 1.0, False, False
        if action == CHANGES_SHAPE:
            observation = observation[:1]
        if action == CHANGES_DTYPE:
            observation = observation.astype(complex)
        return observation, PAYS.get(int(action), 1.0), bool(action == ENDS), False, {}

    def modules(self):
        return sorted(sys.modules), {name: value for name, value in os.environ.items() if name.endswith("_THREADS")}


def decode_error():
    return json.JSONDecodeError("no answer", "", 0)


def error_with_lock():
    error = ConnectionError("no answer")
    error.lock = threading.Lock()
    return error


class RaisesAny(FailingEnv):
    """Raises in each step what a function returns."""

    def __init__(self, error):
        self.error = error

    def step(self, action):
        raise self.error()


class BrokenAtReset(FailingEnv):
    def reset(self, *, seed=None, options=None):
        raise ZeroDivisionError("no episode can start")


class ExitsAtReset(FailingEnv):
    """Fails once, if a file exists."""

    def reset(self, *, seed=None, options=None):
        if options is not None and os.path.exists(options["file"]):
            os.remove(options["file"])
            os._exit(3)
        return super().reset(seed=seed)[0], {"begun": True}


class OfOtherWidth(FailingEnv):
    observation_space = Box(-1e9, 1e9, (3,), np.float32)


class NeverClosed(FailingEnv):
    """Fails after its first reset."""

    def close(self):
        if hasattr(self, "state"):
            threading.Event().wait()


class Quick(FailingEnv):
    """Continues, whatever the action."""

    def step(self, action):
        return super().step(CONTINUES)


class SharedBufferEnv(gym.Env):
    """Writes observations and infos into the same two arrays: the episode's number and the step."""

    observation_space = Dict({"here": Box(-np.inf, np.inf, (2,), np.float64)})
    action_space = Discrete(2)

    def __init__(self):
        self.place, self.heard = np.zeros(2), np.zeros(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 4))
        self.place[:], self.heard[:] = (self.np_random.integers(100), 0), 0
        return {"here": self.place}, {"heard": self.heard}

    def step(self, action):
        self.place[1] += 1
        self.heard += 1
        return {"here": self.place}, 1.0, bool(self.place[1] == self.length), False, {"heard": self.heard}


class Slow(FailingEnv):
    """Continues, with a millisecond of work per step."""

    def step(self, action):
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return super().step(CONTINUES)


class AllSpaces(gym.Env):
    """All kinds of spaces, infos of all types in some of the steps, and episodes with both kinds of end."""

    observation_space = Dict(
        {
            "image": Box(0, 255, (2, 3), np.uint8),
            "pair": Tuple((Discrete(5, start=1), MultiDiscrete([2, 3]))),
            "bits": MultiBinary(3),
            "vector": Box(-np.inf, np.inf, (2,), np.float64),
        }
    )
    action_space = Dict({"which": Discrete(3), "how": Tuple((Box(-1, 1, (2,), np.float32), MultiBinary(2)))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0.0
        return self._observe(), {"options": repr(options)} if options is not None else {}

    def step(self, action):
        how, bits = action["how"]
        self.total += float(how.sum()) + float(bits.sum()) + 0.5 * int(action["which"])
        draw = self.np_random.random()
        return self._observe(), self.total, draw < 0.15, 0.1 < draw < 0.25, self._info(draw)

    def _observe(self):
        random = self.np_random
        return {
            "image": random.integers(0, 256, (2, 3), dtype=np.uint8),
            "pair": (1 + random.integers(5), random.integers([2, 3])),
            "bits": random.integers(0, 2, 3, dtype=np.int8),
            "vector": random.random(2, dtype=np.float32) + self.total,  # narrower than its space
        }

    def _info(self, draw):
        info = {}
        if draw < 0.5:
            info["count"] = int(10 * draw) if draw < 0.3 else 10 * draw  # now an int, now a float
        if 0.2 < draw < 0.8:
            info["action_mask"] = np.array([True, draw < 0.5, False])
        if draw > 0.7:
            info["episode"] = {"r": self.total, "name": f"{draw:.3f}"}
        return info


@contextmanager
def registered(env_id, entry_point):
    gym.register(env_id, entry_point=entry_point)
    try:
        yield
    finally:
        del gym.registry[env_id]


class NothingLeft(FailingEnv):
    """Allows nothing from its second step on, if it was seeded with 13."""

    def reset(self, *, seed=None, options=None):
        self.allowed = np.full(15, seed != 13)
        return super().reset(seed=seed)[0], {"action_mask": np.ones(15, np.bool_)}

    def step(self, action):
        observation, *rest, _ = super().step(action)
        return observation, *rest, {"action_mask": self.allowed | (observation[1] < 2)}


class Unmade(FailingEnv):
    def __init__(self):
        raise ZeroDivisionError("this env cannot be made")


class SlowToReset(FailingEnv):
    """Takes a moment to reset."""

    def reset(self, *, seed=None, options=None):
        time.sleep(0.5)
        return super().reset(seed=seed)


class WithSimulator(FailingEnv):
    """Has a process of its own, which only `close` ends."""

    def __init__(self):
        super().__init__()
        self.simulator = subprocess.Popen(["sleep", "1000"])

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation, {**info, "pid": self.simulator.pid}

    def close(self):
        self.simulator.kill()
        self.simulator.wait()


class Unsendable(FailingEnv):
    """Has an object in its info that cannot be pickled."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"event": lambda: None}


class UnmadeOnce(FailingEnv):
    """Cannot be made, once, if a file exists."""

    def __init__(self, file):
        if os.path.exists(file):
            os.remove(file)
            raise ConnectionRefusedError("the simulator is not up yet")
