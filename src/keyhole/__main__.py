"""`python -m keyhole`: the command line, also if the console script `keyhole` is not on the path."""

from .cli import main

if __name__ == "__main__":
    main()
