"""Env steps per second of `agilerl_like` at the work of `measurement.py`, without evolution."""

import torch

from benchmarks import measurement as m
from benchmarks.agilerl_like_setup import build_population, collecting, train, train_spread


def main() -> None:
    work = m.parse_work(__doc__ or "", spreads=True, compiles=True)
    torch.set_num_threads(work.threads)
    population = build_population(work.env, work.members, work.seed, compile=work.compile)
    if work.processes > 1:
        seconds = train_spread(population, work.env, work)
    else:
        with collecting(population, work.env) as collector:
            train(collector, m.UPDATE_STEPS)
            seconds = train(collector, work.steps_per_member)
    network = [str(layer) for layer in population[0].network.modules() if not list(layer.children())]
    print(m.Measurement.of("agilerl_like", "agilerl-like", work, seconds, network).to_json())


if __name__ == "__main__":
    main()
