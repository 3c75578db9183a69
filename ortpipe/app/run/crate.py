"""Export a run as a Workflow Run RO-Crate: its folder as an archive, with metadata about the run and its files.

https://www.researchobject.org/workflow-run-crate/profiles/process_run_crate, by the library rocrate.
"""

import mimetypes
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.app.run.record import COMMAND, FINISHED, RUNNING, RunRecord, read_environment
from ortpipe.bounded import files_below
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_file

if TYPE_CHECKING:
    from rocrate.model import ContextEntity, File
    from rocrate.rocrate import ROCrate

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
TERMS = "https://w3id.org/ro/terms/workflow-run/context"
SOFTWARE = "https://pypi.org/project/ortpipe"
ORTPIPE = {"@type": "SoftwareApplication", "name": "ortpipe", "url": SOFTWARE}
STATUS = "http://schema.org/{}ActionStatus"
GIVEN = ("config.yaml", "environment.json", "inputs")  # the other files are results
TYPES = {  # which Python 3.11 does not know
    ".log": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".yaml": "application/yaml",
}
UNLICENSED = "No license was given: ask the author for permission to use the contents."


def write_crate(folder: Path, archive: Path, license: str) -> Path:
    """Write the archive of a run that has ended; links in its folder are left out."""
    try:
        from rocrate.rocrate import ROCrate
    except ImportError as error:
        raise ConfigError("--crate needs the package rocrate.", fix="pip install 'ortpipe[crate]'") from error
    record = RunRecord.read_closed(folder)
    if record.status == RUNNING or record.sweep is not None:
        actual = "a sweep" if record.sweep is not None else "a running one"
        raise ConfigError("--crate exports a run that has ended.", got=f"{folder}: {actual}", fix="Choose another run.")
    crate = ROCrate(version="1.1")  # the version that the profile extends
    crate.metadata.extra_contexts.append(TERMS)
    crate.name, crate.description = f"ortpipe run {record.name}", f"Files and provenance of the run {record.id}"
    crate.license, crate.datePublished = license, _time(record.ended)
    profile = {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    crate.root_dataset["conformsTo"] = _add(crate, PROFILE, profile)
    files, kinds = {}, mimetypes.MimeTypes()  # without the system's types
    for path in (file for file in files_below(folder) if file.absolute() != archive.absolute()):
        name = path.relative_to(folder).as_posix()
        kind = TYPES.get(path.suffix) or kinds.guess_type(name)[0] or "application/octet-stream"
        facts = {"name": name, "encodingFormat": kind}
        files[name] = crate.add_file(path, name, properties=facts, record_size=True)
    _add_run(crate, record, files, read_environment(folder))
    with atomic_file(archive) as partial:
        crate.write_zip(partial)
    return archive


def _add_run(crate: "ROCrate", record: RunRecord, files: Mapping[str, "File"], environment: Mapping[str, str]) -> None:
    """Add the action: its command, agent and software, the files that it read, and the others as its results."""
    failed = {} if record.status == FINISHED else {"error": record.error or record.status}
    action = {
        "@type": "CreateAction",
        "name": record.name,
        "description": record.tags.get(COMMAND, "a training run"),
        "startTime": _time(record.started),
        "endTime": _time(record.ended),
        "actionStatus": STATUS.format("Failed" if failed else "Completed"),
        **failed,
    }
    run = _add(crate, f"#{record.id}", action)
    run["instrument"] = _add(crate, SOFTWARE, {**ORTPIPE, "softwareVersion": environment["ortpipe"]})
    run["agent"] = _add(crate, "#agent", {"@type": "Person", "name": record.tags.get("mlflow.user", "unknown")})
    run["object"] = [file for name, file in files.items() if name.partition("/")[0] in GIVEN]
    run["result"] = [file for name, file in files.items() if name.partition("/")[0] not in GIVEN]
    run["environment"] = [
        _add(crate, f"#environment/{name}", {"@type": "PropertyValue", "name": name, "value": value})
        for name, value in environment.items()
    ]
    crate.root_dataset["author"], crate.root_dataset["mentions"] = run["agent"], run


def _add(crate: "ROCrate", name: str, facts: dict[str, Any]) -> "ContextEntity":
    return crate.add_jsonld({"@id": name, **facts})


def _time(milliseconds: int | None) -> str:
    assert milliseconds is not None  # of a run that has ended
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
