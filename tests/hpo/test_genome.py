from __future__ import annotations

import copy
import json

import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Genome, Mutation, Offspring


@pytest.mark.parametrize(
    ("mutation", "label"),
    [
        (Mutation("none", details={"wanted": "activation"}), "None"),
        (Mutation("architecture", "encoder.add_node", {"layer": 0, "nodes": 32}), "encoder.add_node"),
        (Mutation("parameters", "noise", {"sd": 0.1}), "param"),
        (Mutation("activation", "change_activation", {"activation": "ELU"}), "act"),
        (Mutation("rl_hp", "step", {"lr": (1e-3, 1.2e-3), "ent_coef": (0.01, 0.008)}), "ent_coef,lr"),
    ],
)
def test_a_mutation_has_a_label_and_survives_json(mutation: Mutation, label: str) -> None:
    assert mutation.label == label
    assert Mutation.from_json(json.loads(json.dumps(mutation.to_json()))) == mutation


def test_a_mutation_of_an_unknown_kind_is_an_error_that_lists_the_kinds() -> None:
    allowed = "none, architecture, parameters, activation, rl_hp"
    with pytest.raises(ConfigurationError, match=f"kind='mine' of a mutation is unknown; allowed are {allowed}"):
        Mutation("mine", "x")  # type: ignore[arg-type]


def test_a_genome_is_immutable_and_hashable(layers) -> None:
    values = {"lr": 1e-3, "batch_size": 64}
    genome = Genome(values, layers())
    values["lr"] = 1.0
    assert genome.hyperparameters == {"batch_size": 64, "lr": 1e-3}
    assert copy.deepcopy(genome) == genome
    assert hash(genome) == hash(Genome({"batch_size": 64, "lr": 1e-3}, layers()))
    assert genome.replace(hyperparameters={"lr": 1e-2}) == Genome({"lr": 1e-2}, layers())


def test_offspring_serialize_to_one_line_of_the_lineage(layers) -> None:
    step = Mutation("rl_hp", "step", {"lr": (1e-3, 1.2e-3)})
    offspring = Offspring(7, 2, 19, 11, 5, Genome({"lr": 1.2e-3}, layers((4, 8))), (step,))
    assert not offspring.survives
    assert json.loads(json.dumps(offspring.to_json())) == {
        "generation": 7,
        "slot": 2,
        "uid": 19,
        "parent_uid": 11,
        "parent_slot": 5,
        "survives": False,
        "mutations": [{"kind": "rl_hp", "operator": "step", "details": {"lr": [1e-3, 1.2e-3]}}],
        "hyperparameters": {"lr": 1.2e-3},
        "architecture": "4-8 ReLU",
    }
