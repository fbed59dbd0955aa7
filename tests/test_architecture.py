"""Law 12: imports go down only, also those for types, and never inside functions; optional packages are in one file."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "agilerl_like"
FLOORS = {
    "errors": 0,
    "foreign_settings": 0,
    "_lazy": 0,
    "yaml_writer": 0,
    "registry": 0,
    "processes": 0,
    "resources": 0,
    "seeding": 0,
    "storage": 0,
    "hpo": 1,
    "envs": 2,
    "modules": 3,
    "networks": 3.5,
    "learning": 4,
    "export": 4,
    "distributed": 4.5,
    "algorithms": 5,
    "reporting": 5,
    "training": 6,
    "config": 7,
    "evaluation": 7,
    "saved_runs": 7.5,
    "cli": 8,
    "agilerl": 9,
    "__main__": 9,
    "__init__": 9,
}
ALONE = {
    "pettingzoo": {f"envs/multi_agent/{name}.py" for name in ("pettingzoo", "turn_based", "wrappers")},
    "accelerate": {"distributed/process_group.py", "reporting/trackers.py"},
}
OPTIONAL = (
    "envpool",
    "gymnax",
    "jax",
    "tensorboard",
    "wandb",
    "matplotlib",
    "onnxruntime",
    "onnxscript",
    "minari",
    "imageio_ffmpeg",
    "huggingface_hub",
    "optuna",
    "pyspiel",
    "shimmy",
    "cmaes",
)
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.fixture(scope="module")
def trees():
    """The syntax trees of the package's files."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def floor_of(path):
    return FLOORS[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]


@cache
def imports(tree):
    """(module, line, whether it stands inside a function) of every import."""
    nodes = [*ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    found = []
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found.append((name, node.lineno, id(node) in inside))
    return found


def test_imports_go_down_and_stand_at_the_top(trees):
    problems = []
    for path, tree in trees.items():
        for name, line, inside in imports(tree):
            package, _, rest = name.partition(".")
            if package == "agilerl_like":
                if inside:
                    problems.append(f"{path}:{line} imports {name} inside a function")
                if FLOORS.get(rest.partition(".")[0], 0) > floor_of(path):
                    problems.append(f"{path}:{line} imports {name} from above")
    assert not problems, "\n".join(problems)


def test_no_cycles(trees):
    graph = {}
    for path, tree in trees.items():
        module = ".".join(("agilerl_like", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        graph[module] = {name for name, _, _ in imports(tree)}  # those for types only, too
    edges = {
        m: {
            other
            for other in graph
            if other != m and any(n == other or n.rpartition(".")[0] == other for n in graph[m])
        }
        for m in graph
    }
    edges = {m: {o for o in targets if not m.startswith(o + ".")} for m, targets in edges.items()}
    done, path = set(), []

    def visit(module):
        assert module not in path, f"cycle: {' -> '.join([*path, module])}"
        if module not in done:
            path.append(module)
            for other in sorted(edges[module]):
                visit(other)
            path.pop()
            done.add(module)

    for module in graph:
        visit(module)


def test_each_special_package_is_imported_in_one_file(trees):
    users = {}
    for path, tree in trees.items():
        for name, _, _ in imports(tree):
            users.setdefault(name.split(".")[0], set()).add(str(path.relative_to(PACKAGE)))
    for package, files in ALONE.items():
        assert users[package] == files
    for package in OPTIONAL:
        assert len(users.get(package, set())) <= 1, f"{package} is imported in {users[package]}"


def test_hpo_knows_no_torch(trees):
    for path in (PACKAGE / "hpo").glob("*.py"):
        assert "torch" not in {name.split(".")[0] for name, _, _ in imports(trees[path])}


UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "random"}
UNSAFE_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.manual_seed",
    "torch.seed",
    "yaml.load",
    "yaml.unsafe_load",
    "np.random.seed",
    "np.random.rand",
    "np.random.randn",
    "np.random.randint",
    "np.random.normal",
    "np.random.uniform",
    "np.random.choice",
    "np.random.shuffle",
}


def test_nothing_is_executed_on_loading_and_no_global_generator_is_touched(trees):
    problems = []
    for path, tree in trees.items():
        found = UNSAFE_MODULES & {name.split(".")[0] for name, _, _ in imports(tree)}
        found |= UNSAFE_CALLS & {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        problems += [f"{path}: {name}" for name in sorted(found)]
        # -O would take users' checks away
        problems += [f"{path}:{node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not problems, "\n".join(problems)


def test_each_test_file_has_a_name_of_its_own():
    """`pytest` imports test files by their names alone, so two of one name end its collection with an error."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert not [name for name, count in names.items() if count > 1]
