"""Print the README's table of operators."""

from ortpipe.stages.derive.rules import table

if __name__ == "__main__":
    print(table())
