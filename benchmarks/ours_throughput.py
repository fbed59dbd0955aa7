"""Env steps per second of `agilerl_like` at the work of `measurement.py`, without evolution."""

import torch

from benchmarks import measurement as m
from benchmarks.ours import build_population, collecting, train


def main() -> None:
    work = m.parse_work(__doc__ or "")
    torch.set_num_threads(work.threads)
    population = build_population(work.env, work.members, work.seed)
    with collecting(population, work.env) as collector:
        train(collector, m.UPDATE_STEPS)
        seconds = train(collector, work.steps_per_member)
    network = [str(layer) for layer in population[0].network.modules() if not list(layer.children())]
    print(m.Measurement.of("agilerl_like", "agilerl-like", work, seconds, network).to_json())


if __name__ == "__main__":
    main()
