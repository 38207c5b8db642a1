"""`segments`: rows of a sample keep their order, in which "[b] t c" finds their positions."""

import numpy as np

import truenorm as tn


def test_rows_of_a_segment_keep_their_order() -> None:
    """Statistics of each position, over the samples that have it: a sort that is not stable would mix positions."""
    rng = np.random.default_rng(0)
    for rows in (10, 40, 300):
        ids = rng.permutation(np.repeat([7, -2, 3, 11], rows))[:rows]
        x, dy = rng.normal(size=(2, rows, 3)) + np.arange(rows)[:, None]
        position = np.array([(ids[:i] == ids[i]).sum() for i in range(rows)])
        out = tn.forward(x, "[b] t c", segments=ids)
        dx = tn.backward(dy, out)[0]
        for t in range(position.max() + 1):
            here = position == t
            alone = tn.forward(x[here], "[b] c")
            np.testing.assert_allclose(out.y[here], alone.y, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(dx[here], tn.backward(dy[here], alone)[0], rtol=1e-12, atol=1e-12)
