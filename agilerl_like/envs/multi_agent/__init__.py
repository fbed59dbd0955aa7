"""Multi-agent environments: PettingZoo's parallel envs, vectorised and grouped by shared policy."""
