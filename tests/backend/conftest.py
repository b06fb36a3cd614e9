"""Fixtures for the backend's tests."""

from __future__ import annotations

from tiny_models import policy as policy
