"""Mutations of a module by hand: `module.add_node(layer=0, nodes=16)` changes it in place and returns what was done.

For modules that nobody trains as part of an agent. An agent's networks are mutated by `Mutations`, which keeps actor
and critic of one shape and carries the optimizer's moments.

What cannot be exact at once, as a new layer behind a tanh or another activation, fades in, and learns as far as it is
there: `module.advance_fades_(0.25)` between updates takes it a quarter of its way onward, `module.fade_left()` says how
much is left. Until nothing is, its layers cannot be mutated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.base import Arguments, EvolvableModule
from agilerl_like.modules.weight_transfer import transfer_weights_

NUM_RANDOM_STATES = 256
"""States that stand for what a module reads, where none are given."""


def mutation_method(operator: str) -> Callable[..., Arguments]:
    """The method that carries out an operator on a module itself."""

    def method(
        module: EvolvableModule, *, seed: int = 0, states: Any = None, **arguments: int | float | str
    ) -> Arguments:
        return mutate_(module, operator, seed=seed, states=states, **arguments)

    method.__name__ = operator
    method.__doc__ = f"""Carry out `{operator}` on this module; see `modules.mutation_method.mutate_`."""
    return method


def mutate_(
    module: EvolvableModule, operator: str, *, seed: int = 0, states: Any = None, **arguments: int | float | str
) -> Arguments:
    """Carry out an operator on a module itself, and return its arguments; those that are left out are drawn.

    Growth changes no output. After a removal what is left is refitted on `states`, a batch of what the module reads; on
    standard normal numbers if there is none. `seed` names the draws. The parameters are new ones: an optimizer that
    held the old has to be made anew.

    Raises:
        ConfigurationError: the operator is unknown or not legal now, or not with these arguments.
    """
    if module.spec.is_fading and module.fade_left() <= 0:
        module.finish_fading_()
    rng = np.random.default_rng(seed)
    legal = [choice for choice in module.spec.choices(operator) if arguments.items() <= choice.items()]
    if not legal:
        allowed = list(module.spec.choices(operator)) or _why_not_legal(module)
        raise ConfigurationError(f"{operator} with {arguments} is not legal for {module.spec}; allowed are {allowed}")
    chosen = dict(legal[rng.integers(len(legal))])
    child = module.rebuild(module.spec.apply(operator, **chosen)).to(next(module.parameters()))
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    child.reset_(generator, output_gain=1.0)
    seen = _random_states(module, generator) if states is None else states
    transfer_weights_(child.train(module.training), module, operator, chosen, states=seen, generator=generator)
    kept = {name: value for name, value in vars(module).items() if name.endswith("_hooks")}
    vars(module).update({**vars(child), **kept})
    return chosen


def _why_not_legal(module: EvolvableModule) -> str:
    if not module.spec.is_fading:
        return "none, for it would leave a bound"
    return (
        f"none while the last mutation is still fading in (left is {module.fade_left():.2f}); advance_fades_(share) "
        "takes it onward, advance_fades_() to its end"
    )


def _random_states(module: EvolvableModule, generator: torch.Generator) -> Tensor:
    shape = module.sample_shape
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) for size in shape):
        raise ConfigurationError(f"states=None, but {type(module).__name__} reads rows of observations; give some")
    return torch.randn(NUM_RANDOM_STATES, *shape, generator=generator).to(next(module.parameters()))
