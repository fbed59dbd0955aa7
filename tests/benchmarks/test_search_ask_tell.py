"""The process in which Optuna and SMAC decide; with the libraries only where benchmarks/.venv-search is made."""

import sys
from pathlib import Path

import numpy as np
import pytest

from agilerl_like.hpo import HyperparameterConfig
from benchmarks import venvs
from benchmarks.search import ask_tell, protocol
from benchmarks.search.trials import AskTellProcess

RANGES = HyperparameterConfig(**protocol.RANGES)


def test_axes_lead_back_to_the_value():
    rng = np.random.default_rng(0)
    for name, its in RANGES.to_json().items():
        low, high = ask_tell._bounds(its)
        for value in (its["min"], its["max"], RANGES[name].resample_value(rng)):
            place = ask_tell._to_axis(its, value)
            assert low <= place <= high
            assert ask_tell._from_axis(its, place) == pytest.approx(value, rel=1e-12)
            RANGES[name].check(name, ask_tell._from_axis(its, place))


def test_a_sampler_that_ends_is_an_error(capfd):
    interpreter = Path(sys.executable)
    with pytest.raises(RuntimeError, match="the sampler's process ended with 1"):
        AskTellProcess(interpreter, "tpe_median", RANGES.__class__(), 0, 20, [{"no": 1}], 160)
    assert "Error" in capfd.readouterr().err


@pytest.mark.skipif(not venvs.is_ready("search"), reason="python -m benchmarks.venvs search makes it, with pip")
@pytest.mark.parametrize("kind", ["tpe_median", "tpe_hyperband", "smac_hyperband"])
def test_libraries_decide_by_the_seed(kind):
    tried = tried_lengths(kind)
    lengths = [length for _, length in tried]
    assert max(lengths) <= 20
    assert min(lengths) < 20  # some were stopped early
    assert tried_lengths(kind) == tried


def tried_lengths(kind):
    """Return the values of twelve trials and how long each ran."""
    scheduler = AskTellProcess(venvs.interpreter("search"), kind, RANGES, 0, 20, [protocol.BAD_POINT], 160)
    try:
        tried = []
        for _ in range(12):
            trial, values = scheduler.ask()
            RANGES.check(values)
            if not tried:
                assert values == pytest.approx(protocol.BAD_POINT, rel=1e-6)
            resource, ends = 0, False
            while not ends:
                resource += 1
                ends = scheduler.report(trial, resource, -abs(np.log10(values["lr"] / 3e-4)))
            tried.append((values, resource))
        assert scheduler.report(scheduler.ask()[0], 1, None)  # a member that diverged ends
    finally:
        scheduler.close()
    return tried
