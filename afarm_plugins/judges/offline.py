"""A simulated judge: it answers from a stated utility, with noise, in the format that the prompt asked for.

It takes the place of an LLM so that prompts, parsers, the ledger and the accounts all run with no key. What wins under
it is what its utility rewards; it is never evidence of quality, and every report built on it says so.

    P(first is better) = sigmoid((U(first) - U(second) + b * log(words ratio)) / noise + position)

with noise, b and position by family role (design: the annotator statistics of AlpacaFarm, section 3).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from afarm.errors import DataError, JudgeError
from afarm.interfaces import BuildContext, RewardModel
from afarm.judges import Capabilities, ChatRequest, Comparison, Completion, Judge
from afarm.keyed import digest, uniform
from afarm.records import Instruction
from afarm_plugins.judges import OfflineConfig, RoleNoise

CHARACTERS_A_TOKEN = 4
REMEMBERED_SCORES = 65536
ROLES = ("strong", "light", "completion")


class OfflineJudge(Judge):
    """See the module. `spec`, where given, names the reward model that is the utility and overrides the config's.

    An answer about a comparison depends on the request's seed, the annotator, the pair, the order shown and the draw:
    not on what shares its batch, on concurrency or on restarts. At temperature 0 the better side always wins.
    """

    capabilities = Capabilities(chat=True, completion=True, temperature=True, logit_bias=True)
    simulated = True

    def __init__(self, spec: str, config: OfflineConfig | None, context: BuildContext):
        self.config = config or OfflineConfig()
        self.utility_name = spec or self.config.utility
        self._context = context
        self._utility: RewardModel | None = None
        self._scores: dict[tuple[str, str], float] = {}

    @property
    def utility(self) -> RewardModel:
        if self._utility is None:
            self._utility = self._context.reward_model(self.utility_name)
        return self._utility

    @property
    def identity(self) -> str:
        """The utility's name, and a digest of all settings and of the source of the judge and of its utility."""
        settings = self.config.model_dump(mode="json", exclude={"utility"})
        sources = [self._context.source, self._context.identify(self.utility_name)]
        return f"offline:{self.utility_name}@{digest(settings, sources, length=12)}"

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
        render = FORMATS.get(request.answer_format)
        if render is None:
            raise JudgeError(
                f"the offline judge has no answer format {request.answer_format!r}; it knows {', '.join(FORMATS)}"
            )
        self._remember([c for c in request.comparisons if c.pair_id])
        text = render([self._choose(comparison, request) for comparison in request.comparisons])
        asked = request.prompt + "".join(message.content for message in request.messages)
        return Completion(text, _tokens(asked), _tokens(text), price=0.0)

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.0

    def first_is_better(self, comparison: Comparison, role: str, temperature: float = 1.0) -> float:
        """The probability that this judge prefers the output shown first."""
        noise: RoleNoise = getattr(self.config, role) if role in ROLES else self.config.other
        self._remember([comparison])
        scores = self._scores
        key = comparison.instruction.id
        gap = scores[key, comparison.first] - scores[key, comparison.second]
        gap += noise.length_bias * math.log((1 + _words(comparison.first)) / (1 + _words(comparison.second)))
        logit = gap / noise.noise + noise.position_bias
        if temperature <= 0:
            return float(logit >= 0)
        return 0.5 * (1 + math.tanh(logit / temperature / 2))

    def _choose(self, comparison: Comparison, request: ChatRequest) -> bool | None:
        """Whether the first is better; None for no usable answer. Dummies that fill a batch get a fixed answer."""
        if not comparison.pair_id:
            return True
        key = (request.annotator, comparison.pair_id, comparison.order, comparison.draw)
        if uniform(request.seed, "offline unparsed", *key) < self.config.unparsed_rate:
            return None
        return uniform(request.seed, "offline", *key) < self.first_is_better(
            comparison, request.role, request.temperature
        )

    def _remember(self, comparisons: Sequence[Comparison]) -> None:
        """Score what has not been scored yet, all at once."""
        if len(self._scores) > REMEMBERED_SCORES:
            self._scores.clear()
        wanted = {
            (c.instruction.id, output): c.instruction
            for c in comparisons
            for output in (c.first, c.second)
            if (c.instruction.id, output) not in self._scores
        }
        if wanted:
            scores = self.utility.score(list(wanted.values()), [output for _, output in wanted])
            self._scores.update((key, score.value) for key, score in zip(wanted, scores, strict=True))


def _words(text: str) -> int:
    return len(text.split())


def _tokens(text: str) -> int:
    """An estimate: about four characters a token."""
    return math.ceil(len(text) / CHARACTERS_A_TOKEN)


# --------------------------------------------------------------------------------------- answers, as prompts ask for

_LABEL = {True: "Output (a)", False: "Output (b)", None: "I cannot choose."}
_REASON = {
    True: "The first output serves the instruction better.",
    False: "The second output serves the instruction better.",
    None: "I cannot choose.",
}


def _single(choices: Sequence[bool | None]) -> str:
    return _LABEL[choices[0]]


def _list(choices: Sequence[bool | None]) -> str:
    return "\n".join(f"{i}. {_LABEL[choice]}" for i, choice in enumerate(choices, start=1))


def _json(choices: Sequence[bool | None]) -> str:
    return json.dumps(
        [{"index": i, "explanation": _REASON[c], "first_is_better": c} for i, c in enumerate(choices, start=1)]
    )


FORMATS: dict[str, Callable[[Sequence[bool | None]], str]] = {"single": _single, "list": _list, "json": _json}
