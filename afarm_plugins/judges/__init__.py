"""Judges: the language models behind prompt annotators, and their stand-ins `offline` and `replay`."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_judges(register: Register) -> None:
    from afarm_plugins.judges.settings import LocalConfig, OfflineConfig, ReplayConfig, VendorConfig
    from afarm_plugins.judges.vendor_table import VENDORS

    register(
        "openai",
        "afarm_plugins.judges.openai_judge:OpenAIJudge",
        config=VendorConfig,
        defaults={"key_variable": "OPENAI_API_KEY"},
        summary="openai:MODEL asks OpenAI; the key is taken from OPENAI_API_KEY",
    )
    register(
        "anthropic",
        "afarm_plugins.judges.anthropic_judge:AnthropicJudge",
        config=VendorConfig,
        defaults={"key_variable": "ANTHROPIC_API_KEY"},
        summary="anthropic:MODEL asks Anthropic; the key is taken from ANTHROPIC_API_KEY",
    )
    register(
        "openai-compatible",
        "afarm_plugins.judges.openai_judge:CompatibleJudge",
        config=VendorConfig,
        defaults={"key_variable": "OPENAI_COMPATIBLE_API_KEY"},
        summary="openai-compatible:MODEL@URL asks a server that speaks OpenAI's format (vLLM, Ollama, llama.cpp …)",
    )
    for name, vendor in VENDORS.items():
        register(
            name,
            f"afarm_plugins.judges.vendors_by_name:{name}",
            config=VendorConfig,
            defaults={"key_variable": vendor.key_variable},
            summary=f"{name}:MODEL asks {vendor.name}; the key is taken from {vendor.key_variable}",
        )
    register(
        "offline",
        "afarm_plugins.judges.offline:OfflineJudge",
        config=OfflineConfig,
        summary="simulated: a stated utility plus noise; offline:NAME takes the reward model NAME as its utility",
    )
    register(
        "local",
        "afarm_plugins.judges.local:LocalJudge",
        config=LocalConfig,
        summary="a language model of your own: local:MODEL takes a Hub id, a directory or a .gguf file",
    )
    register(
        "replay",
        "afarm_plugins.judges.replay:ReplayJudge",
        config=ReplayConfig,
        summary="replay:FILE answers from stored annotations: AlpacaEval's, preferences, or an export of the ledger",
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "text_utility",
        "afarm_plugins.judges.text_utility:TextUtility",
        summary="a stated formula on real text (length, overlap, repetition, completeness); not quality",
    )
