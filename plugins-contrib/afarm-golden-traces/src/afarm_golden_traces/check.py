"""The check: walk a trace's quantities in order, and say at which a dump leaves, and what it fits.

Each quantity is held against its formula *on the dump's own values before it*. So after a departure, what follows from
the wrong value is right again, and a second mistake shows by itself. Gradients, and the second pass, are judged only if
nothing before them left: they are then others than the trace's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from afarm_golden_traces.causes import find_cause
from afarm_golden_traces.dumps import check_names, lay_out, lay_tokens
from afarm_golden_traces.model import Array
from afarm_golden_traces.places import describe
from afarm_golden_traces.quantities import PASSES, SAYS, Quantity, Values, adamw, norm_of
from afarm_golden_traces.traces import Trace, TraceError, load_trace

TOLERANCE = 1e-5

ByWeight = dict[str, Array]


@dataclass
class Departure:
    """A quantity that leaves: where, the values that differ most, its definition, a cause that fits."""

    quantity: str
    where: str
    trace: float
    dump: float
    definition: str
    cause: str
    suspects: list[str]
    """Quantities that it is made of and the dump does not have: the mistake may be in them."""


@dataclass
class Report:
    """Findings of a check: `departures` in order (empty: the dump follows the trace)."""

    method: str
    variant: str
    checked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def follows(self) -> bool:
        """True if no quantity leaves."""
        return not self.departures

    def __str__(self) -> str:
        name = f"{self.method}, variant {self.variant}" if self.variant else self.method
        lines = [f"{name}: {len(self.checked)} quantities checked, {len(self.missing)} not in the dump."]
        lines += [f"  not in the dump: {', '.join(self.missing)}"] if self.missing else []
        before = self.checked if self.follows else self.checked[: self.checked.index(self.departures[0].quantity)]
        listed = ", ".join(before) if len(before) < 13 else f"{len(before)} quantities, {before[0]} to {before[-1]}"
        lines += [f"  follow the trace: {listed}"] if before else []
        for one in self.departures:
            too = "" if one is self.departures[0] else " too, on the dump's own values before it"
            lines.append(f"✗ {one.quantity} leaves{too}{': ' + one.where if one.where else ''}.")
            lines.append(f"  most: trace {one.trace:.6g}, dump {one.dump:.6g}")
            lines.append(f"  definition: {one.definition}")
            lines += [f"  fits: {one.cause}"] if one.cause else []
            lacks = ", ".join(one.suspects)
            lines += [f"  the mistake may be in what it is made of and the dump lacks: {lacks}"] if lacks else []
        lines += ["All that was given follows the trace."] if self.follows else []
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def check(method: str, dump: Mapping[str, Any], variant: str = "", tolerance: float = TOLERANCE) -> Report:
    """Hold a dump against a method's trace. Values are lists, numpy arrays or torch tensors.

    Raises `TraceError` for an unknown method, variant or quantity, a wrong shape, or a value that is not finite.
    """
    if not 0 < tolerance < 1:
        raise TraceError(f"tolerance is {tolerance:g}: it is a relative error between 0 and 1, such as 1e-5")
    trace = load_trace(method, variant or str(dump.get("variant", "")))
    check_names(dump, trace)
    report = Walk(trace, dump, tolerance).run()
    for other in trace.method.variants if not report.follows else ():
        if Walk(load_trace(method, other), dump, tolerance, explains=False).run().follows:
            report.notes.append(f"All of the dump follows the variant {other}: check it with --variant {other}.")
    return report


class Walk:
    """One check. Quantities known so far are in `values`, the dump's own where it has them."""

    def __init__(self, trace: Trace, dump: Mapping[str, Any], tolerance: float, explains: bool = True):
        self.trace, self.dump, self.tolerance, self.explains = trace, dump, tolerance, explains
        self.settings = trace.hyperparameters
        named = {f"{name}_weights": weights for name, weights in trace.weights.items()}
        self.values = trace.method.start(trace.inputs, {**self.settings, **named})
        self.report = Report(trace.method.name, trace.variant)
        self.reads: dict[str, set[str]] = {}
        self.padded: dict[str, Array] = {}
        self.others = {n: q for n, q in trace.quantities.items() if not isinstance(q, dict) and "/" not in n}

    def run(self) -> Report:
        """Walk through all quantities."""
        for quantity in self.trace.method.before:
            self.meet(quantity, "", self.values)
        weights, history = dict(self.trace.weights["learned"]), list[ByWeight]()
        for prefix in PASSES:
            step = Values(self.values, weights=weights)
            for quantity in self.trace.method.each_pass:
                self.meet(quantity, prefix, step)
            if not self.report.follows:
                rest = [n for n in self.trace.quantities if n in self.dump and n not in self.report.checked]
                self.report.notes += [f"not judged, since they follow: {', '.join(rest[:3])} …"] if rest else []
                return self.report
            history.append(self.meet_gradients(prefix, history))
            self.reads[f"{prefix}gradient_norm"] = {f"{prefix}gradients"}
            norm = norm_of(history[-1])
            self.meet(Quantity("gradient_norm", (), SAYS["gradient_norm"], lambda v, norm=norm: norm), prefix, Values())
            weights = self.meet_parameters(prefix, weights, history)
            self.others |= {f"{name} of the first pass": step[name] for name in self.others if name in step}
        return self.report

    def is_close(self, found: Array, expected: Array) -> Array:
        """True where two values are equal to the tolerance, relative to the largest of the quantity."""
        scale = max(float(np.abs(expected).max(initial=0)), 0.1)
        return np.abs(found - expected) <= self.tolerance * (np.abs(expected) + scale)

    def meet(self, quantity: Quantity, prefix: str, values: Values) -> bool:
        """Compare a quantity of a formula, and go on with the dump's value; True unless it leaves."""
        name, reading = prefix + quantity.name, Values(values)
        expected = np.asarray(np.real(quantity.formula(reading)), dtype=float)
        self.reads.setdefault(name, {prefix + r if prefix + r in self.trace.quantities else r for r in reading.read})
        values[quantity.name] = expected
        if name not in self.dump:
            self.report.missing.append(name)
            return True
        if "token" in quantity.axes:
            found, known, padded = lay_tokens(name, self.dump[name], quantity, values[quantity.batch])
            self.padded[quantity.name] = padded
        else:
            found = lay_out(name, self.dump[name], expected, *quantity.axes)
            known = np.ones(expected.shape, dtype=bool)
        values[quantity.name] = np.where(known, found, expected)
        others = {**self.others, **{other: values[other] for other in self.others if other in values}}

        def where(wrong: Array) -> str:
            return describe(quantity, wrong, values, others)

        def cause(fits: Callable[[Any], bool]) -> str:
            return find_cause(quantity, Values(values), found, fits, others, self.padded)

        return self.compare(name, expected, found, known, quantity.says, where, cause)

    def compare(
        self, name: str, expected: Array, found: Array, known: Array, says: str, where: Any, cause: Any
    ) -> bool:
        """Compare two arrays where `known`, and note a departure; True if there is none."""
        self.report.checked.append(name)
        wrong = known & ~self.is_close(found, expected)
        if not wrong.any():
            return True

        def fits(candidate: Any) -> bool:
            return bool((self.is_close(found, np.broadcast_to(candidate, expected.shape)) | ~known).all())

        most = np.unravel_index(np.abs(np.where(wrong, found - expected, 0)).argmax(), expected.shape)
        text = cause(fits) if self.explains else ""
        if not text and (np.abs(found - expected) <= 2.0**-7 * np.abs(expected))[wrong].all():
            text = "near everywhere, as if computed in bfloat16 or float16: dump from float32"
        values = float(expected[most]), float(found[most])
        lacks = dict.fromkeys(self.lacking(name))
        self.report.departures.append(Departure(name, where(wrong), *values, says, text, [*lacks]))
        return False

    def lacking(self, name: str) -> Iterator[str]:
        """The quantities that one is made of and the dump does not have, back to those that it has."""
        for read in sorted(self.reads.get(name, ())):
            if read in self.report.missing:
                yield from (*self.lacking(read), read)

    def meet_weights(
        self, name: str, expected: ByWeight, causes: Callable[[], Iterator[tuple[str, ByWeight]]]
    ) -> ByWeight:
        """Compare values by weight, and return the dump's where it has them."""
        if name not in self.dump:
            self.report.missing.append(name)
            return expected
        given = self.read_weights(name, expected)

        def flat(by_weight: ByWeight) -> Array:
            return np.concatenate([by_weight[weight].ravel() for weight in given])

        def where(wrong: Array) -> str:
            labels = [weight for weight in given for _ in range(expected[weight].size)]
            names = list(dict.fromkeys(label for label, is_wrong in zip(labels, wrong, strict=True) if is_wrong))
            return f"{len(names)} of {len(given)} weights: {'all' if len(names) == len(given) else ', '.join(names)}"

        def cause(fits: Callable[[Any], bool]) -> str:
            right, found = flat(expected), flat(given)
            factor = float((right * found).sum()) / max(float((right * right).sum()), 1e-300)
            scaled = f"{factor:.6g} times the trace's" if abs(factor) > 1e-9 else "0 everywhere"
            named = next((text for text, candidate in causes() if fits(flat(candidate))), "")
            return named or (scaled if fits(factor * right) else "")

        known = np.ones(flat(expected).shape, dtype=bool)
        self.compare(name, flat(expected), flat(given), known, SAYS[name.removeprefix("second/")], where, cause)
        return {**expected, **given}

    def read_weights(self, name: str, expected: ByWeight) -> ByWeight:
        """Read what the dump has by weight. Raises `TraceError` for unknown names and wrong shapes."""
        known = ", ".join(expected)
        if not isinstance(self.dump[name], Mapping):
            raise TraceError(f"{name} must be an object, from names of weights to values: {known}.")
        for weight in self.dump[name]:
            if weight not in expected:
                raise TraceError(f"{name} has no weight {weight!r}. It has: {known}.")
        return {weight: lay_out(f"{name}/{weight}", v, expected[weight]) for weight, v in self.dump[name].items()}

    def meet_gradients(self, prefix: str, history: list[ByWeight]) -> ByWeight:
        """Compare the gradient of the loss."""
        name, limit = f"{prefix}gradients", self.settings["max_grad_norm"]
        self.reads[name] = {f"{prefix}loss"}
        expected: ByWeight = self.trace.quantities[name]

        def causes() -> Iterator[tuple[str, ByWeight]]:
            scales = [min(1.0, limit / (norm_of(g) + 1e-6)) for g in (expected, *history[-1:])]
            yield "clipped already: dump it before clipping", {w: g * scales[0] for w, g in expected.items()}
            for before, text in zip((1.0, *scales[1:]), ("", ", clipped,"), strict=False) if history else ():
                summed = {w: g + before * history[-1][w] for w, g in expected.items()}
                yield f"the gradient of the first pass{text} was not cleared", summed

        return self.meet_weights(name, expected, causes)

    def meet_parameters(self, prefix: str, weights: ByWeight, history: list[ByWeight]) -> ByWeight:
        """Compare the weights after the step that the dump's gradients make; return those to go on with."""
        settings = self.settings
        expected = adamw(weights, history, settings)
        self.reads[f"{prefix}parameters"] = {f"{prefix}gradients"}

        def causes() -> Iterator[tuple[str, ByWeight]]:
            yield "no step was taken", weights
            yield "gradients are not clipped", adamw(weights, history, {**settings, "max_grad_norm": np.inf})
            yield "a step up, not down", adamw(weights, [{w: -g for w, g in h.items()} for h in history], settings)
            yield "the optimiser's state is new", adamw(weights, history[-1:], settings)
            for name in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "learning_rate", "max_grad_norm"):
                for factor, text in ((1e-12, "0"), (0.5, "halved"), (2.0, "doubled"), (10.0, "ten times as large")):
                    yield f"{name} is {text}", adamw(weights, history, {**settings, name: factor * settings[name]})
            plain = adamw(weights, history, {**settings, "weight_decay": 0})
            yield "norms do not decay", {w: plain[w] if e.ndim == 1 else e for w, e in expected.items()}
            rate = settings["learning_rate"]
            decayed = {w: v * (1 - rate * settings["weight_decay"]) for w, v in weights.items()}
            yield "a step of SGD, not of AdamW", {w: v - rate * history[-1][w] for w, v in decayed.items()}

        return self.meet_weights(f"{prefix}parameters", expected, causes)
