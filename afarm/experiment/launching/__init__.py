"""Launchers: when and on which machine stages are made. No result depends on it, and no key."""
