"""Selection and mutation with AgileRL's signatures."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.hpo import mutation, tournament

__all__ = ["mutation", "tournament"]

__getattr__ = absent_from(__name__)
