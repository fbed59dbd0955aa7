"""`agilerl-like convert`: files of other systems as YAML of this package, with what cannot be converted in a list."""

import gymnasium
import numpy as np
import pytest
import yaml

from agilerl_like import PPO
from agilerl_like.cli import main
from agilerl_like.config import Draft, load
from agilerl_like.config.foreign_files import convert_file, read_settings
from agilerl_like.errors import ConfigurationError
from agilerl_like.foreign_settings import convert

pytestmark = pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")

ZOO = """
atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
  n_envs: 8
  n_steps: 128
  n_epochs: 4
  batch_size: 256
  n_timesteps: !!float 1e7
  learning_rate: lin_2.5e-4
  clip_range: lin_0.1
  vf_coef: 0.5
  ent_coef: 0.01

HalfCheetah-v3: &mujoco
  normalize: "{'norm_obs': True, 'norm_reward': False}"
  n_envs: 1
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'
  batch_size: 64
  n_steps: 512
  vf_coef: 0.58
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU,
                       net_arch=[dict(pi=[256, 256, 64], vf=[256, 256, 64])])"

Ant-v3:
  <<: *mujoco
  gamma: 0.98
"""
AGILERL = """
INIT_HP:
    ENV_NAME: LunarLander-v3
    ALGO: PPO
    CHANNELS_LAST: false
    NUM_ENVS: 16
    BATCH_SIZE: 128
    LR: 0.0003
    LEARN_STEP: 2048
    MAX_STEPS: 2_000_000
    TARGET_SCORE: 250.
    CLIP_COEF: 0.1
    TARGET_KL:
    TOURN_SIZE: 3
    ELITISM: true
    POP_SIZE: 6
    EVO_STEPS: 10_240
    EVAL_LOOP: 1
MUTATION_PARAMS:
    NO_MUT: 0.4
    ARCH_MUT: 0.2
    NEW_LAYER: 0.3
    PARAMS_MUT: 0.1
    ACT_MUT: 0.0
    RL_HP_MUT: 0.2
    MUT_SD: 0.1
    RAND_SEED: 42
    MIN_LR: 0.0001
    MAX_LR: 0.01
    MIN_LEARN_STEP: 256
NET_CONFIG:
    latent_dim: 32
    encoder_config: {hidden_size: [48], activation: Tanh, layer_norm: true}
    head_config: {hidden_size: [24], output_activation: null}
"""
MANIFEST = """
algorithm: {name: PPO, lr: 0.001, batch_size: 64, clip_coef: 0.2}
environment: {name: CartPole-v1, num_envs: 8}
mutation: {probabilities: {no_mut: 0.5, rl_hp_mut: 0.5}, rl_hp_selection: {lr: {min: 0.0001, max: 0.01}}, rand_seed: 7}
training: {max_steps: 50000, evo_steps: 5000, pop_size: 4, name: mine}
tournament_selection: {tournament_size: 2, elitism: true}
"""
SKRL = """
seed: 42
models:
  separate: True
  policy: {class: GaussianMixin, initial_log_std: -1.0,
           network: [{name: net, input: STATES, layers: [64, 32, 16], activations: elu}], output: ACTIONS}
  value: {class: DeterministicMixin,
          network: [{name: net, input: STATES, layers: [64, 32, 16], activations: elu}], output: ONE}
memory: {class: RandomMemory, memory_size: -1}
agent:
  class: PPO
  rollouts: 16
  mini_batches: 8
  lambda: 0.9
  learning_rate: 3.0e-04
  learning_rate_scheduler: KLAdaptiveLR
  learning_rate_scheduler_kwargs: {kl_threshold: 0.01}
  state_preprocessor: RunningStandardScaler
  state_preprocessor_kwargs: null
  value_clip: 0.2
  clip_predicted_values: False
  value_loss_scale: 2.0
  rewards_shaper_scale: 0.1
  kl_threshold: 0.0
  experiment: {directory: cartpole, experiment_name: "", write_interval: auto, wandb: True}
trainer: {class: SequentialTrainer, timesteps: 2400, environment_info: log}
"""
SKRL_SCRIPT = """
import os
os.system("touch executed")
cfg = PPO_DEFAULT_CONFIG.copy()
cfg["rollouts"] = 2 * 512
cfg["learning_rate"] = 1e-3
cfg["learning_rate_scheduler"] = KLAdaptiveLR
cfg["value_preprocessor"] = RunningStandardScaler
cfg["value_preprocessor_kwargs"] = {"size": 1, "device": device}
cfg["discount_factor"] = discount()
cfg["experiment"]["write_interval"] = 500
agent = PPO(models=models, memory=memory, cfg=cfg)
"""
CLEANRL_SCRIPT = '''
@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)
    env_id: str = "CartPole-v1"
    """the id"""
    total_timesteps: int = 500000
    learning_rate: float = 2.5e-3
    num_envs: int = 4
    clip_vloss: bool = False
    target_kl: float = None
    batch_size: int = 0
'''
SB3_SCRIPT = """
model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, learning_rate=schedule(1e-3), vf_coef=0.25, verbose=1)
model.learn(total_timesteps=100_000)
"""
ISAACLAB_SCRIPT = """
@configclass
class Runner(RslRlOnPolicyRunnerCfg):
    num_steps_per_env = 16
    max_iterations = 150
    algorithm = RslRlPpoAlgorithmCfg(value_loss_coef=0.5, use_clipped_value_loss=True, clip_param=0.1, desired_kl=0.02)
"""


TWO_LAYERS = {
    "encoder_config": {"hidden_size": [64], "activation": "Tanh"},
    "latent_dim": 64,
    "head_config": {"hidden_size": [], "activation": "Tanh"},
}
"""The networks of SB3's MlpPolicy and of CleanRL's ppo.py."""


NATURE_CNN = {
    "encoder_config": {
        "channel_size": [32, 64, 64],
        "kernel_size": [8, 4, 3],
        "stride_size": [4, 2, 1],
        "activation": "ReLU",
    },
    "latent_dim": 512,
    "max_latent_dim": 512,
}


def converted(tmp_path, text, system, name="given.yaml", **options):
    (tmp_path / name).write_text(text)
    return convert_file(tmp_path / name, system, **options)


def settings(made):
    """The settings of the YAML that is printed."""
    made.check()
    return yaml.safe_load(made.to_yaml())


def test_an_entry_of_the_zoo(tmp_path):
    made = converted(tmp_path, ZOO, "sb3", entry="atari", env="ALE/Pong-v5")
    assert settings(made) == {
        "environment": {
            "id": "ALE/Pong-v5",
            "num_envs": 8,
            "wrappers": [
                "stable_baselines3.common.atari_wrappers:AtariWrapper",
                {"name": "FrameStackObservation", "stack_size": 4, "padding_type": "zero"},
                "agilerl_like.envs.observation_wrappers:ConcatenateFrames",
            ],
        },
        "network": {**NATURE_CNN, "head_config": {"hidden_size": []}},
        "algorithm": {
            "preset": "sb3", "share_encoders": True, "num_steps": 128, "update_epochs": 4, "batch_size": 256,
            "lr": 2.5e-4, "lr_schedule": "linear", "clip_coef": 0.1, "schedules": {"clip_coef": "linear"},
            "vf_coef": 1.0, "ent_coef": 0.01,
        },
        "training": {"max_steps": 10_000_000},
    }  # fmt: skip
    assert "vf_coef: 1.0  # vf_coef=0.5; here it weighs half the squared error: 2 x vf_coef" in made.to_yaml()
    assert {*made.conversion.left_out} == {"frame_stack=4"}


def test_layers_of_a_cnn_policy_are_behind_its_convolutions(tmp_path):
    """In Stable-Baselines3 net_arch begins behind the 512 features of NatureCNN, whose activation is always ReLU."""
    text = """
    policy: CnnPolicy
    env_wrapper:
      - gymnasium.wrappers.resize_observation.ResizeObservation: {shape: 64}
      - gymnasium.wrappers.gray_scale_observation.GrayScaleObservation: {keep_dim: true}
    frame_stack: 2
    policy_kwargs: "dict(activation_fn=nn.GELU, net_arch=dict(pi=[256], vf=[128, 32]), share_features_extractor=False)"
    """
    found = settings(converted(tmp_path, text, "sb3"))
    assert found["network"] == {
        **NATURE_CNN,
        "head_config": {"activation": "GELU", "hidden_size": [256]},
        "critic_config": {"head_config": {"hidden_size": [128, 32]}},
    }
    assert found["algorithm"]["share_encoders"] is False
    kwargs = [one for one in found["environment"]["wrappers"] if isinstance(one, dict)]
    assert kwargs[:2] == [
        {"name": "ResizeObservation", "shape": [64, 64]},
        {"name": "GrayscaleObservation", "keep_dim": True},
    ]
    spaces = gymnasium.spaces.Box(0, 255, (64, 64, 2), np.uint8), gymnasium.spaces.Discrete(3)
    agent = PPO.population(1, *spaces, preset="sb3", net_config=found["network"], share_encoders=False)[0]
    convolutions = (2 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64
    layers = (64 * 4 * 4 + 1) * 512 + (512 + 1) * 256 + (256 + 1) * 3
    assert sum(parameter.numel() for parameter in agent.network.actor.parameters()) == convolutions + layers


def test_layers_of_a_multi_input_policy_are_behind_its_encoder(tmp_path):
    text = "policy: MultiInputPolicy\npolicy_kwargs: {net_arch: [64, 32]}\n"
    found = settings(converted(tmp_path, text, "sb3"))["network"]
    assert found == {"head_config": {"activation": "Tanh", "hidden_size": [64, 32]}}


def test_layers_of_an_lstm_policy_are_behind_its_memory(tmp_path):
    """In sb3-contrib the LSTM reads the observation, and net_arch the LSTM's output."""
    options = "{net_arch: [64, 32], lstm_hidden_size: 128, n_lstm_layers: 2, enable_critic_lstm: true}"
    made = converted(tmp_path, f"policy: MlpLstmPolicy\npolicy_kwargs: {options}\n", "sb3")
    assert settings(made)["network"] == {
        "head_config": {"activation": "Tanh", "hidden_size": [64, 32]},
        "memory_config": {"hidden_state_size": 128, "num_layers": 2},
    }
    assert made.conversion.refused == {}
    spaces = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    for size in (8, 600):  # beyond the default limits of mutations
        agent = PPO(*spaces, like="sb3", policy="MlpLstmPolicy", policy_kwargs={"lstm_hidden_size": size})
        assert agent.get_initial_hidden_state()["actor"].shape == (1, 2, size)


def test_the_rest_of_the_networks_is_converted_where_an_option_has_no_equivalent(tmp_path):
    options = "{shared_lstm: true, enable_critic_lstm: false, net_arch: [64]}"
    made = converted(tmp_path, f"policy: MlpLstmPolicy\npolicy_kwargs: {options}\n", "sb3")
    assert settings(made)["network"] == {"head_config": {"activation": "Tanh", "hidden_size": [64]}}
    why = "shared_lstm, enable_critic_lstm has no equivalent; give the networks in `network`"
    assert [*made.conversion.refused.values()] == [why]


def test_an_entry_with_networks_and_what_cannot_be_converted(tmp_path):
    made = converted(tmp_path, ZOO, "sb3", entry="Ant-v3")
    found = settings(made)
    assert found["environment"] == {"num_envs": 1, "id": "Ant-v3"}
    assert (found["algorithm"]["gamma"], found["algorithm"]["action_std_init"]) == (0.98, -2)
    assert found["algorithm"]["normalize_observation"] is True
    assert "normalize_reward" not in found["algorithm"]
    assert found["network"]["encoder_config"] == {"init_layers": False, "activation": "ReLU", "hidden_size": [256]}
    assert (found["network"]["latent_dim"], found["network"]["head_config"]["hidden_size"]) == (256, [64])
    assert made.conversion.refused == {"use_sde=True": "state-dependent exploration noise is absent here"}
    assert "# not converted:\n#   use_sde=True: state-dependent exploration noise is absent here\n" in made.to_yaml()


def test_the_dictionaries_of_agilerl(tmp_path):
    made = converted(tmp_path, AGILERL, "agilerl")
    assert settings(made) == {
        "environment": {"id": "LunarLander-v3", "num_envs": 16},
        "algorithm": {
            "preset": "agilerl", "swap_channels": False, "batch_size": 128, "lr": 3e-4, "learn_step": 2048,
            "clip_coef": 0.1, "clip_coef_vf": 0.1,
        },
        "network": {
            "latent_dim": 32,
            "encoder_config": {"hidden_size": [48], "activation": "Tanh", "layer_norm": True},
            "head_config": {"hidden_size": [24], "layer_norm": True},
        },
        "population": {"size": 6, "sample_hyperparameters": False},
        "hyperparameters": {"lr": {"min": 1e-4, "max": 1e-2}},
        "selection": {"tournament_size": 3, "elitism": True},
        "mutation": {
            "no_mutation": 0.4, "architecture": 0.2, "new_layer_prob": 0.3, "parameters": 0.1, "activation": 0.0,
            "rl_hp": 0.2, "mutation_sd": 0.1,
        },
        "training": {"max_steps": 2_000_000, "target": 250.0, "evo_steps": 10_240, "eval_loop": 1},
        "seed": 42,
    }  # fmt: skip
    assert made.conversion.refused == {"range of learn_step": "it has only min"}


def test_a_manifest_of_agilerl(tmp_path):
    found = settings(converted(tmp_path, MANIFEST, "agilerl"))
    assert found["environment"] == {"id": "CartPole-v1", "num_envs": 8}
    usual = {"architecture": 0.2, "new_layer_prob": 0.2, "parameters": 0.2, "activation": 0.0}  # AgileRL's
    assert found["mutation"] == {"no_mutation": 0.5, "rl_hp": 0.5, **usual}
    assert found["hyperparameters"] == {"lr": {"min": 1e-4, "max": 1e-2}}
    assert (found["seed"], found["training"]["evo_steps"]) == (7, 5000)
    assert found["population"] == {"size": 4, "sample_hyperparameters": False}  # all begin with the same values


HEAD = "algorithm: {name: %s, lr: 0.01}\nenvironment: {name: CartPole-v1, num_envs: 4}\n"
EVOLVES = "tournament_selection: {tournament_size: 2}\ntraining: {pop_size: 4}\nmutation:\n"


def test_limits_of_mutations_in_a_manifest_are_those_of_the_network(tmp_path):
    limits = "  network: {max_latent_dim: 99, encoder: {max_mlp_nodes: 260}, head_net: {max_hidden_layers: 2}}\n"
    network = "network: {latent_dim: 64, encoder_config: {hidden_size: [256, 256]}, head_config: {hidden_size: [64]}}\n"
    made = converted(tmp_path, HEAD % "PPO" + EVOLVES + limits + network, "agilerl")
    assert settings(made)["network"] == {
        "latent_dim": 64,
        "max_latent_dim": 99,
        "encoder_config": {"hidden_size": [256, 256], "max_mlp_nodes": 260, "layer_norm": True},
        "head_config": {"hidden_size": [64], "max_hidden_layers": 2, "layer_norm": True},
    }
    assert made.conversion.refused == {}


def test_kinds_of_encoders_in_a_manifest(tmp_path):
    head = "head_config: {arch: mlp, hidden_size: [8], layer_norm: false}"
    simba = f"network: {{arch: simba, random_seed: 3, encoder_config: {{hidden_size: 64, num_blocks: 2}}, {head}}}\n"
    made = converted(tmp_path, HEAD % "PPO" + simba, "agilerl")
    assert settings(made)["network"] == {
        "latent_dim": 128,  # AgileRL's default beside arch
        "simba": True,
        "encoder_config": {"hidden_size": 64, "num_blocks": 2},
        "head_config": {"hidden_size": [8], "min_mlp_nodes": 8, "layer_norm": False},
    }
    assert [*made.conversion.refused.values()] == ["random_seed has no equivalent"]
    config = "{channel_size: [8], kernel_size: [3], stride_size: [1], hidden_state_size: 16, arch: cnn_lstm}"
    made = converted(tmp_path, HEAD % "RecurrentPPO" + f"network: {{encoder_config: {config}}}\n", "agilerl")
    assert settings(made)["network"]["encoder_config"]["hidden_state_size"] == 16


def test_networks_by_agent_are_those_of_its_group(tmp_path):
    network = "network: {encoder_config: {speaker_0: {hidden_size: [64]}, listener_0: {hidden_size: [32]}}}\n"
    made = converted(tmp_path, HEAD % "IPPO" + network, "agilerl")
    found = settings(made)["network"]
    assert found["latent_dim"] == 32  # AgileRL's default of a manifest's network
    groups = found["groups"]
    assert {name: its["encoder_config"]["hidden_size"] for name, its in groups.items()} == {
        "speaker": [64],
        "listener": [32],
    }


@pytest.mark.parametrize("name", ["RecurrentPPO", "Recurrent PPO"])
def test_recurrent_ppo_of_agilerl_has_its_own_defaults(tmp_path, name):
    found = settings(converted(tmp_path, HEAD % name, "agilerl"))["algorithm"]
    assert (found["recurrent"], found["learn_step"], found["bptt_sequence_type"]) == (True, 8192, "chunked")
    found = settings(converted(tmp_path, f"INIT_HP: {{ALGO: {name}, LEARN_STEP: 64}}", "agilerl"))["algorithm"]
    assert (found["recurrent"], found["learn_step"]) == (True, 64)


def test_a_manifest_has_the_defaults_of_agilerl_beside_the_algorithm(tmp_path):
    made = converted(tmp_path, HEAD % "PPO", "agilerl")
    found = settings(made)
    assert found["mutation"] is None
    assert found["population"] == {"size": 1}
    assert found["training"] == {"max_steps": 1_000_000, "evo_steps": 10_000, "eval_loop": 1}
    head = {"hidden_size": [64], "layer_norm": True}
    encoder = {"hidden_size": [64, 64], "layer_norm": True}
    assert found["network"] == {"encoder_config": encoder, "head_config": head}
    assert "agilerl) in algorithm, and else this package's defaults\n" in made.to_yaml()
    found = settings(converted(tmp_path, HEAD % "PPO" + EVOLVES + "  rand_seed: 1\n", "agilerl"))
    assert found["hyperparameters"] == {
        "lr": {"min": 1e-3, "max": 0.1},
        "batch_size": {"min": 16, "max": 256, "shrink_factor": 0.75, "grow_factor": 1.5},
        "learn_step": {"min": 1024, "max": 16384, "shrink_factor": 0.75, "grow_factor": 1.5},
    }


def test_ranges_of_a_list_of_names_and_around_the_given_value(tmp_path):
    init = "INIT_HP: {LR: 0.1, POP_SIZE: 4}\n"
    text = "MUTATION_PARAMS: {RL_HP_SELECTION: [lr], MIN_LR: 1.0e-3, MAX_LR: 1.0e-2, MIN_GAMMA: 0.9, MAX_GAMMA: 0.99}"
    made = converted(tmp_path, init + text, "agilerl")
    assert settings(made)["hyperparameters"] == {"lr": {"min": 1e-3, "max": 0.1}}
    assert "wider here, to contain the value that members begin with" in made.to_yaml()


def test_ranges_of_a_script_of_agilerl_contain_the_values_of_the_preset(tmp_path):
    ranges = ", hp_config=HyperparameterConfig(lr=RLParameter(min=1e-3, max=1e-2))"
    script = SHORT_SCRIPT.replace(", lr=1e-3", "") % (ranges, ", tournament=tournament, mutation=mutations")
    made = converted(tmp_path, script, "agilerl", name="train.py")
    assert settings(made)["hyperparameters"]["lr"] == {"min": 1e-4, "max": 1e-2}
    assert "min: 0.0001  #" in made.to_yaml()
    made.check()
    short = SHORT_SCRIPT % (", learn_step=8", ", tournament=tournament, mutation=mutations")
    made = converted(tmp_path, short, "agilerl", name="train.py")
    assert settings(made)["hyperparameters"]["batch_size"]["min"] == 8  # a rollout has no larger minibatches
    made.check()


def test_a_single_member_of_agilerl_does_not_evolve(tmp_path):
    made = converted(tmp_path, "INIT_HP: {POP_SIZE: 1, TOURN_SIZE: 2}\nMUTATION_PARAMS: {NO_MUT: 0.4}", "agilerl")
    assert settings(made)["mutation"] is None
    assert made.conversion.left_out["NO_MUT"] == "it has no effect, since nothing evolves"


AGILERL_SCRIPT = """
INIT_HP = {"POP_SIZE": 4, "LR": 1e-3, "ENT_COEF": 0.02}
env = make_vect_envs("Acrobot-v1", num_envs=16)
ranges = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2), learn_step=RLParameter(64, 8192, dtype=int))
pop = PPO.population(size=INIT_HP["POP_SIZE"], observation_space=space, lr=INIT_HP["LR"], hp_config=ranges, vf_coef=0.7)
tournament = TournamentSelection(3, elitism=True, population_size=4)
mutations = Mutations(0.4, 0.9, 0.2, 0.2, activation=0, rl_hp=0.3, device=device)
evolution = dict(tournament=tournament, mutation=mutations)
train_on_policy(env=env, pop=pop, max_steps=200_000, evo_steps=steps, target=-100.0, save_elite=True, **evolution)
"""
SHORT_SCRIPT = """
pop = PPO.population(4, space, actions, lr=1e-3%s)
tournament, mutations = TournamentSelection(2, True, 4), Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2)
train_on_policy(env=env, pop=pop, max_steps=5000%s)
"""


def test_the_calls_of_a_script_of_agilerl(tmp_path):
    made = converted(tmp_path, AGILERL_SCRIPT, "agilerl", name="train.py")
    found = settings(made)
    assert found["environment"] == {"id": "Acrobot-v1", "num_envs": 16}
    assert found["algorithm"] == {"preset": "agilerl", "lr": 1e-3, "ent_coef": 0.02, "vf_coef": 0.7}
    assert found["hyperparameters"] == {"lr": {"min": 1e-4, "max": 1e-2}, "learn_step": {"min": 64, "max": 8192}}
    assert found["population"]["size"] == 4
    assert found["selection"] == {"tournament_size": 3, "elitism": True}
    assert (found["mutation"]["architecture"], found["mutation"]["rl_hp"]) == (0.9, 0.3)
    assert found["training"] == {"max_steps": 200_000, "target": -100.0}
    assert {*made.conversion.refused} == {"evo_steps=steps", "save_elite=True", "run.device=device"}


@pytest.mark.parametrize("evolution", ["", ", tournament=tournament", ", tournament=None, mutation=mutations"])
def test_a_script_of_agilerl_without_selection_and_mutation_does_not_evolve(tmp_path, evolution):
    made = converted(tmp_path, SHORT_SCRIPT % ("", evolution), "agilerl", name="train.py")
    found = settings(made)
    assert found["mutation"] is None
    assert not {"selection", "hyperparameters"} & found.keys()
    assert made.conversion.left_out["tournament_size"] == "it has no effect, since nothing evolves"


@pytest.mark.parametrize("selection", ["tournament", "selection_strategy"])
def test_a_script_of_agilerl_has_the_defaults_of_its_calls(tmp_path, selection):
    evolution = f", {selection}=tournament, mutation=mutations"
    found = settings(converted(tmp_path, SHORT_SCRIPT % ("", evolution), "agilerl", name="train.py"))
    assert found["hyperparameters"]["lr"] == {"min": 1e-4, "max": 1e-2}
    assert found["hyperparameters"].keys() == {"lr", "batch_size", "learn_step"}
    assert found["training"] == {"max_steps": 5000, "evo_steps": 5000, "eval_loop": 1}
    assert found["population"] == {"size": 4, "sample_hyperparameters": False}
    elsewhere = SHORT_SCRIPT % (", hp_config=ranges", evolution)
    assert "hyperparameters" not in settings(converted(tmp_path, elsewhere, "agilerl", name="train.py"))
    text = "train_multi_agent_on_policy(env=env, pop=pop, evo_steps=500)"
    found = settings(converted(tmp_path, text, "agilerl", name="train.py"))
    assert found["training"] == {"max_steps": 50_000, "evo_steps": 500, "eval_loop": 1}


def test_a_script_of_agilerl_with_net_config_none_has_the_default_networks(tmp_path):
    made = converted(tmp_path, SHORT_SCRIPT % (", net_config=None", ""), "agilerl", name="train.py")
    assert made.conversion.refused == {}
    assert settings(made)["network"]["encoder_config"]["hidden_size"] == [64, 64]


def test_create_population_of_agilerl_has_a_rollout_of_its_own(tmp_path):
    def learn_step(init_hp, algo="PPO"):
        text = f'pop = create_population(algo="{algo}", INIT_HP={init_hp}, population_size=4)'
        return settings(converted(tmp_path, text, "agilerl", name="train.py"))["algorithm"].get("learn_step")

    assert learn_step('{"LR": 0.01}') == 2048
    assert learn_step('{"LEARN_STEP": 512}') == 512
    assert learn_step('config["INIT_HP"]') is None  # it may have LEARN_STEP
    assert learn_step('{"LR": 0.01}', algo="RecurrentPPO") == 8192


def test_a_file_of_skrl(tmp_path):
    made = converted(tmp_path, SKRL, "skrl", env="CartPole-v1", num_envs=32)
    assert settings(made) == {
        "environment": {"id": "CartPole-v1", "num_envs": 32},
        "algorithm": {
            "preset": "skrl", "share_encoders": False, "action_std_init": -1.0, "num_steps": 16, "num_minibatches": 8,
            "gae_lambda": 0.9, "lr": 3e-4, "lr_schedule": "kl", "kl_threshold": 0.01, "normalize_observation": True,
            "clip_coef_vf": None, "vf_coef": 4.0, "reward_transform": {"scale": 0.1}, "target_kl": None,
        },
        "network": {
            "encoder_config": {"hidden_size": [64], "activation": "ELU"},
            "latent_dim": 32,
            "head_config": {"hidden_size": [16], "activation": "ELU"},
        },
        "training": {"max_steps": 2400 * 32},
        "run": {"dir": "cartpole", "wandb": True},
        "seed": 42,
    }  # fmt: skip
    assert made.conversion.refused == {}
    assert "dir: cartpole  # experiment; here it is its directory; its intervals are training." in made.to_yaml()
    named = converted(tmp_path, SKRL.replace('experiment_name: ""', "experiment_name: first"), "skrl", num_envs=32)
    assert settings(named)["run"] == {"dir": "cartpole", "name": "first", "wandb": True}
    assert "#   clip_actions: continuous actions reach the environment as they are, or are clipped " in made.to_yaml()
    made = converted(tmp_path, SKRL, "skrl")
    assert "num_envs is not given" in made.conversion.refused["timesteps=2400"]
    assert "# environment.id is not in the file: add it, or convert with --env ID" in made.to_yaml()


@pytest.mark.parametrize(
    ("parts", "deviation"),
    [
        ("min_log_std: -5.0, max_log_std: 1.0", (-1.0, -5.0, 1.0)),
        ("min_log_std: -5.0, clip_log_std: false", (-1.0, None, None)),
        ("fixed_log_std: true, clip_actions: false", (-1.0, -1.0, -1.0)),
        ("fixed_log_std: true, min_log_std: -0.5", (-0.5, -0.5, -0.5)),
    ],
)
def test_the_standard_deviation_of_skrls_policy(tmp_path, parts, deviation):
    """A fixed one has equal bounds here, between which it is clamped after each update."""
    made = converted(tmp_path, SKRL.replace("GaussianMixin,", f"GaussianMixin, {parts},"), "skrl", env="Pendulum-v1")
    found = settings(made)["algorithm"]
    assert tuple(found.get(f"action_std_{end}") for end in ("init", "min", "max")) == deviation
    assert {*made.conversion.refused} == {"timesteps=2400"}


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("multi_agents", "MAPPO", {"name": "IPPO", "critic_observation": "state"}),
        ("multi_agents", "IPPO", {"name": "IPPO"}),
        ("agents", "PPO_RNN", {"recurrent": True}),
    ],
)
def test_the_agent_of_a_script_of_skrl(tmp_path, module, name, found):
    head = f"from skrl.{module}.torch.{name.lower()} import {name}\n"
    script = f"{head}cfg = {{}}\ncfg['rollouts'] = 16\nagent = {name}(cfg=cfg)\n"
    for text, form in ((script, "given.py"), (f"agent: {{class: {name}, rollouts: 16}}", "given.yaml")):
        made = converted(tmp_path, text, "skrl", name=form)
        assert made.data["algorithm"] == {"preset": "skrl", "num_steps": 16, **found}
        assert made.conversion.refused == {}
        assert "PPO is assumed" not in made.to_yaml()


def test_parts_of_skrls_models_without_an_equivalent_are_listed(tmp_path):
    made = converted(tmp_path, SKRL.replace("output: ACTIONS", "output: tanh(ACTIONS)"), "skrl")
    assert "policy.output='tanh(ACTIONS)' has no equivalent" in made.conversion.refused.values()
    assert settings(made)["network"]["latent_dim"] == 32


def test_a_script_is_read_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = converted(tmp_path, SKRL_SCRIPT, "skrl", name="script.py")
    assert settings(made) == {
        "algorithm": {
            "preset": "skrl", "num_steps": 1024, "lr": 1e-3, "lr_schedule": "kl", "normalize_value": True,
        }
    }  # fmt: skip
    assert not (tmp_path / "executed").exists()
    why = "it is an expression, and code is not executed"
    assert made.conversion.refused == {"discount_factor=discount()": why, "models=models": why}


def test_models_that_a_script_sets_one_by_one_are_listed_as_not_convertible(tmp_path):
    text = 'models = {}\nmodels["policy"] = Shared(env)\nmodels["value"] = models["policy"]\n'
    made = converted(tmp_path, text + SKRL_SCRIPT, "skrl", name="script.py")
    assert "it is not the section of a YAML file; give `network`" in made.conversion.refused.values()
    assert settings(made)["algorithm"]["num_steps"] == 1024


@pytest.mark.parametrize(
    ("system", "given", "why"),
    [
        ("sb3", {"policy_kwargs": {"net_arch": {"pi": [64], "vf": 64}}}, "64 is not a list of the sizes"),
        ("isaaclab", {"actor_hidden_dims": [128], "critic_hidden_dims": 128}, "128 is not a list of the sizes"),
        ("skrl", {"models": {"policy": "MyPolicy"}}, "it is not the section of a YAML file"),
        ("skrl", {"models": {"policy": {"network": 5}}}, "its form is unknown"),
        ("skrl", {"learning_rate_scheduler": []}, "its form is unknown"),
        ("rlib", {"actor_kwargs": 5}, "its form is unknown"),
        ("sb3", {"env_wrapper": {"a": 1}}, "its form is unknown"),
        ("sb3", {"n_timesteps": 10**400}, "its form is unknown"),
        ("sb3", {"clip_range_vf": "lin_0.2"}, "a schedule; clip_coef_vf is constant here"),
        ("agilerl", {"rl_hp_selection": {"lr": 1e-4}}, "lr=0.0001, and a range is {min: …, max: …}"),
        ("skrl", {"timesteps": 16, "num_envs": {"a": 1}}, "it is not a number"),
    ],
)
def test_a_value_of_another_form_is_not_convertible(system, given, why):
    found = convert(system, given)
    assert any(reason.startswith(why) for reason in found.refused.values()), found.refused


def test_the_arguments_of_cleanrl_as_a_command_and_as_a_script(tmp_path):
    options = "--env-id CartPole-v1 --num-envs 8 --no-anneal-lr \\\n --learning-rate=1e-3 --clip-coef 0.1 --track"
    command = f"python ppo.py {options}"
    made = converted(tmp_path, command, "cleanrl", name="command.sh")
    assert settings(made) == {
        "environment": {"id": "CartPole-v1", "num_envs": 8},
        "algorithm": {"preset": "cleanrl", "lr_schedule": None, "lr": 1e-3, "clip_coef": 0.1, "clip_coef_vf": 0.1},
        "network": TWO_LAYERS,
        "run": {"wandb": True},
    }
    made = converted(tmp_path, CLEANRL_SCRIPT, "cleanrl", name="ppo.py")
    assert settings(made) == {
        "environment": {"id": "CartPole-v1", "num_envs": 4},
        "algorithm": {"preset": "cleanrl", "lr": 2.5e-3, "clip_coef_vf": None, "target_kl": None},
        "network": TWO_LAYERS,
        "training": {"max_steps": 500_000},
    }
    assert made.conversion.refused == {}


def test_the_call_of_an_algorithm_in_a_script(tmp_path):
    made = converted(tmp_path, SB3_SCRIPT, "sb3", name="train.py")
    algorithm = {"preset": "sb3", "num_steps": 256, "batch_size": 64, "vf_coef": 0.5}
    training = {"max_steps": 100_000}
    assert settings(made) == {"algorithm": algorithm, "network": TWO_LAYERS, "training": training}
    assert made.conversion.refused == {"learning_rate=schedule(0.001)": "it is an expression, and code is not executed"}
    made = converted(tmp_path, ISAACLAB_SCRIPT, "isaaclab", name="runner.py", num_envs=10)
    assert settings(made)["algorithm"] == {
        "preset": "isaaclab", "num_steps": 16, "vf_coef": 1.0, "clip_coef": 0.1, "clip_coef_vf": 0.1,
        "kl_threshold": 0.02,
    }  # fmt: skip
    assert settings(made)["training"] == {"max_steps": 150 * 16 * 10}


WHOLE_SCRIPT = """
from stable_baselines3 import PPO
NUM_ENVS = 8
env = make_vec_env("Pendulum-v1", n_envs=NUM_ENVS)
env = VecNormalize(env, norm_obs=True, norm_reward=True, clip_obs=5.0)
kw = dict(net_arch=[32, 32])
model = PPO("MlpPolicy", env, n_steps=2048 // NUM_ENVS, gamma=0.9, policy_kwargs=kw, verbose=1)
model.learn(100_000, callback=EvalCallback(make_vec_env("Pendulum-v1", n_envs=1)))
"""


def test_the_envs_and_the_steps_of_a_whole_script(tmp_path):
    made = converted(tmp_path, WHOLE_SCRIPT, "sb3", name="train.py")
    found = settings(made)
    assert found["environment"] == {"id": "Pendulum-v1", "num_envs": 8}
    assert found["training"] == {"max_steps": 100_000}
    normalised = {"normalize_observation": True, "observation_clip": 5.0, "normalize_reward": True, "reward_clip": 10.0}
    assert found["algorithm"] == {"preset": "sb3", "num_steps": 256, "gamma": 0.9, **normalised}
    assert found["network"]["encoder_config"]["hidden_size"] == [32]
    assert made.conversion.refused == {"n_envs=1": "the file has another value of that name, too"}
    assert " is not in the file" not in made.to_yaml()
    recurrent = 'model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=64)'
    assert settings(converted(tmp_path, recurrent, "sb3", name="lstm.py"))["algorithm"]["recurrent"] is True
    rewards = settings(converted(tmp_path, WHOLE_SCRIPT.replace("norm_obs=True", "norm_obs=False"), "sb3", name="r.py"))
    assert rewards["algorithm"]["normalize_observation"] is False
    assert "observation_clip" not in rewards["algorithm"]
    for env in ('"CartPole-v1"', 'env="CartPole-v1"'):
        short = converted(tmp_path, f'model = PPO("MlpPolicy", {env}).learn(1000)', "sb3", name="short.py")
        assert settings(short)["environment"] == {"id": "CartPole-v1"}
        assert short.conversion.refused == {}


MADE = 'make_vec_env("Acrobot-v1", n_envs=4)'


@pytest.mark.parametrize(
    "lines",
    [
        ["envs = " + MADE, "env = VecNormalize(envs)", 'model = PPO("MlpPolicy", env, n_steps=512)'],
        ["self.env = " + MADE, 'model = PPO(policy="MlpPolicy", env=self.env)'],
        ["def made():", "    return " + MADE, 'model = PPO("MlpPolicy", made())'],
        ['model = PPO("MlpPolicy", ' + MADE + ")"],
    ],
    ids=["wrapped", "attribute", "function", "argument"],
)
@pytest.mark.parametrize("in_function", [True, False])
def test_the_environment_of_a_script_is_that_of_its_model(tmp_path, lines, in_function):
    head, indent = ("def main():\n", "    ") if in_function else ("", "")
    evaluation = 'eval_env = make_vec_env("CartPole-v1", n_envs=1)\n'
    text = evaluation + head + "".join(f"{indent}{line}\n" for line in lines)
    made = converted(tmp_path, text, "sb3", name="train.py")
    assert made.data["environment"] == {"id": "Acrobot-v1", "num_envs": 4}
    assert {*made.conversion.refused} == {"n_envs=1", "env_id='CartPole-v1'"}


def test_a_script_without_an_environment_for_its_model_has_the_first_one(tmp_path):
    text = 'def main():\n    env = make_vec_env("Acrobot-v1")\nother = make_vec_env("CartPole-v1")\nmodel = PPO()\n'
    made = converted(tmp_path, text, "sb3", name="train.py")
    assert made.data["environment"] == {"id": "Acrobot-v1"}


@pytest.mark.parametrize("system", ["sb3", "agilerl", "cleanrl"])
@pytest.mark.parametrize("env_id", ['"FrozenLake-v1"', 'id="FrozenLake-v1"'])
def test_the_arguments_of_make_are_those_of_the_environment(tmp_path, system, env_id):
    """Names of settings among them, such as `max_steps`, are no settings of the other system."""
    text = (
        f"env = gym.make({env_id}, is_slippery=False, max_steps=9, render_mode=None)\nPPO('MlpPolicy', env, gamma=0.9)"
    )
    made = converted(tmp_path, text, system, name="train.py")
    arguments = {"is_slippery": False, "max_steps": 9}
    assert settings(made)["environment"] == {"id": "FrozenLake-v1", "kwargs": arguments}
    assert made.data["algorithm"]["gamma"] == 0.9
    assert "training" not in made.data


def test_arguments_that_make_unpacks_are_listed(tmp_path):
    text = 'env = gym.make("FrozenLake-v1", **options)\nmodel = PPO("MlpPolicy", env, gamma=0.9)'
    made = converted(tmp_path, text, "sb3", name="train.py")
    assert made.data["environment"] == {"id": "FrozenLake-v1"}
    assert made.conversion.refused == {"env_kwargs=**options": "it is an expression, and code is not executed"}


@pytest.mark.parametrize(
    ("system", "training"),
    [
        ("sb3", 'env = gym.make("CartPole-v1")\nmodel = PPO("MlpPolicy", env, gamma=0.9)'),
        ("sb3", 'model = PPO("MlpPolicy", "CartPole-v1", gamma=0.9)'),
        ("agilerl", 'env = make_vect_envs("CartPole-v1")\nagent = PPO(observation_space, action_space, gamma=0.9)'),
    ],
)
def test_the_arguments_of_an_evaluation_environment_are_listed(tmp_path, system, training):
    text = f'{training}\neval_env = gym.make("CartPole-v1", max_episode_steps=9)'
    made = converted(tmp_path, text, system, name="train.py")
    assert made.data["environment"] == {"id": "CartPole-v1"}
    assert "env_kwargs={'max_episode_steps': 9}" in made.conversion.refused


def test_arguments_of_vector_environments_without_an_equivalent_are_listed(tmp_path):
    text = """
env = make_vec_env("Pendulum-v1", 4, 0, wrapper_class=lambda env: Own(env), vec_env_cls=SubprocVecEnv)
env = VecNormalize(env, clip_obs=5.0, gamma=0.95, epsilon=1e-8, norm_obs_keys=None)
model = PPO("MlpPolicy", env, gamma=0.9)
"""
    made = converted(tmp_path, text, "sb3", name="train.py")
    found = settings(made)
    assert found["environment"] == {"id": "Pendulum-v1", "num_envs": 4}
    assert (found["algorithm"]["observation_clip"], found["algorithm"]["normalize_reward"]) == (5.0, True)
    assert "seed" not in found
    wrapper, normalize = made.conversion.refused.items()
    assert wrapper == ("wrapper_class=lambda env: Own(env)", "it is an expression, and code is not executed")
    assert normalize[1] == "gamma has no equivalent"
    assert "vec_env_cls='SubprocVecEnv'" in made.conversion.left_out
    same = converted(tmp_path, text.replace("0.95", "0.9").replace("lambda env: Own(env)", "Own"), "sb3", name="own.py")
    assert {*same.conversion.refused} == {"wrapper_class='Own'"}


@pytest.mark.parametrize(
    ("text", "system", "name", "message"),
    [
        (
            "CartPole-v1: {policy: MlpPolicy, n_timesteps: 5, buffer_size: 9}",
            "sb3",
            "dqn.yml",
            "has buffer_size=9, and",
        ),
        (
            'model = DQN("MlpPolicy", env, gamma=0.9)',
            "sb3",
            "dqn.py",
            "dqn.py': the script makes DQN, and only PPO",
        ),
        ("INIT_HP: {ALGO: DQN, LR: 0.1}", "agilerl", "dqn.yaml", "has ALGO='DQN', and only settings of PPO are conv"),
        ("algorithm: {name: DQN, lr: 0.1}", "agilerl", "given.yaml", "has algorithm.name='DQN', and only settings"),
        ("agent: {class: SAC, learning_rate: 0.1}", "skrl", "given.yaml", "has class='SAC', and only settings"),
    ],
)
def test_settings_of_another_algorithm_are_refused(tmp_path, text, system, name, message):
    with pytest.raises(ConfigurationError, match=message):
        converted(tmp_path, text, system, name=name)


@pytest.mark.parametrize("name", ["sac.yml", "rl_zoo_A2C.yaml"])
def test_a_file_named_after_another_algorithm_is_refused(tmp_path, name):
    text = "Pendulum-v1: {policy: MlpPolicy, n_timesteps: 20000, learning_rate: 0.001}"
    with pytest.raises(ConfigurationError, match=f"file='{name}' is named after (SAC|A2C), and only settings of PPO"):
        converted(tmp_path, text, "sb3", name=name)
    with pytest.raises(ConfigurationError, match="entry='td3-Pendulum-v1' is named after TD3"):
        converted(tmp_path, text.replace("Pend", "td3-Pend"), "sb3", name="zoo.yml")
    assumed = "# the file does not name its algorithm; PPO is assumed"
    assert assumed in converted(tmp_path, text, "sb3", name="pendulum.yml").to_yaml()
    assert assumed not in converted(tmp_path, text, "sb3", name="ppo.yml").to_yaml()


@pytest.mark.parametrize(
    ("text", "system"),
    [("algorithm: {name: PPO, lr: 0.1}", "agilerl"), ("agent: {class: PPO_RNN, learning_rate: 0.1}", "skrl")],
)
def test_a_file_names_its_algorithm_by_the_key_of_its_system(tmp_path, text, system):
    assert "does not name its algorithm" not in converted(tmp_path, text, system, env="CartPole-v1").to_yaml()


def test_arguments_of_the_environment_and_a_missing_number_of_environments(tmp_path):
    entry = "MyEnv-v0: {n_timesteps: 100, policy: MlpPolicy, env_kwargs: {size: 3, render: false}, clip_range_vf: 0.1}"
    made = converted(tmp_path, entry, "sb3")
    assert settings(made)["environment"] == {"id": "MyEnv-v0", "kwargs": {"size": 3, "render": False}}
    assert settings(made)["algorithm"]["clip_coef_vf"] == 0.1
    line = "# environment.num_envs is not in the file, and is 1 then: add it, or convert with --num-envs N\n"
    assert line in made.to_yaml()
    made = converted(tmp_path, "python ppo.py --env-id CartPole-v1", "cleanrl", name="command.sh", num_envs=4)
    assert settings(made)["environment"]["num_envs"] == 4
    assert line not in made.to_yaml()


@pytest.mark.parametrize(
    ("text", "system", "options", "message"),
    [
        (
            "CartPole-v1: {n_timesteps: 9, policy: MlpPolicy, n_envs: 4}",
            "sb3",
            {"num_envs": 8},
            "num_envs=8, but .*=4;",
        ),
        ("INIT_HP: {NUM_ENVS: 16, LR: 0.001}", "agilerl", {"num_envs": 8}, "has environment.num_envs=16;"),
        (
            "env_id: CartPole-v1\nnum_envs: 8",
            "cleanrl",
            {"env": "Acrobot-v1"},
            "env='Acrobot-v1', but .*='CartPole-v1'",
        ),
    ],
)
def test_options_do_not_replace_what_the_file_has(tmp_path, text, system, options, message):
    with pytest.raises(ConfigurationError, match=message):
        converted(tmp_path, text, system, **options)


def test_a_system_without_a_name_for_the_number_of_environments_takes_the_option(tmp_path):
    made = converted(tmp_path, "K_epochs: 3\nn_step: 10\n", "metabox", env="CartPole-v1", num_envs=8)
    assert settings(made)["environment"] == {"id": "CartPole-v1", "num_envs": 8}
    assert made.conversion.refused == {}


OF_RLIBS_STRATEGY = {"optimizer": "sgd", "shaping": "standardized", "normalize_observation": False}


def test_an_evolution_strategy_has_no_preset(tmp_path):
    text = "{num_agents: 30, sigma: 0.2, lr: 0.02, num_iterations: 100, env_kwargs: {id: CartPole-v1}}"
    made = converted(tmp_path, text, "rlib")
    assert settings(made) == {
        "environment": {"id": "CartPole-v1", "num_envs": 30},
        "algorithm": {"name": "OpenAIES", "sigma": 0.2, "lr": 0.02, **OF_RLIBS_STRATEGY},
        "training": {"max_updates": 100},
    }
    assert "  optimizer: sgd  # default of rlib\n" in made.to_yaml()
    assert "have the defaults of OpenAIES\n" in made.to_yaml()
    assert "differences of rlib" not in made.to_yaml()


@pytest.mark.parametrize(
    ("text", "num_envs", "found"),
    [
        ("num_agents: 40", 40, {}),
        ("sigma: 0.2", 30, {"sigma": 0.2}),
        ("{normalize_observation: true, num_agents: 40}", 40, {"normalize_observation": "bounds"}),
    ],
)
def test_either_setting_of_rlibs_evolution_strategy_names_it(tmp_path, text, num_envs, found):
    made = converted(tmp_path, text, "rlib", env="Acrobot-v1")
    assert settings(made) == {
        "environment": {"id": "Acrobot-v1", "num_envs": num_envs},
        "algorithm": {"name": "OpenAIES", "sigma": 0.1, "lr": 0.03, **OF_RLIBS_STRATEGY, **found},
    }


def test_a_file_without_networks_has_those_of_the_system(tmp_path):
    made = converted(tmp_path, "n_steps: 64\npolicy: MlpPolicy\n", "sb3")
    assert settings(made)["network"] == TWO_LAYERS
    assert "  latent_dim: 64  # default of sb3\n" in made.to_yaml()
    for options in ("policy: MlpLstmPolicy", "env_id: ALE/Pong-v5", "env_id: PongNoFrameskip-v4"):
        assert "network" not in settings(converted(tmp_path, f"n_steps: 64\n{options}\n", "sb3"))
    only = "policy_kwargs: {activation_fn: nn.ELU}\n"
    found = settings(converted(tmp_path, f"n_steps: 64\n{only}", "sb3"))["network"]
    assert found["encoder_config"] == {"hidden_size": [64], "activation": "ELU"}


def test_json_and_a_bare_dictionary(tmp_path):
    assert settings(converted(tmp_path, '{"n_steps": 64, "vf_coef": 1}', "sb3", name="a.json"))["algorithm"] == {
        "preset": "sb3", "num_steps": 64, "vf_coef": 2,
    }  # fmt: skip
    made = converted(tmp_path, '{"K_epochs": 4, "lr": 1e-4, "max_grad_norm": 4 / 2}', "metabox", name="a.txt")
    assert settings(made)["algorithm"]["update_epochs"] == 4


def test_json_may_be_indented_with_tabs(tmp_path):
    made = converted(tmp_path, '\ufeff{\n\t"n_steps": 64,\n\t"vf_coef": 1\n}', "sb3", name="a.json")
    assert settings(made)["algorithm"]["num_steps"] == 64
    with pytest.raises(ConfigurationError, match=r"^file='.*a\.json' cannot be read: it is not valid JSON: Expecting"):
        converted(tmp_path, '{"n_steps": 64', "sb3", name="a.json")


def test_names_in_the_file_neither_control_the_terminal_nor_leave_their_comments(tmp_path):
    entry = '{policy: MlpPolicy, n_envs: 2, n_steps: 64, "\\e]0;owned\\a\\e[2J": 1}'
    text = converted(tmp_path, f'"X-v1\\nseed: 7 #": {entry}', "sb3").to_yaml()
    assert text.replace("\n", "").isprintable()
    assert r"#   \x1b]0;owned\x07\x1b[2J=1: it is no known setting" in text.splitlines()
    found = yaml.safe_load(text)
    assert (found["environment"]["id"], "seed" in found) == ("X-v1\nseed: 7 #", False)


def test_the_command_prints_yaml_that_trains(tmp_path, capsys):
    (tmp_path / "zoo.yml").write_text(ZOO)
    assert main(["convert", str(tmp_path / "zoo.yml"), "--from", "sb3", "--entry", "HalfCheetah-v3"]) == 0
    (tmp_path / "own.yaml").write_text(capsys.readouterr().out)
    made = load(tmp_path / "own.yaml")
    assert (made.algorithm.num_steps, made.algorithm.vf_coef, made.algorithm.lr) == (512, 1.16, 3e-4)


def test_values_that_are_illegal_here_are_printed_and_reported(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("n_steps: 64\nbatch_size: 4096\ngamma: 1.5\n")
    assert main(["convert", str(tmp_path / "a.yaml"), "--from", "sb3"]) == 2
    printed = capsys.readouterr()
    assert "gamma: 1.5" in printed.out
    assert "algorithm.gamma=1.5" in printed.err


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("!!python/object/apply:os.system ['touch executed']", "a.yaml", "not valid YAML"),
        ("a: !!python/name:os.system ''\n", "a.yaml", "not valid YAML"),
        ("- 1\n- 2\n", "a.yaml", r"holds \[1, 2\]; allowed are settings by name"),
        ("rate: 3\n", "a.yaml", "has no settings of sb3; it has rate"),
        ("def f(:\n", "a.py", "is not valid Python"),
        ("x = 1\n", "a.py", "has no settings of sb3; it has none"),
        (ZOO, "a.yaml", "entry is missing; the file has atari, HalfCheetah-v3, Ant-v3"),
        ("--n-steps 'a", "a.sh", "is not a command line"),
        ("n_steps: 1" + "#" * 2**18, "a.yaml", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_one_error(tmp_path, monkeypatch, text, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        converted(tmp_path, text, "sb3", name=name)
    assert not (tmp_path / "executed").exists()


def test_options_of_the_command_that_are_wrong(tmp_path, capsys):
    (tmp_path / "zoo.yml").write_text(ZOO)
    (tmp_path / "a.yaml").write_text("n_steps: 64\n")
    for arguments, message in [
        ([str(tmp_path / "zoo.yml")], "from is missing"),
        ([str(tmp_path / "zoo.yml"), "--from", "sb4"], "from='sb4' is unknown; did you mean 'sb3'"),
        (
            [str(tmp_path / "zoo.yml"), "--from", "sb3", "--entry", "Ant"],
            "entry='Ant' is unknown; did you mean 'Ant-v3'",
        ),
        ([str(tmp_path / "a.yaml"), "--from", "sb3", "--entry", "x"], "the settings of one environment; leave it out"),
        ([str(tmp_path / "none.yaml"), "--from", "sb3"], "none.yaml' cannot be read"),
    ]:
        assert main(["convert", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "config=" not in error


def test_two_values_of_one_name_are_listed(tmp_path):
    made = converted(tmp_path, "a: {n_steps: 1024}\nb: {n_steps: 32}\n", "sb3")
    assert settings(made)["algorithm"]["num_steps"] == 1024
    assert made.conversion.refused == {"n_steps=32": "the file has another value of that name, too"}


def test_huge_expressions_are_not_computed(tmp_path):
    (tmp_path / "a.py").write_text("x = {'n_steps': 9**9**9**9, 'gamma': 1 / 0, 'seed': -'a'}\n")
    found = read_settings(tmp_path / "a.py")["x"]
    assert {name: repr(value) for name, value in found.items()} == {
        "n_steps": "9 ** 9 ** 9 ** 9", "gamma": "1 / 0", "seed": "-'a'",
    }  # fmt: skip


def test_every_converted_file_is_read_back_to_the_same_settings(tmp_path):
    for system, text in {"agilerl": AGILERL, "skrl": SKRL}.items():
        options = {"env": "CartPole-v1", "num_envs": 4} if system == "skrl" else {}
        made = converted(tmp_path, text, system, **options)
        (tmp_path / f"{system}.own.yaml").write_text(made.to_yaml())
        assert load(tmp_path / f"{system}.own.yaml") == Draft(dict(made.data)).validate()
