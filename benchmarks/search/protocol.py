"""The protocol, frozen before any method was tuned: space, starts, environments, budgets, seeds and tiers.

Every method trains the same PPO with the same networks in the same environments, and every environment step of every
member, trial and evaluation counts against one budget. Methods may be tuned on `TUNING_ENVS` with `TUNING_SEEDS` only;
results are reported for seeds from `FIRST_REPORT_SEED` on. `tests/benchmarks` holds a digest of what this file defines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from agilerl_like.hpo import HyperparameterConfig, RLParameter
from agilerl_like.hpo.hyperparameters import Number

TUNING_SEEDS = range(100)
TUNING_ENVS = ("cartpole", "pendulum")
FIRST_REPORT_SEED = 1000
MEMBERS = 8
"""Members of a population; methods that train single trials have `TRIAL_SLOTS` of them at a time."""
TRIAL_SLOTS = 4
"""Trials that run side by side as one population. More would leave a sampler fewer results to learn from."""
GENERATIONS = 21
"""Generations of a run of `MEMBERS`, between which evolution acts 20 times; a full trial lasts as long."""
CONFIRMATION = 0.13
"""Share of the budget that is laid aside for episodes that compare the best agent with a candidate."""
NUM_ENVS = 8
"""Envs of a member."""
TEST_EPISODES = 100
"""Fresh episodes that evaluate what a method hands over; they are not counted, because no method sees them."""
HIDDEN = (64, 64)

RANGES = {
    "lr": RLParameter(1e-5, 1e-2, scale="log"),
    "gamma": RLParameter(0.8, 0.9999, scale="log_complement"),
    "gae_lambda": RLParameter(0.5, 0.999, scale="log_complement"),
    "clip_coef": RLParameter(0.05, 0.4, scale="linear"),
    "ent_coef": RLParameter(1e-6, 0.1, scale="log"),
    "update_epochs": RLParameter(1, 20, dtype=int, scale="linear"),
    "batch_size": RLParameter(32, 512, dtype=int, scale="power_of_two"),
    "learn_step": RLParameter(32, 2048, dtype=int, scale="power_of_two"),
    "vf_coef": RLParameter(0.1, 1.0, scale="linear"),
    "max_grad_norm": RLParameter(0.3, 2.0, scale="log"),
}
"""The space that all methods search. `learn_step` counts the steps of all envs of a member."""

DIVERGING_LR = 3e-2

Start = Literal["S1", "S2", "S3", "S4"]
STARTS: dict[Start, str] = {
    "S1": "all members at the same bad point",
    "S2": "each member drawn from the ranges",
    "S3": "all members at values that rl-zoo tuned for PPO",
    "S4": f"all members at lr {DIVERGING_LR:g}, otherwise as S3",
}
BAD_POINT: dict[str, Number] = {
    "lr": 1e-5, "gamma": 0.8, "gae_lambda": 0.5, "clip_coef": 0.05, "ent_coef": 0.1, "update_epochs": 1,
    "batch_size": 64, "learn_step": 256, "vf_coef": 0.5, "max_grad_norm": 0.5,
}  # fmt: skip


def _tuned(**changes: Number) -> dict[str, Number]:
    """Return SB3's defaults with an environment's tuned values, as far as the ranges allow."""
    values = {
        "lr": 3e-4, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2, "ent_coef": 1e-6, "update_epochs": 10,
        "batch_size": 64, "learn_step": 2048, "vf_coef": 0.5, "max_grad_norm": 0.5, **changes,
    }  # fmt: skip
    return {name: RANGES[name].clip(value) for name, value in values.items()}


@dataclass(frozen=True)
class Env:
    """An environment of the benchmark, with what its runs may spend."""

    id: str
    budget: int
    """Env steps of all members, trials and evaluations together."""
    episodes: int
    """Evaluation episodes of a member in a generation."""
    episode_steps: int
    """Steps of an episode for which the budget of evaluation is laid out."""
    random: float
    """Return of a random policy, which scores 0."""
    target: float
    """Return that scores 1."""
    tuned: Mapping[str, Number]
    """What rl-zoo tuned for it, clipped to the ranges; for envs that it lacks, SB3's defaults."""
    package: str = ""
    """The module that it needs besides gymnasium."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Any, ...] = ()
    ppo: Mapping[str, Any] = field(default_factory=dict)
    """Settings of PPO that are not searched."""
    net_config: Mapping[str, Any] = field(default_factory=dict)
    teams: bool = False
    harder: bool = False
    """One of the environments that were added because hyperparameters decide there."""

    @property
    def is_available(self) -> bool:
        return not self.package or find_spec(self.package) is not None

    def generation_steps(self, case: Case, evaluated: float = 1.0) -> int:
        """Return the training steps of a member in a generation, so that a run spends its budget.

        With shorter generations evaluation takes a larger share; training has at least half. `evaluated` is the mean
        share of the members that a generation evaluates, below 1 where members are removed.
        """
        share = int(case.budget * (1 - CONFIRMATION)) // (case.members * case.generations)
        evaluation = int(evaluated * self.episodes * self.episode_steps)
        return max(share // 2, share - evaluation) // NUM_ENVS * NUM_ENVS

    def score(self, value: float) -> float:
        """Return a return on the scale where a random policy has 0 and the target 1."""
        return (value - self.random) / (self.target - self.random)


_POSITIONS = {"name": "agilerl_like.envs.observation_wrappers:SelectEntries", "entries": [0, 2]}
_IMAGES = {"latent_dim": 128, "encoder_config": {"channel_size": [16, 32]}}
_MLP = {"encoder_config": {"hidden_size": list(HIDDEN)}, "head_config": {"hidden_size": [HIDDEN[-1]]}}

ENVS = {
    "cartpole": Env("CartPole-v1", 800_000, 3, 500, 22.0, 475.0,
                    _tuned(lr=1e-3, gamma=0.98, gae_lambda=0.8, update_epochs=20, batch_size=256, learn_step=256)),
    "acrobot": Env("Acrobot-v1", 800_000, 4, 250, -500.0, -90.0,
                   _tuned(gae_lambda=0.94, update_epochs=4, learn_step=2048)),
    "pendulum": Env("Pendulum-v1", 800_000, 5, 200, -1200.0, -200.0,
                    _tuned(lr=1e-3, gamma=0.9, learn_step=2048)),
    "mountain_car_continuous": Env("MountainCarContinuous-v0", 800_000, 2, 820, 0.0, 90.0,
                                   _tuned(lr=7.77e-5, gamma=0.9999, gae_lambda=0.9, clip_coef=0.1, ent_coef=0.00429,
                                          batch_size=256, learn_step=32, max_grad_norm=5, vf_coef=0.19)),
    "lunar_lander": Env("LunarLander-v3", 2_400_000, 5, 600, -180.0, 200.0,
                        _tuned(gamma=0.999, gae_lambda=0.98, ent_coef=0.01, update_epochs=4), "Box2D"),
    "breakout": Env("MinAtar/Breakout-v1", 1_600_000, 5, 200, 0.5, 10.0, _tuned(), "minatar",
                    {"max_episode_steps": 5_000}, ppo={"share_encoders": True}, net_config=_IMAGES),
    "simple_spread": Env("mpe2.simple_spread_v3:parallel_env", 800_000, 20, 25, -79.2, -47.5, _tuned(gamma=0.9), "mpe2",
                         ppo={"rewards": "sum"}, teams=True),
    "bipedal_walker": Env("BipedalWalker-v3", 4_000_000, 4, 1_000, -100.0, 250.0,
                          _tuned(gamma=0.999, clip_coef=0.18), "Box2D", harder=True),
    "space_invaders": Env("MinAtar/SpaceInvaders-v1", 1_600_000, 5, 200, 3.0, 50.0, _tuned(), "minatar",
                          {"max_episode_steps": 5_000}, ppo={"share_encoders": True}, net_config=_IMAGES, harder=True),
    "cartpole_positions": Env("CartPole-v1", 1_600_000, 3, 500, 22.0, 475.0,
                              _tuned(lr=1e-3, gamma=0.98, gae_lambda=0.8, batch_size=256, learn_step=256),
                              wrappers=(_POSITIONS,), ppo={"recurrent": True, "max_seq_len": 16}, harder=True),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One search: a method in an environment, from a start, with a seed."""

    method: str
    env: str
    start: Start
    seed: int
    budget: int
    members: int = MEMBERS
    generations: int = GENERATIONS

    @property
    def key(self) -> str:
        """The name under which its row is found again."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Tier:
    """Which cases a run of the benchmark has."""

    envs: Mapping[str, int]
    """Budgets by environment."""
    methods: tuple[str, ...]
    starts: tuple[Start, ...]
    seeds: int
    members: int = MEMBERS
    generations: int = GENERATIONS

    def cases(self) -> list[Case]:
        """Return all cases, seed by seed, so that an unfinished tier has as many of each method as possible."""
        return [
            Case(method, env, start, FIRST_REPORT_SEED + seed, budget, self.members, self.generations)
            for seed in range(self.seeds)
            for start in self.starts
            for env, budget in self.envs.items()
            for method in self.methods
        ]


_BUDGETS = {name: env.budget for name, env in ENVS.items()}
_COMPARED = (
    "ours", "no_evolution", "random_quarters", "tpe_median", "tpe_hyperband", "asha", "smac_hyperband",
    "ray_pbt", "pb2", "agilerl_rules", "mf_pbt", "ipbt",
)  # fmt: skip
TIERS = {
    "smoke": Tier({"cartpole": 200_000, "acrobot": 400_000}, ("ours", "no_evolution"), ("S2",), 5, 4, 11),
    "main": Tier({name: _BUDGETS[name] for name, env in ENVS.items() if not env.harder}, _COMPARED, ("S2",), 10),
    "nightly": Tier(_BUDGETS, (*_COMPARED, "tuned"), tuple(STARTS), 10),
}
"""`main` has S2 alone, because the claims that it decides are about S2. Ablations run by `--methods`."""


def hp_config(start: Start, *, powers_of_two: bool = True) -> HyperparameterConfig:
    """Return the ranges, or those with all integers between their bounds; the diverging start needs a higher lr."""
    ranges = dict(RANGES)
    if start == "S4":
        ranges["lr"] = RLParameter(1e-5, DIVERGING_LR, scale="log")
    if not powers_of_two:
        for name, its in RANGES.items():
            if its.scale == "power_of_two":
                ranges[name] = RLParameter(its.min, its.max, dtype=int, scale="linear")
    return HyperparameterConfig(**ranges)


def start_values(start: Start, env: Env, rng: np.random.Generator) -> dict[str, Number]:
    """Return the hyperparameters that one member starts with."""
    match start:
        case "S1":
            return dict(BAD_POINT)
        case "S2":
            return HyperparameterConfig(**RANGES).sample(rng)
        case "S3":
            return dict(env.tuned)
        case "S4":
            return {**env.tuned, "lr": DIVERGING_LR}


def net_config(env: Env) -> dict[str, Any]:
    """Return the networks, the same for all methods."""
    return dict(env.net_config or _MLP)


def digest() -> str:
    """Return a digest of everything that results depend on, which a test compares with the frozen one."""
    frozen = {
        "ranges": {name: range_.to_json() for name, range_ in RANGES.items()},
        "envs": {name: asdict(env) for name, env in ENVS.items()},
        "starts": [STARTS, BAD_POINT, DIVERGING_LR],
        "counts": [MEMBERS, TRIAL_SLOTS, GENERATIONS, CONFIRMATION, NUM_ENVS, TEST_EPISODES, HIDDEN],
        "seeds": [FIRST_REPORT_SEED, len(TUNING_SEEDS), TUNING_ENVS],
        "tiers": {name: asdict(tier) for name, tier in TIERS.items()},
    }
    return hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:16]
