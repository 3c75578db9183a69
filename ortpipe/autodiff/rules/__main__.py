"""Print the table of operators for docs/reference/operators.md."""

from ortpipe.autodiff.rules.covered import table

if __name__ == "__main__":
    print(table())
