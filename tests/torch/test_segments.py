"""`segments` with a pattern in which the order of rows within a sample matters."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402


@pytest.mark.parametrize("rows", [10, 40, 300])
def test_rows_of_a_segment_keep_their_order(rows: int) -> None:
    """Statistics of each position, over the samples that have it: a sort that is not stable would mix positions."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(-2, 2, (rows,), generator=generator)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64) + torch.arange(rows)[:, None]
    position = torch.tensor([int((ids[:i] == ids[i]).sum()) for i in range(rows)])
    y = tnt.Normalize("[b] t c", 3).double()(x, segments=ids)
    for t in range(int(position.max()) + 1):
        here = x[position == t]
        expected = (here - here.mean(0)) / (here.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(y[position == t], expected, rtol=1e-10, atol=1e-10)
