"""The precision that a device computes in."""

from __future__ import annotations

import torch


def native_dtype(device: str) -> str:
    """Return "bfloat16" where the device computes in it, by what torch reports, else "float32".

    `device` is as in `backend.device`; "auto" is an accelerator if there is any. Without instructions for bfloat16 a
    CPU takes more than ten times as long in it as in float32.
    """
    kind = device.partition(":")[0]
    if kind == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kind = accelerator.type if accelerator else "cpu"
    return "bfloat16" if _computes_in_bfloat16(kind) else "float32"


def _computes_in_bfloat16(kind: str) -> bool:
    try:
        if kind == "cuda":
            return torch.cuda.is_bf16_supported(including_emulation=False)
        if kind == "mps":
            return torch.backends.mps.is_macos_or_newer(14, 0)
        return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError, AssertionError):  # a private name, or a device that is not there
        return False
