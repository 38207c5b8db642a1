"""Arguments of layers that are equal but not the same, such as 2 and 2.0: one never changes what another gets."""

from collections.abc import Callable
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

F: Any = tnt.functional
LENGTHS = torch.tensor([5, 2, 0])
X = normal(3, 4, 5)

BY_EPS: dict[str, Callable[[Any], Any]] = {
    "batch": lambda eps: F.batch_norm(X, torch.zeros(4), torch.ones(4), eps=eps, lengths=LENGTHS),
    "BatchNorm1d": lambda eps: tnt.BatchNorm1d(4, eps=eps).eval()(X, lengths=LENGTHS),
    "instance": lambda eps: F.instance_norm(X, eps=eps, lengths=LENGTHS),
    "group": lambda eps: F.group_norm(X, 2, eps=eps, lengths=LENGTHS),
    "layer": lambda eps: F.layer_norm(X.mT, (4,), eps=eps, lengths=LENGTHS),
    "rms": lambda eps: F.rms_norm(X.mT, (4,), eps=eps, lengths=LENGTHS),
}


@pytest.mark.parametrize("name", BY_EPS)
@pytest.mark.parametrize(("wrong", "right"), [(True, 1.0), (False, 0.0)], ids=str)
def test_an_eps_of_another_type(name: str, wrong: bool, right: float) -> None:
    call = BY_EPS[name]
    with pytest.raises(ValueError, match=f"^eps: a number, finite and >= 0, got {wrong}.$"):
        call(wrong)
    near = call(right + 1e-7)  # another key of the cache
    torch.testing.assert_close(call(right), near, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eps", [torch.tensor(0.5), torch.tensor(True)], ids=str)
def test_an_eps_that_is_a_tensor(eps: Any) -> None:
    # torch's operators take it; as a key of a cache it would be found again after its value has changed.
    for call in BY_EPS.values():
        with pytest.raises(ValueError, match=r"^eps: a number, finite and >= 0, got "):
            call(eps)


@pytest.mark.parametrize(("wrong", "right"), [(2.0, 2), (True, 1)], ids=str)
def test_a_number_of_groups_of_another_type(wrong: Any, right: int) -> None:
    def call(groups: Any, eps: float) -> Any:
        return F.group_norm(X, groups, eps=eps, lengths=LENGTHS)

    eps = 0.25 + right  # of no other test
    with pytest.raises((TypeError, ValueError)):
        call(wrong, eps)
    torch.testing.assert_close(call(right, eps), call(right, eps + 1e-6), rtol=1e-4, atol=1e-4)


def test_a_mask_is_never_ignored() -> None:
    # torch's operator takes a tensor as the number of groups, and knows no mask.
    message = r"^arguments: plain integers and floats with a mask, got others\. Convert them\.$"
    for ragged in ({"lengths": LENGTHS}, {"valid": X[:, 0] > 0}, {"sample_weight": X[:, 0].abs()}):
        with pytest.raises(ValueError, match=message):
            F.group_norm(X, torch.tensor(2), **ragged)
