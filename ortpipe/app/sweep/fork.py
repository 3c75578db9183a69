"""Parallel jobs in forks of this process, which has already imported their modules: Hydra's launcher `fork`."""

import gc
import importlib
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from ortpipe.app.hydra_errors import REFUSALS, explained
from ortpipe.app.local_path import cache_folder
from ortpipe.app.stop import Stopped
from ortpipe.errors import ConfigError
from ortpipe.pipeline.store import Store

CONVERTS, ESTIMATORS = "convert", "sklearn"  # the stage that usually needs scikit-learn, unless its result is stored
NEEDED = {  # modules that jobs import late, by the word in the config, or the loaded module, that requires them
    "": ("ortpipe.app.execute", "ortpipe.app.schema", "pyarrow.parquet"),
    ESTIMATORS: ("sklearn.datasets", "sklearn.neural_network", "sklearn.pipeline"),
    "mlflow": ("mlflow.onnx", "pandas"),
}
SOON = 1.0  # seconds for a stopped job to write its state: Ctrl-C reaches all processes of a terminal
LATE = 15.0


class Workers:
    """Forks worker processes, each of which runs one job after another."""

    def __init__(self, n_jobs: int, context: HydraContext, task: TaskFunction, config: DictConfig) -> None:
        if sys.platform != "linux":
            rule = "The fork launcher needs Linux."
            raise ConfigError(rule, key="hydra/launcher", got=sys.platform, fix="Use hydra/launcher=joblib.")
        if n_jobs != -1 and n_jobs < 1:
            rule, fix = "{key} must be a number of processes from 1, or -1.", "Set {key}=-1: one for each core."
            raise ConfigError(rule, key="hydra.launcher.n_jobs", got=n_jobs, fix=fix)
        self._count = len(os.sched_getaffinity(0)) if n_jobs == -1 else n_jobs
        self._context, self._task, self._config = context, task, config

    def run(self, job_overrides: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        """Run the jobs, numbered from `first`; return their results in order."""
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        Path(str(self._config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        self._import()
        self._jobs, self._first = [list(overrides) for overrides in job_overrides], first
        waiting, results, died = deque(range(len(self._jobs))), dict[int, JobReturn](), list[int]()
        workers: dict[Connection, tuple[BaseProcess, int]] = {}
        try:
            while waiting or workers:
                while waiting and len(workers) < self._count:
                    end, process = self._start()
                    end.send(job := waiting.popleft())
                    workers[end] = process, job
                for end in [ready for ready in wait(list(workers)) if isinstance(ready, Connection)]:
                    process, job = workers.pop(end)
                    try:
                        results[job] = end.recv()
                    except EOFError:  # the worker was killed: start another one
                        died.append(job)
                        process.join()
                        continue
                    if waiting:
                        end.send(job := waiting.popleft())
                        workers[end] = process, job
                    else:
                        end.send(None)
                        process.join()
                        end.close()
        except BaseException:  # including Ctrl-C: stop the workers when the sweep ends
            _stop([process for process, _ in workers.values()])
            raise
        for job in died:
            rule, fix = "The process of a job must not be killed.", "Check the memory for n_jobs at a time."
            error = ConfigError(rule, got=f"jobs {', '.join(str(n + self._first) for n in died)} were killed", fix=fix)
            results[job] = _failed(self._jobs[job], error)
        return [results[job] for job in sorted(results)]

    def _import(self) -> None:
        config, paths = str(OmegaConf.to_container(self._config, resolve=False)), self._config.paths
        stored = paths.cache is not None and Store(cache_folder(paths.cache, paths.outputs)).files(
            CONVERTS, lambda message: None
        )
        for word, modules in NEEDED.items():
            for name in modules if word in config and not (stored and word == ESTIMATORS) else ():
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # collecting shared objects would copy their memory pages

    def _start(self) -> tuple[Connection, BaseProcess]:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(theirs, ours))
        sys.stdout.flush()
        process.start()
        theirs.close()
        return ours, process

    def _work(self, end: Connection, parent_end: Connection) -> None:
        """Run jobs received from the sweep's process until it sends None.

        Workers that were forked later also hold this end of the pipe, so that closing it has no effect.
        """
        parent_end.close()
        try:
            while (job := end.recv()) is not None:
                end.send(self._run(job))
        except (Stopped, KeyboardInterrupt, EOFError, ConnectionError):  # the last two: the sweep's process was killed
            sys.exit(1)

    def _run(self, job: int) -> JobReturn:
        try:
            config = self._context.config_loader.load_sweep_config(self._config, self._jobs[job])
        except REFUSALS as error:
            return _failed(self._jobs[job], explained(error))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = self._first + job
        done = run_job(
            hydra_context=self._context,
            task_function=self._task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        done.cfg = done.hydra_cfg = None  # the sweep's process needs the outcome only
        return done


def _failed(overrides: Sequence[str], error: ConfigError) -> JobReturn:
    """Return the result of a job without one; reading its value raises the error."""
    result = JobReturn(overrides=overrides, status=JobStatus.FAILED)
    result.return_value = error
    return result


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Stop processes; they write the state of their jobs."""
    for patience, end in ((SOON, BaseProcess.terminate), (LATE, BaseProcess.kill)):
        for process in processes:
            process.join(patience)
        for process in processes:
            if process.is_alive():
                end(process)
    for process in processes:
        process.join()
