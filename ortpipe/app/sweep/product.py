"""A sweeper for lists of values: one job per combination.

It replaces Hydra's sweeper `basic`, which writes secrets into `multirun.yaml`.
"""

import importlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from ortpipe.app.redact import redacted
from ortpipe.app.sweep.fork import ForkLauncher
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write

BASIC = "basic"  # Hydra's choice for the group hydra/sweeper


class ProductSweeper(Sweeper):
    """Launches a job for each combination, in batches of `max_batch_size`."""

    __module__ = "hydra_plugins.ortpipe"  # Hydra only accepts plugins from this package

    def __init__(self, max_batch_size: int | None = None, params: Mapping[str, str] | None = None) -> None:
        self._size, self._params = max_batch_size, params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Run all jobs; return the results of each batch."""
        assert self.launcher is not None
        assert self.config is not None
        jobs = self._jobs([*(f"{key}={value}" for key, value in self._params.items()), *arguments])
        folder, size = Path(str(self.config.hydra.sweep.dir)), self._size or len(jobs)
        atomic_write(folder / "multirun.yaml", redacted(OmegaConf.to_yaml(self.config)))
        results = []
        for first in range(0, len(jobs), size):
            batch = jobs[first : first + size]
            self.validate_batch_is_legal(batch)
            results.append(self.launcher.launch(batch, initial_job_idx=first))
            for result in results[-1]:
                _ = result.return_value  # raises the error of a failed job
        return results

    def _jobs(self, arguments: Sequence[str]) -> list[list[str]]:
        """Return the overrides of each job; if a key occurs twice, the last one counts."""
        assert self.hydra_context is not None
        choices = dict[str, list[str]]()
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        for override in parser.parse_overrides(list(arguments)):
            key = override.get_key_element()
            if not override.is_sweep_override():
                choices[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                rule, fix = "A sweep without a search must list its values.", "List them: {key}=0.1,0.2."
                raise ConfigError(rule, key=override.key_or_group, got=redacted(str(override.input_line)), fix=fix)
        return [list(job) for job in itertools.product(*choices.values())]


def register(config: DictConfig) -> None:
    """Register ortpipe's launcher and sweeper with Hydra, and use the sweeper for configs that choose `basic`."""
    try:
        package = importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:  # no other plugin is installed
        package = sys.modules["hydra_plugins"] = ModuleType("hydra_plugins")
    name = ProductSweeper.__module__
    module = sys.modules[name] = ModuleType(name)
    setattr(package, name.rpartition(".")[2], module)
    for plugin in (ForkLauncher, ProductSweeper):
        Plugins.instance().register(plugin)
        setattr(module, plugin.__name__, plugin)
    if config.hydra.runtime.choices.get("hydra/sweeper") == BASIC:
        with open_dict(config):
            config.hydra.sweeper._target_ = f"{name}.{ProductSweeper.__name__}"
