"""Bundles: a run or a study in one file, with all that its tables are made from."""
