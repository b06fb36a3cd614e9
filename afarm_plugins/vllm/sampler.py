"""Sampling from a policy on a vLLM server, and the proof that the server holds the policy's weights.

After each new adapter, each outage and each set of samples the server must give the policy's own log-probabilities
after fixed texts. Servers have served stale and half-loaded weights without an error (vLLM issues 48312 and 32718; tied
heads that a reload did not change), and PPO on such samples learns less, for no visible reason.
"""

from __future__ import annotations

import hashlib
import math
import operator
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from afarm import Decoding, Instruction, ModelError, seeding
from afarm.backend import (
    CheckpointPolicy,
    Generation,
    LowRankUpdate,
    all_gather_object,
    evaluating,
    hidden_states,
    is_sharded,
    pad,
    position_limit,
    project,
    rank,
)
from afarm_plugins.vllm.server import Refused, VllmServer

if TYPE_CHECKING:
    from afarm_plugins.vllm.engine import VllmEngine

FIXED = (
    ("Name three primary colours.", "The three primary colours are red, yellow and blue."),
    ("What is 17 times 3?", "17 times 3 is 51."),
    ("Write a haiku about rain.", "Soft rain on the roof / a quiet song without words / the garden listens"),
    ("Translate 'good morning' into French.", "In French one says: « Bonjour »."),
    ("Why is the sky blue?", "Air scatters short waves of light more than long ones."),
    ("Sort these numbers: 9, 2, 7.", "2, 7, 9"),
    ("Give a synonym of 'rapid'.", "quick, swift or speedy"),
    ("Complete: for i in range(10):", "    print(i ** 2)"),
)
"""The instructions and responses of the proof, in the policy's own template."""

LONGEST = 128
"""Tokens of each that are read."""

CUTS = 8
"""Places in each at which the next token's log-probabilities are compared."""

TOGETHER = 2
"""Neighbouring places whose rounding errors count as one draw."""

DOUBT = 5.0
"""Standard errors by which a server must be nearer to other weights to be said to hold them."""

MUCH_NEARER = 0.6
"""The distance to other weights must then also be below this share of the distance to the policy's.

Rounding of the weights themselves is the same after all texts, so no standard error shows it: with the right weights a
real server in bfloat16 was nearer to those of a step before by up to 3.1 standard errors, at 0.77 of the distance.
"""

VOCABULARY_TEXT = " Zwölf Boxkämpfer jagen 1,234.5 foxes—naïve\n\tif x != y: 猫 🦊 <|end|> don't w1 w2"
"""A text that the tokenizers of policy and server must encode alike."""

AHEAD = 4
"""Requests queued ahead of the one being yielded, in multiples of the requests in flight."""

KEPT_PROOFS = 3
"""Earlier weights that a server is compared with: the last ones it has held."""

DRAWS = 3
"""Attempts at a response while the adapter is missing."""


class OtherWeights(ModelError):
    """The server gives other log-probabilities than the policy."""


@dataclass(frozen=True)
class Proof:
    """Beginnings of fixed texts, and the policy's log-probabilities [N, V] of the next token."""

    prompts: Sequence[Sequence[int]]
    logprobs: torch.Tensor
    tolerance: float

    def difference(self, likeliest: Sequence[Mapping[int, float]]) -> float:
        """Compute the mean difference of a drawn token's log-probabilities over all texts.

        Tokens are weighted by the mean of both probabilities: unlikely ones differ in half precision by rounding alone,
        and a server with other weights draws what the policy never would.
        """
        apart = []
        for own, top in zip(self.logprobs, likeliest, strict=True):
            if max(top) >= len(own):
                return math.inf
            pair = torch.stack([own[list(top)], torch.tensor(list(top.values()))])
            apart.append((pair.exp().mean(0) * (pair[0] - pair[1]).abs()).sum())
        return float(torch.stack(apart).mean())

    def nearer(self, likeliest: Sequence[Mapping[int, float]], other: Proof) -> float:
        """Compute by how many standard errors the server is nearer to these weights than to the `other` ones.

        Negative if it is nearer to the others. Compares squared distances of log-probabilities, weighted by the
        server's probabilities. Rounding favours either at random, so over all texts a much smaller difference shows.
        """
        margins = []
        for own, known, top in zip(self.logprobs, other.logprobs, likeliest, strict=True):
            said = torch.tensor(list(top.values()))
            ours, theirs = (values[list(top)] - said for values in (own, known))
            margins.append((said.exp() * (theirs.square() - ours.square())).sum())
        draws = torch.stack(margins).double().unflatten(0, (-1, TOGETHER)).sum(1)
        error = float(draws.std()) / math.sqrt(len(draws))
        return float(draws.mean()) / error if error else 0.0


def proved_sampler(engine: VllmEngine, policy: CheckpointPolicy) -> VllmSampler:
    """Make a sampler of the policy once the server has proved its weights, else raise `ModelError`.

    A collective if the policy is sharded: the main process hands over adapters and proves first, then the others prove.
    """
    proof, updates = make_proof(policy, engine), policy.updates
    if hasattr(policy.model, "peft_config") and not updates:
        raise ModelError(
            "a vLLM server takes low-rank adapters only. For Quark, whose token embeddings are trained too, --set "
            "quark.variant=top; or sample by torch (--set backend.sampler=torch)"
        )
    earlier = [  # weights that the texts distinguish from these
        known
        for known in engine.proofs
        if proof.prompts == known.prompts and not torch.equal(proof.logprobs, known.logprobs)
    ]
    prepared = partial(VllmSampler, engine, policy, proof, earlier)
    by_this = partial(proved_by_handing_over, engine, policy, updates, prepared)
    sampler = proved_to_each(by_this, prepared) if is_sharded(policy.model) else by_this()
    engine.proofs = [*earlier, proof][-KEPT_PROOFS:]
    return sampler


def proved_to_each(
    by_main_process: Callable[[], VllmSampler], prepared: Callable[[Adapter | None], VllmSampler]
) -> VllmSampler:
    """Make the main process's sampler first, then the others', with the adapter that it handed over."""
    sampler: VllmSampler | None = None
    failure: Exception | None = None
    if rank() == 0:
        try:
            sampler = by_main_process()
        except Exception as error:  # of any kind: the others are waiting
            failure = error
    adapter, told = all_gather_object((sampler.adapter if sampler else None, str(failure) if failure else None))[0]
    if failure is not None:
        raise failure
    if told is not None:
        raise ModelError(told)
    if sampler is None:
        sampler = prepared(adapter)
        sampler.prove()
    return sampler


def proved_by_handing_over(
    engine: VllmEngine,
    policy: CheckpointPolicy,
    updates: Sequence[LowRankUpdate],
    prepared: Callable[[Adapter | None], VllmSampler],
) -> VllmSampler:
    """Hand over the updates that the server lacks, and have it prove the policy's weights.

    The server's weights may contain the first so many updates; the rest then become one adapter. The proof shows how
    many, beginning with the number of last time.
    """
    places = range(len(updates) - hasattr(policy.model, "peft_config"), -1, -1)
    others: list[OtherWeights] = []
    for place in sorted(places, key=lambda place: place != engine.place):
        adapter = hand_over(updates[place:], engine.directory) if place < len(updates) else None
        sampler = prepared(adapter)
        try:
            sampler.prove()
        except OtherWeights as error:
            others.append(error)
        engine.keep(adapter)
        if sampler.proofs:
            engine.place = place
            return sampler
    raise others[0]


def make_proof(policy: CheckpointPolicy, engine: VllmEngine) -> Proof:
    """Read the fixed sequences with the policy as it is now. A collective if it is sharded."""
    longest = min(LONGEST, position_limit(policy.model) or LONGEST)
    pairs, _ = policy.encode([Instruction(asked) for asked, _ in FIXED], [answer for _, answer in FIXED], longest)
    sequences = [[*prompt, *response] for prompt, response in pairs]
    ends = [[max(1, len(sequence) * cut // CUTS) for cut in range(1, CUTS + 1)] for sequence in sequences]
    place = next(policy.model.parameters()).device  # the host, if a launch that shards keeps it there
    ids, mask = pad(sequences, policy.pad_id, "right", place)
    with torch.no_grad(), evaluating(policy.model):  # inference_mode would spoil what shards are gathered into
        hidden = hidden_states(policy.model, ids, mask)
        last = torch.stack([row[[end - 1 for end in own]] for row, own in zip(hidden, ends, strict=True)]).flatten(0, 1)
        logprobs = project(policy.model, last).float().log_softmax(-1).cpu()
    prompts = [sequence[:end] for sequence, own in zip(sequences, ends, strict=True) for end in own]
    tolerance = engine.config.tolerance if is_exact(policy) else engine.config.half_tolerance
    return Proof(prompts, logprobs, tolerance)


def is_exact(policy: CheckpointPolicy) -> bool:
    """Tell if the policy computes in float32, as a server with --dtype float32 does."""
    weights = next(policy.model.parameters())
    return weights.dtype == torch.float32 and not torch.is_autocast_enabled(weights.device.type)


# ------------------------------------------------------------------------------------------------------------ adapters


@dataclass(frozen=True)
class Adapter:
    """An adapter's files, and the name that digests them."""

    name: str
    directory: Path


def hand_over(updates: Sequence[LowRankUpdate], directory: Path) -> Adapter:
    """Save the sum of `updates` into `directory` as an adapter, in a folder by its name."""
    unnamed = Path(tempfile.mkdtemp(prefix="new-", dir=directory))
    unnamed.chmod(0o755)  # the server may be another user's
    reduce(operator.add, updates).save(unnamed)
    whole = hashlib.blake2b(digest_size=12)
    for file in sorted(unnamed.iterdir()):
        file.chmod(0o644)
        whole.update(file.name.encode() + file.read_bytes())
    adapter = Adapter(f"afarm-{whole.hexdigest()}", directory / f"afarm-{whole.hexdigest()}")
    with suppress(OSError):  # it is there already, with the same content
        unnamed.rename(adapter.directory)
    shutil.rmtree(unnamed, ignore_errors=True)
    return adapter


# ------------------------------------------------------------------------------------------------------------ sampling


class VllmSampler:
    """A sampler of one policy's weights: the server's own, or with an `adapter`.

    Each response is a request seeded by (seed, key, sample number), so it depends on no other, up to the last bits that
    batches change. In float32 it has the server's log-probabilities, proved to be the policy's; else none.
    """

    def __init__(
        self,
        engine: VllmEngine,
        policy: CheckpointPolicy,
        proof: Proof,
        earlier: Sequence[Proof],
        adapter: Adapter | None,
    ):
        self.engine = engine
        self.earlier = earlier
        self.server: VllmServer = engine.server
        self.proof = proof
        self.adapter = adapter
        self.eos_ids = policy.eos_ids
        self.is_exact = is_exact(policy)
        self.bias = dict.fromkeys(map(str, policy.tokenizer.convert_tokens_to_ids(list(policy.control_tokens))), -100.0)
        self.vocabulary = policy.tokenizer.encode(VOCABULARY_TEXT, add_special_tokens=False)
        self.source = str(getattr(policy.model.config, "name_or_path", "") or "the policy's directory")
        self.model = ""
        self.longest = 0
        self.proofs = 0  # that the server has given of these weights
        self._proved_at = -1  # the outages when it last was
        self._proving = threading.Lock()

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[str], decoding: Decoding, *, seed: int
    ) -> Iterator[Generation]:
        copies = decoding.n if decoding.temperature == 0 else 1  # greedy samples of a prompt are equal
        rows = [(i, sample) for i in range(len(prompts)) for sample in range(decoding.n // copies)]
        needed = max(map(len, prompts), default=0) + decoding.max_new_tokens
        if needed > self.longest:
            raise ModelError(self._too_short(needed))
        held: Generation | None = None
        for generation in self._draw_rows([(prompts[i], (seed, keys[i], sample)) for i, sample in rows], decoding):
            for _ in range(copies):
                if held is not None:
                    yield held
                held = generation
        if held is not None:
            self.prove()  # that it held these weights to the end
            yield held

    def _too_short(self, needed: int) -> str:
        return (
            f"prompt and response may have {needed} tokens, and the vLLM server at {self.server.url} takes "
            f"{self.longest}: start it with --max-model-len {needed}"
        )

    def _draw_rows(
        self, rows: Sequence[tuple[Sequence[int], tuple[int, str, int]]], decoding: Decoding
    ) -> Iterator[Generation]:
        """Sample the rows (prompt, draw), several at once, and yield them in order."""
        workers = self.engine.config.max_concurrency
        pool = ThreadPoolExecutor(workers, thread_name_prefix="vllm")
        begun: deque[Future[Generation]] = deque()
        try:
            for prompt, draw in rows:
                begun.append(pool.submit(self._draw, prompt, draw, decoding))
                if len(begun) >= AHEAD * workers:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _draw(self, prompt: Sequence[int], draw: tuple[int, str, int], decoding: Decoding) -> Generation:
        """Ask for one response, once more if the server has lost the adapter meanwhile."""
        seed, key, sample = draw
        settings: Mapping[str, Any] = {
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            # Explicit, or the server would use the model's generation config.
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seeding.integer(seed, "sample", key, sample) % 2**63,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,  # only these end a response
            "stop_token_ids": self.eos_ids,
            **({"logit_bias": self.bias} if self.bias else {}),
        }
        for attempt in range(DRAWS):
            proofs = self.proofs
            try:
                (choice,) = self.server.complete(self.model, list(prompt), **settings)
                break
            except Refused as error:
                if error.status != 404 or attempt + 1 == DRAWS:
                    raise
                with self._proving:
                    if self.proofs == proofs:
                        self._prove()
        with self._proving:
            if self._proved_at < self.server.outages:
                self._prove()
        return self._generation(choice, decoding)

    def _generation(self, choice: Mapping[str, Any], decoding: Decoding) -> Generation:
        """Read one of the server's choices. Raises `ModelError` if it is not as requested."""
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
            raise ModelError(
                f"the vLLM server at {self.server.url} gives no token ids with a log-probability each: version 0.10 or "
                "later does"
            )
        is_ended = bool(ids) and ids[-1] in self.eos_ids
        if not is_ended and len(ids) < decoding.max_new_tokens:
            raise ModelError(
                f"the vLLM server at {self.server.url} ended a response after {len(ids)} of {decoding.max_new_tokens} "
                f"tokens, though no end-of-sequence token is there (it says {choice.get('finish_reason')!r})"
            )
        return Generation(ids, logprobs if self.is_exact else None, "stop" if is_ended else "length")

    # ----------------------------------------------------------------------------------------------------- the proof

    def prove(self) -> None:
        """Have the server load the adapter if need be, and prove that it holds these weights.

        Raises `ModelError` naming what differs: the version, the tokenizer, the weights.
        """
        with self._proving:
            self._prove()

    def _prove(self) -> None:
        outages = self.server.outages
        self.engine.require_version()
        models = self.server.models()
        base, names = models[0], {model["id"] for model in models}
        if self.server.tokenize(VOCABULARY_TEXT) != self.vocabulary:
            raise ModelError(
                f"the vLLM server at {self.server.url} has another tokenizer than the policy: it serves {base['id']}. "
                f"Start it with the policy's model: vllm serve {self.source}"
            )
        if self.adapter is not None and self.adapter.name not in names:
            self.server.load_adapter(self.adapter.name, str(self.adapter.directory))
        self.longest = int(base["max_model_len"])
        self.model = self.adapter.name if self.adapter else base["id"]
        self._require_same_weights(base["id"])
        self._proved_at = outages
        self.proofs += 1

    def _require_same_weights(self, base: str) -> None:
        proof = self.proof
        if (needed := 1 + max(map(len, proof.prompts))) > self.longest:
            raise ModelError(self._too_short(needed))
        likeliest = self.server.likeliest(self.model, proof.prompts)
        difference = proof.difference(likeliest)
        if difference <= proof.tolerance:
            self._require_no_earlier_weights(likeliest, base)
            return
        held = f"the adapter {self.model} on {base}" if self.adapter else base
        setting = "vllm.tolerance" if self.is_exact else "vllm.half_tolerance"
        raise OtherWeights(
            f"the vLLM server at {self.server.url} holds other weights than the policy: with {held}, "
            f"log-probabilities after fixed texts differ by {difference:.2g} per token, and {proof.tolerance:g} is "
            f"tolerated ({setting}). Start it with the policy's model and precision: vllm serve {self.source} --dtype "
            f"{'float32' if self.is_exact else 'bfloat16'}; weights that change in training are taken as adapters "
            "(lora) alone"
        )

    def _require_no_earlier_weights(self, likeliest: Sequence[Mapping[int, float]], base: str) -> None:
        """Raise `OtherWeights` if the server is clearly nearer to weights that it held before."""
        distance = self.proof.difference(likeliest)
        for known in self.earlier:
            nearer = self.proof.nearer(likeliest, known)
            if nearer < -DOUBT and known.difference(likeliest) < MUCH_NEARER * distance:
                raise OtherWeights(
                    f"the vLLM server at {self.server.url} holds earlier weights of this run: for {self.model} on "
                    f"{base} its log-probabilities after fixed texts are nearer to those of a step before than to the "
                    f"policy's, by {-nearer:.0f} standard errors. Start the server again; the same command then goes on"
                )
