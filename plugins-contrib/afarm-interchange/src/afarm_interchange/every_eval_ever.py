"""Every Eval Ever's records (schema 0.3.0, arXiv 2606.14516): written, and read as tables and outputs.

A record is a file of one model's figures, `data/COLLECTION/OWNER/NAME/UUID.json`, and beside it `UUID_samples.jsonl`
with a row for each sample. The schema has no form for two systems compared: the reference's output is the `reference`
of the input, the verdict is the score, and who judged, in which order, stands in `metadata`.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from afarm import DataError, Row, read_placed_rows
from afarm.results import finite_number, json_text
from afarm_interchange.places import as_part
from afarm_interchange.systems import Evaluation, Figure, Sample, System

SCHEMA = "0.3.0"
LINE_ENDS = {point: f"\\u{point:04x}" for point in (0x85, 0x2028, 0x2029)}
"""Characters that its validator takes for ends of lines, as JSON escapes them."""
RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
UNKNOWN = {"deployment_type": "unknown", "model_availability": "unknown"}
"""What the schema asks of every model, where afarm does not know it."""


def collection_of(systems: Sequence[System]) -> str:
    """Name a collection by the data that the systems were evaluated on."""
    return "-".join(filter(None, ("afarm", as_part(systems[0].data))))


def records(
    systems: Sequence[System], ids: Mapping[str, str], organization: str, relationship: str, collection: str
) -> dict[PurePosixPath, str]:
    """Return the text of each file by its place in the datastore: figures, and samples if there are any."""
    files: dict[PurePosixPath, str] = {}
    for system in systems:
        aggregate, rows = _record(system, ids[system.name], organization, relationship, collection)
        seed = json_text([ids[system.name], system.created, aggregate["evaluation_results"]], sort_keys=True)
        name = uuid.UUID(bytes=hashlib.sha256(seed.encode("utf-8", "replace")).digest()[:16], version=4)
        folder = PurePosixPath("data", collection, *ids[system.name].split("/"))
        if rows:
            text = "".join(json_text(row).translate(LINE_ENDS) + "\n" for row in rows)
            place = folder / f"{name}_samples.jsonl"
            aggregate["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": str(place),
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
                "total_rows": len(rows),
            }
            files[place] = text
        files[folder / f"{name}.json"] = json_text(aggregate, indent=2) + "\n"
    return files


def _record(
    system: System, id: str, organization: str, relationship: str, collection: str
) -> tuple[dict[str, Any], list[Row]]:
    now = time.time()
    evaluation_id = f"{collection}/{id}/{now}"
    deployment = {"deployment_type": "self_deployed"} if system.trained_here else {}
    aggregate: dict[str, Any] = {
        "schema_version": SCHEMA,
        "evaluation_id": evaluation_id,
        "retrieved_timestamp": str(now),
        "source_metadata": {
            "source_name": "afarm",
            "source_type": "documentation" if system.of_board else "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": relationship,
        },
        "eval_library": {"name": "afarm", "version": system.version},
        "model_info": {
            "name": system.name,
            "id": id,
            "developer": id.partition("/")[0],
            "additional_details": {**UNKNOWN, **deployment, **system.details},
        },
        "evaluation_results": [
            _result(system, evaluation, figure) for evaluation in system.evaluations for figure in evaluation.figures
        ],
    }
    if system.date:
        aggregate["evaluation_timestamp"] = system.date
    rows = [
        _instance(sample, evaluation_id, id, _named(system, evaluation), _result_id(evaluation, evaluation.of_figure))
        for evaluation in system.evaluations
        for sample in evaluation.samples
    ]
    return aggregate, rows


def _named(system: System, evaluation: Evaluation) -> str:
    return " ".join(filter(None, (system.data, evaluation.name))) or "afarm"


def _result_id(evaluation: Evaluation, figure: str) -> str:
    return " ".join(filter(None, (figure, evaluation.name)))


def _result(system: System, evaluation: Evaluation, figure: Figure) -> dict[str, Any]:
    data: dict[str, Any] = {
        "dataset_name": system.data or "own instructions",
        "source_type": "other",
    }
    if system.repository:
        data |= {"source_type": "hf_dataset", "hf_repo": system.repository}
    metric: dict[str, Any] = {
        "evaluation_description": f"{figure.name} {evaluation.name}".strip() + f", judged by {evaluation.judged_by}",
        "metric_id": f"afarm.{figure.name}",
        "metric_name": figure.name,
        "metric_kind": "win_rate" if figure.name.endswith(("win_rate", "winrate")) else "accuracy",
        "metric_unit": "percent",
        "lower_is_better": False,
        "score_type": "continuous",
        "min_score": figure.bounds[0],
        "max_score": figure.bounds[1],
        "additional_details": {"judged_by": evaluation.judged_by, **evaluation.details},
    }
    if evaluation.judges:
        metric["llm_scoring"] = {
            "judges": [{"model_info": _judge(identity)} for identity in evaluation.judges],
            "input_prompt": f"the prompts of afarm's annotator {evaluation.annotator}; see additional_details",
        }
    score: dict[str, Any] = {"score": figure.value}
    uncertainty: dict[str, Any] = {}
    if figure.error is not None:
        uncertainty["standard_error"] = {"value": figure.error, "method": "analytic, clustered by instruction"}
    if figure.low is not None and figure.high is not None:
        between = {"lower": figure.low, "upper": figure.high, "confidence_level": 0.95, "method": figure.method}
        uncertainty["confidence_interval"] = between
    if figure.n is not None:
        uncertainty["num_samples"] = figure.n
    if uncertainty:
        score["uncertainty"] = uncertainty
    result = {
        "evaluation_result_id": _result_id(evaluation, figure.name),
        "evaluation_name": _named(system, evaluation),
        "source_data": data,
        "metric_config": metric,
        "score_details": score,
    }
    if system.generation:
        result["generation_config"] = {"generation_args": dict(system.generation)}
    return result


def _judge(identity: str) -> dict[str, Any]:
    """Describe a language model that judged, by its identity such as openai:gpt-4o@0123456789ab."""
    name = re.sub("@[0-9a-f]{8,}$", "", identity).rstrip(":")
    platform, _, model = name.partition(":")
    shown = model or platform
    return {"name": shown, "id": shown if "/" in shown else f"{platform}/{shown}", "additional_details": UNKNOWN}


def _instance(sample: Sample, evaluation_id: str, id: str, name: str, result_id: str) -> Row:
    texts = list(sample.references)
    made: Row = {"raw": sample.prompt, "reference": texts}
    if sample.choices:
        made["choices"] = list(sample.choices)
    row: Row = {
        "schema_version": SCHEMA,
        "evaluation_id": evaluation_id,
        "model_id": id,
        "evaluation_name": name,
        "evaluation_result_id": result_id,
        "sample_id": sample.id,
        "sample_hash": hashlib.sha256((sample.prompt + "".join(texts)).encode("utf-8", "replace")).hexdigest(),
        "interaction_type": "multi_turn" if sample.turns else "single_turn",
        "input": made,
    }
    if sample.turns:
        turns = [(turn.role, turn.content) for turn in sample.turns]
        turns += [("user", sample.prompt), *(("assistant", answer) for answer in sample.answers)]
        row["messages"] = [{"turn_idx": n, "role": role, "content": text} for n, (role, text) in enumerate(turns)]
        last, source = len(turns) - 1, f"messages[{len(turns) - 1}].content"
    else:
        row["output"] = {"raw": list(sample.answers)}
        last, source = 0, "output.raw"
    attribution = {"turn_idx": last, "source": source, "extracted_value": sample.extracted}
    row["answer_attribution"] = [{**attribution, "extraction_method": sample.method, "is_terminal": True}]
    row["evaluation"] = {"score": sample.score, "is_correct": sample.score > 0.5}
    if sample.turns:
        row["evaluation"]["num_turns"] = last + 1
    return {**row, "metadata": dict(sample.details)}


# ----------------------------------------------------------------------------------------------------------- reading


def is_record(document: object) -> bool:
    """Tell a record of figures from other JSON."""
    return isinstance(document, Mapping) and {"evaluation_results", "model_info"} <= document.keys()


def read_figures(document: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield a row for each figure of a record, with its system, metric, interval, unit and judges.

    Proportions are turned into percent. Raises `DataError` naming the field that is missing or wrong.
    """
    model = document["model_info"]
    name = model.get("id") if isinstance(model, Mapping) else None
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}: field 'model_info.id' must be the name of a model, not {name!r}")
    if not isinstance(document["evaluation_results"], list):
        raise DataError(f"{where}: field 'evaluation_results' must be a list")
    for number, result in enumerate(document["evaluation_results"]):
        place = f"{where}: evaluation_results[{number}]"
        metric, score = _object(result, "metric_config", place), _object(result, "score_details", place)
        value = finite_number(score.get("score"))
        if value is None:
            raise DataError(f"{place}: field 'score_details.score' must be a finite number, not {score.get('score')!r}")
        for end, sign in (("min_score", 1), ("max_score", -1)):
            bound = finite_number(metric.get(end))
            if bound is not None and sign * value < sign * bound:
                raise DataError(f"{place}: the score {value:g} lies outside of its own bounds: {end!r} is {bound:g}")
        uncertainty, unit = _part(score, "uncertainty"), str(metric.get("metric_unit") or "")
        between, error = _part(uncertainty, "confidence_interval"), _part(uncertainty, "standard_error").get("value")
        known = map(finite_number, (value, error, between.get("lower"), between.get("upper")))
        scale = 100 if unit == "proportion" else 1
        numbers = [None if number is None else scale * number for number in known]
        asked = _part(metric, "llm_scoring").get("judges")
        judges = [_part(one, "model_info").get("id") for one in asked] if isinstance(asked, list) else []
        yield {
            "system": name,
            "evaluation": str(result.get("evaluation_name") or ""),
            "metric": str(metric.get("metric_name") or metric.get("metric_id") or "score"),
            **dict(zip(("value", "error", "low", "high"), numbers, strict=True)),
            "unit": "percent" if unit == "proportion" else unit,
            "lower_is_better": metric.get("lower_is_better") is True,
            "judges": ", ".join(map(str, judges)),
        }


def _part(row: object, name: str) -> Mapping[str, Any]:
    """Return what a row may have under a name; empty if it has nothing of the kind."""
    value = row.get(name) if isinstance(row, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _object(row: object, name: str, where: str) -> Mapping[str, Any]:
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: field {name!r} must be an object, not {value!r:.80}")
    return value


def read_outputs(path: Path) -> tuple[list[Row], int]:
    """Return the outputs in a file of samples, as `afarm evaluate` reads them, and the number of repeats.

    A repeat has the sample_id, prompt and output of an earlier one: a model's output that was judged in two ways.
    Raises `DataError` naming the row and the field if one is wrong, and for agents' samples.
    """
    found: dict[str, Row] = {}
    read = 0
    for where, row in read_placed_rows(path):
        if row.get("interaction_type") == "agentic":
            raise DataError(f"{where}: is an agent's sample, with calls of tools; afarm judges texts alone")
        asked, model = _object(row, "input", where), row.get("model_id")
        if not isinstance(asked.get("raw"), str) or not isinstance(model, str):
            raise DataError(f"{where}: fields 'input.raw' and 'model_id' must be texts")
        if not isinstance(sample := row.get("sample_id"), str | int) or sample == "":
            raise DataError(f"{where}: field 'sample_id' must be the sample's name, not {sample!r:.80}")
        made: Row = {"instruction": asked["raw"], "input": ""}
        if isinstance(turns := row.get("messages"), list) and turns:
            said = [_turn(turn, f"{where}: messages[{number}]") for number, turn in enumerate(turns)]
            if said[-1]["role"] != "assistant":
                raise DataError(f"{where}: its last message is not the assistant's, so there is no output")
            made = {"messages": said[:-1]}
            texts: object = [said[-1]["content"]]
        else:
            texts = _object(row, "output", where).get("raw")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{where}: field 'output.raw' must be a list of texts")
        for text in texts:
            output = {**made, "output": text, "generator": model}
            found.setdefault(json_text([str(sample), output]), output)
        read += len(texts)
    if not found:
        raise DataError(f"{path}: has no samples")
    if len(models := {output["generator"] for output in found.values()}) > 1:
        raise DataError(f"{path}: has samples of {len(models)} models; a file of outputs is one model's")
    return [*found.values()], read - len(found)


def _turn(turn: object, where: str) -> Row:
    if not isinstance(turn, Mapping) or not all(isinstance(turn.get(name), str) for name in ("role", "content")):
        raise DataError(f"{where}: must be an object whose 'role' and 'content' are texts, not {turn!r:.80}")
    return {"role": turn["role"], "content": turn["content"]}
