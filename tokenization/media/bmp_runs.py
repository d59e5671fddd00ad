"""Pixels of run-length BMPs (RLE8, RLE4), to the byte as Pillow's own decoder gives them, at a cost that bytes bound.

Pillow reads such a file two bytes at a time and adds pixels one by one: 41 KB took it 16 s. This decoder, which takes
the place of that one, reads blocks. A code of two bytes costs it the same whatever it stands for, but for the memory
that is written.
"""

from PIL import Image, ImageFile

_BLOCK = 1 << 16  # bytes that are read at once, and so between two checks
_LONGEST = 2 + 255 + 1  # bytes of one code: an absolute one of RLE8 with all that it may hold, and its padding
_BYTES = tuple(bytes((byte,)) for byte in range(256))
_NIBBLES = tuple(bytes((byte >> 4, byte & 15)) for byte in range(256))


class RunLengthDecoder(ImageFile.PyDecoder):
    """Pillow's "bmp_rle". args: (raw mode, whether it is RLE4, direction of the rows), as Pillow's plugin gives."""

    _pulls_fd = True

    def decode(self, buffer: Image.DecoderInput) -> tuple[int, int]:
        """(-1, 0), once the image is set. Raises ValueError where the file has too few pixels."""
        pixels = self._pixels(rle4=self.args[1])
        self.set_as_raw(bytes(pixels), "L" if self.mode in ("1", "L") else "P", (0, self.args[-1]))
        return -1, 0

    def _pixels(self, *, rle4: bool) -> bytearray:
        """One byte each. A run ends with its row; other codes go on in the next row, as in Pillow."""
        assert self.fd is not None
        width, most = self.state.xsize, self.state.xsize * self.state.ysize
        out = bytearray()
        x = at = 0
        odd = self.fd.tell() & 1  # codes are aligned by their place in the file
        block = self.fd.read(_BLOCK)
        while len(out) < most:
            if at + _LONGEST > len(block):
                odd ^= at & 1
                block, at = block[at:] + self.fd.read(_BLOCK), 0
                if len(block) < 2:
                    break
            n, value = block[at], block[at + 1]
            at += 2
            if n:
                if x + n > width:
                    n = max(width - x, 0)
                out += (_NIBBLES[value] * (n + 1 >> 1))[:n] if rle4 else _BYTES[value] * n
                x += n
            elif value > 2:  # absolute: so many pixels, one by one
                n = min(value, most - len(out))
                packed = block[at : at + (n + 1 >> 1 if rle4 else n)]
                at += n + 1 >> 1 if rle4 else n
                out += b"".join([_NIBBLES[byte] for byte in packed])[:n] if rle4 else packed
                if at > len(block):
                    break
                x += value
                at += at + odd & 1
            elif value == 0:  # end of a row
                out += bytes(-len(out) % width)
                x = 0
            elif value == 1 or at + 2 > len(block):
                break
            else:  # a step to the right and up
                out += bytes(min(block[at] + block[at + 1] * width, most - len(out)))
                x = len(out) % width
                at += 2
        return out
