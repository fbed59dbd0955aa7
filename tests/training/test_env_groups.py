"""Envs with two env groups: equal results, and one group steps while the other's actions are computed."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensor_envs import Beads, InHalves

from agilerl_like import PPO, Mutations, TournamentSelection, train_on_policy
from agilerl_like.envs import VecEnvAdapter
from agilerl_like.training.collector import Collector, PhaseTimer

MEMBERS, ENVS, STEPS = 3, 5, 32
WORLDS = {
    "same step": {},
    "same step, continuous": {"continuous": True},
    "next step": {"mode": AutoresetMode.NEXT_STEP},
    "next step, masks": {"mode": AutoresetMode.NEXT_STEP, "masks": True},
}


def population_of(env):
    mlp = {"hidden_size": [16]}
    return PPO.population(
        MEMBERS,
        env.single_observation_space,
        env.single_action_space,
        net_config={"encoder_config": mlp, "head_config": mlp, "latent_dim": 16},
        num_envs=ENVS,
        learn_step=ENVS * STEPS,
        batch_size=32,
        seed=3,
    )


def collector_of(env):
    collector = Collector(population_of(env), VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset(range(len(collector.population)))
    return collector


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_env_groups_give_the_rollout_of_a_single_group(world):
    rows = MEMBERS * ENVS
    parted, whole = (collector_of(env) for env in (InHalves(rows, **world), Beads(rows, np, **world)))
    assert [part.columns for part in parted.groups[""].env_groups] == [slice(0, 2), slice(2, 5)]
    for _ in range(2):
        for ticks in (1, 20, STEPS - 21):
            assert parted.collect(ticks) == whole.collect(ticks) == ticks
        ours, theirs = (collector.groups[""].experience([2, 0], STEPS) for collector in (parted, whole))
        assert bool((ours == theirs).all())
        assert parted.pop_scores() == whole.pop_scores()


def test_one_group_steps_while_the_others_actions_are_computed():
    env = InHalves(MEMBERS * ENVS)
    collector = collector_of(env)
    collector.collect(3)
    first = ["send 0", "send 1"]
    assert env.journal == [*first, *["receive 0", "send 0", "receive 1", "send 1"] * 2, "receive 0", "receive 1"]


def test_should_stop_ends_collection_after_any_step_without_pending_steps():
    env = InHalves(MEMBERS * ENVS)
    collector = collector_of(env)
    asked = iter([False, False, True])
    assert collector.collect(STEPS, should_stop=lambda: next(asked)) == 3
    assert env.sent == [None, None]
    assert collector.groups[""].steps_since_update.tolist() == [3] * MEMBERS
    assert collector.vector_steps_until_update == STEPS - 3


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_step_merges_the_env_groups(world):
    parted, whole = (VecEnvAdapter(kind) for kind in (InHalves(6, **world), Beads(6, np, **world)))
    parted.set_num_members(3)
    assert parted.columns == (slice(0, 1), slice(1, 2))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(parted.reset(range(6)), whole.reset(range(6)))
    for _ in range(30):
        actions = rng.uniform(-1, 1, (6, 1)).astype(np.float32) if "continuous" in world else rng.integers(2, size=6)
        ours, theirs = parted.step(actions), whole.step(actions)
        for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=name)
        assert (ours.next_obs is ours.obs) == (theirs.next_obs is theirs.obs)


def test_env_groups_that_split_members_unequally_step_as_one():
    class Unlike(InHalves):
        def set_num_members(self, num_members):
            super().set_num_members(1)  # the first half of all rows: of three members one and a half

    collector = collector_of(Unlike(MEMBERS * ENVS))
    assert len(collector.groups[""].env_groups) == 1
    whole = collector_of(Beads(MEMBERS * ENVS, np))
    for each in (collector, whole):
        each.collect(STEPS)
    assert torch.equal(*(each.groups[""].experience([0, 1, 2], STEPS).observations for each in (collector, whole)))


def test_a_run_with_env_groups_equals_a_run_without():
    weights = []
    for env in (InHalves(MEMBERS * ENVS), Beads(MEMBERS * ENVS, np)):
        population, _ = train_on_policy(
            env,
            pop=population_of(env),
            eval_env=Beads(MEMBERS * 2, np),
            max_steps=400,
            evo_steps=200,
            eval_loop=2,
            verbose=False,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(no_mutation=0.2, architecture=0.8, rl_hp=0, parameters=0),
        )
        weights.append(torch.cat([p.detach().reshape(-1) for agent in population for p in agent.network.parameters()]))
    assert torch.equal(*weights)
