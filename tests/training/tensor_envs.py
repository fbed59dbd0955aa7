"""An env of numpy or torch with equal values in both, and one that steps in env groups."""

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LONGEST = 12
STEP = 0.125


class Beads(VectorEnv):
    """A bead on a wire [-1, 1] that should be kept near 0: it pays 1 - |x| and falls off the ends.

    Actions push it by STEP to the left or right, or, if `continuous`, by any part of that. An episode is cut after
    LONGEST steps. Where one begins depends on the row and on how many the row has had; `seed` shifts all rows. Like a
    simulator, it writes every answer into the same arrays.
    """

    def __init__(
        self, num_envs, xp=torch, *, mode=AutoresetMode.SAME_STEP, final=True, continuous=False, masks=False, rows=None,
        policy_key=False,
    ):  # fmt: skip
        self.num_envs, self.xp, self.mode, self.final, self.masks = num_envs, xp, mode, final, masks
        self.metadata = {"autoreset_mode": mode}
        space = Box(-2, 2, (2,))
        self.policy_key = policy_key
        self.single_observation_space = Dict(policy=space, critic=space) if policy_key else space
        self.single_action_space = Box(-1, 1, (1,)) if continuous else Discrete(3 if masks else 2)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rows = self.of(np.arange(num_envs) if rows is None else rows)
        self.obs = xp.zeros((num_envs, 2), dtype=xp.float32)
        self.reward = xp.zeros(num_envs, dtype=xp.float32)
        self.flags = xp.zeros((2, num_envs), dtype=bool)

    def of(self, array):
        return torch.from_numpy(array) if self.xp is torch else array

    def floats(self, array):
        return array.float() if self.xp is torch else array.astype(np.float32)

    def reset(self, *, seed=None, options=None):
        if options is None:
            self.shift = 0 if seed is None else seed
            self.episode = self.rows * 0
            self.time = self.rows * 0
            self.x = self.floats(self.rows)
            self.ended = self.rows < 0
            self.begin(self.rows >= 0)
        else:
            self.begin(options["reset_mask"])
        return self.look(), self.info()

    def begin(self, which):
        self.episode = self.episode + which
        self.time = self.xp.where(which, 0, self.time)
        starts = (self.rows * 5 + self.episode * 7 + self.shift) % 13 - 6  # -6 … 6
        self.x = self.xp.where(which, self.floats(starts) * STEP, self.x)

    def look(self):
        self.obs[:, 0] = self.x
        self.obs[:, 1] = self.floats(self.time) / LONGEST
        return {"policy": self.obs, "critic": self.obs} if self.policy_key else self.obs

    def info(self, **more):
        if not self.masks:
            return more
        right_way = self.xp.stack([self.x > -0.9, self.x < 0.9, self.x > 5.0], 1)  # the third action never
        return {"action_mask": right_way, **more}

    def step(self, actions):
        push = (actions[:, 0] if isinstance(self.single_action_space, Box) else 2 * self.floats(actions) - 1) * STEP
        fresh = self.ended & (self.mode is AutoresetMode.NEXT_STEP)
        self.x = self.xp.where(fresh, self.x, self.x + push)
        self.time = self.time + ~fresh
        self.reward[:] = 1.0 - abs(self.x)
        self.flags[0] = abs(self.x) > 1.0
        self.flags[1] = self.time >= LONGEST
        self.ended = (self.flags[0] | self.flags[1]) & ~fresh
        info = {}
        if self.mode is AutoresetMode.SAME_STEP:
            info = {"final_obs": self.own(self.look())} if self.final else {}
            info |= {"final_info": self.info()} if self.masks else {}
            self.begin(self.ended)
        elif self.mode is AutoresetMode.NEXT_STEP:
            self.begin(fresh)
        return self.look(), self.reward, *self.flags, self.info(**info)

    def own(self, look):
        return {key: part + 0 for key, part in look.items()} if self.policy_key else look + 0


class InHalves(VectorEnv):
    """Beads of numpy that step in two env groups, and record the calls for each."""

    def __init__(self, num_envs, **kwargs):
        self.num_envs, self.kwargs = num_envs, kwargs
        self.journal: list[str] = []
        self.set_num_members(1)
        self.single_observation_space = self.halves[0].single_observation_space
        self.single_action_space = self.halves[0].single_action_space
        self.metadata = self.halves[0].metadata

    def set_num_members(self, num_members):
        rows = np.arange(self.num_envs).reshape(num_members, -1)
        middle = rows.shape[1] // 2
        self.env_groups = (rows[:, :middle].ravel(), rows[:, middle:].ravel())
        self.halves = [Beads(len(part), np, rows=part, **self.kwargs) for part in self.env_groups]
        self.sent = [None, None]

    def reset(self, *, seed=None, options=None):
        assert self.sent == [None, None]
        # a whole Beads takes one seed, which VecEnvAdapter would mix from these
        mixed = int(np.random.SeedSequence(seed).generate_state(1)[0])
        looks, infos = zip(*(half.reset(seed=mixed) for half in self.halves), strict=True)
        info = {key: self.together([info[key] for info in infos]) for key in infos[0]}
        return self.together(looks), info

    def together(self, pieces):
        if isinstance(pieces[0], dict):
            return {key: self.together([piece[key] for piece in pieces]) for key in pieces[0]}
        whole = np.zeros((self.num_envs, *pieces[0].shape[1:]), pieces[0].dtype)
        for part, piece in zip(self.env_groups, pieces, strict=True):
            whole[part] = piece
        return whole

    def step(self, actions):
        for part, rows in enumerate(self.env_groups):
            self.step_async(part, actions[rows])
        obs, reward, terminated, truncated, infos = zip(*(self.step_wait(part) for part in (0, 1)), strict=True)
        info = {key: self.together([info[key] for info in infos]) for key in infos[0]}
        return *map(self.together, (obs, reward, terminated, truncated)), info

    def step_async(self, part, actions):
        assert self.sent[part] is None
        self.journal.append(f"send {part}")
        self.sent[part] = actions.copy()

    def step_wait(self, part):
        actions, self.sent[part] = self.sent[part], None
        self.journal.append(f"receive {part}")
        obs, reward, terminated, truncated, info = self.halves[part].step(actions)
        return obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), info
