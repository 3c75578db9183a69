"""Draw ortpipe's folders and their imports from the code: `python docs/house.py` writes docs/static/house.svg."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path(__file__).parent / "static" / "house.svg"
# The boxes from top to bottom, each with its left edge and width. A box imports only boxes of rows below it.
ROWS = (
    {"app": (20, 452), "compat": (480, 100), "sklearn": (590, 120), "federated": (720, 120)},
    {"flow": (80, 130), "bundle": (300, 130), "remote": (510, 130), "fast": (810, 130)},
    {"pipeline": (20, 130), "stages": (180, 760)},
    {"parallel": (60, 130), "metrics": (225, 130), "runtime": (540, 200)},
    {"data": (225, 290)},
    {"artifact": (60, 295), "autodiff": (810, 130)},
    {"graph": (415, 130)},
    {"base": (330, 300)},
)
ROW = {box: number for number, row in enumerate(ROWS) for box in row}
TOPS, HEIGHTS = (20, 110, 190, 360, 440, 520, 600, 680), (60, 46, 134, 60, 46, 46, 46, 46)
# Modules at the top of the package that are drawn with others; all that are in no box are in `base`.
WITH = {"artifact_folder": "artifact", "artifact_show": "artifact", "facts": "artifact"}
TITLES = {"base": "errors, settings, files, hashing, …", "artifact": "artifact, facts"}
# Guests are used only through the names in their __init__.py. Those inside of a box: left edge, top, width.
GUESTS = {"compat", "sklearn", "federated", "fast", "bundle", "autodiff", "parallel", "remote"}
INSIDE = {
    "commands": (28, 48, 76),
    "sweep": (108, 48, 50),
    "search": (162, 48, 50),
    "tracking": (216, 48, 60),
    "fit": (280, 48, 34),
    "inspection": (200, 296, 90),
    "drift": (318, 48, 36),
    "sources": (200, 271, 90),
    "restore": (200, 246, 90),
    "engines": (572, 250, 90),
    "c": (570, 388, 50),
    "xla": (630, 388, 80),
    "written": (425, 451, 80),
    "teacher": (240, 451, 76),
}
STAGES = {"convert": 245, "add_loss": 369, "penalty": 493, "derive": 617, "train": 741, "evaluate": 865}
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 15px; fill: #1f2328; text-anchor: middle }
  .small { font-size: 12px }
  .box { fill: #eaeef2; stroke: #59636e }
  .guest { fill: #ddf4ff; stroke: #0969da; stroke-width: 2 }
  path { fill: none; stroke: #59636e }
  #head { fill: #59636e; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .box { fill: #212830; stroke: #9198a1 }
    .guest { fill: #0c2d52; stroke: #4493f8 }
    path { stroke: #9198a1 }
    #head { fill: #9198a1 }
  }"""


def box_of(module: str) -> str:
    """Return the box of a module, such as `ortpipe.data.rows`."""
    first = module.split(".")[1]
    return first if first in ROW else WITH.get(first, "base")


def imports() -> dict[str, set[str]]:
    """Return, by box, the boxes that its modules import or, as catalogues do, name in a text."""
    arrows: dict[str, set[str]] = {box: set() for box in ROW}
    public = {alias.name: node.module for node in _imports(ROOT / "ortpipe" / "__init__.py") for alias in node.names}
    for path in sorted((ROOT / "ortpipe").glob("*/**/*.py")) + sorted((ROOT / "ortpipe").glob("[!_]*.py")):
        box = box_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        names = re.findall(r'"(ortpipe\.[a-z_]+)[.:]', path.read_text(encoding="utf-8"))
        for node in _imports(path):
            inside = [public.get(alias.name) or f"ortpipe.{alias.name}" for alias in node.names]
            names += inside if node.module == "ortpipe" else [node.module]
        arrows[box] |= {other for name in names if ROW[box] < ROW[other := box_of(name)]}
    return arrows


def _imports(path: Path) -> list[ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("ortpipe.")]


def shown(arrows: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return the arrows that do not follow from others."""

    def reached(box: str) -> set[str]:
        return arrows[box].union(*(reached(other) for other in arrows[box]))

    pairs = [(box, other) for box in ROW for other in ROW if other in arrows[box]]
    return [(a, b) for a, b in pairs if not any(b in reached(other) for other in arrows[a] - {b})]


def picture() -> str:
    """Return the SVG, for light and dark screens."""
    parts = [_arrow(*pair) for pair in shown(imports())]
    for box, number in ROW.items():
        (x, width), y, height = ROWS[number][box], TOPS[number], HEIGHTS[number]
        kind, title = "guest" if box in GUESTS else "box", TITLES.get(box, box)
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        baseline = y + (22 if box in ("app", "stages", "runtime") else height // 2 + 5)
        parts.append(f'<text x="{x + width // 2}" y="{baseline}">{escape(title)}</text>')
    parts += [f'<text x="{x}" y="238">{stage}</text>' for stage, x in STAGES.items()]
    for guest, (x, y, width) in INSIDE.items():
        parts.append(f'<rect class="guest" x="{x}" y="{y}" width="{width}" height="22" rx="4"/>')
        parts.append(f'<text class="small" x="{x + width // 2}" y="{y + 15}">{guest}</text>')
    lines = (
        "blue: used only through the names in its __init__.py",
        "arrows: imports; those that follow from others are left out",
    )
    parts += [f'<text class="small" x="780" y="{640 + 20 * n}">{line}</text>' for n, line in enumerate(lines)]
    head = '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    head += '<path id="head" d="M0,0 L8,4 L0,8 z"/></marker>'
    body = "\n".join([f"<style>{STYLE}\n</style>", f"<defs>{head}</defs>", *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 740" role="img">\n{body}\n</svg>\n'


def _arrow(box: str, other: str) -> str:
    (x, width), (to_x, to_width) = ROWS[ROW[box]][box], ROWS[ROW[other]][other]
    begin = min(max(to_x + to_width // 2, x + 30), x + width - 30)
    end = min(max(begin, to_x + 30), to_x + to_width - 30)
    top, bottom = TOPS[ROW[box]] + HEIGHTS[ROW[box]], TOPS[ROW[other]]
    middle = (top + bottom) // 2
    return f'<path d="M{begin},{top} C{begin},{middle} {end},{middle} {end},{bottom}" marker-end="url(#arrow)"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
