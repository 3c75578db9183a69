"""The README and the pages of docs/, in the order in which a reader runs their commands."""

from __future__ import annotations

from command import ROOT

README = ROOT / "README.md"
ORDER = (
    *(
        "tutorial",
        "running",
        "tables",
        "gradient",
        "store",
        "sweeps",
        "restore",
        "recording",
        "trust",
        "python",
        "earlier",
    ),
    *(
        "networks",
        "pytorch",
        "models",
        "catalogues",
        "extending",
        "operators",
        "estimators",
        "architecture",
        "epoch",
        "alternatives",
        "api",
    ),
)
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ORDER)]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
