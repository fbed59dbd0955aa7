"""IPPO's loop by hand."""

import numpy as np
from agilerl.algorithms import IPPO
from agilerl.utils.utils import make_multi_agent_vect_envs
from tiny_team import Meeting

env = make_multi_agent_vect_envs(Meeting, num_envs=2)
spaces = {
    "observation_spaces": {agent: env.single_observation_space(agent) for agent in env.agents},
    "action_spaces": {agent: env.single_action_space(agent) for agent in env.agents},
}
team = IPPO(
    **spaces, agent_ids=env.agents, learn_step=16, batch_size=8, net_config={"encoder_config": {"hidden_size": [16]}}
)
columns = [{agent: [] for agent in env.agents} for _ in range(6)]
obs, info = env.reset()
done = {agent: np.zeros(2) for agent in env.agents}
for _ in range(8):
    action, log_prob, _, value = team.get_action(obs=obs, infos=info)
    next_obs, reward, termination, truncation, info = env.step(action)
    for column, part in zip(columns, (obs, action, log_prob, reward, done, value), strict=True):
        for agent in env.agents:
            column[agent].append(part[agent])
    obs = next_obs
    done = {agent: np.logical_or(termination[agent], truncation[agent]).astype(np.int8) for agent in env.agents}
losses = team.learn((*columns, obs, done))
team.steps += 16
assert set(losses) == set(team.shared_agent_ids)
assert np.isfinite(list(losses.values())).all()
env.close()
