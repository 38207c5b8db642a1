"""`convert` and `padded` on models of transformers: a sequence in a padded batch equals the same sequence alone.

The oracle is the model as it was, without any padding: each sequence by itself, and where batch norm trains, all in
lockstep (`tools/lockstep.py`).
"""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fingerprint import fingerprint  # noqa: E402
from tools.lockstep import run_in_lockstep  # noqa: E402
from tools.retrofit_models import CASES, Case, alone, difference, mask_of, measure, with_padding  # noqa: E402

import truenorm.torch as tnt  # noqa: E402

# WavLM passes masks of two kinds to torch's attention.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")

QUICK = ("Wav2Vec2, group", "Wav2Vec2Conformer", "Hubert, batch norm")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PADDING: list[tuple[int, Any]] = [(0, 0.0), (53, "random"), (30, "nan")]


@pytest.mark.parametrize("name", NAMES)
def test_before_padding_moves_the_valid_outputs_and_after_it_does_not(name: str) -> None:
    """The rows of the table in docs/retrofit.md."""
    row = measure(CASES[name])
    assert max(row.before_without_mask, row.before_eval, row.before_train) > 1e-2
    assert max(row.after_eval, row.after_train) < 1e-5


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_in_evaluation_each_sequence_is_what_it_is_alone(name: str, with_mask: bool) -> None:
    case = CASES[name]
    model = case.build().eval()
    x, lengths = case.batch()
    with torch.no_grad():
        expected = alone(case, model, x, lengths)
        tnt.convert(model)
        for more, content in PADDING:
            wide = with_padding(x, lengths, more, content)
            mask = mask_of(lengths, wide.shape[1]).long() if with_mask else None
            with case.padded():
                found = case.call(model, wide, mask)
            assert difference(found, expected) < 1e-5, (more, content)


@pytest.mark.parametrize("name", NAMES)
def test_in_training_outputs_gradients_and_buffers_are_those_without_padding(name: str) -> None:
    case = CASES[name]
    oracle = case.build(torch.float64).train()
    model = copy.deepcopy(oracle)
    start = copy.deepcopy(oracle.state_dict())
    x, lengths = case.batch(torch.float64)
    parts = [x[i : i + 1, :n].clone().requires_grad_() for i, n in enumerate(lengths.tolist())]
    expected = [one[0] for one in run_in_lockstep(oracle, parts, case.call)]
    cotangents = [torch.randn_like(one) for one in expected]
    sum((one * dy).sum() for one, dy in zip(expected, cotangents, strict=True)).backward()

    tnt.convert(model)
    for more, content in PADDING[:2]:
        model.load_state_dict(start)
        model.zero_grad()
        wide = with_padding(x, lengths, more, content).requires_grad_()
        with case.padded():
            found = case.call(model, wide, mask_of(lengths, wide.shape[1]).long())
        assert difference(found, expected) < 1e-7
        sum((found[i, : len(dy)] * dy).sum() for i, dy in enumerate(cotangents)).backward()
        for i, part in enumerate(parts):
            torch.testing.assert_close(wide.grad[i, : part.shape[1]], part.grad[0], rtol=1e-6, atol=1e-8)
            assert not wide.grad[i, part.shape[1] :].any()
        for (key, one), two in zip(model.named_parameters(), oracle.parameters(), strict=True):
            assert (one.grad is None) == (two.grad is None), key
            if two.grad is not None:
                torch.testing.assert_close(one.grad, two.grad, rtol=1e-6, atol=1e-7, msg=f"{key} differs")
        for (key, buffer), other in zip(model.named_buffers(), oracle.buffers(), strict=True):
            torch.testing.assert_close(buffer, other, rtol=1e-9, atol=1e-9, msg=f"{key} differs")


@pytest.mark.parametrize("name", NAMES)
def test_convert_and_revert_leave_the_model_as_it_was(name: str) -> None:
    case = CASES[name]
    model = case.build().train()
    before, keys = fingerprint(model), list(model.state_dict())
    report = tnt.convert(model)
    assert report.changed
    assert list(model.state_dict()) == keys
    tnt.revert(model)
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_few_training_steps_lower_the_loss(name: str) -> None:
    case = CASES[name]
    model: Any = case.build().train()
    tnt.convert(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, lengths = case.batch()
    with torch.no_grad():
        frames = [len(one) for one in alone(case, case.build().eval(), x, lengths)]
    losses = []
    for _ in range(5):
        with case.padded():
            y = case.call(model, x, mask_of(lengths, x.shape[1]).long())
        valid = mask_of(torch.tensor(frames), y.shape[1])
        loss = (y - 1)[valid].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), [("patchtst", "PatchTST"), ("patchtsmixer", "PatchTSMixer")])
def test_models_of_windows_of_a_fixed_size_have_no_sequences_alone(package: str, name: str) -> None:
    """Why docs/retrofit.md leaves them out of the table."""
    options: dict[str, Any] = {"num_input_channels": 2, "context_length": 24, "patch_length": 4, "patch_stride": 4}
    options |= {"d_model": 16} | ({"norm_mlp": "BatchNorm"} if name == "PatchTSMixer" else {})
    case = Case(name, package, f"{name}Model", f"{name}Config", options, argument="past_values")
    model, x = case.build().eval(), torch.randn(2, 24, 2)
    with pytest.raises(ValueError, match="doesn't match model configuration"):
        case.call(model, x[:1, :16])
    assert case.call(model, x).shape[0] == 2
    assert any(isinstance(layer, torch.nn.BatchNorm1d) for layer in model.modules())


@pytest.mark.slow
def test_attention_to_some_queries_is_reported() -> None:
    case = CASES["Informer encoder"]
    case = dataclasses.replace(case, options=case.options | {"attention_type": "prob"})
    model = case.build().eval()
    tnt.convert(model)
    with pytest.warns(tnt.PaddingWarning, match="called without lengths"), case.padded():
        case.call(model, case.batch()[0])


@pytest.mark.slow
def test_convolutions_with_a_kernel_for_each_position() -> None:
    """ConvBERT multiplies the windows of `unfold` by kernels that it computes of the positions."""
    options: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "embedding_size": 32, "num_hidden_layers": 2}
    options |= {"num_attention_heads": 4, "intermediate_size": 48, "conv_kernel_size": 5}
    case = Case("ConvBERT", "convbert", "ConvBertModel", "ConvBertConfig", options, argument="input_ids")
    model, lengths = case.build().double().eval(), [15, 7, 10]
    tnt.convert(model)
    x = torch.randint(1, 50, (3, 15), generator=torch.Generator().manual_seed(0))
    with tnt.padded(lengths=lengths) as tracked:
        y = case.call(model, x)
    assert tracked.report.mixed == ()
    for row, n in enumerate(lengths):
        torch.testing.assert_close(y[row : row + 1, :n], case.call(model, x[row : row + 1, :n]), rtol=1e-10, atol=1e-12)
