"""Make the table of students: cgpa, iq, and whether a student was placed. The people are invented.

    python -m tools.students            # writes lab/students.csv and page/why/students.js

cgpa is about 7 and iq about 100: two features on very different scales. A student is placed if cgpa and iq, each in
standard deviations from its mean, add up to more than 0; noise turns some of the answers around. The page holds the
first rows of the same table. `random` gives the same numbers in every version of Python.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "truenorm"
CSV = SOURCE / "lab" / "students.csv"
PAGE = SOURCE / "page" / "why" / "students.js"
ROWS = 300
ON_THE_PAGE = 100
IN_A_LINE = 7

HEAD = f"""/*
The first {ON_THE_PAGE} students of the lab's table (`truenorm train --task table --data students`): cgpa, iq, and 1 for
placed or 0. The people are invented. tools/students.py writes this file.
*/

/** @type {{Student[]}} */
export const STUDENTS = ["""

Student = tuple[float, int, str]


def students() -> list[Student]:
    """(cgpa, iq, placed) for each student."""
    rng = random.Random(2)
    return [_student(rng) for _ in range(ROWS)]


def _student(rng: random.Random) -> Student:
    talent, diligence, noise = (rng.gauss(0, 1) for _ in range(3))
    cgpa = min(max(round(7 + 1.1 * (0.3 * talent + 0.95 * diligence), 1), 0.0), 10.0)
    iq = min(max(round(100 + 13 * talent), 70), 140)
    score = (cgpa - 7) / 1.1 + (iq - 100) / 13 + 0.6 * noise
    return cgpa, iq, "yes" if score > 0 else "no"


def as_csv(rows: Sequence[Student]) -> str:
    """The table that the lab reads."""
    return "\n".join(["cgpa,iq,placed", *(f"{cgpa},{iq},{placed}" for cgpa, iq, placed in rows)]) + "\n"


def as_module(rows: Sequence[Student]) -> str:
    """The first rows for the page: cgpa, iq, and 1 for placed or 0."""
    cells = [f"[{cgpa:g}, {iq}, {int(placed == 'yes')}]" for cgpa, iq, placed in rows[:ON_THE_PAGE]]
    lines = [", ".join(cells[start : start + IN_A_LINE]) for start in range(0, len(cells), IN_A_LINE)]
    return "\n".join([HEAD, *(f"    {line}," for line in lines), "];\n"])


def main() -> None:
    """Write both files."""
    rows = students()
    CSV.write_text(as_csv(rows), "utf-8")
    PAGE.write_text(as_module(rows), "utf-8")


if __name__ == "__main__":
    main()
