"""Choices and conditions in runs: initial members, records, checkpoints, YAML, and errors before an env is made."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import torch
import yaml

from agilerl_like import PPO, Bool, Choice, HyperparameterConfig, NumberArray, RLParameter, make_vect_envs
from agilerl_like.cli import main
from agilerl_like.config import Config, load
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import read_lineage
from agilerl_like.reporting.report import report_html
from agilerl_like.reporting.run_history import read_history

RANGES = """
  lr: {min: 1e-5, max: 1e-2, when: {bptt_sequence_type: [chunked, maximum]}}
  gamma: {min: 0.9, max: 0.999, scale: one_minus}
  bptt_sequence_type: [chunked, maximum, fifty_percent_overlap]
  target_kl: {choices: [none, 0.02, 0.05]}
  batch_size: {choices: [16, 32], ordered: true}
"""
RUN = f"""
environment: {{id: CartPole-v1, num_envs: 2, backend: sync}}
algorithm:
  {{learn_step: 32, batch_size: 32, recurrent: true, target_kl: 0.02, max_seq_len: 8, lr: 1e-4, per_member: true}}
network:
  encoder_config: {{hidden_size: [16]}}
  latent_dim: 8
  head_config: {{hidden_size: [16]}}
  memory_config: {{hidden_state_size: 16}}
population: {{size: 4}}
hyperparameters: {RANGES}
selection: {{name: truncation, fraction: 0.5}}
mutation: {{name: gaussian, redraw: 0.6, architecture: 0}}
training: {{max_steps: 192, evo_steps: 64, checkpoint: 64, eval_loop: 2, eval_steps: 10}}
run: {{name: run, threads: 1, plot: false}}
seed: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("choices")
    (where / "run.yaml").write_text(RUN)
    assert main(["train", str(where / "run.yaml"), "--run.dir", str(where)]) == 0
    return where / "run"


@pytest.mark.slow
def test_initial_members_have_choices_and_only_members_that_use_a_range_differ_in_it(folder):
    members = [one.hyperparameters for one in read_lineage(folder) if one.generation == 0]
    given = {"lr": 1e-4, "gamma": 0.99, "bptt_sequence_type": "chunked", "target_kl": 0.02, "batch_size": 32}
    assert members[0] == given
    assert len({one["bptt_sequence_type"] for one in members}) > 1
    for one in members[1:]:
        assert (one["lr"] != 1e-4) == (one["bptt_sequence_type"] != "fifty_percent_overlap")


def test_changes_are_recorded_and_read_back(folder):
    changes = [
        change["details"] for one in read_lineage(folder) for change in one.mutations if change["kind"] == "rl_hp"
    ]
    changed = {name: pair for details in changes for name, pair in details.items()}
    assert {"bptt_sequence_type", "target_kl", "gamma"} <= changed.keys()
    assert all(one != other for one, other in changed.values())
    rows = [*csv.DictReader((folder / "metrics.csv").read_text().splitlines())]
    assert {row["hp/bptt_sequence_type"] for row in rows} <= {"chunked", "maximum", "fifty_percent_overlap"}
    assert {row["hp/target_kl"] for row in rows} <= {"none", "0.02", "0.05"}
    for row in rows:
        assert (row["hp/lr"] == "") == (row["hp/bptt_sequence_type"] == "fifty_percent_overlap")
    history = read_history(folder)
    assert history.categories("hp/bptt_sequence_type") == sorted({row["hp/bptt_sequence_type"] for row in rows})
    assert history.categories("hp/gamma") == []
    assert np.isfinite(history.column("hp/bptt_sequence_type")).all()
    assert "fifty_pe" in report_html([history])


@pytest.mark.slow
def test_a_resumed_run_has_the_same_members(folder, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    half = ["--run.dir", str(tmp_path), "--training.max-steps", "128"]
    assert main(["train", str(tmp_path / "run.yaml"), *half]) == 0
    assert main(["resume", str(tmp_path / "run"), "--training.max-steps", "192"]) == 0
    assert (tmp_path / "run" / "lineage.jsonl").read_bytes() == (folder / "lineage.jsonl").read_bytes()
    for one, other in zip(*(PPO.load(x).learner.network.parameters() for x in (folder, tmp_path / "run")), strict=True):
        assert torch.equal(one, other)


def test_a_saved_agent_has_its_choices(tmp_path):
    agent = ppo(target_kl=0.05, hp_config=HyperparameterConfig(target_kl=Choice([None, 0.05])))
    agent.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent")
    assert loaded.hp_config == agent.hp_config
    assert loaded.genome == agent.genome
    assert loaded.genome.hyperparameters["target_kl"] == 0.05


def test_a_configuration_is_written_as_it_is_read(tmp_path):
    config = Config.model_validate(yaml.safe_load(RUN.replace("none", "null").replace("1e-", "1.0e-")))
    data = config.to_json()["hyperparameters"]
    assert data["target_kl"] == {"choices": [None, 0.02, 0.05], "ordered": False, "resample": 0.2}
    assert data["lr"]["when"] == {"bptt_sequence_type": ["chunked", "maximum"]}
    assert "when" not in data["gamma"]
    assert config.to_json()["mutation"]["redraw"] == 0.6  # a setting of the explorer alone
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load(tmp_path / "again.yaml").to_json() == config.to_json()


def ppo(**options):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    env.close()
    return PPO(env.single_observation_space, env.single_action_space, num_envs=2, seed=0, **options)


def test_values_of_a_choice_have_the_type_of_the_setting():
    agent = ppo(lr=1, ent_coef=0, hp_config=HyperparameterConfig(ent_coef=Choice([0, 1]), lr=Choice([1, 2])))
    assert agent.hp_config["ent_coef"] == Choice([0.0, 1.0])
    assert json.dumps(agent.hp_config.to_json()["lr"]) == '{"choices": [1.0, 2.0]}'


def test_a_minibatch_that_does_not_fit_becomes_the_largest_choice_that_does():
    config = HyperparameterConfig(learn_step=Choice([32, 64, 256]), batch_size=Choice([16, 48, 128]))
    agent = ppo(learn_step=64, batch_size=48, hp_config=config)
    assert agent.repair({"learn_step": 64, "batch_size": 128}) == {"learn_step": 64, "batch_size": 48}
    alone = ppo(learn_step=256, batch_size=100, hp_config=HyperparameterConfig(learn_step=Choice([32, 128, 256])))
    assert alone.repair({"learn_step": 32, "batch_size": 100}) == {"learn_step": 128, "batch_size": 100}


@pytest.mark.parametrize(
    ("hp_config", "message"),
    [
        (
            {"squash_output": Bool()},
            "hp_config.squash_output: it is equal for all members, which are computed together",
        ),
        ({"normalize_value": Bool()}, "hp_config.normalize_value: it belongs to the networks, which a clone inherits"),
        ({"recurrent": Bool()}, "hp_config.recurrent: it belongs to the networks"),
        (
            {"activation": Choice(["ReLU", "Tanh"])},
            "hp_config.activation: it belongs to the networks.*mutation.activation",
        ),
        (
            {"optimiser": Choice(["a", "b"])},
            "hp_config.optimiser: it is not a setting of PPO; allowed are batch_size, lr",
        ),
        ({"gamma": Choice([0.9, 1.5])}, r"hp_config.gamma.choices.1=1.5: input should be less than or equal to 1"),
        ({"bptt_sequence_type": Choice(["chunked", "all"])}, r"hp_config.bptt_sequence_type.choices.1='all': input"),
        ({"gamma": Choice([0.9, 0.95])}, r"gamma=0.99 is none of its choices; allowed are 0.9, 0.95"),
        ({"gamma": RLParameter(0.5, 0.9)}, r"gamma=0.99 lies outside its range \[0.5, 0.9\]"),
        ({"lr": NumberArray([RLParameter(0, 1)])}, r"hp_config.lr.each.min=\[0.0\]: input should be a valid number"),
    ],
)
def test_what_cannot_be_a_choice_is_refused(hp_config, message):
    with pytest.raises(ConfigurationError, match=message):
        ppo(hp_config=HyperparameterConfig(**hp_config))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (
            "{lr: {choices: [1e-3, 1e-4], choice: 1}}",
            "hyperparameters.lr key='choice' is unknown; did you mean 'choices'",
        ),
        (
            "{lr: [1e-4]}",
            r"hyperparameters.lr.choices=\[0.0001\]; allowed are at least 2 values \(.*run.yaml, line 2\)",
        ),
        ("{compile: [true, false]}", r"hyperparameters.compile: it is equal for all members.*line 2"),
        ("{lr: {each: [{min: 1, max: 2}]}}", "lr.each.min=.*valid number"),
        (
            "{target_kl: {min: 0.01, max: 0.1, when: {bptt_sequence_type: x}}, bptt_sequence_type: [chunked, maximum]}",
            "target_kl.when.bptt_sequence_type='x' is unknown",
        ),
        (
            "{gamma: {min: 0.9, max: 0.99, when: {lr: 1}}, lr: {choices: [1, 2], when: {gamma: 0.9}}}",
            "hyperparameters.gamma.when='lr'|hyperparameters.lr.when='gamma' is a range of numbers",
        ),
        ("{lrate: [1, 2]}", "hyperparameters key='lrate' is unknown; did you mean .*'lr'"),
    ],
)
def test_errors_of_files_name_the_setting(ranges, message, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(f"environment: {{id: no-such-env}}\nhyperparameters: {ranges}\n")
    assert main(["train", str(tmp_path / "run.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_too_few_members_or_generations_for_a_method_are_one_error(capsys):
    for options, message in (
        (["--selection.name", "mf_pbt", "--population.size", "3"], "allowed are multiples of 4"),
        (
            ["--mutation.name", "pb2", "--population.size", "1", "--selection.name", "truncation"],
            "is too small for mutation 'pb2'; it needs at least 2",
        ),
        (
            ["--selection.name", "gated", "--training.max-steps", "64", "--training.evo-steps", "64"],
            "at least 2 generations",
        ),
    ):
        assert main(["train", "CartPole-v1", *options]) == 2
        assert message in capsys.readouterr().err
