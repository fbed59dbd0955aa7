"""A vector env that steps its envs in worker processes."""
