"""What AgileRL does, measured: one function for each subject of `benchmarks.agilerl_differences` that can be run.

Runs in the environment of the peer and prints {"version": ..., "facts": {subject: value}} as JSON.
"""

import inspect
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

FACTS: dict[str, Callable[[], Any]] = {}
BOX = gymnasium.spaces.Box(-1.0, 1.0, (4,))
NARROW = gymnasium.spaces.Box(-0.01, 0.01, (2,))
DISCRETE = gymnasium.spaces.Discrete(2)


def fact(subject: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the function of a subject."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        FACTS[subject] = function
        return function

    return add


def default(function: Any, name: str) -> Any:
    """Return the default of an argument."""
    function = function.__init__ if isinstance(function, type) else function  # a metaclass hides the signature
    return inspect.signature(function).parameters[name].default


@fact("`hp_config` left out")
def default_ranges() -> Any:
    from agilerl.algorithms import PPO

    return sorted(PPO(BOX, DISCRETE).hp_config.names())


@fact("defaults of PPO")
def defaults_of_ppo() -> Any:
    from agilerl.algorithms import PPO

    return {name: default(PPO, name) for name in ("learn_step", "action_std_init", "share_encoders")}


@fact("`get_action` in evaluation mode, Box")
def clipped_actions() -> Any:
    from agilerl.algorithms import PPO

    agent = PPO(BOX, NARROW)
    agent.set_training_mode(False)
    actions = agent.get_action(np.zeros((64, 4), np.float32))[0]
    return bool((np.abs(actions) <= 0.01 + 1e-6).all())


@fact("mutation before training")
def mutates_before_training() -> Any:
    from agilerl.training.train_on_policy import train_on_policy

    return "pre_training_mut=True" in inspect.getsource(train_on_policy)


@fact("the elite")
def mutates_the_elite() -> Any:
    from agilerl.hpo.mutation import Mutations

    return default(Mutations, "mutate_elite")


@fact("time limits")
def time_limits_terminate() -> Any:
    from agilerl.rollouts import on_policy

    return "np.logical_or(term, trunc)" in inspect.getsource(on_policy)


@fact("`layer_norm`")
def layer_norm() -> Any:
    from agilerl.modules.mlp import EvolvableMLP

    return default(EvolvableMLP, "layer_norm")


@fact("`mutation_sd`")
def mutation_sd() -> Any:
    from agilerl.hpo.mutation import Mutations

    return default(Mutations, "mutation_sd")


@fact("checkpoints")
def checkpoints_are_pickles() -> Any:
    from agilerl.algorithms import PPO

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.pt"
        PPO(BOX, DISCRETE).save_checkpoint(str(path))
        return any(name.endswith(".pkl") for name in zipfile.ZipFile(path).namelist())


@fact("populations")
def population_type() -> Any:
    from agilerl.algorithms import PPO

    return type(PPO.population(size=2, observation_space=BOX, action_space=DISCRETE)).__name__


@fact("growing a network")
def change_of_a_grown_network() -> Any:
    import torch
    from agilerl.modules.mlp import EvolvableMLP

    torch.manual_seed(0)
    module, x = EvolvableMLP(4, 2, [64, 64], device="cpu"), torch.randn(256, 4)
    before = module(x).detach()
    module.add_node(hidden_layer=0, numb_new_nodes=32)
    return round(float((module(x).detach() - before).abs().max() / before.std()), 3)


@fact("shrinking")
def keeps_the_first_nodes() -> Any:
    import torch
    from agilerl.modules.mlp import EvolvableMLP

    module = EvolvableMLP(4, 2, [128], layer_norm=False, device="cpu")
    before = next(module.parameters()).detach().clone()
    module.remove_node(hidden_layer=0, numb_new_nodes=32)
    return bool(torch.equal(next(module.parameters()).detach(), before[:96]))


@fact("integer hyperparameters")
def reached_from_four() -> Any:
    from agilerl.algorithms.core.registry import RLParameter

    reached = set()
    for _ in range(100):
        parameter = RLParameter(min=1, max=64, dtype=int)
        parameter.value = 4
        reached.add(parameter.mutate())
    return sorted(reached)


def main() -> None:
    warnings.simplefilter("ignore")
    facts = {subject: function() for subject, function in FACTS.items()}
    print(json.dumps({"version": metadata.version("agilerl"), "facts": facts}))


if __name__ == "__main__":
    main()
