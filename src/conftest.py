"""Doctests of modules that need what is not here, the compiled kernels or torch, are not collected."""

from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("truenorm._native") is None:
    collect_ignore_glob += ["truenorm/engine/kernel.py", "truenorm/engine/native.py"]
if find_spec("torch") is None:
    collect_ignore_glob += ["truenorm/torch/*"]
