"""Settings: how they are declared, and how a recipe and its overrides become one validated configuration.

Every config is a pydantic model that forbids unknown fields; every field has a description and says whether it changes
the result. Those that do are part of an artifact's key; the others (batch sizes for memory, trackers) are not.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """The base of every config: unknown fields are errors, values are checked, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())

    def result_fields(self) -> dict[str, Any]:
        """The settings that change the result, as JSON values: what an artifact's key digests."""
        fields = type(self).model_fields
        dumped = self.model_dump(mode="json")
        return {name: dumped[name] for name, info in fields.items() if changes_result(info)}


def setting(default: Any, description: str, *, changes_result: bool = True, **constraints: Any) -> Any:
    """A config field. `constraints` are pydantic's (`gt`, `ge`, `le` …); pass `...` as default for a required field."""
    return Field(
        default, description=description, json_schema_extra={"changes_result": changes_result}, **constraints
    )


def changes_result(info: Any) -> bool:
    """Whether a field of a config changes the result. Fields that do not say so are taken to."""
    extra = info.json_schema_extra
    return bool(extra.get("changes_result", True)) if isinstance(extra, dict) else True


class BackendConfig(Config):
    """Where and in which precision models run."""

    device: str = setting("auto", "auto, cpu, cuda, cuda:1 or mps; auto takes an accelerator where there is one")
    dtype: str = setting("float32", "weights and arithmetic: float32, bfloat16 or float16", pattern="^(float32|bfloat16|float16)$")
    threads: int = setting(0, "CPU threads for torch; 0 leaves torch's own choice", ge=0)
    trackers: list[str] = setting([], "accelerate's trackers to log to (tensorboard, wandb); none by default", changes_result=False)
