"""File formats: a reader turns a file into batches of raw rows and knows where each batch begins and ends."""

from penstock.formats.model import Batch, Limits, Position, RawRow, Reader
from penstock.formats.opening import format_of, open_reader

__all__ = ["Batch", "Limits", "Position", "RawRow", "Reader", "format_of", "open_reader"]
