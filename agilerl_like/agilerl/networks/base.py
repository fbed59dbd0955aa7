"""What AgileRL builds as a network object, as the `net_config` that PPO builds its actor and critic from.

`PPO(actor_network=StochasticActor(…), critic_network=ValueNetwork(…))` gives an agent of that architecture. Actor and
critic have one architecture here, that of the actor; the objects have no weights and cannot be called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium

from agilerl_like.agilerl.absent import WHOLE_NETWORKS, absent_from
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


class EvolvableNetwork:
    """A network's description: `net_config` and whether it is `recurrent`.

    A subclass is a description too: AgileRL's methods, such as `create_mlp`, are errors that name what is used instead.
    `encoder_name`, `device` and `random_seed` have no effect: the agent has the device, and its seed draws the weights.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        encoder_cls: Any = None,
        encoder_config: Mapping[str, Any] | None = None,
        encoder_name: str = "encoder",
        action_space: gymnasium.Space | None = None,
        min_latent_dim: int = 8,
        max_latent_dim: int = 128,
        latent_dim: int = 64,
        simba: bool = False,
        recurrent: bool = False,
        device: Any = "cpu",
        random_seed: int | None = None,
        encoder: Any = None,
        *,
        head_config: Mapping[str, Any] | None = None,
    ) -> None:
        if encoder is not None or encoder_cls is not None:
            raise ConfigurationError(
                "encoder and encoder_cls are not taken; allowed is encoder_config, or actor_network=<any nn.Module>"
            )
        self.observation_space, self.action_space, self.recurrent = observation_space, action_space, recurrent
        given = {"encoder_config": encoder_config, "head_config": head_config, "encoder": "simba" if simba else None}
        self.net_config = {
            "latent_dim": latent_dim,
            "min_latent_dim": min_latent_dim,
            "max_latent_dim": max_latent_dim,
            **{name: value for name, value in given.items() if value is not None},
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for such names
            raise AttributeError(name)
        raise AttributeError(
            f"{type(self).__name__}.{name} is not available: an EvolvableNetwork describes a network and has no "
            f"layers; {WHOLE_NETWORKS}"
        )

    def __call__(self, *inputs: Any, **named: Any) -> NoReturn:
        """Refuse the call.

        Raises:
            TypeError: always, because a description has no weights.
        """
        raise TypeError(
            f"{type(self).__name__} cannot be called: it describes a network and has no weights; the agent's `actor` "
            f"can be called; {WHOLE_NETWORKS}"
        )


class StochasticActor(EvolvableNetwork):
    """A policy's description, with the standard deviation and the squashing of its actions."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        encoder_cls: Any = None,
        encoder_config: Mapping[str, Any] | None = None,
        head_config: Mapping[str, Any] | None = None,
        action_std_init: float = 0.0,
        squash_output: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(
            observation_space, encoder_cls, encoder_config, action_space=action_space, head_config=head_config, **more
        )
        self.action_std_init, self.squash_output = action_std_init, squash_output


class ValueNetwork(EvolvableNetwork):
    """A critic's description."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        encoder_cls: Any = None,
        encoder_config: Mapping[str, Any] | None = None,
        head_config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(observation_space, encoder_cls, encoder_config, head_config=head_config, **more)
