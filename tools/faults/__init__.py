"""Attacks on the training command: kills, signals, full disks, failing outputs, tampered files and races.

    python -m tools.faults --seconds 60                     all attacks in turn
    python -m tools.faults --kills 500 --signals 200        so many of these attacks
    python -m tools.faults --kills 1 --case 123             that case again
    python -m tools.faults --fuzz calls                     one of the fuzzers that are counted beside the attacks
    python -m tools.faults ... --write docs/reliability.md  write the counts into this page

    command.py        start the command in a child process, disturb it at a chosen moment, and collect how it ended
    laboratory.py     tiny runs, how they end undisturbed, and what is compared
    interruptions.py  kills and signals
    disks.py          full disks, and outputs that cannot be written
    tampering.py      damaged and replaced files
    races.py          two processes, and directories that are moved or replaced
    driver.py         runs the attacks
    fuzzers.py        fuzzers that are counted beside the attacks
    report.py         the counts, as a table

A case follows from the seed and its number, apart from the speed of the machine.
"""
