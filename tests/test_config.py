import contextlib
import dataclasses
import math
import pickle
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from slow_cases import slow_if

from agilerl_like import CMAES, PPO
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.config import Config, Draft, MutationConfig, RangeConfig, Section, SelectionConfig, build, load
from agilerl_like.config.schema import StrategySection
from agilerl_like.config.yaml12 import parse_value
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    AutoExplorer,
    AutoSelection,
    Mutations,
    RLParameter,
    TournamentSelection,
    TruncationSelection,
)
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.registry import registered
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.training_arguments import TrainingArguments
from agilerl_like.yaml_writer import Dumper

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*/*.yaml"))
CARTPOLE = "environment: {id: CartPole-v1}\n"
TREACHEROUS = ["none", "None", "~", "1e5", "-.5E-3", "007", "0x1F", "0o7", "1:30", "1_000", "yes", "off", "<<", "="]
TREACHEROUS += [".inf", "2024-01-31", "", "'", "- a", "a: b", "#", "!!int 1", "&a", "*a", "[", "?", "\n", " a", "a "]
TREACHEROUS += ["\x85", "\ufeff"]
TEXT = st.sampled_from(TREACHEROUS) | st.text() | st.from_regex(r"[-+0-9._eExo:]{1,8}", fullmatch=True)
NAMES = TEXT.filter(bool)
PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class HalfSelection(TruncationSelection):
    """Replaces half of the members."""

    fraction: float = 0.5


@dataclass(frozen=True)
class WeightedSelection(TruncationSelection):
    """Has a setting whose default is a list."""

    weights: list[float] = dataclasses.field(default_factory=lambda: [1.0, 2.0])


@dataclass(frozen=True)
class BoldMutations(Mutations):
    """Changes hyperparameters more often."""

    rl_hp: float = 1.0


@pytest.fixture
def written(tmp_path):
    """Write a YAML file and return where it is."""

    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def read(written):
    """Load a configuration from text and options."""
    return lambda text, *overrides: load(written(text), overrides)


def refusal(read, text, *overrides):
    with pytest.raises(ConfigurationError) as caught:
        read(text, *overrides)
    return str(caught.value)


def test_an_option_replaces_the_other_name_of_the_file(read):
    text = "environment: {id: CartPole-v1}\nalgorithm: {learn_step: 64, batch_size: 16, schedules: {lr: linear}}\n"
    options = ("--algorithm.num-steps", "32", "--algorithm.num-minibatches", "4", "--algorithm.lr-schedule", "cosine")
    algorithm = read(text, *options).algorithm
    assert (algorithm.num_steps, algorithm.num_minibatches, algorithm.lr_schedule) == (32, 4, "cosine")
    assert not algorithm.schedules
    linear = "environment: {id: CartPole-v1}\nalgorithm: {lr_schedule: linear}\n"
    algorithm = read(linear, "--algorithm.schedules", "{lr: cosine}").algorithm
    assert (algorithm.lr_schedule, [*algorithm.schedules]) == (None, ["lr"])
    assert read(linear, "--algorithm.schedules", "{clip_coef: cosine}").algorithm.lr_schedule is not None
    back = "environment: {id: CartPole-v1}\nalgorithm: {num_steps: 32}\n"
    assert read(back, "--algorithm.learn-step", "512").algorithm.num_steps is None


def test_an_option_of_none_replaces_another_name_of_the_file_only_where_it_is_a_choice(read):
    text = "environment: {id: CartPole-v1}\nalgorithm: {learn_step: 512, batch_size: 16, schedules: {lr: linear}}\n"
    options = [f"--algorithm.{name}" for name in ("num-steps", "num-minibatches", "lr-schedule")]
    algorithm = read(text, *(part for option in options for part in (option, "none"))).algorithm
    assert (algorithm.learn_step, algorithm.batch_size) == (512, 16)
    assert not algorithm.schedules


@pytest.mark.parametrize("text", ["", "algorithm: {learn_step: 64}\n", "algorithm: {num_steps: 16}\n"])
def test_two_options_for_the_same_setting_are_refused_in_any_order(read, text):
    options = ("--algorithm.num-steps", "32"), ("--algorithm.learn-step", "512")
    for one, other in (options, options[::-1]):
        assert "learn_step=512: has no meaning with num_steps=32" in refusal(
            read, f"environment: {{id: CartPole-v1}}\n{text}", *one, *other
        )


class TestDefaults:
    config = Config.model_validate({"environment": {"id": "CartPole-v1"}})

    def test_defaults_equal_those_of_the_classes(self):
        assert self.config.algorithm.settings() == asdict(PPOConfig())
        assert asdict(self.config.training) == asdict(TrainingArguments())
        assert self.config.selection.strategy == TournamentSelection()
        assert self.config.mutation is not None
        assert self.config.mutation.explorer == Mutations()
        assert NetworkSpec.from_net_config(self.config.network.model_dump()) == NetworkSpec()
        assert RangeConfig(min=1, max=2).parameter == RLParameter(1, 2)

    def test_every_argument_of_evolution_is_a_setting(self):
        by_hand = {"rand_seed", "device", "accelerator"}  # nothing for a file
        assert set(MutationConfig.model_fields) - {"name"} == {field.name for field in fields(Mutations)} - by_hand
        assert set(RangeConfig.model_fields) == {field.name for field in fields(RLParameter)}

    def test_every_setting_has_a_description(self):
        sections = [
            section for kind in (Section, StrategySection) for section in kind.__subclasses__() if section is not Config
        ]
        silent = [(s.__name__, n) for s in sections for n, info in s.model_fields.items() if not info.description]
        assert silent == []

    def test_configurations_are_immutable(self):
        with pytest.raises(ValidationError, match="frozen"):
            self.config.seed = 3  # pyright: ignore[reportAttributeAccessIssue]  # which is the point


class TestReading:
    def test_yaml_round_trip(self, read):
        config = read(
            CARTPOLE + "hyperparameters: {lr: {min: 1e-5, max: 1e-2}, batch_size: {min: 16, max: 64}}\n"
            "network: {encoder_config: {hidden_size: [32, 32], activation: Tanh}, latent_dim: 16}\n"
            "selection: {name: truncation, fraction: 0.5}\nmutation: none\nseed: 7\nrun: {name: 2024}"
        )
        assert read(config.to_yaml()) == config
        assert config.run.name == "2024"
        assert config.selection.strategy == TruncationSelection(0.5)

    @given(PLAIN_DATA)
    def test_yaml_round_trip_of_ambiguous_text(self, data):
        text = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)
        assert parse_value(text, "data").data == data
        assert yaml.safe_load(text) == data  # by those, too, who read YAML 1.1

    @pytest.mark.parametrize("text", ["none", "1e5", "-1e-3", "007", "off", "a\x85b"])
    def test_text_is_dumped_as_text(self, read, text):
        config = Config.model_validate({"environment": {"id": "a", "kwargs": {text: text}}, "run": {"name": text}})
        assert read(config.to_yaml()) == config

    def test_infinite_values_round_trip(self, read):
        text = "environment: {id: a, kwargs: {high: .inf, low: -.INF, unknown: .nan}}"
        again = read(read(text).to_yaml()).environment.kwargs
        assert (again["high"], again["low"]) == (math.inf, -math.inf)
        assert math.isnan(again["unknown"])

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("010", 10),
            ("0x1F", 31),
            ("0o17", 15),
            ("-3", -3),
            ("100_000", 100_000),
            ("1_000.5", 1000.5),
            ("+.5e3", 500.0),
            ("1.", 1.0),
            *(
                (text, text)
                for text in ("1:30", "12:30:45", "0b11", "20240131_120000", "2024-01-31", "._e5", "1_2", "=")
            ),
            *((text, True) for text in ("true", "yes", "On")),
            *((text, False) for text in ("FALSE", "no", "off")),
            *((text, None) for text in ("null", "~", "none", "None")),
        ],
    )
    def test_plain_scalars_follow_yaml_1_2(self, read, text, value):
        written = read(f"environment: {{id: a, kwargs: {{written: {text}}}}}").environment.kwargs["written"]
        assert (written, type(written)) == (value, type(value))

    @pytest.mark.parametrize(
        "text", ["007", "1:30", "20240131_120000", "1e5", "0x1F", "on", "true", "2024-13-45", "1.0"]
    )
    def test_names_keep_their_original_text(self, read, text):
        in_file = read(CARTPOLE + f"run: {{name: {text}, dir: {text}}}").run
        by_option = read(CARTPOLE + "run: {name: 8}", "--run.name", text, "--run.dir", text).run
        assert (in_file.name, in_file.dir) == (by_option.name, by_option.dir) == (text, Path(text))
        assert read(CARTPOLE + "run: {name: 8}", "--run", f"{{name: {text}}}").run.name == text

    def test_missing_run_name_creates_a_new_folder(self, read):
        for overrides in (("--run.name", "none"), ("--run.name", "")):
            assert read(CARTPOLE + "run: {name: first}", *overrides).run.name == ""

    @given(st.floats(min_value=1e-300, max_value=1e300), st.integers(min_value=1, max_value=10**15))
    def test_numbers_round_trip(self, real, whole):
        data = Draft({}).override(["--a", repr(real), "--b", f"{whole:_}", "--c", f"-{real!r}"]).data
        assert data == {"a": real, "b": whole, "c": -real}

    def test_option_equals_the_setting_in_a_file(self, read):
        by_options = read(
            CARTPOLE,
            *("--seed", "3", "--training.max-steps", "1e5", "--training.evo_steps=20_000", "--algorithm.lr", "3e-4"),
            *("--network.encoder-config.hidden-size", "32", "64", "--hyperparameters.gamma.min", "0.9"),
            *("--hyperparameters.gamma.max", "0.999", "--environment.kwargs.sutton-barto-reward", "true"),
        )
        by_file = read(
            "environment: {id: CartPole-v1, kwargs: {sutton_barto_reward: true}}\nseed: 3\nalgorithm: {lr: 0.0003}\n"
            "training: {max_steps: 100000, evo_steps: 20000}\nhyperparameters: {gamma: {min: 0.9, max: 0.999}}\n"
            "network: {encoder_config: {hidden_size: [32, 64]}}"
        )
        assert by_options == by_file

    def test_options_override_the_file_which_stays_unchanged(self, read):
        text = CARTPOLE + "algorithm: {lr: 1e-3, gamma: 0.9}\nmutation: {rl_hp: 1}"
        changed = read(text, "--algorithm.lr", "2e-3", "--mutation", "none").algorithm
        assert (changed.lr, changed.gamma) == (2e-3, 0.9)
        assert read(text, "--mutation", "None").mutation is None
        assert read(CARTPOLE + "mutation: none", "--mutation.rl-hp", "0.5").mutation == MutationConfig(rl_hp=0.5)

    def test_empty_section_is_ignored(self, read):
        assert read(CARTPOLE + "mutation:\n  # rl_hp: 0.5\ntraining:\n").mutation == MutationConfig()

    def test_values_need_not_lie_in_the_ranges_that_members_are_drawn_from(self, read):
        ranges = "{lr: {min: 1e-3, max: 1e-2}, gamma: {min: 0.9, max: 0.95}, target_kl: {min: 0.01, max: 1}}"
        config = read(CARTPOLE + f"algorithm: {{lr: 0.5}}\nhyperparameters: {ranges}\nseed: 1")
        experiment = build(config)
        experiment.env.close()
        first, *drawn = experiment.population
        # the nearest values of the ranges; without target_kl no divergence stops an update, and 1 stops the fewest
        assert (first.lr, first.gamma, first.target_kl) == (1e-2, 0.95, 1.0)
        assert all(1e-3 < agent.lr < 1e-2 for agent in drawn)

    def test_dtype_of_a_range_is_that_of_its_setting(self, read):
        ranges = "{lr: {min: 1e-4, max: 1}, update_epochs: {min: 1, max: 8}, target_kl: {min: 0.01, max: 1}}"
        hp_config = read(CARTPOLE + f"algorithm: {{target_kl: 0.02}}\nhyperparameters: {ranges}").agent_arguments()
        kinds = {name: parameter.dtype for name, parameter in hp_config["hp_config"].items()}
        assert kinds == {"lr": float, "update_epochs": int, "target_kl": float}


class TestRefusing:
    @pytest.mark.parametrize(  # wrong numbers and names of single fields: tests/faults/test_bad_configs.py
        ("text", "message"),
        [
            (
                "algorithm: {name: PPP}",
                "algorithm.name='PPP' is unknown; did you mean 'PPO' or 'IPPO'? An algorithm of your own needs an",
            ),
            ("algorithm: {name: SACC}", "algorithm.name='SACC' is unknown; did you mean 'SAC'"),
            (
                "hyperparameters: {gamma: {min: 1.5, max: 2}}",
                "hyperparameters.gamma.min=1.5: input should be less than",
            ),
            ("hyperparameters: {lr: [a, b]}", "hyperparameters.lr.choices.0='a': input should be a valid number"),
            (
                "hyperparameters: {activation: [ReLU, Tanh]}",
                "hyperparameters.activation: it belongs to the networks, whose weights fit one activation",
            ),
            ("network: {simba: true, encoder: mlp}", "network.encoder='mlp' contradicts simba=True; allowed is one"),
            ("max_steps: 3", "config key='max_steps' is unknown; did you mean 'training.max_steps'"),
            ("run: {seed: 3}", "run key='seed' is unknown; allowed is seed at the top level, which is --seed on the"),
            ("environment: {id: A-v0, backend: asink}", "environment.backend='asink' is unknown; did you mean 'async'"),
            ("environment: {id: A-v0, wrappers: [NormalizeRewart]}", "did you mean 'NormalizeReward'"),
            ("environment: {num_envs: 2}", "environment.id is missing"),
            ("environment: {id: A-v0, num_workers: 0}", "environment.num_workers=0: input should be greater than"),
            ("environment: {id: A-v0, step_timeout: 0}", "environment.step_timeout=0: input should be greater than 0"),
            ("population: {size: 1000000000}", "population.size=1000000000 needs at least"),
            (
                "population: {size: 1}",
                "selection.tournament_size=2 must not be greater than the population's 1; a population of one "
                "trains with evolution='auto' (in YAML `evolution: auto`) or without selection and mutation (in YAML "
                "`mutation: null`)",
            ),
            (
                "hyperparameters: {lr: {min: 1, max: 2, mim: 3}}",
                "hyperparameters.lr key='mim' is unknown; did you mean 'min'",
            ),
            (
                "population: {sample_hyperparameters: false}\nhyperparameters: {lr: {min: 0.1, max: 1}}",
                "algorithm.lr=0.0001 lies outside its range [0.1, 1.0]",
            ),
            ("network: {encoder_config: {hidden_sizes: [8]}}", "'hidden_sizes' is unknown; did you mean 'hidden_size'"),
            ("network: {encoder_config: {activation: Relu}}", "'Relu' is unknown; did you mean 'ReLU'"),
            ("network: {latent_dim: wide}", "latent_dim='wide'"),
            ("network: {encoder: [mlp]}", "network.encoder=['mlp'] is unknown; did you mean 'mlp'"),
            (
                "environment: {id: A-v0, wrappers: ['..a:foo']}",
                "wrappers='..a:foo': '..a' is no module's name; allowed is",
            ),
            ("network: 3", "network=3; allowed is a mapping of encoder"),
            ("network: null", "network=None; allowed is a mapping of encoder"),
            ("population: 4", "population=4; allowed is a mapping of size, sample_hyperparameters"),
            ("hyperparameters: {lr: 1e-3}", "hyperparameters.lr=0.001; allowed is a mapping of when, min, max"),
            ("run: {trackers: wandb}", "run.trackers='wandb'; allowed is a list"),
            ("run: {trackers: [5]}", "run.trackers.0=5; allowed is a name, or a mapping with one"),
            (
                "mutation: {activation: 1, activation_selection: [Identity]}",
                "mutation.activation_selection='Identity' is unknown; allowed are: ELU, GELU, LeakyReLU, Mish, ReLU",
            ),
            ("selection: {fraction: 0.3}", "selection.fraction=0.3 has no meaning for name='tournament'"),
            ("training: {max_steps: 1.5}", "training.max_steps=1.5; allowed is a whole number"),
            ("run: {dir: none}", "run.dir=None; allowed is a path (none is YAML's null, and 'none' in quotes a name)"),
            ("run: {dir: ''}", "run.dir='' is no path; allowed is a path ('.' for the current folder)"),
            ("training: {fitness: rating}", "training.fitness='rating' is for multi-agent runs; allowed are 'return'"),
            (
                "training: {fitness: min}",
                "(rating: of multi-agent runs; info.NAME: the mean of an entry of info_keys, ",
            ),
            ("training: {fitness: min}", "the worst case of several envs, aggregate='min' of an env with instances)"),
            ("training: {fitness: ratin}", "training.fitness='ratin' is unknown; did you mean 'rating'"),
            ("training: 5", "training=5; allowed is a mapping of max_steps"),
            ("run: {threads: fast}", "run.threads='fast'; allowed is a whole number or auto"),
            (
                "network: {memory_config: {foo: 1}}\nalgorithm: {recurrent: true}",
                "network.memory_config key='foo' is unkn",
            ),
            ("run: {plot: maybe}", "run.plot='maybe'; allowed is true or false"),
            ("hyperparameters: {lr: {min: a, max: 1}}", "hyperparameters.lr.min='a'; allowed is a number"),
        ],
    )
    def test_error_names_field_value_allowed_values_and_location(self, read, text, message):
        said = refusal(read, text if text.startswith("environment") else CARTPOLE + text)
        assert message in said
        assert said.count("run.yaml, line") == (0 if "population: {size: 1}" in text or "lies outside" in said else 1)

    def test_all_problems_are_reported_at_once(self, read):
        said = refusal(
            read, CARTPOLE + "algorithm:\n  lr: -1\n  gamma: 2\ntraining: {target: .inf}", "--run.treads", "2"
        )
        for line, field in ((3, "algorithm.lr=-1"), (4, "algorithm.gamma=2"), (5, "training.target=inf")):
            problem = next(problem for problem in said.split("; ") if problem.startswith(field))
            assert problem.endswith(f"run.yaml, line {line})")
        assert "did you mean 'threads' or 'trackers'? (--run.treads)" in said

    def test_inconsistent_settings_are_reported_before_any_env_is_made(self, read):
        assert "batch_size=300" in refusal(
            read, "environment: {id: NoSuchEnv-v0}\nalgorithm: {batch_size: 300, learn_step: 256}"
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("seed: 1\ntraining: {max_steps: 1\nrun: {}", "line 3: not valid YAML"),
            ("seed: 1\nalgorithm: {lr: 1}\nseed: 2", "line 3: seed is already given in line 1"),
            ("algorithm:\n  lr: 1\n  lr: 2", "line 3: algorithm.lr is already given in line 2"),
            ("- 1", "holds [1]; allowed are settings by name"),
            ("a: &x {b: *x}", "aliases are nested too deep"),
            ("a: \0", "not valid YAML"),
            ("!!python/object/apply:os.system ['true']", "not valid YAML"),
            ("", "environment is missing"),
            ("seed: !!int foo", "line 1: not valid YAML: 'foo' is not a valid integer"),
            ("seed: 1\nalgorithm: {lr: !!float x}", "line 2: not valid YAML: 'x' is not a valid number"),
            ("seed: !!bool maybe", "line 1: not valid YAML: 'maybe' is not a valid flag"),
            ("seed: !!timestamp x", "line 1: not valid YAML: could not determine a constructor for the tag"),
            (f"seed: {'9' * 5000}", "line 1: not valid YAML: '9999"),
            ('seed: "\\UFFFFFFFF"', "not valid YAML"),
            ("seed: 0b_", "seed='0b_'; allowed is a whole number"),
            ("a: [{b: 1}, {b: 1, c: 2,\n b: 3}]", "line 2: a.1.b is already given in line 1"),
            ("a:\n- ? [1]\n  : 2", "line 2: a key is empty, a list or a mapping; allowed are names"),
            ("a: [{'': 2}]", "line 1: a key is empty"),
            ("'': 2", "line 1: a key is empty"),
            ("007: 2", "config key='007' is unknown"),
        ],
    )
    def test_file_that_is_not_a_configuration(self, read, text, message):
        assert message in refusal(read, text)

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("algorithm: {<<: {lr: yes}}", (), "algorithm.lr=True: input should be a number, not a flag (*, line 2)"),
            (
                "",
                ("--algorithm", "{lr: true}"),
                "algorithm.lr=True: input should be a number, not a flag (--algorithm)",
            ),
            ("", ("--training", "{max_steps: on}"), "training.max_steps=True: input should be a number, not a flag"),
            (
                "hyperparameters: {lr: {min: 1e-4, max: on}}",
                (),
                "hyperparameters.lr.max=True: input should be a number",
            ),
            ("", ("--environment.seeds", "[yes, 3]"), "environment.seeds.0=True: input should be a number"),
        ],
    )
    def test_a_flag_in_place_of_a_number_is_refused_at_any_depth(self, read, tmp_path, text, options, message):
        said = refusal(read, "environment: {id: CartPole-v1, num_envs: 2}\n" + text, *options)
        assert message in said.replace(str(tmp_path / "run.yaml"), "*")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("--hyperparameters.lr.min -1", "lr.min=-1.0: input should be greater than 0 (--hyperparameters.lr.min)"),
            (
                "--hyperparameters.lr.max 1e-6",
                "lr.min=1e-05 must not be greater than max=1e-06 (--hyperparameters.lr.max)",
            ),
            (
                "--hyperparameters.lr.min 1e-3",
                "lr=0.0001 lies outside its range [0.001, 0.01] (--hyperparameters.lr.min)",
            ),
            ("--hyperparameters.gamma.min 0", "hyperparameters.gamma.max is missing (--hyperparameters.gamma.min)"),
            ("--hyperparameters.lt {}", "key='lt' is unknown; did you mean 'lr'? (--hyperparameters.lt)"),
            ("--hyperparameters.lt.min 1", "key='lt' is unknown; did you mean 'lr'? (--hyperparameters.lt.min)"),
            ("--algorithm.learn-step 16", "allowed are at most 16 (--algorithm.learn-step)"),
            ("--seed 1 --algorithm.learn-step=16", "allowed are at most 16 (--algorithm.learn-step)"),
            (
                "--algorithm.learn-step 16 --environment.num-envs 8",
                "(2 steps of num_envs=8): allowed are at most 16 (--algorithm.learn-step, --environment.num-envs)",
            ),
        ],
    )
    def test_problem_caused_by_an_option_is_located_at_the_option(self, read, options, said):
        text = (
            "environment: {id: CartPole-v1, num_envs: 4}\nalgorithm: {learn_step: 64, batch_size: 32}\n"
            "population: {sample_hyperparameters: false}\nhyperparameters: {lr: {min: 1e-5, max: 1e-2}}"
        )
        assert said in refusal(read, text, *options.split())
        assert "run.yaml" not in refusal(read, text, *options.split())

    def test_problem_of_the_file_is_located_in_the_file_despite_other_options(self, read):
        text = CARTPOLE + "hyperparameters: {lr: {min: -1, max: 1e-2}}"
        assert "run.yaml, line 2)" in refusal(read, text, "--hyperparameters.lr.grow-factor", "1.5", "--seed", "1")

    def test_path_that_is_not_a_file(self, read, tmp_path):
        (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        for path, message in (
            ("no.yaml", "No such file"),
            (".", "is a folder, a FIFO or a device"),
            ("binary.yaml", "is not UTF-8 text"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                load(tmp_path / path)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (("3", "--seed", "4"), "argument='3' belongs to no option"),
            (("--seed",), "option='--seed' lacks its value"),
            (("--seed", "[3"), "--seed='[3', line 1: not valid YAML"),
            (("--seed", "!!int foo"), "--seed='!!int foo', line 1: not valid YAML"),
            (("--environment.wrappers", "[{name: a, name: b}]"), "line 1: 0.name is already given in line 1"),
            (("--training.max-steps", "0"), "training.max_steps=0 must be a positive integer (--training.max-steps)"),
            (("--lr", "1"), "config key='lr' is unknown"),
        ],
    )
    def test_invalid_options(self, read, overrides, message):
        assert message in refusal(read, CARTPOLE, *overrides)


class TestBuilding:
    text = (
        "environment: {id: CartPole-v1, num_envs: 3}\npopulation: {size: 2}\nalgorithm: {lr: 0.002, learn_step: 128}\n"
        "network: {latent_dim: 16}\nhyperparameters: {lr: {min: 1e-4, max: 1e-2}}\nseed: 5\n"
    )

    def test_build_makes_envs_and_population(self, read):
        more = "training: {max_steps: 999}\nselection: {tournament_size: 1}"
        setup = build(read(self.text + more, "--population.sample-hyperparameters", "false"))
        setup.env.close()
        assert (setup.env.num_envs, setup.training_args.max_steps) == (3, 999)
        assert setup.selection == TournamentSelection(1)
        assert setup.explorer == Mutations()
        assert setup.settings["algorithm"]["lr"] == 0.002
        assert [agent.index for agent in setup.population] == [0, 1]
        for agent in setup.population:
            assert (agent.lr, agent.learn_step, agent.seed, agent.num_envs) == (0.002, 128, 5, 3)
            assert agent.architecture.latent_dim == 16
            assert dict(agent.hp_config) == {"lr": RLParameter(1e-4, 1e-2)}

    @pytest.mark.parametrize("text", ["none", '"none"', "null"])
    def test_none_is_a_value_of_normalize_advantage(self, read, text):
        env = "environment: {id: CartPole-v1}\n"
        assert read(env + "algorithm: {normalize_advantage: " + text + "}").algorithm.normalize_advantage == "none"
        assert read(env, "--algorithm.normalize-advantage", text).algorithm.normalize_advantage == "none"

    @pytest.mark.parametrize("section", [SelectionConfig, MutationConfig])
    def test_a_strategy_that_is_named_alone_has_its_own_defaults(self, section):
        for name, strategy in registered(section.KIND).items():
            if strategy.__module__.startswith("agilerl_like."):  # others are of other tests
                assert section.model_validate({"name": name}).build() == strategy()

    def test_a_registered_strategy_keeps_its_own_defaults_of_settings_that_the_section_has(self, monkeypatch):
        entries = ("selection", "half", HalfSelection), ("explorer", "bold", BoldMutations)
        for kind, name, strategy in entries:
            monkeypatch.setitem(registered(kind)._entries, name, strategy)
        assert SelectionConfig.model_validate({"name": "half"}).build() == HalfSelection()
        assert SelectionConfig.model_validate({"name": "half", "fraction": 0.25}).build() == HalfSelection(0.25)
        assert MutationConfig.model_validate({"name": "bold"}).build() == BoldMutations()

    def test_a_setting_of_a_registered_strategy_has_the_default_of_its_factory(self, monkeypatch):
        monkeypatch.setitem(registered("selection")._entries, "weighted", WeightedSelection)
        found = SelectionConfig.model_validate({"name": "weighted"})
        assert found.build() == WeightedSelection()
        given = SelectionConfig.model_validate({"name": "weighted", "weights": [3.0]})
        assert given.build() == WeightedSelection(weights=[3.0])
        of_other = {**found.model_dump(mode="json"), "name": "tournament"}
        assert SelectionConfig.model_validate(of_other).build() == TournamentSelection()

    def test_defaults_of_one_strategy_are_legal_beside_the_name_of_another(self):
        stored = SelectionConfig.model_validate({"name": "auto"}).model_dump(mode="json")
        assert SelectionConfig.model_validate({**stored, "name": "tournament"}).build() == TournamentSelection()
        with pytest.raises(ValidationError, match=r"final_share=0\.4 has no meaning for name='tournament'"):
            SelectionConfig.model_validate({**stored, "name": "tournament", "final_share": 0.4})

    def test_a_setting_beside_evolution_auto_is_refused_and_has_a_place_in_its_parts(self, read):
        with pytest.raises(
            ConfigurationError, match=r"mutation.architecture=0.0 .*selection: \{name: auto\}, mutation: "
        ):
            read(self.text + "evolution: auto\nmutation: {architecture: 0}")
        parts = ("--selection.name", "auto", "--mutation.name", "auto", "--mutation.architecture", "0")
        config = read(self.text, *parts)
        assert config.strategy == AutoSelection()
        assert config.explorer == AutoExplorer(architecture=0)

    def test_mutation_none_disables_evolution(self, read):
        setup = build(read(self.text + "mutation: none"))
        setup.env.close()
        assert setup.selection is None
        assert setup.explorer is None

    def test_hyperparameters_are_sampled_from_ranges(self, read):
        drawn = build(read(self.text, "--population.size", "4"))
        drawn.env.close()
        assert drawn.population[0].lr == 0.002
        assert len({agent.lr for agent in drawn.population}) == 4
        assert all(1e-4 <= agent.lr <= 1e-2 for agent in drawn.population)

    @pytest.mark.parametrize("options", [("--population.sample-hyperparameters", "false"), ("--hyperparameters", "{}")])
    def test_members_start_equal_without_sampling_or_ranges(self, read, options):
        alike = build(read(self.text, "--population.size", "4", *options))
        alike.env.close()
        assert [agent.lr for agent in alike.population] == [0.002] * 4

    def test_pre_training_mutation(self, read):
        only_steps = "mutation: {no_mutation: 0, architecture: 0, parameters: 0, rl_hp: 1}"
        setup = build(read(self.text + only_steps, "--population.pre-training-mutation", "true"))
        setup.env.close()
        assert all(agent.lr != 0.002 and agent.mut == "lr" for agent in setup.population)

    @pytest.mark.parametrize("more", ["", "algorithm: {recurrent: true}\nmutation: none\n"])
    def test_all_tensors_are_on_the_configured_device(self, read, more):
        text = "environment: {id: CartPole-v1}\nrun: {device: meta}\nhyperparameters: {lr: {min: 1e-4, max: 1e-2}}\n"
        setup = build(read(text + more))
        setup.env.close()
        for agent in setup.population:
            tensors = [*agent.network.parameters(), *agent.network.buffers(), agent.optimizer.exp_avg]
            assert agent.device.type == "meta"
            assert len(tensors) > 10
            assert {tensor.device.type for tensor in tensors} == {"meta"}

    def test_recurrent_encoder_config_equals_python(self, read):
        lines = "environment: {id: CartPole-v1}\nnetwork: {encoder_config: {hidden_state_size: 32, max_seq_len: 8}}\n"
        setup = build(read(lines + "algorithm: {recurrent: true}"))
        with contextlib.closing(setup.env):
            assert setup.population[0].architecture.memory.hidden_state_size == 32
            assert setup.population[0].max_seq_len == 8
        with pytest.raises(ConfigurationError, match="encoder_config key='hidden_state_size' is unknown"):
            read(lines)

    def test_simba_config_equals_python(self, read):
        setup = build(read("environment: {id: CartPole-v1}\nnetwork: {simba: true, encoder_config: {num_blocks: 1}}"))
        setup.env.close()
        (observation, action) = setup.env.single_observation_space, setup.env.single_action_space
        config = {"simba": True, "encoder_config": {"num_blocks": 1}}
        assert setup.population[0].architecture == PPO(observation, action, net_config=config).architecture
        assert type(setup.population[0].architecture.encoder).__name__ == "SimBaSpec"

    @pytest.mark.parametrize(
        "network",
        [
            {},
            {"latent_dim": 16},
            {"encoder_config": {"hidden_size": [16]}},
            {"encoder": "mlp", "latent_dim": 8},
        ],
    )
    def test_default_network_of_an_evolution_strategy_equals_python(self, network):
        data = {"environment": {"id": "x:y", "num_envs": 4}, "algorithm": {"name": "CMAES"}, "network": network}
        box, actions = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)
        ours = CMAES(box, actions, **Draft(data).validate().agent_arguments())
        assert ours.architecture == CMAES(box, actions, net_config=network).architecture

    def test_each_rank_gets_its_own_device(self, read):
        setup = build(read("environment: {id: CartPole-v1}\nrun: {device: cuda}"), torch.device("meta"))
        setup.env.close()
        assert setup.population.device.type == "meta"

    def test_envs_of_tensors_are_on_the_device_of_the_run(self, read):
        text = "environment: {id: CartPole-v1, backend: torch, kwargs: {max_episode_steps: 7}}"
        env = build(read(text), torch.device("meta")).env
        assert (env.device.type, env.max_episode_steps) == ("meta", 7)
        assert build(read(text, "--environment.kwargs.device", "cpu"), torch.device("meta")).env.device.type == "cpu"
        native = read("environment: {id: CartPole-v1}").environment.env_config
        assert native.on_device("meta") is native

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that is missing")
    def test_missing_device_is_one_error_that_names_the_available_ones(self, read):
        config = read("environment: {id: CartPole-v1}\nrun: {device: cuda}")  # legal, for it may run elsewhere
        with pytest.raises(ConfigurationError, match=r"^run.device='cuda' cannot be used: .*; allowed here: 'cpu'"):
            build(config)
        assert read("environment: {id: CartPole-v1}\nrun: {device: auto}").run.torch_device == torch.device("cpu")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--run.device", "gpu"), "run.device='gpu'; allowed are 'cpu', 'cuda', 'cuda:1', ..., and 'auto'"),
            (("--run.device", "mps"), "run.device='mps'; allowed are 'cpu', 'cuda', 'cuda:1', ..., and 'auto'"),
            (("--run.device", "cuda:1", "--run.processes", "2"), "run.device='cuda:1' is a single GPU; allowed for"),
        ],
    )
    def test_unknown_device_is_an_error(self, read, options, message):
        assert message in refusal(read, CARTPOLE, *options)

    def test_unknown_env_suggests_near_names(self, read):
        with pytest.raises(
            ConfigurationError, match=r"environment: .*'CartPol-v1' is unknown; did you mean 'CartPole-v1'"
        ):
            build(read("environment: {id: CartPol-v1}"))

    @pytest.mark.parametrize("path", ["..a:x", "a..b:x", ".:x"])
    def test_invalid_env_module_is_an_error(self, read, path):
        with pytest.raises(ConfigurationError, match=r"is no module's name; allowed is 'package.module'"):
            build(read(f"environment: {{id: '{path}'}}"))

    def test_missing_seed_is_random(self, read):
        config = read(CARTPOLE)
        first, second = config.with_seed().seed, config.with_seed().seed
        assert first != second  # one chance in four billion
        assert config.with_seed().with_seed().seed is not None
        assert read(CARTPOLE, "--seed", "0").with_seed().seed == 0


def leaves(data, above=()):
    for name, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_pickled_configuration_is_the_same(path):
    config = load(path)
    found = pickle.loads(pickle.dumps(config))
    assert type(found) is type(config)
    assert found.to_json() == config.to_json()


def test_a_pickled_configuration_has_its_strategies_and_functions():
    algorithm = {"schedules": {"lr": math.cos}, "reward_transform": max}
    strategies = {"selection": {"name": "gated"}, "mutation": {"name": "pb2"}}
    config = Config.model_validate({"environment": {"id": "CartPole-v1"}, "algorithm": algorithm, **strategies})
    found = pickle.loads(pickle.dumps(config))
    assert (found.strategy, found.explorer) == (config.strategy, config.explorer)
    assert (found.algorithm.schedules["lr"], found.algorithm.reward_transform) == (math.cos, max)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=slow_if(path.stem in ("atari_pong", "minatar_breakout_dqn")))
        for path in CONFIGS
    ],
)
class TestShippedFiles:
    def test_can_be_run(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # MuJoCo writes a log of warnings into the working directory
        packages = {"minatar": "minatar", "minigrid": "minigrid", "atari": "ale_py", "half": "mujoco"}
        extra = "mpe2" if path.parent.name == "ippo" else packages.get(path.stem.partition("_")[0], "torch")
        if find_spec(extra) is None:
            pytest.skip(f"{extra} is in an extra that is not installed")
        setup = build(load(path, ["--population.size", "2", "--environment.num-envs", "2"]))
        training = setup.env_setup.make_training_env(2, 1)
        collector = setup.env_setup.make_collector(
            setup.population, setup.env_setup.adapt(training), PhaseTimer(("env", "act", "learn"))
        )
        collector.reset(range(2))
        assert collector.collect(3) == 3
        for env in (training, setup.env):
            env.close()

    def test_files_contain_only_non_default_values(self, path):
        config = load(path)
        enough = {"environment": {"id": "", "num_envs": 2}}  # OpenAIES refuses the default of one env
        default = type(config).model_validate(enough).to_json()
        default["algorithm"]["name"] = "PPO"  # the default
        default["environment"]["num_envs"] = 1
        theirs = dict(leaves({name: part for name, part in config.to_json().items() if name != "hyperparameters"}))
        known = dict(leaves(default))
        differs = {place for place, value in theirs.items() if place not in known or known[place] != value}
        written = {place for place, _ in leaves(Draft.read(path).data) if place[0] != "hyperparameters"}
        assert written == differs
