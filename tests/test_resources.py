"""Counts that exceed the memory of the machine are errors before anything is allocated."""

import os
import re

import psutil
import pytest
from gymnasium.spaces import Box, Discrete

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    HyperparameterConfig,
    RLParameter,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.resources import available_cores, check_memory, format_bytes

SEES, DOES = Box(-1, 1, (5,)), Discrete(3)
WIDE = {"hidden_size": [10**9, 10**9], "max_mlp_nodes": 10**9}
ENDLESS = {"hidden_size": 16, "num_blocks": 10**9, "max_blocks": 10**9}
# two networks of which each takes 0.3 of all memory in its actor and its critic, at 16 bytes a weight
LARGE = {"hidden_size": [round((0.6 * psutil.virtual_memory().total / 16 / 2) ** 0.5)] * 2, "max_mlp_nodes": 10**6}
OUT_OF_SIGHT = {"hidden_size": [10**15, 10**15], "max_mlp_nodes": 10**15}


def test_memory_limit_is_exact():
    have = psutil.virtual_memory().total
    check_memory("size=1", have // 8, 8, "members")
    with pytest.raises(ConfigurationError, match=rf"^size=9 needs .*: allowed are at most {have // 8} members$"):
        check_memory("size=9", have // 8 + 1, 8, "members")


@pytest.mark.parametrize(("beside", "share"), [("1", 8), ("2", 4), ("3", 2), ("9", 1), ("0", 8), ("", 8), ("many", 8)])
def test_cores_are_shared_with_the_processes_that_were_started_together(monkeypatch, beside, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", beside)
    assert available_cores() == share


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (25_300_000_000, "25.3 GB"), (4e21, "4e+03 EB")]
)
def test_bytes_have_units(size, words):
    assert format_bytes(size) == words


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPO(SEES, DOES, learn_step=10**12), "learn_step=1000000000000 needs at least 40 TB"),  # 5 + 1 + 4 x 4
        (lambda: PPO(SEES, DOES, num_envs=10**12), "num_envs=1000000000000 needs at least 80 TB"),
        (
            lambda: PPO(SEES, DOES, hp_config=HyperparameterConfig(learn_step=RLParameter(64, 10**12))),
            "hp_config.learn_step.max=1000000000000 needs at least 40 TB",
        ),
        (lambda: PPO(SEES, DOES, net_config={"encoder_config": WIDE}), "net_config: 1000000000-1000000000 .* weights="),
        (lambda: PPO(SEES, DOES, net_config={"head_config": WIDE}), "net_config: .* 1000000000-1000000000 .* weights="),
        (lambda: PPO(SEES, DOES, net_config={"encoder_config": OUT_OF_SIGHT}), "net_config: 10{15}-10{15} .* cannot"),
        (
            lambda: PPO(SEES, DOES, net_config={"latent_dim": 10**30, "max_latent_dim": 10**30}),
            "net_config: .* cannot be built: .* unpack",
        ),
        (
            lambda: PPO(SEES, DOES, net_config={"encoder": "simba", "encoder_config": ENDLESS}),
            "net_config: 1000000000x16 .* cannot be built: .* far more layers",
        ),
        (lambda: PPO.population(10**9, SEES, DOES), "size=1000000000 needs at least .* TB"),
        (lambda: PPO.population(2, SEES, DOES, net_config={"head_config": LARGE}), "size=2 needs .* at most 1 members"),
        (lambda: IPPO({"a_0": SEES, "a_1": SEES}, {"a_0": DOES, "a_1": DOES}, learn_step=10**12), "=10{12} .* 80 TB"),
        (
            lambda: IPPO({"a_0": SEES, "b_0": SEES}, {"a_0": DOES, "b_0": DOES}, net_config={"head_config": LARGE}),
            r"net_config: the networks of all groups have weights \(a: \d+, b: \d+\) and needs at least",
        ),
        (lambda: IPPO.population(10**9, {"a": SEES}, {"a": DOES}), "size=1000000000 needs at least .* TB"),
        (lambda: make_vect_envs("CartPole-v1", num_envs=10**12), "num_envs=1000000000000 needs at least 32 TB"),
        (
            lambda: make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 10**12),
            "num_envs=1000000000000 needs at least 32 TB",
        ),
    ],
)
def test_an_absurd_count_is_refused_with_what_would_fit(make, message):
    before = psutil.Process().memory_info().rss
    with pytest.raises(ConfigurationError, match=message) as refused:
        make()
    assert psutil.Process().memory_info().rss - before < 2**26
    assert re.search(r"this machine has .*: allowed are at most \d+ \w|cannot be built", str(refused.value))


def test_a_loaded_agent_may_have_learned_on_a_larger_machine(tmp_path):
    """Acting needs no rollout buffer, learning does: the error comes there."""
    agent = PPO(SEES, DOES, net_config={"latent_dim": 8})
    agent.learn_step = 10**12
    loaded = PPO.load(agent.save_checkpoint(tmp_path / "agent"))
    assert loaded.learn_step == 10**12
    env = make_vect_envs("CartPole-v1", num_envs=1)
    player = PPO(env.single_observation_space, env.single_action_space, net_config={"latent_dim": 8})
    player.learn_step = 10**12
    with pytest.raises(ConfigurationError, match="learn_step=1000000000000 in 1 envs needs at least"):
        train_on_policy(env, pop=[player], max_steps=64, evo_steps=64, verbose=False)


def test_more_processes_than_a_machine_can_hold_are_not_started():
    env = make_vect_envs("CartPole-v1", num_envs=1)
    pop = PPO.population(2, env.single_observation_space, env.single_action_space, net_config={"latent_dim": 8})
    with pytest.raises(ConfigurationError, match=r"processes=1000000000 needs at least 67.1 PB"):
        train_on_policy(env, pop=pop, processes=10**9, verbose=False)
