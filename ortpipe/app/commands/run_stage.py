"""ortpipe run-stage: one stage on one file, without the others, a store or a record."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortpipe.app.assemble import open_run
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.lookup import find
from ortpipe.app.run.screen import Screen, table
from ortpipe.app.schema import all_at_once, check
from ortpipe.artifact import Artifact, Facts, save_artifact
from ortpipe.errors import ConfigError, nearest
from ortpipe.files import atomic_write
from ortpipe.flow import FLOW
from ortpipe.graph.apart import pieces
from ortpipe.graph.sound import is_large
from ortpipe.pipeline.events import StageProgressed
from ortpipe.pipeline.plan import Stage

ABOUT = """Run one stage on one file: its settings, and the data where it reads them, are those of a run with the same
key=value pairs. A model that ortpipe wrote says in its metadata what a stage must know, so a bare .onnx file is enough.
Nothing is stored or recorded."""


def run(arguments: Sequence[str]) -> None:
    """Run one stage."""
    parser = Parser("run-stage", ABOUT)
    parser.add_argument("stage", metavar="STAGE", help="convert, add_loss, penalty, derive, train or evaluate")
    parser.add_argument(
        "--input",
        metavar="FILE|FOLDER|RUN|DIGEST",
        help="a model as of ortpipe show; of a run, the result of the stage before; of convert any .onnx file, or none",
    )
    parser.add_argument("--output", required=True, metavar="FILE.onnx|FOLDER", help="a model, or a whole artifact")
    parser.add_argument("--force", action="store_true", help="write over an output that is there")
    given = parser.read(arguments)
    target = Path(given.output)
    _refuse_taken(target, given.force)
    composed = given.composed
    names = [stage.name for stage in FLOW]
    if given.stage not in names:
        raise ConfigError("STAGE is one of the flow's.", got=given.stage, fix=nearest(given.stage, names))
    place = names.index(given.stage)
    stage, artifact = FLOW[place], None
    if place == 0 and given.input is not None:
        settings = composed.values[stage.name]  # which reads this file; other settings of an .onnx source stay
        source = settings["source"] if settings["source"].get("name") == "onnx" else {"name": "onnx"}
        settings["source"] = {**source, "path": given.input}
    config, context = _settings(stage, composed)
    if place > 0:
        artifact = _artifact(given.input, composed, names[place - 1])
        if not artifact.tensors and place < len(names) - 1:
            artifact = _as_source(artifact)
        stage.refuse_early(artifact.facts, config, **context)
    begun = time.perf_counter()
    result = stage(artifact, config, **context)
    seconds = time.perf_counter() - begun
    _write(result, target)
    if result.facts.metrics:
        print(table(result), end="\n\n")
    print(f"{stage.name}  {result.node_count} nodes, {seconds:.2f} s, digest {result.digest()}")
    print(f"output  {target}")


def _settings(stage: Stage, composed: Composition) -> tuple[Any, dict[str, Any]]:
    """Return the stage's config and what it reads; errors in other parts of the config do not matter."""
    values, problems = check(composed.values)
    config, screen = values.get(stage.name), Screen()
    reads_data = "data" in stage.reads or ("data" in stage.takes and getattr(config, "check", False))
    needed = [stage.name, "runtime", *(["data"] if reads_data else []), *(["resume"] if "start" in stage.takes else [])]
    if wrong := [error for error in problems if str(error.key).partition(".")[0] in (*needed, "seed")]:
        raise all_at_once(wrong, composed.where)
    started = time.perf_counter()

    def report(progress: object) -> None:
        screen(StageProgressed(stage.name, progress, time.perf_counter() - started))

    return config, {
        "data": None,
        **open_run({name: values[name] for name in needed if name in values}),
        "report": report,
    }


def _artifact(name: str | None, composed: Composition, before: str) -> Artifact:
    if name is None:
        raise ConfigError(
            "A stage behind convert needs a model.", got="no --input", fix=f"Give the result of {before}."
        )
    subject = find(name, composed, before)
    if "task" not in subject.facts:
        raise ConfigError(
            "The input's metadata say what the stage must know.",
            got=f"{name}: a model that ortpipe has not seen",
            fix=f"First: ortpipe run-stage convert --input {name} --output forward.onnx",
        )
    return Artifact(subject.model, Facts.from_json(subject.facts), subject.tensors, weights=subject.weights)


def _as_source(artifact: Artifact) -> Artifact:
    """Return a bare model with its weights as those of its source, which training compares itself with."""
    weights = {name: array for name, array in artifact.initializers.items() if name in artifact.facts.parameters}
    model, apart = artifact.apart()
    tensors = {f"source/{name}": array for name, array in weights.items()}
    return Artifact(model, artifact.facts, tensors, weights=apart)


def _refuse_taken(target: Path, force: bool) -> None:
    """Refuse to write over what is there, and with --force over what is no model or artifact."""
    if not target.exists():
        return
    if not force:
        raise ConfigError("The output must not be there yet.", got=target, fix="Name another, or add --force.")
    replaceable = target.is_file() if target.suffix == ".onnx" else (target / "artifact.json").is_file()
    if not replaceable:
        fix = "Name an .onnx file or a folder of an artifact."
        raise ConfigError("--force writes over a model or an artifact, nothing else.", got=target, fix=fix)


def _write(artifact: Artifact, target: Path) -> None:
    if target.suffix != ".onnx":
        save_artifact(artifact, target)
        return
    model, weights = artifact.apart()
    if is_large(model):
        raise ConfigError("A model above 2 GB takes more than one file.", got=target, fix="Let --output be a folder.")
    atomic_write(target, b"".join(pieces(model, weights)))
