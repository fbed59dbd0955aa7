"""Envs of tensors: the same numbers as numpy's, and nothing of them is looked at while they are stepped."""

import math
from collections import Counter
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from small_runs import SMALL
from tensor_envs import Beads
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from agilerl_like import PPO, Mutations, TournamentSelection, make_vect_envs, train_on_policy
from agilerl_like.envs import VecEnvAdapter
from agilerl_like.envs.tensor_envs import TENSOR_ENVS
from agilerl_like.errors import EnvStepError
from agilerl_like.training.best_agent import CONFIRMATION_EPISODES
from agilerl_like.training.collector import Collector, PhaseTimer


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


MEMBERS, ENVS, STEPS = 2, 4, 32
ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim")
CROSSING = ("numpy", "__array__", "tolist", "item", "cpu", "cuda", "__bool__", "__int__", "__float__")


class Asked(TorchDispatchMode):
    """Counts the kernels whose result the host must wait for."""

    def __init__(self):
        super().__init__()
        self.kernels = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        moved = name == "_to_copy" and (kwargs or {}).get("device") not in (None, args[0].device)
        if (
            name in ASKING
            or moved
            or (name == "index" and any(i.dtype is torch.bool for i in args[1] if i is not None))
        ):
            self.kernels[name] += 1
        return func(*args, **(kwargs or {}))


class Crossed(TorchFunctionMode):
    """Counts the calls by which numbers go from torch to the host or back."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        made_of_python = name in ("tensor", "as_tensor", "asarray") and not isinstance(args[0], torch.Tensor)
        uploaded = name == "to" and isinstance(args[1], torch.device)
        if name in CROSSING or made_of_python or uploaded:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def population_of(env, **settings):
    spaces = VecEnvAdapter(env).single_observation_space, env.single_action_space
    defaults = {"num_envs": ENVS, "learn_step": ENVS * STEPS, "batch_size": 32, "lr": 3e-3, "gamma": 0.9, "seed": 3}
    return PPO.population(MEMBERS, *spaces, net_config=SMALL, **{**defaults, **settings})


def collector_of(env, **settings):
    collector = Collector(population_of(env, **settings), VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset(range(len(collector.population)))
    return collector


WORLDS = {
    "same step": {},
    "same step, continuous": {"continuous": True},
    "same step, masks": {"masks": True},
    "same step, no final_obs": {"final": False},
    "same step, Isaac Lab's dictionary": {"policy_key": True},
    "next step": {"mode": AutoresetMode.NEXT_STEP},
    "next step, masks": {"mode": AutoresetMode.NEXT_STEP, "masks": True},
    "disabled": {"mode": AutoresetMode.DISABLED, "continuous": True},
}


def on_accelerator(kind):
    """An env of the package that reads its tensors no more than on an accelerator."""
    env = kind(MEMBERS * ENVS)
    env._free_reads = False
    return env


@pytest.mark.parametrize(
    "make",
    [*(partial(Beads, MEMBERS * ENVS, **world) for world in WORLDS.values()),
     *(partial(on_accelerator, kind) for kind in TENSOR_ENVS.values())],
    ids=[*WORLDS, *TENSOR_ENVS],
)  # fmt: skip
def test_stepping_tensor_envs_does_not_synchronize(make):
    collector = collector_of(make())
    collector.collect(1)  # the first one puts cohorts together
    with Asked() as asked, Crossed() as crossed:
        collector.collect(STEPS - 1)
    assert not asked.kernels
    assert not {name for name in crossed.calls if name != "to"}  # which does nothing where all is on one device
    with Asked() as asked, Crossed() as crossed:
        collector.groups[""].experience([0, 1], STEPS)
    assert asked.kernels  # those who watch can see
    assert crossed.calls["__bool__"]


@pytest.mark.parametrize("continuous", [False, True])
def test_numpy_envs_cost_one_transfer_a_step(continuous):
    """On an accelerator that is one copy of the actions to the host, and one of the observations to the device."""
    env = Beads(MEMBERS * ENVS, np, mode=AutoresetMode.NEXT_STEP, continuous=continuous)
    collector = collector_of(env)
    collector.collect(1)
    with Asked() as asked, Crossed() as crossed:
        collector.collect(STEPS)
    assert not asked.kernels
    assert crossed.calls == {"cpu": STEPS, "numpy": STEPS, "to": STEPS}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_tensors_and_numpy_give_the_same_rollouts(world):
    in_numpy = {**world, "policy_key": False}  # where it would be a key as any other
    collectors = [collector_of(Beads(MEMBERS * ENVS, xp, **given)) for xp, given in ((torch, world), (np, in_numpy))]
    rollouts = []
    for collector in collectors:
        with pytest.warns(UserWarning, match="final_obs") if not world.get("final", True) else nullcontext():
            collector.collect(STEPS)
            collector.env.check()
        rollouts.append(collector.groups[""].experience([1, 0], STEPS))
    ours, theirs = rollouts
    assert bool((ours == theirs).all())
    resets_at_once = world.get("mode") is not AutoresetMode.NEXT_STEP
    assert (ours.final_observations.time.shape[1] > 0) == resets_at_once
    assert (ours.masks is not None) == world.get("masks", False)
    scores = [collector.pop_scores() for collector in collectors]
    assert scores[0] == scores[1]
    assert np.isfinite(scores).all()
    assert np.isnan(collectors[0].pop_scores()).all()  # nothing ended since


def test_last_observations_are_those_of_the_episodes_that_were_cut():
    """A bead without force stays at its start, and is truncated after 12 steps with its clock at 12 / 12."""
    collector = collector_of(Beads(MEMBERS * ENVS, continuous=True))
    collector.groups[""].learners.act = lambda seen, state, mask, noise: (torch.zeros(*seen.shape[:2], 1), state)
    collector.collect(25)
    last = collector.groups[""].experience([0, 1], 25).final_observations
    assert last.time.tolist() == [[11] * 4 + [23] * 4] * 2
    assert (last.observations[..., 1] == 1.0).all()
    starts = collector.groups[""].experience([0, 1], 25).observations[:, [0, 12], :, 0]
    assert torch.equal(last.observations[..., 0], starts.flatten(1))


@pytest.mark.parametrize("xp", [torch, np])
def test_the_mask_of_a_last_observation_is_in_final_info(xp):
    env, known = VecEnvAdapter(Beads(6, xp, masks=True)), 0
    env.reset(0)
    for _ in range(14):
        step = env.step(xp.zeros(6, dtype=xp.int64))
        if step.ended.any():
            x = np.asarray(step.next_obs[:, 0])
            np.testing.assert_array_equal(step.last_mask, np.stack([x > -0.9, x < 0.9, x > 5], 1))
            known += 1
    assert known > 2


def test_a_missing_final_obs_is_replaced_with_one_warning():
    env = VecEnvAdapter(Beads(3, final=False, continuous=True))
    env.reset(0)
    for _ in range(11):
        before = env.step(torch.zeros(3, 1)).obs
    step = env.step(torch.zeros(3, 1))
    assert step.truncated.all()
    assert torch.equal(step.next_obs, before)
    with pytest.warns(UserWarning, match="final_obs"):
        env.check()
    env.check()  # no second one, which would be an error here


def test_final_obs_of_some_rows_only():
    class Forgetful(Beads):
        def info(self, **more):
            known = self.rows > 0
            return {"final_observation": more["final_obs"], "_final_observation": known} if more else {}

    env = VecEnvAdapter(Forgetful(3, continuous=True))
    env.reset(0)
    for _ in range(11):
        before = env.step(torch.zeros(3, 1)).obs
    after = env.step(torch.zeros(3, 1)).next_obs
    assert torch.equal(after[0], before[0])
    assert after[1:, 1].tolist() == [1.0, 1.0]  # the clock at the limit
    with pytest.warns(UserWarning, match="final_obs"):
        env.check()


def train(xp, steps, **world):
    def make(num_envs):
        return Beads(num_envs, xp, **world)

    return train_on_policy(
        make_vect_envs(make, ENVS, backend="vector"),
        pop=population_of(make(1)),
        max_steps=steps,
        evo_steps=steps // 2,
        eval_loop=4,
        verbose=False,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0.0, rl_hp=0.0, architecture=1.0, parameters=0.0),
    )


@pytest.mark.parametrize("continuous", [False, True])
def test_a_tensor_env_is_solved(continuous):
    """The only way to be paid 1 a step is to go to 0, so from each place the bead must be pushed there."""
    population, _ = train(torch, 1600, continuous=continuous)
    x = np.array([-0.75, -0.5, -0.25, 0.25, 0.5, 0.75], np.float32)
    best = population.best
    actions, _ = best.learner.best_actions(
        best.learner.encode(np.stack([x, np.full(6, 0.25, np.float32)], 1)), None, best.learner.initial_hidden_state
    )
    push = actions[:, 0] if continuous else 2 * actions - 1
    assert (push * np.sign(x) < -0.5).all()


def test_a_run_with_tensor_envs_equals_one_with_numpy_envs():
    (ours, fitness), (theirs, same) = (train(xp, 400, masks=True) for xp in (torch, np))
    assert fitness == same
    weights = [torch.cat([p.detach().reshape(-1) for p in pop.best.network.parameters()]) for pop in (ours, theirs)]
    assert torch.equal(*weights)


@pytest.mark.parametrize("world", [{}, {"mode": AutoresetMode.NEXT_STEP, "masks": True}], ids=["same step", "next"])
def test_evaluation_checks_tensors_periodically(world):
    """All beads are cut after 12 steps or fall before, so one look after 16 steps is the only one."""
    population = population_of(Beads(1, **world))
    population.run_episodes(VecEnvAdapter(Beads(6, **world)), [1, 2, 3])
    with Asked() as asked:
        ours = population.run_episodes(VecEnvAdapter(Beads(6, **world)), [1, 2, 3])
    assert asked.kernels == {"_local_scalar_dense": 1}
    theirs = population.run_episodes(VecEnvAdapter(Beads(6, np, **world)), [1, 2, 3])
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    assert ours.lengths.max() <= 12


def test_a_nan_tensor_is_found_at_the_next_check():
    class Spoiling(Beads):
        def step(self, actions):
            observation, reward, *rest = super().step(actions)
            return observation, reward * math.nan, *rest

    population = population_of(Beads(1))
    with pytest.raises(EnvStepError, match=r"Spoiling, in evaluation: .* of the first 16 steps is not finite"):
        population.run_episodes(VecEnvAdapter(Spoiling(6)), [1, 2, 3])


def test_an_env_that_cannot_be_copied_serves_training_and_evaluation():
    class Sole(Beads):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            return super().reset(seed=seed, options=options)

    weights = []
    for _ in range(2):
        env = Sole(MEMBERS * ENVS)
        population, fitness = train_on_policy(
            env, pop=population_of(env), eval_env=env, max_steps=256, evo_steps=128, eval_loop=ENVS, verbose=False
        )
        # training, a test, training again (the test has ended its episodes), a test; each test is followed by the fresh
        # episodes of the fittest member, in rounds of as many as there are rows, the second by the best agent's, too
        assert env.resets == 4 + 3 * math.ceil(CONFIRMATION_EPISODES / (MEMBERS * ENVS))
        assert np.isfinite(fitness).all()
        weights.append(torch.cat([p.detach().reshape(-1) for p in population.best.network.parameters()]))
    assert torch.equal(*weights)


def test_nan_is_found_at_the_update():
    class Broken(Beads):
        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            reward[5] = torch.where(self.time[5] == 3, torch.nan, reward[5])
            return obs, reward, *rest

    collector = collector_of(Broken(MEMBERS * ENVS))
    collector.collect(STEPS)
    with pytest.raises(EnvStepError, match="reward=nan is not finite: member 1, env 1 of its own"):
        collector.learn()


def test_an_empty_tensor_mask_names_the_env():
    class Stuck(Beads):
        def info(self, **more):
            mask = torch.ones(self.num_envs, 3, dtype=torch.bool)
            mask[6] = self.time[6] != 3
            return {"action_mask": mask, **more}

    collector = collector_of(Stuck(MEMBERS * ENVS, masks=True))
    collector.collect(STEPS)
    with pytest.raises(EnvStepError, match="env 6: action_mask allowed no action"):
        collector.learn()
