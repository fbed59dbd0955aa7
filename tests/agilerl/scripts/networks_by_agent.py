"""A team whose net_config is given by agent."""

from agilerl.algorithms import IPPO
from agilerl.utils.utils import make_multi_agent_vect_envs
from tiny_team import Meeting

env = make_multi_agent_vect_envs(Meeting, num_envs=2)
spaces = {
    "observation_spaces": {agent: env.single_observation_space(agent) for agent in env.agents},
    "action_spaces": {agent: env.single_action_space(agent) for agent in env.agents},
}
team = IPPO(
    **spaces,
    agent_ids=env.agents,
    learn_step=16,
    batch_size=8,
    net_config={
        "walker_0": {"encoder_config": {"hidden_size": [32]}},
        "guide_0": {"encoder_config": {"hidden_size": [16]}},
    },
)
assert set(team.shared_agent_ids) == {"walker", "guide"}
assert team.has_grouped_agents()
assert team.test(env, max_steps=4, loop=1) is not None
env.close()
