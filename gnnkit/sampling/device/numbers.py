"""Quantised rows on a device as the numbers that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnkit.schema import Quantization


@dataclass(frozen=True)
class DeviceNumbers:
    """The counterpart on a device of ``gnnkit.storage.convert.dequantize_rows``.

    Attributes:
        quantization: What quantised rows stand for.
        scale: Its scales, float32 ``[columns]`` on the device.
        offset: Likewise its offsets.
        whole: The columns that are kept whole, int64 ``[k]`` on the device.
    """

    quantization: Quantization
    scale: torch.Tensor
    offset: torch.Tensor
    whole: torch.Tensor

    @classmethod
    def of(cls, quantization: Quantization, device: torch.device) -> DeviceNumbers:
        """Copies what is needed to a device."""
        scale, offset = (torch.tensor(numbers, dtype=torch.float32, device=device) for numbers in (quantization.scale, quantization.offset))
        return cls(quantization, scale, offset, torch.tensor(quantization.whole, dtype=torch.int64, device=device))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The numbers of rows, uint8 ``[n, bytes]``, as float32 ``[n, columns]``; the device is not waited for."""
        columns, bits = len(self.scale), self.quantization.bits
        width = self.quantization.packed_nbytes(columns)
        steps = rows[:, :width]
        if bits < 8:
            steps = torch.cat([steps >> shift for shift in range(0, 8, bits)], 1)[:, :columns] & self.quantization.largest
        # Two operations, each rounded, as gnnkit.storage.convert has them.
        numbers = steps.float().mul_(self.scale).add_(self.offset)
        if len(self.whole):
            kept = rows[:, width:].clone(memory_format=torch.contiguous_format).view(torch.float32)
            numbers.index_copy_(1, self.whole, kept)
        return numbers
