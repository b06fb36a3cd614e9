"""Shared stores: artifacts that machines share through a bucket (S3, Google, Azure) or a directory."""

from __future__ import annotations

from afarm import Register, hookimpl

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file", "memory")
"""The schemes of URLs that obstore opens. Where it cannot publish, the error says so."""


@hookimpl
def register_stores(register: Register) -> None:
    for name in ("directory", *SCHEMES):
        register(
            name,
            "afarm_plugins.object_store.object_store:ObjectStore",
            summary="artifacts shared by machines through a bucket or a directory: --store URL|DIR",
        )
