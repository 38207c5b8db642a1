"""Random calls of the engines. Each case follows from the seed and its number alone.

results   reference, compiled kernels and torch layers compute the same case; `tolerances.py` says how far apart
          they may be
calls     calls of the compiled array entry, most of them wrong: each must compute or raise, and do no harm

python -m tools.fuzz --cases 50000 --seed 1
python -m tools.fuzz --kind calls --seconds 10 --seed 1
python -m tools.fuzz --kind results --seed 1 --case 1234       one case in this process, for a debugger
"""

from tools.fuzz.driver import Counts, run

__all__ = ["Counts", "run"]
