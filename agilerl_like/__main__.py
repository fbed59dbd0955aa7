"""`python -m agilerl_like` is the command `agilerl-like`, whose entry point is here: nothing is imported before it."""

import importlib
import signal
import sys


def main() -> int:
    """Run the command; Ctrl-C while it is still being imported, for seconds, ends it without a traceback."""
    try:
        command = importlib.import_module("agilerl_like.cli")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
