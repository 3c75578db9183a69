"""What is said of a PyTorch source, where torch may be missing."""

import importlib.util

import pytest

from ortpipe import own_code
from ortpipe.app.consent import executes
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.stages.convert.sources import SOURCES, torch_module


def without(monkeypatch, *names):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest))


@pytest.mark.parametrize("settings", [{}, {"module": "nets:Net", "path": "net.pt2"}])
def test_a_source_is_a_module_or_a_file(settings):
    with pytest.raises(ConfigError, match="either an import path"):
        SOURCES["torch"](**settings)


def test_what_only_files_can_is_refused(monkeypatch):
    monkeypatch.setattr(torch_module, "check_installed", lambda: None)
    with pytest.raises(ConvertError, match=r"(?s)lift is for files.*got: False"):
        SOURCES["torch"](path="net.pt2", lift=False)(None, "float32")


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    without(monkeypatch, "torch", "onnxscript")
    with pytest.raises(ConfigError) as refusal:
        SOURCES["torch"](module="nets:Net")
    assert (refusal.value.got, refusal.value.fix) == ("no package torch, onnxscript", "pip install 'ortpipe[torch]'")


def test_a_record_that_names_a_module_asks_before_it_runs_its_code():
    assert executes({"convert": {"source": {"module": "nets:Net"}}}, "/there") == [
        "convert.source.module=nets:Net, whose module is looked for in /there first"
    ]


def test_an_instance_stands_for_the_code_of_the_module_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "instances_of_ours.py").write_text("import functools\n\nready = functools.partial(print)\n")
    assert callable(own_code.load("instances_of_ours:ready"))
    before = own_code.code(own_code.loaded("instances_of_ours:ready"))
    assert before == own_code.code(importlib.import_module("instances_of_ours"))
