"""Settings of the sampler `vllm`."""

from __future__ import annotations

from afarm import Config, setting


class VllmConfig(Config):
    """The server, the patience with it, and the tolerances of the proof of its weights."""

    version: str = setting(
        "",
        "vLLM's version, as in 0.32.0: a server of another is refused. Empty asks the server, which must then be there "
        "even if all is made already",
        changes_result=False,
    )
    max_concurrency: int = setting(64, "requests in flight at once", gt=0, changes_result=False)
    patience: float = setting(
        120,
        "seconds that a server may refuse, fail or be away (it restarts, say) before sampling ends",
        ge=0,
        changes_result=False,
    )
    request_timeout: float = setting(600, "seconds that one response may take", gt=0, changes_result=False)
    tolerance: float = setting(
        1e-3,
        "most that a drawn token's log-probability may differ from the policy's, as a mean over fixed texts, if the "
        "policy computes in float32",
        gt=0,
        changes_result=False,
    )
    half_tolerance: float = setting(
        0.07, "the same, if the policy computes in bfloat16 or float16", gt=0, changes_result=False
    )
    adapter_dir: str = setting(
        "",
        "directory that adapters are handed over in, the same for afarm and the server; empty for a temporary one, "
        "which a server on this machine sees",
        changes_result=False,
    )
    key_variable: str = setting(
        "VLLM_API_KEY", "the environment variable that holds the server's key, if it asks for one", changes_result=False
    )
