"""A trial: one measure of one configuration. The same trial gives the same bytes in any process, on any worker.

    Trial(measure, config)   what is computed; `name` is a hash of both, and the name of the trial's file
    run_trial(trial)         its result, as the bytes of that file

Nothing of the time, the machine or other trials is in the result. (Another processor or another version of NumPy may
round differently, as in every other program.) A training that diverges is a result. An error is raised.

`lab.measures` has the measures, and says what their results hold.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import checkpoint
from truenorm.lab.config import Config
from truenorm.lab.measures import MEASURES, Result, is_result


@dataclass(frozen=True)
class Trial:
    """One measure of one configuration."""

    measure: str
    config: Config

    @cached_property
    def name(self) -> str:
        """A hash of measure and configuration."""
        content = json.dumps([self.measure, self.config.saved()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]

    def encode(self, result: Result) -> bytes:
        """The file of this trial: its configuration, its result, and a digest of both."""
        content = {"measure": self.measure, "config": self.config.saved(), "result": result}
        return checkpoint.seal(checkpoint.encode_line({"digest": checkpoint.NO_DIGEST, **content}))

    def decode(self, file: bytes) -> Result | None:
        """The result in a file that `encode` wrote; None if the file is damaged or of another trial.

        Everything is checked: a shard may come from somebody else, and a digest can be made by anybody.
        """
        try:
            found = json.loads(file)
        except (ValueError, RecursionError):
            return None
        if not (isinstance(found, dict) and checkpoint.is_intact(file, found.get("digest"))):
            return None
        same = found.get("measure") == self.measure and found.get("config") == self.config.saved()
        return found["result"] if same and is_result(self.measure, found.get("result")) else None


@ignore_floating_point_errors
def run_trial(trial: Trial) -> bytes:
    """Compute a trial; return the content of its file."""
    return trial.encode(MEASURES[trial.measure](trial.config))
