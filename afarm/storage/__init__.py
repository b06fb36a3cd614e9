"""Files on disk: artifacts, checkpoints, rows, run records and models."""
