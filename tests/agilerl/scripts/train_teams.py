"""train_multi_agent_on_policy with a population made by AgileRL's names."""

from agilerl.algorithms import IPPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.utils.utils import make_multi_agent_vect_envs
from tiny_team import Meeting

env = make_multi_agent_vect_envs(Meeting, num_envs=2)
pop = IPPO.population(
    size=2,
    observation_space=[env.single_observation_space(agent) for agent in env.agents],
    action_space=[env.single_action_space(agent) for agent in env.agents],
    agent_ids=env.agents,
    net_config={"encoder_config": {"hidden_size": [16]}},
    learn_step=16,
    batch_size=8,
    torch_compiler=None,
    action_batch_size=None,
    actor_networks=None,
    critic_networks=None,
    wrap=True,
)
trained, fitnesses = train_multi_agent_on_policy(
    env,
    "Meeting",
    "IPPO",
    pop,
    sum_scores=True,
    max_steps=32,
    evo_steps=16,
    eval_steps=4,
    selection_strategy=TournamentSelection(2, True, 2),
    mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2),
    verbose=False,
)
assert len(trained) == 2
env.close()
