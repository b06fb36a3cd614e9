"""The judges of a run: made from their specs, and asked on the run's account."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial

from afarm.core.errors import StoreError, attribute_failures
from afarm.core.judge import Completion, Judge
from afarm.experiment.components import Components
from afarm.judging.client import JudgeClient, Spend
from afarm.judging.database import Place, is_there, redact_place
from afarm.judging.ledger import Ledger
from afarm.judging.pricing import Prices
from afarm.judging.rate_limit import Limiter
from afarm.judging.return_checks import identify_judge, require_judge
from afarm.storage.artifacts import Store
from afarm.storage.text import dollars


class Judges:
    """The judge of each family role, and the one metered way to ask them."""

    def __init__(self, components: Components, store: Store, ledger_place: Place | None = None):
        """Without a place of its own, the ledger is a file in the store."""
        self.ledger_place = store.ledger_path if ledger_place is None else ledger_place
        self._components = components
        self._store = store
        self._made: dict[str, Judge] = {}
        self._limiters: dict[Judge, Limiter] = {}
        self.asked: dict[str, set[str]] = {}
        """The family roles that annotators ask, by their names, as the checks before a run have seen."""
        self.artifact = ""
        """The name of the artifact that is being made, to whose account answers go; empty if none is."""

    @cached_property
    def specs(self) -> dict[str, str]:
        """The spec of each family role's judge, and of those that annotators with a file name in it."""
        run, annotator = self._components.settings.run, self._components.annotator
        labels = "" if run.preferences else run.annotate.annotator
        names = [name for name in (labels, run.evaluate.annotator) if ":" in name]
        return {spec: spec for name in dict.fromkeys(names) for spec in annotator(name).judges} | run.judge

    @cached_property
    def by_role(self) -> dict[str, Judge]:
        """The judge of each of `specs`; equal ones share one."""
        return {role: self.judge(spec) for role, spec in self.specs.items()}

    def answering(self, annotators: Collection[str] = ()) -> dict[str, Judge]:
        """Return the judges by family role that these annotators ask, or the run's; all if that is not known."""
        names = annotators or [*self.asked]
        if not names or not self.asked.keys() >= {*names}:
            return self.by_role
        roles = {role if role in self.by_role else "*" for name in names for role in self.asked[name]}
        return {role: judge for role, judge in self.by_role.items() if role in roles}

    @property
    def identities(self) -> dict[str, str]:
        """The identity of the judge of each family role."""
        return {role: identify_judge(judge) for role, judge in sorted(self.by_role.items())}

    def judge(self, spec: str) -> Judge:
        """Return the judge of a spec, such as "openai:gpt-4.1", with a rate limit for it. Made once."""
        if spec in self._made:
            return self._made[spec]
        run = self._components.settings.run
        name, _, argument = spec.partition(":")
        component, limiter = self._components.component("judges", name), Limiter(run.max_concurrency)
        price = partial(Prices(run.prices, run.price).of, spec)
        context = replace(self._components.context(component), price=price, allowed=limiter.allowed)
        cls, config = component.load(), self._components.settings.of(component)
        with attribute_failures("judges", name, cls):
            judge = require_judge(cls(argument, config, context), name)
        self._made[spec], self._limiters[judge] = judge, limiter
        return judge

    @cached_property
    def client(self) -> JudgeClient:
        """The client that meters every request: the `ask` of every context."""
        settings = self._components.settings
        run = settings.run
        return JudgeClient(
            self.by_role,
            self.ledger,
            run=settings.run_name(self._components.plugins.registry),
            max_concurrency=run.max_concurrency,
            budget=run.budget,
            allow_degraded=run.allow_degraded,
            batch_api=run.batch_api,
            batch_poll_seconds=run.batch_poll_seconds,
            limiters=self._limiters,
            stage=lambda: self.artifact,
        )

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of what was paid and learned.

        Raises `StoreError` if it is gone while artifacts are there that answers were paid for.
        """
        _require_ledger(self.ledger_place, self._store)
        return Ledger(self.ledger_place)

    @property
    def spend(self) -> Spend | None:
        """The cost of the judges so far, None before the first was asked."""
        return self.client.spend if "client" in self.__dict__ else None

    @property
    def committed(self) -> float:
        """The dollars of this run that are spent or may be."""
        return self.ledger.committed(self.client.run) if self._is_ledger_there else 0.0

    @property
    def slowed(self) -> list[str]:
        """Say which judges ask to slow down, and what is waited for."""
        limiters = {judge.identity: limiter.state for judge, limiter in list(self._limiters.items())}
        return [f"{name} {state}" for name, state in limiters.items() if state]

    @property
    def refusals(self) -> int:
        """The number of requests that judges have refused for now (429 and the like)."""
        return sum(limiter.refusals for limiter in list(self._limiters.values()))

    @contextmanager
    def charge_artifact(self, artifact: str) -> Iterator[None]:
        """Charge the requests inside to the artifact of this name."""
        self.artifact = artifact
        try:
            yield
        finally:
            self.artifact = ""

    def spent_on(self, artifact: str) -> Mapping[str, float]:
        """Return what an artifact has cost, also in processes that were stopped while they made it."""
        return self.ledger.stage_spend(artifact) if self._is_ledger_there else {}

    @property
    def _is_ledger_there(self) -> bool:
        return "ledger" in self.__dict__ or is_there(self.ledger_place)

    def close(self) -> None:
        """Stop the client's thread and close the ledger. Both are opened again when they are needed."""
        for name in ("client", "ledger"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()


def stored_answers(ledger_place: Place, keys: Sequence[str]) -> Mapping[str, Completion]:
    """Return those answers of judges that the ledger has under these keys; none without a ledger."""
    if not keys or not is_there(ledger_place):
        return {}
    with Ledger(ledger_place) as ledger:
        return ledger.completions(keys)


def _require_ledger(place: Place, store: Store) -> None:
    """Raise `StoreError` if the ledger is missing or empty while artifacts are there that were paid for.

    Those of a shared store may have been paid for by others, whose ledger need not be this machine's.
    """
    if store.shared is not None or is_there(place):
        return
    spends = [artifact.meta["spend"] for artifact in store.all()]
    paid = [spend for spend in spends if spend.get("dollars") or spend.get("unpriced_calls")]
    if paid:
        calls, spent = (sum(spend.get(name, 0) for spend in paid) for name in ("calls", "dollars"))
        ledger = redact_place(place)
        where = "" if place == store.ledger_path else f"--ledger {shlex.quote(ledger)} "
        raise StoreError(
            f"the ledger {ledger} is missing or empty, and {len(paid)} artifacts in {store.root} were made "
            f"with {calls:,} calls of judges for {dollars(spent)}: put it back, or name theirs with --ledger, or what "
            f"is needed of them is bought again. To begin a new one on purpose: `afarm ledger --start-anew "
            f"{where}--output-dir {shlex.quote(str(store.root))}`"
        )
