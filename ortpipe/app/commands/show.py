"""ortpipe show: a model as readable text or as a picture."""

import collections
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ortpipe.app.compose import Parser
from ortpipe.app.local_path import output_file
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.app.run.crate import UNLICENSED, write_crate
from ortpipe.app.table import section
from ortpipe.bounded import has_file
from ortpipe.bundle import DESCRIPTION, GRAPHS, changed_files, read_bundle, read_state
from ortpipe.errors import ConfigError, nearest
from ortpipe.files import atomic_write
from ortpipe.graph import all_nodes, read_apart, to_dot, to_mermaid, to_svg, to_text, type_of, without_metadata
from ortpipe.metrics.titles import label
from ortpipe.stages.convert.sources import FITTED

ABOUT = """Print a model's inputs, outputs, parameters, sizes, operators, state tensors, its lineage back to
the source, and its graph, or export its run. The key=value pairs say where a run is recorded, as
they did for the run itself."""
EXAMPLES = (
    "ortpipe show model.onnx",
    "ortpipe show outputs/runs/DATE/TIME --crate run.zip",
)
DIGEST_LETTERS = 12


def run(arguments: Sequence[str]) -> None:
    """Print one model."""
    parser = Parser("show", ABOUT, EXAMPLES)
    parser.add_argument("subject", metavar="FILE|RUN|DIGEST", help=f"{HELP}, or a bundle")
    parser.add_argument(
        "--stage", help="of a run: the stage whose result is shown, by default the last one; of a bundle: the graph"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything but the graph, as JSON")
    form.add_argument("--mermaid", action="store_true", help="the graph as a Mermaid flowchart")
    form.add_argument("--dot", action="store_true", help="the graph as Graphviz DOT")
    form.add_argument("--svg", metavar="PICTURE", help="draw the graph into this file, as a run does")
    form.add_argument("--crate", metavar="ARCHIVE", help="export a run as a Workflow Run RO-Crate, a .zip")
    parser.add_argument("--license", metavar="TEXT", help="of the crate: a URL or a sentence")
    options = parser.read(arguments)
    if options.license is not None and options.crate is None:
        rule, fix = "--license is the license of a crate.", "Add --crate FILE.zip."
        raise ConfigError(rule, got="no --crate", fix=fix)
    if options.crate is not None:
        archive = output_file(options.crate, "--crate", ".zip")
        print(f"crate    {write_crate(Path(options.subject), archive, options.license or UNLICENSED)}")
        return
    folder = Path(options.subject)
    bundle = read_bundle(folder) if has_file(folder, DESCRIPTION) else None
    if bundle is None:
        subject = find(options.subject, options.composed, options.stage)
    else:
        subject = _graph_of_bundle(folder, bundle, options.stage or "predict")
    parameters = tuple(subject.facts.get("parameters", ()))
    if options.mermaid:
        print(to_mermaid(subject.model, parameters), end="")
    elif options.dot:
        print(to_dot(subject.model, parameters), end="")
    elif options.svg is not None:
        picture = output_file(options.svg, "--svg", ".svg")
        print(f"picture  {atomic_write(picture, to_svg(subject.model, parameters))}")
    elif options.json:
        print(json.dumps(describe(subject) | ({} if bundle is None else {"bundle": bundle}), indent=1))
    else:
        print(_text(subject, () if bundle is None else _about_bundle(folder, bundle)), end="")


def describe(subject: FoundModel) -> dict[str, Any]:
    """Return the description of a model, without its graph, as JSON."""
    model, graph, facts = subject.model, subject.model.graph, subject.facts
    weights = {tensor.name for tensor in graph.initializer}
    trained = set(facts.get("parameters", ()))
    nodes = all_nodes(graph)
    return {
        "name": subject.name,
        "digest": subject.digest,
        "task": facts.get("task"),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "ir_version": model.ir_version,
        "bytes": model.ByteSize() + sum(array.nbytes for array in subject.weights.values()),
        "inputs": {v.name: type_of(v) for v in graph.input if v.name not in weights},
        "outputs": {v.name: type_of(v) for v in graph.output},
        "parameters": {t.name: _tensor(t) for t in graph.initializer if t.name in trained},
        "constants": {t.name: _tensor(t) for t in graph.initializer if t.name not in trained},
        "nodes": len(nodes),
        "operators": dict(sorted(collections.Counter(n.op_type for n in nodes).items(), key=lambda kv: (-kv[1], kv))),
        "tensors": {
            name: {"type": f"{array.dtype}{list(array.shape)}", "numbers": array.size, "bytes": array.nbytes}
            for name, array in subject.tensors.items()
        },
        "metrics": facts.get("metrics", {}),
        "lineage": [{k: v for k, v in record.items() if k != FITTED} for record in facts.get("lineage", [])],
    }


def _tensor(tensor: onnx.TensorProto) -> dict[str, Any]:
    count = math.prod(tensor.dims)
    size = math.ceil(count * ir.DataType(tensor.data_type).itemsize)
    return {"type": type_of(tensor), "numbers": count, "bytes": size}


def _graph_of_bundle(folder: Path, bundle: dict[str, Any], graph: str) -> FoundModel:
    """Return a graph of a bundle, with the arrays of its state."""
    if graph not in GRAPHS:
        raise ConfigError("--stage must be a graph of the bundle.", got=graph, fix=nearest(graph, GRAPHS))
    model, weights = read_apart(folder / f"{graph}.onnx")
    facts = {"task": bundle["predictions"][0].get("task")} if bundle["predictions"] else {}
    return FoundModel(f"{folder} ({graph})", model, weights, facts, read_state(folder, bundle))


def _about_bundle(folder: Path, bundle: dict[str, Any]) -> list[str]:
    """Return lines about a bundle: its optimizer and its origin, and whether its files are those of the export."""
    optimizer = ", ".join(f"{key} {value}" for key, value in bundle["optimizer"].items())
    about = {"onnxruntime": bundle["onnxruntime"], "optimizer": optimizer}
    about |= {key: str(value)[:32] for key, value in bundle["origin"].items()}
    changed, sizes = changed_files(folder, bundle), {name: _size(folder, name) for name in bundle["files"]}
    files = [[name, size or "missing", "changed" if size and name in changed else ""] for name, size in sizes.items()]
    return [*section("bundle", ([key, value] for key, value in about.items())), *section("files", files)]


def _size(folder: Path, name: str) -> str:
    return f"{(folder / name).stat().st_size:,} bytes" if has_file(folder, name) else ""


def _text(subject: FoundModel, about: Sequence[str] = ()) -> str:
    description = describe(subject)
    opsets = ", ".join(f"{domain} {version}" for domain, version in description["opsets"].items())
    lines = [
        subject.name,
        *([f"digest    {subject.digest}"] if subject.digest else []),
        f"model     {description['task'] or 'unknown to ortpipe'}; opset {opsets}; IR {description['ir_version']}; "
        f"{description['bytes']:,} bytes; {description['nodes']:,} nodes",
        f"operators {', '.join(f'{name} {count:,}' for name, count in description['operators'].items())}",
        *about,
        *section("inputs", ([name, kind] for name, kind in description["inputs"].items())),
        *section("outputs", ([name, kind] for name, kind in description["outputs"].items())),
    ]
    for title in ("parameters", "constants", "tensors"):
        lines += _tensor_table(title, description[title])
    metrics = description["metrics"].items()
    lines += section(
        "metrics",
        ([label(name, description["metrics"]), *(f"{k} {v:.6g}" for k, v in row.items())] for name, row in metrics),
    )
    lines += section("lineage", (_record(record) for record in description["lineage"]))
    return "\n".join([*lines, "", "graph", to_text(without_metadata(subject.model))])


def _record(record: dict[str, Any]) -> list[str]:
    details = {k: v for k, v in record.items() if k not in ("stage", "version", FITTED)}
    details |= {"origins": f"of {', '.join(details['origins'])}"} if "origins" in details else {}
    shown = {k: v[:DIGEST_LETTERS] if k in ("input", "data") else v for k, v in details.items()}
    return [record["stage"], f"version {record['version']}", ", ".join(f"{k} {v}" for k, v in shown.items())]


def _tensor_table(title: str, tensors: dict[str, Any]) -> list[str]:
    rows = [[n, t["type"], f"{t['numbers']:,} numbers", f"{t['bytes']:,} bytes"] for n, t in tensors.items()]
    if len(rows) > 1:
        numbers, size = (sum(t[key] for t in tensors.values()) for key in ("numbers", "bytes"))
        rows.append(["together", "", f"{numbers:,} numbers", f"{size:,} bytes"])
    return section(title, rows)
