"""Names of what a run stores; the module imports nothing, so that arguments of a run can be checked without torch."""

BEST, POPULATION = "best", "population"
"""Subfolders of a run's folder with its best agent and its last population."""
BEST_DOCUMENT = "champion"
"""Name of the best agent's document in the folder of a population or a checkpoint."""
