"""Observation encoders and architectures that an algorithm's settings describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from torch import nn

from agilerl_like.algorithms.learner_host import LearnerHost
from agilerl_like.envs.critic_observation import AsymmetricEncoder, make_observation_encoder
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.custom import CustomSpec


def encoder_of(
    space: gymnasium.Space, settings: Any, critic_entries: str | Sequence[str] | None = None
) -> ObservationEncoder | AsymmetricEncoder:
    """Return the encoder of a space, by the settings for images and for the critic's observations.

    Raises:
        ConfigurationError: the space lacks an entry of `critic_observation`.
    """
    named = {
        name: getattr(settings, name, getattr(LearnerHost, name)) for name in ("swap_channels", "normalize_images")
    }
    one_hot = getattr(settings, "one_hot", True)
    names = critic_entries or getattr(settings, "critic_observation", LearnerHost.critic_observation)
    return make_observation_encoder(space, names, one_hot=one_hot, **named)


def initial_architecture(
    net_config: Mapping[str, Any] | None, encoding: ObservationEncoder | AsymmetricEncoder, *, recurrent: bool
) -> NetworkSpec:
    """Return the architecture that a `net_config` describes for the observations of policy and critic."""
    of_critic = encoding.critic.leaves if encoding.is_asymmetric else None
    return NetworkSpec.from_net_config(net_config, encoding.policy.leaves, recurrent=recurrent, critic_leaves=of_critic)


def custom_spec(actor_network: nn.Module | None, critic_network: nn.Module | None) -> CustomSpec | None:
    """Return the spec of the user's own networks, if there are any."""
    if actor_network is None and critic_network is None:
        return None
    return CustomSpec.of(actor_network, critic_network)


def read_architecture(
    config: Mapping[str, Any],
    encoding: ObservationEncoder | AsymmetricEncoder,
    *,
    recurrent: bool,
    networks: CustomSpec | None,
) -> NetworkSpec:
    """Read an architecture's `to_config`; `networks` are the user's own, if it was made of them.

    Raises:
        ConfigurationError: the user's networks are missing; or a value is illegal.
    """
    if config["encoder"] != "custom":
        of_critic = encoding.critic.leaves if config.get("critic_config") else None
        return NetworkSpec.from_net_config(
            config, encoding.policy.leaves, recurrent=recurrent, critic_leaves=of_critic, evolved=True
        )
    if networks is None:
        raise ConfigurationError(
            "it has networks of the user's own; pass them as actor_network and critic_network, of a team as "
            "actor_networks and critic_networks, to load() of the class, such as PPO.load(PATH, actor_network=…)"
        )
    return NetworkSpec.custom(networks.with_architectures(config["encoder_config"]))
