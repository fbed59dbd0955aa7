"""A virtual environment for each peer, made with pip on first use and kept under ``benchmarks/.venv-<peer>``.

``BENCHMARK_PYTHON_<PEER>`` in the environment names an interpreter that has the peer already, and nothing is installed.
Registries and certificates are pip's own configuration. Torch is held to the version of the project's constraints,
so that peers and project run the same kernels.
"""

import argparse
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
FINISHED = "installed.txt"


@dataclass(frozen=True)
class Peer:
    """A library to compare with, and what its environment holds."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where its environment lies."""
        return ROOT / "benchmarks" / f".venv-{self.name}"

    @property
    def override(self) -> str:
        """The variable that names an interpreter to use instead."""
        return f"BENCHMARK_PYTHON_{self.name.upper()}"


PEERS = {
    peer.name: peer
    for peer in (
        # peft: agilerl.algorithms imports it, though agilerl does not ask for it
        Peer("agilerl", ("agilerl==2.58.0", "peft", "gymnasium[box2d]==1.4.0", "minatar==1.0.15")),
        Peer("sb3", ("stable-baselines3==2.9.2", "gymnasium[box2d,mujoco]==1.4.0", "minatar==1.0.15")),
        Peer("skrl", ("skrl[torch]==2.1.1",)),
        Peer("search", ("optuna==5.0.0", "smac==2.4.1")),  # samplers alone: benchmarks.search trains in this project
        Peer("jax", ("jax[cpu]==0.10.2", "optax==0.2.8")),
    )
}


def interpreter(name: str, python: str | None = None, constraints: Path = CONSTRAINTS) -> Path:
    """Return a Python that can run the peer's scripts, and make its environment if there is none.

    Args:
        name: a key of ``PEERS``.
        python: an interpreter to use as it is; without it the peer's environment variable, then the existing
            virtual environment.
        constraints: pip's constraints file.

    Raises:
        FileNotFoundError: the interpreter that was named, or the constraints file, does not exist.
        subprocess.CalledProcessError: pip failed; the next call tries again.
    """
    peer = PEERS[name]
    named = python or os.environ.get(peer.override)
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"interpreter for {name}: {named} does not exist")
        return Path(named).absolute()  # not resolved: the link is what makes it the environment's interpreter
    return _kept_environment(peer, constraints)


def is_ready(name: str) -> bool:
    """Say whether the peer can run at once, without anything being installed."""
    peer = PEERS[name]
    return bool(os.environ.get(peer.override)) or _is_finished(peer, CONSTRAINTS)


def _kept_environment(peer: Peer, constraints: Path) -> Path:
    if not constraints.is_file():
        raise FileNotFoundError(f"{constraints.name} is missing in the project's root; it pins torch for every side")
    python = _python(peer)
    if _is_finished(peer, constraints):
        return python
    print(f"making {peer.folder.relative_to(ROOT)} with {', '.join(peer.requirements)}", file=sys.stderr, flush=True)
    venv.create(peer.folder, with_pip=True, clear=True)
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *peer.requirements], check=True
    )
    # written last: an environment that pip left half-made is made again
    (peer.folder / FINISHED).write_text(_contents(peer, constraints))
    return python


def _python(peer: Peer) -> Path:
    return peer.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _contents(peer: Peer, constraints: Path) -> str:
    return "\n".join(("python " + sys.version.split()[0], *peer.requirements, constraints.read_text()))


def _is_finished(peer: Peer, constraints: Path) -> bool:
    finished = peer.folder / FINISHED
    return _python(peer).is_file() and finished.is_file() and finished.read_text() == _contents(peer, constraints)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--python", help="an interpreter to check and use instead of making an environment")
    options = parser.parse_args()
    unknown = set(options.peers) - PEERS.keys()
    if unknown:
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    for name in options.peers or PEERS:
        print(name, interpreter(name, options.python))


if __name__ == "__main__":
    main()
