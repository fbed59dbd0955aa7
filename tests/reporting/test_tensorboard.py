import sys

import pytest
from reporting_examples import a_generation, a_member, a_run

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import TensorBoardReporter


def test_curves_read_back_over_env_steps(tmp_path):
    pytest.importorskip("tensorboard", reason="an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = TensorBoardReporter(tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(slot=1, fitness=100.0)))
    reporter.generation(a_generation(a_member(slot=1, fitness=150.0), number=2))
    reporter.close()
    reporter.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("member/1/eval/mean_reward")]
    assert curve == [(100_000, 100.0), (200_000, 150.0)]
    assert events.Scalars("population/best")[-1].value == 150.0


def test_without_the_package_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[tensorboard\]'"):
        TensorBoardReporter(tmp_path)
