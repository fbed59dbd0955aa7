"""`python -m agilerl_like` is the command `agilerl-like`."""

import sys

from agilerl_like.cli import main

if __name__ == "__main__":
    sys.exit(main())
