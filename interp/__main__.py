"""`python -m interp`: the command line, for `torchrun -m interp sae train ...` and where no script is installed."""

from interp.cli import main

if __name__ == "__main__":
    main()
