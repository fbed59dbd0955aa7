"""Files that survive crashes: folders written whole or not at all, checkpoints, and the lock of a run folder."""
