"""The interface of exploration: how the genome of an offspring differs from its parent's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.seeding import Purpose, fresh_seed, generator

Repair: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Adjusts hyperparameters that depend on one another, such as batch_size and the length of a rollout."""
RepairWithin: TypeAlias = Callable[[dict[str, Any], HyperparameterConfig], Mapping[str, Any]]
"""A repair within given ranges, because those of the members of a population may differ."""


def unchanged(hyperparameters: dict[str, Any], hp_config: HyperparameterConfig | None = None) -> Mapping[str, Any]:
    """Return the hyperparameters as they are; for agents whose hyperparameters do not depend on one another."""
    return hyperparameters


def repair_within(hp_config: HyperparameterConfig, repair: RepairWithin) -> Repair:
    """Return the repair within the ranges of one member."""
    return lambda hyperparameters: repair(hyperparameters, hp_config)


Check: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Raises ConfigurationError if one of some hyperparameters has a value that its setting does not allow."""


def accepted(hyperparameters: Mapping[str, Any]) -> None:
    """Accept all values; for agents without settings that have bounds."""


class Explorer(ABC):
    """A strategy that proposes genomes; `Mutations` is the default, a frozen dataclass with `propose` replaces it."""

    mutate_elite: bool = False
    """Whether the best member is changed too, although it keeps its slot."""
    mutate_survivors: bool = False
    """Whether the other members that keep their slots are changed too."""
    rand_seed: int | None = None
    """Seed of mutation by hand, None: from the operating system; a run has its own seed."""

    @cached_property
    def manual_rng(self) -> np.random.Generator:
        """The random generator of mutation by hand, which continues from call to call."""
        return generator(fresh_seed() if self.rand_seed is None else self.rand_seed, Purpose.MANUAL, Purpose.MUTATION)

    def mutation(self, population: Any, pre_training_mut: bool = False) -> Any:
        """Mutate a population by hand and return it; in a list, the first agent is taken for the elite."""
        if hasattr(population, "mutate"):
            return population.mutate(self, pre_training=pre_training_mut)
        spared = 0 if self.mutate_elite or pre_training_mut else 1
        for agent in population[spared:]:
            agent.mutate(self, self.manual_rng, pre_training=pre_training_mut)
        return population

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` if this explorer cannot be used for a population of this size."""
        if population_size < 1:
            raise ConfigurationError(f"population_size={population_size!r} must be at least 1")

    def check_ranges(self, hp_config: HyperparameterConfig) -> None:  # noqa: B027  # by default all are accepted
        """Raise `ConfigurationError` if this explorer cannot propose values of these ranges and choices."""

    @abstractmethod
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
        """Return the changed genome and a record of each change.

        It is called once for each offspring, in the order of the slots; `history.pending` holds the proposals that were
        made before in the same generation. Every random draw must come from `rng`, so that all processes get the same
        result. Records of architecture and activation are applied to the parent's networks, and all records together
        must give the returned genome, because the lineage holds them; see `Mutation` for their details. An explorer of
        hyperparameters alone returns `with_hyperparameters(genome, changed, repair)`, where
        `hp_config.resolve(genome.hyperparameters, changed, rng)` returns the changes that conditions allow. Only
        hyperparameters in `hp_config` may change: the lineage, replays and reports follow these.
        """

    def draw(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        """Return the genome of a fresh member, with the architecture of `genome`.

        By default each hyperparameter is sampled from its range or choice.
        """
        drawn, record = with_hyperparameters(genome, hp_config.sample(rng), repair, operator="draw")
        return drawn, (record,)


def with_hyperparameters(
    genome: Genome, changed: Mapping[str, Any], repair: Repair = unchanged, operator: str = "step"
) -> tuple[Genome, Mutation]:
    """Return the genome with some hyperparameters changed and repaired, and the record of what differs: (old, new).

    The kind of the record is "none" if nothing differs.
    """
    old = genome.hyperparameters
    new = repair({**old, **changed})
    details = {name: (old[name], new[name]) for name in old if new[name] != old[name]}
    record = Mutation("rl_hp", operator, details) if details else Mutation("none", operator, {"wanted": "rl_hp"})
    return genome.replace(hyperparameters=new), record


def checked_proposal(
    explorer: Explorer, proposal: Any, genome: Genome, hp_config: HyperparameterConfig, check: Check = accepted
) -> tuple[Genome, tuple[Mutation, ...]]:
    """Return what an explorer made of a genome.

    Raises:
        ConfigurationError: it is no genome with records of its changes, or the genome has other hyperparameters or a
            new value of one without a range, or one that is not finite, not in its range or choices, or refused by
            `check`, which gets all new values; or the records do not lead from the parent's genome to it.
    """
    name = type(explorer).__name__
    parts = proposal if isinstance(proposal, tuple) and len(proposal) == 2 else (None, None)
    if (
        not isinstance(parts[0], Genome)
        or not isinstance(parts[1], tuple)
        or not all(isinstance(record, Mutation) for record in parts[1])
    ):
        raise ConfigurationError(f"{name} proposed {_shown(proposal)}; allowed is (genome, (mutation, …))")
    old, new = genome.hyperparameters, parts[0].hyperparameters
    if differing := ", ".join(sorted(old.keys() ^ new.keys())):
        raise ConfigurationError(
            f"{name} proposed a genome in which {differing:.100} is missing or unknown; allowed are exactly the "
            "hyperparameters of the parent"
        )
    changed = {key: value for key, value in new.items() if value != old[key]}
    if without_range := [key for key in changed if key not in hp_config]:
        key = without_range[0]
        raise ConfigurationError(
            f"{name} proposed {key}={new[key]!r} (before: {old[key]!r}), and {key} has no range in hp_config, so the "
            f"lineage would lack the change; allowed are those with a range: {', '.join(hp_config) or 'none'}"
        )
    for key, value in changed.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{name} proposed {key}={value!r}; allowed are finite numbers")
    for key, parameter in hp_config.items():
        is_new = new[key] != old[key] or not hp_config.is_active(key, old)
        if is_new and hp_config.is_active(key, new):
            try:
                parameter.check(key, new[key])
            except ConfigurationError as error:
                raise ConfigurationError(f"{name} proposed a value that is not allowed: {error}") from error
    try:
        check(changed)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} proposed a value that is not allowed: {error}") from error
    _check_records(name, genome, parts[0], parts[1])
    return parts[0], parts[1]


def _shown(proposal: Any) -> str:
    """Return the representation of a proposal in which a genome, which is long, is shown as "genome"."""
    if isinstance(proposal, Genome):
        return "genome"
    if isinstance(proposal, tuple):
        return f"({', '.join(map(_shown, proposal))})"
    return f"{proposal!r:.100}"


def _check_records(explorer: str, parent: Genome, child: Genome, records: tuple[Mutation, ...]) -> None:
    """Raise ConfigurationError unless the records lead from one genome to the other."""
    values, architecture = dict(parent.hyperparameters), parent.architecture
    for record in records:
        where = f"{explorer} returned a record of kind={record.kind!r}, operator={record.operator!r}"
        if record.kind == "rl_hp":
            for key, pair in record.details.items():
                if not isinstance(pair, tuple | list) or len(pair) != 2 or key not in values or pair[0] != values[key]:
                    raise ConfigurationError(
                        f"{where} with details {key}={pair!r:.100}; allowed is (old, new) for a hyperparameter of the "
                        f"parent, here ({values.get(key, 'none')!r}, {child.hyperparameters.get(key, 'none')!r})"
                    )
                values[key] = pair[1]
        elif record.kind == "parameters":
            for key, limit in record.details.items():
                is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
                if key not in ("sd", "kl") or not is_number or not 0 <= limit < math.inf:
                    raise ConfigurationError(
                        f"{where} with details {key}={limit!r:.100}; allowed are sd and kl, finite numbers that are "
                        "not negative"
                    )
        elif record.kind in ("architecture", "activation"):
            try:
                architecture = architecture.apply(record.operator, **record.details)
            except Exception as error:  # by the operator: of an unknown name, a missing or an illegal argument
                raise ConfigurationError(
                    f"{where} and details {dict(record.details)!r:.200}, which cannot be applied to the architecture "
                    f"{architecture.describe():.200} ({error!r:.200}); allowed are an operator that it lists and the "
                    "arguments that genome.architecture.mutate(operator, rng) returns"
                ) from error
    for key, value in values.items():
        if child.hyperparameters[key] != value:
            raise ConfigurationError(
                f"{explorer} proposed {key}={child.hyperparameters[key]!r}, and its records give {value!r}; allowed is "
                "a record of each change, such as with_hyperparameters returns"
            )
    if child.architecture != architecture:
        raise ConfigurationError(
            f"{explorer} proposed the architecture {child.architecture.describe():.200}, and its records "
            f"({', '.join(record.full_name for record in records) or 'none'}) give {architecture.describe():.200}; "
            "allowed is a record of kind architecture or activation for each change, with the arguments that "
            "genome.architecture.mutate(operator, rng) returns"
        )
