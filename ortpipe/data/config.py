"""How rows are split."""

from dataclasses import dataclass

from ortpipe.errors import ConfigError
from ortpipe.settings import Config, Seed, Share

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class SplitConfig(Config):
    """How rows are split into train, validation and test.

    Attributes:
        test: a fraction of all rows; or the path of a file or folder, which is read like the source; null: none.
        validation: likewise.
        column: a column whose values are `train`, `validation` and `test`; then fractions are ignored.
        time: a column of dates or numbers: the latest rows are test rows, those before them validation rows.
        group: a column: rows of one group are in one part; fractions count groups.
        stratify: keep the classes' proportions in every part; null: if the labels are classes with enough rows.
        seed: of the random split by fractions.
    """

    test: Share | str | None = 0.25
    validation: Share | str | None = 0.0
    column: str | None = None
    time: str | None = None
    group: str | None = None
    stratify: bool | None = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        test, validation = self.fractions
        if test + validation >= 1:
            rule, fix = "{at}test and {at}validation must leave rows to train on.", "Let their sum be below 1."
            raise ConfigError(rule, key="test", got=f"test={test}, validation={validation}", fix=fix)
        ways = [name for name in ("column", "time", "group") if getattr(self, name) is not None]
        if len(ways) + bool(self.files) > 1 or (self.stratify and ways not in ([], ["column"])):
            rule = "A split takes its parts from a column, times, groups or files; only random ones are stratified."
            got = f"{', '.join(ways)}, files {self.files or 'none'}, stratify={self.stratify}"
            raise ConfigError(rule, key=ways[0], got=got, fix="Remove all but one of them.")

    @property
    def fractions(self) -> tuple[float, float]:
        """The fractions of test and validation rows to draw, 0 if a file or a column defines the part."""
        drawn = self.column is None and self.time is None and self.group is None
        test, validation = (f if isinstance(f, float) and drawn else 0.0 for f in (self.test, self.validation))
        return test, validation

    @property
    def files(self) -> dict[str, str]:
        """The paths of `validation` and `test`, if they are files."""
        return {part: path for part in PARTS[1:] if isinstance(path := getattr(self, part), str)}
