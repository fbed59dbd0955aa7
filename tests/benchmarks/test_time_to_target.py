"""Our side of the time to a target has the budget of the others."""

import pytest

from agilerl_like.config.bundled import find_config
from benchmarks.targets import BUDGETS, TARGETS
from benchmarks.time_to_target import options_for


@pytest.mark.parametrize("env", TARGETS)
def test_all_members_together_have_the_budget_of_a_peer(env):
    name, options = options_for(env)
    config = find_config(name).override(options).validate()
    assert config.training.max_steps * config.population.size == pytest.approx(BUDGETS[env], rel=1e-5)
    assert config.training.target == TARGETS[env]
