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
        stratify: keep the classes' proportions in every part.
        seed: of the random split by fractions.
    """

    test: Share | str | None = 0.25
    validation: Share | str | None = 0.0
    column: str | None = None
    stratify: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        test, validation = self.fractions
        if test + validation >= 1:
            rule, fix = "{at}test and {at}validation must leave rows to train on.", "Let their sum be below 1."
            raise ConfigError(rule, key="test", got=f"test={test}, validation={validation}", fix=fix)
        if self.column is not None and self.files:
            raise ConfigError(
                "A split takes its parts from a column or from files, not from both.",
                key="column",
                got=f"column={self.column} and files for {', '.join(self.files)}",
                fix="Remove one of them.",
            )

    @property
    def fractions(self) -> tuple[float, float]:
        """The fractions of test and validation rows, 0 if a file or a column defines the part."""
        if self.column is not None:
            return 0.0, 0.0
        test, validation = (f if isinstance(f, float) else 0.0 for f in (self.test, self.validation))
        return test, validation

    @property
    def files(self) -> dict[str, str]:
        """The paths of `validation` and `test`, if they are files."""
        paths = {"validation": self.validation, "test": self.test}
        return {part: path for part, path in paths.items() if isinstance(path, str)}
