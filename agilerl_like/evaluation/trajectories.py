"""`export_trajectories`: whole episodes of trained agents as a file, for offline reinforcement learning."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from torch import Tensor

from agilerl_like.algorithms.evaluation import EvalEnv
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.vec_adapter import VecEnvAdapter, check_finite_array
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.evaluation.eval_envs import EvaluationEnv, evaluation_env_of, single_env_spec_of
from agilerl_like.evaluation.minari_dataset import check_minari, write_minari
from agilerl_like.evaluation.policies import SampledPolicy, SeededEpisodes, play_with
from agilerl_like.evaluation.returns import agents_of, count_of, seed_of
from agilerl_like.networks.sampling import Sampling
from agilerl_like.seeding import Purpose, integers
from agilerl_like.storage.durable_io import make_folder, replace_file

Format = Literal["npz", "minari"]
UNKNOWN = -1
"""The generation of an agent where it is not given."""


@dataclass(frozen=True)
class Trajectory:
    """One episode of T steps; `env.reset(seed=seed)` of its instance and its actions give it again."""

    seed: int
    agent: int
    """The agent's index."""
    generation: int
    instance: int | None
    """The number of the env's instance; None if the env has no instances."""
    observations: Any  # [T + 1, …]
    actions: np.ndarray  # [T, …]
    rewards: np.ndarray  # [T]
    terminated: np.ndarray  # [T]
    truncated: np.ndarray  # [T]
    log_probs: np.ndarray  # [T], of `actions` under the agent's policy, whatever the sampling
    values: np.ndarray  # [T], of the critic

    def __len__(self) -> int:
        return len(self.rewards)


def export_trajectories(
    agents: EvolvableAlgorithm | Iterable[EvolvableAlgorithm],
    env: EvaluationEnv,
    path: Path | str,
    steps: int = 2000,
    num_envs: int = 1,
    sampling: str | Sampling = "sample",
    format: Format = "npz",
    *,
    seed: int | None = None,
    generation: int | Sequence[int] = UNKNOWN,
) -> Path:
    """Write whole episodes with at least `steps` steps of each agent, played in `num_envs` envs; return the path.

    The episodes are those of `evaluate(agents, env, seed=seed, sampling=sampling)`; one of more than `steps` steps is
    truncated there. `generation` is that of the agents, or one for each, and is written beside their indices.

    `format="npz"` writes numpy arrays: of each step `observations`, `next_observations` (of a Dict or Tuple
    `observations/NAME`), `actions`, `rewards`, `terminated`, `truncated`, `log_probs`, `values`, `episode` (a number)
    and `step`; of each episode `episode_seed`, `episode_agent`, `episode_generation`, `episode_length`,
    `episode_return` and, of an env with instances, `episode_instance` (their number). `format="minari"` writes the
    dataset `path.name`, such as "evolved-v0", into the folder `path.parent`, which `MINARI_DATASETS_PATH` names when it
    is loaded; it needs the extra `minari`.

    `log_probs` are those that `agent.evaluate_actions` computes of the written observations and actions. Actions of a
    Box are written clipped to its bounds, so there it is the density at the bound, and not the probability that the
    policy's sample lies beyond.

    Raises:
        ConfigurationError: an argument is out of its range, or an agent is a team.
        EnvStepError: an observation, a last one among them, or a reward is not finite.
    """
    players, sampling, path = agents_of(agents), Sampling.parse(sampling), Path(path)
    steps, num_envs = count_of("steps", steps), count_of("num_envs", num_envs)
    if format not in get_args(Format):
        raise unknown_name("format", format, get_args(Format))
    if format == "npz" and path.suffix != ".npz":
        raise ConfigurationError(f"path={str(path)!r}; allowed is a file that ends in .npz")
    if format == "minari":
        check_minari()  # before the episodes are played
    if not all(isinstance(agent, RLAlgorithm) for agent in players):
        raise ConfigurationError("trajectories of teams are not written; allowed are agents of one policy, such as PPO")
    generations = list(generation) if isinstance(generation, Iterable) else [generation] * len(players)
    if not all(isinstance(one, Integral) for one in generations):
        raise ConfigurationError(f"generation={generation!r:.100}; allowed are a whole number, and one for each agent")
    if len(generations) != len(players):
        raise ConfigurationError(f"generation has {len(generations)} entries; allowed is one for each agent")
    seed, file = seed_of(seed), path.absolute()  # the env may change the directory
    with evaluation_env_of(env, num_envs, players[0]) as adapter:
        found = [
            trajectory
            for agent, its_generation in zip(players, generations, strict=True)
            for trajectory in _played(agent, adapter, seed, steps, sampling, its_generation)
        ]
        spec = single_env_spec_of(adapter) if format == "minari" else None
    if format == "npz":
        data = io.BytesIO()
        np.savez_compressed(data, **cast(Any, as_arrays(found)))
        make_folder(file.parent)
        replace_file(file, data.getvalue())
    else:
        write_minari(file, found, spec, players[0])
    return path


def _played(
    agent: EvolvableAlgorithm, adapter: EvalEnv, seed: int, steps: int, sampling: Sampling, generation: int
) -> Iterator[Trajectory]:
    """Yield an agent's episodes until they have so many steps."""
    (learner,) = agent.learners.values()
    if learner.rollout_encoding.is_asymmetric:
        cast(VecEnvAdapter, adapter).keep_critic_observation()
    recorder = Recorder(adapter, agent.index, generation)
    policy = RecordedPolicy(learner, sampling, recorder)
    played, taken = 0, 0
    in_a_round = adapter.num_envs // num_instances(adapter.env)  # each instance plays the episode of a seed
    while taken < steps:
        seeds = integers(played + in_a_round, seed, Purpose.CONFIRMATION_ENVS)[played:]
        group = next(iter(agent.learners))
        play_with(agent, recorder, {group: policy}, seeds, max_steps=steps)
        played += len(seeds)
        found = recorder.trajectories(steps)
        if not found:
            raise ConfigurationError("all episodes were lost with their worker processes; the environment fails")
        for trajectory in found:
            if taken < steps:
                yield trajectory
            taken += len(trajectory)


class _Step:
    """What happened in one step of N rows."""

    def __init__(self, actions: Any, transition: Any, to_numpy: Any) -> None:
        self.actions = np.array(actions.cpu() if isinstance(actions, Tensor) else actions)
        reward, terminated, truncated, lost = map(
            to_numpy, (transition.reward, transition.terminated, transition.truncated, transition.lost)
        )
        self.reward, self.terminated, self.lost = reward.copy(), terminated.copy(), lost.copy()
        self.truncated = truncated & ~terminated
        self.next_obs = tree_map(lambda leaf: np.array(to_numpy(leaf)), transition.next_obs)


class Recorder(SeededEpisodes):
    """An env adapter that stores the steps of one round of episodes."""

    def __init__(self, env: EvalEnv, agent: int, generation: int) -> None:
        super().__init__(env)
        self._agent, self._generation = agent, generation
        self._steps: list[_Step] = []
        self.evaluated: list[tuple[np.ndarray, np.ndarray]] = []
        """Log-probabilities and values `[N]` of each step."""

    def reset(self, seeds: Any = None) -> Any:
        observations = super().reset(seeds)
        self._steps, self.evaluated = [], []
        self._first = tree_map(lambda leaf: np.array(self.array_backend.to_numpy(leaf)), observations)
        return observations

    def step(self, actions: Any) -> Any:
        transition = super().step(actions)
        self._steps.append(_Step(actions, transition, self.array_backend.to_numpy))
        return transition

    def trajectories(self, max_steps: int) -> list[Trajectory]:
        """Return the episodes of this round, cut after `max_steps`; without those whose worker process was lost."""
        found = [self._trajectory(row, max_steps) for row in range(len(self.seeds))]
        return [trajectory for trajectory in found if trajectory is not None]

    def _trajectory(self, row: int, max_steps: int) -> Trajectory | None:
        ends = (n for n, step in enumerate(self._steps, 1) if step.terminated[row] or step.truncated[row])
        length = min(next(ends, max_steps), max_steps)
        steps = self._steps[:length]
        if any(step.lost[row] for step in steps):
            return None
        instances = num_instances(self.env)
        truncated = np.array([step.truncated[row] for step in steps])
        terminated = np.array([step.terminated[row] for step in steps])
        truncated[-1] |= not terminated[-1]
        each = [tree_map(lambda leaf: leaf[row], tree) for tree in (self._first, *(s.next_obs for s in steps))]
        observations = tree_map(lambda *leaves: np.stack(leaves), *each)
        check_finite_array(  # an evaluation reads no last observations, so it does not check them
            "observation", observations, lambda step: f"{env_name_of(self.env)}, seed {self.seeds[row]}, step {step}"
        )
        return Trajectory(
            seed=self.seeds[row],
            agent=self._agent,
            generation=self._generation,
            instance=row % instances if instances > 1 else None,
            observations=observations,
            actions=np.stack([step.actions[row] for step in steps]),
            rewards=np.array([step.reward[row] for step in steps], np.float32),
            terminated=terminated,
            truncated=truncated,
            log_probs=np.array([log_prob[row] for log_prob, _ in self.evaluated[:length]]),
            values=np.array([value[row] for _, value in self.evaluated[:length]]),
        )


class RecordedPolicy(SampledPolicy):
    """A policy whose log-probabilities and values a recorder stores."""

    def __init__(self, learner: Any, sampling: Sampling, recorder: Recorder) -> None:
        super().__init__(learner, sampling, recorder)
        self._recorder, self.encoding = recorder, learner.rollout_encoding  # with what the critic reads

    def record(self, x: Tensor, state: Tensor, outputs: Tensor, raw: Tensor, mask: Tensor | None) -> None:
        self._recorder.evaluated.append(self.log_prob_and_value(x, state, outputs, raw, mask))


def as_arrays(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """Return the arrays that `format="npz"` writes."""
    count, instances = len(trajectories), [one.instance for one in trajectories]
    per_step = {
        name: np.concatenate([getattr(one, name) for one in trajectories])
        for name in ("actions", "rewards", "terminated", "truncated", "log_probs", "values")
    }
    return {
        **_named("observations", _joined(trajectories, slice(None, -1))),
        **_named("next_observations", _joined(trajectories, slice(1, None))),
        **per_step,
        "episode": np.repeat(np.arange(count), [len(one) for one in trajectories]),
        "step": np.concatenate([np.arange(len(one)) for one in trajectories]),
        "episode_seed": np.array([one.seed for one in trajectories]),
        "episode_agent": np.array([one.agent for one in trajectories]),
        "episode_generation": np.array([one.generation for one in trajectories]),
        "episode_length": np.array([len(one) for one in trajectories]),
        "episode_return": np.array([one.rewards.sum(dtype=np.float64) for one in trajectories]),
        **({} if None in instances else {"episode_instance": np.array(instances)}),
    }


def _joined(trajectories: Sequence[Trajectory], part: slice) -> Any:
    return tree_map(
        lambda *leaves: np.concatenate([leaf[part] for leaf in leaves]), *(one.observations for one in trajectories)
    )


def _named(name: str, tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by path."""
    if isinstance(tree, Mapping):
        return {path: leaf for key, part in tree.items() for path, leaf in _named(f"{name}/{key}", part).items()}
    if isinstance(tree, tuple):
        return {path: leaf for i, part in enumerate(tree) for path, leaf in _named(f"{name}/{i}", part).items()}
    return {name: tree}
