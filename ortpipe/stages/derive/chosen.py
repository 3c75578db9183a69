"""The parameters and inputs that a config names, adapters, and parameters that no gradient reaches."""

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph

from ortpipe.errors import DeriveError
from ortpipe.facts import Facts
from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.choice.readers import UseFinder
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.selection import sentence, some
from ortpipe.graph.forms.adapters import ROUNDS, insert, why_not
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.lora import Lora
from ortpipe.stages.derive.stage import CUT, Seeded, Trained


def chosen_by_config(
    graph: Graph, target: Seeded, facts: Facts, config: DeriveConfig, candidates: Sequence[str]
) -> Trained:
    """Choose parameters among the candidates, and the inputs with gradients; put adapters into the graph."""
    inputs = selection.select(config.inputs, facts.inputs, DeriveError, "inputs")
    initializers = {str(name) for name in graph.initializers}
    chosen = [name for name in candidates if name in facts.parameters and config.adapters is None]
    if config.parameters is not None:
        chosen = selection.select(config.parameters, candidates, DeriveError, "parameters", initializers)
    frozen = set(selection.select(config.frozen, candidates, DeriveError, "frozen", initializers))
    chosen = [name for name in chosen if name not in frozen]
    if not chosen and not inputs and config.adapters is None:
        rule, why = "At least one parameter must be trained.", choose(graph, target.total).untrained
        fix = f"Name some in {{at}}parameters{', or shorten {at}frozen' if config.frozen else ''}."
        reasons = {name: why.get(name, "frozen") for name in candidates}
        raise DeriveError(rule, got=sentence([], reasons), fix=fix)
    unnamed = "by default" if config.parameters is None else "not in derive.parameters"
    untrained = {n: "derive.frozen" if n in frozen else unnamed for n in candidates if n not in chosen}
    if config.frozen and target.statistics:
        _check_frozen(config, [*chosen, *untrained], target.statistics)
    choice = Trained(chosen, inputs, untrained)
    return choice if config.adapters is None else adapt(graph, choice, facts, config.adapters)


def reject_infinite(graph: Graph, parameters: Sequence[str]) -> NoReturn:
    """Raise for parameters that start from nan or infinity: the first step would give nan."""
    wrong = [name for name in parameters if not np.isfinite(query.array(graph.initializers[name])).all()]
    rule, fix = "What is trained starts from finite numbers.", "Leave them out with {at}frozen."
    raise DeriveError(rule, got=f"nan or infinite values in {some(wrong)}", fix=fix)


def _check_frozen(config: DeriveConfig, names: Sequence[str], statistics: Collection[str]) -> None:
    """Reject frozen running statistics: they follow the batches in any case."""
    for pattern in config.frozen:
        if statistics and {*selection.matches(pattern, names)} <= {*statistics}:
            rule = "{at}frozen leaves parameters as they are; running statistics follow the batches all the same."
            fix = "Leave it out, or set training_mode=0 in the model's layer (eval() of a PyTorch layer)."
            raise DeriveError(rule, got=f"{pattern!r}, which matches running statistics alone", fix=fix)


def without_cut(choice: Trained, cut: Sequence[str], config: DeriveConfig) -> Trained:
    """Return the choice without parameters that no gradient reaches; raise DeriveError if the config names them.

    A value that is only rounded, compared or counted on its way to the loss has no gradient.
    """
    inputs, names = choice.inputs, (*choice.parameters, *choice.inputs)
    named = [name for name in cut if config.parameters is not None or name in inputs]
    if named or len(cut) == len(names):
        raise DeriveError(
            "The loss must depend on everything that is trained.",
            got=f"no gradient for {', '.join(map(repr, named or cut))}: a node without a derivative cuts it off",
            fix=f"Leave it out of {{at}}{'inputs' if set(named) <= {*inputs} else 'parameters'}."
            if named
            else "Name another output in {at}output.",
        )
    parameters = [name for name in choice.parameters if name not in cut]
    return choice._replace(parameters=parameters, untrained={**choice.untrained, **dict.fromkeys(cut, CUT)})


def sentence_of(choice: Trained, tensors: Mapping[str, ir.TensorProtocol | None], facts: Facts) -> str:
    """Return a sentence on the trained parameters, which convert has not chosen."""
    if choice.adapters:
        return adapters_note(choice, tensors)
    added = [name for name in choice.parameters if name in facts.constants]
    also = f"; only because derive.parameters says so: {some(added)}" if added else ""
    return sentence(choice.parameters, choice.untrained) + also


def adapt(graph: ir.Graph, choice: Trained, facts: Facts, lora: Lora) -> Trained:
    """Put adapters into a graph beside weights that are not trained; return the choice with their matrices.

    Raises:
        DeriveError: a weight that is named in full gets none, or none gets one.
    """
    candidates = [name for name, reason in choice.untrained.items() if reason != "derive.frozen"]
    finder = UseFinder(graph)
    targets = [name for name in candidates if name in facts.parameters]
    if lora.targets is not None:
        targets = selection.select(lora.targets, candidates, DeriveError, "adapters.targets")
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
