"""The model card of an exported run: how to run it, how it was judged and how it was made."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from afarm.core.records import Evaluation
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.evaluation.red_flags import flag_sentences, judge_bias
from afarm.evaluation.run_stages import cut_off
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
    """Write the model card of the files in `directory` in Markdown, with the Hub's metadata.

    `example` is a prompt as the policy reads it, empty if it follows no template. `pairs` preferences are exported, and
    those `without` a preferred output are left out.
    """
    filters: dict[str, Callable[..., Any]] = {
        "code": code,
        "code_block": lambda text, language: "\n".join(code_block([text], language)),
        "flag_sentences": flag_sentences,
        "judge_bias": judge_bias,
        "markdown": markdown,
        "name_only": name_only,
        "result_text": lambda one: evaluation_text(Evaluation(one.evaluator, one.system, one.metrics)),
    }
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(filters)
    template = resources.files("afarm.experiment").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    config, prompt = run.section("config"), directory / "afarm.json"
    evaluate = config.get("evaluate")
    protocol = EvaluationProtocol.from_row(run.results[0].protocol if run.results else None)
    is_model = (directory / "config.json").is_file()
    return environment.from_string(template).render(
        run=run,
        config=config,
        metadata=_metadata(run),
        own_preferences=config.get("preferences"),
        simulated=is_simulated(run),
        scripts=sorted(path.name for path in directory.glob("*.py")),
        is_model=is_model,
        example=example,
        quoted_example=json.dumps(example),
        prompt_template=json.loads(prompt.read_text(encoding="utf-8")).get("prompt_template")
        if example and is_model
        else "",
        longest=evaluate.get("max_new_tokens", 300) if isinstance(evaluate, Mapping) else 300,
        judged_by=names_only(str(run.get("judged_by") or protocol.who_judged)),
        facts=_facts(run, pairs, without),
        cut_off=cut_off(run.stages, advice=False),
        command=names_only(str(run.get("command") or "")),
        files=dict(_files(directory)),
    )


def _metadata(run: RunRecord) -> str:
    model = str(run.section("config").get("model", ""))
    fields: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    with suppress(Exception):  # the base model may be gone by now
        if model.count("/") == 1 and not model.startswith("pkg:") and local_path(model) is None:
            fields["base_model"] = model
    tags = ["afarm", "learning-from-human-feedback", str(run.get("method"))]
    return yaml.safe_dump({**fields, "tags": tags}, sort_keys=False).strip()


def _facts(run: RunRecord, pairs: int, without: int) -> dict[str, Any]:
    config = run.section("config")
    labelling, own = config.get("annotate"), config.get(str(run.get("method")))
    noise = labelling.get("label_noise") if isinstance(labelling, Mapping) else None
    judges = [name_only(judge.get("identity")) for judge in run.rows("judges") if isinstance(judge, Mapping)]
    labels = f"annotator {code(name_only(run.get('annotator')))}, label noise {noise}"
    if own_preferences := config.get("preferences"):
        labels = f"{code(name_only(own_preferences))}, preferences of one's own"
    settings = own.items() if isinstance(own, Mapping) else ()
    return {
        "recipe": markdown(name_only(run.get("recipe") or "")),
        "method": run.get("method"),
        "seed": run.get("seed"),
        "data": name_only(config.get("dataset") or ""),
        "training labels": labels,
        "judge": ", ".join(map(code, judges)),
        "reward model": name_only(config.get("reward_model") or ""),
        "preferences": f"{pairs:,}, and {without:,} that prefer neither output and are left out here" if pairs else "",
        "settings of the recipe": ", ".join(code(f"{name}={name_only(value)}") for name, value in settings),
    }


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
