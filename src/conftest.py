"""Doctests of modules that need what is not here, the compiled kernels, torch or Triton, are not collected."""

from importlib.util import find_spec

# These have no doctests, and importing Triton takes a second.
collect_ignore_glob = [f"truenorm/torch/triton/{name}.py" for name in ("kernels", "verbs", "function")]
if find_spec("truenorm._native") is None:
    collect_ignore_glob += ["truenorm/engine/kernel.py", "truenorm/engine/native.py"]
if find_spec("torch") is None:
    collect_ignore_glob += ["truenorm/torch/*"]
