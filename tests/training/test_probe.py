"""Law 10: every probe world is solved in seconds by every kind of agent that it is meant for."""

from dataclasses import replace

import numpy as np
import pytest

from agilerl_like.envs.probes import PROBES
from agilerl_like.training.probe import VALUE_TOLERANCE, Answer, solve

KINDS = [
    *(pytest.param(name, {}, id=name) for name in PROBES),
    *(
        pytest.param(name, {"share_encoders": True}, id=f"{name}-shared-encoders")
        for name in ("DiscountedReward", "ActionByObservation", "ActionMask")
    ),
    *(
        pytest.param(name, {"normalize_observation": False, "normalize_value": False}, id=f"{name}-not-normalised")
        for name in ("ObservationReward", "ActionByObservation")
    ),
    pytest.param("ContinuousBounds", {"squash_output": True}, id="ContinuousBounds-squashed"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_is_solved(name, kind):
    record = solve(PROBES[name], seed=1, **kind)
    for answer in record.answers:  # near enough is said here once more, apart from what the record thinks of itself
        np.testing.assert_allclose(answer.found, answer.known, rtol=0, atol=answer.tolerance, err_msg=answer.what)
    assert record.solved
    asked = [known.obs for known in (*PROBES[name].values, *PROBES[name].actions)]
    assert [answer.obs for answer in record.answers] == asked
    assert record.env_steps < 1.01 * PROBES[name].steps


@pytest.mark.parametrize("name", ["ObservationReward", "ActionByObservation", "ContinuousByObservation"])
def test_who_does_not_learn_is_found_out(name):
    assert not solve(replace(PROBES[name], steps=2_000), seed=1, lr=1e-12).solved


def test_values_must_be_nearer_than_the_answers_of_known_bugs():
    # a limit taken for an end gives 3.6 and not 10 (EndlessTruncation), a leak gives 9 and not 0 (AutoresetLeak), an
    # end that is one step late gives 1 + 0.5 * 0.5 and not 1 (DiscountedReward)
    for right, wrong in ((10.0, 3.6), (0.0, 9.0), (1.0, 1.25)):
        assert abs(right - wrong) > 2 * VALUE_TOLERANCE * max(1.0, abs(right))


def test_every_number_of_an_answer_has_to_be_right():
    assert Answer("action", (0.0,), (0.5, -0.5), (0.4, -0.6), tolerance=0.11).right
    assert not Answer("action", (0.0,), (0.5, -0.5), (0.4, -0.65), tolerance=0.11).right
    assert not Answer("value", (0.0,), (1.0,), (float("nan"),), tolerance=0.1).right
