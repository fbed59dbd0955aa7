"""Networks of algorithms: actor and critic, action distributions, architectures and their mutation."""

from agilerl_like.networks.actor_critic import Actor, ActorCritic, Network
from agilerl_like.networks.architecture import EncoderKind, NetworkSpec
from agilerl_like.networks.distributions import ActionDistribution, make_distribution

__all__ = ["ActionDistribution", "Actor", "ActorCritic", "EncoderKind", "Network", "NetworkSpec", "make_distribution"]
