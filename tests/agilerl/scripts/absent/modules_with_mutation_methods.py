"""A module of one's own with @mutation methods."""

from agilerl.modules.base import MutationType, mutation

assert mutation(MutationType.NODE)
