"""Low-rank adapters: the weights that get one, and the note on them."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.facts import Facts
from ortpipe.graph.choice.choice import some
from ortpipe.graph.choice.readers import UseFinder
from ortpipe.graph.core import globs
from ortpipe.graph.forms.adapters import ROUNDS, insert, why_not
from ortpipe.stages.derive.config import Lora
from ortpipe.stages.derive.stage import CUT, Trained


def adapt(graph: ir.Graph, choice: Trained, facts: Facts, lora: Lora) -> Trained:
    """Put adapters into a graph beside weights that are not trained; return the choice with their matrices.

    Raises:
        DeriveError: a weight that is named in full gets none, or none gets one.
    """
    candidates = [name for name, reason in choice.untrained.items() if reason != "derive.frozen"]
    finder = UseFinder(graph)
    targets = [name for name in candidates if name in facts.parameters]
    if lora.targets is not None:
        targets = globs.select(lora.targets, candidates, DeriveError, "adapters.targets")
    reasons = {name: why_not(graph.initializers[name], finder, lora.rank) for name in targets}
    without = {name: reason for name, reason in reasons.items() if reason is not None}
    chosen = [name for name in targets if name not in without]
    if misfits := [name for name in lora.targets or () if name in without] or (list(without) if not chosen else []):
        rounded = any(ROUNDS in without[name] for name in misfits)
        raise DeriveError(
            "An adapter stands beside a weight of MatMul, Gemm or Conv that is larger than itself.",
            key="adapters",
            got="; ".join(f"{name}: {without[name]}" for name in misfits[:3]),
            fix="Leave out {@convert.quantize} or {key}: what is rounded to integers takes no adapter."
            if rounded
            else "Name others in {key}.targets, lower {key}.rank, or train without a penalty: it reads weights, too.",
        )
    if not chosen:
        rule, fix = "There is a weight to adapt.", "Name some in {key}.targets."
        raise DeriveError(rule, key="adapters", got="none", fix=fix)
    rng = np.random.default_rng(lora.seed)
    adapters = insert(graph, chosen, lora.rank, (lora.alpha or lora.rank) / lora.rank, rng)
    matrices = [name for adapter in adapters.values() for name in (adapter.left, adapter.right)]
    return choice._replace(parameters=[*choice.parameters, *matrices], adapters=adapters, unadapted=without)


def adapters_note(choice: Trained, tensors: Mapping[str, ir.TensorProtocol | None]) -> str:
    """Return a sentence on the weights that adapters replace, and on the other trained parameters."""
    sizes, adapters = {name: tensor.size for name, tensor in tensors.items() if tensor is not None}, choice.adapters
    cut = {name: CUT for name, adapter in adapters.items() if adapter.right in choice.untrained}
    matrices = [name for adapter in adapters.values() for name in (adapter.left, adapter.right)]
    text = (
        f"trains adapters of {sum(sizes[name] for name in matrices):,} numbers in the place of weights of "
        f"{sum(sizes[name] for name in adapters):,}, which stay until they are merged: {some(list(adapters))}"
    )
    beside = [name for name in choice.parameters if name not in matrices]
    text += f"; trains as they are {some(beside)}" if beside else ""
    reasons: dict[str, list[str]] = {}
    for name, reason in {**choice.unadapted, **cut}.items():
        reasons.setdefault(reason, []).append(name)
    whys = ", ".join(f"{some(names)} ({reason})" for reason, names in reasons.items())
    return text + (f"; trains neither {whys}" if whys else "")
