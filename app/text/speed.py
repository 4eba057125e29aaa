"""The figures that a plan predicts, in a line."""

from __future__ import annotations

from meshwright.app.text.figures import band, counted, percent, seconds, significant
from meshwright.solver.answer.predicted import Predicted


def speed_in_words(predicted: Predicted, *, devices: int | None = None) -> str:
    """Figures with their bands; the number of devices too where it is given."""
    bands = predicted.bands
    figures = [f"{significant(predicted.tokens_per_s)} tokens/s{band(predicted.tokens_per_s, bands.get('tokens_per_s'))}"]
    if predicted.step_time_s is not None:
        figures.append(f"{seconds(predicted.step_time_s)} a step")
    if predicted.mfu is not None:
        figures.append(f"MFU {percent(predicted.mfu)}")
    if predicted.ttft_p95_s is not None:
        figures.append(f"P95 TTFT {seconds(predicted.ttft_p95_s)}{band(predicted.ttft_p95_s, bands.get('ttft_p95_s'))}")
    if predicted.tpot_p95_s is not None:
        figures.append(f"P95 TPOT {seconds(predicted.tpot_p95_s)}{band(predicted.tpot_p95_s, bands.get('tpot_p95_s'))}")
    if predicted.energy_per_token_j is not None:
        figures.append(f"{significant(predicted.energy_per_token_j)} J a token")
    if devices is not None:
        figures.append(counted(devices, "device"))
    return ", ".join(figures)
