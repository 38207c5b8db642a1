"""Models of transformers in which padding changes the valid outputs, before and after `convert` and `padded`.

    python -m tools.retrofit_models [--write docs/retrofit.md]

Each model is built from a small configuration with random weights; nothing is downloaded. Weights, biases and running
statistics are drawn at random as well: with weight 1 and bias 0 much goes unnoticed. The numbers are the largest
differences between the outputs of a sequence in a padded batch and of the same sequence alone.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

import truenorm.torch as tnt
from tools.lockstep import run_in_lockstep

SPEECH: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
    "conformer_conv_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False, "initializer_range": 0.2,
}  # fmt: skip
RAW = (1240, 487, 814)  # lengths in samples: 61, 23 and 39 frames
EVEN = (1260, 500, 834)  # 62, 24 and 40: SEW gives an odd number a frame more, by a condition on it


@dataclass(frozen=True)
class Case:
    """A model: how to build it, what it takes, and where its output is."""

    name: str
    package: str  # below transformers.models
    model: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    norms: str = ""  # for the table
    lengths: tuple[int, ...] = RAW
    features: int | None = None  # x is (b, t, features); None: (b, t), raw samples
    argument: str = "input_values"
    along: int | None = None  # for `padded`, where the first layer does not say which axis has the positions
    masked: bool = True  # whether the model takes a mask
    file: str = ""  # modeling_*.py; by default it is called like the package

    def build(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        module = importlib.import_module(f"transformers.models.{self.package}.modeling_{self.file or self.package}")
        torch.manual_seed(0)
        model: nn.Module = getattr(module, self.model)(getattr(module, self.config)(**self.options))
        with torch.no_grad():
            for name, one in [*model.named_parameters(), *model.named_buffers()]:
                if one.is_floating_point() and one.dim() == 1 and one.numel() > 1 and "freq" not in name:
                    one.copy_(
                        0.5 + torch.rand(one.shape)
                        if "weight" in name or "var" in name
                        else 0.3 * torch.randn(one.shape)
                    )
        for layer in model.modules():  # feature encoders that set requires_grad on a view of their input
            if hasattr(layer, "_requires_grad"):
                vars(layer)["_requires_grad"] = False
        return model.to(dtype)

    def batch(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Sequences with zeros behind them, and their lengths."""
        shape = (len(self.lengths), max(self.lengths), *(() if self.features is None else (self.features,)))
        generator = torch.Generator().manual_seed(1)
        x = 0.5 + torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        lengths = torch.tensor(self.lengths)
        return with_padding(x, lengths, 0, 0.0), lengths

    def padded(self) -> Any:
        return tnt.padded(lengths=self.lengths, along=self.along)

    def call(self, model: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The outputs (b, t', c) for x. `mask` has ones at valid positions."""
        given = {} if mask is None or not self.masked else {"attention_mask": mask}
        output: Tensor = model(**{self.argument: x}, **given)[0]
        return output


CASES = {
    case.name: case
    for case in (
        Case("Wav2Vec2, group", "wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", SPEECH, "group, layer"),
        Case(
            "Wav2Vec2, layer", "wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config",
            SPEECH | {"feat_extract_norm": "layer", "do_stable_layer_norm": True}, "layer",
        ),
        Case(
            "Wav2Vec2Conformer", "wav2vec2_conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig",
            SPEECH | {"position_embeddings_type": "relative", "conv_depthwise_kernel_size": 5}, "group, batch, layer",
        ),
        Case(
            "Wav2Vec2Conformer, rotary", "wav2vec2_conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig",
            SPEECH | {"position_embeddings_type": "rotary", "conv_depthwise_kernel_size": 5}, "group, batch, layer",
        ),
        Case(
            "Hubert, batch norm", "hubert", "HubertModel", "HubertConfig", SPEECH | {"conv_pos_batch_norm": True},
            "group, batch, layer",
        ),
        Case("UniSpeech", "unispeech", "UniSpeechModel", "UniSpeechConfig", SPEECH, "group, layer"),
        Case("WavLM", "wavlm", "WavLMModel", "WavLMConfig", SPEECH, "group, layer"),
        Case("UniSpeechSat", "unispeech_sat", "UniSpeechSatModel", "UniSpeechSatConfig", SPEECH, "group, layer"),
        Case(
            "Data2VecAudio", "data2vec", "Data2VecAudioModel", "Data2VecAudioConfig", SPEECH | {"mask_time_prob": 0.0},
            "layer", file="data2vec_audio",
        ),
        Case("SEW", "sew", "SEWModel", "SEWConfig", SPEECH | {"squeeze_factor": 2}, "group, layer", EVEN),
        Case("SEW-D", "sew_d", "SEWDModel", "SEWDConfig", SPEECH | {"squeeze_factor": 2}, "group, layer", EVEN),
        Case(
            "SpeechT5 speech encoder", "speecht5", "SpeechT5EncoderWithSpeechPrenet", "SpeechT5Config",
            SPEECH | {
                "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "encoder_layerdrop": 0.0,
                "positional_dropout": 0.0, "encoder_max_relative_position": 12,
            },
            "group, layer",
        ),
        Case(
            "Moonshine encoder", "moonshine", "MoonshineEncoder", "MoonshineConfig",
            {
                "hidden_size": 24, "intermediate_size": 32, "encoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4, "attention_dropout": 0.0,
                "initializer_range": 0.2,
            },
            "group, layer", lengths=(12400, 4807, 8014),
        ),
        Case(
            "Parakeet encoder", "parakeet", "ParakeetEncoder", "ParakeetEncoderConfig",
            {
                "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
                "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5, "dropout": 0.0,
                "dropout_positions": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
                "initializer_range": 0.2,
            },
            "batch, layer", (248, 103, 174), 16, "input_features", along=1,
        ),
        Case(
            "LASR encoder", "lasr", "LasrEncoder", "LasrEncoderConfig",
            {
                "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
                "num_mel_bins": 16, "conv_kernel_size": 9, "subsampling_conv_channels": 8, "dropout": 0.0,
                "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.2,
            },
            "batch, layer", (124, 49, 81), 16, "input_features",
        ),
        Case(
            "SeamlessM4T speech encoder", "seamless_m4t", "SeamlessM4TSpeechEncoder", "SeamlessM4TConfig",
            {
                "hidden_size": 24, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4,
                "speech_encoder_intermediate_size": 32, "feature_projection_input_dim": 16,
                "conv_depthwise_kernel_size": 5, "speech_encoder_dropout": 0.0, "speech_encoder_layerdrop": 0.0,
                "adaptor_dropout": 0.0, "adaptor_kernel_size": 4, "adaptor_stride": 4, "initializer_range": 0.2,
            },
            "batch, layer", (248, 103, 174), 16, "input_features",
        ),
        Case(
            "Informer encoder", "informer", "InformerEncoder", "InformerConfig",
            {
                "prediction_length": 8, "context_length": 160, "lags_sequence": [1], "num_time_features": 1,
                "d_model": 24, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 32,
                "attention_type": "full", "distil": True, "dropout": 0.0, "attention_dropout": 0.0,
                "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "init_std": 0.2,
            },
            "batch, layer", (96, 37, 61), 4, "inputs_embeds", masked=False,
        ),
    )
}  # fmt: skip


def with_padding(x: Tensor, lengths: Tensor, more: int, content: float | str) -> Tensor:
    """x with `more` positions behind, and this content at all positions that are not valid, or "random" numbers."""
    b, t = x.shape[:2]
    wide = torch.cat([x, x.new_zeros((b, more, *x.shape[2:]))], 1)
    valid = mask_of(lengths, t + more).view(b, t + more, *[1] * (x.dim() - 2))
    filler = 3 * torch.randn_like(wide) if content == "random" else torch.full_like(wide, float(content))
    return torch.where(valid, wide, filler)


def mask_of(lengths: Tensor, size: int) -> Tensor:
    return torch.arange(size) < lengths[:, None]


def alone(case: Case, model: nn.Module, x: Tensor, lengths: Tensor) -> list[Tensor]:
    """The outputs of each sequence by itself, without padding: (t', c) each."""
    return [case.call(model, x[i : i + 1, :n])[0] for i, n in enumerate(lengths.tolist())]


def difference(found: Tensor, expected: list[Tensor]) -> float:
    """The largest at valid positions; inf if not all are finite."""
    parts = [found[i, : len(one)].detach() for i, one in enumerate(expected)]
    assert all(part.shape == one.shape for part, one in zip(parts, expected, strict=True))
    if not all(part.isfinite().all() for part in parts):
        return float("inf")
    return max(float((part - one.detach()).abs().max()) for part, one in zip(parts, expected, strict=True))


# ---- the table ----


@dataclass(frozen=True)
class Row:
    """The largest differences to the sequences without padding."""

    before_without_mask: float
    before_eval: float
    before_train: float
    after_eval: float
    after_train: float


def measure(case: Case, more: int = 53) -> Row:
    """In a batch with `more` positions of zeros behind its longest sequence, and with the mask that the model takes."""
    without_mask = 0.0
    found: dict[bool, list[float]] = {}
    for training in (False, True):
        model = case.build().train(training)
        x, lengths = case.batch()
        start = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            parts = [x[i : i + 1, :n] for i, n in enumerate(lengths.tolist())]
            expected = [one[0] for one in run_in_lockstep(model, parts, case.call)]
            wide = with_padding(x, lengths, more, 0.0)
            mask = mask_of(lengths, wide.shape[1]).long()
            if not training:
                without_mask = difference(case.call(model, wide), expected)
            model.load_state_dict(start)
            before = difference(case.call(model, wide, mask), expected)
            model.load_state_dict(start)
            tnt.convert(model)
            with case.padded():
                after = difference(case.call(model, wide, mask), expected)
        found[training] = [before, after]
    return Row(without_mask, found[False][0], found[True][0], found[False][1], found[True][1])


HEADER = ["model", "norms", "no mask", "mask", "mask, training", "padded", "padded, training"]


def table(names: Sequence[str] = tuple(CASES)) -> str:
    lines = [f"| {' | '.join(HEADER)} |", "|---|---|---|---|---|---|---|"]
    for name in names:
        row = measure(CASES[name])
        numbers = (row.before_without_mask, row.before_eval, row.before_train, row.after_eval, row.after_train)
        lines.append(f"| {name} | {CASES[name].norms} | {' | '.join(f'{one:.1g}' for one in numbers)} |")
    version = importlib.import_module("transformers").__version__
    return "\n".join(
        [*lines, "", f"transformers {version}, torch {torch.__version__.split('+')[0]}, float32, on the CPU."]
    )


@click.command()
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(write: Path | None) -> None:
    """Run the models with and without padding, before and after, and print the differences."""
    from bench.table import replace

    torch.set_num_threads(1)
    found = table()
    if write is None:
        click.echo(found)
    else:
        write.write_text(replace(write.read_text("utf-8"), found, "retrofit-models"), "utf-8")


if __name__ == "__main__":
    main()
