"""`agilerl-like export`: write the policy of a run to a file that runs without this package."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.algorithms.evolvable_algorithm import load_agent
from agilerl_like.cli.output import checked_file, write_line
from agilerl_like.errors import ExitCode


def export(run: Positional[Path], file: Positional[Path], /, masks: FlagCreatePairsOff[bool] = False) -> int:
    """Write the policy of a run's best agent to an ONNX, torch.export or numpy file.

    The file has the normaliser, the bounds and the memory inside, and is compared with the agent on 1,000 random
    observations. It takes action masks if the agent learned with them.

    Args:
        run: Folder of a run or of a saved agent.
        file: The file; its suffix is the format: .onnx (needs the extra `export`), .pt2 or .py (numpy alone).
        masks: Take action masks although the agent learned without them.
    """
    checked_file("file", file)
    for path in load_agent(run).export(file, masks=masks or None):
        write_line(str(path))
    return ExitCode.DONE
