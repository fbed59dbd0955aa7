"""The oldest version of each dependency that pyproject.toml allows, as pip's constraints, for `make test-lowest`.

torch is left to constraints.txt, because a plain version of it would install CUDA.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lowest_versions(pyproject: str) -> list[str]:
    """Return a constraint `name==version` for each dependency of the package but torch, of the form `name>=version`.

    Raises:
        ValueError: a dependency has another form.
    """
    found = []
    for requirement in tomllib.loads(pyproject)["project"]["dependencies"]:
        form = re.fullmatch(r"([\w-]+)>=([\w.]+)", requirement)
        if form is None:
            raise ValueError(f"dependencies: {requirement!r} has no lowest version; allowed is 'name>=version'")
        name, version = form.groups()
        if name != "torch":
            found.append(f"{name}=={version}")
    return found


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lowest_versions((ROOT / "pyproject.toml").read_text()))
