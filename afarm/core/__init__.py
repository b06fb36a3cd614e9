"""The small core: records, interfaces, hooks, registry, configuration, errors."""
