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


def test_a_run_that_goes_on_takes_back_what_nobody_will_have_seen(tmp_path):
    """A process reported two generations and was killed before it had saved the second."""
    pytest.importorskip("tensorboard", reason="an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for generations in ((1, 2, 3), (2, 3, 4)):
        reporter = TensorBoardReporter(tmp_path)
        reporter.start(a_run())
        for number in generations:
            reporter.generation(a_generation(a_member(fitness=10.0 * number + generations[0]), number=number))
        reporter.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("member/0/eval/mean_reward")]
    assert curve == [(100_000, 11.0), (200_000, 22.0), (300_000, 32.0), (400_000, 42.0)]


def test_without_the_package_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[tensorboard\]'"):
        TensorBoardReporter(tmp_path)
