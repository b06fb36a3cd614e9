"""`--annotator fitted:DIR`: labels by a fitted utility with its noise, and no judge asked."""

from __future__ import annotations

from collections.abc import Sequence

from afarm import AnnotateContext, Annotator, BuildContext, Pair, Preference
from afarm_plugins.fitted_judges.settings import FittedAnnotatorConfig
from afarm_plugins.fitted_judges.utility import FittedPart, second_wins


class FittedAnnotator(FittedPart, Annotator):
    """Labels as the fitted judge draws them under the same seed; with `soft`, probabilities."""

    def __init__(self, config: FittedAnnotatorConfig, spec: str, context: BuildContext):
        super().__init__(config, spec, context)
        self.config = config
        self.agreement = self.utility.agreement

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Return one preference per pair, in order."""
        labels = []
        for pair, p in zip(pairs, self.utility.p_second(pairs), strict=True):
            id = pair.id
            label = p if self.config.soft else float(second_wins(p, context.seed, id))
            labels.append(Preference(id, label if pair.is_canonical else 1 - label))
        return labels
