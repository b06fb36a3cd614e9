"""Pairs labelled: the stage of the training preferences, and what every label depends on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from pydantic import TypeAdapter

from afarm.core.errors import AfarmError, attribute_failures
from afarm.core.interfaces import AnnotateContext, Method
from afarm.core.judge import CHARACTERS_PER_TOKEN, ChatRequest
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm.core.seeding import digest
from afarm.experiment.stage import Inputs, Labelling, Stage
from afarm.experiment.stage_code import code_identity
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.dispatch import LARGEST_BATCH
from afarm.judging.labelling import CHUNK, annotate_in_chunks, number_occurrences
from afarm.judging.ledger import Ledger
from afarm.judging.method_judge import PlannedJudge, PromptedJudge, Question
from afarm.storage.checkpoints import CHECKPOINTS, wait_for
from afarm.storage.disk import write_json
from afarm.storage.rows import read_outputs, write_rows

logger = logging.getLogger(__name__)
T = TypeVar("T")

SHOWN = 3
"""Pairs without a label that are named."""


def annotation_stage(workspace: Workspace, outputs: Stage) -> Stage:
    """The training preferences, with the recipe's label noise."""
    settings, sampling = workspace.config.annotate, workspace.config.sample
    identity = annotation_identity(workspace, settings.annotator, settings.label_noise)

    def plan_labels(inputs: Inputs) -> Labelling:
        if inputs:
            pairs = adjacent_pairs(read_outputs(inputs["outputs"].path / "outputs.jsonl"), sampling.n)
            return Labelling(LEARNING, pairs, settings.annotator, settings.label_noise)
        stand_in = find_stand_in(workspace, sampling.max_new_tokens)
        tasks = [task for task in workspace.data.instructions("preference") for _ in range(sampling.n // 2)]
        pairs = make_up_pairs(stand_in[0], tasks, settings.label_noise)
        return Labelling(LEARNING, pairs, settings.annotator, 0.0, *stand_in)

    def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        return annotate_to_file(workspace, directory / "preferences.jsonl", plan_labels(inputs))

    key_fields = workspace.key_fields("annotate", **identity)
    return Stage("annotate", "annotate", {"outputs": outputs}, key_fields, write, plan_labels=plan_labels)


def adjacent_pairs(outputs: Sequence[Output], n: int) -> list[Pair]:
    """Pair each two adjacent outputs of the `n` of an instruction; an odd last one is left out."""
    pairs = []
    for begin in range(0, len(outputs), n):
        group = outputs[begin : begin + n]
        for first, second in zip(group[::2], group[1::2], strict=False):
            pairs.append(Pair.of(first, second))
    return number_occurrences(pairs)


def find_stand_in(workspace: Workspace, longest: int, stored: Sequence[Output] = ()) -> tuple[str, str, float]:
    """Return a stand-in for outputs of at most `longest` tokens that do not exist yet.

    With it comes the rest that `Labelling` takes.

    It is as long on average as what is there and comes nearest to them: the outputs `stored` of the starting policy,
    the demonstrations that this learns from, the data set's outputs to evaluate against; else half of the longest.
    """
    data, most = workspace.data, longest * CHARACTERS_PER_TOKEN
    for split in ("", *(["sft"] if workspace.config.start == "sft" else []), data.evaluated_on):
        with suppress(AfarmError):  # the data set may lack the split
            rows = data.load(split) if split else stored
            if texts := [row.output[:most] for row in rows if row.output.strip()]:
                mean = fmean(map(len, texts))
                text = min(texts, key=lambda text: abs(len(text) - mean))
                whose = f"split {split!r}" if split else "the starting policy"
                length = f"as long as those of {whose}, {mean:,.0f} characters on average"
                return text, length, max(0.0, longest - mean / CHARACTERS_PER_TOKEN)
    return "word " * (longest // 2), f"half of the longest, {longest // 2:,} tokens", longest / 2


def make_up_pairs(
    text: str, tasks: Sequence[Instruction], label_noise: float = 0.0, first: Mapping[str, str] | None = None
) -> list[Pair]:
    """Make up a pair per instruction, as many as label noise leaves to an annotator.

    All texts differ but `first` ones, by the id of their instruction.
    """
    first, share = first or {}, 1 - 2 * label_noise
    asked = [(n, task) for n, task in enumerate(tasks) if int((n + 1) * share) > int(n * share)]
    return [Pair(task, first.get(task.id, f"{text} one {n}"), f"{text} two {n}") for n, task in asked]


def run_labelling(workspace: Workspace, labelling: Labelling) -> Iterator[JudgedPair]:
    """Label pairs in order, a chunk at a time."""
    purpose, pairs, name, label_noise = labelling[:4]
    context = AnnotateContext(workspace.seed(purpose), workspace.judges.client, workspace.progress)
    chunk_size = LARGEST_BATCH if workspace.config.batch_api else CHUNK  # a batch takes hours, however small it is
    many = len(pairs) > chunk_size  # if one chunk is all, the annotator's own bar says all
    counted = workspace.progress(pairs, f"{name}: pairs", len(pairs)) if many else pairs
    return annotate_in_chunks(counted, workspace.components.annotator(name), name, context, label_noise, chunk_size)


def annotate_to_file(
    workspace: Workspace, path: Path, labelling: Labelling, unanswered: Sequence[Pair] = ()
) -> Mapping[str, Any]:
    """Label pairs into a file, in order, and return a summary: who decided what, and what was degraded.

    Pairs without a second output (`unanswered`) are written last: their first output wins without a call.
    """
    members, outcomes, degraded = Counter[str](), Counter[str](), Counter[str]()
    lost: list[str] = []

    def rows() -> Iterator[Mapping[str, Any]]:
        for judged in run_labelling(workspace, labelling):
            preference = judged.preference
            members[name_labeller(judged)] += 1
            outcomes[preference.outcome] += 1
            if preference.outcome in ("unparsed", "refused"):
                lost.append(f"row {outcomes.total() - 1} ({judged.pair.instruction.instruction!r:.60})")
            degraded.update(preference.degraded)
            yield judged.to_row()
        for pair in unanswered:
            members["(no output)"] += 1
            outcomes["decided"] += 1
            yield JudgedPair(pair, Preference(pair.id, 0.0, source="rule"), labelling.annotator).to_row()

    count = write_rows(path, rows())
    if lost and not all(judge.simulated for judge in workspace.judges.answering([labelling.annotator]).values()):
        place, more = path.parent.with_suffix("") / path.name, f" and {len(lost) - SHOWN} more" * (len(lost) > SHOWN)
        logger.warning("%s of %s pairs have no label: %s: %s%s", len(lost), count, place, ", ".join(lost[:SHOWN]), more)
    counts = {"outcomes": dict(outcomes), "members": dict(sorted(members.items())), "degraded": dict(degraded)}
    return {"rows": count, **counts}


def name_labeller(judged: JudgedPair) -> str:
    """Name who labelled a pair: the annotator's member, the annotator, or that nobody was asked."""
    if judged.pair.identical:
        return "(identical)"
    return "(noise)" if judged.preference.source == "noise" else judged.preference.member or judged.annotator


def annotation_identity(workspace: Workspace, annotator: str, label_noise: float) -> dict[str, Any]:
    """Return what labels depend on: the annotator and its judges, with source and settings, and the noise."""
    return {
        "annotator": workspace.components.annotator_identity(annotator),
        "judges": workspace.judges.identities,
        "label_noise": label_noise,
    }


LEARNING, SELECTING = "annotate", "online"
"""The purposes of the seeds of labels to learn from, whoever asks for them, and of those to select checkpoints by."""
ALIKE = 0.95
"""How often a checkpoint writes the token that the one before it wrote, for estimates: measured in the toy world."""

COUNTS, LABELS = "judged.txt", "labelled.txt"
"""The files beside a stage's checkpoints that count what it asked, also over kills: what is asked again counts once.

A line of the first is a question to a method's judge: id, kind, 1 if unreadable. One of the second is a label: pair,
outcome, who gave it.
"""


def write_counted(directory: Path | None, name: str, lines: Iterable[tuple[str, str, object]]) -> None:
    """Add lines to a file of counts."""
    assert directory is not None
    directory /= CHECKPOINTS  # which is no part of the artifact
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a", encoding="utf-8") as file:
        file.writelines(f"{id} {kind} {rest}\n" for id, kind, rest in lines)


def read_counted(directory: Path | None, name: str) -> list[list[str]]:
    """Return the kind and the rest of each different line of a file of counts that is whole."""
    path = (directory or Path()) / CHECKPOINTS / name
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return [line.split(" ", 2)[1:] for line in sorted(set(lines)) if line.count(" ") >= 2]


def ask_once(
    workspace: Workspace, directory: Path | None, about: object, ask: Callable[[], list[T]], kind: Any
) -> list[T]:
    """Return the answers, of a `kind`. Of several processes that train in `directory` the main one asks."""
    if directory is None or not workspace.process_info.is_distributed:
        return ask()
    path, adapter = directory / CHECKPOINTS / f"asked-{digest(workspace.session, about)}.json", TypeAdapter(list[kind])
    if workspace.process_info.is_main_process:
        write_json(path, adapter.dump_python(ask(), warnings=False))
    wait_for(path.is_file)
    return adapter.validate_json(path.read_bytes())


@dataclass(frozen=True)
class OnlineAnnotator:
    """The run's annotator for pairs of one's own, within the run's budget, with its label noise.

    A method that needs "annotator" is given it as `inputs.annotate`. Labels to learn from have the draws of the stage
    "annotate": a label is a function of seed and pair, so that a pair which was labelled there is neither paid nor
    flipped anew. Noiseless ones, to select by, have draws of their own: a checkpoint that fits the member, order and
    coin of its training labels would otherwise be selected for just that.
    """

    workspace: Workspace
    directory: Path | None = None
    """The directory of the stage that several processes train together."""

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of its labels: a part of the key of what is trained on them."""
        settings = self.workspace.config.annotate
        identity = annotation_identity(self.workspace, settings.annotator, settings.label_noise)
        return {"afarm": code_identity("annotate"), **identity}

    def __call__(self, pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        """Label pairs; of several processes that call this with the same ones, the main one asks."""
        about = noiseless, [[pair.id, pair.is_canonical] for pair in pairs]
        return ask_once(self.workspace, self.directory, about, lambda: self._label(pairs, noiseless), Preference)

    def plan(
        self, learning: Sequence[Instruction], selecting: Sequence[Instruction], steps: int, candidates: int
    ) -> Labelling:
        """Return the labelling of a made-up pair per instruction.

        Pairs to learn from are asked about step by step, those to select by checkpoint by checkpoint. All checkpoints
        answer with the same draws, so that a short text is often the one before it.
        """
        settings = self.workspace.config.annotate
        stand_in = find_stand_in(self.workspace, self.workspace.config.evaluate.max_new_tokens)
        made = make_up_pairs(stand_in[0], learning, settings.label_noise)
        compared = make_up_pairs(stand_in[0], selecting, first={one.id: stand_in[0] for one in selecting})
        groups = [*(made[n::steps] for n in range(steps)), *(compared[n::candidates] for n in range(candidates))]
        pairs, sizes = [pair for group in groups for pair in group], [len(group) for group in groups if group]
        alike = ALIKE ** (len(stand_in[0]) / CHARACTERS_PER_TOKEN) * sum(map(len, groups[steps + 1 :]))
        new = 1 - alike / max(1, len(pairs))
        return Labelling(SELECTING, pairs, settings.annotator, 0.0, *stand_in, groups=sizes, new=new)

    def _label(self, pairs: Sequence[Pair], noiseless: bool) -> list[Preference]:
        settings = self.workspace.config.annotate
        purpose, label_noise = (SELECTING, 0.0) if noiseless else (LEARNING, settings.label_noise)
        rows = list(run_labelling(self.workspace, Labelling(purpose, pairs, settings.annotator, label_noise)))
        if not noiseless:
            lines = ((row.pair.id, row.preference.outcome, name_labeller(row)) for row in rows)
            write_counted(self.directory, LABELS, lines)
        return [row.preference for row in rows]

    def counts(self) -> dict[str, Any]:
        """Count the labels that were learned from, as `annotate_to_file` writes them to the summary."""
        found = read_counted(self.directory, LABELS)
        outcomes, members = (dict(sorted(Counter(row[column] for row in found).items())) for column in (0, 1))
        return {"labels": len(found), "outcomes": outcomes, "members": members} if found else {}


class OnlineJudge(PromptedJudge):
    """The run's judge for a method's own responses, within the run's budget: `inputs.judge`."""

    directory: Path | None = None

    def __init__(self, workspace: Workspace, name: str, method: Method):
        self.workspace, self.method = workspace, method
        about = workspace.components.component("methods", name).name, method.judge_role, workspace.seed("judge")
        super().__init__(lambda: workspace.judges.client, *about, workspace.progress)

    def within(self, directory: Path) -> OnlineJudge:
        """Return it for the stage that trains in `directory`."""
        inside = copy(self)
        inside.directory = directory
        return inside

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of its answers: a part of the key of what is trained on them."""
        return {"afarm": code_identity("annotate"), "judges": self.workspace.judges.identities}

    def collect(self, questions: Sequence[Question]) -> list[Any]:
        """Answer questions; of several processes that call this with the same ones, the main one asks."""
        about = self.name, [question.id for question in questions]
        return ask_once(self.workspace, self.directory, about, lambda: self._ask_and_count(questions), Any)

    def _ask_and_count(self, questions: Sequence[Question]) -> list[Any]:
        answers = super().collect(questions)
        lines = ((q.id, q.kind, int(a is None)) for q, a in zip(questions, answers, strict=True))
        write_counted(self.directory, COUNTS, lines)
        return answers

    def counts(self) -> dict[str, int]:
        """Count the questions of each kind, and unreadable answers: a part of the stage's summary."""
        found = Counter[str]()
        for kind, unread in read_counted(self.directory, COUNTS):
            found.update({f"judge/{kind}": 1, f"judge/{kind} unreadable": int(unread or 0)})
        return dict(sorted(found.items()))

    def plan(self, rows: Mapping[str, Sequence[Instruction]], method: Method | None = None) -> PlannedJudge:
        """Return what training on these splits will ask, by another `method` of the kind if it is given."""
        text, *_ = find_stand_in(self.workspace, self.workspace.config.evaluate.max_new_tokens)
        planned, method = PlannedJudge(self.ask, self.name, self.role, self.seed, text), method or self.method
        with attribute_failures("methods", self.name, method):
            method.plan_judging(rows, planned)
        return planned

    def plan_requests(self, rows: Mapping[str, Sequence[Instruction]]) -> Iterator[ChatRequest]:
        """Write the requests of what is planned one by one, without the run's ledger."""
        with Ledger(Path(":memory:")) as empty:
            client, planned = JudgeClient(self.workspace.judges.by_role, empty), self.plan(rows)
            planned.ask = lambda: client
            yield from map(planned.request, planned.questions)
