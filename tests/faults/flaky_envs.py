"""Envs that fail at random. Workers import this file, so it imports little."""

import os
import signal
import threading

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


def raises(_):
    raise ConnectionResetError("the simulator does not answer")


def divides_by_zero(_):
    raise ZeroDivisionError("a defect of this environment")


def exits(_):
    os._exit(3)


def is_killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(_):
    threading.Event().wait()


def changes_shape(observation):
    return observation[:1]


BREAKS = (raises, exits, is_killed)
DEFECTS = (divides_by_zero, changes_shape)
ENDS = r"(exit code 1 \(ConnectionResetError|exit code 3|killed by SIGKILL)"
"""The warning's text for the end of a worker by each of them."""


class Flaky(CartPoleEnv):
    """CartPole that fails with some probability at every step, by one of several equally likely failures."""

    def __init__(self, probability, ways=BREAKS):
        super().__init__()
        self.probability, self.ways = probability, ways

    def step(self, action):
        observation, *rest = super().step(action)
        if self.np_random.random() < self.probability:
            observation = self.ways[self.np_random.integers(len(self.ways))](observation)
        return np.asarray(observation), *rest
