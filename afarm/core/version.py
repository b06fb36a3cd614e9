"""The version of afarm that is installed."""

from __future__ import annotations

import importlib.metadata

__version__ = importlib.metadata.version("afarm")
