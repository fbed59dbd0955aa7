"""Notes on ranges that are legal, but probably not what was meant."""

import pytest

from agilerl_like.algorithms.presets import PRESETS
from agilerl_like.config.loader import Draft
from agilerl_like.config.notes import config_notes
from agilerl_like.errors import ConfigurationError


def notes(ranges):
    data = {"environment": {"id": "CartPole-v1"}, "hyperparameters": ranges}
    return list(config_notes(Draft(data).validate()))


def test_a_choice_of_two_numbers_is_noted() -> None:
    (note,) = notes({"lr": [1e-4, 1e-2], "gamma": [0.9, 0.99, 0.999], "advantage": ["gae", "mc"]})
    assert note.endswith("is a choice of two values; a range between them is {min: 0.0001, max: 0.01}")
    (note,) = notes({"gamma": [0.9, 1]})
    assert note.endswith("{min: 0.9, max: 1}")


def test_evolution_that_mutation_null_switches_off_is_noted() -> None:
    data = {"environment": {"id": "CartPole-v1"}, "mutation": None}
    with pytest.raises(
        ConfigurationError, match=r"mutation=None has no meaning with evolution='auto'; set evolution: "
    ):
        Draft({**data, "evolution": "auto"}).validate()
    (note,) = config_notes(Draft({**data, "selection": {"name": "gated"}}).validate())
    assert note == "mutation: null switches evolution off, so selection.name has no effect"
    assert list(config_notes(Draft(data).validate())) == []
    with pytest.raises(ConfigurationError, match=r"population\.pre_training_mutation=True has no effect with mutation"):
        Draft({**data, "population": {"pre_training_mutation": True}}).validate()


@pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")
def test_a_preset_over_a_file_that_has_all_settings_is_noted() -> None:
    environment = {"id": "CartPole-v1", "num_envs": 4}
    printed = Draft(Draft({"environment": environment}).validate().to_json())
    (note,) = config_notes(printed.override(["--algorithm.preset", "sb3"]).validate())
    assert note == "algorithm.preset: sb3 has no effect, because each setting that it would fill in is given"
    for preset in PRESETS:
        config = Draft({"environment": environment, "algorithm": {"preset": preset, "lr": 2e-3}}).validate()
        assert [*config_notes(config), *config_notes(Draft(config.to_json()).validate())] == []


def test_an_aggregate_without_instances_is_noted() -> None:
    environment = {"id": "CartPole-v1", "num_envs": 2, "aggregate": "min"}
    (note,) = config_notes(Draft({"environment": environment}).validate())
    assert note == "environment.aggregate: min has no effect without environment.instances"
    environment["instances"] = [{"sutton_barto_reward": False}, {"sutton_barto_reward": True}]
    assert list(config_notes(Draft({"environment": environment}).validate())) == []
