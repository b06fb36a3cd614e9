"""Settings of the launcher `ray`."""

from __future__ import annotations

from afarm import Config, setting


class RayConfig(Config):
    """The resources that each stage requests."""

    cpus: float = setting(1, "CPUs that each stage asks for: as many stages run on a node", ge=0, changes_result=False)
    processes: int = setting(
        1, "processes that share each stage that trains, each with these CPUs and GPUs", ge=1, changes_result=False
    )
    sharded: bool = setting(False, "each of these processes keeps a shard of what it trains", changes_result=False)
    gpus: float = setting(
        1,
        "GPUs that a stage asks for if it can use one and the cluster has any; 0.5: two share one",
        ge=0,
        changes_result=False,
    )
