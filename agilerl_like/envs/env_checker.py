"""Checks a single env before training: spaces, observations, rewards, masks, seeding.

A new env is made, stepped with random legal actions, and closed; gymnasium's passive checker also examines every step.
Problems that prevent training are errors; problems that make it worse or not repeatable are warnings. The check is
limited by steps and not by time, so its findings do not depend on the machine.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.env_errors import describe_exception
from agilerl_like.envs.multi_agent.key_checks import KeyCheckedEnv
from agilerl_like.envs.multi_agent.packed_env import STATE_SPACE, PackedMultiAgentEnv, PackedSpace
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.random_actions import MASK, sample_legal_action
from agilerl_like.envs.spaces import (
    ambiguous_images,
    check_action_space,
    check_observation_space,
    images_without_channels,
    mask_size,
)
from agilerl_like.errors import ConfigurationError, EnvStepError, Terminated, short_repr

SEED = 2_024
STEPS, REPLAYED = 300, 100
"""Steps of a complete check, and how many of them are repeated with the same seed and actions."""
BRIEF_STEPS, BRIEF_REPLAYED = 40, 20
_WRAP = "name a wrapper in environment.wrappers that makes it one, as minigrid.wrappers:ImgObsWrapper does for MiniGrid"
LONG_EPISODE, LONGER = 100, 3
"""Steps, and multiples of the longest episode that ended, from which an episode that has not ended is a finding."""
LARGE_INFO = 1_000_000
"""Bytes of arrays in the info of one step from which a warning is given."""

Severity = Literal["error", "warning"]


class Finding(NamedTuple):
    """A problem of an environment, and advice."""

    severity: Severity
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.problem}; {self.advice}"


RUNNING_STATISTICS: Mapping[type[gym.Wrapper], Finding] = {
    gym.wrappers.NormalizeReward: Finding(
        "warning",
        "NormalizeReward divides rewards by running statistics, which continue from one evaluation to the next: "
        "fitness drifts although nothing is learned, and the best agent is not meaningful",
        "in training_wrappers, or with an eval_env without it, it changes the reward of training only; PPO and IPPO "
        "also have normalize_reward",
    ),
    gym.wrappers.NormalizeObservation: Finding(
        "warning",
        "NormalizeObservation keeps statistics of each env, which evaluation and a resumed run begin again",
        "normalize_observation of the algorithm keeps those of all envs, with the agent",
    ),
}
"""Wrappers with running statistics, which reset() does not restore -> their findings."""


class EnvCheck(NamedTuple):
    """The result of a check."""

    findings: tuple[Finding, ...]
    observation_space: Any
    action_space: Any
    steps_per_second: float
    """Of one env with random actions; nan if it could not be stepped."""
    longest: int
    """Steps of the longest episode that ended; 0 if none did."""
    masked: bool
    """Whether the env gives action masks."""
    endless: bool
    """Whether there is no time limit, and no episode ended or the last one is much longer than those that did."""
    zero_sum: bool
    """Whether several agents were paid, and in every episode that ended their returns sum to 0."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that prevent training."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


class _CheckFailed(Exception):
    """An error after which the env cannot be stepped further."""


class _Step(NamedTuple):
    """The result of a reset or a step, without its info."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


def check_env(
    make: Callable[[], gym.Env], *, steps: int = STEPS, replayed: int = REPLAYED, until_end: bool = False
) -> EnvCheck:
    """Make an env, check it for so many steps, and close it.

    The first `replayed` steps are repeated with the same seed and the same actions. With `until_end` there are up to
    `STEPS` steps as long as the env is `endless`, so that episodes without an end are found.
    """
    check = _Check(make, steps, replayed, until_end)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            check.run()
        except _CheckFailed:
            pass
        finally:
            check.close()
    return check.inspection()


def check_envs(makes: Sequence[Callable[[], gym.Env]], **options: Any) -> EnvCheck:
    """Check one env of each instance, as `check_env` does; findings that are not of all instances name theirs."""
    checks = [check_env(make, **options) for make in makes]
    found: dict[Finding, list[int]] = {}
    for number, check in enumerate(checks):
        for finding in check.findings:
            found.setdefault(finding, []).append(number)
    findings = [
        finding if len(numbers) == len(makes) else finding._replace(problem=f"{_named(numbers)}: {finding.problem}")
        for finding, numbers in found.items()
    ]
    return checks[0]._replace(
        findings=tuple(sorted(findings, key=_errors_first)),
        steps_per_second=float(np.mean([check.steps_per_second for check in checks])),
        longest=max(check.longest for check in checks),
        masked=any(check.masked for check in checks),
        endless=any(check.endless for check in checks),
        zero_sum=all(check.zero_sum for check in checks),
    )


def _named(instances: Sequence[int]) -> str:
    return f"instance{'s' if len(instances) > 1 else ''} {', '.join(map(str, instances))}"


def _errors_first(finding: Finding) -> bool:
    return finding.severity != "error"


@dataclass
class _Check:
    make: Callable[[], gym.Env]
    steps: int
    replayed: int
    until_end: bool
    env: gym.Env = field(init=False)
    findings: dict[tuple[Severity, str], Finding] = field(default_factory=dict)
    made: list[gym.Env] = field(default_factory=list)
    recorded: list[tuple[Any, _Step]] = field(default_factory=list)
    """Actions and results of the first episode."""
    seconds: float = 0.0
    taken: int = 0
    longest: int = 0
    ended: int = 0
    unfinished: int = 0
    """Steps of the last episode, which has not ended."""
    returns: list[np.ndarray] = field(default_factory=list)
    """Returns of the episodes that ended, by agent."""
    masks: dict[str, set[str]] = field(default_factory=dict)
    """Which of reset and step returned an action mask, by agent; "" is the name of a single one."""
    first_agents: set[str] = field(default_factory=lambda: {""})
    """The agents that act after a reset."""

    def run(self) -> None:
        folder = os.getcwd()
        self.env = self._make()
        self._check_spaces()
        spaces = deepcopy((self.env.observation_space, self.env.action_space))
        self._play()
        if (self.env.observation_space, self.env.action_space) != spaces:
            self._error("the spaces of the env change while it runs", "declare spaces that hold for every episode")
        for agent, calls in self.masks.items():
            if calls == {"step"} and agent in self.first_agents:
                what = f"the {MASK} of agent {agent!r}" if agent else f"info['{MASK}']"
                self._warn(f"{what} is given by step() and not by reset()", "return it with the first observation, too")
        statistics = [finding for kind, finding in RUNNING_STATISTICS.items() if _has_layer(self.env, kind)]
        for finding in statistics:
            self._add(*finding)
        if not statistics:
            self._check_replay()
        if os.getcwd() != folder:
            os.chdir(folder)
            self._warn("the env changes the current folder", "use absolute paths instead: runs write into this folder")
        if self.endless and self.taken >= STEPS:
            problem = f"no episode ended in {self.taken} random steps"
            if self.ended:
                problem = f"an episode had not ended after {self.unfinished} random steps (others took {self.longest})"
            limit = "truncate all agents after so many steps" if self._is_multi_agent else "wrap the env in TimeLimit"
            self._warn(
                f"{problem}, and no time limit is known",
                f"if episodes may never end, set training.eval_steps, or {limit}: evaluation plays whole episodes",
            )

    @property
    def endless(self) -> bool:
        limit = getattr(self.env if self._is_multi_agent else self.env.spec, "max_episode_steps", None)
        if limit or _has_layer(self.env, gym.wrappers.TimeLimit):
            return False
        return not self.ended or self.unfinished >= max(LONG_EPISODE, LONGER * self.longest)

    def close(self) -> None:
        for env in self.made:
            try:
                env.close()
            except Exception as fault:
                self._warn(f"close() raised {describe_exception(fault)}", "let it end without an exception")

    def inspection(self) -> EnvCheck:
        env = self.made[0] if self.made else None
        findings = sorted(self.findings.values(), key=_errors_first)
        return EnvCheck(
            tuple(findings),
            getattr(env, "observation_space", None),
            getattr(env, "action_space", None),
            self.taken / self.seconds if self.seconds else float("nan"),
            self.longest,
            bool(self.masks),
            bool(self.taken) and self.endless,
            self._is_zero_sum,
        )

    @property
    def _is_zero_sum(self) -> bool:
        returns = np.array(self.returns)
        return bool(returns.any()) and bool(np.abs(returns.sum(1)).max() <= 1e-6 * np.abs(returns).max())

    # -- findings

    def _error(self, problem: str, advice: str) -> None:
        self._add("error", problem, advice)

    def _warn(self, problem: str, advice: str) -> None:
        self._add("warning", problem, advice)

    def _add(self, severity: Severity, problem: str, advice: str, cause: str = "") -> None:
        """Add a finding unless one with the same `cause`, by default the problem, has been added, but for numbers."""
        kind = re.sub(r"[-\d.]+", "#", cause or problem)
        self.findings.setdefault((severity, kind), Finding(severity, problem, advice))

    def _break(self, problem: str, advice: str) -> _CheckFailed:
        self._error(problem, advice)
        return _CheckFailed()

    # -- the env

    def _make(self) -> gym.Env:
        try:
            env = self.make()
        except (ConfigurationError, Terminated):
            raise
        except (Exception, SystemExit) as fault:
            raise self._break(f"the env cannot be made: {describe_exception(fault)}", "fix its constructor") from None
        if not all(callable(getattr(env, name, None)) for name in ("reset", "step")):
            raise self._break(
                f"{env!r:.100} has no {' and '.join(n for n in ('reset', 'step') if not hasattr(env, n))}",
                "derive it from gymnasium.Env",
            )
        self.made.append(env)
        if isinstance(env, PackedMultiAgentEnv):
            env.env = KeyCheckedEnv(env.env, self._warn)
        if _has_layer(env, gym.wrappers.Autoreset):
            self._warn("the env resets itself (Autoreset)", "leave Autoreset out: vector envs reset by themselves")
        return env

    def _check_spaces(self) -> None:
        for name, check in (("observation_space", check_observation_space), ("action_space", check_action_space)):
            space = getattr(self.env, name, None)
            if not isinstance(space, gym.Space):
                raise self._break(f"{name} is {space!r:.100}", "set it to one of gymnasium.spaces")
            if isinstance(space, PackedSpace):
                continue
            try:
                check(space)
            except ConfigurationError as error:
                raise self._break(str(error), _WRAP) from None
        space = self.env.observation_space
        observed = space.dict_space["obs"] if isinstance(space, PackedSpace) else space
        for name, shape in ambiguous_images(observed):
            self._warn(
                f"the image {name or 'that is observed'} has shape {shape}, in which any axis could be the channels",
                "the first one is used; set algorithm.swap_channels: true if they are last, false if they are first",
            )
        for name, shape in images_without_channels(observed):
            self._warn(
                f"{name} is a uint8 Box of 2 dimensions, which is read as a vector",
                f"an image has 3: {(*shape, 1)}",
            )
        if not self._is_multi_agent and isinstance(space, Dict) and MASK in space.spaces:
            self._warn(
                f"the observation has a key '{MASK}'",
                f"single agents read masks from info['{MASK}'] only; return it there and not in the observation",
            )

    @property
    def _is_multi_agent(self) -> bool:
        return isinstance(self.env.observation_space, PackedSpace)

    def _play(self) -> None:
        """Step through episodes; the first one is seeded."""
        info, first = self._reset(self.env, seed=SEED)
        self.recorded.append((None, first))
        self.env.action_space.seed(SEED)
        length, paid = 0, np.zeros(())
        while self.taken < self.steps or (self.until_end and self.taken < STEPS and self.endless):
            action = self._action(info)
            begun = perf_counter()
            result = self._call(f"step({self._shown(action)})", lambda action=action: self._step(action))
            self.seconds += perf_counter() - begun
            self.taken, length = self.taken + 1, length + 1
            info, step = self._checked_step(result)
            self._run_gymnasium_checker(env_step_passive_checker, self.env, "step", result, action)
            if not self.ended and len(self.recorded) <= self.replayed:
                self.recorded.append((action, step))
            paid = paid + self._rewards(step)
            if step.terminated or step.truncated:
                self.returns.append(paid)
                paid = np.zeros(())
                self.ended, self.longest, length = self.ended + 1, max(self.longest, length), 0
                info, _ = self._reset(self.env)
            self.unfinished = length

    def _rewards(self, step: _Step) -> np.ndarray:
        """Return the rewards of a step by agent."""
        space = self.env.observation_space
        return space.read(step.observation)["reward"] if isinstance(space, PackedSpace) else np.array([step.reward])

    def _action(self, info: Mapping[str, Any]) -> Any:
        return self._call("a random legal action", lambda: sample_legal_action(self.env, info))

    def _shown(self, action: Any) -> str:
        """Return the repr of an action; of several agents, of what they do by name."""
        if not isinstance(self.env.action_space, PackedSpace):
            return short_repr(action)
        return short_repr(tree_map(lambda array: array.tolist(), self.env.action_space.read(action)))

    def _step(self, action: Any) -> Any:
        before = deepcopy(action)
        result = self.env.step(action)
        if isinstance(action, np.ndarray) and not np.array_equal(before, action):
            self._warn("step() writes into the action that it is given", "copy the action first")
        return result

    def _reset(self, env: gym.Env, seed: int | None = None) -> tuple[Mapping[str, Any], _Step]:
        call = "reset()" if seed is None else f"reset(seed={seed})"
        result = self._call(call, lambda: env.reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._break(f"{call} returned {short_repr(result)}", "return (observation, info)")
        observation, info = result
        self._check_observation(observation, call)
        self._check_info(info, "reset", ended=False)
        self._run_gymnasium_checker(env_reset_passive_checker, env, "reset", result)
        return info, _Step(deepcopy(observation))

    def _checked_step(self, result: Any) -> tuple[Mapping[str, Any], _Step]:
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"a tuple of {len(result)}" if isinstance(result, tuple) else short_repr(result)
            raise self._break(f"step() returned {count}", "return (observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = result
        self._check_observation(observation, "step()")
        flags = (self._flag("terminated", terminated), self._flag("truncated", truncated))
        self._check_info(info, "step", ended=any(flags))
        return info, _Step(deepcopy(observation), self._checked_reward(reward), *flags)

    # -- parts of a step

    def _check_observation(self, observation: Any, call: str) -> None:
        space = self.env.observation_space
        if isinstance(space, PackedSpace):
            fields = space.read(observation)
            self._check_values(fields["obs"], space.dict_space["obs"], "observation", call)
            if "state" in fields:
                self._check_values(fields["state"], space.dict_space["state"], "state()", call)
            else:
                self._check_unread_state()
            self._check_masks_of_agents(fields, call)
        else:
            self._check_values(observation, space, "observation", call)

    def _check_values(self, values: Any, space: gym.Space, name: str, call: str) -> None:
        for severity, problem, advice in _misfits(values, space, name):
            whole = f"{call} returned an observation that its space does not hold: {problem}"
            self._add(severity, whole, advice, cause=problem)
            if severity == "error":
                raise _CheckFailed

    def _check_masks_of_agents(self, fields: Tree, call: str) -> None:
        """Check the action masks in the fields of a row; an agent with a mask acts next."""
        spaces = cast(PackedSpace, self.env.action_space).dict_space.spaces
        method = call.partition("(")[0]
        if method == "reset":
            self.first_agents.update(agent for agent, acts in zip(spaces, fields["acting"], strict=True) if acts)
        for agent, is_masked in zip(spaces, fields["masked"], strict=True):
            if is_masked:
                self.masks.setdefault(agent, set()).add(method)
                where = f"the {MASK} of agent {agent!r} after {call}"
                self._check_mask(fields["mask"][agent], spaces[agent], where, ended=False)

    def _check_unread_state(self) -> None:
        """Check the `state()` that rows are without; a defect is a warning, because nothing reads it."""
        space = self.env.metadata[STATE_SPACE]
        if not isinstance(space, gym.Space):
            return
        needs_it = "critic_observation='state' needs it"
        try:
            state = cast(PackedMultiAgentEnv, self.env.unwrapped).state()
        except Exception as fault:
            self._warn(f"state() raised {describe_exception(fault)}", needs_it)
            return
        for _, problem, advice in _misfits(state, space, "state()"):
            self._warn(problem, f"{advice}: {needs_it}")

    def _check_info(self, info: Any, call: str, *, ended: bool) -> None:
        if not isinstance(info, dict):
            raise self._break(f"the info of {call}() is {short_repr(info)}", "return a dict, {} if it is empty")
        size = sum(value.nbytes for value in info.values() if isinstance(value, np.ndarray))
        if size > LARGE_INFO:
            self._warn(
                f"info has {size / 1e6:.0f} MB of arrays in it", "leave out entries that nothing reads: they cost time"
            )
        if MASK in info and not self._is_multi_agent:
            self.masks.setdefault("", set()).add(call)
            self._check_mask(info[MASK], self.env.action_space, f"info['{MASK}'] of {call}()", ended=ended)

    def _check_mask(self, mask: Any, space: gym.Space, where: str, *, ended: bool) -> None:
        size = mask_size(space)
        if not size:
            raise self._break(f"{where} is given for {space}, whose actions cannot be masked", "leave it out")
        if not isinstance(mask, np.ndarray) or mask.shape != (size,):
            what = f"has shape {mask.shape}" if isinstance(mask, np.ndarray) else f"is {short_repr(mask)}"
            raise self._break(f"{where} {what}", f"return an array of shape ({size},), True or 1 where allowed")
        if mask.dtype.kind not in "biu" and not np.isin(mask, (0, 1)).all():
            raise self._break(f"{where} has dtype {mask.dtype} and other values than 0 and 1", "return booleans")
        if not ended and any(not mask[choice].any() for choice in mask_slices(space)):
            raise self._break(f"{where} allows no action", "allow at least one, or end the episode before")

    def _checked_reward(self, reward: Any) -> float:
        scalar = isinstance(reward, (int, float, np.integer, np.floating, np.bool_)) or (
            isinstance(reward, np.ndarray) and reward.shape == () and reward.dtype.kind in "fiub"
        )
        if not scalar:
            raise self._break(f"step() returned the reward {short_repr(reward)}", "return one float")
        if not np.isfinite(reward):
            raise self._break(f"step() returned the reward {reward}", "return finite rewards")
        return float(reward)

    def _flag(self, name: str, flag: Any) -> bool:
        if isinstance(flag, (bool, np.bool_)):
            return bool(flag)
        if isinstance(flag, (int, np.integer)) and flag in (0, 1):
            self._warn(f"step() returned {name}={short_repr(flag)}", "return a bool")
            return bool(flag)
        raise self._break(f"step() returned {name}={short_repr(flag)}", "return a bool")

    # -- seeds

    def _check_replay(self) -> None:
        """Repeat the first episode in this env, and if it differs in a new one, which shows the reason."""
        place = self._differs(self.env)
        if place is None:
            return
        if self._differs(self._make()) is None:
            self._warn(
                f"reset(seed={SEED}) leads to another episode after others than in a new env, from its step {place} on",
                "let reset() restore everything that an episode changes",
            )
            return
        source = "self.np_random, after super().reset(seed=seed)"
        if self._is_multi_agent:
            source = "a generator of its own, which reset(seed=…) seeds"
        self._warn(
            f"the same seed and actions lead to different episodes (from step {place} on)",
            f"draw all random numbers from {source}: otherwise members are not evaluated on the same episodes, and no "
            "run can be repeated",
        )

    def _differs(self, env: gym.Env) -> int | None:
        """Return the first step of the recorded episode that this env does not reproduce, or None."""
        _, step = self._reset(env, seed=SEED)
        for place, (action, expected) in enumerate(self.recorded):
            if place:
                result = self._call("step()", lambda action=action: env.step(deepcopy(action)))
                _, step = self._checked_step(result)
            if not _same(step, expected):
                return place
        return None

    # -- calls

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """Call the env; an exception becomes an error that names its place, or what the env returned wrongly."""
        try:
            return call()
        except Terminated:
            raise
        except EnvStepError as fault:  # it has what is wrong, and behind the last semicolon what is allowed
            problem, semicolon, advice = str(fault).rpartition("; ")
            raise self._break(*((problem, advice) if semicolon else (advice, "fix the env"))) from None
        except (Exception, SystemExit) as fault:
            advice = "fix it there"
            if "seed" in str(fault) and isinstance(fault, TypeError):
                advice = "declare reset(self, *, seed=None, options=None)"
            raise self._break(f"{what} raised {describe_exception(fault)}", advice) from None

    def _run_gymnasium_checker(
        self, check: Callable[..., Any], env: gym.Env, method: str, result: Any, *given: Any
    ) -> None:
        """Pass a method's result to gymnasium's checker, and report its warnings on what is not checked here."""

        @functools.wraps(getattr(env, method))
        def answer(*_: Any, **__: Any) -> Any:
            return result

        shown: Any = SimpleNamespace(observation_space=env.observation_space, **{method: answer})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check(shown, *given)
            except AssertionError as fault:
                raise self._break(str(fault), "gymnasium's checker rejects it") from None
        for warning in caught:
            text = re.sub(r"\x1b\[\d+m", "", str(warning.message)).removeprefix("WARN: ")
            if "gymnasium" in warning.filename and not _CHECKED_HERE.search(text):
                self._warn(text.strip().rstrip("."), "reported by gymnasium's checker")


_CHECKED_HERE = re.compile(
    r"obs returned by|reward|`(terminated|truncated|done)` signal|not a tuple|should be `\(obs, info\)`|old step API|"
    r"share an object|precision lowered|Casting input|can be passed a `seed`"
)


def _misfits(observation: Any, space: gym.Space, name: str) -> Sequence[tuple[Severity, str, str]]:
    """Return why an observation does not belong to a space; nothing if it does, or does after a cast without loss."""
    if isinstance(space, Dict):
        if not isinstance(observation, Mapping) or observation.keys() != space.spaces.keys():
            keys = sorted(observation) if isinstance(observation, Mapping) else short_repr(observation)
            return [("error", f"{name} is {keys} and not a dict of {sorted(space.spaces)}", "return all keys, no more")]
        pairs = [(observation[key], part, f"{name}[{key!r}]") for key, part in space.spaces.items()]
        return [found for pair in pairs for found in _misfits(*pair)]
    if isinstance(space, Tuple):
        if not isinstance(observation, tuple) or len(observation) != len(space.spaces):
            return [("error", f"{name} is {short_repr(observation)}", f"return a tuple of {len(space.spaces)}")]
        pairs = [(observation[i], part, f"{name}[{i}]") for i, part in enumerate(space.spaces)]
        return [found for pair in pairs for found in _misfits(*pair)]
    return _array_misfits(observation, space, name)


def _array_misfits(observation: Any, space: gym.Space, name: str) -> Sequence[tuple[Severity, str, str]]:
    try:
        given = np.asarray(observation)
    except ValueError:
        given = np.empty(0, object)
    dtype = np.dtype(space.dtype)
    if given.dtype.kind not in "fiub":
        return [("error", f"{name} is {short_repr(observation)}", f"return an array of {dtype}")]
    if given.shape != (space.shape or ()):
        return [("error", f"{name} has shape {given.shape}, and its space {space.shape}", "make them equal")]
    if given.dtype.kind == "f" and dtype.kind != "f":
        return [
            (
                "error",
                f"{name} has dtype {given.dtype}, and its space {dtype}, which would truncate it",
                "make them equal",
            )
        ]
    if not np.isfinite(given).all():
        return [("error", f"{name} has {given[~np.isfinite(given)][0]} in it", "return finite numbers")]
    low, high = map(np.asarray, _bounds(space))
    wrong = (given < low - _tolerance(low)) | (given > high + _tolerance(high))
    if wrong.any():
        place = tuple(map(int, np.argwhere(wrong)[0])) if given.shape else ()
        spot = f"{name}[{', '.join(map(str, place))}]" if place else name
        allowed = f"{np.broadcast_to(low, given.shape)[place]} to {np.broadcast_to(high, given.shape)[place]}"
        severity: Severity = "warning" if isinstance(space, Box) and dtype.kind == "f" else "error"
        return [(severity, f"{spot}={given[place]} is outside {allowed}", _advice_on_bounds(space))]
    return []


def _bounds(space: gym.Space) -> tuple[Any, Any]:
    """Return the smallest and the largest legal values of a space."""
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1 if isinstance(space, MultiBinary) else np.inf


def _advice_on_bounds(space: gym.Space) -> str:
    if isinstance(space, (Discrete, MultiDiscrete)):
        return "enlarge the space, or set start= if the values do not begin with 0"
    if isinstance(space, MultiBinary):
        return "return 0 or 1"
    return "scale the values into the bounds, or widen the bounds of the space"


def _tolerance(bound: np.ndarray) -> Any:
    """Return the tolerance for rounding at a bound; 0 where it is infinite."""
    if bound.dtype.kind != "f":
        return 0
    return 1e-5 * np.maximum(1.0, np.abs(bound), where=np.isfinite(bound), out=np.zeros_like(bound))


def _same(one: Any, other: Any) -> bool:
    """Whether two observations, or two steps, are equal up to rounding."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def _has_layer(env: Any, kind: type) -> bool:
    """Whether an env is wrapped in a wrapper of a kind."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False
