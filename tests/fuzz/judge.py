"""What a derivative is held against, and the outcome.

f is run by onnx's own evaluator in float64: ⟨u, f(θ + hv)⟩ − ⟨u, f(θ − hv)⟩ over 2h, with random u and v for each
source, at two steps h, which agree where there is a slope. Then the same derivative graph, made of the float64 model,
in that evaluator (the rules alone), and in onnxruntime in float32 (what is shipped), entry by entry; and a backward
pass that computes forward values again (derive.checkpointing) beside the plain one, and PyTorch's gradients in float64
where it is installed and has the operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx

import ortpipe
from fuzz import oracle, thrift
from fuzz.draw import Case
from fuzz.reference import Reference, as_double, distance
from ortpipe.errors import OrtpipeError
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

AGREE = "agrees"
FAILURES = (
    "gradient differs",
    "runtime differs",
    "not a refusal",
    "does not load",
    "does not run",
    "checkpointing differs",
    "torch differs",
    "killed",
)
NO_REFUSAL = ("must pass onnx.checker", "must have an equivalent there")  # an error of what ortpipe wrote itself
STEP, CORNER, RULE, RUNTIME = 4e-5, 1e-4, 1e-5, 5e-3  # relative to the largest entry, or to 1
TORCH = 1e-6  # ONNX rounds attributes, and Selu's and HardSwish's numbers, to float32
SINGLE, IN_SINGLE = 1e-3, ("GroupNormalization", "LayerNormalization", "RMSNormalization")  # bodies cast to float32
RESULT = {"vjp": "{}_grad", "jvp": "{}_tangent", "hvp": "{}_hvp"}
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a graph ended, and the words for it."""

    kind: str
    said: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is a fault."""
        return self.kind in FAILURES


def judge(case: Case, *, thrifty: bool = True) -> Outcome:
    """Return the outcome of a case; `thrifty` says whether checkpointing is tried, and PyTorch asked, too."""
    outcome = _judged(case)
    if not thrifty or outcome.kind != AGREE or case.kind != "vjp":
        return outcome
    for kind, apart, most in (
        ("checkpointing differs", thrift.apart(case), RULE),
        ("torch differs", oracle.apart(case), TORCH),
    ):
        if apart is not None and not apart < most:
            return Outcome(kind, f"{apart:.2g}")
    return outcome


def _judged(case: Case) -> Outcome:
    if not case.wrt:
        return Outcome("nothing to differentiate")
    try:
        onnx.checker.check_model(case.model, full_check=True)
    except Exception as error:  # noqa: BLE001 - the checker and the inference raise several
        return Outcome("not a model", str(error))
    double = as_double(case.model)
    sources = {t.name: onnx.numpy_helper.to_array(t) for t in double.graph.initializer if t.name in case.wrt}
    feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in case.feeds.items()}
    try:
        forward = Reference(double)
        outputs = dict(zip(case.of, forward.run(feeds, case.of), strict=True))
    except Exception as error:  # noqa: BLE001 - NumPy's errors
        return Outcome("no reference", str(error))
    if any(not np.isfinite(y).all() for y in outputs.values()):
        return Outcome("no reference", "not finite")
    try:
        model = ortpipe.gradient(case.model, case.of, case.wrt, kind=case.kind)
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        if isinstance(error, OrtpipeError) and not any(rule in str(error) for rule in NO_REFUSAL):
            return Outcome("refused by name", str(error))
        return Outcome("not a refusal", f"{type(error).__name__}: {error}")
    seeds = _seeds(case, {**feeds, **sources}, outputs)
    try:
        return _compared(case, model, double, forward, {**feeds, **seeds}, sources, outputs)
    except Exception as error:  # noqa: BLE001 - an operator that NumPy or float64 has not
        return Outcome("no reference", f"{type(error).__name__}: {error}")


def _seeds(case: Case, held: Arrays, outputs: Arrays) -> dict[str, np.ndarray]:
    """Return the cotangents and the tangents that the kind of derivative asks for, in numbers of float32."""
    rng = np.random.default_rng(5)

    def drawn(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {k: rng.uniform(0.5, 1.5, v.shape).astype(np.float32).astype(np.float64) for k, v in values.items()}

    cotangents = {f"{k}_grad": v for k, v in drawn(outputs).items()}
    tangents = {f"{k}_tangent": v for k, v in drawn({n: held[n] for n in case.wrt}).items()}
    return {"vjp": cotangents, "jvp": tangents, "hvp": {**cotangents, **tangents}}[case.kind]


def _compared(case, model, double, forward, feeds, sources, outputs) -> Outcome:  # type: ignore[no-untyped-def]
    names = [RESULT[case.kind].format(n) for n in (case.of if case.kind == "jvp" else case.wrt)]
    try:
        graph = ortpipe.gradient(double, case.of, case.wrt, kind=case.kind)
        exact = dict(zip(names, Reference(graph).run(_fed(graph, feeds), names), strict=True))
    except Exception as error:  # noqa: BLE001 - an operator without float64, or not in onnx.reference
        exact, why = None, str(error)
    if exact is not None:
        error, corner = _error(case, forward, feeds, sources, outputs, exact, double)
        if corner:
            return Outcome("no slope here")
        if not error < (SINGLE if any(n.op_type in IN_SINGLE for n in case.model.graph.node) else RULE):
            return Outcome("gradient differs", f"{error:.2g} off the differences")
    single = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in feeds.items()}
    try:
        got = Session(lowered(case.model)).run({k: single[k] for k in case.feeds}, case.of)
    except OrtpipeError as error:
        return Outcome("no kernel for the forward", str(error))
    apart = np.max([distance(a, outputs[n]) for a, n in zip(got, case.of, strict=True)])  # nan where one is
    if not apart < RUNTIME:
        return Outcome("forward differs", f"{apart:.2g} between the runtime and onnx.reference")
    try:
        session = Session(model)
    except OrtpipeError as error:
        return Outcome("does not load", str(error))
    try:
        found = dict(zip(names, session.run(_fed(model, single), names), strict=True))
    except OrtpipeError as error:
        return Outcome("does not run", str(error))
    if exact is None:
        wide = {k: v.astype(np.float64) for k, v in found.items()}
        error, corner = _error(case, forward, feeds, sources, outputs, wide, double)
        if corner:
            return Outcome("no slope here")
        return Outcome(AGREE, f"differences only: {why}") if error < RUNTIME else Outcome("gradient differs", why)
    apart = np.max([distance(found[n], exact[n]) for n in names])
    return Outcome(AGREE) if apart < RUNTIME else Outcome("runtime differs", f"{apart:.2g} from onnx.reference")


def _fed(model: onnx.ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    return {i.name: feeds[i.name] for i in model.graph.input if i.name in feeds}


def _error(case, forward, feeds, sources, outputs, exact, double) -> tuple[float, bool]:  # type: ignore[no-untyped-def]
    """Return the largest error of directional derivatives, and whether two steps disagree on one."""
    rng, held, worst, corner = np.random.default_rng(7), {**feeds, **sources}, 0.0, False
    if case.kind == "hvp":
        slope = ortpipe.gradient(double, case.of, case.wrt)
        forward, wanted = Reference(slope), [f"{n}_grad" for n in case.wrt]
        pairs = [({n: feeds[f"{n}_tangent"] for n in case.wrt}, {n: exact[f"{n}_hvp"] for n in case.wrt})]
    elif case.kind == "jvp":
        wanted = list(case.of)
        pairs = [({n: feeds[f"{n}_tangent"] for n in case.wrt}, {n: exact[f"{n}_tangent"] for n in case.of})]
    else:
        wanted = list(case.of)
        pairs = []
        for n in case.wrt:
            direction = np.asarray(rng.choice([-1, 1], held[n].shape) * rng.uniform(0.5, 1, held[n].shape))
            pairs.append(({n: direction}, {n: exact[f"{n}_grad"] * direction}))
    inputs = {i.name for i in double.graph.input} | set(sources)
    fed = {k: v for k, v in feeds.items() if k in inputs or k.endswith("_grad")}
    fed = {k: v for k, v in fed.items() if case.kind == "hvp" or not k.endswith("_grad")}
    for directions, result in pairs:
        slopes = []
        for step in (STEP, STEP / 4):
            ends = []
            for sign in (1, -1):
                moved = {n: np.asarray(held[n] + sign * step * d) for n, d in directions.items()}
                ends.append(forward.run({**fed, **moved}, wanted))
            slopes.append([(a - b) / (2 * step) for a, b in zip(*ends, strict=True)])
        scale = max(1.0, *(float(np.abs(v).max(initial=0)) for v in [*slopes[0], *exact.values()]))
        if max(float(np.abs(a - b).max(initial=0)) for a, b in zip(*slopes, strict=True)) > CORNER * scale:
            corner = True
            continue
        slopes[0] = [(16 * b - a) / 15 for a, b in zip(*slopes, strict=True)]  # Richardson: no error of h²
        if case.kind == "vjp":
            total = sum(float(np.sum(feeds[f"{n}_grad"] * d)) for n, d in zip(case.of, slopes[0], strict=True))
            size = max(1.0, *(float(np.sum(np.abs(r))) for r in result.values()))
            error = abs(total - sum(float(r.sum()) for r in result.values())) / size
        else:
            error = float(np.max([distance(np.asarray(r), d) for r, d in zip(result.values(), slopes[0], strict=True)]))
        worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst, corner and worst < RULE
