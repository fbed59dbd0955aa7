"""An architecture small enough to check by eye, and a test of frequencies whose errors are known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest


@dataclass(frozen=True)
class Layers:
    """One to three layers of one to eight nodes, with one activation for all."""

    nodes: tuple[int, ...] = (4, 4)
    activation: str = "ReLU"

    def operators(self, kind: str) -> tuple[str, ...]:
        if kind == "activation":
            return ("change_activation",)
        if kind == "layer":
            return ("add_layer",) * (len(self.nodes) < 3) + ("remove_layer",) * (len(self.nodes) > 1)
        add = tuple(f"{layer}.add_node" for layer, nodes in enumerate(self.nodes) if nodes < 8)
        remove = tuple(f"{layer}.remove_node" for layer, nodes in enumerate(self.nodes) if nodes > 1)
        return add + remove

    def mutate(
        self, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[Layers, dict[str, int | float | str]]:
        if operator == "change_activation":
            others = [name for name in activations if name != self.activation]
            arguments = {"activation": others[rng.integers(len(others))] if others else self.activation}
        elif operator.endswith("_layer"):
            arguments = {"layer": len(self.nodes) - (operator == "remove_layer")}
        else:
            arguments = {"layer": int(operator[0]), "nodes": 1}
        return self.apply(operator, **arguments), arguments

    def apply(self, operator: str, **arguments: int | float | str) -> Layers:
        if operator == "change_activation":
            return replace(self, activation=str(arguments["activation"]))
        if operator.endswith("_layer"):
            return replace(self, nodes=(*self.nodes, 4) if operator == "add_layer" else self.nodes[:-1])
        amount = int(arguments["nodes"]) * (1 if "add" in operator else -1)
        nodes = tuple(width + amount * (index == arguments["layer"]) for index, width in enumerate(self.nodes))
        return replace(self, nodes=nodes)

    def describe(self) -> str:
        return f"{'-'.join(map(str, self.nodes))} {self.activation}"


def _assert_frequency(hits: int, trials: int, probability: float) -> None:
    """Fail if so many hits, or so few, have a chance of less than one in a million each."""

    def chance(of: int) -> float:
        log_ways = math.lgamma(trials + 1) - math.lgamma(of + 1) - math.lgamma(trials - of + 1)
        return math.exp(log_ways + of * math.log(probability) + (trials - of) * math.log1p(-probability))

    at_most, at_least = (math.fsum(map(chance, span)) for span in (range(hits + 1), range(hits, trials + 1)))
    assert min(at_most, at_least) > 1e-6, f"{hits} of {trials} is not plausible for a probability of {probability}"


@pytest.fixture(scope="session")
def assert_frequency() -> Callable[[int, int, float], None]:
    return _assert_frequency


@pytest.fixture(scope="session")
def layers() -> type[Layers]:
    return Layers
