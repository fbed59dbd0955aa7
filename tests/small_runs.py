"""What tests of short runs share."""

import hashlib
import shutil

from agilerl_like import (
    PPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.reporting import Callback, Reporter

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
"""`net_config` of a network that learns within a moment."""


class Records(Reporter):
    """Keeps the records of a run."""

    def __init__(self):
        self.generations, self.births, self.run, self.summary, self.warnings = [], [], None, None, []

    @property
    def members(self):
        """The members of all generations."""
        return [member for generation in self.generations for member in generation.members]

    def start(self, run):
        self.run = run

    def generation(self, record):
        self.generations.append(record)

    def offspring(self, births):
        self.births += births

    def warning(self, text):
        self.warnings.append(text)

    def finish(self, summary):
        self.summary = summary


class StopAfter(Callback):
    """Stops a run after a generation."""

    def __init__(self, generation):
        self.generation = generation

    def on_generation(self, context, record):
        if record.generation == self.generation:
            context.stop("far enough")


class CopyFolder(Callback):
    """Copies the folder of a run in the midst of a generation: a kill at that moment would leave it so."""

    def __init__(self, folder, copy, generation=2):
        self.folder, self.copy, self.generation = folder, copy, generation

    def on_update(self, run, metrics):
        if run.generation == self.generation and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)


def digest_of_run(backend, *, verbose=False):
    """Return the digest of all numbers of a population that has learned and evolved, in environments of a backend."""
    env = make_vect_envs("CartPole-v1", num_envs=4, backend=backend)
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(16, 64))
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(3, *spaces, seed=1, num_envs=4, learn_step=64, batch_size=32, lr=1e-3, hp_config=ranges)
    pop, _ = train_on_policy(
        env,
        pop=pop,
        max_steps=400,
        evo_steps=200,
        eval_loop=2,
        verbose=verbose,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0.1, rl_hp=0.4, activation=0.3),
    )
    env.close()
    state = hashlib.sha256()
    for agent in pop:
        document, tensors = agent.to_documents()
        state.update(repr(sorted(document.items())).encode())
        for name in sorted(tensors):
            state.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return state.hexdigest()
