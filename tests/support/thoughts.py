"""Texts of models that think before they answer, {} being the thought, by the vendor of the marks."""

THOUGHTS = {
    "DeepSeek, Qwen": "<think>\n{}\n</think>\n\n",
    "DeepSeek, its opening mark in the prompt": "Let me see.\n{}\n</think>\n\n",
    "the same, in one line": "I lean to {} Hmm.</think>",
    "Magistral": "[THINK]{}[/THINK]",
    "Kimi": "◁think▷{}◁/think▷",
    "Sky-T1": "<|begin_of_thought|>\n{}\n<|end_of_thought|>\n<|begin_of_solution|>\n",
    "Seed": "<seed:think>{}</seed:think>",
    "Command A": "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>",
    "Gemma": "<|channel>thought\n{}\n<channel|>",
    "gpt-oss": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
    "gpt-oss, constrained": "<|channel|>analysis<|message|>{}<|end|><|channel|>final <|constrain|>json<|message|>",
    "gpt-oss, its tokens stripped": "analysisWe must pick. {}assistantfinal",
    "Granite": "Here is my thought process:\n{}\n\nHere is my response:\n",
    "Apertus": "<|inner_prefix|>{}<|inner_suffix|>",
    "Apriel": "Here are my reasoning steps:\n{}\n[BEGIN FINAL RESPONSE]\n",
    "notebooks": "<start_working_out>{}<end_working_out>",
    "twice": "<think>a <think> b\n{}\n</think> c.\n{}\n</think>\n",
    "behind a word of greeting": "Sure. <think>{}</think> ",
    **{name: f"<{name}>\n{{}}\n</{name}>\n" for name in ("thinking", "Thought", "reasoning", "scratchpad", "analysis")},
}

UNOPENED = {name for name, text in THOUGHTS.items() if text.startswith(("Let", "I lean", "Here are"))}
"""Those whose opening mark the prompt has, or is none."""
