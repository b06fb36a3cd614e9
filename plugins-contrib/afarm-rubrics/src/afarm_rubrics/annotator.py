"""`rubric:FILE.yaml`: each output is checked against the criteria; the higher score is preferred."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from afarm import AnnotateContext, Annotator, BuildContext, ChatRequest, Judgement, Pair, Preference
from afarm_rubrics.checklist import Checklist, ChecklistConfig, Slot, bind, check, plan_checks
from afarm_rubrics.rubric import EVEN, Rubric, read_rubric, score

logger = logging.getLogger(__name__)


class RubricAnnotator(Annotator):
    """Labels a pair by the scores of its outputs: the higher is preferred, equal ones are a draw.

    Scores are in `Preference.scores`, what each output met in `attributes`: 1.0 or 0.0 under the criterion's name.
    """

    rates = True

    def __init__(self, config: ChecklistConfig | None, spec: str, context: BuildContext):
        """Read the rubric's file. Raises `ConfigError` with all its problems."""
        self.config, self.rubric = config or ChecklistConfig(), read_rubric(spec)

    @property
    def identity(self) -> str:
        return self.rubric.digest

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Label each pair; "unparsed" (or "refused") if a criterion of either output got no readable answer."""
        if not pairs:
            return []
        answers = check(pairs, [self.rubric.of(pair.instruction) for pair in pairs], self.config, context)
        prompt = bind(self.config, context)
        labels = [self._label(pair, answers, prompt) for pair in pairs]
        warn_of(self.rubric, pairs, labels)
        return labels

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """List the requests that `annotate` would send now."""
        criteria = [self.rubric.of(pair.instruction) for pair in pairs]
        return plan_checks(pairs, criteria, self.config, context) if pairs else []

    def _label(self, pair: Pair, answers: Mapping[Slot, Judgement], prompt: Checklist) -> Preference:
        criteria = self.rubric.of(pair.instruction)
        both = [
            [answers[pair.instruction.id, output, one.text] for one in criteria]
            for output in (pair.output_1, pair.output_2)
        ]
        keys = dict.fromkeys(answer.completion for row in both for answer in row if answer.completion)
        about = {"completion": ",".join(keys), "degraded": prompt.degraded, "judge": prompt.judge}
        unread = {answer.outcome for row in both for answer in row if answer.p_first_shown is None}
        if unread:
            return Preference(pair.id, None, "refused" if "refused" in unread else "unparsed", **about)  # type: ignore[arg-type]
        met = [[answer.p_first_shown == 1 for answer in row] for row in both]
        first, second = (score(criteria, row) for row in met)
        is_draw = abs(first - second) < EVEN
        return Preference(
            pair.id,
            None if is_draw else float(second > first),
            "draw" if is_draw else "decided",
            scores=(first, second),
            attributes=tuple((one.name, float(a), float(b)) for one, a, b in zip(criteria, *met, strict=True)),
            **about,  # type: ignore[arg-type]
        )


def warn_of(rubric: Rubric, pairs: Sequence[Pair], labels: Sequence[Preference]) -> None:
    """Say if no output meets any criterion, and if none of the rubric's tasks is judged."""
    scored = [label for label in labels if label.scores]
    if scored and not any(value for label in scored for _, *both in label.attributes for value in both):
        logger.warning("%s: none of %d outputs meets any criterion: all are draws", rubric.path, 2 * len(scored))
    if rubric.by_task and not any(rubric.own(pair.instruction) for pair in pairs):
        count = len(rubric.by_task)
        logger.warning("%s: none of its %d tasks is among the %d pairs that are judged", rubric.path, count, len(pairs))
