"""PPO's settings together: what contradicts is one error at construction, and what is set is stored, cloned, loaded."""

import json
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL

from agilerl_like import IPPO, PPO, Choice, HyperparameterConfig, RLParameter
from agilerl_like.algorithms.on_policy_algorithm import warn_of_unbootstrapped
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.config import Draft
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.ppo_update import HYPERPARAM_NAMES

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))
DISCRETE = gymnasium.spaces.Discrete(3)


def agent_of(**settings):
    return PPO(BOX, DISCRETE, seed=0, net_config=SMALL, **settings)


def range_of(**ranges):
    return {"hp_config": HyperparameterConfig(**{name: RLParameter(*its) for name, its in ranges.items()})}


def choice_of(**choices):
    return {"hp_config": HyperparameterConfig(**{name: Choice(values) for name, values in choices.items()})}


CONTRADICTIONS = [
    ({"lr_min": 1e-5}, "lr_min=1e-05: has no meaning with lr_schedule=None; needed is lr_schedule='kl'"),
    ({"kl_factor": 3.0, "lr_schedule": "linear"}, "kl_factor=3.0: has no meaning with lr_schedule='linear'"),
    ({"lr_end": 1e-5}, "lr_end=1e-05: has no meaning with lr_schedule=None"),
    ({"lr_end": 1e-5, "lr_schedule": "kl"}, "lr_end=1e-05: has no meaning with lr_schedule='kl'"),
    ({"accelerator": 3}, "accelerator=3 must be an accelerate.Accelerator"),
    ({"n_step": 5}, "n_step=5: has no meaning with advantage='gae'; needed is advantage='n_step'"),
    ({"n_step": 5, "advantage": "mc"}, "n_step=5: has no meaning with advantage='mc'"),
    ({"gae_lambda": 0.9, "advantage": "n_step"}, "gae_lambda=0.9: has no meaning with advantage='n_step'"),
    (
        {"advantage": "mc", **range_of(gae_lambda=(0.9, 1.0))},
        "hp_config.gae_lambda: has no meaning",
    ),
    ({"value_clip_mode": "clipped"}, "value_clip_mode='clipped': has no meaning with clip_coef_vf=None"),
    ({"kl_stop": "update"}, "kl_stop='update': has no meaning with target_kl=None"),
    ({"clip_grads": "together", "max_grad_norm": 0}, "clip_grads='together': has no meaning with max_grad_norm=0"),
    (
        {"advantage_ddof": 1, "normalize_advantage": "none"},
        "advantage_ddof=1: has no meaning with normalize_advantage=",
    ),
    ({"adam_eps": 1e-8, "optimizer": "sgd"}, "adam_eps=1e-08: has no meaning with optimizer='sgd'"),
    (
        {"observation_clip": 5.0, "normalize_observation": False},
        "observation_clip=5.0: has no meaning with normalize_observation=False; needed is normalize_observation=True",
    ),
    (
        {"observation_eps": 1e-5, "normalize_observation": "bounds"},
        "observation_eps=1e-05: has no meaning with normalize_observation='bounds'",
    ),
    ({"num_steps": 16, "learn_step": 64}, "learn_step=64: has no meaning with num_steps=16; needed is num_steps=None"),
    ({"num_minibatches": 2, "batch_size": 8}, "batch_size=8: has no meaning with num_minibatches=2"),
    (
        {"num_minibatches": 9, "num_steps": 4, "num_envs": 2},
        "num_minibatches=9 is more than the samples of the rollout",
    ),
    ({"num_steps": 4, "batch_size": 16}, "batch_size=16 is larger than the rollout of num_steps=4"),
    ({"lr_schedule": "linear", "schedules": {"lr": "cosine"}}, "are two names of one schedule"),
    ({"lr_schedule": "kl", "lr": 0.1}, "lr=0.1: is outside of lr_min=1e-06 and lr_max=0.01"),
    ({"lr_schedule": "kl", **range_of(lr=(1e-7, 1e-3))}, "hp_config.lr=1e-07: is outside of lr_min=1e-06"),
    ({"lr_schedule": "kl", "lr_min": 1e-2, "lr_max": 1e-3}, "lr_min=0.01 must not be greater than lr_max=0.001"),
    ({"schedules": {"lr": "cosine"}, **choice_of(lr_schedule=[None, "linear"])}, "are two names of one schedule"),
    ({"lr": 0.1, **choice_of(lr_schedule=[None, "kl"])}, "lr=0.1: is outside of lr_min=1e-06 and lr_max=0.01"),
    (
        {"learn_step": 64, **choice_of(num_minibatches=[None, 65])},
        "num_minibatches=65 is more than the samples of the rollout of learn_step=64",
    ),
    ({"learn_step": 64, **choice_of(num_steps=[None, 16])}, "batch_size=64 is larger than the rollout of num_steps=16"),
    ({"lr_schedule": "liner"}, "lr_schedule='liner' is unknown; did you mean 'linear'"),
    ({"lr_schedule": lambda progress: -1.0}, "lr_schedule=.* gives -1.0 at progress=0"),
    ({"lr_schedule": [[0.5, 1.0], [0.2, 1.0]]}, "lr_schedule=.*increasing progress"),
    ({"betas": (0.9, 1.0)}, "betas.1=1.0: input should be less than 1"),
    ({"betas": (0.9,)}, r"betas.*=\(0.9,\)|betas.1"),
    ({"optimizer": "Adam"}, "optimizer='Adam': input should be 'adam', 'adamw', 'rmsprop' or 'sgd'"),
    ({"reward_transform": {"scale": 2, "shfit": 1}}, "reward_transform='shfit' is unknown; did you mean 'shift'"),
    ({"reward_transform": {"clip": 0}}, "reward_transform.clip=0; allowed are numbers above 0"),
    ({"reward_transform": "not a path"}, "reward_transform='not a path'; allowed are"),
]


@pytest.mark.parametrize(("settings", "message"), CONTRADICTIONS)
def test_what_contradicts_is_one_error(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        agent_of(**settings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"clip_coef_vf": True}, "clip_coef_vf"),
        ({"target_kl": True, "lr": 1e-3}, "target_kl"),
        ({"batch_size": True}, "batch_size"),
        ({"betas": (0.9, False)}, "betas.1"),
        (choice_of(clip_coef_vf=[None, True]), "hp_config.clip_coef_vf.choices.1"),
    ],
)
def test_a_flag_is_no_number(settings, name):
    with pytest.raises(ConfigurationError, match=rf"^{name}=(True|False): input should be a number, not a flag$"):
        agent_of(**settings)


def test_a_flag_that_is_set_as_an_attribute_is_no_number():
    agent = agent_of()
    agent.target_kl = True
    with pytest.raises(ConfigurationError, match=r"^target_kl=True: input should be a number, not a flag$"):
        agent.check()


@pytest.mark.parametrize("is_infinite", [True, False])
def test_random_steps_need_finite_bounds(is_infinite):
    bound = np.inf if is_infinite else np.finfo(np.float32).max  # which means no bound, too
    unbounded = gymnasium.spaces.Box(-bound, bound, (1,))
    for settings in ({"random_steps": 4}, range_of(random_steps=(0, 4))):
        with pytest.raises(ConfigurationError, match="random_steps=4 needs actions with finite bounds"):
            PPO(BOX, unbounded, **settings)


def test_a_minibatch_that_evolves_fits_whichever_rollout_is_chosen():
    choices = {"num_steps": Choice([None, 16]), "num_minibatches": Choice([None, 2])}
    agent = agent_of(learn_step=64, hp_config=HyperparameterConfig(**choices, batch_size=RLParameter(8, 64)))
    assert agent.repair({**agent.genome.hyperparameters, "num_steps": 16})["batch_size"] == 16  # of one env


def test_a_mode_is_one_for_a_population():
    with pytest.raises(ConfigurationError, match=r"optimizer=\['adam', 'sgd'\] must be the same for all agents"):
        type(PPO.population(1, BOX, DISCRETE))([agent_of(index=0), agent_of(index=1, optimizer="sgd")])


def test_bootstrap_truncated_off_warns_once():
    warn_of_unbootstrapped.cache_clear()
    with pytest.warns(UserWarning, match="bootstrap_truncated=False treats time limits as terminations"):
        agent_of(bootstrap_truncated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent_of(bootstrap_truncated=False)


EVERYTHING = {
    "clip_grads": "together",
    "kl_stop": "update",
    "target_kl": 0.02,
    "value_clip_mode": "clipped",
    "clip_coef_vf": 0.3,
    "normalize_advantage": "minibatch",
    "advantage_ddof": 1,
    "advantage": "n_step",
    "n_step": 5,
    "optimizer": "adamw",
    "adam_eps": 1e-8,
    "betas": (0.8, 0.99),
    "weight_decay": 0.01,
    "lr_critic": 3e-3,
    "lr_schedule": "kl",
    "lr": 1e-3,
    "kl_threshold": 0.01,
    "kl_factor": 1.5,
    "lr_factor": 1.2,
    "lr_min": 1e-5,
    "lr_max": 2e-3,
    "num_steps": 8,
    "num_minibatches": 2,
    "random_steps": 4,
    "learning_starts": 4,
    "normalize_reward": True,
    "reward_clip": 5.0,
    "reward_transform": {"scale": 2.0},
    "num_envs": 2,
}


@pytest.mark.parametrize("settings", [EVERYTHING, {"num_envs": 1}], ids=["on", "off"])
@pytest.mark.parametrize("make", [agent_of, lambda **its: IPPO({"a_0": BOX}, {"a_0": DISCRETE}, seed=0, **its)])
def test_settings_and_state_are_stored_cloned_and_loaded(make, settings):
    """State is stored although the settings that need it are off: they may evolve. The envs may have become fewer."""
    agent = make(**settings)
    (learner,) = agent.learners.values()
    learner.env_steps, learner.moments.lr_scale[0] = 6, 0.7
    rewards, always = torch.rand(3, 2), torch.ones(3, 2)
    learner.return_statistics = learner.return_statistics.updated(rewards, always, always, 0.9)
    documents, tensors = agent.to_documents()
    stored = json.loads(json.dumps(documents))
    for copy in (agent.clone(), type(agent).from_documents(stored, tensors, device="cpu", where="memory")):
        assert copy.settings() == agent.settings()
        (its,) = copy.learners.values()
        assert its.env_steps == 6
        assert its.moments.lr_scale.item() == pytest.approx(0.7)
        assert all(map(torch.equal, its.return_statistics, learner.return_statistics))


def test_defaults_are_not_stored():
    stored = agent_of().to_documents()[0]["settings"]
    assert "lr_critic" not in stored
    assert "vf_coef" in stored
    assert agent_of(lr_critic=1e-3).to_documents()[0]["settings"]["lr_critic"] == 1e-3


def test_settings_of_the_command_line_and_of_python_are_the_same():
    options = [
        f"--algorithm.{name.replace('_', '-')}={json.dumps(list(value) if isinstance(value, tuple) else value)}"
        for name, value in EVERYTHING.items()
        if name != "num_envs" and not isinstance(value, dict | str)
    ]
    options += [f"--algorithm.{name}={value}" for name, value in EVERYTHING.items() if isinstance(value, str)]
    options += ["--algorithm.reward-transform.scale=2.0", "--environment.num-envs=2"]
    config = Draft({"environment": {"id": "CartPole-v1"}}).override(options).validate()
    expected = {name: value for name, value in EVERYTHING.items() if name != "num_envs"}
    assert {name: getattr(config.algorithm, name) for name in expected} == expected
    again = type(config).model_validate(config.to_json())
    assert again.algorithm == config.algorithm


def test_every_setting_is_an_argument_with_the_same_default():
    agent = agent_of()
    assert agent.settings() | {"swap_channels": None} == {
        name: getattr(PPOConfig, name) for name in PPOConfig.__dataclass_fields__
    }


def test_betas_are_those_of_the_optimizer_unless_they_are_given():
    def betas_of(**settings):
        agent = agent_of(**settings)
        names = dict(zip(HYPERPARAM_NAMES, agent.learner.hyperparams(), strict=True))
        return names["beta1"], names["beta2"]

    assert betas_of() == (0.9, 0.999)
    assert betas_of(optimizer="rmsprop") == (0.0, 0.99)
    assert betas_of(optimizer="sgd", betas=(0.5, 0.0)) == (0.5, 0.0)


def test_counts_by_env_are_those_of_the_rollout():
    agent = agent_of(num_steps=8, num_minibatches=4, num_envs=3)
    assert (agent.rollout_steps, agent.learner.rollout_length, agent.learner.batch_size) == (8, 24, 6)
    team = IPPO(
        {"a_0": BOX, "a_1": BOX}, {"a_0": DISCRETE, "a_1": DISCRETE}, num_steps=8, num_minibatches=4, num_envs=3
    )
    (learner,) = team.learners.values()
    assert (learner.rollout_steps, learner.batch_size) == (8, 12)  # two agents in each env


@pytest.fixture
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_another_default_type_of_torch_is_refused(float64_by_default):
    """Layers would have it, and observations are float32."""
    for settings in ({}, {"normalize_observation": False}):
        with pytest.raises(ConfigurationError, match=r"get_default_dtype\(\)=torch.float64; allowed is torch.float32"):
            agent_of(**settings)
