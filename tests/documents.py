"""The README and the pages of docs/, in the order in which a reader runs their commands."""

from __future__ import annotations

from command import ROOT

README = ROOT / "README.md"
ORDER = """
    learn/table learn/onnx_file learn/pytorch_module
    howto/run howto/continue howto/errors howto/table howto/large_file howto/images howto/audio howto/predict
    howto/serve howto/gradient explanation/caching howto/cache howto/reproduce howto/sweep howto/search howto/cluster
    howto/workers howto/restore howto/mlflow howto/gates howto/retrain howto/export
    howto/javascript howto/page howto/federated howto/microcontroller
    explanation/trust howto/fit howto/distill howto/python howto/sklearn howto/onnxcustom howto/network howto/pytorch
    howto/onnx_file howto/parameters howto/heads howto/pipeline howto/lora howto/memory howto/precision
    reference/catalogues howto/evaluate howto/own_loss howto/own_data_source howto/own_optimizer
    reference/operators reference/estimators
    explanation/flow explanation/architecture explanation/epoch explanation/determinism howto/xla howto/c
    explanation/alternatives explanation/glossary reference/support reference/api gallery
"""
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ORDER.split())]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))  # tests/recipes runs their commands
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
