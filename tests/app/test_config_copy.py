"""Copies of configs are those that OmegaConf makes, and share nothing that can be changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.base import Node

from ortpipe.app.compose import packaged_conf
from ortpipe.app.config_copy import copy_fast


class Colour(Enum):
    RED = 1


@dataclass
class Typed:
    """A config with a type, as Hydra's own are."""

    number: int = 3
    maybe: float | None = None
    colour: Colour = Colour.RED
    either: int | str = "x"
    names: list[str] = field(default_factory=lambda: ["a"])
    file: Path = Path("x")
    data: bytes = b"x"


def of_ortpipe() -> DictConfig:
    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        return compose("config", return_hydra_config=True)


def of_all_kinds() -> DictConfig:
    values = {"missing": "???", "none": None, "ref": "${typed.number}", "deep": [{"a": [1, 2.5, True, None]}, "x"]}
    config = OmegaConf.create({**values, "typed": Typed(), "whole": "${deep}", "empty": {}, 3: "key"})
    config.nothing = DictConfig(None)
    config.no_list = ListConfig("???")
    OmegaConf.set_readonly(config.deep, True)
    OmegaConf.set_struct(config, True)
    return config


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (DictConfig, ListConfig):
        monkeypatch.setattr(kind, "__deepcopy__", kind.__deepcopy__)  # restored afterwards
    copy_fast()


def parts(node: Node, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all that a node and those below hold, by the path to each, but for what OmegaConf finds out anew."""
    state = {name: value for name, value in vars(node).items() if name not in ("_parent", "_flags_cache", "_content")}
    content = vars(node).get("_content")
    below = dict(enumerate(content)) if isinstance(content, list) else content
    yield path, {**state, "kind": type(node), "content": list(below) if isinstance(below, dict) else below}
    for name, value in below.items() if isinstance(below, dict) else ():
        assert value._get_parent() is node
        yield from parts(value, f"{path}/{name}")


@pytest.mark.parametrize("config", [of_ortpipe, of_all_kinds])
def test_a_copy_is_the_one_that_omegaconf_makes(config: Any, request: pytest.FixtureRequest) -> None:
    before = config()
    slow = copy.deepcopy(before)
    request.getfixturevalue("fast")
    new = copy.deepcopy(before)
    assert list(parts(new)) == list(parts(slow)) == list(parts(before))
    assert OmegaConf.to_yaml(new) == OmegaConf.to_yaml(slow)


def test_a_copy_shares_only_its_parent(fast: None) -> None:
    config = of_all_kinds()
    new = copy.deepcopy(config)
    shared = {id(node) for node in nodes(config)} & {id(node) for node in nodes(new)}
    shared |= {id(node._metadata) for node in nodes(config)} & {id(node._metadata) for node in nodes(new)}
    assert not shared
    with open_dict(new):
        new.typed.number, new.added = 4, 1
    assert (config.ref, new.ref, "added" in config) == (3, 4, False)
    part = copy.deepcopy(config.typed)
    assert part._get_parent() is config
    assert part == config.typed


def nodes(node: Node) -> Iterator[Node]:
    yield node
    content = vars(node).get("_content")
    for below in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from nodes(below)


def test_flags_and_what_resolvers_gave_are_a_copys_own(fast: None) -> None:
    config = OmegaConf.create({"a": {"b": 1}})
    OmegaConf.get_cache(config)["now"] = {"x": [1]}
    new = copy.deepcopy(config)
    assert OmegaConf.get_cache(new) == {"now": {"x": [1]}}
    OmegaConf.get_cache(new)["now"]["x"].append(2)
    OmegaConf.set_readonly(new, True)
    assert OmegaConf.get_cache(config) == {"now": {"x": [1]}}
    assert not OmegaConf.is_readonly(config)
    config.a.b = 2
    assert new.a.b == 1
