"""A name server of a few names, one of which changes its mind after each question."""

import ipaddress
import socket
import struct
import threading
from collections import Counter

PUBLIC, PUBLIC6 = "93.184.216.34", "2606:2800:220:1::34"
METADATA = "169.254.169.254"
A, AAAA = 1, 28
NAMES: dict[str, tuple[str, ...]] = {
    "public.test": (PUBLIC,),
    "cdn.public.test": (PUBLIC,),
    "other.test": (PUBLIC,),
    "public6.test": (PUBLIC6,),
    "two.test": ("93.184.216.99", PUBLIC),  # nobody listens at the first one
    "xn--bcher-kva.test": (PUBLIC,),
    "expired.test": (PUBLIC,),
    "wrong-name.test": (PUBLIC,),
    "self-signed.test": (PUBLIC,),
    "private.test": ("10.0.0.1",),
    "loopback.test": ("127.0.0.1",),
    "metadata.test": (METADATA,),
    "mixed.test": (PUBLIC, "127.0.0.1"),
    "mixed6.test": (PUBLIC, "::1"),
    "mapped.test": ("::ffff:10.0.0.1",),
    "nat64.test": ("64:ff9b::7f00:1",),
    "flips.test": (PUBLIC,),  # and 127.0.0.1 from its second question on
}


class NameServer:
    def __init__(self, address: str) -> None:
        self.asked: Counter[str] = Counter()  # questions for A, by name
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(4096)
            if (answer := self._answer(question)) is not None:
                self._socket.sendto(answer, client)

    def _answer(self, question: bytes) -> bytes | None:
        end, labels = 12, list[str]()
        while n := question[end]:
            labels.append(question[end + 1 : end + 1 + n].decode("ascii").lower())
            end += 1 + n
        (kind,) = struct.unpack_from(">H", question, end + 1)
        name = ".".join(labels)
        if name == "silent.test":
            return None
        self.asked[name] += kind == A
        known = NAMES.get(name)
        if name == "flips.test" and self.asked[name] > 1:
            known = ("127.0.0.1",)
        records = b""
        n_records = 0
        for address in map(ipaddress.ip_address, known or ()):
            if (address.version == 4) == (kind == A):
                n_records += 1
                records += b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(address.packed)) + address.packed
        flags = 0x8180 if known is not None else 0x8183  # 3: there is no such name
        return question[:2] + struct.pack(">HHHHH", flags, 1, n_records, 0, 0) + question[12 : end + 5] + records
