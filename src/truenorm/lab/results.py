"""A results directory: the plan of a comparison, and one file for each finished trial.

    grid.json          the plan: format, version of truenorm, hash of the data, and the grids (`lab.grid`)
    trial-NAME.json    one finished trial: measure, config, result (`lab.trial`). NAME is a hash of measure and config
    machine.json       what depends on the machine: seconds of each trial, workers that were lost, trials that failed
    lock               locked while a process works on the directory

grid.json and the trials do not depend on how many workers ran the trials, on their kind, or on how often the work was
interrupted: two directories of the same grid have the same files, byte for byte, once they are complete. So shards are
merged by taking over files, and a directory is resumed by running the trials that have no file.

A trial is written as a whole or not at all. A file that is damaged, or that belongs to another configuration, counts
as missing, and its trial is run again. Failed trials have no file: they are listed in machine.json and tried again.

`read` yields the trials of a directory in the order of the grid, one at a time: curves are never all in memory.
"""
