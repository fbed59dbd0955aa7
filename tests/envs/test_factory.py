"""Making vector envs: the choice of the backend, making an env again, and errors for wrong arguments."""

import importlib.util
import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from agilerl_like.envs import VecEnvAdapter, VecEnvConfig, evaluation_env, make_vect_envs, with_num_envs
from agilerl_like.envs.import_paths import import_path, plain
from agilerl_like.envs.wrapper_specs import check_wrapper, to_json
from agilerl_like.errors import ConfigurationError, EnvStepError, Terminated

CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
ENVPOOL = importlib.util.find_spec("envpool") is not None


def env_config_of(env: VectorEnv) -> VecEnvConfig:
    env_config = getattr(env, "env_config", None)
    assert isinstance(env_config, VecEnvConfig)
    return env_config


# ---- backends


def test_auto_prefers_the_native_vector_env():
    env = make_vect_envs("CartPole-v1", 5)
    assert isinstance(env, CartPoleVectorEnv)
    assert env.num_envs == 5
    assert env_config_of(env).backend == "vector"


def test_auto_is_sync_where_wrappers_arguments_or_a_factory_need_single_envs():
    assert env_config_of(make_vect_envs("CartPole-v1", wrappers=["FlattenObservation"])).backend == "sync"
    assert env_config_of(make_vect_envs(CartPoleEnv, 2)).backend == "sync"
    assert env_config_of(make_vect_envs(CARTPOLE, 2)).backend == "sync"
    # CartPoleVectorEnv does not know `disable_env_checker`, so gymnasium.make gets it
    assert env_config_of(make_vect_envs("CartPole-v1", 2, disable_env_checker=True)).backend == "sync"
    # g is an argument of Pendulum, which has no native vector env, and EnvPool is not queried for it
    assert env_config_of(make_vect_envs("Pendulum-v1", 2, g=5.0)).backend == "sync"


def test_auto_takes_envpool_only_where_it_is_installed():
    assert env_config_of(make_vect_envs("Acrobot-v1", 2)).backend == ("envpool" if ENVPOOL else "sync")
    assert env_config_of(make_vect_envs("Taxi-v4", 2)).backend == "sync"  # EnvPool has no Taxi-v4


def test_sync_and_async_reset_in_the_same_step():
    for backend, kind in (("sync", SyncVectorEnv), ("async", AsyncVectorEnv)):
        env = make_vect_envs("CartPole-v1", 2, backend=backend)
        assert isinstance(env, kind)
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        env.close()
    assert make_vect_envs("CartPole-v1", backend="sync", autoreset=AutoresetMode.DISABLED).metadata == {
        **CartPoleEnv.metadata,
        "autoreset_mode": AutoresetMode.DISABLED,
    }


def test_should_async_vector_chooses_as_in_agilerl():
    assert isinstance(make_vect_envs(make_env=CartPoleEnv, should_async_vector=False), SyncVectorEnv)
    env = make_vect_envs(env_name="CartPole-v1", should_async_vector=True)
    assert isinstance(env, AsyncVectorEnv)
    env.close()
    with pytest.raises(ConfigurationError, match="contradicts backend='sync'"):
        make_vect_envs("CartPole-v1", backend="sync", should_async_vector=True)


def gravity(env: VectorEnv) -> set[float]:
    assert isinstance(env, SyncVectorEnv)
    return {env.get_wrapper_attr("g") for env in env.envs}


def test_arguments_reach_the_env():
    assert gravity(make_vect_envs("Pendulum-v1", 2, g=5.0)) == {5.0}
    assert gravity(make_vect_envs("Pendulum-v1", 2, env_kwargs={"g": 5.0}, backend="sync")) == {5.0}
    native = make_vect_envs("CartPole-v1", 2, max_episode_steps=7)
    assert isinstance(native, CartPoleVectorEnv)
    assert native.max_episode_steps == 7


def test_only_the_first_copy_has_gymnasiums_checker():
    env = make_vect_envs("CartPole-v1", 3, backend="sync")
    assert isinstance(env, SyncVectorEnv)
    assert ["PassiveEnvChecker" in str(single) for single in env.envs] == [True, False, False]


def test_an_id_without_a_version_means_the_newest():
    env = make_vect_envs("CartPole", backend="sync")
    assert env_config_of(env).env == "CartPole-v1"


def test_an_id_may_name_the_module_that_registers_it():
    env = make_vect_envs("gymnasium.envs.classic_control:Pendulum-v1", backend="sync")
    assert env.single_observation_space.shape == (3,)


# ---- wrappers


class Twice(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * float(reward)


@pytest.mark.parametrize(
    ("wrappers", "reward"),
    [
        ([Twice], 2.0),
        ([f"{__name__}:Twice", Twice], 4.0),
        ([("ClipReward", {"min_reward": 0.0, "max_reward": 0.25}), Twice], 0.5),  # the first is the innermost
        ([Twice, {"name": "ClipReward", "min_reward": 0.0, "max_reward": 0.25}], 0.25),
        ([lambda env: gym.wrappers.TransformReward(env, lambda reward: reward - 3)], -2.0),
    ],
)
def test_wrappers_by_name_pair_mapping_path_and_callable(wrappers, reward):
    adapter = VecEnvAdapter(make_vect_envs("CartPole-v1", 2, wrappers=wrappers))
    adapter.reset(0)
    np.testing.assert_array_equal(adapter.step(np.array([0, 1])).reward, [reward, reward])


@pytest.mark.parametrize(
    "wrapper",
    [
        "FlattenObservation",
        {"name": "TimeLimit", "max_episode_steps": 3},
        ("TimeLimit", {"max_episode_steps": 3}),
        Twice,
    ],
)
def test_a_single_wrapper_needs_no_list(wrapper):
    env = make_vect_envs("CartPole-v1", 2, wrappers=wrapper)
    assert env_config_of(env).wrappers == (wrapper,)


# ---- making again


def parts(env: VectorEnv) -> tuple[Any, ...]:
    return type(env), env.num_envs, env.metadata["autoreset_mode"], env.single_observation_space


@pytest.mark.parametrize("backend", ["vector", "sync", "async"])
def test_with_num_envs_keeps_the_arguments(backend):
    narrow = make_vect_envs("CartPole-v1", 2, backend=backend, max_episode_steps=4)
    wide = with_num_envs(narrow, 6)
    assert parts(wide) == (type(narrow), 6, *parts(narrow)[2:])
    assert env_config_of(wide) == VecEnvConfig("CartPole-v1", 6, backend, env_kwargs={"max_episode_steps": 4})
    adapter = VecEnvAdapter(wide)
    adapter.reset(0)
    truncated = [bool(adapter.step(np.arange(6) % 2).truncated.all()) for _ in range(4)]
    assert truncated == [False, False, False, True]
    for env in (narrow, wide):
        env.close()


def test_with_num_envs_keeps_wrappers_and_factories():
    env = with_num_envs(make_vect_envs(partial(gym.make, "Pendulum-v1"), 1, wrappers=[Twice], env_kwargs={"g": 3.0}), 3)
    assert gravity(env) == {3.0}
    assert isinstance(env, SyncVectorEnv)
    assert [isinstance(single, Twice) for single in env.envs] == [True] * 3


def test_with_num_envs_accepts_envs_of_make_vec():
    for mode in ("vector_entry_point", "sync"):
        env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode, sutton_barto_reward=True)
        wide = with_num_envs(env, 4)
        assert isinstance(wide, type(env))
        adapter = VecEnvAdapter(wide)
        adapter.reset(0)
        np.testing.assert_array_equal(adapter.step(np.zeros(4, dtype=int)).reward, np.zeros(4))


def test_functions_of_a_users_sync_env_are_repeated_in_order():
    env = SyncVectorEnv([partial(gym.make, "Pendulum-v1", g=1.0), partial(gym.make, "Pendulum-v1", g=2.0)])
    wide = with_num_envs(with_num_envs(env, 4), 5)
    assert isinstance(wide, SyncVectorEnv)
    assert [single.get_wrapper_attr("g") for single in wide.envs] == [1.0, 2.0, 1.0, 2.0, 1.0]
    spread = with_num_envs(env, 3, backend="async")
    assert isinstance(spread, AsyncVectorEnv)
    assert spread.get_attr("g") == (1.0, 2.0, 1.0)
    spread.close()


class OwnVector(CartPoleVectorEnv):
    """A user's vector env."""


def test_with_num_envs_needs_a_factory_for_a_users_vector_env():
    with pytest.raises(ConfigurationError, match=r"it is unknown how it was made.*backend='vector'"):
        with_num_envs(OwnVector(2), 4)
    env = with_num_envs(make_vect_envs(OwnVector, 2, backend="vector"), 4)
    assert isinstance(env, OwnVector)
    assert env.num_envs == 4


def test_a_vector_wrapper_is_never_dropped_silently():
    env = gym.wrappers.vector.ClipReward(make_vect_envs("CartPole-v1", 2), max_reward=0.5)
    with pytest.raises(ConfigurationError, match="it is unknown how it was made"):
        with_num_envs(env, 4)


@pytest.mark.parametrize("backend", ["vector", "sync"])
def test_evaluation_envs_are_seeded_separately(backend):
    env = evaluation_env(make_vect_envs("CartPole-v1", 2, backend=backend), 4)
    assert isinstance(env, SyncVectorEnv)
    first = VecEnvAdapter(env).reset([9, 8, 7, 9])
    np.testing.assert_array_equal(first[0], first[3])
    np.testing.assert_array_equal(first[1], gym.make("CartPole-v1").reset(seed=8)[0])


def test_evaluation_keeps_async_and_vector_only_envs():
    env = evaluation_env(make_vect_envs("CartPole-v1", 1, backend="async"), 2)
    assert isinstance(env, AsyncVectorEnv)
    env.close()
    assert isinstance(evaluation_env(make_vect_envs(OwnVector, 2, backend="vector"), 3), OwnVector)
    with pytest.raises(ConfigurationError, match="it is unknown how it was made"):
        evaluation_env(OwnVector(2), 4)
    by_hand = gym.make_vec("CartPole-v1", num_envs=2)
    assert isinstance(evaluation_env(by_hand, 3), SyncVectorEnv)


# ---- recipes in files


def test_a_factory_is_written_as_its_import_path_and_an_import_path_stays_one():
    assert env_config_of(make_vect_envs(CARTPOLE, 2)).env == import_path("env_name", CartPoleEnv) == CARTPOLE


@pytest.mark.parametrize(
    ("wrapper", "written"),
    [
        ("ClipAction", "ClipAction"),
        (("TimeLimit", {"max_episode_steps": 3}), {"name": "TimeLimit", "max_episode_steps": 3}),
        (Twice, f"{__name__}:Twice"),
    ],
)
def test_wrappers_are_written_as_configurations_name_them(wrapper, written):
    assert to_json(wrapper) == written
    check_wrapper(written)


@pytest.mark.parametrize(
    "write",
    [
        lambda: import_path("env_name", lambda: CartPoleEnv()),
        lambda: import_path("env_name", partial(CartPoleEnv)),
        lambda: to_json(lambda env: env),
        lambda: plain("env_kwargs", {"render": object()}),
    ],
)
def test_what_cannot_be_written_is_named(write):
    with pytest.raises(ConfigurationError, match=r"^(env_name|wrappers|env_kwargs)=.*cannot be written"):
        write()


# ---- mistakes


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("x = 1\ndef make(:", r"SyntaxError: invalid syntax \(File \S+own_of_a_test.py\", line 2\)"),
        ("x = undefined", r"NameError: name 'undefined' is .* \(File \S+own_of_a_test.py\", line 1, in <module>\)"),
        ("x = 1\nraise SystemExit(3)", r"SystemExit: 3 \(File \S+own_of_a_test.py\", line 2, in <module>\)"),
        ("raise OSError('no licence')", r"OSError: no licence \(File \S+own_of_a_test.py\", line 1, in <module>\)"),
    ],
)
def test_an_exception_of_the_import_of_a_module_names_file_and_line(tmp_path, monkeypatch, code, fault):
    (tmp_path / "own_of_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=f"^env_name='own_of_a_test:make': module .* imported: {fault}$"):
        make_vect_envs("own_of_a_test:make")


def test_a_syntax_error_in_data_is_placed_at_the_line_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "own_of_a_test.py").write_text("from xml.etree import ElementTree\nElementTree.fromstring('<x>')")
    monkeypatch.syspath_prepend(tmp_path)
    fault = r"ParseError: no element found: line 1, column 3 \(File \S+own_of_a_test.py\", line 2, in <module>\)"
    with pytest.raises(ConfigurationError, match=fault):
        make_vect_envs("own_of_a_test:make")


@pytest.mark.parametrize("error", [Terminated, KeyboardInterrupt])
def test_signals_during_an_import_end_the_process(tmp_path, monkeypatch, error):
    (tmp_path / "own_of_a_test.py").write_text(f"from {error.__module__} import {error.__name__} as E\nraise E")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error):
        make_vect_envs("own_of_a_test:make")


def forgetful(env: gym.Env) -> None:
    gym.wrappers.TimeLimit(env, 100)  # the return is missing


def picky(level: int) -> gym.Env:
    if level < 4:
        raise ValueError(f"level={level} is too low")
    assert level % 2 == 0, "an even one is wanted"
    return CartPoleEnv()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_vect_envs(), "exactly one"),
        (lambda: make_vect_envs("CartPole-v1", make_env=CartPoleEnv), "exactly one"),
        (lambda: make_vect_envs(3), "env_name=3"),  # pyright: ignore[reportArgumentType]
        (lambda: make_vect_envs("CartPole-v1", 0), "num_envs=0; allowed"),
        (lambda: make_vect_envs("CartPole-v1", 2.0), "num_envs=2.0; allowed"),  # pyright: ignore[reportArgumentType]
        (lambda: make_vect_envs("CartPole-v1", backend="snyc"), "backend='snyc'.*'sync'"),  # pyright: ignore[reportArgumentType]
        (
            lambda: make_vect_envs("CartPole-v1", autoreset="foo"),
            "autoreset='foo' is unknown; allowed are: Disabled, Nex",
        ),
        (lambda: make_vect_envs("CartPole-v1", autoreset="same_step"), "did you mean 'SameStep'"),
        (lambda: make_vect_envs("CartPol-v1"), "CartPol-v1.*did you mean 'CartPole-v1'"),
        (lambda: make_vect_envs("LunarLander-v2"), "LunarLander-v2.*LunarLander-v3"),
        (lambda: make_vect_envs("Nowhere/Ping-v5"), "'package:Env-v0'"),
        (lambda: make_vect_envs("no_such_module:Env-v0"), "no_such_module.*cannot be imported"),
        (lambda: make_vect_envs("gymnasium.envs:Nothing"), "Nothing"),
        (lambda: make_vect_envs("agilerl_like.envs:Prob"), "did you mean 'Probe'"),  # imported on first access
        (
            lambda: make_vect_envs("multi_agent_envs:Scripted", env_kwargs={"a": "oT"}),
            "allowed is a gymnasium.Env .multi-agent environments have algorithm.n",
        ),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=["FrameStak"]), "FrameStak.*FrameStackObservation"),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=["vector"]), "wrappers='vector' is unknown"),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=[f"{__name__}:Twize"]), "Twize.*'Twice'"),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=["no_such_module:W"]), "no_such_module.*cannot be imported"),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=[{"nam": "W"}]), "has no name"),
        (lambda: make_vect_envs("Pendulum-v1", wrappers=[7]), "wrappers: 7; allowed"),  # pyright: ignore[reportArgumentType]
        (lambda: make_vect_envs("CartPole-v1", wrappers=["ClipReward"]), "wrappers: 'ClipReward' cannot.*min_reward"),
        (lambda: make_vect_envs("CartPole-v1", wrappers=["ClipAction"]), "wrappers: 'ClipAction' cannot"),
        (lambda: make_vect_envs("CartPole-v1", wrappers=[("TimeLimit", {"steps": 3})]), "wrappers: .*'steps'"),
        (
            lambda: make_vect_envs("CartPole-v1", wrappers=[("TimeLimit", 100)]),
            r"wrappers: \('TimeLimit', 100\); allowed",
        ),
        (
            lambda: make_vect_envs("CartPole-v1", wrappers=[forgetful]),
            "wrappers: .*forgetful.* returned None; allowed is",
        ),
        (
            lambda: make_vect_envs("CartPole-v1", backend="vector", wrappers=["ClipReward"]),
            "'ClipReward' wraps single envs; allowed",
        ),
        (lambda: make_vect_envs("Pendulum-v1", backend="vector"), "no native vector env"),
        (lambda: make_vect_envs("Pendulum-v1", gravitation=3.0), "env_kwargs=.*gravitation.*Pendulum-v1"),
        (lambda: make_vect_envs("CartPole-v1", backend="vector", gravitation=3.0), "env_kwargs=.*gravitation"),
        (lambda: make_vect_envs(CartPoleEnv, gravitation=3.0), "env_kwargs=.*gravitation"),
        (
            lambda: make_vect_envs(picky, level=3),
            r"env_kwargs=\{'level': 3\} do not suit env_name=.*level=3 is too low",
        ),
        (lambda: make_vect_envs(picky, 2, level=5), r"env_kwargs=\{'level': 5\} do not suit .*an even one is wanted"),
        (lambda: make_vect_envs(lambda: CartPoleVectorEnv(2)), "backend='vector'"),
        (lambda: make_vect_envs(lambda: 3), "returned 3"),
        (lambda: make_vect_envs(lambda num_envs: CartPoleEnv(), backend="vector"), "must return a VectorEnv"),
        (lambda: make_vect_envs(lambda num_envs: CartPoleVectorEnv(7), 2, backend="vector"), "num_envs=2"),
        (lambda: make_vect_envs(CartPoleEnv, backend="envpool"), "is a factory|pip install"),
    ],
)
def test_errors_name_field_value_and_what_is_allowed(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


@pytest.mark.parametrize(
    "make",
    [
        lambda one: make_vect_envs(lambda: one, 2),
        lambda one: make_vect_envs(lambda: one, 2, wrappers=["FlattenObservation"]),  # in a wrapper each
        lambda one: with_num_envs(SyncVectorEnv([lambda: one]), 2),
        lambda one: with_num_envs(SyncVectorEnv([lambda: Twice(one)]), 2),
        lambda one: VecEnvAdapter(SyncVectorEnv([lambda: one] * 2)),
        lambda one: VecEnvAdapter(gym.wrappers.vector.ClipReward(SyncVectorEnv([lambda: one] * 2), max_reward=0.5)),
    ],
)
def test_a_factory_that_returns_one_env_twice_is_refused(make):
    with pytest.raises(ConfigurationError, match="returned one and the same env twice; it must make new ones"):
        make(CartPoleEnv())


def test_a_missing_package_is_named_with_its_extra():
    if importlib.util.find_spec("mujoco") is None:
        with pytest.raises(ConfigurationError, match=r"Hopper-v5.*needs a package.*mujoco"):
            make_vect_envs("Hopper-v5", backend="sync")

    def lander():
        raise gym.error.DependencyNotInstalled("Box2D is not installed")

    gym.register("TestLander-v0", entry_point=lander)
    gym.register("gone/TestLander-v0", entry_point="gymnasium.envs.box2d.gone:Lander")
    try:
        with pytest.raises(ConfigurationError, match=r"TestLander-v0.*Box2D is not installed"):
            make_vect_envs("TestLander-v0", backend="sync")
        with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[box2d\]'"):
            make_vect_envs("gone/TestLander-v0", backend="sync")
    finally:
        del gym.registry["TestLander-v0"], gym.registry["gone/TestLander-v0"]


def test_an_argument_that_an_id_refuses_is_named():
    pytest.importorskip("Box2D")
    with pytest.raises(ConfigurationError, match=r"env_kwargs=\{'gravity': 5\} do not suit .*between -12 and 0"):
        make_vect_envs("LunarLander-v3", 2, gravity=5)


@pytest.mark.parametrize("backend", ["auto", "vector", "sync", "workers", "async"])
@pytest.mark.parametrize("limit", ["a", -5, 0, 2.5, True])
def test_a_time_limit_is_a_whole_number_from_1(backend, limit):
    with pytest.raises(ConfigurationError, match=f"max_episode_steps={limit!r}; allowed are whole numbers from 1"):
        make_vect_envs("CartPole-v1", 2, backend=backend, max_episode_steps=limit)


def cut_after(env: VectorEnv) -> int | None:
    """Steps until an episode is cut off, among 300."""
    adapter = VecEnvAdapter(env)
    adapter.reset(0)
    return next((step for step in range(1, 301) if adapter.step(np.arange(2) + step & 1).truncated.any()), None)


def test_a_time_limit_may_be_left_to_the_env_or_out():
    assert cut_after(make_vect_envs("CartPole-v1", 2, max_episode_steps=np.int64(3))) == 3
    assert cut_after(make_vect_envs("CartPole-v1", 2, max_episode_steps=np.int64(3), backend="sync")) == 3
    assert env_config_of(make_vect_envs("CartPole-v1", 2, max_episode_steps=None)).backend == "vector"
    assert cut_after(make_vect_envs("CartPole-v1", 2, max_episode_steps=None)) is None  # 500 come later
    none = make_vect_envs("Pendulum-v1", 2, max_episode_steps=-1, backend="sync")
    assert isinstance(none, SyncVectorEnv)
    assert ["TimeLimit" in str(single) for single in none.envs] == [False, False]
    assert (
        env_config_of(make_vect_envs("CartPole-v1", 2, max_episode_steps=-1)).backend == "sync"
    )  # native ones know none
    with pytest.raises(ConfigurationError, match="max_episode_steps=-1; allowed"):
        make_vect_envs("CartPole-v1", 2, max_episode_steps=-1, backend="vector")


def test_an_exception_in_a_users_factory_names_it_and_is_the_cause():
    def broken():
        return len(3)  # pyright: ignore[reportArgumentType]

    with pytest.raises(EnvStepError, match=r"broken: construction failed with TypeError: .* has no len") as found:
        make_vect_envs(broken)
    assert isinstance(found.value.__cause__, TypeError)


@pytest.mark.parametrize("given", ["id", "factory"])
def test_a_warning_that_all_envs_give_is_shown_once_for_a_vector_env(given):
    rescaled = ("RescaleAction", {"min_action": -1.0, "max_action": 1.0})
    source = "Pendulum-v1" if given == "id" else lambda: gym.make("Pendulum-v1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        make_vect_envs(source, 4, backend="sync", wrappers=[rescaled]).close()
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == len({*texts}) == 2
    assert all("precision lowered by casting to float32" in text for text in texts)


def test_text_for_a_function_of_a_wrapper_is_refused_where_envs_are_made():
    for field in ("wrappers", "training_wrappers"):
        with pytest.raises(ConfigurationError, match="TransformReward has func='own:scale', which is text; allowed is"):
            make_vect_envs("Pendulum-v1", 1, **{field: [{"name": "TransformReward", "func": "own:scale"}]})
    make_vect_envs("Pendulum-v1", 1, wrappers=[("TransformReward", {"func": lambda reward: reward / 8})]).close()
