"""Operators of a PyTorch program that behave differently in training: restored where export drops them, else noted."""

import copy
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from ortpipe.errors import ConfigError, ConvertError
from ortpipe.graph.core.selection import some

PACKAGES = ("torch", "onnxscript")
FLAGS = ("train", "training")  # arguments that switch an operator to training
NO_FORM = ("alpha_dropout", "feature_alpha_dropout", "rrelu")  # in training mode
LAYERS = ("dropout", "feature_dropout", "batch_norm")  # which a program exported in inference mode still has
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def check_installed() -> None:
    """Raise if packages are missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "A PyTorch source needs PyTorch and its ONNX exporter.",
            got=f"no package {', '.join(missing)}",
            fix="pip install 'ortpipe[torch]'",
        )


def torch() -> Any:
    """Import torch."""
    check_installed()
    import torch

    return torch


def check_momentum(module: Any) -> None:
    """Reject running statistics that are means over all batches so far: ONNX has a fixed momentum only."""
    nn = torch().nn
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    layers = [(name, m) for name, m in module.named_modules() if isinstance(m, norm) and m.training]
    if means := [name or "the module" for name, m in layers if m.momentum is None and m.track_running_stats]:
        raise ConvertError(
            "A batch norm's running statistics need a momentum.",
            got=f"momentum=None, the mean of all batches, in {some(means)}",
            fix="Give momentum a number, such as 0.1, or call .eval() on that layer.",
        )


class Modes:
    """The nodes of a program with a training mode."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.nodes = _mode_flags(program.graph)

    def restore(self) -> list[str]:
        """Switch a program that was exported in inference mode to training, in place; return notes."""
        if not self.nodes or any(flag for _, _, flag in self.nodes):
            return []
        changed = [(node, place) for node, place, _ in self.nodes if _name(node) in LAYERS]
        for node, place in changed:
            node.update_arg(place, True)
        self._program.graph_module.recompile()
        self.nodes = _mode_flags(self._program.graph)
        names = [_name(node) for node, _ in changed]
        counts = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
        return [
            f"was exported in inference mode: training restores {', '.join(counts)}; what a module leaves out in that "
            "mode, such as dropout within attention, is not in the program: export it in training mode"
        ]

    def inference(self) -> Callable[..., Any]:
        """Return the program as a module in inference mode."""
        module = copy.deepcopy(self._program).module(check_guards=False)
        for node, place, flag in _mode_flags(module.graph):
            if flag:
                node.update_arg(place, False)
        for node in _calls(module.graph):
            if _name(node) == "scaled_dot_product_attention" and _argument(node, "dropout_p")[1]:
                node.update_arg(_argument(node, "dropout_p")[0], 0.0)
        module.recompile()
        return module

    def notes(self) -> list[str]:
        """Return notes about layers that do not train, or not as in PyTorch."""
        norms = [(node, flag) for node, _, flag in self.nodes if _name(node) == "batch_norm"]
        frozen = [self._layer(node) for node, flag in norms if not flag]
        batches = [self._layer(node) for node, flag in norms if flag and _argument(node, "running_mean")[1] is None]
        inactive = [node for node, _, flag in self.nodes if "dropout" in _name(node) and not flag]
        names = [(node, _name(node)) for node, *_ in self.nodes]
        recurrent = [name for node, name in names if name in RECURRENT and _argument(node, "dropout")[1]]
        notes = {
            f"keeps batch norm frozen, as the module has it: {some(frozen)}": frozen,
            f"normalizes by the statistics of each batch in inference too: {some(batches)} keeps no others": batches,
            f"drops nothing in {len(inactive)} dropout layers, which the module has in inference mode": inactive,
            f"drops nothing between the layers of {some(recurrent)}: ONNX has no such dropout": recurrent,
        }
        return [note for note, layers in notes.items() if layers]

    def check_supported(self) -> None:
        """Reject operators whose training mode has no ONNX form, before export writes something else."""
        training = [(node, _name(node)) for node, _, flag in self.nodes if flag and _name(node) in NO_FORM]
        if unsupported := [name for node, name in training if name == "rrelu" or _argument(node, "p")[1]]:
            raise ConvertError(
                "A module's operations in training must have a form in ONNX.",
                got=some(list(dict.fromkeys(unsupported))),
                fix="Use nn.Dropout, or nn.LeakyReLU; or call .eval() on that layer, to keep it in inference mode.",
            )

    def with_plain_dropout(self) -> Any:
        """Return the program with dropout of channels, and within attention, written as plain dropout."""
        aten = torch().ops.aten
        program = copy.deepcopy(self._program)
        graph = program.graph
        for node in [n for n in _calls(graph) if _name(n) == "feature_dropout" and _argument(n, "train")[1]]:
            x, p = node.args[0], _argument(node, "p")[1]
            with graph.inserting_before(node):
                sizes = [graph.call_function(aten.sym_size.int, (x, axis)) for axis in range(2)]
                ones = [1] * (x.meta["val"].dim() - 2)
                ones = graph.call_function(aten.new_ones.default, (x, [*sizes, *ones]))
                mask = graph.call_function(aten.dropout.default, (ones, p, True))
                masked = graph.call_function(aten.mul.Tensor, (x, mask))
            node.replace_all_uses_with(masked)
            graph.erase_node(node)
        program.graph_module.recompile()
        return program.run_decompositions({aten.scaled_dot_product_attention.default: _attention})

    def _layer(self, node: Any) -> str:
        """Return the name of a batch norm's layer."""
        by_input = {s.arg.name: str(s.target) for s in self._program.graph_signature.input_specs if s.target}
        keys = [by_input[value.name] for value in node.args if getattr(value, "name", None) in by_input]
        return keys[0].rpartition(".")[0] if keys else str(node.name)


def translations() -> dict[Any, Callable[..., Any]]:
    """Return translations of operators that the exporter would write without their training behaviour."""
    from onnxscript import opset18 as op

    def batch_norm(
        x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, m: float, eps: float
    ) -> Any:
        zeros = op.CastLike(op.ConstantOfShape(op.Shape(x, start=1, end=2)), x)
        scale = op.Exp(zeros) if weight is None else weight
        shift = zeros if bias is None else bias
        momentum = {"epsilon": eps, "momentum": 1 - m}
        if not training:
            y = op.BatchNormalization(x, scale, shift, mean, variance, **momentum)
            return y, mean, variance, mean, variance
        y, *moved = op.BatchNormalization(x, scale, shift, mean, variance, training_mode=1, **momentum)
        return (y, *moved, *moved)

    return {torch().ops.aten._native_batch_norm_legit_functional.default: batch_norm}


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · Q·Kᵀ + mask) · V with dropout of the softmax, which the exporter would omit."""
    if not dropout_p or enable_gqa:
        return NotImplemented
    scores = torch().matmul(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1))
    if is_causal:
        attn_mask = torch().ones(scores.shape[-2:], dtype=torch().bool, device=query.device).tril()
    if attn_mask is not None:
        masked = attn_mask.dtype == torch().bool
        scores = scores.masked_fill(~attn_mask, -torch().inf) if masked else scores + attn_mask
    return torch().matmul(torch().nn.functional.dropout(torch().softmax(scores, -1), dropout_p, True), value)


def _calls(graph: Any) -> list[Any]:
    """Return the calls of ATen's operators, each of which is one overload."""
    return [node for node in graph.nodes if node.op == "call_function" and hasattr(node.target, "overloadpacket")]


def _mode_flags(graph: Any) -> list[tuple[Any, int, bool]]:
    """Return the nodes with a training flag: node, position of that argument, and its value."""
    flagged = []
    for node in _calls(graph):
        for name in FLAGS:
            place, value = _argument(node, name)
            if place is not None and len(node.args) > place:
                flagged.append((node, place, bool(value)))
    return flagged


def _argument(node: Any, name: str) -> tuple[Any, Any]:
    """Return the position and value of an operator's argument; (None, None) if there is no such argument."""
    arguments = _arguments(node.target)
    if name not in arguments:
        return None, None
    place = [*arguments].index(name)
    return place, node.args[place] if len(node.args) > place else node.kwargs.get(name, arguments[name])


@functools.cache
def _arguments(operator: Any) -> dict[str, Any]:
    """Return an operator's arguments with their defaults, in order; None if there is no default."""
    from torch.fx.operator_schemas import get_signature_for_torch_op

    [signature] = get_signature_for_torch_op(operator)
    return {name: None if a.default is a.empty else a.default for name, a in signature.parameters.items()}


def _name(node: Any) -> str:
    """Return an operator's name without the underscore of in-place variants."""
    return str(node.target.name().partition("::")[2].partition(".")[0]).rstrip("_")
