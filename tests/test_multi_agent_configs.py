"""Configurations of multi-agent runs: reading, validation, building, and their additional settings."""

import inspect
import itertools
from contextlib import closing
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from agilerl_like import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.config import Config, Draft, MultiAgentAlgorithmConfig, MultiAgentConfig, build, load
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.registry import registered

STEADY = "environment: {id: 'steady_teams:Steady', num_envs: 2, backend: sync}\nalgorithm: {name: IPPO}\n"
WIDE = "network: {latent_dim: 16, encoder_config: {hidden_size: [16]}, groups: {speaker: {latent_dim: 32}}}\n"


@pytest.fixture
def read(tmp_path):
    """Load a configuration from text and options."""

    def load_text(text, *overrides):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load(path, overrides)

    return load_text


def refusal(make, *arguments):
    with pytest.raises(ConfigurationError) as caught:
        make(*arguments)
    return str(caught.value)


class TestReading:
    def test_algorithm_name_selects_the_class(self, read):
        assert type(read(STEADY)) is MultiAgentConfig
        assert type(read("environment: {id: CartPole-v1}")) is Config
        assert type(read("environment: {id: 'steady_teams:Steady'}", "--algorithm.name", "IPPO")) is MultiAgentConfig
        assert {name: registered("config")[name].algorithm_class for name in ("PPO", "IPPO")} == {
            "PPO": Config.algorithm_class,
            "IPPO": IPPO,
        }

    def test_defaults_equal_those_of_ippo(self, read):
        config = read("environment: {id: a}\nalgorithm: {name: IPPO}")
        signature = inspect.signature(IPPO).parameters
        own = {
            name: signature[name].default
            for name in ("rewards", "death", "frozen_groups", "group_factors", "agent_id_one_hot")
        }
        assert config.algorithm.settings() == {**asdict(PPOConfig()), **own, "groups": {}}
        assert NetworkSpec.from_net_config(config.network.net_config()) == NetworkSpec()

    def test_every_argument_of_ippo_is_a_setting(self):
        keywords = {
            name for name, known in inspect.signature(IPPO).parameters.items() if known.kind == known.KEYWORD_ONLY
        }
        elsewhere = {
            "num_envs",
            "seed",
            "device",
            "accelerator",
            "critic_config",
            *("mut", "actor_networks", "critic_networks", "action_batch_size", "torch_compiler", "wrap"),  # AgileRL's
            "state_space",
        }  # other sections, and nothing for a file
        own = {known.name for known in fields(MultiAgentAlgorithmConfig)} - {known.name for known in fields(PPOConfig)}
        assert own - {"name"} == keywords - elsewhere

    def test_every_setting_has_a_description(self):
        for section in (
            kind.model_fields[name].annotation
            for kind in registered("config").values()
            for name in ("environment", "network")
        ):
            assert [name for name, info in section.model_fields.items() if not info.description] == []

    @pytest.mark.parametrize("setting", ["frozen_groups: [listener]", "group_factors: {lr: {listener: 2.0}}"])
    def test_groups_by_name_may_be_frozen_and_have_factors(self, read, setting):
        config = read(STEADY.replace("name: IPPO", f"name: IPPO, {setting}"))
        with closing(build(config).env):
            pass
        wrong = read(STEADY.replace("name: IPPO", f"name: IPPO, {setting.replace('listener', 'singer')}"))
        assert "'singer' is unknown" in refusal(build, wrong)

    def test_yaml_round_trip(self, read):
        config = read(STEADY + WIDE + "hyperparameters: {lr: {min: 1e-5, max: 1e-2}}\nseed: 7")
        assert read(config.to_yaml()) == config

    def test_options_for_all_groups_reach_the_groups_of_a_file_that_the_package_wrote(self, read):
        own = "{min_latent_dim: 4, head_config: {activation: Tanh}, critic_config: {latent_dim: 64}}"
        config = read(STEADY + f"network: {{latent_dim: 32, groups: {{speaker: {own}, listener: {{encoder: simba}}}}}}")
        assert read(config.to_yaml()) == config
        assert config.to_json()["network"]["groups"]["speaker"].keys() == {
            "min_latent_dim", "head_config", "critic_config",
        }  # fmt: skip
        speaker = read(config.to_yaml(), "--network.latent-dim", "64").network.groups["speaker"]
        assert (speaker.latent_dim, speaker.min_latent_dim, speaker.head_config.activation) == (64, 4, "Tanh")

    def test_group_inherits_common_network_settings(self, read):
        network = read(STEADY + WIDE).network
        assert network.groups["speaker"].encoder_config == {"hidden_size": [16]}
        assert (network.latent_dim, network.groups["speaker"].latent_dim) == (16, 32)

    @pytest.mark.parametrize(
        ("common", "its", "together"),
        [
            ("{hidden_size: [16]}", "encoder_config: {activation: Tanh}", {"hidden_size": [16], "activation": "Tanh"}),
            ("{hidden_size: [16]}", "encoder_config: {hidden_size: [32]}", {"hidden_size": [32]}),
            ("{hidden_size: [16]}", "latent_dim: 32", {"hidden_size": [16]}),
            ("{hidden_size: [16]}", "encoder: mlp, latent_dim: 32", {"hidden_size": [16]}),
            ("{hidden_size: [16]}", "encoder: simba, latent_dim: 32", {}),  # whose size is a number
            (
                "{activation: Tanh}, encoder: mlp",
                "encoder: resnet, encoder_config: {channel_size: 32}",
                {"channel_size": 32},
            ),
            ("{hidden_size: [16]}", "encoder_config: {kernel_size: [3, 3]}", {"kernel_size": [3, 3]}),  # sees images
        ],
    )
    def test_group_overrides_single_settings_of_the_same_encoder(self, read, common, its, together):
        config = read(STEADY + f"network: {{encoder_config: {common}, groups: {{speaker: {{{its}}}}}}}")
        assert config.network.groups["speaker"].encoder_config == together
        assert read(config.to_yaml()) == config

    @pytest.mark.parametrize(
        ("common", "own"), [("simba: true", "encoder: mlp"), ("encoder: mlp", "simba: true"), ("simba: true", "")]
    )
    def test_group_names_its_encoder_by_either_key(self, read, common, own):
        config = read(STEADY + f"network: {{{common}, groups: {{speaker: {{latent_dim: 16, {own}}}}}}}")
        expected = "mlp" if "mlp" in own else "simba"
        speaker = config.network.groups["speaker"]
        assert (speaker.encoder or "simba") == expected
        assert speaker.simba == (expected == "simba")
        assert read(config.to_yaml()) == config

    def test_group_overrides_single_settings_of_its_head(self, read):
        text = STEADY + "network: {head_config: {hidden_size: [32, 32]}}"
        head = (
            read(text, "--network.groups.listener.head-config.activation", "Tanh")
            .network.groups["listener"]
            .head_config
        )
        assert (head.hidden_size, head.activation) == ((32, 32), "Tanh")

    def test_env_config_equals_that_of_make_vect_envs(self, read):
        text = STEADY.replace("backend: sync", "backend: sync, kwargs: {steps: 2}, wrappers: ['steady_teams:Louder']")
        env = make_multi_agent_vect_envs(
            "steady_teams:Steady", 2, backend="sync", extra_wrappers=["steady_teams:Louder"], steps=2
        )
        made = env.env_config
        env.close()
        env_config = read(text).environment.env_config
        assert isinstance(env_config, VecEnvConfig)
        assert plain_fields(made) == plain_fields(env_config)


def plain_fields(env_config):
    """All fields as plain data, without `with_state`, which a configuration file cannot set."""
    values = {field.name: getattr(env_config, field.name) for field in fields(env_config)}
    kwargs = {**values["env_kwargs"], "with_state": None}
    return {**values, "env_kwargs": {**kwargs, "extra_wrappers": list(kwargs["extra_wrappers"])}}


class TestRefusing:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("algorithm: {name: IPP}", "algorithm.name='IPP' is unknown; did you mean 'IPPO' or 'PPO'?"),
            ("algorithm: {rewards: mean}", "algorithm key='rewards' is unknown"),  # agents by themselves share nothing
            ("algorithm: {name: IPPO, rewards: meen}", "algorithm.rewards='meen' is unknown; did you mean 'mean'"),
            ("algorithm: {name: IPPO, group: {}}", "algorithm key='group' is unknown; did you mean 'groups'"),
            ("algorithm: {name: IPPO, groups: [a]}", "algorithm.groups=['a']; allowed is a mapping"),
            ("algorithm: {name: IPPO, groups: {a: b.c}}", "algorithm.groups: 'b.c' must be a name without dots"),
            ("algorithm: {name: IPPO, lr: -1}", "algorithm.lr=-1: input should be greater than 0"),
            ("algorithm: {name: IPPO}\nnetwork: {groups: {a: {latent_dm: 8}}}", "did you mean 'latent_dim'"),
            ("algorithm: {name: IPPO}\nnetwork: {groups: {a: {latent_dim: 3}}}", "network.groups.a.latent_dim=3"),
            (
                "algorithm: {name: IPPO}\nnetwork: {groups: {a: 3}}",
                "network.groups.a=3; allowed is a mapping",
            ),
            (
                "algorithm: {name: IPPO}\nhyperparameters: {lr: {min: 0.1, max: 1}}\n"
                "population: {sample_hyperparameters: false}",
                "algorithm.lr=0.0001 lies outside",
            ),
            ("algorithm: {name: IPPO, num_steps: 2, batch_size: 4096}", "algorithm.batch_size=4096 is larger than"),
            ("algorithm: {name: IPPO, learn_step: 16, num_minibatches: 1601}", "num_minibatches=1601 is more than"),
            ("algorithm: {name: IPPO}\npopulation: {size: 1000000000}", "population.size=1000000000 needs at least"),
            ("algorithm: {name: IPPO, batch_size: 409600}", "algorithm.batch_size=409600 is larger than the rollout"),
        ],
    )
    def test_error_names_field_value_and_allowed_values(self, read, text, message):
        assert message in refusal(read, "environment: {id: a}\n" + text)

    @pytest.mark.parametrize(
        "text",
        [
            "algorithm: {name: IPPO}\nhyperparameters: {lr: {min: 0.1, max: 1}, batch_size: {min: 8, max: 16}}",
            "algorithm: {name: IPPO, num_steps: 16, batch_size: 1024}",  # with three agents and 16 envs
            "algorithm: {name: IPPO, learn_step: 64, num_minibatches: 100}",
        ],
    )
    def test_what_a_team_may_have_is_not_refused_before_its_agents_are_known(self, read, text):
        read("environment: {id: a}\n" + text)

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("max_total_reward: 3", "max_total_reward=3.0; it is for single agents"),
            ("info_keys: {cost: env.cost}", "info_keys={'cost': 'env.cost'}; allowed with several agents are keys"),
        ],
    )
    def test_settings_of_single_envs_are_refused(self, read, setting, message):
        assert message in refusal(read, f"environment: {{id: a, {setting}}}\nalgorithm: {{name: IPPO}}")

    def test_multi_agent_backends(self, read):
        said = refusal(read, "environment: {id: a, backend: envpool}\nalgorithm: {name: IPPO}")
        assert "environment.backend='envpool' is unknown; allowed are: auto, sync, workers" in said
        said = refusal(read, "environment: {id: a, autoreset: NextStep}\nalgorithm: {name: IPPO}")
        assert "environment.autoreset='NextStep'" in said
        assert "SameStep" in said

    def test_all_problems_are_reported_at_once(self, read):
        said = refusal(
            read,
            "environment: {id: a, num_envs: 0}\nalgorithm:\n  name: IPPO\n  gamma: 2\n  rewards: none\n"
            "network: {groups: {b: {latent_dim: 1}}}",
            *("--run.treads", "2"),
        )
        for problem, place in (
            ("environment.num_envs=0", "line 1"),
            ("algorithm.gamma=2", "line 4"),
            ("network.groups.b.latent_dim=1", "line 6"),
            ("did you mean 'threads'", "--run.treads"),
        ):
            assert any(problem in part and place in part for part in said.split("; "))

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            (
                "--environment.id steady_teams:Study",
                "environment: env (in steady_teams)='Study' is unknown; did you mean 'Steady'",
            ),
            ("--environment.id no_such_module", "environment: env='no_such_module': module 'no_such_module' cannot be"),
            ("--environment.kwargs.stops 3", "environment: env_kwargs={'stops': 3} do not suit"),
            ("--environment.wrappers [steady_teams:Loud]", "did you mean 'Louder'"),
            ("--algorithm.groups.talker_0 a", "groups agent='talker_0' is unknown"),
            ("--algorithm.groups.speaker_0 listener", "both are in group 'listener'"),
            ("--network.groups.speeker.latent_dim 32", "'speeker' is unknown"),
        ],
    )
    def test_settings_that_depend_on_the_env_are_checked_before_training(self, read, override, message):
        assert message in refusal(build, read(STEADY, *override.split()))


class TestBuilding:
    def test_build_makes_envs_and_population(self, read):
        text = STEADY.replace(
            "name: IPPO", "name: IPPO, lr: 0.002, rewards: mean, agent_id_one_hot: true, learn_step: 64"
        )
        setup = build(read(text + WIDE + "population: {size: 2}\nseed: 5", "--algorithm.groups.listener_1", "hearer"))
        setup.env.close()
        assert isinstance(setup.population, MultiAgentPopulation)
        assert setup.env.num_envs == 2
        for team in setup.population:
            assert (team.lr, team.learn_step, team.seed, team.num_envs) == (0.002, 64, 5, 2)
            assert (team.rewards, team.agent_id_one_hot) == ("mean", True)
            assert dict(team.groups) == {
                "speaker": ("speaker_0",),
                "listener": ("listener_0",),
                "hearer": ("listener_1",),
            }
            latent = {group: learner.architecture.latent_dim for group, learner in team.learners.items()}
            assert latent == {"speaker": 32, "listener": 16, "hearer": 16}
        assert setup.settings["algorithm"]["groups"] == {"listener_1": "hearer"}

    def test_fitness_rating_of_multi_agent_runs(self, read):
        setup = build(read(STEADY + "training: {fitness: rating}"))
        setup.env.close()
        assert setup.training_args.fitness == "rating"

    def test_minibatch_can_be_as_large_as_the_rollout_of_a_group(self, read):
        """Two listeners have two samples a step; a speaker alone has one."""
        small = STEADY.replace("name: IPPO", "name: IPPO, learn_step: 64, batch_size: 128")
        said = refusal(build, read(small))
        assert "batch_size=128 is larger than the rollout of learn_step=64" in said
        assert "agents of 'speaker' in each: 1): allowed are at most 64" in said  # in the numbers that were given
        listeners = "--environment.kwargs.agents", "listener_0", "listener_1"
        setup = build(read(small, *listeners))
        setup.env.close()
        assert [team.batch_size for team in setup.population] == [128] * 4


@pytest.mark.skipif(find_spec("mpe2") is None, reason="pygame is in the extra multi-agent")
def test_in_the_shipped_pong_the_ball_is_seen_to_fly():
    path = Path(__file__).parents[1] / "configs" / "ippo" / "cooperative_pong.yaml"
    env_setup = load(path, ["--environment.backend", "sync"]).env_setup(num_envs=1)
    with closing(env_setup.env) as env:
        images = [env.reset(seed=1)[0]["paddle_0"][0]]
        for _ in range(3):
            images.append(env.step(dict.fromkeys(env.agent_ids, np.zeros(1, np.int64)))[0]["paddle_0"][0])
    paddles = (images[0][1, :, :5] > 0).sum(), (images[0][1, :, -5:] > 0).sum()
    assert min(paddles) > 0
    balls = [np.argwhere(image[1, :, 6:-10] > 40).mean(0) for image in images]
    flown = np.diff(balls, axis=0) / 4  # pixels of 4, in 4 frames of a speed of 4: one a frame, but for rounding
    assert (np.linalg.norm(flown, axis=1) > 0.5).all()
    assert (np.linalg.norm(flown, axis=1) < 1.5).all()
    for before, after in itertools.pairwise(images):
        np.testing.assert_array_equal(before[1], after[0])  # the older of two images


def test_a_configuration_of_agents_knows_nothing_of_teams():
    assert "groups" not in Draft({"environment": {"id": "a"}}).validate().to_json()["network"]
