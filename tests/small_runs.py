"""What tests of short runs share."""

from agilerl_like.reporting import Callback

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
"""`net_config` of a network that learns within a moment."""


class StopAfter(Callback):
    """Stops a run after a generation."""

    def __init__(self, generation):
        self.generation = generation

    def on_generation(self, context, record):
        if record.generation == self.generation:
            context.stop("far enough")
