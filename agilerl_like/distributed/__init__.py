"""Several processes of one run: process group, launcher, heartbeats and signals."""
