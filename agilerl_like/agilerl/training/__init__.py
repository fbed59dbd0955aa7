"""The training loops with AgileRL's signatures."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.utils.utils import elite_file
from agilerl_like.agilerl.wrappers.agent import AgentWrapper, bare
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


def train_list(
    train: Callable[..., Any], arguments: Mapping[str, Any], **changed: Any
) -> tuple[list[Any], list[float]]:
    """Call a training loop with the `locals()` of a function, for a list of agents or of wrapped agents.

    `changed` are arguments in place of the function's; the agents return in the wrapper of the first one. The elite is
    saved where AgileRL saves it. A selection without mutation has no effect, as in AgileRL.

    Raises:
        ConfigurationError: there are no agents, or `max_steps` is a flag, as where arguments are in the order of
            older releases.
    """
    given = {**arguments, **arguments["options"], **changed}
    if isinstance(given["max_steps"], bool):
        raise ConfigurationError(
            f"max_steps={given['max_steps']!r}; allowed is a positive integer: in older releases of AgileRL "
            "swap_channels comes before it, so pass arguments by name"
        )
    pop = given["pop"]
    agents = [pop] if hasattr(pop, "algo") else pop
    population = [*agents] if isinstance(agents, Iterable) else []
    if not population:
        raise ConfigurationError(f"pop={pop!r:.100}; allowed is a list of agents, such as PPO.population(size=…, …)")
    env_name, algo = given["env_name"], given["algo"] or population[0].algo
    if given.get("elite_path") or (given.get("save_elite") and env_name):
        given["elite_path"] = elite_file(given.get("elite_path"), env_name, algo)
    selections = [name for name in ("selection_strategy", "tournament") if given[name] is not None]
    if selections and given["mutation"] is None:
        warnings.warn(f"{selections[0]} has no effect without mutation: no member is replaced", stacklevel=3)
        given |= dict.fromkeys(selections)
    wrapper = population[0] if isinstance(population[0], AgentWrapper) else None
    given["pop"] = [bare(agent) for agent in population]
    trained, fitness = train(**{name: value for name, value in given.items() if name != "options"})
    return [agent if wrapper is None else wrapper.around(agent) for agent in trained], fitness
