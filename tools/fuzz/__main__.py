"""The command line of the fuzzer."""

import argparse
import sys
import warnings
from typing import get_args

from tools.fuzz.driver import Kind, maker, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Random calls of the engines.")
    parser.add_argument("--kind", choices=get_args(Kind), default="results")
    parser.add_argument("--cases", type=int, help="how many")
    parser.add_argument("--seconds", type=float, help="for how long; 10 if --cases is not given either")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this one, in this process")
    parser.add_argument("--fence", type=int, default=256, help="bytes around outputs; 0 where a sanitizer has its own")
    options = parser.parse_args()
    if options.case is not None:
        warnings.simplefilter("ignore")  # numbers that do not fit are meant
        case = maker(options.kind, options.fence)(options.seed, options.case)
        print(case, flush=True)
        print("{} computed, {} numbers compared, {} undetermined".format(*case.check()))
        return 0
    seconds = 10.0 if options.cases is None and options.seconds is None else options.seconds
    counts = run(options.cases, options.seed, seconds=seconds, kind=options.kind, fence=options.fence)
    print(counts)
    return 1 if counts.failures else 0


if __name__ == "__main__":
    sys.exit(main())
