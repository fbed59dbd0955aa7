"""Ranges of hyperparameters, and AgileRL's default ones."""

from __future__ import annotations

import numpy as np

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.foreign_settings.agilerl import default_range
from agilerl_like.hpo import HyperparameterConfig, RLParameter

__all__ = ["HyperparameterConfig", "RLParameter", "make_default_hp_config"]

__getattr__ = absent_from(__name__)


def make_default_hp_config(**values: float) -> HyperparameterConfig:
    """Ranges around values: a tenth to ten times of a float, a quarter to four times of a whole number, as AgileRL has.

    Raises:
        ConfigurationError: a value is not a positive number.
    """
    return HyperparameterConfig(**{name: _around(value) for name, value in values.items()})


def _around(value: float) -> RLParameter:
    if isinstance(value, np.generic):
        value = value.item()
    return RLParameter(**default_range(value), dtype=int if isinstance(value, int) else float)
