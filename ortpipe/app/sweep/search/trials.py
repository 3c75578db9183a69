"""Run a search: trials climb rungs, each of which is a set of jobs that the configured launcher runs."""

import contextlib
import functools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf
from optuna import Study, Trial
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import TrialState

from ortpipe.app.redact import redacted
from ortpipe.app.schema import build_key
from ortpipe.app.sweep.overrides import sample, write_config
from ortpipe.app.sweep.search.config import SEED, SearchConfig, settings_of
from ortpipe.app.sweep.search.space import Space
from ortpipe.app.sweep.summary import EPOCHS
from ortpipe.errors import ConfigError
from ortpipe.metrics.named import greater_is_better
from ortpipe.stages import restarts

STUDY = "study.journal"  # in the sweep's folder: Optuna's journal of the study

Values = Sequence[float | None]  # of jobs; None for a failed one


def search(
    config: DictConfig,
    arguments: Sequence[str],
    loader: ConfigLoader,
    compose: Callable[[list[list[str]]], None],
    launcher: Launcher,
) -> None:
    """Run the search of a sweep; `compose` raises an error if one of the jobs it gets does not compose."""
    settings = settings_of(config)
    params: Any = OmegaConf.to_container(config.hydra.sweeper.params, resolve=True)
    space = Space.of([*(f"{key}={value}" for key, value in params.items()), *arguments], loader)
    compose(sample(space.choices(), loader))
    write_config(config)
    grid = space.combinations() if settings.sampler == "grid" else []
    trials = sum(count for count, _ in settings.brackets(len(grid)))
    print(f"search: {trials} trials in rungs of {', '.join(map(str, settings.rungs))} epochs", flush=True)
    notes = _restarts(config, settings)
    for note in notes:
        print(f"search: {note}, so that each rung trains from the start", file=sys.stderr, flush=True)
    study = _study(config)
    progress = Progress(settings, space, grid, study, functools.partial(_values, launcher), continues=not notes)
    progress.run()
    epochs, whole = progress.epochs, trials * settings.seeds * settings.rungs[-1]
    print(f"search: at most {epochs:,} epochs; without stopping trials, {whole:,}", flush=True)


@dataclass
class Progress:
    """A search in progress."""

    settings: SearchConfig
    space: Space
    grid: Sequence[dict[str, Any]]  # the trials of the sampler grid
    study: Study
    launch: Callable[[Sequence[Sequence[str]], int], Values]  # the values of jobs, numbered from the second argument
    continues: bool = True  # whether a job continues from the rung before
    jobs: int = 0  # that were launched
    epochs: int = 0  # that they trained, if none stopped early

    def run(self) -> None:
        """Run all brackets, one after another, so that their results do not depend on which job ends first."""
        for params in self.grid:
            self.study.enqueue_trial(params)
        for number, (count, rungs) in enumerate(self.settings.brackets(len(self.grid))):
            scores: dict[int, list[tuple[float, int]]] = {epochs: [] for epochs in rungs}
            batch = self.settings.batch or count
            for first in range(0, count, batch):
                trials = [self._ask(number) for _ in range(min(batch, count - first))]
                for before, epochs in zip((0, *rungs), rungs, strict=False):
                    self.epochs += len(trials) * self.settings.seeds * (epochs - before * self.continues)
                    trials = self._rung(trials, epochs, scores[epochs], last=epochs == rungs[-1])

    def _ask(self, bracket: int) -> Trial:
        """Return a new trial, which follows from the seed, its number and the results told before."""
        number = len(self.study.trials)
        self.study.sampler = _sampler(self.settings, number)
        trial = self.study.ask(self.space.distributions)
        trial.set_user_attr("bracket", bracket)
        return trial

    def _rung(
        self, trials: Sequence[Trial], epochs: int, scores: list[tuple[float, int]], *, last: bool
    ) -> list[Trial]:
        """Run a rung and tell the study the results; return the trials that go on to the next rung.

        `scores` has the scores and numbers of the trials of earlier batches in this rung; the least score is the best.
        """
        values = self._launch(trials, epochs)
        sign = -1 if self.study.direction is StudyDirection.MAXIMIZE else 1
        scores.extend((sign * values.get(trial.number, sign * math.inf), trial.number) for trial in trials)
        count = max(1, len(scores) // self.settings.reduction)
        best = {number for _, number in sorted(scores)[:count]}
        going_on = []
        for trial in trials:
            if trial.number not in values:
                self.study.tell(trial, state=TrialState.FAIL)
            elif last:
                self.study.tell(trial, values[trial.number])
            elif trial.number in best:
                going_on.append(trial)
            else:
                self.study.tell(trial, state=TrialState.PRUNED)
        return going_on

    def _launch(self, trials: Sequence[Trial], epochs: int) -> dict[int, float]:
        """Run a rung's jobs; return the mean value by trial, without trials of which a job failed."""
        settings, means = self.settings, dict[int, float]()
        if not trials:
            return means
        seeds = range(settings.seed, settings.seed + settings.seeds)
        values = self.launch([self._job(trial, epochs, seed) for trial in trials for seed in seeds], self.jobs)
        for i, trial in enumerate(trials):
            first = i * len(seeds)
            results = values[first : first + len(seeds)]
            trial.set_user_attr(f"jobs after {epochs} epochs", [self.jobs + first + j for j in range(len(seeds))])
            finite = [value for value in results if value is not None and math.isfinite(value)]
            if len(finite) < len(seeds):
                continue
            means[trial.number] = statistics.fmean(finite)
            trial.report(means[trial.number], step=epochs)
            if len(seeds) > 1:
                trial.set_user_attr(f"deviation after {epochs} epochs", statistics.stdev(finite))
        self.jobs += len(values)
        return means

    def _job(self, trial: Trial, epochs: int, seed: int) -> list[str]:
        """Return the overrides of a job."""
        varied = {**trial.params, EPOCHS: epochs, **({SEED: seed} if self.settings.seeds > 1 else {})}
        return list({**self.space.fixed, **{key: f"{key}={value}" for key, value in varied.items()}}.values())


def _values(launcher: Launcher, jobs: Sequence[Sequence[str]], first: int) -> Values:
    """Run jobs; return their values. Print the errors of jobs that have no record of them, such as killed ones."""
    values = list[float | None]()
    errors = dict[str, None]()
    for result in launcher.launch(jobs, initial_job_idx=first):
        try:
            values.append(result.return_value)
        except Exception as error:  # noqa: BLE001 - a failed job must not end the search
            values.append(None)
            errors[redacted(str(error))] = None
    for message in errors:
        print(f"search: {message}", file=sys.stderr, flush=True)
    return values


def _study(config: DictConfig) -> Study:
    """Return a new study, with its journal in the sweep's folder."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = Path(str(config.hydra.sweep.dir)) / STUDY
    for earlier in file.parent.glob(f"{STUDY}*"):  # and its lock: of a sweep that was killed in this folder
        earlier.unlink()
    storage = JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))
    direction = "maximize" if greater_is_better(config.objective) else "minimize"
    return optuna.create_study(storage=storage, study_name=redacted(str(config.name)), direction=direction)


def _sampler(settings: SearchConfig, number: int) -> BaseSampler:
    """Return the sampler for a trial: a new one, so that a search that was stopped asks for the same trials again."""
    seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    # Trials of a batch that have no result yet count as bad ones, so that the batch spreads.
    return TPESampler(seed=seed, constant_liar=True) if settings.sampler == "tpe" else RandomSampler(seed=seed)


def _restarts(config: DictConfig, settings: SearchConfig) -> list[str]:
    """Return the reasons why the jobs of a rung cannot continue those of the rung before."""
    reasons = ["paths.cache is null"] if config.paths.cache is None else []
    with contextlib.suppress(ConfigError):  # a key that the search sets may be missing; jobs report other errors
        train = build_key("train", OmegaConf.to_container(config.train, resolve=True))
        reasons += [reason for epochs in settings.rungs[:-1] if (reason := restarts(train, epochs, settings.rungs[-1]))]
    return reasons[:1]
