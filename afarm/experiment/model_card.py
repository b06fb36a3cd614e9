"""The model card of an exported run: how to run it, how it was judged and how it was made."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from afarm.core.records import Evaluation
from afarm.evaluation.cut_off import cut_off
from afarm.evaluation.red_flags import flag_sentences, judge_bias
from afarm.experiment.result import evaluation_text
from afarm.storage.model_files import local_path
from afarm.storage.runs import RunRecord, is_simulated
from afarm.storage.text import code, code_block, markdown

PLACE = re.compile(r"(?P<before>(?:[^/~]*[=:])?)(?P<path>(?:~|/|\.{1,2}/).*)", re.DOTALL)
"""An absolute path, or one from here or from home, behind what may stand before it."""
FILES = {
    "model.safetensors": "the weights, with the tokenizer and the configurations beside them",
    "preferences.jsonl": "the training preferences, as TRL and `datasets` read them: `prompt`, `chosen`, `rejected`, "
    "and how either ended",
    "model_outputs.json": "the evaluation outputs, in AlpacaEval's format",
    "reference_outputs.json": "those of the reference",
    "annotations.json": "the judgements of the evaluation, in AlpacaEval's format",
}


def model_card(run: RunRecord, directory: Path, example: str, pairs: int, without: int) -> str:
    """Write the model card in Markdown, with the Hub's metadata.

    Args:
        run: The run's record.
        directory: The exported files, which it describes.
        example: A prompt as the policy reads it; empty if it follows no template.
        pairs: The number of exported preferences.
        without: The number of those left out, which prefer neither output.
    """
    sections = {
        "Use": _use(run, directory, example),
        "Results": _results(run),
        "How it was made": _recipe(run, pairs, without),
        "Files": [f"- `{name}`: {text}" for name, text in _files(directory)],
        "Versions": [", ".join(f"{name} {version}" for name, version in run.section("versions").items())],
    }
    head = yaml.safe_dump(_metadata(run), sort_keys=False).strip()
    lines = ["---", head, "---", "", f"# {run.name}", "", *_introduction(run)]
    for title, body in sections.items():
        if body:
            lines += ["", f"## {title}", "", *body]
    return "\n".join(lines) + "\n"


def _metadata(run: RunRecord) -> dict[str, Any]:
    model = str(run.section("config").get("model", ""))
    fields: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if model.count("/") == 1 and _is_hub_id(model):
        fields["base_model"] = model
    return {**fields, "tags": ["afarm", "learning-from-human-feedback", str(run.get("method"))]}


def _is_hub_id(model: str) -> bool:
    try:
        return not model.startswith("pkg:") and local_path(model) is None
    except Exception:  # the base model may be gone by now
        return False


def _introduction(run: RunRecord) -> list[str]:
    lines = [
        f"A policy trained with {code(run.get('method'))} by [afarm](https://pypi.org/project/afarm/) "
        f"{run.get('afarm_version')} from the base model {code(name_only(run.section('config').get('model')))}."
    ]
    if is_simulated(run):
        what = "Its win rate is" if run.section("config").get("preferences") else "Its preferences and win rate are"
        lines += [
            "",
            f"**{what} simulated by a formula**, not by people or a language model: a gain is a gain in that formula.",
        ]
    return [*lines, "", "No licence is set here: those of the base model and of the data apply."]


def _use(run: RunRecord, directory: Path, example: str) -> list[str]:
    evaluate = run.section("config").get("evaluate")
    longest = evaluate.get("max_new_tokens", 300) if isinstance(evaluate, Mapping) else 300
    scripts = sorted(path.name for path in directory.glob("*.py"))
    if scripts:
        script = [f'python {scripts[0]} "Name three rivers."']
    elif not (directory / "config.json").is_file():
        return ["The policy is stored in a form of its own: load it with the plugin that made it."]
    else:
        card = json.loads((directory / "afarm.json").read_text(encoding="utf-8")) if example else {}
        prompt = [
            'messages = [{"role": "user", "content": "Name three rivers."}]',
            "prompt = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
        if card.get("prompt_template") != "chat":
            prompt = [f"prompt = tokenizer({json.dumps(example)}, return_tensors='pt')"]
        script = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")  # this directory, or the repository\'s name',
            'model = AutoModelForCausalLM.from_pretrained(".")',
            *prompt,
            f"answer = model.generate(**prompt, max_new_tokens={longest})[0, prompt.input_ids.shape[1]:]",
            "print(tokenizer.decode(answer, skip_special_tokens=True))",
        ]
    language = "sh" if scripts else "python"
    shown = ["", "A prompt as it reads it:", "", *code_block([example], "text")] if example else []
    return [*code_block(script, language), *shown]


def _results(run: RunRecord) -> list[str]:
    lines = ["| against | evaluator | result |", "|---|---|---|"]
    for result in run.results:
        text = evaluation_text(Evaluation(result.evaluator, result.system, result.metrics))
        lines.append(f"| {markdown(result.reference)} | {markdown(result.evaluator)} | {markdown(text)} |")
    if len(lines) == 2:
        return []
    main = run.results[0]
    judges = ", ".join(map(code, map(name_only, dict.fromkeys(_values(main.protocol.get("judges"))))))
    asking = f", asking {judges}" if judges else ""
    lines += ["", f"Judged by the annotator {code(name_only(main.protocol.get('annotator')))}{asking}."]
    if bias := judge_bias(main.red_flags):
        lines += ["", f"The judge {markdown(bias)}."]
    flags = [f"- {markdown(sentence)}" for sentence in flag_sentences(main.red_flags)]
    return [*lines, *(["", "Red flags:", "", *flags] if flags else [])]


def _recipe(run: RunRecord, pairs: int, without: int) -> list[str]:
    config = run.section("config")
    labelling = config.get("annotate")
    noise = labelling.get("label_noise") if isinstance(labelling, Mapping) else None
    judges = [name_only(judge.get("identity")) for judge in run.rows("judges") if isinstance(judge, Mapping)]
    own_preferences = name_only(config.get("preferences") or "")
    labels = (
        f"{code(own_preferences)}, preferences of one's own"
        if own_preferences
        else f"annotator {code(name_only(run.get('annotator')))}, label noise {noise}"
    )
    facts = {
        "recipe": markdown(name_only(run.get("recipe") or "")),
        "method": run.get("method"),
        "seed": run.get("seed"),
        "data": name_only(config.get("dataset") or ""),
        "training labels": labels,
        "judge": ", ".join(map(code, judges)),
        "reward model": name_only(config.get("reward_model") or ""),
        "preferences": f"{pairs:,}, and {without:,} that prefer neither output and are left out here" if pairs else "",
    }
    own = config.get(str(run.get("method")))
    named = own.items() if isinstance(own, Mapping) else ()
    settings = ", ".join(code(f"{name}={name_only(value)}") for name, value in named)
    lines = [f"- {name}: {value}" for name, value in {**facts, "settings of the recipe": settings}.items() if value]
    lines += [f"- {markdown(sentence)}" for sentence in cut_off(run.stages, advice=False)]
    command = names_only(str(run.get("command") or ""))
    return [*lines, *(["", *code_block([command], "sh")] if command else [])]


def name_only(value: object) -> str:
    """Write a value; of a path on this machine, also behind `option=` or `plugin:`, its last part alone."""
    text = str(value)
    found = PLACE.fullmatch(text)
    return f"{found['before']}{PurePath(found['path']).name}" if found else text


def names_only(command: str) -> str:
    """Write a command with the last parts alone of paths on this machine."""
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not close: a record changed by hand
        words = command.split()
    named = [name_only(word) for word in words]
    return command if named == words else shlex.join(named)


def _files(directory: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            yield f"{path.name}/", "a model in transformers' format"
        elif path.suffix == ".py":
            yield path.name, "runs the policy, with torch and transformers alone"
        elif path.name in FILES:
            yield path.name, FILES[path.name]


def _values(mapping: Any) -> Sequence[str]:
    return [str(value) for value in mapping.values()] if isinstance(mapping, Mapping) else []
