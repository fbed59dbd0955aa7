"""Agents that are not referenced any more are freed at once: reference cycles would keep their networks for a while."""

import copy
import gc
import weakref

import pytest
from gymnasium.spaces import Box, Discrete

from agilerl_like import IPPO, PPO, Mutations, TournamentSelection, make_vect_envs, train_on_policy
from agilerl_like.reporting import Callback

SPACES = Box(-1, 1, (3,)), Discrete(2)


@pytest.fixture(autouse=True)
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_clone_is_freed_with_its_last_reference(recurrent):
    agent = PPO(*SPACES, recurrent=recurrent)
    clone = agent.clone(index=1)
    references = [weakref.ref(one) for one in (clone, clone.learner, clone.network)]
    del clone
    assert [reference() for reference in references] == [None] * 3


def test_a_team_is_freed_with_its_last_reference():
    spaces = [dict.fromkeys(("a_0", "b_0"), space) for space in SPACES]
    team = IPPO(*spaces)
    reference = weakref.ref(team.learners["b"].network)
    del team
    assert reference() is None


def test_members_that_evolution_replaced_are_freed():
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(4, *spaces, num_envs=2, learn_step=32, batch_size=32, seed=1)
    seen = {}

    class Collect(Callback):
        def on_generation(self, run, record):
            seen.update((agent.index, weakref.ref(agent.network)) for agent in run.population)

    population, _ = train_on_policy(
        env,
        pop=population,
        max_steps=32 * 6,
        evo_steps=32,
        eval_loop=1,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(architecture=0.5, parameters=0.5, rl_hp=0),
        callbacks=[Collect()],
        verbose=False,
    )
    alive = {index for index, network in seen.items() if network() is not None}
    assert len(seen) > 6  # some members were replaced
    assert alive <= {agent.index for agent in population} | {population.best.index}


def test_a_copied_agent_has_learners_of_its_own():
    agent = PPO(*SPACES)
    twin = copy.deepcopy(agent)
    assert twin.learner.algorithm is twin
    assert agent.learner.algorithm is agent


def test_a_learner_without_its_agent_raises_a_reference_error():
    learner = PPO(*SPACES).learner
    with pytest.raises(ReferenceError, match="keep the agent as long as its learner"):
        learner.settings()
