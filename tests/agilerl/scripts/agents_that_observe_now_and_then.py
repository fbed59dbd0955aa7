"""AsyncAgentsWrapper: agents without an observation (NaN) do not act."""

import numpy as np
from agilerl.algorithms import IPPO
from agilerl.utils.utils import make_multi_agent_vect_envs
from agilerl.wrappers.agent import AsyncAgentsWrapper
from tiny_team import Meeting

env = make_multi_agent_vect_envs(Meeting, num_envs=2)
spaces = {
    "observation_spaces": {agent: env.single_observation_space(agent) for agent in env.agents},
    "action_spaces": {agent: env.single_action_space(agent) for agent in env.agents},
}
team = AsyncAgentsWrapper(IPPO(**spaces, agent_ids=env.agents, learn_step=16, batch_size=8))
obs, info = env.reset()
obs["walker_1"] = np.full_like(obs["walker_1"], np.nan)
inactive, active = team.extract_inactive_agents(obs)
assert "walker_1" not in active
assert "walker_0" in active
action, *_ = team.get_action({agent: obs[agent] for agent in active})
assert set(action) == {"walker_0", "guide_0"}
env.close()
