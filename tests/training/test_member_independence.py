"""Through `train_on_policy`, what becomes of a member does not depend on who trains beside it."""

import gymnasium
import pytest
import torch
from small_runs import SMALL

from agilerl_like import PPO, Population, make_vect_envs, train_on_policy
from agilerl_like.reporting.callback import Reporter


class Start(Reporter):
    """Keeps the record of the run."""

    def start(self, run):
        self.run = run


def trained(make, members):
    """The first members of one run seed after three generations without evolution, and the record of the run."""
    env, start = make(), Start()
    everybody = PPO.population(
        3,
        env.single_observation_space,
        env.single_action_space,
        seed=4,
        net_config=SMALL,
        num_envs=3,
        learn_step=48,
        batch_size=16,
        lr=3e-3,
        per_member=True,
    )
    population, _ = train_on_policy(
        env,
        pop=Population(everybody[:members]),
        max_steps=450,
        evo_steps=150,
        eval_loop=3,
        verbose=False,
        reporters=[start],
    )
    env.close()
    return population, start.run.backend


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected_backend"),
    [
        (lambda: make_vect_envs("CartPole-v1", 3), "vector, because gymnasium has one for this env"),
        (lambda: gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"), "vector"),
        (lambda: make_vect_envs("CartPole-v1", 3, backend="sync"), "sync"),
    ],
    ids=["native", "gymnasium's own", "sync"],
)
def test_per_member_results_do_not_depend_on_other_members(make, expected_backend):
    alone, backend = trained(make, 1)
    together, _ = trained(make, 3)
    assert backend == expected_backend
    ours, theirs = alone[0], together[0]
    assert (ours.fitness, ours.scores) == (theirs.fitness, theirs.scores)
    assert ours.learner.updates == theirs.learner.updates > 8
    for name, tensor in ours.network.state_dict().items():
        assert torch.equal(tensor, theirs.network.state_dict()[name]), name
    assert torch.equal(ours.optimizer.exp_avg_sq, theirs.optimizer.exp_avg_sq)
