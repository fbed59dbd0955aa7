import math

import pytest

from agilerl_like.reporting import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2048, "2048"),
        (2048.0, "2048"),  # as metrics.csv has it
        (0.001, "1e-3"),
        (0.00032, "3.2e-4"),
        (0.0123, "0.0123"),
        (0.2, "0.2"),
        (0.9985, "0.9985"),
        (0.0, "0"),
        (12288.0, "12288"),
        (12345.6, "1.2e4"),
        (1e6, "1e6"),
        (math.nan, "nan"),
    ],
)
def test_hyperparameters_are_short(value, text):
    assert formatting.hyperparameter(value) == text


def test_the_values_of_one_hyperparameter_share_a_notation():
    assert formatting.hyperparameters([0.001, 0.02]) == ["1e-3", "2e-2"]
    assert formatting.hyperparameters([0.1, 0.02]) == ["0.1", "0.02"]
    assert formatting.hyperparameters([4, 512]) == ["4", "512"]


def test_returns_have_the_decimals_of_the_largest():
    assert formatting.returns([-1234.56, 3.21]) == ["-1235", "3"]
    assert formatting.returns([12.345, 3.21]) == ["12.3", "3.2"]
    assert formatting.returns([0.5, -0.25], signed=True) == ["+0.50", "-0.25"]
    assert formatting.returns([math.nan, math.inf, 1.0]) == ["", "", "1.00"]


def test_a_standard_error_is_named_only_if_it_is_known():
    assert formatting.with_named_error(0.0042, 0.0008) == "0.0042 ± 0.0008 (standard error)"
    assert [formatting.with_named_error(*its) for its in ((0.95, math.nan), (math.nan, 1.0))] == ["0.95", "-"]


def test_metrics_with_the_name_of_a_hyperparameter_are_not_what_a_schedule_made_of_it():
    assert formatting.scheduled({"lr": 1e-3, "sigma": 0.5}, {"lr": 5e-4, "sigma": 0.31}) == "lr 5e-4 (factor 0.5)"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (12_400, "12.4k"), (999_900, "1M"), (3_000_000, "3M"), (2.5e9, "2.5G")],
)
def test_counts_have_three_digits(number, text):
    assert formatting.count(number) == text


def test_a_number_of_things_is_singular_for_one_alone():
    assert [formatting.number_of(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert formatting.number_of(3, "process", "es") == "3 processes"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (42, "0:42"), (725, "12:05"), (11_229, "3:07:09"), (math.nan, "-:--")]
)
def test_durations(seconds, text):
    assert formatting.duration(seconds) == text


def test_sparkline_spans_lowest_to_highest_block():
    assert formatting.sparkline([0.0, math.nan, 3.5, 7.0], 10) == "▁▅█"
    assert formatting.sparkline([5.0, 0.0, 7.0], 2) == "▁█"
    assert formatting.sparkline([2.0, 2.0], 9) == "▁▁"
    assert formatting.sparkline([1.0], 9) == ""


def test_shares_are_sorted_and_omit_tiny_parts():
    assert formatting.shares({"env": 3.0, "learn": 6.99, "report": 0.01}) == ["learn 70%", "env 30%"]
    assert formatting.shares({"env": 0.0}) == []


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"kind": "none", "operator": "", "details": {"wanted": "rl_hp"}}, ""),
        (
            {"kind": "rl_hp", "operator": "", "details": {"lr": [1e-3, 1.2e-3], "batch_size": [64, 128]}},
            "lr 1e-3 → 1.2e-3, batch_size 64 → 128",
        ),
        (
            {"kind": "architecture", "operator": "encoder.add_node", "details": {"layer": 0, "nodes": 32}},
            "encoder.add_node (layer 0, nodes 32)",
        ),
        ({"kind": "parameters", "operator": "noise", "details": {"sd": 0.1}}, "weights perturbed (sd 0.1)"),
        (
            {"kind": "activation", "operator": "head.activation", "details": {"activation": ["ReLU", "ELU"]}},
            "head.activation (activation ReLU → ELU)",
        ),
        ({"kind": "architecture", "operator": "encoder.remove_layer"}, "encoder.remove_layer"),
    ],
)
def test_mutation_labels(record, text):
    assert formatting.mutation(record) == text
