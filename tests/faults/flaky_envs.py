"""Worlds that break at random; workers import this file, so it loads nothing else."""

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
"""How a worker ends by them, as the warning says it."""


class Flaky(CartPoleEnv):
    """CartPole that breaks with some probability at every step, in ways of which each is as likely."""

    def __init__(self, probability, ways=BREAKS):
        super().__init__()
        self.probability, self.ways = probability, ways

    def step(self, action):
        observation, *rest = super().step(action)
        if self.np_random.random() < self.probability:
            observation = self.ways[self.np_random.integers(len(self.ways))](observation)
        return np.asarray(observation), *rest
