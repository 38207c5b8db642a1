"""The speed map: truenorm's layers beside torch's own over a sampled grid of shapes. Run `python -m bench.map`."""
