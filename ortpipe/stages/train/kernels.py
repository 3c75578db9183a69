"""Updates that ONNX Runtime's training build has a kernel for: one node in place of twelve."""

import functools

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.builder import Builder
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.library import about
from ortpipe.runtime.session import Session
from ortpipe.stages.train.links import Inputs, Link, Outputs

DOMAIN = "com.microsoft"


def adam_kernel(beta1: float, beta2: float, epsilon: float, weight_decay: float = 0.0) -> Link:
    """The whole of Adam or AdamW: θ ← θ − η·(m̂ / (√v̂ + ε) + λ·θ), of float32.

    It computes what `scale_by_adam` and `decay` write as standard operators, with the corrections of the means by
    themselves; both keep the same state, so that one continues what the other began.
    """

    def update(op: Builder, x: Inputs) -> Outputs:
        op.graph.opset_imports[DOMAIN] = 1
        rate, number = x.scalars
        numbers = {"alpha": beta1, "beta": beta2, "epsilon": epsilon, "lambda": weight_decay}
        attributes = {name: ir.AttrFloat32(name, value) for name, value in numbers.items()}
        step = op.Cast(number, to=ir.DataType.INT64)
        operands = (rate, step, x.theta, x.u, *x.state)
        following = op.AdamOptimizer(*operands, outputs=4, domain=DOMAIN, do_bias_correction=1, **attributes)
        for value, like in zip(following, (step, *x.state, x.theta), strict=True):
            value.type, value.shape = like.type, like.shape
        counted, mean, squares, theta = following
        op.graph.outputs.append(counted)  # the kernel writes t + 1 over its input t, which all updates read, if it can
        return theta, (mean, squares)

    scalars = {"rate": lambda rates, steps: rates, "step": lambda rates, steps: steps}
    return Link(update, ("mean", "squares"), scalars, replaces=True)


def has_adam_kernel(runtime: RuntimeConfig | None) -> bool:
    """Return whether this onnxruntime runs `adam_kernel` where `runtime` says."""
    runtime = runtime or RuntimeConfig()
    there = (runtime.engine, runtime.provider) == ("onnxruntime", "cpu")
    return there and about().builds_gradients and _runs_adam()


@functools.cache
def _runs_adam() -> bool:
    text = f"""<ir_version: 8, opset_import: ["": 17, "{DOMAIN}": 1]>
        g (float r, int64 s, float[2] w, float[2] g, float[2] m, float[2] v) => (float[2] new) {{
        next, mean, squares, new = {DOMAIN}.AdamOptimizer<do_bias_correction = 1>(r, s, w, g, m, v) }}"""
    try:
        Session(onnx.parser.parse_model(text))
    except ModelError:
        return False
    return True
