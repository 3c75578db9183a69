"""ortpipe run-stage: run one stage on one file, without the other stages, the store or a record."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortpipe import FLOW, Artifact, save_artifact
from ortpipe.app.assemble import open_run
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.local_path import local, reject_existing
from ortpipe.app.lookup import find
from ortpipe.app.run.screen import Screen, table
from ortpipe.app.schema import all_at_once, check
from ortpipe.errors import ConfigError, nearest
from ortpipe.facts_json import read_facts
from ortpipe.files import atomic_write
from ortpipe.graph import is_large, serialized
from ortpipe.pipeline.events import StageProgressed
from ortpipe.pipeline.plan import Stage

ABOUT = """Run one stage on one file. Its settings, and the data if it reads them, are those of a run with the
same key=value pairs. The metadata of a model that ortpipe wrote hold what a stage needs, so a bare
.onnx file is enough. Nothing is stored or recorded."""
EXAMPLES = (
    "ortpipe run-stage convert --output forward.onnx",
    "ortpipe run-stage add_loss --input forward.onnx --output loss.onnx",
)


def run(arguments: Sequence[str]) -> None:
    """Run one stage."""
    parser = Parser("run-stage", ABOUT, EXAMPLES)
    parser.add_argument("stage", metavar="STAGE", help="convert, add_loss, penalty, derive, train or evaluate")
    parser.add_argument(
        "--input",
        metavar="FILE|FOLDER|RUN|DIGEST",
        help="a model as ortpipe show takes it; for a run, the previous stage's result; for convert any .onnx file, "
        "or none",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE.onnx|FOLDER", help="the model's file, or the artifact's folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    options = parser.read(arguments)
    target = local(options.output, "--output")
    _check_target(target, options.force)
    composed = options.composed
    names = [stage.name for stage in FLOW]
    if options.stage not in names:
        raise ConfigError("STAGE must be one of the six stages.", got=options.stage, fix=nearest(options.stage, names))
    index = names.index(options.stage)
    stage, artifact = FLOW[index], None
    if index == 0 and options.input is not None:
        settings = composed.values[stage.name]  # other settings of an .onnx source stay
        source = settings["source"] if settings["source"].get("name") == "onnx" else {"name": "onnx"}
        settings["source"] = {**source, "path": options.input}
    config, context = _settings(stage, composed)
    if index > 0:
        artifact = _artifact(options.input, composed, names[index - 1])
        if not artifact.tensors and index < len(names) - 1:
            artifact = _as_source(artifact)
        stage.check_early(artifact.facts, config, **context)
    started = time.perf_counter()
    result = stage(artifact, config, **context)
    seconds = time.perf_counter() - started
    _write(result, target)
    if result.facts.metrics:
        print(table(result), end="\n\n")
    print(f"{stage.name}  {len(result.signature.graph.node)} nodes, {seconds:.2f} s, digest {result.digest()}")
    print(f"output  {target}")


def _settings(stage: Stage, composed: Composition) -> tuple[Any, dict[str, Any]]:
    """Return the stage's config and its inputs; errors in other parts of the config are ignored."""
    values, problems = check(composed.values)
    config, screen = values.get(stage.name), Screen()
    reads_data = "data" in stage.reads or ("data" in stage.takes and getattr(config, "check", False))
    keys = [stage.name, "runtime", *(["data"] if reads_data else []), *(["resume"] if "start" in stage.takes else [])]
    if errors := [error for error in problems if str(error.key).partition(".")[0] in (*keys, "seed")]:
        raise all_at_once(errors, composed.where)
    started = time.perf_counter()

    def report(progress: object) -> None:
        screen(StageProgressed(stage.name, progress, time.perf_counter() - started))

    return config, {
        "data": None,
        **open_run({name: values[name] for name in keys if name in values}),
        "report": report,
    }


def _artifact(name: str | None, composed: Composition, previous_stage: str) -> Artifact:
    if name is None:
        rule, fix = "A stage after convert needs a model.", f"Give the result of {previous_stage} as --input."
        raise ConfigError(rule, got="no --input", fix=fix)
    subject = find(name, composed, previous_stage)
    if "task" not in subject.facts:
        raise ConfigError(
            "The input must be a model that ortpipe wrote: its metadata hold what the stage needs.",
            got=f"{name}: a model without ortpipe's metadata",
            fix=f"Convert it first: ortpipe run-stage convert --input {name} --output forward.onnx",
        )
    return Artifact(subject.model, read_facts(subject.facts), subject.tensors, weights=subject.weights)


def _as_source(artifact: Artifact) -> Artifact:
    """Return a bare model with its weights also stored as its source's; training compares its result with these."""
    weights = {name: array for name, array in artifact.initializers.items() if name in artifact.facts.parameters}
    model, apart = artifact.apart()
    tensors = {f"source/{name}": array for name, array in weights.items()}
    return Artifact(model, artifact.facts, tensors, weights=apart)


def _check_target(target: Path, force: bool) -> None:
    """Reject an existing output, and with --force one that is neither a model nor an artifact."""
    if target.suffix not in ("", ".onnx") and not target.is_dir():
        rule, fix = "The output must be an .onnx file or a folder.", f"Write --output {target.stem}.onnx."
        raise ConfigError(rule, got=target, fix=fix)
    reject_existing(target, force=force)
    replaceable = target.is_file() if target.suffix == ".onnx" else (target / "artifact.json").is_file()
    if target.exists() and not replaceable:
        fix = "Name an .onnx file or a folder of an artifact."
        raise ConfigError("--force overwrites only a model or an artifact.", got=target, fix=fix)


def _write(artifact: Artifact, target: Path) -> None:
    if target.suffix != ".onnx":
        save_artifact(artifact, target)
        return
    model, weights = artifact.apart()
    if is_large(model):
        raise ConfigError("A model above 2 GB needs more than one file.", got=target, fix="Let --output be a folder.")
    atomic_write(target, serialized(model, weights))
