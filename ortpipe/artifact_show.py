"""Descriptions of an artifact: as text, and as HTML for notebooks."""

import html

from ortpipe.artifact import Artifact
from ortpipe.graph.core.selection import some
from ortpipe.graph.pictures.svg import to_svg


def about(artifact: Artifact) -> dict[str, str]:
    """Return a summary of an artifact by heading."""
    facts, trained = artifact.facts, [n for n in artifact.facts.parameters if n in artifact.initializers]
    numbers = sum(artifact.initializers[name].size for name in trained)
    about = {
        "from the stage": str(facts.lineage[-1].get("stage", "")) if facts.lineage else "",
        "task": facts.task,
        "inputs": ", ".join(facts.inputs),
        "outputs": ", ".join(facts.outputs),
        "loss": facts.loss or "",
        "trained": f"{numbers:,} numbers in {len(trained)} parameters: {some(trained)}" if trained else "",
        **{f"test {name}": f"{row['trained']:.4g}" for name, row in facts.metrics.items() if "trained" in row},
    }
    return {key: value for key, value in about.items() if value}


def as_html(artifact: Artifact) -> str:
    """Return a summary and a picture of the graph."""
    shown = ((html.escape(key), html.escape(value)) for key, value in about(artifact).items())
    cells = "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in shown)
    graph = to_svg(artifact.apart()[0], artifact.facts.parameters)
    return f"<table>{cells}</table><details><summary>graph</summary>{graph}</details>"
