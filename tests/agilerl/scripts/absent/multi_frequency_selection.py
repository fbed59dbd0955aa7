"""Multi-frequency selection."""

from agilerl.hpo.multi_frequency import MultiFrequencySelection

assert MultiFrequencySelection
