"""R14: training, evaluation, evolution, saving and loading in any order give the same result as without saving.

The model is a journal. What happened is done again, in memory and from the beginning, by a population that was never
saved and never lost; a crash only tears the pages out that came after the last save.
"""

import math
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny_runs import NIGHTLY, RANGES, SMALL, digest, tier

from agilerl_like import PPO, Mutations, Population, PopulationDivergedError, TournamentSelection, TruncationSelection
from agilerl_like.hpo import PopulationView, next_generation
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.storage import safe_folder

SEEN = gymnasium.spaces.Box(-1, 1, (3,))
TWO = gymnasium.spaces.Discrete(2)
MEMBERS, ENVS = 3, 4
BREEDING = Mutations(no_mutation=0.1, architecture=0.3, parameters=0.2, activation=0.2, rl_hp=0.2)
SCORES = st.lists(
    st.floats(-100, 100, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]),
    min_size=MEMBERS,
    max_size=MEMBERS,
)


class World:
    """A population and the two counters of its run, and what can happen to them."""

    def __init__(self, seed, per_member):
        self.population = PPO.population(
            MEMBERS, SEEN, TWO, seed=seed, net_config=SMALL, num_envs=ENVS, hp_config=RANGES, learn_step=128,
            batch_size=64, update_epochs=1, lr=1e-3, per_member=per_member,
        )  # fmt: skip
        self.generation, self.next_uid = 0, MEMBERS

    def learn(self, places, numbers):
        """Update some members from a rollout that a number names."""
        self.population.learn(places, lambda those, steps: a_rollout(self.population, those, 32, numbers))

    def judge(self, scores):
        """Give everybody a fitness."""
        self.population.fitness = list(scores)
        for agent, score in zip(self.population, scores, strict=True):
            agent.fitness.append(score)
            agent.steps.append(agent.steps[-1] + 128)

    def breed(self, truncation):
        """Select and mutate; without anybody healthy nothing happens."""
        agents = list(self.population)
        try:
            births = next_generation(
                PopulationView(
                    np.array(self.population.fitness),
                    [agent.index for agent in agents],
                    [agent.genome for agent in agents],
                    generation=self.generation + 1,
                ),
                [agent.hp_config for agent in agents],
                selection=TruncationSelection(0.5) if truncation else TournamentSelection(2),
                explorer=BREEDING,
                seed=self.population.seed,
                next_uid=self.next_uid,
                repair=self.population.repair,
            )
        except PopulationDivergedError:
            assert not np.isfinite(self.population.fitness).any()
            return
        done = self.population.evolve(births)
        self.generation += 1
        self.next_uid = max(self.next_uid, *(birth.uid + 1 for birth in done))
        self.population.fitness = [self.population.fitness[birth.parent_slot] for birth in done]

    def act(self, steps):
        """Draw actions, and so use up noise."""
        agent = self.population[0]
        for _ in range(steps):
            agent.get_action(np.zeros((2, 3), np.float32))

    def save(self, path):
        """Write everything down."""
        self.population.save_checkpoint(path, world={"generation": self.generation, "next_uid": self.next_uid})

    def load(self, path):
        """Become what was written down."""
        self.population = Population.load(path)
        world = safe_folder.read_folder(path, "population")[0]["world"]
        self.generation, self.next_uid = world["generation"], world["next_uid"]


def a_rollout(population, places, steps, numbers):
    """What some members saw and did, other numbers for each; the number names them."""
    generator = torch.Generator().manual_seed(numbers)
    shape = steps, MEMBERS, ENVS
    observations = torch.rand(*shape, 3, generator=generator)
    ended = (torch.rand(shape, generator=generator) < 0.1).float()
    return Rollout.from_steps(
        observations,
        torch.randint(0, 2, (*shape, 1), generator=generator),
        torch.randn(shape, generator=generator),
        ended,
        ended,
        torch.ones(shape),
        torch.rand(MEMBERS, ENVS, 3, generator=generator),
        FinalObservations.none(observations, MEMBERS),
        None,
        torch.zeros(MEMBERS, ENVS, *population.initial_hidden_state.shape),
    )[torch.tensor(places)]


class Lives(RuleBasedStateMachine):
    """A population that is saved, lost and loaded, and the record of its operations."""

    @initialize(seed=st.integers(0, 2**20), per_member=st.booleans())
    def begin(self, seed, per_member):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "saved"
        self.origin = seed, per_member
        self.world = World(*self.origin)
        self.journal, self.saved = [], None

    def happens(self, what, *arguments):
        getattr(self.world, what)(*arguments)
        self.journal.append((what, arguments))

    @rule(places=st.sets(st.integers(0, MEMBERS - 1), min_size=1), numbers=st.integers(0, 99))
    def learn(self, places, numbers):
        self.happens("learn", sorted(places), numbers)

    @rule(scores=SCORES)
    def judge(self, scores):
        self.happens("judge", scores)

    @precondition(lambda self: self.world.population.fitness)
    @rule(truncation=st.booleans())
    def breed(self, truncation):
        self.happens("breed", truncation)

    @rule(steps=st.integers(1, 3))
    def act(self, steps):
        self.happens("act", steps)

    @rule()
    def save(self):
        self.world.save(self.path)
        self.saved = len(self.journal)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def crash(self):
        self.world = World(7, False)  # nothing of the old one
        self.world.load(self.path)
        del self.journal[self.saved :]

    @invariant()
    def is_whole(self):
        agents = list(self.world.population)
        assert len({agent.index for agent in agents}) == MEMBERS
        assert max(agent.index for agent in agents) < self.world.next_uid
        for agent in agents:
            agent.check()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        model = World(*self.origin)
        for what, arguments in self.journal:
            getattr(model, what)(*arguments)
        assert (self.world.generation, self.world.next_uid) == (model.generation, model.next_uid)
        assert digest(self.world.population) == digest(model.population)
        self.folder.cleanup()


Lives.TestCase.settings = settings(
    max_examples=tier(25, 500), stateful_step_count=tier(20, 30), derandomize=not NIGHTLY, deadline=None
)
TestLives = Lives.TestCase
