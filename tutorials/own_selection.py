"""A selection strategy of your own, named in YAML: `python own_selection.py [--section.name VALUE ...]`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agilerl_like import register
from agilerl_like.cli import main
from agilerl_like.hpo import Selection
from agilerl_like.hpo.selection import ranking

CONFIG = """
environment: {id: CartPole-v1, num_envs: 16}
hyperparameters: {lr: {min: 1e-4, max: 1e-2}}
selection: {name: rank, decay: 0.3}  # the strategy's fields are settings
training: {max_steps: 6_144, evo_steps: 2_048}
run: {name: ranks}
"""


@register("selection", "rank")
@dataclass(frozen=True)
class RankSelection(Selection):
    """The best member survives; every other parent is drawn with a weight that falls by `decay` from rank to rank."""

    decay: float = 0.5

    def parents(self, fitness, rng, *, uids=None):
        by_rank = ranking(fitness, uids)
        weights = self.decay ** np.arange(len(by_rank))
        drawn = rng.choice(by_rank, size=len(fitness) - 1, p=weights / weights.sum())
        return np.concatenate([by_rank[:1], drawn])


if __name__ == "__main__":
    Path("ranks.yaml").write_text(CONFIG)
    sys.exit(main(["train", "ranks.yaml", *sys.argv[1:]]))
