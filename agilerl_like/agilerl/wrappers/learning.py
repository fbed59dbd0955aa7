"""`Skill`: an environment whose reward is rewritten, for a curriculum."""

from __future__ import annotations

from typing import Any

import gymnasium

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)


class Skill(gymnasium.Wrapper):
    """Override `skill_reward` to teach a part of a task."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and hand what it did to `skill_reward`."""
        return self.skill_reward(*self.env.step(action))

    def skill_reward(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The step with the reward of this skill; unchanged unless overridden."""
        return observation, reward, terminated, truncated, info
