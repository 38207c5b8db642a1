"""Start-up time of `import truenorm`, `import numpy` and `truenorm --help`. Medians of interleaved rounds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

CASES = {
    "python": [sys.executable, "-c", "pass"],
    "import numpy": [sys.executable, "-c", "import numpy"],
    "import truenorm": [sys.executable, "-c", "import truenorm"],
    "truenorm --help": [sys.executable, "-m", "truenorm", "--help"],
}
ROUNDS = 15


def main() -> None:
    """Time the cases in turn, many times, so that a slow moment of the machine affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, command in CASES.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        low, *_, high = statistics.quantiles(times, n=10)
        print(f"{name:16} {statistics.median(times):.3f} s   ({low:.3f} to {high:.3f})")
    beyond = statistics.median(seconds["import truenorm"]) - statistics.median(seconds["import numpy"])
    print(f"import truenorm takes longer than import numpy by {beyond:.3f} s")


if __name__ == "__main__":
    main()
