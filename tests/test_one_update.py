"""One update of SB3, CleanRL and skrl equals ours with their presets: `python -m benchmarks.one_update --record`."""

import numpy as np
import pytest
import torch

from benchmarks import one_update
from benchmarks import one_update_problem as problems

pytestmark = pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")

CASES = [(system, number) for system, cases in problems.CASES.items() for number in range(len(cases))]
PROBLEM, RECORDED = one_update.read_record()


def recorded(system, number):
    """What a system computed, by the names of a problem."""
    return RECORDED[f"{system}/{number}"]


@pytest.mark.parametrize(("system", "number"), CASES)
def test_weights_and_moments_are_those_of_the_system(system, number):
    theirs = recorded(system, number)
    ours = one_update.our_update(system, PROBLEM, problems.CASES[system][number], theirs["orders"])
    assert ours.keys() == theirs.keys() - {"orders"}
    for group, difference in one_update.differences(ours, theirs).items():
        assert difference < one_update.TOLERANCE, group
    weights = [name for name in ours.keys() & PROBLEM.keys() if name.endswith("weight")]
    moved = {name: np.abs(theirs[name] - PROBLEM[name]).max() for name in weights}
    assert min(moved.values()) > 10 * one_update.TOLERANCE  # an update that changes nothing would be equal, too


def test_without_the_preset_the_update_is_another_one():
    theirs = recorded("sb3", 0)
    settings = {"n_steps": 32, "batch_size": 32, "n_epochs": 4}
    for changed in ({"vf_coef": 0.25}, {"normalize_advantage": False}, {"max_grad_norm": 0.4}):
        ours = one_update.our_update("sb3", PROBLEM, settings | changed, theirs["orders"])
        assert max(one_update.differences(ours, theirs).values()) > 10 * one_update.TOLERANCE, changed


def test_updates_end_early_at_the_limit_of_the_kl_divergence():
    steps = {system: problems.CASES[system][1] for system in ("sb3", "skrl")}
    assert len(recorded("sb3", 1)["orders"]) < steps["sb3"]["n_epochs"]  # the whole update ends
    assert (
        len(recorded("skrl", 1)["orders"]) == steps["skrl"]["learning_epochs"]
    )  # only the rest of an epoch is skipped


def test_the_reference_of_cleanrl_is_computed_again():
    found = one_update.cleanrl_update(PROBLEM, problems.CASES["cleanrl"][1])
    for name, theirs in recorded("cleanrl", 1).items():
        assert np.allclose(found[name], theirs, rtol=0, atol=1e-6), name


def test_advantages_of_the_reference_are_those_of_the_definition():
    given = {
        "rewards": torch.ones(3, 1),
        "values": torch.zeros(3, 1),
        "starts": torch.tensor([[1.0], [0.0], [1.0], [0.0]]),
    }
    critic = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(critic.weight, 0.0)
    torch.nn.init.constant_(critic.bias, 8.0)
    given["observations"] = torch.zeros(4, 1, 1)
    found = one_update._episode_advantages(given, critic, 0.5, 0.5)
    # the episode of steps 0 and 1 ends: 1 + .25 x 1, 1; step 2 is bootstrapped: 1 + .5 x 8
    assert found.flatten().tolist() == [1.25, 1.0, 5.0]
