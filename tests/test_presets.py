"""Presets: other systems' defaults, and their own configuration dictionaries, give the settings that are meant."""

import math
from itertools import pairwise

import gymnasium
import pytest
import torch

import agilerl_like.agilerl.algorithms as agilerl_algorithms
from agilerl_like import IPPO, PPO, HyperparameterConfig, RLParameter
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.presets import PRESETS
from agilerl_like.cli import main
from agilerl_like.config import Draft, check_resume_changes
from agilerl_like.config.schema import AlgorithmConfig
from agilerl_like.errors import ConfigurationError
from agilerl_like.foreign_settings import SYSTEMS
from agilerl_like.modules.layers import Linear

pytestmark = pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))
CARTPOLE = {"environment": {"id": "CartPole-v1"}}
DEFAULTS = {name: getattr(PPOConfig, name) for name in PPOConfig.__dataclass_fields__}
RECORDS = ("preset", "swap_channels")
"""Settings that an agent records: the preset, and the layout of its images."""


def agent(**arguments):
    return PPO(BOX, BOX, seed=0, **arguments)


def config(**sections):
    return Draft({**CARTPOLE, **sections}).validate()


def settings_of(**given):
    """The settings of an agent that differ from the defaults, without the record of the preset."""
    found = agent(**given).settings()
    return {name: value for name, value in found.items() if value != DEFAULTS[name] and name not in RECORDS}


# -- the table


def test_there_is_a_preset_for_each_system_whose_names_are_known():
    assert {*PRESETS} == {"agilerl_like", *SYSTEMS}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_legal_and_an_agent_has_its_values(name):
    its = {key: one.value for key, one in PRESETS[name].settings.items()}
    found = agent(preset=name, num_envs=2).settings()
    assert its.keys() <= found.keys()
    meaningless = set()  # what another value of the preset turns off
    if its.get("target_kl") is None:
        meaningless.add("kl_stop")
    if its.get("max_grad_norm", 1) is None:
        meaningless.add("clip_grads")
    if its.get("normalize_observation") is False:
        meaningless.add("observation_clip")
    if its.get("clip_coef_vf") is None:
        meaningless.add("value_clip_mode")
    if its.get("lr_schedule") != "kl":
        meaningless |= {"kl_threshold", "lr_min", "lr_max"}
    for key, value in its.items():
        assert found[key] == (DEFAULTS[key] if key in meaningless else value), key
    assert found["preset"] == name
    assert {key for key in found if found[key] != DEFAULTS[key]} <= {*its, *RECORDS}


@pytest.mark.parametrize("name", PRESETS)
def test_values_have_a_source(name):
    assert all(one.source for one in PRESETS[name].settings.values())
    assert PRESETS[name].system


def test_false_friends_are_converted():
    coefficients = {name: agent(preset=name, num_envs=4).vf_coef for name in PRESETS}
    # weight of the whole squared error in sb3 .5, skrl 2.5, metabox 1, isaaclab 1: of half the squared error twice that
    assert coefficients == {
        "agilerl_like": 0.5,
        "sb3": 1.0,
        "cleanrl": 0.5,
        "skrl": 5.0,
        "agilerl": 0.5,
        "rlib": 0.5,
        "dti": 0.5,
        "metabox": 2.0,
        "brax": 0.5,
        "isaaclab": 2.0,
    }
    assert {name for name in PRESETS if agent(preset=name).adam_eps == 1e-8} == {
        "skrl", "agilerl", "metabox", "brax", "isaaclab",
    }  # fmt: skip
    assert agent(preset="skrl", num_envs=4).rollout_steps == 16  # rollouts counts steps of one environment
    assert agent(preset="agilerl", num_envs=4).rollout_steps == 1024  # learn_step counts those of all


# -- what is given wins


def test_settings_that_are_given_win_even_if_they_are_the_default_here():
    found = settings_of(preset="sb3", lr=PPOConfig.lr, normalize_value=True, num_steps=64)
    assert "lr" not in found
    assert "normalize_value" not in found
    assert found["num_steps"] == 64
    assert found["vf_coef"] == 1.0


def test_a_setting_given_by_its_place_wins_too():
    found = PPO(BOX, BOX, 0, None, None, 32, preset="sb3")
    assert (found.batch_size, found.lr) == (32, 3e-4)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("sb3", {"learn_step": 256}, {"learn_step": 256, "num_steps": None}),
        ("skrl", {"batch_size": 8}, {"batch_size": 8, "num_minibatches": None, "num_steps": 16}),
        ("skrl", {"normalize_observation": True}, {"normalize_observation": True, "observation_clip": 5.0}),
        ("agilerl", {"num_steps": 100}, {"num_steps": 100, "learn_step": 2048}),
        ("isaaclab", {"lr_schedule": None}, {"lr_schedule": None, "kl_threshold": 0.008, "lr_min": 1e-6}),
        ("cleanrl", {"schedules": {"lr": "cosine"}}, {"lr_schedule": None, "schedules": {"lr": "cosine"}}),
        ("isaaclab", {"schedules": {"lr": "linear"}}, {"lr_schedule": None, "kl_threshold": 0.008}),
        ("rlib", {"schedules": {"ent_coef": "linear"}}, {"lr_schedule": "linear"}),
        ("metabox", {"advantage": "gae"}, {"advantage": "gae", "n_step": 10, "gae_lambda": 0.95}),
        ("sb3", {"clip_coef_vf": 0.2}, {"clip_coef_vf": 0.2, "value_clip_mode": "clipped"}),
        ("sb3", {"target_kl": 0.1}, {"target_kl": 0.1, "kl_stop": "update"}),
        ("cleanrl", {"normalize_advantage": "none"}, {"normalize_advantage": "none", "advantage_ddof": 0}),
    ],
)
def test_a_setting_in_place_of_another_displaces_it_and_what_has_no_meaning_is_left_out(name, given, expected):
    found = agent(preset=name, num_envs=4, **given).settings()
    assert {key: found[key] for key in expected} == expected


def test_what_evolves_starts_from_the_value_of_the_preset():
    ranges = HyperparameterConfig(learn_step=RLParameter(min=16, max=512), batch_size=RLParameter(min=8, max=64))
    found = agent(preset="skrl", num_envs=4, hp_config=ranges)
    assert (found.learn_step, found.num_steps) == (64, None)  # 16 steps of 4 environments
    assert (found.batch_size, found.num_minibatches) == (32, None)  # 2 minibatches
    ranges = HyperparameterConfig(batch_size=RLParameter(min=8, max=512))
    assert agent(preset="skrl", num_envs=4, num_steps=40, hp_config=ranges).batch_size == 80  # 2 minibatches of 40 x 4
    assert agent(preset="skrl", num_envs=4, learn_step=80, hp_config=ranges).batch_size == 40
    ranges = HyperparameterConfig(num_steps=RLParameter(min=16, max=4096))
    assert agent(preset="agilerl", num_envs=4, hp_config=ranges).num_steps == 1024


def test_the_first_member_of_a_population_starts_from_the_preset_and_the_others_from_draws():
    ranges = HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-2))
    members = PPO.population(3, BOX, BOX, preset="skrl", hp_config=ranges, sample_hyperparameters=True, seed=0)
    assert members[0].lr == 1e-3
    assert len({member.lr for member in members}) == 3
    assert {member.vf_coef for member in members} == {5.0}


def test_teams_have_presets():
    spaces = {"a_0": BOX, "a_1": BOX}
    assert IPPO(spaces, spaces, preset="sb3").vf_coef == 1.0
    assert IPPO.population(2, spaces, spaces, like="sb3", vf_coef=0.25)[1].vf_coef == 0.5


def test_values_that_differ_by_algorithm_and_with_a_memory():
    """AgileRL's IPPO has two networks and normalises minibatches; sb3-contrib's RecurrentPPO has shorter rollouts."""
    spaces = {"a_0": BOX, "a_1": BOX}
    team, alone = IPPO(spaces, spaces, preset="agilerl"), agent(preset="agilerl")
    assert (team.share_encoders, team.normalize_advantage) == (False, "minibatch")
    assert (alone.share_encoders, alone.normalize_advantage) == (True, "rollout")
    recurrent = agent(preset="sb3", recurrent=True)
    assert (recurrent.num_steps, recurrent.batch_size) == (128, 128)
    assert agent(like="sb3", policy="MlpLstmPolicy", n_steps=64).num_steps == 64
    found = config(algorithm={"name": "IPPO", "preset": "agilerl"}, environment={"id": "mpe/simple_spread-v3"})
    assert (found.algorithm.share_encoders, found.algorithm.normalize_advantage) == (False, "minibatch")
    found = config(algorithm={"preset": "sb3", "recurrent": True}, environment={"id": "CartPole-v1"})
    assert (found.algorithm.num_steps, found.algorithm.batch_size) == (128, 128)


def test_copies_and_saved_agents_keep_values_that_were_given_over_the_preset(tmp_path):
    made = agent(preset="sb3", clip_grads="apart", adam_eps=PPOConfig.adam_eps, learn_step=256)
    assert made.clone().settings() == made.settings()
    made.save_checkpoint(tmp_path / "agent")
    assert PPO.load(tmp_path / "agent").settings() == made.settings()


# -- YAML and the command line


def test_a_preset_in_yaml_and_on_the_command_line():
    of_file = config(algorithm={"preset": "skrl", "lr": 1e-4}).algorithm
    of_option = Draft(CARTPOLE).override(["--algorithm.preset", "skrl", "--algorithm.lr", "1e-4"]).validate().algorithm
    assert of_file == of_option
    assert (of_file.lr, of_file.vf_coef, of_file.num_steps) == (1e-4, 5.0, 16)
    assert AlgorithmConfig(preset="skrl", lr=1e-4) == of_file


def test_a_schedule_of_the_learning_rate_replaces_that_of_the_preset_in_yaml():
    made = config(algorithm={"preset": "cleanrl", "schedules": {"lr": "cosine"}}).algorithm
    assert (made.lr_schedule, dict(made.schedules)) == (None, {"lr": "cosine"})


def test_the_written_configuration_is_read_again_as_the_same():
    made = config(algorithm={"preset": "sb3", "clip_grads": "apart"}, environment={"id": "CartPole-v1", "num_envs": 4})
    again = Draft(made.to_json()).validate()
    assert again == made
    assert again.algorithm.clip_grads == "apart"
    check_resume_changes(made, again)


@pytest.mark.parametrize("num_envs", [8, 8.0, "8"])
def test_the_evolving_length_of_a_rollout_is_converted_in_yaml(num_envs):
    made = config(
        algorithm={"preset": "skrl"},
        environment={"id": "CartPole-v1", "num_envs": num_envs},
        hyperparameters={"learn_step": {"min": 64, "max": 512}},
    )
    assert (made.algorithm.learn_step, made.algorithm.num_steps) == (128, None)


def test_settings_of_another_section_are_moved_there():
    made = config(
        algorithm={"like": "sb3", "n_envs": 8, "n_timesteps": 1e5, "n_steps": 32, "batch_size": 256, "seed": 3,
                   "learning_rate": "lin_0.001", "clip_range": "lin_0.2", "policy": "MlpPolicy", "vf_coef": 0.5},
    )  # fmt: skip
    assert (made.environment.num_envs, made.training.max_steps, made.seed) == (8, 100_000, 3)
    assert (made.algorithm.num_steps, made.algorithm.lr, made.algorithm.lr_schedule) == (32, 1e-3, "linear")
    assert dict(made.algorithm.schedules) == {"clip_coef": "linear"}
    assert made.algorithm.vf_coef == 1.0


def test_names_of_the_system_are_taken_on_the_command_line():
    options = ["--algorithm.like", "cleanrl", "--algorithm.num-envs", "16", "--algorithm.anneal-lr", "false"]
    made = Draft(CARTPOLE).override(options).validate()
    assert (made.environment.num_envs, made.algorithm.lr_schedule, made.algorithm.lr) == (16, None, 2.5e-4)


# -- errors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "sb4"}, "preset='sb4' is unknown; did you mean 'sb3'"),
        ({"like": "clean_rl"}, "like='clean_rl' is unknown; did you mean 'cleanrl'"),
        ({"preset": 3}, "preset=3 is unknown"),
        ({"preset": "sb3", "like": "skrl"}, "preset='sb3' contradicts like='skrl'"),
        (
            {"preset": "sb3", "learning_rate": 1e-3, "vf_coef": 0.5},
            "vf_coef=0.5 is ambiguous beside learning_rate: in sb3, vf_coef weighs half the squared error",
        ),
        ({"like": "sb3", "use_sde": True}, "use_sde=True of sb3: state-dependent exploration noise is absent here"),
        ({"like": "skrl", "rewards_shaper": abs}, "rewards_shaper=<built-in function abs> of skrl: a function"),
        ({"like": "sb3", "clip_range": abs}, "clip_range=<built-in function abs> of sb3: a function of the remaining"),
        ({"like": "sb3", "vf_coef": "much"}, "vf_coef='much' of sb3: it is not a number"),
        ({"preset": "sb3", "rollouts": 16}, "'rollouts' is unknown; did you mean 'num_steps'"),
        ({"like": "dti", "target_kl": 0.1, "clip_range": 0.2}, "'clip_range' is unknown; did you mean 'clip_coef'"),
    ],
)
def test_wrong_presets_and_settings_are_one_clear_error_in_python_and_yaml(given, message):
    with pytest.raises(ConfigurationError) as error:
        agent(**given)
    assert message in str(error.value)
    with pytest.raises(ConfigurationError) as error:
        config(algorithm=given)
    assert message in str(error.value)


def test_a_number_of_steps_as_text_is_that_number_in_what_evolves():
    made = config(
        algorithm={"preset": "skrl", "num_steps": "40"}, hyperparameters={"batch_size": {"min": 8, "max": 99}}
    )
    assert made.algorithm.batch_size == 40 * made.environment.num_envs // 2


@pytest.mark.parametrize("steps", [{}, "lots", -1, 0.5])
@pytest.mark.parametrize("num_envs", [4, 0, {}])
def test_values_of_another_type_beside_a_preset_are_one_error(steps, num_envs):
    given = {"preset": "skrl", "num_steps": steps}
    with pytest.raises(ConfigurationError, match=r"num_steps|num_envs|learn_step"):
        Draft(
            {
                "environment": {"id": "CartPole-v1", "num_envs": num_envs},
                "algorithm": given,
                "hyperparameters": {"batch_size": {"min": 8, "max": 64}},
            }
        ).validate()


def test_a_setting_of_another_function_is_named_in_python():
    with pytest.raises(
        ConfigurationError, match=r"total_timesteps is training\.max_steps here, an argument of train_on"
    ):
        agent(like="sb3", total_timesteps=1000)
    with pytest.raises(ConfigurationError, match="net_config is given twice: by this name and by another one"):
        agent(like="sb3", net_config={}, policy_kwargs={"net_arch": [64, 64, 64]})


def test_a_setting_that_is_given_twice_is_an_error_in_yaml():
    with pytest.raises(ConfigurationError, match=r"algorithm.n_envs is environment.num_envs, which is given, too"):
        config(algorithm={"like": "sb3", "n_envs": 4}, environment={"id": "CartPole-v1", "num_envs": 8})


def test_an_unknown_preset_is_reported_before_an_environment_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_env.py").write_text("class Env:\n    def __init__(self):\n        open('made', 'w')\n")
    assert main(["train", "own_env:Env", "--algorithm.preset", "sb33"]) == 2
    assert "algorithm.preset='sb33' is unknown; did you mean 'sb3'" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_an_algorithm_without_presets_names_the_key():
    with pytest.raises(ConfigurationError, match="algorithm key='preset' is unknown"):
        config(algorithm={"name": "DQN", "preset": "sb3"})


def test_agilerls_own_signature_has_no_presets():
    for name in ("preset", "like"):
        with pytest.raises(ConfigurationError, match=f"{name}='sb3': this class has AgileRL's defaults"):
            agilerl_algorithms.PPO(BOX, BOX, **{name: "sb3"})


# -- the command


def test_the_command_prints_presets(capsys):
    assert main(["presets"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PRESETS)
    assert main(["presets", "skrl"]) == 0
    printed = capsys.readouterr().out
    assert "vf_coef                5          0.5           value_loss_scale=2.5, of the whole squared error" in printed
    assert main(["presets", "sb3"]) == 0
    printed = capsys.readouterr().out
    assert "recurrent: num_steps 128 (RecurrentPPO of sb3-contrib: n_steps=128)" in printed
    assert "differs whatever the settings: schedules count the rollout that an update learns from as done" in printed
    assert main(["presets", "skl"]) == 2
    assert "did you mean 'skrl'" in capsys.readouterr().err


# -- each system's own dictionary: the settings that its author meant

SKRL = {
    "rollouts": 16, "learning_epochs": 8, "mini_batches": 2, "discount_factor": 0.99, "gae_lambda": 0.95,
    "learning_rate": 1e-3, "learning_rate_scheduler": None, "learning_rate_scheduler_kwargs": {},
    "observation_preprocessor": None, "observation_preprocessor_kwargs": {}, "state_preprocessor": None,
    "state_preprocessor_kwargs": {}, "value_preprocessor": None, "value_preprocessor_kwargs": {},
    "random_timesteps": 0, "learning_starts": 0, "grad_norm_clip": 0.5, "ratio_clip": 0.2, "value_clip": 0.2,
    "entropy_loss_scale": 0.0, "value_loss_scale": 2.5, "kl_threshold": 0.0, "time_limit_bootstrap": False,
    "rewards_shaper": None, "mixed_precision": False,
    "experiment": {"directory": "", "experiment_name": "", "write_interval": "auto", "checkpoint_interval": "auto",
                   "store_separately": False, "wandb": False, "wandb_kwargs": {}},
}  # fmt: skip
SKRL_MEANT = {
    "num_steps": 16, "update_epochs": 8, "num_minibatches": 2, "lr": 1e-3, "clip_coef_vf": 0.2,
    "value_clip_mode": "clipped", "ent_coef": 0.0, "vf_coef": 5.0, "clip_grads": "together", "advantage_ddof": 1,
    "bootstrap_truncated": False, "adam_eps": 1e-8, "normalize_observation": False, "normalize_value": False,
}  # fmt: skip


def test_skrls_dictionary():
    assert settings_of(like="skrl", num_envs=4, **SKRL) == SKRL_MEANT


def test_skrls_dictionary_with_everything_on():
    class KLAdaptiveLR:
        pass

    class RunningStandardScaler:
        pass

    changed = {
        "learning_rate": (3e-4, 1e-3), "learning_rate_scheduler": KLAdaptiveLR,
        "learning_rate_scheduler_kwargs": {"kl_threshold": 0.01, "min_lr": 1e-5, "max_lr": 1e-3, "kl_factor": 3},
        "observation_preprocessor": RunningStandardScaler, "value_preprocessor": RunningStandardScaler,
        "random_timesteps": 10, "learning_starts": 20, "grad_norm_clip": 0.0, "value_clip": 0.0, "kl_threshold": 0.02,
        "time_limit_bootstrap": True, "mixed_precision": True,
    }  # fmt: skip
    off = ("clip_coef_vf", "value_clip_mode", "clip_grads", "bootstrap_truncated")
    meant = {name: value for name, value in SKRL_MEANT.items() if name not in off} | {
        "lr": 3e-4, "lr_critic": 1e-3, "lr_schedule": "kl", "kl_threshold": 0.01, "lr_min": 1e-5, "lr_max": 1e-3,
        "kl_factor": 3, "random_steps": 40, "learning_starts": 80, "max_grad_norm": None, "target_kl": 0.02,
        "kl_stop": "minibatch", "precision": "bfloat16", "observation_clip": 5.0,
    }  # fmt: skip
    for name in ("normalize_observation", "normalize_value"):
        del meant[name]
    assert settings_of(like="skrl", num_envs=4, **{**SKRL, **changed}) == meant


@pytest.mark.parametrize("name", ["observation_preprocessor", "state_preprocessor"])
def test_the_arguments_of_skrls_scaler_of_observations(name):
    """The standard deviation has epsilon added there, and the variance here."""
    given = {name: "RunningStandardScaler", f"{name}_kwargs": {"size": BOX, "clip_threshold": 3.0, "epsilon": 0.1}}
    found = agent(like="skrl", **given)
    assert (found.observation_clip, found.observation_eps) == (3.0, pytest.approx(0.01))
    for defaults in ({f"{name}_kwargs": None}, {f"{name}_kwargs": {"size": BOX, "device": "cpu"}}, {}):
        found = agent(like="skrl", **{name: "RunningStandardScaler", **defaults})
        assert (found.observation_clip, found.observation_eps) == (5.0, PPOConfig.observation_eps)
    assert agent(like="skrl", **{**given, name: None}).observation_clip == PPOConfig.observation_clip
    with pytest.raises(ConfigurationError, match=r"_preprocessor_kwargs=.* of skrl: per_env has no eq"):
        agent(like="skrl", **{**given, f"{name}_kwargs": {"per_env": True}})


def test_arguments_of_the_scaler_of_skrls_critic_are_not_those_of_the_actor():
    scalers = dict.fromkeys(("observation_preprocessor", "state_preprocessor"), "RunningStandardScaler")
    assert agent(like="skrl", **scalers, state_preprocessor_kwargs={"clip_threshold": 3.0}).observation_clip == 5.0


@pytest.mark.parametrize(
    "given",
    [
        {"learning_rate_scheduler": ("KLAdaptiveLR", None)},
        {"learning_rate_scheduler": (None, "KLAdaptiveLR")},
        {
            "learning_rate_scheduler": "KLAdaptiveLR",
            "learning_rate_scheduler_kwargs": ({"kl_threshold": 0.01}, {"kl_threshold": 0.02}),
        },
    ],
)
def test_two_different_schedulers_of_skrl_are_refused(given):
    with pytest.raises(ConfigurationError, match="of skrl: actor and critic have one schedule here"):
        agent(like="skrl", **given)


def test_two_equal_schedulers_of_skrl_are_one():
    kwargs = {"kl_threshold": 0.02}
    found = agent(
        like="skrl", learning_rate_scheduler=["KLAdaptiveLR"] * 2, learning_rate_scheduler_kwargs=[kwargs, kwargs]
    )
    assert (found.lr_schedule, found.kl_threshold) == ("kl", 0.02)
    assert agent(like="skrl", learning_rate_scheduler=[None, None]).lr_schedule is None


DTI = {
    "use_trajectory_model": False, "hidden_size": 64, "total_timesteps": 180_000, "learning_rate": 2.5e-4,
    "decay_lr": False, "num_envs": 4, "num_steps": 128, "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4,
    "update_epochs": 4, "clip_coef": 0.4, "ent_coef": 0.2, "vf_coef": 0.5, "max_grad_norm": 2,
    "trajectory_path": None, "fully_observed": False, "prob_go_from_end": 0.0, "num_checkpoints": 10,
    "env_id": "MiniGrid-Dynamic-Obstacles-8x8-v0", "one_hot_obs": False, "img_obs": False, "max_steps": 1000,
    "view_size": 7, "capture_video": False, "video_dir": "videos", "video_frequency": 50, "render_mode": "rgb_array",
    "exp_name": "MiniGrid-Dynamic-Obstacles-8x8-v0", "seed": 1, "cuda": True, "track": True,
    "wandb_project_name": "PPO-MiniGrid", "wandb_entity": None,
}  # fmt: skip
"""Its three configurations, of the environment, of training and of the run, together."""


def changed_settings(section):
    found = section.settings()
    return {name: value for name, value in found.items() if value != DEFAULTS[name] and name not in RECORDS}


def test_the_dictionaries_of_decision_transformer_interpretability():
    made = Draft({"algorithm": {"like": "dti", **DTI}}).validate()
    assert changed_settings(made.algorithm) == {
        "lr": 2.5e-4, "num_steps": 128, "num_minibatches": 4, "clip_coef": 0.4, "ent_coef": 0.2, "max_grad_norm": 2.0,
        "clip_grads": "together", "normalize_advantage": "minibatch", "advantage_ddof": 1, "bootstrap_truncated": False,
        "normalize_observation": False, "normalize_value": False,
    }  # fmt: skip
    assert made.environment.id == DTI["env_id"]
    assert (made.environment.num_envs, made.environment.kwargs) == (4, {"max_steps": 1000})
    assert (made.training.max_steps, made.seed, made.run.wandb, made.run.device) == (180_000, 1, True, "auto")
    assert made.network.encoder_config == {"hidden_size": [64], "activation": "Tanh"}
    with pytest.raises(ConfigurationError, match="recurrent: true with cell: transformer in memory_config"):
        agent(like="dti", use_trajectory_model=True)
    assert agent(like="dti", recurrent=True, net_config={"memory_config": {"cell": "transformer"}}).recurrent


def test_the_configuration_of_metabox():
    given = {"gamma": 0.999, "n_step": 10, "K_epochs": 3, "eps_clip": 0.1, "max_grad_norm": math.inf, "device": "cpu",
             "optimizer": "Adam", "learning_rates": [1e-5, 3e-5], "max_learning_step": None}  # fmt: skip
    assert settings_of(like="metabox", num_envs=4, **given) == {
        "lr": 1e-5, "lr_critic": 3e-5, "gamma": 0.999, "advantage": "n_step", "num_steps": 10, "num_minibatches": 1,
        "update_epochs": 3, "clip_coef": 0.1, "clip_coef_vf": 0.1, "ent_coef": 0.0, "vf_coef": 2.0,
        "max_grad_norm": None, "normalize_advantage": "none", "adam_eps": 1e-8, "normalize_observation": False,
        "normalize_value": False,
    }  # fmt: skip


def test_the_dictionaries_of_agilerl():
    given = {
        "BATCH_SIZE": 128, "LR": 3e-4, "LEARN_STEP": 2048, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "ACTION_STD_INIT": 0.6,
        "CLIP_COEF": 0.3, "ENT_COEF": 0.02, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "TARGET_KL": None,
        "UPDATE_EPOCHS": 6, "SHARE_ENCODERS": True, "NUM_ENVS": 16, "CHANNELS_LAST": False,
    }  # fmt: skip
    networks = {"latent_dim": 32, "encoder_config": {"hidden_size": [48]}, "head_config": {"hidden_size": [24]}}
    made = agent(like="agilerl", NET_CONFIG=networks, **given)
    assert (made.num_envs, made.architecture.latent_dim) == (16, 32)
    assert (made.architecture.encoder.hidden_size, made.architecture.head.hidden_size) == ((48,), (24,))
    found = {name: value for name, value in made.settings().items() if value != DEFAULTS[name] and name not in RECORDS}
    assert found == {
        "batch_size": 128, "lr": 3e-4, "action_std_init": 0.6, "clip_coef": 0.3, "clip_coef_vf": 0.3, "ent_coef": 0.02,
        "update_epochs": 6, "share_encoders": True, "advantage_ddof": 1, "bootstrap_truncated": False,
        "adam_eps": 1e-8, "normalize_observation": False, "normalize_value": False,
    }  # fmt: skip


def test_the_arguments_of_rlib():
    given = {
        "env_kwargs": {"id": "CartPole-v1", "sutton_barto_reward": True}, "num_envs": 10, "actor_kwargs": {},
        "critic_kwargs": {}, "num_steps_per_iter": 2048, "num_updates_per_iter": 10, "total_timesteps": 1_000_000,
        "test_every": 10_000, "num_test_agents": 10, "batch_size": 64, "discount": 0.98, "use_gae": False,
        "lambda_gae": 0.95, "policy_loss_clip": 0.1, "clip_value_loss": False, "value_loss_clip": 0.2,
        "value_loss_coef": 0.5, "entropy_loss_coef": 0.01, "max_grad_norm": 0.5, "learning_rate": 3e-4,
        "lr_annealing": True, "norm_advantages": True, "max_episode_length": -1, "max_total_reward": -1,
        "save_folder": "results", "normalize_observation": False, "seed": 42, "envs_wrappers": None,
    }  # fmt: skip
    made = Draft({"algorithm": {"like": "rlib", **given}}).validate()
    assert changed_settings(made.algorithm) == {
        "lr": 3e-4, "lr_schedule": "linear", "num_steps": 2048, "update_epochs": 10, "gamma": 0.98, "advantage": "mc",
        "clip_coef": 0.1, "clip_grads": "together", "normalize_advantage": "minibatch", "advantage_ddof": 1,
        "bootstrap_truncated": False, "normalize_observation": False, "normalize_value": False,
    }  # fmt: skip
    assert (made.environment.id, made.environment.kwargs) == ("CartPole-v1", {"sutton_barto_reward": True})
    assert (made.training.max_steps, made.training.evo_steps, made.training.eval_loop) == (1_000_000, 10_000, 10)
    assert (made.environment.num_envs, made.seed, str(made.run.dir)) == (10, 42, "results")
    assert made.environment.max_total_reward is None
    limited = Draft({"algorithm": {"like": "rlib", **given, "max_total_reward": 200}}).validate()
    assert limited.environment.max_total_reward == 200


@pytest.mark.parametrize("given", [{"num_agents": 30}, {"sigma": 0.1}], ids=str)
def test_settings_of_rlibs_evolution_strategy_are_not_those_of_ppo(given):
    ((name, value),) = given.items()
    message = f"{name}={value} is a setting of the evolution strategy of rlib; allowed are those of PPO, and"
    with pytest.raises(ConfigurationError, match=message):
        agent(like="rlib", **given)
    with pytest.raises(ConfigurationError, match=f"algorithm.{message}"):
        Draft({"algorithm": {"preset": "rlib", **given}}).validate()


def test_the_arguments_of_brax_and_isaac_lab():
    brax = {"learning_rate": 3e-4, "unroll_length": 5, "batch_size": 8, "num_minibatches": 4, "reward_scaling": 10}
    found = agent(like="brax", **brax)
    assert (found.learn_step, found.num_minibatches, found.batch_size) == (160, 4, PPOConfig.batch_size)
    assert dict(found.reward_transform) == {"scale": 10}
    adaptive = {"learning_rate_schedule": "ADAPTIVE_KL"}
    found = agent(like="brax", **adaptive)
    assert (found.kl_threshold, found.lr_min, found.lr_max) == (0.01, 1e-5, 1e-2)
    limits = {"desired_kl": 0.02, "learning_rate_schedule_min_lr": 1e-6, "learning_rate_schedule_max_lr": 1e-3}
    found = agent(like="brax", **adaptive, **limits)
    assert (found.kl_threshold, found.lr_min, found.lr_max) == (0.02, 1e-6, 1e-3)
    assert agent(like="brax", **limits).lr_min == PPOConfig.lr_min
    for flag in (True, False):
        assert agent(like="brax", bootstrap_on_timeout=flag).bootstrap_truncated is True
    assert agent(like="brax").bootstrap_truncated is True
    isaac = {"schedule": "adaptive", "desired_kl": 0.02, "clip_param": 0.3, "use_clipped_value_loss": False,
             "value_loss_coef": 0.5, "init_noise_std": 0.5, "actor_hidden_dims": [64, 32, 16],
             "critic_hidden_dims": [64, 64, 32], "activation": "elu"}  # fmt: skip
    found = agent(like="isaaclab", **isaac)
    assert (found.kl_threshold, found.lr_min, found.clip_coef, found.clip_coef_vf) == (0.02, 1e-5, 0.3, None)
    assert found.vf_coef == 1.0
    assert found.action_std_init == pytest.approx(math.log(0.5))
    networks = found.architecture.to_config()
    assert layers_of(networks) == [64, 32, 16]
    assert layers_of(networks["critic_config"]) == [64, 64, 32]


@pytest.mark.parametrize("actor", [True, False])
def test_actor_and_critic_of_isaac_lab_have_one_normaliser_of_observations(actor):
    given = {"actor_obs_normalization": actor, "critic_obs_normalization": actor}
    assert agent(like="isaaclab", **given).normalize_observation is actor
    for deprecated in (None, not actor):
        assert agent(like="isaaclab", empirical_normalization=deprecated, **given).normalize_observation is actor
    assert agent(like="isaaclab", empirical_normalization=actor).normalize_observation is actor
    assert agent(like="isaaclab", empirical_normalization=None).normalize_observation is False
    with pytest.raises(ConfigurationError, match="actor and critic are normalised alike here"):
        agent(like="isaaclab", **{**given, "critic_obs_normalization": not actor})


# -- networks


@pytest.mark.parametrize(
    ("system", "given", "layers"),
    [
        ("sb3", {"policy_kwargs": {"net_arch": [64, 64]}}, ([64, 64], [64, 64])),
        ("sb3", {"policy_kwargs": {"net_arch": [24]}}, ([24], [24])),
        ("sb3", {"policy_kwargs": {"net_arch": {"pi": [32, 16], "vf": [600, 64, 8]}}}, ([32, 16], [600, 64, 8])),
        ("dti", {"hidden_size": 48}, ([48, 48], [48, 48])),
        ("rlib", {"actor_kwargs": {"hidden_sizes": [64] * 2}, "critic_kwargs": {"hidden_sizes": [9]}}, ([64, 64], [9])),
    ],
    ids=str,
)  # fmt: skip
def test_networks_are_those_of_the_system_to_the_last_layer(system, given, layers):
    made = agent(like=system, **given)
    generator = torch.Generator().manual_seed(1)
    seen = torch.randn(7, 2, generator=generator)
    for network, sizes, outputs in ((made.actor, layers[0], 2), (made.critic, layers[1], 1)):
        own = [one for one in network.modules() if isinstance(one, Linear)]
        theirs = [torch.nn.Linear(before, after) for before, after in pairwise((2, *sizes, outputs))]
        assert [one.weight.shape for one in own] == [one.weight.shape for one in theirs]
        with torch.no_grad():
            for mine, its in zip(own, theirs, strict=True):
                mine.weight.copy_(its.weight)
                mine.bias.copy_(its.bias)
        chained = [module for layer in theirs for module in (layer, torch.nn.Tanh())][:-1]
        torch.testing.assert_close(network(seen), torch.nn.Sequential(*chained)(seen), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.Dict(v=BOX), gymnasium.spaces.Box(0, 255, (3, 32, 32), "uint8")], ids=["Dict", "image"]
)
def test_net_arch_is_behind_the_encoder_of_images_and_dictionaries(space):
    made = PPO(space, gymnasium.spaces.Discrete(2), like="sb3", policy_kwargs={"net_arch": [48, 24]})
    assert made.architecture.to_config()["head_config"]["hidden_size"] == [48, 24]


def test_networks_without_hidden_layers_cannot_be_converted():
    with pytest.raises(ConfigurationError, match="it has no hidden layers, and a network here has one at least"):
        agent(like="sb3", policy_kwargs={"net_arch": []})


def layers_of(config):
    """The sizes of the hidden layers of a network."""
    return [*config["encoder_config"]["hidden_size"], config["latent_dim"], *config["head_config"]["hidden_size"]]
