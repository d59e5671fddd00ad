"""Reads the fields of a bit stream's header, as the specifications of MPEG write them."""


class Bits:
    """Of some bytes, from the first bit on. All methods raise ValueError behind the last one."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, n: int) -> int:
        """u(n): a number of n bits."""
        self._left -= n
        if self._left < 0:
            raise ValueError("the header ends")
        return self._value >> self._left & (1 << n) - 1

    def golomb(self) -> int:
        """ue(v): a number of Exp-Golomb code; its signed form takes the same bits."""
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > 32:
                raise ValueError("no number has so many bits")
        return (1 << zeros) - 1 + self.take(zeros)
