"""A Skill rewrites the reward of an environment, for a curriculum."""

from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_skill_vect_envs
from agilerl.wrappers.learning import Skill


class StandStill(Skill):
    def skill_reward(self, observation, reward, terminated, truncated, info):
        return observation, -abs(float(observation[1])), terminated, truncated, info


env = make_skill_vect_envs("CartPole-v1", StandStill, num_envs=2)
agent = PPO(env.single_observation_space, env.single_action_space, learn_step=32, batch_size=16, num_envs=2)
scores, *_ = collect_rollouts(agent, env)
agent.learn()
assert all(score <= 0 for score in scores)
env.close()
