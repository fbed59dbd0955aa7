import contextlib
import operator

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from small_runs import SMALL

from agilerl_like import (
    PPO,
    CheckpointError,
    Choice,
    ConfigurationError,
    HyperparameterConfig,
    Mutations,
    Population,
    PopulationDivergedError,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms.population import founder_draws, replace_diverged
from agilerl_like.algorithms.ppo_learner import hyperparams_of
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Mutation, Offspring
from agilerl_like.training.collector import Collector, PhaseTimer

BOX = gymnasium.make("CartPole-v1").observation_space
TWO = gymnasium.spaces.Discrete(2)
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(8, 64), gamma=RLParameter(0.9, 0.999))


def population_of(size=3, **kwargs):
    settings = {
        "seed": 0,
        "net_config": SMALL,
        "num_envs": 2,
        "learn_step": 32,
        "batch_size": 16,
        "lr": 1e-3,
        "hp_config": RANGES,
        **kwargs,
    }
    return PPO.population(size, BOX, TWO, **settings)


def train(population, ticks=40):
    env = make_vect_envs("CartPole-v1", num_envs=2 * len(population), backend="sync")
    collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset(range(len(population)))
    for _ in range(ticks):
        collector.collect(1)
        collector.learn()
    env.close()
    return population


def flat(agent):
    return torch.cat([p.detach().reshape(-1) for p in agent.network.parameters()])


def test_it_is_a_sequence_of_different_agents():
    population = population_of()
    assert [agent.index for agent in population] == [0, 1, 2]
    assert len(population) == 3
    assert population[-1].index == 2
    assert population[:2] == [population[0], population[1]]
    assert not torch.equal(flat(population[0]), flat(population[1]))
    assert len({agent.seed for agent in population}) == 1


def test_the_size_may_be_a_whole_number_of_numpy_of_any_width():
    assert len(population_of(np.int8(2), sample_hyperparameters=True)) == 2


def test_wrong_populations_are_named():
    for size in (0, -1, 2.5, True):
        with pytest.raises(ConfigurationError, match="size="):
            population_of(size)
    with pytest.raises(ConfigurationError, match="a population of 0"):
        Population([])
    with pytest.raises(ConfigurationError, match="must be different"):
        Population([population_of()[0]] * 2)
    with pytest.raises(ConfigurationError, match="same observation_space"):
        Population([PPO(BOX, TWO), PPO(BOX, gymnasium.spaces.Discrete(3), index=1)])


def test_agents_on_different_devices_are_refused():
    agents = [PPO(BOX, TWO, index=index, net_config=SMALL, seed=0) for index in range(2)]
    agents[1].device = torch.device("cpu", 0)
    Population(agents)
    agents[1].device = torch.device("cuda")
    with pytest.raises(ConfigurationError, match=r"device=\['cpu', 'cuda'\] must be the same for all agents"):
        Population(agents)


def test_agents_of_two_populations_make_a_third_once_seed_and_index_are_set():
    first, other = population_of(2), population_of(2, seed=3)
    with pytest.raises(ConfigurationError, match=r"seed=\[0, 3\] must be the same .*; agent\.seed = … sets it"):
        Population([first[0], other[0]])
    other[0].seed = first.seed
    with pytest.raises(ConfigurationError, match=r"index=\[0, 0\] must be different .*; agent\.index = … sets it"):
        Population([first[0], other[0]])
    Population([first[0], other[0].clone(index=1)])
    other[0].index = 1
    assert [agent.index for agent in Population([first[0], other[0]])] == [0, 1]


def test_operators_of_lists_are_refused_with_the_list_that_is_allowed():
    first, other = population_of(2), population_of(2)
    for change in (
        lambda: first + other,
        lambda: operator.add([first[0]], other),
        lambda: operator.setitem(first, 0, other[0]),
        lambda: operator.delitem(first, 0),
        lambda: first.append(other[0]),
        lambda: first.remove(first[0]),
    ):
        with pytest.raises(TypeError, match=r"allowed is a list of agents .*\[\*pop, \*others\]"):
            change()


def test_agents_without_a_seed_take_that_of_the_others():
    box = gymnasium.spaces.Box(-1, 1, (2,))
    agents = [PPO(BOX, box, index=index, net_config=SMALL) for index in range(3)]
    first = agents[0].seed
    assert {agent.seed for agent in Population(agents)} == {first}
    agents = [PPO(BOX, box, index=index, net_config=SMALL, seed=seed) for index, seed in enumerate((None, 5))]
    assert [agent.seed for agent in Population(agents)] == [5, 5]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("seed", (0, 1)),
        ("normalize_images", (True, False)),
        ("squash_output", (False, True)),
        ("precision", ("float32", "bfloat16")),
    ],
)
def test_settings_of_the_computation_must_be_equal(name, values):
    box = gymnasium.spaces.Box(-1, 1, (2,))
    agents = [
        PPO(BOX, box, index=index, net_config=SMALL, **{"seed": 0, name: value}) for index, value in enumerate(values)
    ]
    with pytest.raises(ConfigurationError, match=rf"{name}=\[.*{values[1]}.*\] must be the same for all agents"):
        Population(agents)


def test_a_setting_that_one_member_was_given_later_is_refused_before_it_is_saved_or_trained(tmp_path):
    population = population_of(2)
    population[1].normalize_advantage = "none"
    with pytest.raises(ConfigurationError, match=r"normalize_advantage=.* must be the same for all agents"):
        population.save_checkpoint(tmp_path / "population")
    env = make_vect_envs("CartPole-v1", 2, backend="vector")
    with pytest.raises(ConfigurationError, match=r"normalize_advantage=.* must be the same for all agents"):
        train_on_policy(env, pop=population, max_steps=64, evo_steps=32, run_dir=tmp_path / "run", verbose=False)
    env.close()
    assert not (tmp_path / "population").exists()


def test_equal_seeds_are_bit_identical_and_other_seeds_differ():
    """Law 11, with the global generators watched."""
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  # the state itself is what is checked
    flats = [torch.stack([flat(a) for a in train(population_of(seed=seed))]) for seed in (1, 1, 2)]
    assert torch.equal(flats[0], flats[1])
    assert not torch.equal(flats[0], flats[2])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002  # as above


def test_a_member_learns_as_it_would_alone():
    """Its noise, minibatches and envs are its own: the others only share the computation."""
    together = train(population_of(3))
    for place in range(3):
        lone = Population([population_of(3)[place]])
        env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
        collector = Collector(lone, VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
        collector.reset([place])
        for _ in range(40):
            collector.collect(1)
            collector.learn()
        torch.testing.assert_close(flat(lone[0]), flat(together[place]), rtol=1e-4, atol=1e-5)


def test_unequal_members_are_computed_together():
    population = population_of(4)
    assert population.cohort.stacks == [[0, 1, 2, 3]]
    kept = population.cohort
    assert population.cohort is kept  # rebuilt only after a member got another network
    rng = np.random.default_rng(0)
    for place in (1, 3):
        agent = population[place]
        spec, details = agent.architecture.mutate("encoder.add_node", rng)
        agent.apply_genome(
            agent.genome.replace(architecture=spec), (Mutation("architecture", "encoder.add_node", details),)
        )
    assert population.cohort is not kept
    assert sorted(place for stack in population.cohort.stacks for place in stack) == [0, 1, 2, 3]
    observations = torch.randn(4, 5, 4, generator=torch.Generator().manual_seed(0))
    initial_hidden_state = population.initial_hidden_state.expand(4, 5, -1, -1, -1)
    raw, _ = population.act(observations, initial_hidden_state)
    for place, agent in enumerate(population):
        assert (
            population.learners.to_env(raw).reshape(4, 5)[place].tolist()
            == agent.learner.best_actions(observations[place], None, initial_hidden_state[place])[0].tolist()
        )
    train(population)


@pytest.mark.parametrize("name", ["share_encoders", "normalize_observation", "normalize_value"])
def test_unequal_members_with_other_settings_than_the_first_share_a_stack(name):
    kinds = [(False, 16), (True, 16), (True, 24)]

    def agent(place):
        flag, width = kinds[place]
        net_config = {**SMALL, "encoder_config": {"hidden_size": [width]}}
        settings = {"net_config": net_config, "num_envs": 2, "learn_step": 32, "batch_size": 16, "lr": 1e-3}
        return PPO(BOX, TWO, index=place, seed=0, **settings, **{name: flag})

    together = train(Population([agent(0), agent(1), agent(2)]))
    assert [len(stack) for stack in together.cohort.stacks] == [1, 2]
    for place in (1, 2):
        env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
        alone = Collector(Population([agent(place)]), VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
        alone.reset([place])
        for _ in range(40):
            alone.collect(1)
            alone.learn()
        env.close()
        torch.testing.assert_close(flat(together[place]), flat(alone.population[0]), rtol=1e-4, atol=1e-5)


def test_members_learn_when_they_are_due():
    population = population_of(3)
    population[1].learn_step = 16
    train(population, ticks=17)  # rollouts of 16, 8 and 16 ticks
    assert [agent.learner.updates for agent in population] == [1, 2, 1]


def test_evolve_replaces_members_by_offspring():
    population = train(population_of(3))
    best, doomed = population[2], population[0]
    kept = flat(best).clone()
    genome = best.genome
    births = (
        Offspring(
            1,
            0,
            3,
            2,
            2,
            genome.replace(hyperparameters={**genome.hyperparameters, "lr": 5e-3}),
            (Mutation("rl_hp", "step", {"lr": (1e-3, 5e-3)}),),
        ),
        Offspring(1, 1, 1, 1, 1, population[1].genome),
        Offspring(1, 2, 2, 2, 2, genome),
    )
    survivor = population[1]
    population.evolve(births)
    child = population[0]
    assert (child.index, child.lr, child.mut) == (3, 5e-3, "lr")
    assert torch.equal(flat(child), kept)
    assert torch.equal(child.optimizer.exp_avg, best.optimizer.exp_avg)  # moments travel
    assert population[1] is survivor
    assert population[2] is best
    train(Population([child]))
    assert torch.equal(flat(best), kept)  # training the clone moves nothing of the original
    assert doomed.index == 0


def test_a_mutation_hook_changes_the_child_alone():
    parent = population_of(1)[0]
    kept = flat(parent).clone()

    @torch.no_grad()
    def clear(agent):
        for parameter in agent.network.parameters():
            parameter.zero_()

    parent.register_mutation_hook(clear)
    child, _ = parent.make_offspring(Offspring(1, 0, 1, 0, 0, parent.genome))
    assert not flat(child).any()
    assert torch.equal(flat(parent), kept)


def test_the_elite_survives_selection_and_mutation_untouched():
    population = train(population_of(4))
    for place, agent in enumerate(population):
        agent.fitness.append(float(place))
    kept = flat(population[3]).clone()
    elite, following = TournamentSelection(2, True, seed=0).select(population)
    assert elite is population[3]
    following = Mutations(no_mutation=0, parameters=1, architecture=0, rl_hp=0, rand_seed=0).mutation(following)
    best = [agent for agent in following if agent.index == 3]
    assert len(best) == 1
    assert torch.equal(flat(best[0]), kept)
    assert sum(not torch.equal(flat(agent), kept) for agent in following) == 3
    assert len({agent.index for agent in following}) == 4


def test_a_list_of_agents_can_be_selected_and_mutated_by_hand():
    population = train(population_of(3))
    agents = list(population)
    for place, agent in enumerate(agents):
        agent.fitness.append(-float(place))
    elite, following = TournamentSelection(2, True, seed=1).select(agents)
    assert elite is agents[0]
    following = Mutations(no_mutation=0, rand_seed=3).mutation(following)
    assert following[0].mut == agents[0].mut
    assert any(agent.mut != "None" for agent in following[1:])
    train(Population(following))


@pytest.mark.parametrize("pre_training", [False, True])
def test_rand_seed_determines_consecutive_mutations_by_hand(pre_training):
    def drawn(seed, population):
        mutations = Mutations(0, 1, 0.3, 0, 0, 1, rand_seed=seed)
        return [[agent.mut for agent in mutations.mutation(population, pre_training)] for _ in range(3)]

    def members():
        population = population_of(6)
        for agent in population:
            agent.fitness.append(float(-agent.index))  # the first is the best, as in a list
        return population

    calls = drawn(1, members())
    assert calls[0] != calls[1] != calls[2]
    assert calls == drawn(1, members()) == drawn(1, list(members())) != drawn(2, members())


def test_pre_training_mutation_makes_members_differ():
    population = Mutations(no_mutation=0.5, architecture=0, parameters=0, rl_hp=1).mutation(
        population_of(4), pre_training_mut=True
    )
    assert len({agent.lr for agent in population} | {agent.gamma for agent in population}) > 3
    assert [agent.index for agent in population] == [0, 1, 2, 3]


def test_pre_training_noise_is_small_for_initial_members():
    # the search for the noise's scale tripled the weights of encoders (cosine 0.35), as new policies hardly move
    population = population_of(4)
    before = [{name: tensor.clone() for name, tensor in agent.network.state_dict().items()} for agent in population]
    population.mutate(Mutations(no_mutation=0, architecture=0, parameters=1, rl_hp=0), pre_training=True)
    for agent, old in zip(population, before, strict=True):
        assert agent.mut == "param"
        for name, tensor in agent.network.state_dict().items():
            if tensor.dim() > 1:
                cosine = torch.nn.functional.cosine_similarity(tensor.flatten(), old[name].flatten(), dim=0)
                assert 0.9 <= float(cosine) <= (0.999 if name.startswith("actor") else 1.001), name


def test_clones_of_agents_without_a_given_seed_form_a_population_as_these_do():
    agents = [PPO(BOX, TWO, index=index) for index in range(2)]
    assert len({agent.seed for agent in Population([agent.clone() for agent in agents])}) == 1


def test_drawn_members_keep_the_label_that_is_given():
    assert [agent.mut for agent in population_of(2, sample_hyperparameters=True, mut="mine")] == ["mine"] * 2


def test_initial_hyperparameters_are_drawn_on_request():
    drawn = population_of(4, sample_hyperparameters=True)
    assert len({agent.lr for agent in drawn}) == 4
    assert drawn[0].lr == 1e-3  # what was given is part of the search
    for agent in drawn:
        agent.check()
    assert {agent.lr for agent in population_of(4)} == {1e-3}


def test_recorded_hyperparameters_are_used_by_the_next_update():
    """Law 8: the value in the genome after any mutation is the one in the tensors of the next update."""
    population = population_of(
        3,
        hp_config=HyperparameterConfig(
            lr=RLParameter(1e-4, 1e-2), update_epochs=RLParameter(1, 8), clip_coef=RLParameter(0.1, 0.4)
        ),
    )
    rng = np.random.default_rng(0)
    for _ in range(30):
        for agent in population:
            agent.mutate(Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1), rng)
        values = hyperparams_of(list(population.learners))
        for place, agent in enumerate(population):
            for name in agent.hp_config:
                assert getattr(values, name)[place].item() == pytest.approx(
                    agent.genome.hyperparameters[name], rel=1e-6
                )
                agent.hp_config.check(agent.hyperparameters)


def test_batch_size_is_repaired_to_fit_the_rollout():
    agent = population_of(1)[0]
    assert agent.repair({**agent.genome.hyperparameters, "batch_size": 64})["batch_size"] == 32
    grows = population_of(1, hp_config=HyperparameterConfig(learn_step=RLParameter(8, 64)))[0]
    assert grows.repair({**grows.genome.hyperparameters, "learn_step": 8})["learn_step"] == 16


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "longest", "scale"), [(16, 112, 100, "linear"), (3, 65, 64, "power_of_two")]
)
def test_a_repaired_rollout_stays_in_its_range(tmp_path, num_envs, batch_size, longest, scale):
    """The last step is taken in every env: of 16 envs 100 steps are 112, and of 3 envs 64 are 66."""
    agent = population_of(
        1,
        num_envs=num_envs,
        learn_step=longest,
        batch_size=batch_size,
        hp_config=HyperparameterConfig(learn_step=RLParameter(16, longest, dtype=int, scale=scale)),
    )[0]
    agent.mutate(Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1), np.random.default_rng(0))
    assert agent.learn_step == longest
    assert PPO.load(agent.save_checkpoint(tmp_path / "agent")).learn_step == longest


def test_a_diverged_member_is_replaced_by_a_clone_of_the_best():
    population = train(population_of(3))
    for place, fitness in enumerate((1.0, 5.0, np.nan)):
        population[place].fitness.append(fitness)
    with torch.no_grad():
        for parameter in population[0].network.parameters():
            parameter.fill_(torch.nan)
    population[1].mut = "lr"
    assert replace_diverged(population, [0], [9]) == [(0, 1)]
    assert (population[0].index, population[0].mut) == (9, "None")
    assert torch.equal(flat(population[0]), flat(population[1]))
    with pytest.raises(PopulationDivergedError, match="every member"):
        replace_diverged(population, [0, 1, 2], [10, 11, 12])


def test_a_saved_population_continues_bit_identically(tmp_path):
    population = train(population_of(3))
    population[1].apply_genome(population[1].genome, (Mutation("parameters", "noise", {"sd": 0.1}),))
    loaded = Population.load(population.save_checkpoint(tmp_path / "all"))
    for ours, theirs in zip(train(population), train(loaded), strict=True):
        assert torch.equal(flat(ours), flat(theirs))
        assert ours.to_documents()[0] == theirs.to_documents()[0]
    with pytest.raises(
        CheckpointError, match=r"holds kind='population', which Population\.load .*reads; .* is 'agent'"
    ):
        PPO.load(tmp_path / "all")
    agent = population[0].save_checkpoint(tmp_path / "one")
    with pytest.raises(CheckpointError, match=r"holds kind='agent', which .*PPO\.load .*reads; .* is 'population'"):
        Population.load(agent)


def test_members_that_load_one_file_keep_index_and_seed(tmp_path):
    """Each has the saved weights and its own index, noise and hooks."""
    saved = train(population_of(1, seed=5))[0]
    path = saved.save_checkpoint(tmp_path / "agent")
    population, heard = population_of(3, seed=6), []
    for agent in population:
        agent.register_mutation_hook(lambda agent: heard.append(agent.index))
        agent.load_checkpoint(path)
        assert torch.equal(flat(agent), flat(saved))
        assert agent.learner.updates == saved.learner.updates > 0
    assert [(agent.index, agent.seed) for agent in population] == [(0, 6), (1, 6), (2, 6)]
    assert len(Population(population)) == 3  # of one run seed still
    obs = np.zeros((50, 4))
    actions = [agent.get_action(obs)[0].tolist() for agent in population]
    assert len({tuple(its) for its in actions}) == 3
    train(population)
    assert not torch.equal(flat(population[1]), flat(population[2]))
    for agent in population:
        agent.mutate(Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0), np.random.default_rng(0))
    assert heard == [0, 1, 2]


def test_an_agent_that_loads_a_file_keeps_its_mode_and_progress(tmp_path):
    path = population_of(1, seed=5)[0].save_checkpoint(tmp_path / "agent")
    agent = population_of(1, seed=6)[0]
    agent.set_training_mode(False)
    agent.progress = 0.5
    agent.load_checkpoint(path)
    assert (agent.training, agent.network.training, agent.progress) == (False, False, 0.5)


def test_runs_from_one_file_with_several_seeds_differ(tmp_path):
    saved = train(population_of(1, seed=5))[0]
    path = saved.save_checkpoint(tmp_path / "agent")

    def drawn(seed):
        agent = population_of(1, seed=seed)[0]
        agent.load_checkpoint(path)
        return agent.get_action(np.zeros((50, 4)))[0].tolist()

    assert drawn(6) == drawn(6) != drawn(7)
    assert drawn(5) == PPO.load(path).get_action(np.zeros((50, 4)))[0].tolist()


def test_a_population_whose_batch_sizes_were_set_has_the_stacks_of_a_resumed_one_after_the_next_start():
    """Small minibatches take less time in one stack of padded members, large ones in two stacks of equal members."""
    nets = [{**SMALL, "latent_dim": width} for width in (16, 64)]
    settings = {"seed": 0, "num_envs": 2, "learn_step": 4096, "batch_size": 4096}
    population = Population([PPO(BOX, TWO, index=i, net_config=nets[i % 2], **settings) for i in range(4)])
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=8, backend="sync")) as env:
        collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
        collector.reset(range(4))
        before, planned = population.cohort, population.cohort.stacks
        collector.reset(range(4))
        assert population.cohort is before
        for agent in population:
            agent.batch_size = 8
        collector.reset(range(4))
    resumed = Population([agent.clone(index=agent.index) for agent in population])
    assert population.cohort.stacks == resumed.cohort.stacks != planned


def test_population_test_agrees_with_each_agents_own():
    population = train(population_of(2))
    env = make_vect_envs("CartPole-v1", num_envs=3)
    scores = population.test(env, loop=3)
    assert scores == [agent.test(env, loop=3) for agent in population]
    assert population.best.fitness[-1] == max(scores)


@pytest.mark.parametrize("off", [None, 0])
def test_the_first_member_has_the_defaults_of_settings_that_are_not_given_and_the_loosest_limit_where_off(off) -> None:
    ranges = HyperparameterConfig(
        gae_lambda=RLParameter(0.5, 0.99),
        update_epochs=RLParameter(1, 3, dtype=int),
        max_grad_norm=RLParameter(0.1, 5.0),
    )
    first = population_of(2, hp_config=ranges, max_grad_norm=off, sample_hyperparameters=True)[0]
    assert first.hyperparameters == {"gae_lambda": 0.95, "update_epochs": 3, "max_grad_norm": 5.0}


def test_drawn_members_need_ranges():
    for hp_config in (None, HyperparameterConfig()):
        with pytest.raises(ConfigurationError, match="sample_hyperparameters=True has no effect without hp_config"):
            population_of(hp_config=hp_config, sample_hyperparameters=True)


def test_drawn_values_need_no_legal_start():
    drawn = population_of(3, lr=0.5, sample_hyperparameters=True)
    assert all(1e-4 <= agent.lr <= 1e-2 for agent in drawn)
    assert drawn[0].lr == 1e-2  # the nearest value of the range


@pytest.mark.parametrize("name", ["target_kl", "clip_coef_vf"])
def test_settings_that_default_to_none_may_be_drawn(name):
    ranges = HyperparameterConfig(**{name: RLParameter(0.01, 0.1)})
    drawn = population_of(3, hp_config=ranges, sample_hyperparameters=True, **{name: None})
    assert len({getattr(agent, name) for agent in drawn}) == 3
    for agent in drawn:
        agent.check()


def test_non_numeric_values_are_refused_when_others_are_drawn():
    with pytest.raises(ConfigurationError, match="lr"):
        population_of(3, lr="fast", sample_hyperparameters=True)


def test_initial_hyperparameters_fill_the_ranges_evenly():
    """Of 16 points of a scrambled Sobol sequence one lies in each sixteenth of a range, and in every 4 x 4 square."""
    ranges = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1), ent_coef=RLParameter(1e-4, 1e-2), gamma=RLParameter(0, 1))
    for seed in (1, 2):
        draws = founder_draws(ranges, 16, seed)
        units = [[range_.to_unit(draw[name]) for draw in draws] for name, range_ in ranges.items()]
        assert all(sorted(int(16 * unit) for unit in its) == list(range(16)) for its in units)
        squares = {(int(4 * lr), int(4 * ent)) for lr, ent in zip(*units[:2], strict=True)}
        assert len(squares) == 16
    assert founder_draws(ranges, 3, 1) == founder_draws(ranges, 16, 1)[:3]
    assert founder_draws(ranges, 3, 1) != founder_draws(ranges, 3, 2)
    assert founder_draws(HyperparameterConfig(), 2, 1) == [{}, {}]


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize(
    ("hp_config", "message"),
    [
        ({"lr": (1e-5, 1e-2)}, r"hp_config\.lr=\(1e-05, 0\.01\) must be an RLParameter, a Choice or a NumberArray"),
        ({"lr": {"min": 1e-5, "max": 1e-2}}, r"hp_config\.lr=\{.*\} must be an RLParameter"),
        ((1, 2), r"hp_config=\(1, 2\); allowed are None and a HyperparameterConfig"),
        (
            {"hidden_size": RLParameter(8, 64, dtype=int)},
            r"hp_config\.hidden_size: it belongs to the networks, .*limits of net_config .*; allowed are batch_size",
        ),
        ({"latent_dim": Choice([16, 32])}, r"hp_config\.latent_dim: it belongs to the networks"),
        ({"latent_size": RLParameter(8, 64, dtype=int)}, "hp_config 'latent_size' is not a number of PPO"),
    ],
)
def test_errors_of_ranges_are_those_of_an_agent_where_members_are_drawn(hp_config, message, sample):
    with pytest.raises(ConfigurationError, match=message):
        PPO.population(2, Box(-1, 1, (2,)), Discrete(2), hp_config=hp_config, sample_hyperparameters=sample)
