"""How continuous actions explore: their standard deviation evolves within bounds, and their noise may be correlated."""

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    HyperparameterConfig,
    Mutations,
    Population,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms.exploration_ranges import with_exploration
from agilerl_like.config.search_space import search_space
from agilerl_like.hpo import Mutation, Offspring, WeightMix

SEES, ACTS = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(-1, 1, (2,))
RANGES = HyperparameterConfig(
    action_std_init=RLParameter(-2, 1),
    action_std_min=RLParameter(-3, -1),
    action_std_max=RLParameter(0, 2),
    action_noise_correlation=RLParameter(0, 0.95),
)
START = {"action_std_init": -0.5, "action_std_min": -2.0, "action_std_max": 1.0, "action_noise_correlation": 0.5}
TUNED = {"learn_step": 32, "batch_size": 16, "seed": 0, "net_config": SMALL, "num_envs": 2}


def log_std(agent):
    return agent.actor.distribution.log_std.detach().clone()


def child_of(parent, **changes):
    """A child of which only these hyperparameters are others."""
    old = parent.genome.hyperparameters
    details = {name: (old[name], value) for name, value in changes.items()}
    genome = parent.genome.replace(hyperparameters={**old, **changes})
    change = Mutation("rl_hp", "step", details)
    return parent.make_offspring(Offspring(1, 0, parent.index + 10, parent.index, 0, genome, (change,)))[0]


def trained_on_pendulum(pop=None, *, size=2, steps=256, **settings):
    """A population after so many steps of each member."""
    env = make_vect_envs("Pendulum-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = pop or PPO.population(size, *spaces, **TUNED, **settings)
    mutation = Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1)
    strategy = TournamentSelection(2, elitism=True)
    options = {"selection_strategy": strategy, "mutation": mutation, "eval_loop": 1, "eval_steps": 10, "verbose": False}
    return train_on_policy(env, pop=pop, max_steps=steps, evo_steps=64, **options)[0]


def test_offspring_std_changes_by_the_change_of_action_std_init():
    parent = PPO(SEES, ACTS, hp_config=RANGES, **TUNED, **START)
    with torch.no_grad():
        parent.actor.distribution.log_std.copy_(torch.tensor([-1.0, 0.25]))  # as if it had been learned
    kept = {name: tensor.clone() for name, tensor in parent.network.state_dict().items()}
    child = child_of(parent, action_std_init=0.25)
    # from -0.5 to 0.25 is 0.75 more: -1 becomes -0.25, and 0.25 becomes 1
    torch.testing.assert_close(log_std(child), torch.tensor([-0.25, 1.0]))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in parent.network.state_dict().items())
    others = {name: tensor for name, tensor in child.network.state_dict().items() if not name.endswith("log_std")}
    assert len(others) == len(kept) - 1
    assert all(torch.equal(tensor, kept[name]) for name, tensor in others.items())
    # bounds of the child hold at once: 0.75 more of 0.25 is 1, and no more than 0.5 is allowed
    torch.testing.assert_close(
        log_std(child_of(parent, action_std_init=0.25, action_std_max=0.5)), torch.tensor([-0.25, 0.5])
    )
    torch.testing.assert_close(log_std(child_of(parent, action_std_min=-0.9)), torch.tensor([-0.9, 0.25]))


@pytest.mark.parametrize("state_dependent_std", [False, True])
def test_shrunk_weights_have_the_std_of_the_parent_and_fresh_ones_the_initial_one(state_dependent_std):
    parent = PPO(SEES, ACTS, action_std_init=-2.0, state_dependent_std=state_dependent_std, **TUNED)
    with torch.no_grad():
        parent.actor.distribution.log_std.copy_(torch.tensor([-1.0, 0.25]))  # as if it had been learned
    for start, its in ((WeightMix(0.2, 0.1), [-1.0, 0.25]), (WeightMix(), [-2.0, -2.0])):
        child, _ = parent.make_offspring(Offspring(1, 0, 8, 0, 0, parent.genome, (), start))
        assert log_std(child).tolist() == its


def test_shrunk_weights_have_a_std_in_its_new_bounds():
    parent = PPO(SEES, ACTS, hp_config=RANGES, **TUNED, **START)
    genome = parent.genome.replace(hyperparameters={**parent.genome.hyperparameters, "action_std_max": -1.0})
    child, _ = parent.make_offspring(Offspring(1, 0, 8, 0, 0, genome, (), WeightMix(0.2, 0.1)))
    assert log_std(child).tolist() == [-1.0, -1.0]  # the parent has -0.5


def test_a_change_beyond_the_bounds_of_the_std_has_no_effect():
    ranges = HyperparameterConfig(action_std_init=RLParameter(-2, 0))
    parent = PPO(SEES, ACTS, hp_config=ranges, action_std_init=0.0, action_std_max=-1.0, **TUNED)
    for init, expected in ((-0.8, -1.0), (-1.5, -1.5)):
        torch.testing.assert_close(log_std(child_of(parent, action_std_init=init)), torch.full((2,), expected))
    child = child_of(child_of(parent, action_std_init=-1.5), action_std_init=-0.5)
    torch.testing.assert_close(log_std(child), torch.full((2,), -1.0))


@pytest.mark.parametrize(
    ("init", "low", "high", "expected"),
    [
        (0.0, -20.0, 2.0, (-2.0, 0.5)),
        (-1.0, -1.0, -1.0, None),
        (-0.5, -1.0, 0.25, (-1.0, 0.25)),
        (0.0, -20.0, -1.0, (-2.0, 0.0)),  # ranges include the value given
        (0.0, 1.0, 2.0, None),
    ],
)
def test_added_ranges_of_the_std_lie_in_its_bounds(init, low, high, expected):
    settings = PPO(SEES, ACTS, action_std_init=init, action_std_min=low, action_std_max=high, **TUNED).settings()
    added = with_exploration(PPO.config, ACTS, settings, HyperparameterConfig())
    found = added.get("action_std_init")
    assert expected == (None if found is None else (found.min, found.max))
    assert "action_noise_correlation" in added
    searched, _ = search_space(PPO, ACTS, settings, evo_steps=8192, num_envs=2)
    found = searched.get("action_std_init")
    assert expected == (None if found is None else (found["min"], found["max"]))


def test_initial_members_have_the_std_that_they_drew():
    population = PPO.population(6, SEES, ACTS, hp_config=RANGES, sample_hyperparameters=True, **TUNED)
    drawn = [agent.action_std_init for agent in population]
    assert len(set(drawn)) == 6
    for agent in population:
        within = min(max(agent.action_std_init, agent.action_std_min), agent.action_std_max)
        torch.testing.assert_close(log_std(agent), torch.full((2,), within))


def test_each_members_std_stays_in_its_own_bounds():
    # an entropy bonus that outweighs everything widens the deviation in every minibatch step, by about lr each: 2
    # updates of 4 epochs of 2 minibatches are 16 steps of at most 0.15
    settings = {"ent_coef": 100.0, "lr": 0.15, "max_grad_norm": 1e3, "action_std_init": -1.0}
    bounds = (-0.9, -0.3, 2.0)
    env = make_vect_envs("Pendulum-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    agents = [PPO(*spaces, index=i, action_std_max=bound, **TUNED, **settings) for i, bound in enumerate(bounds)]
    train_on_policy(env, pop=Population(agents), max_steps=64, evo_steps=64, eval_loop=1, eval_steps=10, verbose=False)
    found = [float(log_std(agent)) for agent in agents]
    assert found[:2] == pytest.approx([-0.9, -0.3])
    assert found[2] > 0.5


def test_std_stays_in_bounds_in_hand_written_loops():
    agent = PPO(SEES, ACTS, lr=0.05, ent_coef=100.0, max_grad_norm=1e3, action_std_max=0.1, **TUNED)
    rng = np.random.default_rng(0)
    columns = [[] for _ in range(6)]
    for step in range(16):
        obs = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        action, log_prob, _, value = agent.get_action(obs)
        row = (obs, action, log_prob, np.ones(2), np.full(2, float(step == 0)), value)
        for column, entry in zip(columns, row, strict=True):
            column.append(entry)
    agent.learn((*columns, obs, np.zeros(2)))
    torch.testing.assert_close(log_std(agent), torch.full((2,), 0.1))


def test_std_bounds_out_of_order_are_refused():
    with pytest.raises(ConfigurationError, match=r"action_std_min=0\.5 must not be greater than action_std_max=0"):
        PPO(SEES, ACTS, action_std_min=0.5, action_std_max=0.0, **TUNED)
    ranges = HyperparameterConfig(action_std_min=RLParameter(-3, 1), action_std_max=RLParameter(0, 2))
    with pytest.raises(ConfigurationError, match=r"action_std_min=1\.0 must not be greater than action_std_max=0\.0"):
        PPO(SEES, ACTS, hp_config=ranges, action_std_min=-1.0, **TUNED)
    with pytest.raises(ConfigurationError, match=r"action_noise_correlation=1\.0: input should be less than 1"):
        PPO(SEES, ACTS, action_noise_correlation=1.0, **TUNED)


def test_initial_std_is_clamped_to_its_bounds():
    agent = PPO(SEES, ACTS, action_std_init=1.0, action_std_max=0.5, **TUNED)
    assert torch.equal(log_std(agent), torch.full((2,), 0.5))


def autocorrelation(noise, lag):
    """Of noise `[T, …]` with mean 0 and variance 1."""
    return float((noise[lag:] * noise[:-lag]).mean())


def test_noise_has_each_members_correlation():
    correlations = (0.0, 0.5, 0.9)
    agents = [PPO(SEES, ACTS, index=i, action_noise_correlation=c, **TUNED) for i, c in enumerate(correlations)]
    population = Population(agents)
    noise = torch.stack(
        [population.learners.next_noise(50) for _ in range(400)]
    )  # [T, P, E, A]: more than three blocks
    for member, correlation in enumerate(correlations):
        mine = noise[:, member]
        # 40,000 numbers that are correlated count as 40,000 (1 - c) / (1 + c): 2,100 at least
        bound = 5 / np.sqrt(40_000 * (1 - correlation) / (1 + correlation))
        assert float(mine.square().mean()) == pytest.approx(1, abs=2 * bound)
        for lag in (1, 2, 5):
            assert autocorrelation(mine, lag) == pytest.approx(correlation**lag, abs=2 * bound)
    alone = Population([PPO(SEES, ACTS, index=1, action_noise_correlation=0.5, **TUNED)])
    assert torch.equal(torch.stack([alone.learners.next_noise(50) for _ in range(400)])[:, 0], noise[:, 1])


def test_a_replaced_member_does_not_continue_the_noise_of_its_slot():
    population = Population([PPO(SEES, ACTS, index=0, action_noise_correlation=0.99, **TUNED)])
    for _ in range(128):  # a whole block, so that the next one is about to be drawn
        last = population.learners.next_noise(200)
    stays = child_of(population[0], lr=1e-3)
    population.set_members([stays])
    # the correlation of 400 pairs of independent numbers has a standard error of 0.05
    assert abs(float((population.learners.next_noise(200) * last).mean())) < 0.25


def test_hand_written_loops_use_correlated_noise():
    agent = PPO(SEES, ACTS, action_noise_correlation=0.95, **TUNED)
    seen = np.zeros((300, 3), dtype=np.float32)
    actions = np.stack([agent.get_action(seen)[0] for _ in range(100)])
    actions = (actions - actions.mean()) / actions.std()
    assert autocorrelation(torch.from_numpy(actions), 1) > 0.9
    agent.set_training_mode(False)
    assert np.array_equal(agent.get_action(seen)[0], agent.get_action(seen)[0])


@pytest.mark.parametrize(("correlation", "least", "most"), [(0.0, 0.0, 0.15), (0.95, 0.6, 1.0)])
def test_correlated_noise_drives_the_car_up_the_mountain(correlation, least, most):
    """Of 20 first episodes of a new policy: of 200, independent noise ended 2 % at the flag, such noise 90 %."""
    env = make_vect_envs("MountainCarContinuous-v0", num_envs=20, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    agent = PPO(*spaces, action_noise_correlation=correlation, **TUNED)
    seen, _ = env.reset(seed=0)
    reached = np.zeros(20, dtype=bool)
    for _ in range(998):
        seen, _, terminated, _, _ = env.step(np.clip(agent.get_action(seen)[0], -1, 1))
        reached |= terminated
    env.close()
    assert least <= reached.mean() <= most


def test_evolved_exploration_settings_resume_bit_identically(tmp_path):
    settings = {"hp_config": RANGES, **START}
    half = trained_on_pendulum(size=3, steps=128, **settings)
    half.save_checkpoint(tmp_path / "half")
    loaded = Population.load(tmp_path / "half")
    for ours, theirs in zip(half, loaded, strict=True):
        assert ours.genome == theirs.genome
        assert torch.equal(log_std(ours), log_std(theirs))
    one, other = trained_on_pendulum(half), trained_on_pendulum(loaded)
    for ours, theirs in zip(one, other, strict=True):
        assert ours.genome == theirs.genome
        assert torch.equal(log_std(ours), log_std(theirs))
    changed = {agent.action_std_init for agent in one} | {agent.action_noise_correlation for agent in one}
    assert len(changed - {-0.5, 0.5}) > 0


def test_older_files_without_these_settings_use_defaults():
    agent = PPO(SEES, ACTS, **TUNED)
    document, tensors = agent.to_documents()
    for name in ("action_std_min", "action_std_max", "action_noise_correlation"):
        del document["settings"][name]
    loaded = PPO.from_documents(document, tensors, device="cpu", where="old")
    assert loaded.settings() == agent.settings()


def test_learners_of_a_team_use_its_exploration_settings():
    acts = {"red_0": ACTS, "blue_0": gymnasium.spaces.Discrete(3)}
    team = IPPO(dict.fromkeys(acts, SEES), acts, hp_config=RANGES, **TUNED, **START)
    red = team.learners["red"]
    with torch.no_grad():
        red.distribution.log_std.copy_(torch.tensor([-1.0, 0.25]))
    child = child_of(team, action_std_init=0.25, action_noise_correlation=0.8)
    torch.testing.assert_close(log_std(child.learners["red"]), torch.tensor([-0.25, 1.0]))
    assert torch.equal(log_std(red), torch.tensor([-1.0, 0.25]))
    assert child.action_noise_correlation == 0.8
    assert child.action_std_init == 0.25
