"""What developers run by hand: mutants, fuzzing, sanitizers, experiments, recordings, pictures."""
