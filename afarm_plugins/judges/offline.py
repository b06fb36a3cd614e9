"""A simulated judge: answers from a stated utility, with noise, in the format asked for.

It takes the place of an LLM so that prompts, parsers, the ledger and the accounts all run with no key. What wins under
it is what its utility rewards; it is never evidence of quality, and every report built on it says so.

    P(first is better) = sigmoid((U(first) - U(second) + b * log(words ratio)) / noise + position)

with noise, b and position by family role (design: the annotator statistics of AlpacaFarm, section 3). An output that is
rated alone, from 1 to 7, gets 1 and one more for each of the stated thresholds that

    U(output) + b * log((1 + words) / (1 + 10)) + noise * gumbel

reaches, where the draw of a Gumbel variable has mean 0: of two outputs, the one with the higher sum is then the first
with just the probability above, position apart, so that ratings are the same taste through a coarser scale. Marks of a
scale with more or fewer steps are interpolated between the thresholds. Several outputs are ranked by that sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from afarm import (
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    DataError,
    Instruction,
    Judge,
    JudgeError,
    RewardModel,
    ShownPair,
    seeding,
)
from afarm.judging import CHARACTERS_PER_TOKEN, render
from afarm_plugins.judges.settings import OfflineConfig, RoleNoise

REMEMBERED_SCORES = 65536
RATING, RANKING, CRITIQUE = "rating", "ranking", "critique"
"""Answer formats of outputs that are looked at alone, each a comparison's `first` in the order "alone"."""
CRITERIA = "criteria"
"""The answer format of an instruction for which criteria are drawn up."""
CRITERIA_ANSWER = "1. It does what the instruction asks.\n2. It is complete and does not repeat itself."
"""This judge goes by its utility, whatever the criteria."""
UNPARSED = "I cannot choose."
ALONE = "alone"
RATED_WORDS = 10
"""The number of words that is no advantage where an output is rated alone."""
EULER = 0.5772156649015329
"""The mean of a standard Gumbel variable."""
ROLES = ("strong", "light", "completion")
AGREEMENT = "agrees with people on 62 % of PandaLM's 914 pairs (56 to 67), where the longer output is right on 67 %"
"""The measured agreement of `text_utility`, with a 95% interval over instructions (docs/guides/fit-a-judge.md)."""


class OfflineJudge(Judge):
    """See the module. `spec` names the reward model that is the utility; empty takes the config's.

    An answer about a comparison depends on the request's seed, the annotator, the pair, the order shown and the draw:
    not on what shares its batch, on concurrency or on restarts. At temperature 0 the better side always wins.
    """

    capabilities = Capabilities(chat=True, completion=True, temperature=True, logit_bias=True)
    simulated = True

    def __init__(self, spec: str, config: OfflineConfig | None, context: BuildContext):
        self.config = config or OfflineConfig()
        self.utility_name = spec or self.config.utility
        self.agreement = AGREEMENT if self.utility_name == "text_utility" else ""
        self._context = context
        self._scores: dict[tuple[str, str], float] = {}

    @cached_property
    def utility(self) -> RewardModel:
        return self._context.reward_model(self.utility_name)

    @cached_property
    def identity(self) -> str:
        """The utility's name, and a digest of all settings and of the source of the judge and of its utility."""
        settings = self.config.model_dump(mode="json", exclude={"utility"})
        sources = [self._context.source, self._context.identify(self.utility_name)]
        return f"offline:{self.utility_name}@{seeding.digest(settings, sources, length=12)}"

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """A utility may be defined for one data set only, as the toy world's gold reward is."""
        try:
            self.utility.score(instructions, [""] * len(instructions))
        except DataError as error:
            return [str(error)]
        return ()

    async def complete(self, request: ChatRequest) -> Completion:
        """Raises `JudgeError` where the request carries no comparisons or asks for an unknown answer format."""
        if not request.comparisons:
            raise JudgeError(
                f"the offline judge only compares outputs, and the request of {request.annotator or 'an annotator'} "
                "carries no comparisons; choose a language model with --judge"
            )
        if request.answer_format == RATING:
            return _completion(request, self._rate(request.comparisons[0], request))
        if request.answer_format == CRITERIA:
            return _completion(request, CRITERIA_ANSWER)
        if request.answer_format == RANKING:
            return _completion(request, self._rank(request))
        if request.answer_format == CRITIQUE:
            return _completion(request, self._criticise(request.comparisons[0], request))
        try:
            if not request.answer_format:
                raise ValueError("it answers in the formats that it knows, and these questions have their own")
            self._remember([c for c in request.comparisons if c.pair_id])
            choices = [self._choose(comparison, request) for comparison in request.comparisons]
            return _completion(request, render(choices, request.answer_format, request.labels))
        except ValueError as error:
            unable = f"the offline judge cannot answer {request.annotator or 'an annotator'}: {error}"
            raise JudgeError(f"{unable}; choose a language model with --judge") from error

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.0

    def first_is_better(self, comparison: ShownPair, role: str, temperature: float = 1.0) -> float:
        """The probability that this judge prefers the output shown first."""
        noise = self._noise(role)
        self._remember([comparison])
        scores = self._scores
        key = comparison.instruction.id
        gap = scores[key, comparison.first] - scores[key, comparison.second]
        gap += noise.length_bias * math.log((1 + _words(comparison.first)) / (1 + _words(comparison.second)))
        logit = gap / noise.noise + noise.position_bias
        if temperature <= 0:
            return float(logit >= 0)
        return 0.5 * (1 + math.tanh(logit / temperature / 2))

    def _noise(self, role: str) -> RoleNoise:
        return getattr(self.config, role) if role in ROLES else self.config.other

    def _rate(self, shown: ShownPair, request: ChatRequest) -> str:
        """The mark of the one output of `shown`, its `first`: from 1 to 7, or one of the request's labels."""
        value, thresholds = self._value(shown, request), self.config.rating_thresholds
        if value is None:
            return UNPARSED
        mark = sum(value >= threshold for threshold in thresholds)
        if len(request.labels) in (0, len(thresholds) + 1):
            return request.labels[mark] if request.labels else str(1 + mark)
        ends = [2 * thresholds[0] - thresholds[1], *thresholds, 2 * thresholds[-1] - thresholds[-2]]
        width = max(ends[mark + 1] - ends[mark], 1e-12)
        share = (mark + min(max((value - ends[mark]) / width, 0.0), 1.0)) / (len(thresholds) + 1)
        return request.labels[min(int(share * len(request.labels)), len(request.labels) - 1)]

    def _rank(self, request: ChatRequest) -> str:
        """The numbers of the request's outputs, the best first."""
        self._remember(request.comparisons)
        values = [self._value(shown, request) for shown in request.comparisons]
        if None in values:
            return UNPARSED
        return " > ".join(str(1 + i) for i in sorted(range(len(values)), key=lambda i: (-(values[i] or 0.0), i)))

    def _criticise(self, shown: ShownPair, request: ChatRequest) -> str:
        """The criticism of a judge without reasons: its mark."""
        mark = self._rate(shown, request)
        return "" if mark == UNPARSED else f"This answer gets {mark} of {1 + len(self.config.rating_thresholds)}."

    def _value(self, shown: ShownPair, request: ChatRequest) -> float | None:
        """The utility of the output of `shown`, with bias and noise; None for no usable answer."""
        key = (request.annotator, shown.pair_id, shown.sample_index)
        if seeding.uniform(request.seed, "offline unparsed", *key) < self.config.unparsed_rate:
            return None
        role = self._noise(request.role)
        self._remember([shown])
        value = self._scores[shown.instruction.id, shown.first]
        value += role.length_bias * math.log((1 + _words(shown.first)) / (1 + RATED_WORDS))
        draw = max(seeding.uniform(request.seed, "offline rating", *key), 1e-12)
        return value + role.noise * request.temperature * (-math.log(-math.log(draw)) - EULER)

    def _choose(self, comparison: ShownPair, request: ChatRequest) -> bool | None:
        """True if the first is better, None for no usable answer. Dummies get a fixed answer."""
        if not comparison.pair_id:
            return True
        key = (request.annotator, comparison.pair_id, comparison.order, comparison.sample_index)
        if seeding.uniform(request.seed, "offline unparsed", *key) < self.config.unparsed_rate:
            return None
        return seeding.uniform(request.seed, "offline", *key) < self.first_is_better(
            comparison, request.role, request.temperature
        )

    def _remember(self, comparisons: Sequence[ShownPair]) -> None:
        """Score what has not been scored yet, all at once."""
        if len(self._scores) > REMEMBERED_SCORES:
            self._scores.clear()
        wanted = {
            (c.instruction.id, output): c.instruction
            for c in comparisons
            for output in ((c.first,) if c.order == ALONE else (c.first, c.second))
            if (c.instruction.id, output) not in self._scores
        }
        if wanted:
            scores = self.utility.score(list(wanted.values()), [output for _, output in wanted])
            self._scores.update((key, score.value) for key, score in zip(wanted, scores, strict=True))


def _completion(request: ChatRequest, text: str) -> Completion:
    prompt = request.prompt + "".join(message.content for message in request.messages)
    return Completion(text, _tokens(prompt), _tokens(text), price=0.0)


def _words(text: str) -> int:
    return len(text.split())


def _tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)
