"""Timings of truenorm beside other implementations. Run `python -m bench` from the root of the repository."""
