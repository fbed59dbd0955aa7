"""`collect_rollouts`: one rollout of an agent into its buffer, for loops by hand of AgileRL 2.3 and later.

A time limit is bootstrapped, unless the agent has `bootstrap_truncated=False`: the buffer holds the true last
observation, whose value `learn` computes. A row in which the env ignores the action (next-step autoreset) is not
learned from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.ppo import PPO
from agilerl_like.agilerl.vector.dummy_vec_env import DummyVecEnv
from agilerl_like.agilerl.wrappers.agent import bare
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.vec_adapter import Transition, VecEnvAdapter

__getattr__ = absent_from(__name__)


class Collected(NamedTuple):
    """Scores of the episodes that ended, and the state from which the next call continues."""

    completed_episode_scores: list[float]
    last_obs: Any
    last_done: np.ndarray
    last_scores: np.ndarray
    last_info: dict[str, Any]


def collect_rollouts(
    agent: Any,
    env: gymnasium.Env | gymnasium.vector.VectorEnv,
    n_steps: int | None = None,
    last_obs: Any = None,
    last_done: np.ndarray | None = None,
    last_scores: np.ndarray | None = None,
    last_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Collected:
    """Act for `n_steps` of each env, by default `learn_step` steps of all together, and fill the rollout buffer.

    Without `last_obs` new episodes begin; with the last four results of the call before they are continued. The scores
    of episodes that ended are appended to the agent's `scores`.
    """
    player: PPO = bare(agent)
    steps = _source(player, env, fresh=last_obs is None)
    player.num_envs = steps.num_envs
    buffer = player.rollout_buffer
    fresh = last_obs is None or steps is not buffer.source
    if buffer.num_envs != steps.num_envs:
        player.create_rollout_buffer()
        buffer = player.rollout_buffer
    buffer.reset()
    buffer.source = steps
    obs = steps.reset() if fresh else last_obs
    done = np.ones(steps.num_envs, np.bool_) if fresh or last_done is None else np.asarray(last_done, np.bool_)
    scores = np.zeros(steps.num_envs) if fresh or last_scores is None else np.array(last_scores)
    state = player.get_initial_hidden_state(steps.num_envs) if fresh else buffer.hidden_state
    completed: list[float] = []
    for _ in range(n_steps or -(-player.learn_step // steps.num_envs)):
        mask = steps.action_mask
        action, log_prob, _, value, *after = player.get_action(obs, mask, state)
        step = steps.step(_in_bounds(player, action))
        reached = after[0] if after else None
        buffer.add(
            obs,
            action,
            step.reward,
            step.ended,
            value,
            log_prob,
            next_obs=step.next_obs,
            hidden_state=state,
            episode_start=done,
            action_mask=mask,
            acting=step.valid,
            truncated=step.truncated & ~step.terminated,
        )
        scores += step.reward
        completed += scores[step.ended].tolist()
        scores[step.ended] = 0.0
        obs, done, state = step.obs, step.ended, _kept(reached, step, steps.autoreset_mode)
    buffer.hidden_state = state
    player.scores += completed
    return Collected(completed, obs, done, scores, {})


collect_rollouts_recurrent = collect_rollouts


def _source(player: PPO, env: Any, *, fresh: bool) -> VecEnvAdapter:
    """Return the env to step: that of the previous rollout, if the episodes continue."""
    known = player.rollout_buffer.source
    vector = isinstance(env, gymnasium.vector.VectorEnv)
    if not fresh and known is not None and (known.env if vector else getattr(known.env, "envs", [None])[0]) is env:
        return known
    return VecEnvAdapter(env if vector else DummyVecEnv(env))


def _in_bounds(player: PPO, action: np.ndarray) -> np.ndarray:
    space = player.action_space
    return np.clip(action, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else action


def _kept(state: Any, step: Transition, mode: AutoresetMode | None) -> Any:
    """The hidden state `[layers, envs, units]` with zeros where a new episode's first observation comes next."""
    if state is None:
        return None
    begins = ~step.valid if mode is AutoresetMode.NEXT_STEP else step.ended
    return tree_map(lambda part: part * part.new_tensor(~begins).view(1, -1, 1), state)
