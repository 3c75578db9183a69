"""Copies of OmegaConf's configs in a fraction of the time: Hydra makes several of the whole config for each job."""

import copy
from typing import Any

from omegaconf import AnyNode, BooleanNode, DictConfig, FloatNode, IntegerNode, ListConfig, StringNode
from omegaconf.base import Metadata, Node

VALUES = (AnyNode, BooleanNode, FloatNode, IntegerNode, StringNode)


def copy_fast() -> None:
    """Let `copy.deepcopy` of a config do so."""
    for kind in (DictConfig, ListConfig):
        kind.__deepcopy__ = _copy  # type: ignore[assignment, method-assign]


def _copy(node: Any, memo: dict[int, Any]) -> Any:
    """Return a node and all below it anew, as OmegaConf does: values, and the parent of the first one, are shared."""
    return _below(node, node._get_parent(), memo)


def _below(node: Node, parent: Node | None, memo: dict[int, Any]) -> Node:
    state = vars(node)
    kind, before = type(node), state["_parent"]
    if kind not in (DictConfig, ListConfig, *VALUES):  # an enumeration, say, which knows how to copy itself
        state["_parent"] = None
        try:
            other: Node = copy.deepcopy(node, memo)
        finally:
            state["_parent"] = before
        vars(other)["_parent"] = parent
        return other
    new = object.__new__(kind)
    copied = vars(new)
    copied.update(state, _metadata=_metadata(state["_metadata"]), _parent=parent, _flags_cache=None)
    match state.get("_content"):
        case dict() as content:
            copied["_content"] = {key: _below(value, new, memo) for key, value in content.items()}
        case list() as content:
            copied["_content"] = [_below(value, new, memo) for value in content]
    return new


def _metadata(metadata: Metadata) -> Metadata:
    new = object.__new__(type(metadata))
    vars(new).update(
        {
            name: value if not isinstance(value, dict) else copy.deepcopy(value) if value else copy.copy(value)
            for name, value in vars(metadata).items()
        }
    )
    return new
