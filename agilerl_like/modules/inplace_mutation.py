"""Mutations in place: `module.add_node(layer=0, nodes=16)` changes a module and returns what was done.

This is for modules that are not part of an agent. An agent's networks are mutated by `Mutations`, which keeps actor and
critic at one shape and transfers the optimizer's moments.

A change that cannot be exact at once, such as a new layer behind a tanh or another activation, fades in:
`module.advance_fades_(0.25)` between updates advances it by a quarter, `module.fade_left()` returns how much is left.
A mutation that cannot be combined with the fade completes it first, in one step, which changes outputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.spec import Arguments
from agilerl_like.modules.weight_transfer import in_eval_mode, transfer_weights_

NUM_RANDOM_STATES = 256
"""Number of random inputs on which removals are refitted where none are given."""


def mutation_method(operator: str) -> Callable[..., Arguments]:
    """Return the method of a module that applies an operator in place."""

    def method(
        module: EvolvableModule, *, seed: int = 0, states: Any = None, **arguments: int | float | str
    ) -> Arguments:
        return mutate_(module, operator, seed=seed, states=states, **arguments)

    method.__name__ = operator
    method.__doc__ = f"""Apply `{operator}` in place; see `modules.inplace_mutation.mutate_`."""
    return method


def mutate_(
    module: EvolvableModule, operator: str, *, seed: int = 0, states: Any = None, **arguments: int | float | str
) -> Arguments:
    """Apply an operator to a module in place and return its arguments; those that are left out are drawn.

    Growth changes no output. After a removal the remaining layers are refitted on `states`, a batch of inputs, or on
    standard normal inputs if there is none; a module that reads rows of observations needs `states` then. An earlier
    mutation that is still fading in, and with which the operator cannot be combined, is completed first, as
    `advance_fades_()` does: outputs change, because this is one step. `seed` and the architecture determine the draws,
    so that repeated calls draw differently. The module gets new parameters, so an optimizer of the old ones has to be
    replaced.

    Raises:
        ConfigurationError: the operator is unknown, or not legal now or with these arguments; or `states` are needed.
    """
    keeps_fading = module.fade_left() > 0 and bool(module.spec.choices(operator))
    spec = module.spec if keeps_fading else module.spec.without_fading()
    rng = np.random.default_rng([seed, zlib.crc32(repr(spec).encode())])
    legal = [choice for choice in spec.choices(operator) if arguments.items() <= choice.items()]
    if not legal:
        allowed = list(spec.choices(operator)) or "none, since it would leave its limits"
        raise ConfigurationError(f"{operator} with {arguments} is not legal for {spec}; allowed are {allowed}")
    chosen = dict(legal[rng.integers(len(legal))])
    child = module.rebuild(spec.apply(operator, **chosen)).to(next(module.parameters()))
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    child.reset_(generator, output_gain=1.0)
    if states is None and (_reads_floats(module) or module.unit_change(operator, chosen).consumers):
        states = _random_states(module, generator)
    if not keeps_fading:
        module.advance_fades_()
        module.finish_fading_()
    with in_eval_mode(module):
        transfer_weights_(child, module, operator, chosen, states=states, generator=generator)
    child.train(module.training)
    hooks = {name: value for name, value in vars(module).items() if "_hook" in name}
    vars(module).update({**vars(child), **hooks})
    return chosen


def _reads_floats(module: EvolvableModule) -> bool:
    """Whether inputs are floats of one kind, so that normal ones can be drawn: not rows of observations."""
    shape = module.sample_shape
    return isinstance(shape, Sequence) and all(isinstance(size, int) for size in shape)


def _random_states(module: EvolvableModule, generator: torch.Generator) -> Tensor:
    if not _reads_floats(module):
        raise ConfigurationError(f"states=None, but {type(module).__name__} reads rows of observations; pass some")
    return torch.randn(NUM_RANDOM_STATES, *module.sample_shape, generator=generator).to(next(module.parameters()))
