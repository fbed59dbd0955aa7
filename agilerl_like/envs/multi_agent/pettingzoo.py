"""Vectorised PettingZoo environments, stepped in one process or in worker processes.

Each copy is packed into one gymnasium env (`packed_env.py`), so backends, worker restarts, seeds, shared memory and
configs are those of `make_vect_envs`. Algorithms step a `MultiAgentVecEnvAdapter` (`vec_adapter.py`);
`MultiAgentVectorEnv` is the interface for users, with AgileRL's method names.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Literal, cast, get_args

import gymnasium as gym
import numpy as np
import pettingzoo
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, aec_to_parallel_wrapper, turn_based_aec_to_parallel_wrapper

from agilerl_like.envs.env_errors import describe_exception
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.factory import (
    Aggregate,
    VecEnvConfig,
    env_config_or_none,
    episode_wrappers,
    joined_kwargs,
    with_num_envs,
)
from agilerl_like.envs.import_paths import import_module_named, install_hint, missing_module_name, public_callables
from agilerl_like.envs.multi_agent.openspiel import NAMESPACE, make_openspiel_env
from agilerl_like.envs.multi_agent.packed_env import (
    MASK,
    STATE_SPACE,
    PackedMultiAgentEnv,
    PackedSpace,
    read_step_result,
)
from agilerl_like.envs.multi_agent.turn_based import TurnBasedEnv, strip_checks
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.subproc.vec_env import STEP_TIMEOUT
from agilerl_like.envs.wrapper_specs import apply_wrapper, refuse_shared_envs
from agilerl_like.errors import ConfigurationError, tuple_of, unknown_name

__all__ = [
    "MultiAgentVectorEnv",
    "ParallelEnv",
    "make_multi_agent_vect_envs",
    "make_packed_env",
]

MultiAgentBackend = Literal["auto", "sync", "workers"]
EnvKind = Literal["aec", "parallel"]
MultiAgentSource = str | Callable[..., Any]
MultiAgentWrapper = str | Mapping[str, Any] | Callable[[Any], Any]

_MAKER, _WRAPPER = f"{__name__}:make_packed_env", f"{__name__}:add_wrapper"


def make_multi_agent_vect_envs(
    env: MultiAgentSource | ModuleType,
    num_envs: int = 1,
    *,
    backend: MultiAgentBackend = "auto",
    extra_wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper] = (),
    training_wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper] = (),
    num_workers: int | None = None,
    step_timeout: float = STEP_TIMEOUT,
    with_state: bool = False,
    instances: Iterable[Mapping[str, Any]] = (),
    aggregate: Aggregate = "mean",
    info_keys: Mapping[str, str] | None = None,
    seeds: int | Sequence[int] | None = None,
    should_async_vector: bool | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **more_env_kwargs: Any,
) -> MultiAgentVectorEnv:
    """Make `num_envs` copies of a multi-agent env that step together.

    `env` is a factory of PettingZoo parallel envs (`simple_spread_v3.parallel_env`) or AEC envs (`tictactoe_v3.env`);
    a module with a `parallel_env` or an `env` in it (`tictactoe_v3`), or "package.module"; or the name of a factory,
    "package.module:factory", an id of PettingZoo's registry ("butterfly/pistonball-v6", "classic/connect_four-v3"), or
    a game of OpenSpiel ("openspiel/kuhn_poker"). Of an AEC env, agents that take turns do so here (`turn_based.py`);
    with `is_parallelizable` in its metadata they act at once. `extra_wrappers` wrap each
    parallel env: a callable, an import path, {"name": import path, **kwargs}, or a sequence of these.
    `training_wrappers` wrap it once more in training only, so that fitness is the environment's own reward; they must
    keep all spaces.

    Backends are those of `make_vect_envs` and give bit-identical results. "auto" times random legal actions, and takes
    "sync" where they cannot be timed. `should_async_vector` is AgileRL's switch between "workers" and "sync".
    `with_state` adds `state()` to every step, for centralised critics; off by default, because many envs take as long
    for it as for all observations. `instances`, `aggregate`, `info_keys` (without "env.NAME") and `seeds` are those of
    `make_vect_envs`. `env_kwargs`, and all further keywords, are arguments of the environment: `max_cycles=100`.

    Raises:
        ConfigurationError: an env object instead of a factory, spaces without a fixed size or that differ between
            copies, a package that is not installed, wrong arguments.
    """
    _check_source(env)
    if should_async_vector is not None:
        named: MultiAgentBackend = "workers" if should_async_vector else "sync"
        if backend not in ("auto", named):
            raise ConfigurationError(f"should_async_vector={should_async_vector} contradicts backend={backend!r}")
        backend = named
    if backend not in get_args(MultiAgentBackend):
        raise unknown_name("backend", backend, get_args(MultiAgentBackend))
    refuse_attributes(info_keys or {})
    return MultiAgentVectorEnv.from_config(
        multi_agent_env_config(
            _import_path_of(env),
            num_envs,
            backend=backend,
            extra_wrappers=_as_tuple("extra_wrappers", extra_wrappers),
            training_wrappers=_as_tuple("training_wrappers", training_wrappers),
            num_workers=num_workers,
            step_timeout=step_timeout,
            with_state=with_state,
            env_kwargs=joined_kwargs(env_kwargs, more_env_kwargs),
            instances=tuple_of("instances", instances, "a list of mappings"),
            aggregate=aggregate,
            info_keys=info_keys or {},
            seeds=seeds,
        )
    )


def refuse_attributes(info_keys: Mapping[str, str]) -> None:
    """Raise ConfigurationError if `info_keys` name attributes of the environment, which only single envs can report."""
    if episode_wrappers(None, info_keys):
        raise ConfigurationError(
            f"info_keys={dict(info_keys)}; allowed with several agents are keys of the info (env.NAME is for single "
            "agents)"
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
    env_kwargs: Mapping[str, Any],
    with_state: bool = False,
    instances: Iterable[Mapping[str, Any]] = (),
    **options: Any,
) -> VecEnvConfig:
    """Describe a multi-agent vector env as the config of the gymnasium env that packs it; `options` are of that."""
    kwargs = {"source": source, "extra_wrappers": extra_wrappers, "env_kwargs": env_kwargs, "with_state": with_state}
    return VecEnvConfig(
        env=_MAKER,
        num_envs=num_envs,
        backend=backend,
        env_kwargs=kwargs,
        num_workers=num_workers,
        step_timeout=step_timeout,
        training_wrappers=tuple({"name": _WRAPPER, "wrapper": wrapper} for wrapper in training_wrappers),
        instances=tuple(_packed_instance(instance, env_kwargs) for instance in instances),
        **options,
    )


def _packed_instance(instance: Mapping[str, Any], env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the packed env of an instance; ConfigurationError if it is no mapping."""
    if not isinstance(instance, Mapping):
        raise ConfigurationError(f"instances: {instance!r:.100}; allowed are mappings of arguments, and of id")
    own = dict(instance)
    source = {"source": own.pop("id")} if "id" in own else {}
    return {**source, "env_kwargs": {**env_kwargs, **own}}


def not_multi_agent(argument: str, env: Any) -> ConfigurationError:
    """Return the error for an env that is no `MultiAgentVectorEnv`."""
    return ConfigurationError(
        f"{argument}={env!r:.200} is not a multi-agent vector env; make_multi_agent_vect_envs makes one of a "
        "PettingZoo environment"
    )


class MultiAgentVectorEnv:
    """Copies of a PettingZoo env; values are dicts by agent, whose arrays have the env as their first axis.

    Actions are required for absent agents, too, and ignored.
    """

    def __init__(self, vector: VectorEnv) -> None:
        observed, acted = vector.single_observation_space, vector.single_action_space
        if not isinstance(observed, PackedSpace) or not isinstance(acted, PackedSpace):
            raise not_multi_agent("vector", vector)
        if isinstance(vector, SyncVectorEnv):
            refuse_shared_envs(vector.envs, vector)
        self.vector = vector
        """The underlying gymnasium env, whose observations and actions are rows of bytes (`PackedSpace`)."""
        self.packed_observations, self.packed_actions = observed, acted
        self.num_envs: int = vector.num_envs
        self.single_observation_spaces: dict[str, gym.Space] = dict(cast(Any, observed.dict_space["obs"]).spaces)
        self.single_action_spaces: dict[str, gym.Space] = dict(acted.dict_space.spaces)
        self.possible_agents: tuple[str, ...] = tuple(self.single_observation_spaces)
        self.agent_ids = self.possible_agents
        self.state_space: gym.Space | None = vector.metadata[STATE_SPACE]
        """Space of `state()` for one env; None if the env has no state."""
        self.with_state: bool = "state" in observed.dict_space.spaces
        """Whether every step returns it."""
        self._acting: np.ndarray = np.zeros((0, 0), np.bool_)
        self._waiting: np.ndarray = self._acting

    @classmethod
    def from_config(cls, env_config: VecEnvConfig) -> MultiAgentVectorEnv:
        """Make one from its config.

        Raises:
            ConfigurationError: as `make_multi_agent_vect_envs`.
        """
        return cls(_check_equal_spaces(env_config.make))

    def with_num_envs(self, num_envs: int, *, first: int = 0) -> MultiAgentVectorEnv:
        """Make a fresh env like this one with another number of copies; `first` is as in `factory.with_num_envs`.

        Raises:
            ConfigurationError: it is unknown how the env was made.
        """
        return MultiAgentVectorEnv(_check_equal_spaces(lambda: with_num_envs(self.vector, num_envs, first=first)))

    def eval_env(self, num_envs: int) -> MultiAgentVectorEnv:
        """Make a fresh env like this one for counted episodes: a copy plays one episode for each seed.

        After it the copy idles: no agent acts, no step is valid and nothing ends.
        """
        return MultiAgentVectorEnv(_check_equal_spaces(lambda: make_eval_env(self.vector, num_envs)))

    @property
    def env_config(self) -> VecEnvConfig | None:
        """The config that its envs were made from; None if they were made without one."""
        return env_config_or_none(self.vector)

    @property
    def agents(self) -> list[str]:
        """All possible agents (AgileRL's name); `infos[agent]["acting"]` is true for those that are present."""
        return list(self.possible_agents)

    def single_observation_space(self, agent: str) -> gym.Space:
        """An agent's observation space in one env, without its action mask."""
        return self.single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> gym.Space:
        """An agent's action space in one env."""
        return self.single_action_spaces[agent]

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tree], dict[str, Any]]:
        """Start new episodes, with a seed for each env or the first of a range; return observations and infos.

        `infos[agent]` has `acting` [N] (whether the agent is present), `action_mask` [N, choices] if the env gives
        masks, and the env's own infos, merged as gymnasium merges them.
        """
        rows, infos = self.vector.reset(seed=cast(Any, seed), options=options)
        return self._unpack(self.packed_observations.read(rows), infos)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Tree], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
        """Take the agents' actions [N, …]; return observations, rewards, terminations, truncations and infos.

        Where an episode has ended, observations are the first of the next one, `infos["final_obs"]` holds the final
        ones by agent [N, …], and `infos["_final_obs"]` [N] flags these envs. If `vector` has autoreset mode NEXT_STEP,
        observations are the final ones, and the next step, which ignores the actions, returns the first ones.
        """
        rows, _, terminated, truncated, infos = self.vector.step(self.packed_actions.pack(actions, self.num_envs))
        fields, ended = self.packed_observations.read(rows), terminated | truncated
        final = fields
        if "final_obs" in infos:
            rows = rows.copy()
            rows[ended] = np.stack(infos["final_obs"][ended].tolist())
            final = self.packed_observations.read(rows)
            infos["final_obs"] = copied(final["obs"])
        lost = infos.get("worker_lost", np.zeros(self.num_envs, np.bool_))
        reward, terminated, truncated, _ = (
            dict(zip(self.agent_ids, part, strict=True))
            for part in read_step_result(final, self._acting, self._waiting, lost)
        )
        observations, infos = self._unpack(fields, infos)
        return observations, reward, terminated, truncated, infos

    def state(self) -> np.ndarray:
        """The global state of every env, [N, …].

        Raises:
            ConfigurationError: the env has no state.
        """
        if self.state_space is None:
            raise ConfigurationError(f"{self} has no state(); allowed are envs with a state_space")
        return np.stack(cast(SyncVectorEnv, self.vector).call("state"))

    def render(self) -> Any:
        """A frame of each env."""
        return self.vector.render()

    def close(self) -> None:
        """Close every env and stop its worker processes."""
        self.vector.close()

    def _unpack(self, fields: Tree, infos: dict[str, Any]) -> tuple[dict[str, Tree], dict[str, Any]]:
        self._acting, self._waiting = np.array(fields["acting"]), np.array(fields["waiting"])
        for column, agent in enumerate(self.agent_ids):
            info = infos.setdefault(agent, {})
            info["acting"] = self._acting[:, column].copy()
            if fields["masked"].any() and agent in fields["mask"]:
                info[MASK] = np.array(fields["mask"][agent])
        return copied(fields["obs"]), infos

    def __repr__(self) -> str:
        return f"MultiAgentVectorEnv({', '.join(self.agent_ids)}, num_envs={self.num_envs})"


def copied(views: Tree) -> Tree:
    """Copy a tree of views into contiguous arrays."""
    return tree_map(np.ascontiguousarray, views)


def make_packed_env(
    source: MultiAgentSource,
    extra_wrappers: Iterable[MultiAgentWrapper] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    with_state: bool = False,
) -> PackedMultiAgentEnv:
    """Make one copy, packed into one gymnasium env.

    Raises:
        ConfigurationError: as `make_multi_agent_vect_envs`.
    """
    _check_source(source)
    env = _call_factory(_factory(source), source, env_kwargs or {})
    if isinstance(env, AECEnv):
        env = aec_to_parallel(env) if env.metadata.get("is_parallelizable", False) else TurnBasedEnv(env)
    if type(env) is turn_based_aec_to_parallel_wrapper:
        env = TurnBasedEnv(env.aec_env)
    if type(env) is aec_to_parallel_wrapper:
        # the conversion computes an observation before each agent acts, does not use it, and computes all of them again
        env.aec_env = strip_checks(env.aec_env)
        env.aec_env.last = partial(env.aec_env.last, observe=False)
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        raise ConfigurationError(f"env={source!r} returned {env!r}; allowed are PettingZoo's parallel and AEC envs")
    for wrapper in extra_wrappers:
        env = apply_wrapper(env, wrapper, "wrappers (in Python extra_wrappers)")
    try:
        return PackedMultiAgentEnv(env, with_state=with_state)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AssertionError) as fault:
        raise ConfigurationError(f"env={source!r} cannot be used: {describe_exception(fault)}") from fault


def is_multi_agent(source: str) -> bool:
    """Whether an env's name is multi-agent: an id of PettingZoo or OpenSpiel, a module like PettingZoo's, or a factory.

    A factory ("package.module:factory") is called to find out.

    Raises:
        ConfigurationError: a module cannot be imported or has no such name.
    """
    if source.startswith(NAMESPACE):
        return True
    name = source.rpartition(":")[2]
    if source in gym.registry or name in gym.registry or name.partition("-v")[2].isdecimal():
        return source in _registered_ids()
    if ":" not in source:
        return "." in source and "/" not in source
    factory = _import_factory(source)
    if isinstance(factory, type):
        return issubclass(factory, (ParallelEnv, AECEnv))
    env = _call_factory(factory, source, {})
    if callable(close := getattr(env, "close", None)):
        close()
    return isinstance(env, (ParallelEnv, AECEnv))


def add_wrapper(packed: PackedMultiAgentEnv, wrapper: MultiAgentWrapper) -> PackedMultiAgentEnv:
    """Wrap the parallel env inside a packed env once more.

    Raises:
        ConfigurationError: it is not a wrapper, or does not suit the env.
    """
    wrapped = apply_wrapper(packed.env, wrapper, "training_wrappers")
    return PackedMultiAgentEnv(wrapped, with_state=packed.with_state)


def single_env_vector(env: ParallelEnv) -> MultiAgentVectorEnv:
    """Wrap one parallel env as a vector of one, stepped in this process.

    Raises:
        ConfigurationError: it is not a parallel env.
    """
    if not isinstance(env, ParallelEnv):
        raise ConfigurationError(f"env={env!r}; allowed are parallel envs, and those of make_multi_agent_vect_envs")
    vector = SyncVectorEnv([lambda: PackedMultiAgentEnv(env)], autoreset_mode=AutoresetMode.SAME_STEP)
    return MultiAgentVectorEnv(vector)


def _check_source(env: object) -> None:
    if isinstance(env, (AECEnv, ParallelEnv)):
        kind = "an AEC env" if isinstance(env, AECEnv) else "a parallel env"
        raise ConfigurationError(
            f"env={env} is {kind} itself, which cannot be copied; allowed is a factory: "
            "simple_spread_v3.parallel_env, or lambda: MyEnv()"
        )
    if not isinstance(env, str | ModuleType) and not callable(env):
        raise ConfigurationError(
            f"env={env!r}; allowed are a factory, a module, 'package.module:factory', 'package.module' and ids"
        )


def _factory(source: MultiAgentSource) -> Callable[..., Any]:
    if not isinstance(source, str):
        return source
    if source.startswith(NAMESPACE):
        return partial(make_openspiel_env, source.removeprefix(NAMESPACE))
    ids = _registered_ids()
    if source in gym.registry and source not in ids:
        raise ConfigurationError(
            f"env={source!r} is gymnasium's, with a single agent; IPPO trains multi-agent environments"
        )
    if "/" not in source:
        return _import_factory(source)
    if source not in ids:
        raise unknown_name("env", source, ids)
    return partial(_make_registered, ids[source], source)


def _registered_ids() -> Mapping[str, EnvKind]:
    """Return the ids of PettingZoo's registry, and as which kind of env each is made: parallel, if there are both."""
    aec: dict[str, EnvKind] = dict.fromkeys(pettingzoo.aec_registry, "aec")
    return {**aec, **dict.fromkeys(pettingzoo.parallel_registry, "parallel")}


def _make_registered(kind: EnvKind, source: str, **kwargs: Any) -> Any:
    """Make an env of PettingZoo's registry, which does not raise ImportError for a missing package."""
    try:
        return pettingzoo.make(kind, source, **kwargs)
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


def _import_factory(path: str) -> Callable[..., Any]:
    """Import what a path names; a module alone stands for its `parallel_env`, or else its `env`."""
    module_name, _, name = path.partition(":")
    with warnings.catch_warnings():
        if module_name.startswith("pettingzoo."):  # it recommends its registry, whose ids are as good a name
            warnings.simplefilter("ignore", DeprecationWarning)
        module = import_module_named("env", path, module_name)
    names = [name] if name else ["parallel_env", "env"]
    for one in names:
        if hasattr(module, one):
            return getattr(module, one)
    raise unknown_name(f"env (in {module_name})", names[0], public_callables(module))


def _as_tuple(field: str, wrappers: MultiAgentWrapper | Iterable[MultiAgentWrapper]) -> tuple[MultiAgentWrapper, ...]:
    one = isinstance(wrappers, (str, Mapping)) or callable(wrappers)
    return (cast(MultiAgentWrapper, wrappers),) if one else tuple_of(field, wrappers, "a wrapper, or a list of them")


def _import_path_of(source: MultiAgentSource | ModuleType) -> MultiAgentSource:
    """Return the name of a module, and of its `parallel_env`, whose `__module__` is PettingZoo's; else the source."""
    if isinstance(source, ModuleType):
        return source.__name__
    if isinstance(source, str):
        return source
    modules = [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__dict__", {}).get("parallel_env") is source and name != "__main__"
    ]
    return f"{min(modules, key=len)}:parallel_env" if modules else source


def _check_equal_spaces(make: Callable[[], VectorEnv]) -> VectorEnv:
    try:
        return make()
    except RuntimeError as fault:
        if "sub-environment" not in str(fault).lower():
            raise
        raise ConfigurationError(f"the copies of env have unequal spaces: {fault}") from fault
