from __future__ import annotations

import json
from functools import partial
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.schedules import (
    check_known,
    check_lr_schedule,
    check_schedules,
    factor,
    schedules_to_json,
    with_functions,
)
from agilerl_like.learning.rewards import reward_transform_to_json
from agilerl_like.registry import register, registered


def factors(schedule, *progress: float) -> list[float]:
    checked = check_schedules({"lr": schedule})["lr"]
    return [factor("lr", checked, at) for at in progress]


def test_a_linear_schedule_of_four_updates() -> None:
    # updates start at 0, 1/4, 1/2 and 3/4 of the run
    assert [1e-3 * one for one in factors("linear", 0, 0.25, 0.5, 0.75)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    # a member whose lr evolved by a factor of 1.2, half-way
    assert 1.2e-3 * factors("linear", 0.5)[0] == pytest.approx(6e-4)


def test_the_named_schedules() -> None:
    assert factors("constant", 0, 0.3, 1) == [1, 1, 1]
    # (1 + cos 0) / 2, (1 + cos 60 degrees) / 2, (1 + cos 90) / 2, (1 + cos 180) / 2
    assert factors("cosine", 0, 1 / 3, 1 / 2, 1) == pytest.approx([1, 3 / 4, 1 / 2, 0])


def test_points_are_joined_by_lines_and_constant_outside() -> None:
    warm_up = [[0.1, 0.5], [0.2, 1], [0.6, 1], [1, 0]]
    assert factors(warm_up, 0, 0.1, 0.15, 0.2, 0.4, 0.8, 1) == pytest.approx([0.5, 0.5, 0.75, 1, 1, 0.5, 0])
    assert factors([[0.5, 0.25]], 0, 0.5, 1) == [0.25, 0.25, 0.25]
    assert factors([[0, 1], [1, 0.1]], 0.5) == [pytest.approx(0.55)]  # a line to a tenth


def test_any_function_of_progress() -> None:
    assert factors(lambda progress: 0.5 if progress >= 0.5 else 1.0, 0.49, 0.5) == [1.0, 0.5]


@given(st.sampled_from(["constant", "linear", "cosine", ((0.2, 3.0), (0.4, 0.0))]), st.floats(-5, 5))
def test_progress_is_clipped_and_factors_are_never_negative(schedule, progress: float) -> None:
    (value,) = factors(schedule, progress)
    assert value >= 0
    assert value == factors(schedule, min(max(progress, 0), 1))[0]


def test_schedules_round_trip_through_json() -> None:
    schedules = check_schedules({"lr": "linear", "ent_coef": [[0, 1], [1, 0.5]]})
    data = json.loads(json.dumps(schedules_to_json(schedules)))
    assert data == {"ent_coef": [[0.0, 1.0], [1.0, 0.5]], "lr": "linear"}
    assert check_schedules(data) == schedules


def halved(progress: float) -> float:
    return 0.5


def test_a_function_is_saved_by_name_and_needs_the_script_again() -> None:
    given_ = check_schedules({"lr": halved, "ent_coef": "linear"})
    data = schedules_to_json(given_)
    assert data["lr"] == f"{__name__}:halved"
    loaded = check_schedules(data)
    with pytest.raises(
        ConfigurationError, match=r"schedules\.lr='.*:halved' is a function, which a file cannot store; set"
    ):
        factor("lr", loaded["lr"], 0.0)
    assert with_functions(loaded, given_) == given_
    assert with_functions(loaded, {"lr": lambda progress: 1.0}) == loaded  # another function


class Decay:
    def __init__(self, end: float) -> None:
        self.end = end

    def __call__(self, progress: float) -> float:
        return self.end**progress


@pytest.mark.parametrize("make", [lambda: Decay(0.1), lambda: partial(pow, 0.1)])
def test_a_callable_object_is_saved_by_the_name_of_its_class_and_found_again_in_another_process(make) -> None:
    data = schedules_to_json(check_schedules({"lr": make()}))
    assert data["lr"] in (f"{__name__}:Decay", "functools:partial")
    given_ = {"lr": make()}  # as the script of the other process makes it, at another address
    assert with_functions(check_schedules(data), given_)["lr"] is given_["lr"]


def test_a_function_of_a_script_has_the_same_name_in_the_processes_that_the_script_starts(monkeypatch) -> None:
    for module in ("__main__", "__mp_main__"):  # as multiprocessing calls the script there
        monkeypatch.setattr(halved, "__module__", module)
        assert schedules_to_json(check_schedules({"lr": halved})) == {"lr": "__main__:halved"}
        assert reward_transform_to_json(halved) == "__main__:halved"


def test_a_registered_function_is_saved_under_its_name() -> None:
    try:
        register("schedule", "halved", halved)
        assert schedules_to_json(check_schedules({"lr": halved})) == {"lr": "halved"}
        assert factors("halved", 0.0, 1.0) == [0.5, 0.5]
    finally:
        registered("schedule")._entries.pop("halved")


def test_the_name_of_a_function_that_is_not_registered_is_refused_where_no_file_gave_it() -> None:
    for schedules, lr_schedule in (({"lr": "own:halved"}, None), ({"ent_coef": "linear"}, "own:halved")):
        with pytest.raises(
            ConfigurationError,
            match=r"'own:halved' is unknown; allowed are constant, linear, .*register\('schedule', 'ow",
        ):
            check_known(check_schedules(schedules), check_lr_schedule(lr_schedule))
    check_known(check_schedules({"lr": halved, "ent_coef": "linear"}), "kl")


def raises(progress: float) -> float:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ("linear", r"schedules='linear'; allowed is a mapping from lr, ent_coef"),
        ({"learning_rate": "linear"}, "schedules='learning_rate' is unknown"),
        ({"gamma": "linear"}, "schedules='gamma' is unknown"),
        ({"lr": "linaer"}, r"schedules\.lr='linaer' is unknown; did you mean 'linear'"),
        ({"lr": 0.5}, r"schedules\.lr=0\.5; allowed are a name, a function of progress, or points"),
        ({"lr": []}, r"schedules\.lr=\[\]; allowed are a name"),
        ({"lr": [0, 1]}, r"schedules\.lr: point 0; allowed"),
        ({"lr": [[0, 1, 2]]}, r"schedules\.lr: point \[0, 1, 2\]; allowed"),
        ({"lr": [[0, "1"]]}, r"schedules\.lr: factor='1' in point \[0, '1'\]; allowed are finite numbers"),
        ({"lr": [[0, -0.1]]}, r"schedules\.lr: factor=-0\.1 in point .* finite numbers of at least 0"),
        ({"lr": [[0, nan]]}, r"schedules\.lr: factor=nan in point"),
        ({"lr": [[0, 1], [1.5, 0]]}, r"schedules\.lr: progress=1\.5 in point .*; allowed are numbers from 0 to 1"),
        ({"lr": [[0.5, 1], [0.5, 0]]}, r"schedules\.lr=\[\[0\.5, 1\], .*; allowed are points of increasing progress"),
        ({"lr": lambda progress: 0.55 - progress}, r"schedules\.lr=.* gives -0\.\d+ at progress=0\.6; allowed are"),
        ({"lr": lambda progress: nan}, r"schedules\.lr=.* gives nan at progress=0; allowed are finite factors"),
        ({"lr": raises}, r"schedules\.lr=.* failed at progress=0: RuntimeError\('no'\)"),
    ],
)
def test_an_invalid_schedule_is_refused_by_name(schedules, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_schedules(schedules)


def test_a_function_that_leaves_its_bounds_later_is_an_error_at_that_progress() -> None:
    schedule = check_schedules({"lr": lambda progress: -1.0 if progress == 0.55 else 1.0})["lr"]
    with pytest.raises(ConfigurationError, match=r"gives -1\.0 at progress=0\.55"):
        factor("lr", schedule, 0.55)
