"""The command line: a Hydra application, further commands, and readable errors."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from ortpipe import OrtpipeError
from ortpipe.app.claim import releasing
from ortpipe.app.command_list import COMMANDS, answer, command, is_query, is_word
from ortpipe.app.compose import (
    check_own_files,
    check_working_folder,
    composing,
    packaged_conf,
    resolved,
    with_options_first,
)
from ortpipe.app.help import is_help, print_help
from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.key_origin import KeyOrigins
from ortpipe.app.redact import guard, know_command, know_config, recordable
from ortpipe.app.stop import Stopped, listen_for_signals
from ortpipe.app.sweep import reject_secret_name, sweeping
from ortpipe.app.terminal import forgive, streams
from ortpipe.app.words import SETTINGS
from ortpipe.error_text import nearest  # here, because errors need it even if no more file can be opened
from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig

    from ortpipe.app.sweep import Job


RUN_WORDS = ("run", "sweep", "train")  # commands of other tools for a run
_refused: list[Exception] = []  # the error that ended the run; if it were raised, Hydra would print its own line first


@hydra.main(version_base="1.3", config_path=str(packaged_conf()), config_name="config")
def _application(config: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    start = hydra_config.runtime.cwd  # relative paths are below it; Hydra has left it if hydra.job.chdir=true
    with contextlib.chdir(start if os.path.isdir(start) else "."):
        return _run(config, hydra_config)


def _run(config: DictConfig, hydra_config: HydraConf) -> float | None:
    is_sweep = hydra_config.mode is not None and hydra_config.mode.name == "MULTIRUN"
    from ortpipe.app.execute import execute
    from ortpipe.app.schema import build

    if not is_sweep:  # a sweep must collect the garbage of its jobs
        gc.freeze()  # imported objects are no garbage, so that the next collection can skip them
    forgive()
    words: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)  # a sweep's worker has its own
    know_command(words)
    know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    guard()  # the log handlers that Hydra has set up
    reject_secret_name(Path(hydra_config.runtime.output_dir))

    def run(job: Job | None = None) -> None:
        container = resolved(config)
        record = recordable(config, container)
        execute(build(container, KeyOrigins.now()), record, hydra_config, job)

    if is_sweep:
        from ortpipe.app.sweep import run_job

        return run_job(hydra_config, run)
    try:
        run()
    except Exception as error:  # noqa: BLE001 - main raises it
        _refused.append(error)
    return None


@streams()
def main() -> None:
    """Run the command line, or its command; exit with 1 for an error (3: a gate), 130 on Ctrl-C and 143 on SIGTERM."""
    gc.set_threshold(200_000)  # imports create many objects and no garbage; collecting took a tenth of a short run
    wants_trace = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise errors instead of printing them
    listen_for_signals()
    know_command(sys.argv[1:])
    guard()
    name, *arguments = sys.argv[1:] or [""]
    try:
        if name == "--version":
            from importlib import metadata

            print(f"ortpipe {metadata.version('ortpipe')}", flush=True)
        elif name in COMMANDS:
            command(name)(arguments)
            sys.stdout.flush()
        elif is_word(name):
            fix = "A run has no command: ortpipe key=value …"
            fix = fix if name in RUN_WORDS else f"{nearest(name, COMMANDS)} {fix}"
            raise ConfigError(f"{name} is no command.", fix=fix)
        elif is_help(sys.argv[1:]):
            print_help(sys.argv[1:])
        elif not is_query(sys.argv[1:]) or answer():
            check_working_folder()
            sys.argv[1:] = with_options_first(sys.argv[1:])
            check_own_files(sys.argv[1:])
            with releasing(), sweeping(), composing():
                _application()
        if _refused:
            raise _refused[0]
        gc.freeze()  # at exit, the interpreter would walk every object of the libraries, which takes a second
    except BrokenPipeError:  # the reader closed the pipe (for example `head`)
        sys.exit(128 + getattr(signal, "SIGPIPE", 13))  # Windows has no SIGPIPE
    except (OrtpipeError, ValueError, OSError, *REFUSALS) as error:
        ours = readable(error)
        notes = getattr(error, "__notes__", [])  # its stage, log, and the command that continues the run
        if wants_trace:
            ours.__notes__ = notes
            raise ours  # noqa: B904 - it may be that error itself
        print(f"error: {ours}", *notes, sep="\n", file=sys.stderr)
        sys.exit(getattr(ours, "code", 1))
    except (KeyboardInterrupt, Stopped) as stop:
        print("\nstopped; nothing half-written was left.", *getattr(stop, "__notes__", []), sep="\n", file=sys.stderr)
        sys.exit(getattr(stop, "code", 130))


def readable(error: Exception) -> OrtpipeError:
    """Convert an error of Hydra or of the system to one of ortpipe's; raise any other error."""
    if isinstance(error, OrtpipeError):
        return error.said_in(SETTINGS)
    if isinstance(error, REFUSALS):
        return explained(error)
    if isinstance(error, OSError):
        return _unwritten(error)
    if isinstance(error.__cause__, OSError):  # from the log, which Hydra opens before the run begins
        return _unwritten(error.__cause__)
    if "Config group override" in str(error):  # Hydra's own, for group=null
        return ConfigError(str(error), fix="Leave a group out with ~group, such as ~experiment.")
    raise error


def _unwritten(error: OSError) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "Free some space, or set paths.outputs to a folder on another disk."
        return ConfigError("The disk must have space for the results of a run.", got=error, fix=fix)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        fix = "Raise the limit of open files (ulimit -n 1024), or run fewer jobs at once."
        return ConfigError("A run must be able to open its files.", got=error, fix=fix)
    fix = "Check that the path exists and that you may write there; paths.outputs=FOLDER moves the results of runs."
    return ConfigError("Files and folders must be readable and writable.", got=error, fix=fix)
