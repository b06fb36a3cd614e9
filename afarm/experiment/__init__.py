"""One experiment: recipe, stages, artifacts, result."""
