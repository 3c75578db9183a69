"""python -m ortpipe."""

from ortpipe.app.cli import main

if __name__ == "__main__":
    main()
