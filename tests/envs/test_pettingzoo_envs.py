"""Vectorised PettingZoo envs: made in every way, bit-identical to the bare envs and in every backend."""

from functools import partial

import multi_agent_envs as envs
import numpy as np
import pettingzoo
import pytest
from equal_results import same
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper

from agilerl_like.envs import backend_timing
from agilerl_like.envs.factory import describe_backend, make_vect_envs
from agilerl_like.envs.multi_agent.pettingzoo import (
    MultiAgentVectorEnv,
    make_multi_agent_vect_envs,
    make_packed_env,
)
from agilerl_like.envs.multi_agent.turn_based import TurnBasedEnv
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError, EnvStepError

MPE = ("simple_speaker_listener_v4", "simple_spread_v3", "simple_adversary_v3")


def mpe(name):
    return getattr(pytest.importorskip("mpe2"), name, None) or pytest.importorskip(f"mpe2.{name}")


def same_bits(one, other):
    for field, a, b in zip(one._fields, one, other, strict=True):
        assert a is None or type(a) is type(b), field
        same(a, b)


def sampler(env, seed=0):
    """Random legal actions: masks of Manifold allow the first choice of zeta and the second of mu."""
    random = np.random.default_rng(seed)

    def sample():
        actions = {}
        for agent, space in env.single_action_spaces.items():
            if isinstance(space, Discrete):
                actions[agent] = space.start + random.integers(0, 2, env.num_envs)
            elif isinstance(space, Box):
                actions[agent] = random.uniform(0, 1, (env.num_envs, *space.shape)).astype(np.float32)
            else:
                actions[agent] = np.tile([0, 1], (env.num_envs, 1))
        return actions

    return sample


# ---- equal to the bare envs, and to themselves


@pytest.mark.parametrize("name", MPE)
@pytest.mark.parametrize("continuous", [False, True])
def test_vectorised_copies_equal_bare_envs(name, continuous):
    make = mpe(name).parallel_env
    bare = [make(continuous_actions=continuous, max_cycles=5) for _ in range(3)]
    env = make_multi_agent_vect_envs(
        make, 3, backend="sync", with_state=True, continuous_actions=continuous, max_cycles=5
    )
    steps, sample = MultiAgentVecEnvAdapter(env), sampler(env)
    observations = steps.reset([4, 5, 6])
    observed = [one.reset(seed=seed)[0] for one, seed in zip(bare, (4, 5, 6), strict=True)]
    for _ in range(12):
        for number, seen in enumerate(observed):
            same({agent: array[number] for agent, array in observations.items()}, seen)
        actions = sample()
        step = steps.step(actions)
        for number, one in enumerate(bare):
            acted = {agent: array[number] for agent, array in actions.items()}
            observed[number], rewards, terminations, truncations, _ = one.step(acted)
            state = one.state()
            same({agent: array[number] for agent, array in step.next_obs.items()}, observed[number])
            np.testing.assert_array_equal(step.next_state[number], state)
            for agent in env.agent_ids:
                assert step.reward[agent][number] == np.float32(rewards[agent])
                assert step.terminated[agent][number] == terminations[agent]
                assert step.truncated[agent][number] == truncations[agent]
            assert step.ended[number] == (not one.agents)
            if not one.agents:
                observed[number] = one.reset()[0]
        observations = step.obs
    np.testing.assert_array_equal(env.state(), step.state)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [envs.Manifold, partial(envs.Scripted, a="o.oX", b="oooooT")])
def test_workers_and_sync_are_bit_identical(factory):
    one, other = (
        make_multi_agent_vect_envs(factory, 5, backend=backend, num_workers=2, with_state=factory is envs.Manifold)
        for backend in ("sync", "workers")
    )
    assert isinstance(other.vector, SubprocVectorEnv)
    sample = sampler(one)
    same(one.reset(seed=[1, 2, 3, 4, 5]), other.reset(seed=[1, 2, 3, 4, 5]))
    for _ in range(25):
        actions = sample()
        same(one.step(actions), other.step(actions))
    here, there = MultiAgentVecEnvAdapter(one), MultiAgentVecEnvAdapter(other)
    for seeds in (7, [3, 1, 4, 1, 5]):
        same(here.reset(seeds), there.reset(seeds))
        for _ in range(25):
            actions = sample()
            same_bits(here.step(actions), there.step(actions))
            same(here.action_mask, there.action_mask)
    other.close()


def test_env_groups_equal_the_rows_of_one_step():
    whole = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(envs.Manifold, 8, backend="sync"))
    halves = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(envs.Manifold, 8, backend="workers", num_workers=2))
    halves.set_num_members(2)
    assert halves.columns == (slice(0, 2), slice(2, 4))
    rows = [np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])]
    same(whole.reset(3), halves.reset(3))
    sample = sampler(whole.env)
    for _ in range(10):
        actions = sample()
        expected = whole.step(actions)
        for part, its in enumerate(rows):
            halves.step_async(part, {agent: given[its] for agent, given in actions.items()})
        for part, its in enumerate(rows):
            step = halves.step_wait(part)
            for agent in whole.agent_ids:
                np.testing.assert_array_equal(step.reward[agent], expected.reward[agent][its])
                np.testing.assert_array_equal(step.valid[agent], expected.valid[agent][its])
                np.testing.assert_array_equal(step.acting[agent], expected.acting[agent][its])
            np.testing.assert_array_equal(step.obs["mu"], expected.obs["mu"][its])
            np.testing.assert_array_equal(step.next_obs["mu"], expected.next_obs["mu"][its])
    halves.close()


def test_an_empty_mask_names_the_env_also_in_an_env_group():
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(envs.NothingLeft, 4, backend="workers", num_workers=2))
    env.set_num_members(2)
    for stuck in range(4):
        env.reset([13 if row == stuck else row for row in range(4)])
        part = next(part for part, columns in enumerate(env.columns) if columns == slice(stuck % 2, stuck % 2 + 1))
        env.step_async(part, {agent: np.zeros(2, int) for agent in "ab"})
        with pytest.raises(EnvStepError, match=f"agent 'b', env {stuck}: action_mask=.* allows no action"):
            env.step_wait(part)
    env.close()


@pytest.mark.parametrize("name", ["Manifold", *MPE])
def test_seeds_determine_episodes(name):
    factory = envs.Manifold if name == "Manifold" else mpe(name).parallel_env
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(factory, 2, backend="sync"))

    def played(seeds):
        sample = sampler(env.env)
        beginning = env.reset(seeds)
        return beginning, [env.step(sample()) for _ in range(60)]  # more than two episodes of MPE

    (first, one), (again, other), (_, another) = played([1, 2]), played([1, 2]), played([3, 4])
    same(first, again)
    for a, b in zip(one, other, strict=True):
        same_bits(a, b)
    assert sum(step.ended.sum() for step in one) >= 4
    agent = env.agent_ids[0]
    assert any((a.reward[agent] != b.reward[agent]).any() for a, b in zip(one, another, strict=True))


def test_returned_arrays_are_not_overwritten():
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(envs.Manifold, 3, backend="sync"))
    env.reset(0)
    sample = sampler(env.env)
    step = env.step(sample())
    before = np.array(step.obs["mu"]), step.reward["mu"].copy()
    step.obs["mu"].fill(1)
    for array in (step.valid, step.acting):
        array["zeta"].fill(False)
    after = env.step(sample())
    assert after.valid["zeta"].any()
    np.testing.assert_array_equal(step.obs["mu"], np.ones_like(before[0]))
    np.testing.assert_array_equal(step.reward["mu"], before[1])


# ---- AgileRL's way to step


def test_step_returns_what_agilerls_vector_env_returns():
    env = make_multi_agent_vect_envs(partial(envs.Scripted, a="oT", b="ooX"), 2, backend="sync")
    assert (env.num_envs, env.agent_ids, env.possible_agents, env.agents) == (2, ("a", "b"), ("a", "b"), ["a", "b"])
    assert env.single_observation_space("a") == Box(-1e6, 1e6, (3,))
    assert env.single_action_space("b") == Discrete(8)
    observations, infos = env.reset(seed=1)
    assert observations["b"].tolist() == [[100, 0, 1], [200, 0, 1]]
    assert infos["a"]["acting"].tolist() == [True, True]
    actions = {"a": [1, 2], "b": [3, 4]}
    _, rewards, terminated, truncated, infos = env.step(actions)
    np.testing.assert_allclose(rewards["b"], [10.03, 10.04], rtol=1e-6)
    assert (terminated["a"].tolist(), truncated["a"].tolist()) == ([True, True], [False, False])
    assert infos["a"]["acting"].tolist() == [False, False]
    assert infos["b"]["tick"].tolist() == [1, 1]
    observations, rewards, terminated, truncated, infos = env.step(actions)
    assert (rewards["a"].tolist(), terminated["a"].tolist()) == ([0.0, 0.0], [False, False])
    np.testing.assert_allclose(rewards["b"], [11.03, 11.04], rtol=1e-6)
    assert truncated["b"].tolist() == [True, True]
    assert observations["b"].tolist() == [[101, 0, 1], [201, 0, 1]]
    assert infos["final_obs"]["b"].tolist() == [[100, 2, 1], [200, 2, 1]]
    assert infos["_final_obs"].tolist() == [True, True]


def test_with_next_step_autoreset_an_episode_begins_in_the_step_after_the_last_one():
    vector = SyncVectorEnv([lambda: make_packed_env(partial(envs.Scripted, a="oooT"))] * 2)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env, actions = MultiAgentVectorEnv(vector), {"a": np.zeros(2, np.int64)}
    env.reset(seed=0)
    ticks, rewards, terminated, acting = [], [], [], []
    for _ in range(5):
        obs, reward, ends, _, infos = env.step(actions)
        ticks.append(obs["a"][0, 1])
        rewards.append(reward["a"][0])
        terminated.append(ends["a"].tolist())
        acting.append(infos["a"]["acting"].tolist())
        assert "final_obs" not in infos
    assert ticks == [1, 2, 3, 0, 1]
    assert rewards == [0, 1, 2, 0, 0]
    assert terminated == [[tick == 3] * 2 for tick in ticks]
    assert acting == [[tick != 3] * 2 for tick in ticks]


def test_masks_are_in_infos():
    env = make_multi_agent_vect_envs(envs.Manifold, 2, backend="sync")
    _, infos = env.reset(seed=0)
    assert infos["zeta"]["action_mask"].shape == (2, 5)
    assert "action_mask" not in infos["alpha"]


def test_state_works_in_every_backend():
    for backend in ("sync", "workers"):
        env = make_multi_agent_vect_envs(envs.Manifold, 2, backend=backend)
        assert env.state_space == Box(-1, 1, (2, 2), np.float64)
        env.reset(seed=0)
        assert env.state().shape == (2, 2, 2)
        env.close()
    stateless = make_multi_agent_vect_envs(partial(envs.Scripted, a="oT"), backend="sync")
    with pytest.raises(ConfigurationError, match="allowed are envs with a state_space"):
        stateless.state()


# ---- recipes


def test_an_env_is_remade_from_its_config_with_another_number_of_copies():
    pytest.importorskip("mpe2")
    module = pytest.importorskip("mpe2.simple_spread_v3")
    env = make_multi_agent_vect_envs(module.parallel_env, 2, backend="sync", N=2, max_cycles=7)
    assert env.env_config.env_kwargs["source"] == "mpe2.simple_spread_v3:parallel_env"
    again = MultiAgentVectorEnv(env.env_config.make())
    same(env.reset(seed=3), again.reset(seed=3))
    wide = env.with_num_envs(5)
    assert (wide.num_envs, wide.agent_ids, wide.with_state) == (5, ("agent_0", "agent_1"), False)
    assert env.eval_env(4).num_envs == 4
    central = make_multi_agent_vect_envs(module.parallel_env, 3, backend="sync", with_state=True, N=2, max_cycles=7)
    steps = MultiAgentVecEnvAdapter(central.with_num_envs(4))
    assert steps.state is None
    steps.reset(0)
    assert steps.state.shape == (4, *central.state_space.shape)


@pytest.mark.parametrize(
    "source", ["mpe2.simple_spread_v3", "mpe2.simple_spread_v3:parallel_env", "mpe2.simple_spread_v3:env"]
)
def test_envs_are_made_from_import_paths(source):
    pytest.importorskip("mpe2")
    env = make_multi_agent_vect_envs(source, backend="sync", env_kwargs={"N": 2})
    assert env.agent_ids == ("agent_0", "agent_1")


def test_envs_are_made_from_registry_ids():
    pettingzoo.register("parallel", "tests/lives-v0", envs.Scripted, kwargs={"a": "oT"})
    try:
        env = make_multi_agent_vect_envs("tests/lives-v0", 2, backend="sync", b="ooT")
        assert env.agent_ids == ("a", "b")
        assert env.env_config.env_kwargs["source"] == "tests/lives-v0"
    finally:
        del pettingzoo.parallel_registry["tests/lives-v0"]


class Doubled(BaseParallelWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def step(self, actions):
        observations, rewards, *rest = self.env.step(actions)
        return observations, {agent: self.factor * reward for agent, reward in rewards.items()}, *rest


@pytest.mark.parametrize(("wrapper", "factor"), [(Doubled, 2.0), ({"name": f"{__name__}:Doubled", "factor": 3.0}, 3.0)])
def test_wrappers_wrap_each_env(wrapper, factor):
    make = partial(envs.Scripted, a="ooT")
    env = make_multi_agent_vect_envs(make, 2, backend="sync", extra_wrappers=[wrapper])
    env.reset(seed=0)
    env.step({"a": np.array([0, 0])})
    assert env.step({"a": np.array([0, 0])})[1]["a"].tolist() == [factor] * 2


@pytest.mark.parametrize("wrapper", [Doubled, f"{__name__}:Doubled", {"name": f"{__name__}:Doubled"}])
def test_a_single_wrapper_needs_no_sequence(wrapper):
    env = make_multi_agent_vect_envs(partial(envs.Scripted, a="ooT"), 2, backend="sync", extra_wrappers=wrapper)
    assert env.env_config.env_kwargs["extra_wrappers"] == (wrapper,)


def test_auto_chooses_sync_for_fast_envs_and_agilerls_flag_overrides(monkeypatch):
    make = envs.Manifold
    monkeypatch.setattr(backend_timing, "mean_step_seconds", lambda env: 1e-4)  # a busy machine measures milliseconds
    assert describe_backend(make_multi_agent_vect_envs(make, 2).vector).startswith("sync, because")
    for flag, backend in ((True, "workers"), (False, "sync")):
        env = make_multi_agent_vect_envs(make, 2, should_async_vector=flag)
        assert env.env_config.backend == backend
        env.close()
    with pytest.raises(ConfigurationError, match="should_async_vector=True contradicts backend='sync'"):
        make_multi_agent_vect_envs(make, 2, should_async_vector=True, backend="sync")


# ---- AEC envs


def test_aec_envs_are_converted_and_equal_the_parallel_env():
    module = mpe("simple_speaker_listener_v4")
    one, other = (make_multi_agent_vect_envs(make, 2, backend="sync") for make in (module.env, module.parallel_env))
    same(one.reset(seed=1)[0], other.reset(seed=1)[0])
    sample = sampler(one)
    for _ in range(30):
        actions = sample()
        same(one.step(actions), other.step(actions))


def test_aec_envs_compute_each_observation_once_a_step():
    raw = mpe("simple_spread_v3").raw_env(max_cycles=5)
    asked, observe = [], raw.observe
    raw.observe = lambda agent: asked.append(agent) or observe(agent)
    env = make_packed_env(lambda: aec_to_parallel(raw))
    env.reset(seed=1)
    for _ in range(5):
        asked.clear()
        ended = env.step(env.action_space.sample())[2]
        assert sorted(asked) == list(env.agents)
    assert ended


def test_a_parallel_env_converted_to_aec_is_unwrapped():
    env = make_packed_env(lambda: parallel_to_aec(envs.Scripted(a="ooT")))
    assert type(env.env) is envs.Scripted


# ---- bad input


class Speaking(envs.Scripted):
    def __init__(self):
        super().__init__(a="oT")
        self.observation_spaces = {"a": Text(5)}


class StateOfParts(envs.Scripted):
    state_space = Dict({"score": Box(-1, 1, (2,)), "turn": Discrete(2)})


def nothing():
    return None


def picky(level):
    raise ValueError(f"level={level} is too low")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": envs.Scripted(a="oT")}, "is a parallel env itself, which cannot be copied; allowed is a factory"),
        ({"env": parallel_to_aec(envs.Scripted(a="oT"))}, "is an AEC env itself, which cannot be copied"),
        ({"env": 3}, "env=3; allowed are a factory, a module, 'package.module:factory', 'package.module' and ids"),
        ({"env": "butterfly/no_such_world-v0"}, "env='butterfly/no_such_world-v0' is unknown"),
        ({"env": "CartPole-v1"}, "env='CartPole-v1' is gymnasium's, with a single agent; IPPO trains multi"),
        ({"env": "no_such_module_here"}, "module 'no_such_module_here' cannot be imported"),
        ({"env": "mpe2.simple_spred_v3"}, "mpe2 has no module 'simple_spred_v3'; did you mean 'simple_spread_v3' or"),
        ({"env": "multi_agent_envs.inner"}, "cannot be imported: .*'multi_agent_envs' is not a package"),
        (
            {"env": "multi_agent_envs:Scriptd"},
            r"env \(in multi_agent_envs\)='Scriptd' is unknown; did you mean 'Scripted'",
        ),
        ({"env": "multi_agent_envs"}, r"env \(in multi_agent_envs\)='parallel_env' is unknown"),
        ({"env": nothing}, "returned None; allowed are PettingZoo's parallel and AEC envs"),
        ({"env": envs.Manifold, "env_kwargs": {"level": 3}}, r"env_kwargs=\{'level': 3\} do not suit env="),
        ({"env": envs.Manifold, "level": 3}, r"env_kwargs=\{'level': 3\} do not suit env="),
        ({"env": picky, "level": 3}, r"env_kwargs=\{'level': 3\} do not suit env=.*level=3 is too low"),
        ({"env": envs.Manifold, "num_envs": 0}, "num_envs=0; allowed are whole numbers from 1"),
        ({"env": envs.Manifold, "backend": "envpool"}, "backend='envpool' is unknown"),
        ({"env": envs.Manifold, "training_wrappers": 3}, "training_wrappers=3; allowed is a wrapper, or a list"),
        ({"env": envs.Manifold, "env_kwargs": [3]}, r"env_kwargs=\[3\] must be a mapping"),
        ({"env": envs.Manifold, "instances": 3}, "instances=3; allowed is a list of mappings"),
        (
            {"env": envs.Manifold, "info_keys": {"cost": "env.cost"}},
            r"'env.cost'}; allowed with several agents are keys",
        ),
        ({"env": envs.Manifold, "info_keys": ["cost"]}, r"info_keys=\['cost'\]; allowed are names with keys"),
        (
            {"env": envs.Manifold, "extra_wrappers": [3]},
            r"wrappers \(in Python extra_wrappers\): 3; allowed are a name",
        ),
        ({"env": envs.Manifold, "extra_wrappers": [Discrete]}, "extra_wrappers.: .*Discrete.* cannot go around"),
        ({"env": Speaking}, r"observation_space\('a'\)=Text.* of scripted; allowed are Box, Discrete"),
        (
            {"env": partial(envs.Scripted, a="oT"), "with_state": True},
            "with_state=True needs an env with a state_space",
        ),
        (
            {"env": partial(StateOfParts, a="oT"), "with_state": True},
            r"with_state=True: scripted has state_space=Dict\(.*; allowed is the space of one array",
        ),
        ({"env": envs.Unequal, "num_envs": 2}, "the copies of env have unequal spaces"),
    ],
)
def test_mistakes_are_one_clear_error(given, message):
    with pytest.raises(ConfigurationError, match=message):
        make_multi_agent_vect_envs(**{"backend": "sync", **given})


def test_unequal_spaces_in_workers_are_named():
    env = make_multi_agent_vect_envs(envs.Unequal, 4, backend="workers", num_workers=1)
    with pytest.raises(EnvStepError, match=r"PackedSpace\(a: Discrete\(2\)\)"):
        env.reset(seed=0)


def test_single_agent_vector_envs_are_refused():
    vector = make_vect_envs("CartPole-v1", 2)
    with pytest.raises(
        ConfigurationError, match="is not a multi-agent vector env; make_multi_agent_vect_envs makes one"
    ):
        MultiAgentVectorEnv(vector)
    with pytest.raises(ConfigurationError, match="is not a multi-agent vector env"):
        MultiAgentVecEnvAdapter(VecEnvAdapter(vector))


ONE_ENV = {
    "wrapped": lambda one: BaseParallelWrapper(one),
    "AEC": lambda one: parallel_to_aec(one),
    "turns": lambda one: BaseParallelWrapper(TurnBasedEnv(parallel_to_aec(one))),
}


@pytest.mark.parametrize("wrap", ONE_ENV.values(), ids=ONE_ENV)
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_a_factory_that_returns_the_same_env_twice_is_refused(wrap, backend):
    one = envs.Scripted(a="oo")
    with pytest.raises(
        (ConfigurationError, EnvStepError),
        match=r"function.* returned one and the same env twice; it must make new ones",
    ):
        make_multi_agent_vect_envs(lambda: wrap(one), 2, backend=backend, num_workers=1).reset(seed=0)
