"""Many copies of a PettingZoo env that step together, in one process or in the engine's workers.

The subtlety is that nothing here steps in bulk: each copy is packed into one env of gymnasium (`make_packed_env.py`), so
backends, restarts, seeds, shared memory and recipes are those of `make_vect_envs`. Algorithms step a
`MultiAgentVecEnvAdapter` (`team_transitions.py`); `MultiAgentVectorEnv` is for people, and speaks as AgileRL's does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast, get_args

import gymnasium as gym
import numpy as np
import pettingzoo
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from agilerl_like.envs.env_errors import describe_exception
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.factory import VecEnvConfig, with_num_envs
from agilerl_like.envs.import_paths import import_module_named
from agilerl_like.envs.install_hints import install_hint, missing_module_name
from agilerl_like.envs.multi_agent.packed_env import (
    MASK,
    STATE_SPACE,
    PackedMultiAgentEnv,
    PackedSpace,
    read_step_result,
)
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.subproc.vec_env import STEP_TIMEOUT
from agilerl_like.envs.wrapper_specs import refuse_shared_envs
from agilerl_like.errors import ConfigurationError, unknown_name

__all__ = [
    "MultiAgentVectorEnv",
    "ParallelEnv",
    "make_multi_agent_vect_envs",
    "make_packed_env",
    "make_multi_agent_eval_env",
    "multi_agent_with_num_envs",
]

MultiAgentBackend = Literal["auto", "sync", "workers"]
MultiAgentSource = str | Callable[..., Any]
MultiAgentWrapper = str | Mapping[str, Any] | Callable[[Any], Any]

_MAKER, _WRAPPER = f"{__name__}:make_packed_env", f"{__name__}:add_wrapper"


def make_multi_agent_vect_envs(
    env: MultiAgentSource,
    num_envs: int = 1,
    *,
    backend: MultiAgentBackend = "auto",
    extra_wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper] = (),
    training_wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper] = (),
    num_workers: int | None = None,
    step_timeout: float = STEP_TIMEOUT,
    with_state: bool = False,
    should_async_vector: bool | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **more_env_kwargs: Any,
) -> MultiAgentVectorEnv:
    """Make `num_envs` copies of a multi-agent env that step together.

    `env` is a factory of PettingZoo's parallel envs (`simple_spread_v3.parallel_env`), or of AEC envs whose agents all
    act in every cycle, which PettingZoo converts; or where there is one: "package.module:factory", "package.module"
    with a `parallel_env` in it, or an id of PettingZoo's registry ("butterfly/pistonball-v6"). `extra_wrappers` go
    around each parallel env: callables, import paths, or {"name": import path, **kwargs}; one may stand alone.
    `training_wrappers` go around those in training alone, so that fitness is the environment's own reward; they keep
    all spaces.

    Backends are those of `make_vect_envs` for single envs, and their results are the same bits. "auto" times random
    legal actions, and takes sync where they cannot be timed. `should_async_vector` is AgileRL's way to
    choose between "workers" and "sync". `with_state` has every step say the state of the whole world, for critics that
    see everything; it is left out otherwise, for many worlds take as long for it as for all observations.

    Raises:
        ConfigurationError: an env object instead of a factory, an AEC env in which agents take turns, spaces without a
            fixed size or that are not those of the other copies, a package that is not installed, wrong arguments.
    """
    _check_source(env)
    if should_async_vector is not None:
        named: MultiAgentBackend = "workers" if should_async_vector else "sync"
        if backend not in ("auto", named):
            raise ConfigurationError(f"should_async_vector={should_async_vector} contradicts backend={backend!r}")
        backend = named
    if backend not in get_args(MultiAgentBackend):
        raise unknown_name("backend", backend, get_args(MultiAgentBackend))
    return MultiAgentVectorEnv.from_config(
        multi_agent_env_config(
            env if isinstance(env, str) else _import_path_of(env),
            num_envs,
            backend=backend,
            extra_wrappers=_as_tuple(extra_wrappers),
            training_wrappers=_as_tuple(training_wrappers),
            num_workers=num_workers,
            step_timeout=step_timeout,
            with_state=with_state,
            env_kwargs={**(env_kwargs or {}), **more_env_kwargs},
        )
    )


def multi_agent_env_config(
    source: MultiAgentSource,
    num_envs: int,
    *,
    backend: MultiAgentBackend,
    extra_wrappers: Iterable[MultiAgentWrapper],
    training_wrappers: Iterable[MultiAgentWrapper],
    num_workers: int | None,
    step_timeout: float,
    with_state: bool,
    env_kwargs: Mapping[str, Any],
) -> VecEnvConfig:
    """How such an env is made, as data."""
    made_by = {"source": source, "extra_wrappers": extra_wrappers, "env_kwargs": env_kwargs, "with_state": with_state}
    return VecEnvConfig(
        env=_MAKER,
        num_envs=num_envs,
        backend=backend,
        env_kwargs=made_by,
        num_workers=num_workers,
        step_timeout=step_timeout,
        training_wrappers=tuple({"name": _WRAPPER, "wrapper": wrapper} for wrapper in training_wrappers),
    )


def multi_agent_with_num_envs(
    env: MultiAgentVectorEnv, num_envs: int, *, with_state: bool | None = None
) -> MultiAgentVectorEnv:
    """Make a fresh env like this one with another number of copies, with or without states if that is said.

    Raises:
        ConfigurationError: nothing tells how the env was made.
    """
    if with_state is None or with_state == env.with_state:
        return MultiAgentVectorEnv(_check_equal_spaces(lambda: with_num_envs(env.vector, num_envs)))
    recipe = env.recipe
    kwargs = {**recipe.env_kwargs, "with_state": with_state}
    asked = cast(Any, env.vector).choice.asked
    return MultiAgentVectorEnv.from_config(replace(recipe, num_envs=num_envs, backend=asked, env_kwargs=kwargs))


def make_multi_agent_eval_env(env: MultiAgentVectorEnv, num_envs: int) -> MultiAgentVectorEnv:
    """Make a fresh env like this one for counted episodes: after its end a copy stands still until it is seeded again.

    While it stands still nobody in it acts, no step is valid and nothing ends.
    """
    return MultiAgentVectorEnv(_check_equal_spaces(lambda: make_eval_env(env.vector, num_envs)))


class MultiAgentVectorEnv:
    """Copies of a PettingZoo env; everything is by agent, and arrays have the env as their first axis.

    An agent that is not there is asked for actions all the same, and they are ignored.
    """

    def __init__(self, vector: VectorEnv) -> None:
        observed, acted = vector.single_observation_space, vector.single_action_space
        if not isinstance(observed, PackedSpace) or not isinstance(acted, PackedSpace):
            raise ConfigurationError(f"vector={vector} is not an env of teams; make_multi_agent_vect_envs makes one")
        if isinstance(vector, SyncVectorEnv):
            refuse_shared_envs([cast(PackedMultiAgentEnv, team.unwrapped).env for team in vector.envs], f"env={vector}")
        self.vector = vector
        """The same as an env of gymnasium, whose observations and actions are rows of bytes."""
        self.packed_observations, self.packed_actions = observed, acted
        self.num_envs: int = vector.num_envs
        self.single_observation_spaces: dict[str, gym.Space] = dict(cast(Any, observed.dict_space["obs"]).spaces)
        self.single_action_spaces: dict[str, gym.Space] = dict(acted.dict_space.spaces)
        self.possible_agents: tuple[str, ...] = tuple(self.single_observation_spaces)
        self.agent_ids = self.possible_agents
        self.state_space: gym.Space | None = vector.metadata[STATE_SPACE]
        """What `state` returns for one env; None if the world has no such thing."""
        self.with_state: bool = "state" in observed.dict_space.spaces
        """Whether every step says it."""
        self._acting: np.ndarray = np.zeros((0, 0), np.bool_)

    @classmethod
    def from_config(cls, recipe: VecEnvConfig) -> MultiAgentVectorEnv:
        """Make one as another one was made.

        Raises:
            ConfigurationError: as `make_multi_agent_vect_envs`.
        """
        return cls(_check_equal_spaces(recipe.make))

    @property
    def recipe(self) -> VecEnvConfig:
        """How it was made; `VecEnvConfig.to_json` writes it down, if the env's factory has an import path."""
        return cast(Any, self.vector).recipe

    @property
    def agents(self) -> list[str]:
        """All agents, as AgileRL's vector envs name them; who is there now, infos say."""
        return list(self.possible_agents)

    def single_observation_space(self, agent: str) -> gym.Space:
        """What an agent's network sees of one env: without its action mask."""
        return self.single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> gym.Space:
        """What an agent does in one env."""
        return self.single_action_spaces[agent]

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tree], dict[str, Any]]:
        """Begin new episodes, with a seed for each env or the first of as many; return observations and infos.

        `infos[agent]` has `acting` [N], whether it is there, `action_mask` [N, choices] if the world has masks, and
        what the world tells, merged as gymnasium merges infos.
        """
        rows, infos = self.vector.reset(seed=cast(Any, seed), options=options)
        return self._unpack(self.packed_observations.read(rows), infos)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Tree], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
        """Take the agents' actions [N, …]; return observations, rewards, terminations, truncations and infos.

        Where an episode has ended the observations are the first of the next one, `infos["final_obs"]` are the true
        last ones, by agent [N, …], and `infos["_final_obs"]` [N] says where that is.
        """
        rows, _, terminated, truncated, infos = self.vector.step(self.packed_actions.pack(actions, self.num_envs))
        seen, over = self.packed_observations.read(rows), terminated | truncated
        last = seen
        if over.any():
            rows = rows.copy()
            rows[over] = np.stack(infos["final_obs"][over].tolist())
            last = self.packed_observations.read(rows)
            infos["final_obs"] = copied(last["obs"])
        lost = infos.get("worker_lost", np.zeros(self.num_envs, np.bool_))
        reward, terminated, truncated, _ = (
            dict(zip(self.agent_ids, part, strict=True)) for part in read_step_result(last, self._acting, lost)
        )
        observations, infos = self._unpack(seen, infos)
        return observations, reward, terminated, truncated, infos

    def state(self) -> np.ndarray:
        """The state of every env's whole world, [N, …].

        Raises:
            ConfigurationError: the world has none.
        """
        if self.state_space is None:
            raise ConfigurationError(f"{self} has no state(); allowed are envs with a state_space")
        return np.stack(cast(SyncVectorEnv, self.vector).call("state"))

    def render(self) -> Any:
        """A frame of each env."""
        return self.vector.render()

    def close(self) -> None:
        """Close every env, and end the processes that they live in."""
        self.vector.close()

    def _unpack(self, seen: Tree, infos: dict[str, Any]) -> tuple[dict[str, Tree], dict[str, Any]]:
        self._acting = np.array(seen["acting"])
        for column, agent in enumerate(self.agent_ids):
            told = infos.setdefault(agent, {})
            told["acting"] = self._acting[:, column].copy()
            if seen["masked"].any() and agent in seen["mask"]:
                told[MASK] = np.array(seen["mask"][agent])
        return copied(seen["obs"]), infos

    def __repr__(self) -> str:
        return f"MultiAgentVectorEnv({', '.join(self.agent_ids)}, num_envs={self.num_envs})"


def copied(views: Tree) -> Tree:
    """ArrayBackend of their own where a tree has views of rows."""
    return tree_map(np.ascontiguousarray, views)


def make_packed_env(
    source: MultiAgentSource,
    extra_wrappers: Iterable[MultiAgentWrapper] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    with_state: bool = False,
) -> PackedMultiAgentEnv:
    """Make one copy, as one env of gymnasium.

    Raises:
        ConfigurationError: as `make_multi_agent_vect_envs`.
    """
    _check_source(source)
    made = _call_factory(_factory(source), source, env_kwargs or {})
    if isinstance(made, AECEnv):
        made = _to_parallel(made)
    if type(made) is aec_to_parallel_wrapper:
        made.aec_env = _strip_checks(made.aec_env)
    if not all(callable(getattr(made, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        raise ConfigurationError(f"env={source!r} returned {made!r}; allowed are PettingZoo's parallel and AEC envs")
    for wrapper in extra_wrappers:
        made = _apply_wrapper(made, wrapper, "extra_wrappers")
    return PackedMultiAgentEnv(made, with_state=with_state)


def is_multi_agent(source: str) -> bool:
    """Whether an env's name stands for teams: an id of PettingZoo's registry, a module of its kind, or a factory.

    A factory ("package.module:factory") is called to find out.

    Raises:
        ConfigurationError: a module cannot be imported or has no such name.
    """
    name = source.rpartition(":")[2]
    if source in gym.registry or name in gym.registry or name.partition("-v")[2].isdecimal():
        return source in getattr(pettingzoo, "parallel_registry", {})
    if ":" not in source:
        return "." in source and "/" not in source
    factory = _imported("env", source)
    if isinstance(factory, type):
        return issubclass(factory, (ParallelEnv, AECEnv))
    made = _call_factory(factory, source, {})
    if callable(close := getattr(made, "close", None)):
        close()
    return isinstance(made, (ParallelEnv, AECEnv))


def add_wrapper(team: PackedMultiAgentEnv, wrapper: MultiAgentWrapper) -> PackedMultiAgentEnv:
    """Put one more wrapper around the parallel env of a team.

    Raises:
        ConfigurationError: it is no wrapper, or does not suit the env.
    """
    return PackedMultiAgentEnv(_apply_wrapper(team.env, wrapper, "training_wrappers"), with_state=team.with_state)


def single_env_vector(env: ParallelEnv) -> MultiAgentVectorEnv:
    """A parallel env as a vector of one, that is stepped here.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(env, ParallelEnv):
        raise ConfigurationError(f"env={env!r}; allowed are parallel envs, and those of make_multi_agent_vect_envs")
    return MultiAgentVectorEnv(
        SyncVectorEnv([lambda: PackedMultiAgentEnv(env)], autoreset_mode=AutoresetMode.SAME_STEP)
    )


def _check_source(env: object) -> None:
    if isinstance(env, (AECEnv, ParallelEnv)):
        kind = "an AEC env" if isinstance(env, AECEnv) else "a parallel env"
        raise ConfigurationError(
            f"env={env} is {kind} itself, of which no copies can be made; allowed is what makes one: "
            "simple_spread_v3.parallel_env, or lambda: MyEnv()"
        )
    if not isinstance(env, str) and not callable(env):
        raise ConfigurationError(
            f"env={env!r}; allowed are a factory, 'package.module:factory', 'package.module' and ids"
        )


def _factory(source: MultiAgentSource) -> Callable[..., Any]:
    if not isinstance(source, str):
        return source
    if "/" not in source:
        return _imported("env", source)
    ids = getattr(pettingzoo, "parallel_registry", {})  # PettingZoo has had one since 1.26
    if source not in ids:
        raise unknown_name("env", source, ids)
    return partial(_make_registered, source)


def _make_registered(source: str, **kwargs: Any) -> Any:
    """Make an env of PettingZoo's registry, whose error for a missing package is no ImportError."""
    try:
        return pettingzoo.make("parallel", source, **kwargs)
    except Exception as fault:
        if missing := missing_module_name(fault):
            raise ImportError(str(fault), name=missing) from fault
        raise


def _call_factory(factory: Callable[..., Any], source: MultiAgentSource, kwargs: Mapping[str, Any]) -> Any:
    try:
        return factory(**kwargs)
    except ImportError as fault:
        install = install_hint(missing_module_name(fault), fault)
        raise ConfigurationError(f"env={source!r} needs a package: {install}") from fault
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AssertionError) as fault:
        if not kwargs:
            raise ConfigurationError(f"env={source!r} cannot be made: {describe_exception(fault)}") from fault
        raise ConfigurationError(
            f"env_kwargs={dict(kwargs)} do not suit env={source!r}: {describe_exception(fault)}"
        ) from fault


def _to_parallel(env: AECEnv) -> ParallelEnv:
    if not env.metadata.get("is_parallelizable", False):
        raise ConfigurationError(
            f"env={env} is an AEC env whose agents take turns; allowed are those that say "
            "metadata['is_parallelizable']=True, because all agents act in every cycle"
        )
    return aec_to_parallel(env)


def _strip_checks(env: AECEnv) -> AECEnv:
    """Spare an AEC env what costs most of a step's time in its conversion, and serves nobody here.

    That is the wrappers that look for mistakes which cannot be made: nobody steps before a reset, and `Packed.pack`
    lets no category through that its space does not hold. And it is observations: the conversion asks for that of
    every agent before it acts, does not look at it, and asks for all of them again after the step.
    """
    while type(env) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper):
        env = cast(OrderEnforcingWrapper, env).env
    env.last = partial(env.last, observe=False)
    return env


def _imported(field: str, path: str) -> Callable[..., Any]:
    """What an import path names; without a name it is the module's `parallel_env`, or else its `env`."""
    module_name, _, name = path.partition(":")
    module = import_module_named(field, path, module_name)
    names = [name] if name else ["parallel_env", "env"]
    for one in names:
        if hasattr(module, one):
            return getattr(module, one)
    raise unknown_name(f"{field} (in {module_name})", names[0], [one for one in dir(module) if one[0] != "_"])


def _as_tuple(wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper]) -> tuple[MultiAgentWrapper, ...]:
    one = isinstance(wrappers, (str, Mapping)) or callable(wrappers)
    return (cast(MultiAgentWrapper, wrappers),) if one else tuple(cast(Iterable[MultiAgentWrapper], wrappers))


def _apply_wrapper(env: Any, wrapper: MultiAgentWrapper, field: str) -> Any:
    kwargs: dict[str, Any] = {}
    wrap = wrapper
    if isinstance(wrap, Mapping):
        kwargs = {key: value for key, value in wrap.items() if key != "name"}
        wrap = wrap.get("name")
    if isinstance(wrap, str):
        wrap = _imported(field, wrap)
    if not callable(wrap):
        raise ConfigurationError(
            f"{field}: {wrapper!r}; allowed are callables, 'package.module:Wrapper', {{'name': …, **kwargs}}"
        )
    try:
        return wrap(env, **kwargs)
    except (TypeError, ValueError, AssertionError) as fault:
        raise ConfigurationError(f"{field}: {wrapper!r} cannot go around {env}: {fault}") from fault


def _import_path_of(factory: Callable[..., Any]) -> MultiAgentSource:
    """The import path of a module's `parallel_env`, which is no function that knows where it stands; else itself."""
    homes = [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__dict__", {}).get("parallel_env") is factory and name != "__main__"
    ]
    return f"{min(homes, key=len)}:parallel_env" if homes else factory


def _check_equal_spaces(make: Callable[[], VectorEnv]) -> VectorEnv:
    try:
        return make()
    except RuntimeError as fault:
        if "sub-environment" not in str(fault).lower():
            raise
        raise ConfigurationError(f"the copies of env have unequal spaces: {fault}") from fault
