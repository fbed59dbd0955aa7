"""R5: no module of the package executes what it reads from a file; pickles cross pipes to its own processes alone."""

import ast
from pathlib import Path

import pytest

EXECUTING = {
    "_pickle",
    "cloudpickle",
    "dill",
    "jsonpickle",
    "joblib",
    "marshal",
    "pickle",
    "runpy",
    "shelve",
    "torch.hub",
    "torch.jit",
    "torch.package",
}
"""Modules that run what they read."""
RUNNING = {"__import__", "compile", "eval", "exec", "np.load", "numpy.load", "torch.load", "torch.export.load"}
"""Calls that do."""
PICKLING = {"ForkingPickler", "CloudpickleWrapper", "multiprocessing.reduction"}
"""What carries functions between processes, by pickle."""
PROCESSES = {
    "envs/subproc/handle.py": "sends what its own run made to its own workers, over a pipe",
    "envs/subproc/worker.py": "receives it there",
    "envs/subproc/vec_env.py": "likewise",
    "envs/gymnasium_vector_fixes.py": "tries whether gymnasium can send an exception from a worker, and sends none",
    "distributed/launcher.py": "sends what its own run was given to the processes that it starts",
}
VERIFIED = {
    "export/exporter.py": {"torch.export.load"},
    "export/numpy_policy.py": {"runpy", "runpy.run_path"},
}
"""What compares an exported policy with its agent executes the file that the same call has just written."""
PACKAGE = Path(__file__).parents[1] / "agilerl_like"


def mentions(tree):
    """Return the names that a file imports, calls and reads attributes of, as they are written in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_executes_files(path):
    found = set(mentions(ast.parse(path.read_text()))) - VERIFIED.get(str(path.relative_to(PACKAGE)), set())
    assert not {name for name in found for bad in EXECUTING if name == bad or name.startswith(f"{bad}.")}
    assert not found & RUNNING
    assert not {name for name in found if name.startswith("yaml.") and "load" in name} - {"yaml.safe_load"}
    if str(path.relative_to(PACKAGE)) not in PROCESSES:
        assert not found & PICKLING


def test_the_allowed_exceptions_are_needed():
    for name in PROCESSES:
        assert PICKLING & set(mentions(ast.parse((PACKAGE / name).read_text())))
