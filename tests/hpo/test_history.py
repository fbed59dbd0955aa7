from __future__ import annotations

import json
from math import isnan, nan

import pytest

from agilerl_like.errors import CheckpointError
from agilerl_like.hpo import History, Trial
from agilerl_like.hpo.history import MAX_TRIALS


def a_trial(uid: int = 3, **changes) -> Trial:
    fields = {"generation": 2, "uid": uid, "parent_uid": 1, "hyperparameters": {"lr": 1e-3, "batch_size": 64}}
    fields |= {"architecture": "64 ReLU", "mutation": "lr", "fitness_before": 5.0, "fitness": 7.5, "env_steps": 256}
    return Trial(**fields | changes)


def test_a_history_round_trips_through_json() -> None:
    history = History().extended([a_trial(standard_error=0.5), a_trial(4, fitness_before=nan)])
    restored = History.from_json(json.loads(json.dumps(history.to_json())))
    assert restored.trials[0] == history.trials[0]
    assert type(restored.trials[0].hyperparameters["batch_size"]) is int
    assert isnan(restored.trials[1].fitness_before)
    assert isnan(restored.trials[1].standard_error)  # not known


def test_the_oldest_trials_are_dropped() -> None:
    newest = a_trial(-1 + 10**6, generation=3)
    history = History().extended(map(a_trial, range(MAX_TRIALS))).extended([newest])
    assert len(history.trials) == MAX_TRIALS
    assert (history.trials[0].uid, history.trials[-1].uid) == (1, 10**6 - 1)


def test_a_large_population_keeps_8_generations() -> None:
    """With 1,024 rows alone, 512 members had two, in which no start of a job is known, nor any descendant."""
    history = History()
    for generation in range(1, 11):
        history = history.extended([a_trial(uid, generation=generation) for uid in range(256)])
        kept = max(1, generation - 7)
        assert (history.trials[0].generation, len(history.trials)) == (kept, 256 * (generation + 1 - kept))
        assert history.first_known_start == (0 if generation < 8 else kept + 2)
    half = history.extended([a_trial(uid, generation=11) for uid in range(128)])  # the others have been removed
    assert (half.population_size, len(half.trials)) == (128, MAX_TRIALS)


def test_rows_of_a_run_whose_first_ones_are_unknown_may_be_missing() -> None:
    """An earlier version kept fewer rows in its checkpoints."""
    assert History().first_known_start == History((a_trial(generation=1),)).first_known_start == 0
    assert History((a_trial(generation=7),)).first_known_start == 9


def test_pending_trials_end_with_their_generation_and_are_not_saved() -> None:
    history = History().extended([a_trial(1)]).with_pending(a_trial(2)).with_pending(a_trial(3))
    assert [trial.uid for trial in history.pending] == [2, 3]
    assert [trial["uid"] for trial in history.to_json()] == [1]
    assert history.extended([a_trial(2)]).pending == ()


def test_trials_of_a_member_are_found_by_uid() -> None:
    history = History().extended([a_trial(1, parent_uid=-1), a_trial(2), a_trial(1, parent_uid=-1, generation=3)])
    assert [trial.generation for trial in history.of(1)] == [2, 3]
    assert (history.parent_of(1), history.parent_of(2), history.parent_of(9)) == (-1, 1, -1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"run\.history=\{\}; allowed is a list of trials"),
        ([5], r"run\.history\.0"),
        ([a_trial().to_json() | {"backdoor": 1}], r"run\.history\.0: 'backdoor' is unknown"),
        ([a_trial().to_json() | {"uid": -1}], r"run\.history\.0: uid=-1: .*greater than or equal to 0"),
        ([a_trial().to_json() | {"hyperparameters": {"lr": "1"}}], r"run\.history\.0: hyperparameters\.lr.*='1'"),
        ([{"generation": 1}], r"run\.history\.0: uid=.* required"),
    ],
)
def test_a_damaged_history_is_refused_by_field(data: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        History.from_json(data, "run.history")
