"""Errors for other libraries' setting names give the name here and the conversion of the value."""

import re

import gymnasium
import pytest
from gymnasium.spaces import Discrete

from agilerl_like import DQN, IPPO, PPO, PQN, SAC, TD3, QLearning, train_off_policy, train_on_policy
from agilerl_like.algorithms.agent_groups import group_of
from agilerl_like.config import Draft
from agilerl_like.errors import FOREIGN_SETTINGS, ConfigurationError

BOX = gymnasium.spaces.Box(-1.0, 1.0, (1,))
CONVERTED = "'vf_coef', which weighs half the squared error: 2 x value_loss_scale"


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        ("algorithm.learning_rate", "algorithm key='learning_rate' is unknown; did you mean 'lr'?"),
        ("algorithm.n-steps", "did you mean 'num_steps'?"),
        ("algorithm.mini_batches", "did you mean 'num_minibatches'?"),
        ("algorithm.value_loss_coef", "the same value (rlib) or weighs half the squared error: 2 x value_loss_coef ("),
        ("algorithm.unroll_length", "'learn_step', which counts env steps: batch_size x num_minibatches x unroll_leng"),
        ("algorithm.lr_annealing", "'lr_schedule', which is linear for true, and none for false?"),
        ("algorithm.K-epochs", "did you mean 'update_epochs'?"),
        ("algorithm.value_loss_scale", f"did you mean {CONVERTED}?"),
        ("training.total_timesteps", "'max_steps', which counts the env steps of one member?"),
        ("algorithm.total_timesteps", "did you mean 'training.max_steps', which counts"),
        ("learning_rate", "config key='learning_rate' is unknown; did you mean 'algorithm.lr'?"),
        ("population.population_size", "did you mean 'size'?"),
        ("hyperparameters.learning_rate.min", "hyperparameters key='learning_rate' is unknown; did you mean 'lr'?"),
        ("algorithm.critic_lr", "did you mean 'lr_critic'?"),
        ("algorithm.lt", "did you mean 'lr'?"),  # a slip, as ever
    ],
)
def test_a_configuration_names_the_setting_and_the_conversion(place, hint):
    with pytest.raises(ConfigurationError) as error:
        Draft({"environment": {"id": "CartPole-v1"}}).override([f"--{place}", "1"]).validate()
    assert hint in str(error.value)


@pytest.mark.parametrize(
    "make", [lambda **more: PPO(BOX, BOX, **more), lambda **more: PPO.population(2, BOX, BOX, **more),
             lambda **more: IPPO({"a_0": BOX}, {"a_0": BOX}, **more)], ids=["PPO", "population", "IPPO"],
)  # fmt: skip
def test_python_does_too(make):
    with pytest.raises(ConfigurationError, match="setting='learning_rate' is unknown; did you mean 'lr'"):
        make(learning_rate=1e-3)
    with pytest.raises(ConfigurationError, match=CONVERTED):
        make(value_loss_scale=2.5)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"centralized_critic": True}, "'critic_observation', which is 'state' (env.state()) or 'joint'"),
        ({"policies": {"shared": None}}, "'groups', which maps each agent to its group"),
        ({"policy_mapping_fn": group_of}, "'groups', which maps each agent to its group"),
        ({"policies_to_train": ["a"]}, "'frozen_groups', which lists the groups that do not learn"),
        ({"common_reward": True}, "'rewards', which is 'sum' or 'mean' for a shared reward"),
        ({"obs_agent_id": True}, "did you mean 'agent_id_one_hot'?"),
        ({"frozen_group": ["a"]}, "did you mean 'frozen_groups'"),
        ({"total_timesteps": 1}, "did you mean 'max_steps of train_on_policy'"),
    ],
)
def test_a_team_names_its_arguments(given, hint):
    with pytest.raises(ConfigurationError) as error:
        IPPO({"a_0": BOX}, {"a_0": BOX}, **given)
    assert f"setting={next(iter(given))!r} is unknown; did you mean" in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", ["encoder", "encoder_config", "head_config", "latent_dim", "memory_config"])
def test_keys_of_net_config_as_settings_lead_there(name):
    where = re.escape(f"setting={name!r} is unknown; it is a key of net_config: net_config={{{name!r}: …}}")
    for make in (PPO, lambda *spaces, **given: PPO.population(2, *spaces, **given), SAC):
        with pytest.raises(ConfigurationError, match=where):
            make(BOX, BOX, **{name: {}})


def test_an_attribute_by_another_name_of_a_setting_is_an_error_and_others_are_free():
    agent = PPO(BOX, BOX)
    with pytest.raises(AttributeError, match=r"attribute='learning_rate' is unknown; did you mean 'lr'\?"):
        agent.learning_rate = 1e-3
    with pytest.raises(AttributeError, match="'vf_coef', which weighs half the squared error"):
        agent.value_loss_scale = 1.0
    agent.note, agent.env, agent.lr = "mine", None, 1e-3
    assert (agent.note, agent.env, agent.clone().lr) == ("mine", None, 1e-3)
    actor_critic = TD3(BOX, BOX)
    actor_critic.lr_actor = 1e-4  # its own setting, and rlib's name of lr
    assert actor_critic.settings()["lr_actor"] == 1e-4


@pytest.mark.parametrize(
    ("algorithm", "space", "given", "hint"),
    [
        (DQN, gymnasium.spaces.Discrete(2), "exploration_fraction", "did you mean 'eps_share'?"),
        (PQN, gymnasium.spaces.Discrete(2), "exploration_fraction", "did you mean 'eps_share'?"),
        (DQN, gymnasium.spaces.Discrete(2), "buffer_size", "did you mean 'memory_size'?"),
        (DQN, gymnasium.spaces.Discrete(2), "target_network_frequency", "which counts gradient steps; target_network_"),
        (TD3, BOX, "policy_frequency", "did you mean 'policy_delay'?"),
        (SAC, BOX, "target_entropy", "which is -target_entropy divided by the number of action dimensions?"),
        (SAC, BOX, "lr_critic", "did you mean 'lr'?"),
        (SAC, BOX, "autotune", "the target of the temperature; it is always learned, and autotune has no equivalent"),
        (SAC, BOX, "policy_frequency", "is unknown here; it is 'policy_delay', a setting of TD3, DDPG"),
        (TD3, BOX, "critic_lr", "did you mean 'lr'?"),
        (PPO, BOX, "vf_lr", "did you mean 'lr_critic'?"),
    ],
)
def test_off_policy_algorithms_name_theirs(algorithm, space, given, hint):
    with pytest.raises(ConfigurationError) as error:
        algorithm(BOX, space, **{given: 1})
    assert hint in str(error.value)


@pytest.mark.parametrize("train", [train_on_policy, train_off_policy])
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("total_timesteps", "did you mean 'max_steps', which counts the env steps of one member?"),
        ("eval_loops", "did you mean 'eval_loop'"),
    ],
)
def test_training_names_its_arguments(train, given, hint):
    with pytest.raises(ConfigurationError) as error:
        train(None, **{given: 1})
    assert f"argument={given!r} is unknown; {hint}" in str(error.value)


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (lambda: IPPO(observation_spaces={"a_0": BOX}, action_space=BOX), "action_space", "action_spaces"),
        (lambda: PPO(observation_spaces=BOX, action_spaces=BOX), "observation_spaces", "observation_space"),
        (lambda: PPO.population(pop_size=2, observation_space=BOX, action_space=BOX), "pop_size", "size"),
    ],
)
def test_a_required_argument_under_another_name_is_named(make, given, meant):
    with pytest.raises(ConfigurationError, match=f"argument='{given}' is unknown; did you mean '{meant}'?"):
        make()


@pytest.mark.parametrize(
    ("kind", "given", "hint"),
    [
        (SAC, "ent_coef", "did you mean 'target_entropy_scale', which is the target of the temperature; it is always"),
        (SAC, "n_steps", "did you mean 'n_step'?"),
        (SAC, "alpha", "did you mean 'target_entropy_scale'"),
        (SAC, "start_steps", "did you mean 'learning_starts'?"),
        (SAC, "qf_learning_rate", "did you mean 'lr'?"),
        (DQN, "polyak", "did you mean 'tau', which is 1 - polyak?"),
        (DQN, "update_after", "did you mean 'learning_starts'?"),
        (PPO, "n_steps", "did you mean 'num_steps'?"),
        (QLearning, "alpha", "did you mean 'lr'?"),
    ],
)
def test_hints_are_settings_of_the_algorithm_that_is_called(kind, given, hint):
    observed = Discrete(4) if kind is QLearning else BOX
    acted = BOX if kind is SAC else Discrete(2)
    with pytest.raises(ConfigurationError) as error:
        kind(observed, acted, **{given: 1})
    assert hint in str(error.value)


def test_an_argument_that_is_missing_altogether_stays_pythons_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'action_space'"):
        PPO.population(2, BOX, batch_size=64)


def test_every_name_leads_to_a_setting_that_exists_and_none_is_one():
    wholes = [
        Draft({"environment": {"id": env}, "algorithm": {"name": algorithm}}).validate().to_json()
        for env, algorithm in (
            ("CartPole-v1", "PPO"),
            ("CartPole-v1", "DQN"),
            ("Pendulum-v1", "TD3"),
            ("Pendulum-v1", "SAC"),
            ("mpe2.simple_spread_v3", "IPPO"),
        )
    ]
    for foreign, known in FOREIGN_SETTINGS.items():
        section, _, name = known.setting.rpartition(".")
        assert any(name in names and foreign not in names for names in (whole.get(section, whole) for whole in wholes))


def test_networks_of_another_library_are_net_config_in_python():
    meant = r"did you mean 'net_config', which has encoder_config and head_config\?; like=\"sb3\" takes it as it is$"
    with pytest.raises(ConfigurationError, match=f"'policy_kwargs' is unknown; {meant}"):
        PPO(BOX, BOX, policy_kwargs={"net_arch": [64]})


def test_arguments_of_training_are_named_and_a_long_list_of_names_ends_in_dots():
    with pytest.raises(ConfigurationError, match="did you mean 'tensorboard of train_on_policy', which is true or fal"):
        PPO(BOX, BOX, tensorboard_log="logs")
    with pytest.raises(ConfigurationError, match="did you mean 'max_steps of train_on_policy', which counts"):
        PPO(BOX, BOX, total_timesteps=100)
    with pytest.raises(ConfigurationError, match=r"'verbose' is unknown; allowed are: .*, …$"):
        PPO(BOX, BOX, verbose=1)
