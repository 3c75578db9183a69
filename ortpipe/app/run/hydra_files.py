"""What Hydra itself writes of a run or a sweep, before it calls us: no secret stays in it."""

from pathlib import Path

from hydra.conf import HydraConf

from ortpipe.app.redact import redacted
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write


def hide_in_files(hydra: HydraConf) -> None:
    """Take the secrets out of `multirun.yaml`, and of the folder that hydra.output_subdir names, where there is one."""
    folder = Path(hydra.runtime.output_dir)
    refuse_secret_name(folder)
    files = [] if hydra.output_subdir is None else [*(folder / hydra.output_subdir).glob("*.yaml")]
    if hydra.mode is not None and hydra.mode.name == "MULTIRUN":
        files.append(Path(hydra.sweep.dir) / "multirun.yaml")
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if (shown := redacted(text)) != text:
                atomic_write(file, shown)


def refuse_secret_name(folder: Path) -> None:
    """Refuse a folder with a secret in its name; one that Hydra has just made, with its empty log, is removed."""
    if redacted(str(folder)) == str(folder):
        return
    fix = "Name the secret's key in hydra.job.config.override_dirname.exclude_keys."
    for file in folder.glob("*.log"):
        if file.stat().st_size == 0:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    raise ConfigError("The name of a run's folder holds no secret.", got=redacted(str(folder)), fix=fix)
