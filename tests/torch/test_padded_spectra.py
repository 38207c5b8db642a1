"""Short-time spectra inside `padded`: frames of each sequence alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [61, 23, 40]


class Spectra(nn.Module):
    """Magnitudes of x (b, samples), a norm and a convolution over frames."""

    def __init__(self, spectrum: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.spectrum = spectrum
        self.norm = tnt.GroupNorm(1, 5)
        self.conv = nn.Conv1d(5, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.conv(self.norm((self.spectrum(x).abs() + 0.1).log()))


WINDOW = torch.hann_window(8, dtype=torch.float64)
SPECTRA: dict[str, Callable[[Tensor], Tensor]] = {
    "inside": lambda x: torch.stft(x, 8, 3, window=WINDOW, center=False, return_complex=True),
    "centered": lambda x: torch.stft(x, 8, hop_length=4, window=WINDOW, return_complex=True),
    "centered, zeros": lambda x: x.stft(8, window=WINDOW, pad_mode="constant", return_complex=True),
    "a shorter window": lambda x: torch.stft(x, 8, 4, 6, WINDOW[:6], return_complex=True),
    "pairs": lambda x: torch.view_as_complex(
        torch.view_as_real(torch.stft(x, 8, 4, window=WINDOW, return_complex=True))
    ),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_short_time_spectra(name: str) -> None:
    assert_as_alone(Spectra(SPECTRA[name]).double(), normal(3, 61, dtype=torch.float64), LENGTHS, axis=1, out=2)


def test_a_transform_of_each_window() -> None:
    model = Spectra(lambda x: torch.fft.rfft(x.unfold(1, 8, 4), dim=-1).mT).double()
    assert_as_alone(model, normal(3, 61, dtype=torch.float64), LENGTHS, axis=1, out=2, along=1)


def test_a_transform_along_positions_is_lost() -> None:
    model = Spectra(lambda x: torch.fft.rfft(x[:, None].expand(-1, 5, -1)))
    with (
        pytest.raises(ValueError, match=r"GroupNorm '.*' has to know .* lost at fft_rfft in Spectra"),
        tnt.padded(lengths=LENGTHS, along=1),
    ):
        model(normal(3, 61))
