"""`--judge fitted:DIR`: answers prompts by a fitted utility, with the noise that was fitted.

A label is drawn with the fitted probability, by a key of the request's seed, the pair and the number of the sample: not
of the annotator, of the order shown or of the temperature. So the other order mirrors the answer exactly, and several
votes are independent.
"""

from __future__ import annotations

import math
from functools import cached_property

from afarm import (
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    Judge,
    JudgeError,
    Pair,
    Price,
    ShownPair,
)
from afarm.judging import CHARACTERS_PER_TOKEN, render
from afarm_plugins.fitted_judges.settings import FittedConfig
from afarm_plugins.fitted_judges.utility import FittedUtility, second_wins

TOKENS = "tokens"
FORMATS = ("single", "list", "json", "labels", TOKENS)
REMEMBERED = 65536


class FittedJudge(Judge):
    """See the module. It costs nothing per call, and asks no language model."""

    capabilities = Capabilities(chat=True, completion=True, logit_bias=True, logprobs=True, alone=False)
    simulated = True

    def __init__(self, spec: str, config: FittedConfig | None, context: BuildContext):
        """Open the judge in the directory `spec`, or the shipped one. Raises as `FittedUtility` does."""
        self.utility = FittedUtility(spec, context, (config or FittedConfig()).encoder)
        self.agreement = self.utility.agreement
        self._probabilities: dict[tuple[str, str, str], float] = {}

    @cached_property
    def identity(self) -> str:
        """The directory's name, and a digest of all that its labels depend on."""
        return f"fitted:{self.utility.name}@{self.utility.digest}"

    def price(self) -> Price:
        return Price(0.0, 0.0)

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.0

    async def complete(self, request: ChatRequest) -> Completion:
        """Raises `JudgeError` for a request that compares nothing, or in a format that it cannot write."""
        if not request.comparisons or request.answer_format not in FORMATS:
            asks = f"for {request.answer_format!r}" if request.answer_format else "for something else"
            raise JudgeError(
                f"the fitted judge only compares two outputs, and {request.annotator or 'the annotator'} asks {asks}; "
                "choose an annotator that compares, such as pool or fitted, or a language model with --judge",
                charged=False,
            )
        self._remember([shown for shown in request.comparisons if shown.pair_id])
        prompt = request.prompt + "".join(message.content for message in request.messages)
        size = math.ceil(len(prompt) / CHARACTERS_PER_TOKEN)
        if request.answer_format == TOKENS:
            positions = tuple(self._as_tokens(shown, request) for shown in request.comparisons)
            text = "".join(max(position, key=position.__getitem__) for position in positions)
            return Completion(text, size, len(positions), price=0.0, logprobs=positions)
        first_wins = [self._first_wins(shown, request) for shown in request.comparisons]
        text = render(first_wins, request.answer_format, request.labels)
        return Completion(text, size, math.ceil(len(text) / CHARACTERS_PER_TOKEN), price=0.0)

    def _first_wins(self, shown: ShownPair, request: ChatRequest) -> bool:
        """Tell if the output shown first wins. Dummies that fill a batch get a fixed answer."""
        if not shown.pair_id:
            return True
        p = self._probabilities[_key(shown)]
        return second_wins(p, request.seed, shown.pair_id, shown.sample_index) != (shown.order == "ab")

    def _as_tokens(self, shown: ShownPair, request: ChatRequest) -> dict[str, float]:
        """Return the log-probabilities of the two labels as they were fitted: nothing is drawn."""
        second = self._probabilities[_key(shown)] if shown.pair_id else 0.5
        first = 1 - second if shown.order == "ab" else second
        likely = zip(request.labels[:2], (first, 1 - first), strict=True)
        return {label: math.log(p) for label, p in likely if p > 0}

    def _remember(self, comparisons: list[ShownPair]) -> None:
        """Compute the probabilities that are not known yet, all at once."""
        if len(self._probabilities) > REMEMBERED:
            self._probabilities.clear()
        fresh = {_key(shown): shown.instruction for shown in comparisons if _key(shown) not in self._probabilities}
        if fresh:
            pairs = [Pair(instruction, low, high) for (_, low, high), instruction in fresh.items()]
            self._probabilities.update(zip(fresh, self.utility.p_second(pairs), strict=True))


def _key(shown: ShownPair) -> tuple[str, str, str]:
    low, high = sorted((shown.first, shown.second))
    return shown.instruction.id, low, high
