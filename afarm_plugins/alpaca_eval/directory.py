"""Evaluator directories of AlpacaEval: `configs.yaml` and its templates, read and checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError, field_validator

from afarm import (
    Capabilities,
    ChatRequest,
    Config,
    ConfigError,
    Instruction,
    Message,
    Pair,
    ShownPair,
    Tool,
    did_you_mean,
    explain_validation_error,
    read_user_text,
    seeding,
    setting,
)
from afarm_plugins.alpaca_eval.parsers import Parser, checked
from afarm_plugins.alpaca_eval.template import COLUMNS, Template, read_template

DUMMY = ShownPair("", Instruction("1+1="), "2", "3")
"""The pair with which AlpacaEval fills a batch up. Its verdict is not read."""

FORMS = ("with_inputs", "without_inputs")
"""Forms of instructions for which AlpacaFarm has a template each."""

FILES = ("configs.yaml", "config.yaml", "configs.yml", "config.yml")
"""What a directory's file may be called; otherwise it is the only YAML file there."""

MOST_NAMES = 3
"""Annotators that a problem names, if they share it."""

UNKNOWN = "not known here"
"""The problem of a setting that AlpacaEval may have and afarm does not."""

PROCESSORS = ("ChainOfThoughtProcessor", "JsonKeysToColumnProcessor", "PaddingForBatchesProcessor")
"""Processors that change no label: two add columns about an answer, one pads batches as done here."""

HOW_ONLY = frozenset(
    [
        *("price_per_token", "client_kwargs", "client_config_path", "client_function_name", "model_kwargs"),
        *("batch_size", "num_procs", "n_retries", "sleep_time", "timeout", "waiting_time", "cache_dir"),
        *("is_strip", "is_skip_multi_tokens_to_avoid", "is_fast_tokenizer"),
        *("requires_chatml", "is_chatml_prompt", "is_chat"),
    ]
)
"""Completion arguments about reaching a model, not about the request: here the judge's business."""

PROVIDERS = {
    "openai_completions": "openai",
    "anthropic_completions": "anthropic",
    "bedrock_anthropic_completions": "anthropic",
    "vllm_local_completions": "local",
    "huggingface_local_completions": "local",
}
"""Completion functions and the judge that reaches the same models. Others: a server at a URL."""

DEFAULT_TEMPERATURES = {"vllm_local_completions": 1.0, "huggingface_local_completions": 0.0} | {
    "huggingface_api_completions": 0.0
}
"""Temperatures if a directory names none; 0.7 with every other completion function."""

EXPLAINED = 150
"""Tokens of a usual answer that explains itself, as calls of functions and LMSYS's form do."""

LIGHT = ("gpt-3.5", "chatgpt", "-mini", "haiku", "instant")
"""Parts of the names of models that answer for the light family."""


class Arguments(Config):
    """`completions_kwargs`, as far as they say what a model is asked."""

    model_name: str = setting(..., "the model that the directory was made for")
    max_tokens: int | None = setting(None, "the longest answer in tokens", ge=1)
    max_new_tokens: int | None = setting(None, "the same, as Hugging Face and vLLM call it", ge=1)
    max_tokens_to_sample: int | None = setting(None, "the same, as Anthropic called it", ge=1)
    temperature: float | None = setting(None, "sampling temperature", ge=0)
    top_p: float = setting(1.0, "nucleus sampling", gt=0, le=1)
    logprobs: Any = setting(False, "true, or for text completion how many")
    top_logprobs: int = setting(0, "how many of the likeliest tokens are given at each position", ge=0)
    tools: list[dict[str, Any]] = setting([], "functions to call")
    tool_choice: Any = setting(None, "the function that must be called")
    tokens_to_favor: list[str] = setting([], "texts to make likelier, by logit bias")
    tokens_to_avoid: list[str] = setting([], "texts to make unlikely, by logit bias")


class EvaluatorSpec(Config):
    """One annotator in `configs.yaml`."""

    prompt_template: Any = setting(
        ..., "a file, relative to the parent of the directory, or AlpacaFarm's two: with_inputs and without_inputs"
    )
    fn_completions: str = setting("openai_completions", "how its model was reached")
    completions_kwargs: dict[str, Any] = setting(..., "the model and what it is asked with")
    fn_completion_parser: str = setting("regex_parser", "how answers are read")
    completion_parser_kwargs: dict[str, Any] = setting({}, "the parser's arguments")
    completion_key: Literal["completions", "completions_all"] = setting("completions", "what the parser is given")
    batch_size: int = setting(1, "comparisons in one prompt", ge=1)
    is_randomize_output_order: bool = setting(True, "whether the outputs are shown in a drawn order")
    random_seed_column: str | list[str] = setting(["instruction"], "the columns that the order is drawn from")
    processors_to_kwargs: dict[str, Any] = setting({}, "what is done with rows before and after")
    is_shuffle: bool = setting(True, "no effect: which pairs share a batch changes no draw here")
    is_add_default_processors: bool = setting(True, "no effect: batches are always filled up")
    packages_for_which_to_show_version: Any = setting(None, "no effect")
    pretty_name: str = setting("", "no effect")
    link: str = setting("", "no effect")

    @field_validator("prompt_template")
    @classmethod
    def _one_file_or_two(cls, value: Any) -> Any:
        files = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else [None]
        if not all(isinstance(file, str) for file in files) or (isinstance(value, dict) and set(value) != set(FORMS)):
            raise ValueError(f"must be a file, or a mapping of {' and '.join(FORMS)} to a file each, not {value!r}")
        return value

    @property
    def template_files(self) -> Mapping[str, str]:
        """The template by the form of instruction that it is for, "" for both."""
        return {"": self.prompt_template} if isinstance(self.prompt_template, str) else self.prompt_template


@dataclass(frozen=True, slots=True)
class DirectoryMember:
    """One annotator of a directory, ready to ask and to read.

    `template` is for instructions without an input, and for those with one too if there is no `template_with_input`.
    """

    name: str
    spec: EvaluatorSpec
    arguments: Arguments
    template: Template
    template_with_input: Template | None
    parser: Parser
    tool: Tool | None
    labels: tuple[str, ...]

    @property
    def seed_columns(self) -> list[str]:
        """The columns whose texts, in this order, the order of the outputs is drawn from."""
        columns = self.spec.random_seed_column
        return [columns] if isinstance(columns, str) else sorted(columns)

    @property
    def role(self) -> str:
        """The family role: completion for plain text, light for models called so, strong for all others."""
        if not self.template.turns:
            return "completion"
        return "light" if any(part in self.arguments.model_name for part in LIGHT) else "strong"

    @property
    def requested_judge(self) -> str:
        """The judge that the directory asks for, as `--judge` takes it."""
        model, provider = self.arguments.model_name, PROVIDERS.get(self.spec.fn_completions)
        client = self.spec.completions_kwargs.get("client_kwargs")
        url = client.get("base_url") if isinstance(client, Mapping) else None
        return f"{provider}:{model}" if provider and not url else f"openai-compatible:{model}@{url or 'URL'}"

    @property
    def content(self) -> str:
        """A digest of all that the files say about this member."""
        texts = [template.text for template in (self.template, self.template_with_input) if template]
        return seeding.digest(self.name, self.spec.model_dump(mode="json"), *texts)

    def batch_key(self, pair: Pair) -> Hashable:
        """Return the key of a pair's batch: pairs share a prompt only if they have the same template."""
        return bool(pair.instruction.input) if self.template_with_input else None

    def request(
        self, comparisons: Sequence[ShownPair], takes: Capabilities, *, seed: int, sample_index: int
    ) -> ChatRequest:
        """Build the request about up to `batch_size` pairs that share a template (see `batch_key`)."""
        filled = (*comparisons, *[DUMMY] * (self.spec.batch_size - len(comparisons)))
        with_input = bool(comparisons[0].instruction.input)
        template = (with_input and self.template_with_input) or self.template
        messages, prompt = template.fill(filled), ""
        if not template.turns:
            text = messages[0].content
            messages, prompt = ((), text) if takes.completion else ((Message("user", text),), "")
        arguments = self.arguments
        longest = arguments.max_tokens or arguments.max_new_tokens or arguments.max_tokens_to_sample or 2048
        temperature = DEFAULT_TEMPERATURES.get(self.spec.fn_completions, 0.7)
        alternatives = arguments.top_logprobs or int(arguments.logprobs)
        return ChatRequest(
            role=self.role,
            messages=messages,
            prompt=prompt,
            max_tokens=longest,
            temperature=temperature if arguments.temperature is None else arguments.temperature,
            top_p=arguments.top_p,
            favoured_tokens=tuple(arguments.tokens_to_favor),
            penalised_tokens=tuple(arguments.tokens_to_avoid),
            tool=self.tool,
            top_logprobs=alternatives,
            comparisons=filled,
            answer_format="" if not self.labels else "tokens" if self.parser.reads_logprobs else "labels",
            labels=self.labels,
            annotator=self.name,
            seed=seed,
            sample_index=sample_index,
            typical_tokens=min(longest // 2, EXPLAINED) if self.tool or self.parser.name == "lmsys_parser" else 0,
        )


def load(spec: str) -> list[DirectoryMember]:
    """Load the annotators of the directory (or YAML file) at `spec`.

    `spec` may be the name of a directory of an installed alpaca_eval. Raises `ConfigError` with every problem, each
    naming its file, annotator and field.
    """
    path = find(spec)
    try:
        entries = yaml.safe_load(read_user_text(path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError([f"{path}: cannot be read as YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(entries, dict) or not entries:
        raise ConfigError([f"{path}: must map names of annotators to their settings"])
    members: list[DirectoryMember] = []
    names_by_problem: dict[str, list[str]] = {}
    for name, values in entries.items():
        member, own_problems = _member(str(name), values, path.parent.parent)
        for problem in own_problems:
            names_by_problem.setdefault(problem, []).append(str(name))
        members += [member] if member else []
    if names_by_problem:
        raise ConfigError([f"{path}: {_listed(names)}: {problem}" for problem, names in names_by_problem.items()])
    return members


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:MOST_NAMES])} and {more} more"


def find(spec: str) -> Path:
    """The YAML file that `spec` stands for. Raises `ConfigError` where there is none."""
    if not spec:
        raise ConfigError(["alpaca_eval: name an evaluator directory: --annotator alpaca_eval:DIRECTORY"])
    installed = installed_directories()
    path = Path(spec).expanduser()
    if not path.exists():
        path = installed.get(spec, path)
    if path.is_dir():
        path = _find_file(path)
    if path.is_file():
        return path.resolve()
    lacking = f"alpaca_eval: {spec!r} is no evaluator directory (there is no {path})"
    if not installed:
        raise ConfigError([f"{lacking}, and no alpaca_eval is installed to take that name from: give a path"])
    raise ConfigError([f"{lacking} and no evaluator of the installed alpaca_eval.{did_you_mean(spec, installed)}"])


def _find_file(directory: Path) -> Path:
    """Return the annotators' file in `directory`. Raises `ConfigError` if several YAML files qualify."""
    files = [directory / name for name in FILES if (directory / name).is_file()]
    others = sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml") and path.is_file())
    if not files and len(others) > 1:
        names = ", ".join(path.name for path in others)
        raise ConfigError([f"{directory}: has no {FILES[0]}: name one of its files, alpaca_eval:{others[0]} ({names})"])
    return [*files, *others, directory / FILES[0]][0]


def installed_directories() -> dict[str, Path]:
    """The evaluator directories of an installed alpaca_eval, by name. It is not imported."""
    package = importlib.util.find_spec("alpaca_eval")
    roots = package.submodule_search_locations if package else None
    return {
        path.parent.name: path.parent
        for root in roots or ()
        for path in sorted((Path(root) / "evaluators_configs").glob("*/config*.y*ml"))
    }


def _member(name: str, values: Any, base: Path) -> tuple[DirectoryMember | None, list[str]]:
    """One annotator, and what is wrong with it."""
    if not isinstance(values, dict):
        return None, ["must be a mapping of settings"]
    problems: list[str] = []
    try:
        entry = EvaluatorSpec.model_validate(values)
    except ValidationError as error:
        problems += explain_validation_error(error, EvaluatorSpec, unknown=UNKNOWN)
        wrong = {finding["loc"][0] for finding in error.errors()}
        try:  # what else is wrong is reported too
            entry = EvaluatorSpec.model_validate({k: v for k, v in values.items() if k not in wrong})
        except ValidationError:
            return None, problems
    problems += checked(entry.fn_completion_parser, entry.completion_parser_kwargs)
    arguments: Arguments | None = None
    model_arguments = {k: v for k, v in entry.completions_kwargs.items() if k not in HOW_ONLY}
    try:
        arguments = Arguments.model_validate(model_arguments)
    except ValidationError as error:
        problems += explain_validation_error(error, Arguments, "completions_kwargs: ", unknown=UNKNOWN)
    tool, more_problems = _tool(arguments) if arguments else (None, [])
    problems += more_problems
    templates, more_problems = _templates(entry, base)
    problems += more_problems + _mismatches(entry, arguments)
    if problems or not arguments:
        return None, problems
    parser = Parser(entry.fn_completion_parser, entry.completion_parser_kwargs)
    with_input, without = (templates.get(form) for form in FORMS)
    template, labels = without or templates[""], parser.labels(entry.batch_size)
    return DirectoryMember(name, entry, arguments, template, with_input, parser, tool, labels), []


def _templates(entry: EvaluatorSpec, base: Path) -> tuple[dict[str, Template], list[str]]:
    """The templates of an annotator by the form of instruction they are for, and what is wrong with them."""
    templates, problems = {}, []
    for form, file in entry.template_files.items():
        path, at = base / file, f"prompt_template: {form}:" if form else "prompt_template:"
        try:
            text = read_user_text(path)
        except (OSError, ValueError) as error:
            problems.append(f"{at} {path} cannot be read: {getattr(error, 'strerror', None) or error}")
            continue
        templates[form], own_problems = read_template(text, entry.batch_size)
        problems += [f"{at} {path} {problem}" for problem in own_problems]
    if len({bool(template.turns) for template in templates.values()}) > 1:
        problems.append(f"prompt_template: one of {' and '.join(FORMS)} has turns and the other is plain text")
    return templates, problems


def _mismatches(entry: EvaluatorSpec, arguments: Arguments | None) -> list[str]:
    """Settings that are right by themselves and do not go together, or that would have to be passed over."""
    problems = []
    needed = "completions_all" if entry.fn_completion_parser == "logprob_parser" else "completions"
    if entry.completion_key != needed:
        problems.append(f"completion_key: {entry.fn_completion_parser} reads {needed}, not {entry.completion_key}")
    elif needed == "completions_all" and arguments and not (arguments.top_logprobs or arguments.logprobs):
        problems.append("completions_kwargs: logprob_parser needs logprobs: true and top_logprobs")
    for name in entry.processors_to_kwargs:
        if name not in PROCESSORS:
            problems.append(f"processors_to_kwargs: {name!r} is not known here.{did_you_mean(name, PROCESSORS)}")
    columns = entry.random_seed_column
    for column in [columns] if isinstance(columns, str) else columns:
        if column not in COLUMNS:
            problems.append(f"random_seed_column: a pair has no {column!r}.{did_you_mean(column, COLUMNS)}")
    return problems


def _tool(arguments: Arguments) -> tuple[Tool | None, list[str]]:
    """The function that an answer must call."""
    functions = [function for row in arguments.tools if isinstance(function := row.get("function"), dict)]
    if len(functions) != len(arguments.tools):
        return None, ["completions_kwargs: tools: each must be a mapping with a 'function'"]
    choice = arguments.tool_choice
    chosen = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if chosen:
        functions = [function for function in functions if function.get("name") == chosen]
    if len(functions) != (1 if arguments.tools or chosen else 0):
        return None, [f"completions_kwargs: tool_choice must name one of the tools, not {choice!r}"]
    if not functions:
        return None, []
    name, parameters = functions[0].get("name"), functions[0].get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return None, ["completions_kwargs: tools: a function needs a 'name' and 'parameters'"]
    return Tool(name, str(functions[0].get("description") or ""), parameters), []
