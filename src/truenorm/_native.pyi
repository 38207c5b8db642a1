"""Compiled part of truenorm; absent where it could not be built."""

def build_info() -> dict[str, str]:
    """Return how this module was built and what the CPU supports."""
