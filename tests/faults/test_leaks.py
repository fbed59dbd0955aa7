"""R8: sixty generations leave behind what six do; a thousand are measured by benchmarks/memory.py."""

import ctypes
import gc
import threading

import psutil
import pytest
from tiny_runs import ENVS, MEMBERS, children, descriptors, named_memory, population_for, tier, tiny_run
from torch import Tensor

from agilerl_like import make_vect_envs
from agilerl_like.algorithms.learner import Learner
from agilerl_like.envs.observation_wrappers import RenderedPole
from agilerl_like.hpo.history import MAX_TRIALS
from agilerl_like.learning.population_learner import PopulationLearner
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
        self.alive.append(
            {kind: sum(issubclass(its, kind) for its in types) for kind in (Learner, PopulationLearner, Tensor)}
        )
        self.held.append((descriptors(), threading.active_count(), len(children()), len(named_memory())))
        self.resident.append(self.process.memory_info().rss)


def test_memory_files_and_threads_do_not_grow(tmp_path):
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
        assert alive[Learner] <= MEMBERS + 1  # they, and the best there ever was
        assert alive[PopulationLearner] <= MEMBERS  # one for all, or one for each
    early, late = (max(alive[Tensor] for alive in half) for half in (watch.alive[:WARM_UP], watch.alive[WARM_UP:]))
    assert late <= 2 * early  # nets may have more layers now, each with its few tensors
    growth = watch.resident[-1] - watch.resident[WARM_UP]
    assert growth <= 5 * MEBIBYTE, f"{growth / MEBIBYTE:.1f} MiB"


TIGHT = {"hidden_size": [16], "min_mlp_nodes": 16, "max_mlp_nodes": 32, "max_hidden_layers": 2}
ENDS = {"head_config": TIGHT, "latent_dim": 16, "max_latent_dim": 24}
MEMORY = {"hidden_state_size": 16, "max_hidden_state_size": 32, "max_layers": 2, "cell": "GRU"}
CONVOLUTIONS = {
    "channel_size": [8, 8],
    "kernel_size": [3, 3],
    "max_channel_size": 16,
    "max_hidden_layers": 3,
    "max_kernel_size": 5,
}
KINDS = {
    "mlp": {"net_config": {**ENDS, "encoder_config": TIGHT}},
    "gru": {
        "net_config": {**ENDS, "encoder_config": TIGHT, "memory_config": MEMORY},
        "recurrent": True,
        "max_seq_len": 8,
    },
    "multi_input": {"net_config": {**ENDS, "encoder_config": {"cnn_config": CONVOLUTIONS, "vector_space_mlp": True}}},
}
"""Networks within bounds so tight that their number of weights does not grow."""

LONG, LOOK, WINDOW = tier(150, 850), 5, 10
"""Generations, how many from one look to the next, and looks of which the least counts."""
FIRST = tier(WINDOW, -(-MAX_TRIALS // MEMBERS // LOOK) + 2)
"""The look from which growth is measured; in the nightly tier the history of trials is full by then."""
MOST_KB = 1.0
"""A generation."""


class Heap(ctypes.Structure):
    """What glibc's mallinfo2 returns: `hblkhd` bytes are mapped one by one, `uordblks` are in use of the rest."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    )


class HeapWatch(Reporter):
    """Measures how many kB of C's heap are in use: resident memory moves by arenas of 1 MiB, which hides a kB."""

    def __init__(self, mallinfo):
        mallinfo.restype = Heap
        self.mallinfo, self.used = mallinfo, []

    def generation(self, record):
        if record.generation % LOOK == 0:
            gc.collect()
            now = self.mallinfo()
            self.used.append((now.uordblks + now.hblkhd) / 1024)


@pytest.mark.parametrize("kind", tier(("mlp", "gru"), tuple(KINDS)))
def test_the_heap_grows_at_most_a_kilobyte_a_generation(kind, tmp_path):
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("mallinfo2 is glibc's, from 2.33 on")
    wrappers = (RenderedPole,) if kind == "multi_input" else ()
    env, watch = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync", wrappers=wrappers), HeapWatch(mallinfo)
    population = population_for(env, **KINDS[kind])
    tiny_run(
        population,
        env=env,
        generations=LONG,
        generation=STEPS,
        eval_steps=20,
        checkpoint=10 * STEPS,
        run_dir=tmp_path,
        reporters=[watch],
    )
    early, late = min(watch.used[FIRST : FIRST + WINDOW]), min(watch.used[-WINDOW:])  # of small populations both times
    generations = LOOK * (len(watch.used) - FIRST - WINDOW)
    assert late - early <= MOST_KB * generations, f"{(late - early) / generations:.1f} kB a generation"
