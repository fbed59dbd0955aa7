"""R8: sixty generations leave behind what six do; a thousand are measured by benchmarks/memory.py."""

import gc
import threading

import psutil
from tiny_runs import ENVS, MEMBERS, children, descriptors, named_memory, population_for, tier, tiny_run
from torch import Tensor

from agilerl_like import make_vect_envs
from agilerl_like.algorithms.agent import Agent
from agilerl_like.learning.cohort import Cohort
from agilerl_like.reporting import Reporter

GENERATIONS, STEPS = tier(60, 200), 64
EVERY = 4
"""Generations between two looks, for a look takes longer than a generation."""
WARM_UP = 5
"""Looks after which everything has been loaded, and been as large as it gets."""
MEBIBYTE = 2**20


class Watch(Reporter):
    """Counts what there is: live objects, resident memory, and what the system knows of the process."""

    def __init__(self):
        self.process = psutil.Process()
        self.alive, self.held, self.resident = [], [], []

    def generation(self, record):
        if record.generation % EVERY:
            return
        gc.collect()
        types = [type(one) for one in gc.get_objects()]
        self.alive.append({kind: sum(issubclass(its, kind) for its in types) for kind in (Agent, Cohort, Tensor)})
        self.held.append((descriptors(), threading.active_count(), len(children()), len(named_memory())))
        self.resident.append(self.process.memory_info().rss)


def test_generations_leave_nothing_behind(tmp_path):
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="workers", num_workers=2)
    population, watch = population_for(env, learn_step=128), Watch()
    tiny_run(
        population,
        env=env,
        generations=GENERATIONS,
        generation=STEPS,
        eval_steps=20,
        checkpoint=10 * STEPS,
        run_dir=tmp_path,
        reporters=[watch],
    )
    assert len(watch.held) == GENERATIONS // EVERY
    assert len(set(watch.held[WARM_UP:])) == 1  # files, threads, processes, shared memory
    for alive in watch.alive[WARM_UP:]:
        assert alive[Agent] <= MEMBERS + 1  # they, and the best there ever was
        assert alive[Cohort] <= MEMBERS  # one for all, or one for each
    early, late = (max(alive[Tensor] for alive in half) for half in (watch.alive[:WARM_UP], watch.alive[WARM_UP:]))
    assert late <= 2 * early  # nets may have more layers now, each with its few tensors
    growth = watch.resident[-1] - watch.resident[WARM_UP]
    assert growth <= 5 * MEBIBYTE, f"{growth / MEBIBYTE:.1f} MiB"
