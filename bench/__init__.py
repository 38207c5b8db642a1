"""truenorm beside its peers: values first, then time. `python -m bench`, from the repository's root."""
