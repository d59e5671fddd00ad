"""Window attention in a vision tower: which tokens of a grid see each other, and their order while they do."""

import torch
from torch import Tensor


def window_order(rows: int, columns: int, side: int, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """(order int64 [rows * columns], lengths) of a row-by-row grid's windows; those at its far edges may be smaller.

    Windows do not see each other, so their order is free: neighbours of one length are computed together.
    """
    # Qwen2.5-VL pads the grid to whole windows instead, and drops the padding again.
    tokens = torch.arange(rows * columns, device=device).view(rows, columns)
    top, left = rows // side * side, columns // side * side  # where the smaller windows begin
    parts = [
        _windows(tokens[:top, :left], side, side),
        _windows(tokens[:top, left:], side, columns - left),
        _windows(tokens[top:, :left], rows - top, side),
        _windows(tokens[top:, left:], rows - top, columns - left),
    ]
    parts.sort(key=lambda part: part.shape[1], reverse=True)
    order = torch.cat([part.flatten() for part in parts])
    return order, tuple(length for part in parts for length in [part.shape[1]] * part.shape[0])


def _windows(tokens: Tensor, height: int, width: int) -> Tensor:
    """A part of the grid that windows of one size tile, window by window: [windows, height * width]"""
    if tokens.numel() == 0:
        return tokens.new_empty((0, height * width))
    windows: Tensor = tokens.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2)
    return windows.flatten(0, 1).flatten(1)


def inverse(order: Tensor) -> Tensor:
    """int64 [n]: where each token of the grid went in `order`."""
    return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))


def in_order(x: Tensor, order: Tensor, rows: int) -> Tensor:
    """Whole temporal grids [n, width] with each grid's tokens, of so many rows each, in this order."""
    tokens = x.view(-1, order.shape[0], rows * x.shape[1])
    return tokens.index_select(1, order).view(x.shape)
