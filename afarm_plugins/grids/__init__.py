"""Grids of runs: `afarm study`, which prices, runs and reports the studies that plugins register."""
