"""ortpipe's launcher and sweepers; Hydra accepts plugins only from the namespace package `hydra_plugins`.

Hydra imports this module in every Hydra application of the environment, so it imports ortpipe only where it is used.
"""

import itertools
from collections.abc import Mapping, Sequence

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ForkLauncher(Launcher):
    """Run jobs in parallel, in forks of this process."""

    def __init__(self, n_jobs: int = -1) -> None:
        self._n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the context that all jobs share."""
        from ortpipe.app.sweep.fork import Workers

        self._workers = Workers(self._n_jobs, hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; return their results in order."""
        return self._workers.run(job_overrides, initial_job_idx)


class _OwnSweeper(Sweeper):
    """A sweeper that writes no secrets into `multirun.yaml`, with the settings that both have."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)


class ProductSweeper(_OwnSweeper):
    """Launch a job for each combination of the listed values, in batches of `max_batch_size`."""

    def __init__(self, max_batch_size: int | None = None, params: Mapping[str, str] | None = None) -> None:
        self._size, self._params = max_batch_size, params or {}

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Run all jobs; return the results of each batch."""
        from ortpipe.app.sweep.overrides import choices, sample, write_config

        assert self.launcher is not None
        assert self.config is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        listed = choices([*(f"{key}={value}" for key, value in self._params.items()), *arguments], loader)
        write_config(self.config)
        self.validate_batch_is_legal(sample(listed, loader))
        jobs = list(itertools.product(*listed.values()))
        size = self._size or len(jobs)
        results = []
        for first in range(0, len(jobs), size):
            results.append(self.launcher.launch(jobs[first : first + size], initial_job_idx=first))
            for result in results[-1]:
                _ = result.return_value  # raises the error of a failed job
        return results


class SearchSweeper(_OwnSweeper):
    """Search for the best settings, and stop bad trials early; ortpipe reads the settings from the config."""

    def __init__(self, **settings: object) -> None:
        pass

    def sweep(self, arguments: list[str]) -> None:
        """Run the search."""
        from ortpipe.app.sweep.search import search

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        search(self.config, arguments, self.hydra_context.config_loader, self.validate_batch_is_legal, self.launcher)
