"""Notes on ranges that are legal, but probably not what was meant."""

import pytest

from agilerl_like.config.loader import Draft
from agilerl_like.config.notes import config_notes
from agilerl_like.errors import ConfigurationError


def notes(ranges, name="PPO", **algorithm):
    environment = {"id": "CartPole-v1" if name != "IPPO" else "mpe2.simple_spread_v3", "num_envs": 8}
    data = {"environment": environment, "algorithm": {"name": name, **algorithm}, "hyperparameters": ranges}
    return list(config_notes(Draft(data).validate()))


@pytest.mark.parametrize(
    ("sizes", "beyond"),
    [
        ({"min": 64, "max": 8192, "scale": "power_of_two", "dtype": "int"}, "8192"),
        ([64, 1024, 4096], "1024, 4096"),
        ([64, 128, 512], ""),
        ({"min": 64, "max": 512, "dtype": "int"}, ""),
    ],
)
def test_minibatches_that_no_rollout_holds_are_noted(sizes, beyond) -> None:
    found = notes({"batch_size": sizes}, learn_step=512, batch_size=64)
    wanted = f"hyperparameters.batch_size has {beyond}, and a rollout has 512 samples: larger values are lowered to"
    assert [note.startswith(wanted) for note in found] == ([True] if beyond else [])


def test_a_longer_rollout_may_be_searched_too_and_a_replay_has_no_rollout() -> None:
    sizes = {"min": 64, "max": 1024, "dtype": "int"}
    longer = {"min": 512, "max": 1024, "dtype": "int"}
    assert notes({"batch_size": sizes, "learn_step": longer}, learn_step=512, batch_size=64) == []
    assert notes({"batch_size": sizes, "learn_step": [512, 1024]}, learn_step=512, batch_size=64)[1:] == []
    assert notes({"batch_size": sizes}, "DQN", batch_size=64) == []


def test_a_choice_of_two_numbers_is_noted() -> None:
    (note,) = notes({"lr": [1e-4, 1e-2], "gamma": [0.9, 0.99, 0.999], "advantage": ["gae", "mc"]})
    assert note.endswith("is a choice of two values; a range between them is {min: 0.0001, max: 0.01}")
    (note,) = notes({"gamma": [0.9, 1]})
    assert note.endswith("{min: 0.9, max: 1}")


def test_evolution_that_mutation_null_switches_off_is_noted() -> None:
    data = {"environment": {"id": "CartPole-v1"}, "mutation": None}
    (note,) = config_notes(Draft({**data, "evolution": "auto"}).validate())
    assert note == "mutation: null switches evolution off, so evolution: auto has no effect"
    (note,) = config_notes(Draft({**data, "selection": {"name": "gated"}}).validate())
    assert note == "mutation: null switches evolution off, so selection.name has no effect"
    assert list(config_notes(Draft(data).validate())) == []
    with pytest.raises(ConfigurationError, match=r"population\.pre_training_mutation=True has no effect with mutation"):
        Draft({**data, "population": {"pre_training_mutation": True}}).validate()
