"""Whether a long run grows: memory, threads, files and child processes over 1,000 generations of a tiny population.

Every kind of mutation is on and a checkpoint is written every fifty generations. What is looked at comes from Linux's
`/proc` and `/dev/shm`; elsewhere the script prints that nothing was measured. There is a case for every kind of
network: their sizes are bounded tightly, so that the networks themselves do not grow.

    python -m benchmarks.memory
    python -m benchmarks.memory --kinds mlp cnn --backend sync --generations 300 --output -
"""

import argparse
import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import gymnasium as gym
import numpy as np
import torch

from agilerl_like import (
    IPPO,
    PPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.envs.factory import Backend
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.observation_wrappers import RenderedPole
from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.reporting import GenerationRecord, Reporter
from benchmarks.agilerl_like_setup import CARTPOLE, RANGES
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish
from benchmarks.tables import Goal, markdown

MEMBERS = 4
ENVS = 4
STEPS = 64
"""Of each member in a generation."""

EVALUATION_STEPS = 16
CHECKPOINT_GENERATIONS = 50
WARM_UP = 300
"""Generations that may still grow: buffers, caches, the allocator, the history of trials (1,024, full after 256)."""

EVERY = 10
"""Generations from one look to the next."""

BLOCKS = 8
"""Parts of the series, of which one at a time is left out for the standard error of the slope."""

MOST_KB = 1.0
MOST_TOTAL_MB = 5.0

SMALL = HyperparameterConfig(
    **{**RANGES, "batch_size": RLParameter(min=STEPS // 4, max=STEPS, dtype=int, scale="power_of_two")}
)

MLP = {"hidden_size": [16], "min_mlp_nodes": 16, "max_mlp_nodes": 32, "max_hidden_layers": 2}
CNN = {
    "channel_size": [8, 8],
    "kernel_size": [3, 3],
    "max_channel_size": 16,
    "max_hidden_layers": 3,
    "max_kernel_size": 5,
}
RESNET = {"channel_size": 8, "scale_factor": 2, "max_channel_size": 16, "max_blocks": 2}
SIMBA = {"hidden_size": 16, "num_blocks": 1, "scale_factor": 2, "max_mlp_nodes": 32, "max_blocks": 2}
MEMORY = {"hidden_state_size": 16, "max_hidden_state_size": 32, "max_layers": 2}
PARTS = {"cnn_config": CNN, "mlp_config": MLP, "vector_space_mlp": True, "latent_dim": 16, "max_latent_dim": 24}


class Snow(gym.Env[Any, Any]):
    """Images of noise, of which nothing can be learned: only how much memory convolutions take is of interest."""

    observation_space = gym.spaces.Box(0, 255, (2, 8, 8), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def _image(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (2, 8, 8), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 12
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._image(), float(action == 1), self.left == 0, False, {}


class Kind(NamedTuple):
    """A kind of network: in which environment, and with which settings."""

    env: Any
    network: dict[str, Any]
    settings: Mapping[str, Any] = MappingProxyType({})
    wrappers: tuple[Any, ...] = ()


KINDS: dict[str, Kind] = {
    "mlp": Kind(CARTPOLE, {"encoder_config": MLP}),
    "simba": Kind(CARTPOLE, {"encoder": "simba", "encoder_config": SIMBA}),
    "cnn": Kind(Snow, {"encoder_config": CNN}),
    "resnet": Kind(Snow, {"encoder": "resnet", "encoder_config": RESNET}),
    "multi_input": Kind(CARTPOLE, {"encoder_config": PARTS}, wrappers=(RenderedPole,)),
    "lstm": Kind(CARTPOLE, {"encoder_config": MLP, "memory_config": MEMORY}, {"recurrent": True, "max_seq_len": 8}),
    "gru": Kind(
        CARTPOLE,
        {"encoder_config": MLP, "memory_config": {**MEMORY, "cell": "GRU"}},
        {"recurrent": True, "max_seq_len": 8},
    ),
    "custom": Kind(CARTPOLE, {}),
    "teams": Kind(next(iter(MULTI_AGENT_PROBES.values())).make, {"encoder_config": MLP}),
}
"""The cases; "custom" has networks of the user's that evolve, "teams" are two learners for three agents."""

NEEDS_PROC = "no /proc on this system: not measured (what a process holds is read from there)"


@dataclass(frozen=True)
class Case:
    """How many generations of which kind of network, and who steps the envs."""

    kind: str
    generations: int
    backend: Backend


@dataclass(frozen=True)
class Result:
    """What the process held, from `WARM_UP` on, at each look."""

    seconds: float
    generations: Sequence[int]
    rss_kb: Sequence[float]
    weights: Sequence[int]  # of all members
    threads: Sequence[int]
    files: Sequence[int]
    children: Sequence[int]
    shared: Sequence[int]  # entries of /dev/shm

    @property
    def slope(self) -> float:
        """Growth of resident memory in kB a generation, the median slope over all pairs of samples (Theil and Sen)."""
        return median_slope(np.asarray(self.generations), np.asarray(self.rss_kb))

    @property
    def slope_error(self) -> float:
        """The slope's standard error: a jackknife over contiguous blocks, for neighbouring looks are alike."""
        looks = np.arange(len(self.rss_kb))
        blocks = np.array_split(looks, min(BLOCKS, len(looks)))
        rests = [np.setdiff1d(looks, block) for block in blocks]
        slopes = [median_slope(np.asarray(self.generations)[rest], np.asarray(self.rss_kb)[rest]) for rest in rests]
        return float(np.sqrt((len(blocks) - 1) * np.var(slopes)))

    @property
    def growth_mb(self) -> float:
        """Resident memory at the end more than at the first look."""
        return (self.rss_kb[-1] - self.rss_kb[0]) / 1024

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        slope = f"{self.slope:+.2f} ± {self.slope_error:.2f} kB a generation"
        return f"{slope}, {self.growth_mb:+.1f} MB in all, {self.seconds:.0f} s"


def median_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the median slope over all pairs of points, which is robust against a few outliers."""
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


class Watch(Reporter):
    """Looks at this process after every few generations."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.seen: list[tuple[float, ...]] = []
        self.seconds = 0.0

    def generation(self, record: GenerationRecord) -> None:
        self.seconds = record.seconds
        if record.generation >= self.warm_up and record.generation % EVERY == 0:
            gc.collect()
            resident, *counts = held()
            weights = sum(member.parameters for member in record.members)
            self.seen.append((record.generation, resident, weights, *counts))


def held() -> tuple[float, int, int, int, int]:
    """Return resident kB, threads, open files, child processes and shared memory segments of this moment."""
    proc, shm = Path("/proc/self"), Path("/dev/shm")
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    return (
        resident,
        len(os.listdir(proc / "task")),
        len(os.listdir(proc / "fd")),
        sum(parent_of(status) == os.getpid() for status in Path("/proc").glob("[0-9]*/stat")),
        len(os.listdir(shm)) if shm.is_dir() else 0,
    )


def parent_of(status: Path) -> int:
    """Return the parent of the process of a /proc/…/stat file, 0 if it is gone."""
    try:
        return int(status.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def measure(case: Case, threads: int, seed: int) -> Result:
    """Evolve a tiny population for many generations and watch."""
    torch.set_num_threads(threads)
    kind, watch = KINDS[case.kind], Watch(min(WARM_UP, case.generations // 2))
    settings = {"num_envs": ENVS, "learn_step": STEPS, "batch_size": STEPS, "hp_config": SMALL, "seed": seed}
    settings |= {**kind.settings, **_networks(kind)}
    env: Any
    train: Callable[..., Any]
    if case.kind == "teams":
        env = make_multi_agent_vect_envs(kind.env, ENVS, backend="sync")
        spaces = env.single_observation_spaces, env.single_action_spaces
        population, train = IPPO.population(MEMBERS, *spaces, **settings), train_multi_agent_on_policy
    else:
        env = make_vect_envs(kind.env, num_envs=ENVS, backend=case.backend, wrappers=kind.wrappers)
        spaces = env.single_observation_space, env.single_action_space
        population, train = PPO.population(MEMBERS, *spaces, **settings), train_on_policy
    with contextlib.closing(env), tempfile.TemporaryDirectory() as folder:
        train(
            env,
            pop=population,
            max_steps=case.generations * STEPS,
            evo_steps=STEPS,
            eval_loop=1,
            eval_steps=EVALUATION_STEPS,
            selection_strategy=TournamentSelection(tournament_size=2, elitism=True),
            mutation=Mutations(no_mutation=0.2, architecture=0.2, parameters=0.2, activation=0.2, rl_hp=0.2),
            checkpoint=CHECKPOINT_GENERATIONS * STEPS,
            verbose=False,
            run_dir=Path(folder) / "run",
            reporters=[watch],
        )
    generations, rss, weights, *counts = (list(column) for column in zip(*watch.seen, strict=True))
    return Result(round(watch.seconds, 1), generations, rss, weights, *counts)


def _networks(kind: Kind) -> dict[str, Any]:
    """Return the arguments that say what the networks are."""
    if not kind.network:
        spec = MLPSpec(**{**MLP, "hidden_size": (16,)})
        return {"actor_network": EvolvableMLP(spec, 4, 2), "critic_network": EvolvableMLP(spec, 4, 1)}
    ends = {"head_config": MLP, "latent_dim": 16, "max_latent_dim": 24}
    return {"net_config": {**ends, **kind.network}}


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""

    def row(run: Run[Result]) -> tuple[str, ...]:
        result = run.result
        held = [result.threads, result.files, result.children, result.shared]
        return (
            run.side,
            f"{result.generations[-1]:,}",
            f"{result.rss_kb[0] / 1024:.1f}",
            f"{result.growth_mb:+.1f}",
            f"{result.slope:+.2f} ± {result.slope_error:.2f}",
            ", ".join("-".join(map(str, sorted({min(counts), max(counts)}))) for counts in held),
            f"{result.seconds:.0f}",
        )

    first = runs[0].result.generations[0]
    heads = ("kind of network", "generations", "MB at the first sample", "growth, MB", "slope, kB a generation")
    return [
        "## Memory over many generations",
        "",
        f"P={MEMBERS}, {ENVS} envs a member (backend {options.backend}), {STEPS} steps of each a generation, evaluated "
        f"for at most {EVALUATION_STEPS} steps, all kinds of mutation, small networks of each kind within tight "
        f"bounds, a checkpoint every {CHECKPOINT_GENERATIONS} generations; sampled every {EVERY} generations from "
        f"generation {first} on. The slope is the median over all pairs of samples (Theil and Sen), ± its standard "
        f"error (jackknife over {BLOCKS} blocks of samples). Python allocates arenas of 1 MiB, so one more arena is a "
        "slope of 3 kB over 300 generations. A run stores the history of its members (fitness, returns, lineage), "
        "which is part of the growth.",
        "",
        conditions(runs, options),
        "",
        *markdown((*heads, "threads, files, children, /dev/shm", "seconds"), [row(run) for run in runs]),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return what grew."""
    lengths = sorted({run.result.generations[-1] for run in runs})
    looked_at = f"{' to '.join(f'{length:,}' for length in dict.fromkeys((lengths[0], lengths[-1])))} generations"
    worst = max(runs, key=lambda run: run.result.slope)
    largest = max(runs, key=lambda run: run.result.growth_mb)
    steady = all(
        len(set(counts)) == 1
        for run in runs
        for counts in (run.result.threads, run.result.files, run.result.children, run.result.shared)
    )
    return [
        Goal(
            f"resident memory over {looked_at}, every kind of network: slope, total growth",
            f"<= {MOST_KB:g} kB a generation, <= {MOST_TOTAL_MB:g} MB",
            f"{worst.result.slope:+.2f} kB a generation ({worst.side}), {largest.result.growth_mb:+.1f} MB "
            f"({largest.side})",
            worst.result.slope <= MOST_KB and largest.result.growth_mb <= MOST_TOTAL_MB,
        ),
        Goal(
            f"threads, files, child processes, shared memory over {looked_at}",
            "constant",
            "constant" if steady else "not constant: see the table",
            steady,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=1000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="of networks")
    parser.add_argument("--backend", choices=get_args(Backend), default="auto", help="backend of the vector env")
    options = options_of(parser, argv, repetitions=1, quick={"generations": 40})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    if not Path("/proc/self/statm").is_file():
        print(NEEDS_PROC)
        return
    commands = {
        kind: one("benchmarks.memory", Case(kind, options.generations, options.backend)) for kind in options.kinds
    }
    runs = interleaved(commands, Result, options)
    publish("memory", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
