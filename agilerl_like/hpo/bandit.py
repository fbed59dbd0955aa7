"""A bandit over kinds of mutation: the kind that has paid of late is drawn more often.

Which kind of change helps differs between environments and between the phases of a run: hyperparameters early, larger
networks later, noise where a policy is stuck. A kind has paid if its clones have descendants. Their gain in the first
generation is no measure: most changes cost at first, and a clone that did not really change costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, check_scalar_fields, set_tuple_field
from agilerl_like.hpo.choice import Choice
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.gaussian_steps import GaussianSteps, check_probability
from agilerl_like.hpo.genome import NO_PARENT, Genome, Mutation
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.mutation import draw_operator, mutate_architecture
from agilerl_like.registry import register

KINDS = ("gaussian", "crossover", "architecture", "noise")
MIN_AGE = 2
"""Generations after which a clone counts."""


@register("explorer", "bandit")
@check_init_names
@dataclass(frozen=True)
class BanditMutations(Explorer):
    """Draws one of `kinds` for each clone, the more often the more clones of that kind have descendants.

    gaussian: all hyperparameters take a normal step. crossover: the clone's hyperparameters lie between, or somewhat
    beyond, those of its parent and of another good member. architecture: a layer or nodes are added or removed. noise:
    weights are perturbed until the policy has moved by `mutation_kl`. The choice is by Thompson sampling; a share
    `uniform` of the draws is the same for all kinds, so that none is given up. Kinds that can change nothing, such as
    gaussian without ranges, are not drawn. The influence of a clone halves every `half_life` generations.
    """

    kinds: tuple[str, ...] = KINDS
    uniform: float = 0.2
    half_life: float = 5.0
    new_layer_prob: float = 0.2
    mutation_kl: float = 0.01
    mutation_sd: float = 0.5

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        set_tuple_field(self, "kinds")
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigurationError(f"kinds={self.kinds!r} has {kind!r}; allowed are {', '.join(KINDS)}")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ConfigurationError(f"kinds={self.kinds!r} must name each kind once, and at least one")
        check_probability("uniform", self.uniform)
        check_probability("new_layer_prob", self.new_layer_prob)
        for name in ("half_life", "mutation_kl", "mutation_sd"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be finite and greater than 0")

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        """Return the genome after a change of the drawn kind; a normal step, if there was nothing to change."""
        kind = self.draw_kind(history, rng, self._useful_kinds(genome, hp_config))
        if kind == "noise":
            return genome, (Mutation("parameters", "noise", {"sd": self.mutation_sd, "kl": self.mutation_kl}),)
        child, change = genome, Mutation("none")
        if kind == "crossover":
            child, change = crossover(genome, history, rng, hp_config, repair)
        elif kind == "architecture":
            operator = draw_operator(genome.architecture, rng, self.new_layer_prob)
            child, change = mutate_architecture(genome, kind, operator, rng)
        if child != genome:
            return child, (change,)
        steps = GaussianSteps(architecture=0.0)
        return steps.propose(genome, history, rng, hp_config=hp_config, repair=repair)

    def draw_kind(self, history: History, rng: np.random.Generator, kinds: Sequence[str]) -> str:
        """Draw one of `kinds`: the one whose value is the largest in a sample from the posterior of all, or any."""
        if rng.random() < self.uniform:
            return kinds[int(rng.integers(len(kinds)))]
        values = kind_values(history, self.half_life)
        sampled = [rng.beta(*np.add(1.0, values.get(kind, (0.0, 0.0)))) for kind in kinds]
        return kinds[int(np.argmax(sampled))]

    def _useful_kinds(self, genome: Genome, hp_config: HyperparameterConfig) -> Sequence[str]:
        """Return the kinds that can change a genome; all of them if none can."""
        architecture = genome.architecture
        legal = {
            "gaussian": bool(hp_config),
            "crossover": bool(hp_config),
            "architecture": bool(architecture.operators("layer") or architecture.operators("node")),
            "noise": True,
        }
        return [kind for kind in self.kinds if legal[kind]] or self.kinds


def kind_of(trial: Trial) -> str:
    """Return the kind of mutation that a trial started with; "" if it is none of the bandit's."""
    operators = [name.removeprefix("rl_hp.") for name in trial.operators.split(", ")]
    kinds = [{"parameters": "noise"}.get(group, group) for group in (name.split(".")[0] for name in operators)]
    return next((kind for kind in kinds if kind in KINDS), "")


def kind_values(history: History, half_life: float) -> dict[str, tuple[float, float]]:
    """Return for each kind the weighted numbers of clones with and without descendants among the present members.

    A member counts as a descendant of itself. Clones of the last two generations are left out: it is too early to say.
    """
    now = history.trials[-1].generation if history.trials else 0
    parent = {trial.uid: trial.parent_uid for trial in history.trials}
    alive: set[int] = set()
    for trial in history.trials:
        uid = trial.uid if trial.generation == now else NO_PARENT
        while uid in parent and uid not in alive:
            alive.add(uid)
            uid = parent[uid]
    found: dict[str, tuple[float, float]] = {}
    for trial in history.trials:
        if trial.generation <= now - MIN_AGE and (kind := kind_of(trial)):
            weight = 0.5 ** ((now - trial.generation) / half_life)
            with_, without = found.get(kind, (0.0, 0.0))
            found[kind] = (with_ + weight, without) if trial.uid in alive else (with_, without + weight)
    return found


def crossover(
    genome: Genome, history: History, rng: np.random.Generator, hp_config: HyperparameterConfig, repair: Repair
) -> tuple[Genome, Mutation]:
    """Mix hyperparameters with those of another member, drawn from the better half of the last generation.

    On its own scale each hyperparameter lies at a random place on the line through both values, at most half of
    their distance beyond either, so that the spread of the population is kept (Eshelman and Schaffer 1993: BLX-0.5). A
    choice is that of either, and a hyperparameter that only the other member uses is the other's.
    """
    last = history.trials[-1].generation if history.trials else 0
    mates = [
        trial
        for trial in history.trials
        if trial.generation == last and math.isfinite(trial.fitness) and hp_config.covers(trial.hyperparameters)
    ]
    mates = sorted(mates, key=lambda trial: (-trial.fitness, trial.uid))[: -(-len(mates) // 2)]
    own = genome.hyperparameters
    active = hp_config.active(own)
    mates = [trial for trial in mates if any(trial.hyperparameters[name] != own[name] for name in active)]
    if not mates:
        return with_hyperparameters(genome, {}, repair, operator="crossover")
    other = mates[rng.integers(len(mates))].hyperparameters
    mixed: dict[str, Any] = {}
    for name, parameter in hp_config.active(other).items():
        if name in active:
            mixed[name] = parameter.blend(own[name], other[name], rng)
        else:  # within the range of this member, which may be another than the other's
            mixed[name] = other[name] if isinstance(parameter, Choice) else parameter.clip(other[name])
    resolved = hp_config.resolve(own, mixed, rng)
    return with_hyperparameters(genome, resolved, repair, operator="crossover")
