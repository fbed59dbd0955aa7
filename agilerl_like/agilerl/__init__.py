"""AgileRL 2.58's module paths and signatures over this package, for DQN, PPO and IPPO.

Replacing `agilerl` by `agilerl_like.agilerl` in a script's imports is the whole migration;
tutorials/coming_from_agilerl.md lists what differs. Nothing else in the package imports from here. Whatever AgileRL has
and this package has not (prioritised replay, bandits, offline learning, LLMs, …) raises an ImportError that names it
and the reason.
"""

from __future__ import annotations

import sys

from agilerl_like.agilerl.absent import AbsentFinder, absent_from

sys.meta_path.append(AbsentFinder(__name__))  # behind all others: it sees only modules that nothing provides

__getattr__ = absent_from(__name__)
