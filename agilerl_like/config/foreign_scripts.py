"""Settings in Python scripts of other systems. A script is parsed, never executed.

Read are dictionaries, fields of classes, assignments of entries, and the keywords of the calls that make or train an
algorithm. For Stable-Baselines3 that includes the calls that make and wrap its environments, for AgileRL those that
make environments, populations, ranges, selection and mutation.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agilerl_like.errors import ConfigurationError

PPO_CLASSES = ("PPO", "RecurrentPPO")
CALLS = (*PPO_CLASSES, "PPO_CFG", "RslRlPpoAlgorithmCfg", "RslRlPpoActorCriticCfg", "RslRlMLPModelCfg", "train")
"""Functions and classes of the other systems whose keywords are settings."""
OF_AGILERL: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "create_population": (("algo",), {}),
    "population": (("population_size",), {"size": "population_size"}),
    "make_vect_envs": (("env_name", "num_envs"), {}),
    "make_multi_agent_vect_envs": ((), {}),
    "train_on_policy": ((), {"target": "target_score", "checkpoint": "checkpoint_steps", "wb": "wandb"}),
    "train_multi_agent_on_policy": ((), {"target": "target_score", "checkpoint": "checkpoint_steps", "wb": "wandb"}),
    "TournamentSelection": (("tournament_size", "elitism"), {}),
    "Mutations": (
        ("no_mut", "arch_mut", "new_layer", "params_mut", "act_mut", "rl_hp_mut", "mutation_sd"),
        {
            "no_mutation": "no_mut",
            "architecture": "arch_mut",
            "new_layer_prob": "new_layer",
            "parameters": "params_mut",
            "activation": "act_mut",
            "rl_hp": "rl_hp_mut",
        },
    ),
}
"""Calls of AgileRL's scripts: the settings of its files that the arguments are, by their places and by their names."""
OF_SKRL = ("PPO_RNN", "IPPO", "MAPPO")
"""Classes of skrl's agents beside PPO; each is the setting `class` of skrl's files."""
RANGE = ("min", "max", "shrink_factor", "grow_factor")
"""Arguments of AgileRL's RLParameter."""
POLICY_KWARGS = "policy_kwargs"
MAKE = ("id", "max_episode_steps", "disable_env_checker")
VEC_ENV = (
    *("env_id", "n_envs", "seed", "start_index", "monitor_dir", "wrapper_class"),
    *("env_kwargs", "vec_env_cls", "vec_env_kwargs", "monitor_kwargs", "wrapper_kwargs"),
)
NORMALIZE = ("venv", "training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon")
"""Arguments by place of gymnasium.make, and of make_vec_env and VecNormalize of Stable-Baselines3."""
OTHER_ALGORITHMS = ("DQN", "QRDQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ", "A2C", "TRPO", "ARS")
"""Classes of algorithms whose settings are not converted."""


@dataclass(frozen=True)
class Unread:
    """The value of an expression that is not read, because that would execute it."""

    text: str

    def __repr__(self) -> str:
        return self.text


def script_settings(text: str) -> dict[str, Any]:
    """Return the settings in a script by the name of the dictionary, class or call that has them, in its order.

    Those of the environment that PPO is called with are the first.

    Raises:
        SyntaxError: it is not valid Python, or ValueError, RecursionError, MemoryError.
        ConfigurationError: it makes another algorithm than PPO.
    """
    tree = ast.parse(text)
    called = {_name_of(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if not called & {*PPO_CLASSES} and (others := [name for name in OTHER_ALGORITHMS if name in called]):
        raise ConfigurationError(
            f"the script makes {others[0]}, and only PPO is converted; the settings of DQN, TD3, DDPG and SAC here are "
            "in tutorials/off_policy.md"
        )
    return _Script(tree).sections


def literal(text: str) -> Any:
    """Return the value of an expression; raises as `script_settings`."""
    return _value(ast.parse(text, mode="eval").body, {})


class _Script:
    """The sections of a parsed script."""

    def __init__(self, tree: ast.Module) -> None:
        self.sections: dict[str, Any] = {}
        self.names = _assigned_once(tree)
        """Expressions by the name that they are assigned to."""
        self.training_env: dict[str, Any] | None = None
        """The first section with the id of an environment, which is that of training."""
        imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        self.imports_skrl = any(module.startswith("skrl.") for module in imports)
        of_training = _expressions_of_training_env(tree)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.ClassDef | ast.Call)]
        for node in sorted(nodes, key=lambda node: (node not in of_training, node.lineno, node.col_offset)):
            if isinstance(node, ast.ClassDef):
                self._section(node.name).update(_fields(node, self.names))
            elif isinstance(node, ast.Call):
                self._add_call(node)
            elif len(node.targets) == 1:
                self._add_assignment(node.targets[0], node.value)
        expression = tree.body[0].value if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
        if isinstance(value := self._value(expression) if expression is not None else None, dict):
            self.sections["dictionary"] = value

    def _section(self, name: str) -> dict[str, Any]:
        return self.sections.setdefault(name, {})

    def _value(self, node: ast.AST) -> Any:
        return _value(node, self.names)

    def _add_assignment(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Name):
            if isinstance(found := self._value(value), dict):
                self._section(target.id).update(found)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            place = _name_of(target.value)
            if place and isinstance(target.slice.value, str):
                self._section(place)[target.slice.value] = self._value(value)

    def _add_call(self, node: ast.Call) -> None:
        name = _name_of(node.func)
        keywords = {word.arg: self._value(word.value) for word in node.keywords if word.arg}
        if name in CALLS:
            arguments = map(self._value, node.args if name in PPO_CLASSES else ())
            places = dict(zip(("policy", "env_id"), arguments, strict=False))
            if name in PPO_CLASSES and isinstance(keywords.get("env"), str):
                places["env_id"] = keywords.pop("env")
            found = {key: value for key, value in places.items() if isinstance(value, str)}
            for word in node.keywords:
                if word.arg == POLICY_KWARGS and isinstance(word.value, ast.Name):  # its dictionary is no section
                    keywords[POLICY_KWARGS] = self.sections.pop(word.value.id, keywords[POLICY_KWARGS])
            self._section(f"{name}()").update({**found, **keywords})
            self._separate_env(self._section(f"{name}()"))
        elif name in OF_SKRL and self.imports_skrl:
            self._section(f"{name}()")["class"] = name
        elif name == "HyperparameterConfig":
            self._section(f"{name}()")["rl_hp_selection"] = keywords
        elif name in OF_AGILERL and (name != "population" or _name_of(_owner(node)) in (*PPO_CLASSES, "IPPO")):
            places, names = OF_AGILERL[name]
            given = {**dict(zip(places, map(self._value, node.args), strict=False)), **keywords}
            if any(word.arg is None for word in node.keywords):
                given["**"] = Unread("**")
            kind = {"algo": _name_of(_owner(node))} if name == "population" else {}
            self._section(f"{name}()").update({**kind, **{names.get(key, key): one for key, one in given.items()}})
            self._separate_env(self._section(f"{name}()"))
        elif name in ENV_CALLS:
            arguments = [*map(self._value, node.args)]
            if found := ENV_CALLS[name](arguments, keywords | _unpacked(node)):
                self._separate_env(found)
                count = sum(section.startswith(f"{name}()") for section in self.sections)
                self.sections[f"{name}(){f' {count + 1}' if count else ''}"] = found  # such as that of evaluation

    def _separate_env(self, section: dict[str, Any]) -> None:
        """Give the environment of training no arguments if the first that are found belong to another environment."""
        if self.training_env is None and section.keys() & {"env_id", "env_name"}:
            self.training_env = section
        if self.training_env is not None and "env_kwargs" in section:
            self.training_env.setdefault("env_kwargs", {})


def _unpacked(node: ast.Call) -> dict[str, Any]:
    """Return the mappings that a call unpacks into keywords, which are not read, under one name."""
    mappings = [f"**{ast.unparse(word.value)}" for word in node.keywords if word.arg is None]
    return {"**": Unread(", ".join(mappings))} if mappings else {}


def _made_vec_env(arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(VEC_ENV, arguments, strict=False)), **keywords}
    made = _made_env([given.pop("env_id", None)], {})
    given.pop("seed", None)  # that of the model replaces the seed of its environments
    return {name: value for name, value in given.items() if value is not None} | made


def _made_env(arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(MAKE, arguments, strict=False)), **keywords}
    name = given.pop("id", None)
    if name is None:
        return {}
    given.pop("render_mode", None)
    found: dict[str, Any] = {"env_id": name} if isinstance(name, str) else {}
    return found | ({"env_kwargs": given} if given else {})


def _normalized(arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(NORMALIZE, arguments, strict=False)), **keywords}
    return {"normalize": {name: value for name, value in given.items() if name not in NORMALIZE[:2]} or True}


def _learned(arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    steps = keywords.get("total_timesteps", arguments[0] if arguments else None)
    return {} if steps is None else {"total_timesteps": steps}


def _stacked(arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    count = keywords.get("n_stack", arguments[1] if len(arguments) > 1 else None)
    return {} if count is None else {"frame_stack": count}


ENV_CALLS: Mapping[str, Callable[[list[Any], dict[str, Any]], dict[str, Any]]] = {
    "make_vec_env": _made_vec_env,
    "make": _made_env,
    "VecNormalize": _normalized,
    "VecFrameStack": _stacked,
    "learn": _learned,
}
"""Calls of Stable-Baselines3 and Gymnasium, and what they set, from their arguments."""


def _assigned_once(tree: ast.Module) -> dict[str, ast.AST]:
    """Return the expressions of names that one statement alone assigns."""
    found: dict[str, ast.AST] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            twice |= {name} & found.keys()
            found[name] = node.value
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            twice.add(node.target.id)
    return {name: value for name, value in found.items() if name not in twice}


def _expressions_of_training_env(tree: ast.Module) -> set[ast.AST]:
    """Return the expressions, with their parts, that make the environment which PPO is called with."""
    by_name: dict[str, list[ast.AST]] = {}
    queue: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (name := _name_of(node.targets[0])):
            by_name.setdefault(name, []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            by_name.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Call) and _name_of(node.func) in PPO_CLASSES:
            queue += [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "env")]
    found: set[ast.AST] = set()
    while queue:
        for node in ast.walk(queue.pop()):
            found.add(node)
            queue += by_name.pop(_name_of(node), [])
    return found


def _fields(node: ast.ClassDef, names: Mapping[str, ast.AST]) -> Iterator[tuple[str, Any]]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            yield line.target.id, _value(line.value, names)
        elif isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            value = _value(line.value, names)
            if not isinstance(value, Unread):
                yield line.targets[0].id, value


OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def _owner(node: ast.Call) -> ast.AST:
    """Return what a method is called of."""
    return node.func.value if isinstance(node.func, ast.Attribute) else node


def _name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name, "" for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.AST, names: Mapping[str, ast.AST]) -> Any:
    """Return the value of a literal, or of a name of one in `names`; a class is represented by its name."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.Dict):
        if all(isinstance(key, ast.Constant) for key in node.keys):
            return {str(key.value): _value(one, names) for key, one in zip(node.keys, node.values, strict=True)}  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        return Unread(ast.unparse(node))
    if isinstance(node, ast.Call) and _name_of(node.func) == "dict" and not node.args:
        return {word.arg: _value(word.value, names) for word in node.keywords if word.arg}
    if isinstance(node, ast.Call) and _name_of(node.func) == "RLParameter":
        given = [*zip(RANGE, node.args, strict=False), *((word.arg, word.value) for word in node.keywords)]
        return {name: _value(one, names) for name, one in given if name in RANGE}
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        table = _value(names[place], {}) if (place := _name_of(node.value)) in names else None
        if isinstance(table, dict) and node.slice.value in table:
            return table[node.slice.value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, names)
        return -inner if isinstance(inner, int | float) else Unread(ast.unparse(node))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        sides = _value(node.left, names), _value(node.right, names)
        if all(isinstance(side, int | float) for side in sides):
            try:
                return OPERATORS[type(node.op)](*sides)
            except (ArithmeticError, ValueError):
                return Unread(ast.unparse(node))
    name = _name_of(node)
    if isinstance(node, ast.Name) and name in names:
        return _value(names[name], {})  # a name of names could stand for a huge value
    return name if name[:1].isupper() else Unread(ast.unparse(node))
