"""Files that are no images, or that harm who decodes them."""

import struct
import zlib

from support.pictures import png

PIXELS = (b"IDAT", zlib.compress((b"\0" + b"\x90" * 12) * 4))
NOTHING = (b"IDAT", zlib.compress(b""))
GOOD = png(4, 4, PIXELS)

FILES = {
    "empty": b"",
    "one byte": b"\xff",
    "zeros": bytes(4096),
    "text": b"this is not an image\n",
    "html": b"<html><body>404</body></html>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "script": b"#!/bin/sh\nrm -rf /\n",
    "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "elf": b"\x7fELF" + bytes(60),
    "signature only": b"\x89PNG\r\n\x1a\n",
    "header only": GOOD[:33],
    "cut in the data": GOOD[:45],
    "cut near the end of the data": GOOD[:-26],
    "wrong checksum": GOOD[:29] + b"\0\0\0\0" + GOOD[33:],
    "chunk longer than the file": GOOD[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + b"x" * 9,
    "no pixels": png(0, 0, NOTHING),
    "no width": png(0, 7, NOTHING),
    "negative size": png(2**31, 2**31, NOTHING),
    "bomb": png(60_000, 60_000, (b"IDAT", zlib.compress(b"\0" * 10_000_000))),
    "largest header": png(2**31 - 1, 2**31 - 1, (b"IDAT", zlib.compress(b"\0"))),
    "text bomb": png(4, 4, (b"zTXt", b"a\0\0" + zlib.compress(b"x" * 90_000_000)), PIXELS),
    "gif without frames": b"GIF89a\x05\x00\x05\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff;",
    "gif bomb": b"GIF89a\xff\xff\xff\xff\x80\x00\x00"
    + bytes(6)
    + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x02L\x01\0;",
    "bmp bomb": b"BM"
    + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0),
    "tiff loop": b"II*\0\x08\0\0\0\x01\0\0\x01\x03\0\x01\0\0\0\x01\0\0\0\x08\0\0\0",
    "jpeg of a header": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01",
    "jpeg without data": b"\xff\xd8\xff\xd9",
    "webp of a header": b"RIFF\x1a\0\0\0WEBPVP8L",
    "ppm bomb": b"P6\n100000 100000\n255\n",
    "ppm cut": b"P6\n10 10\n255\nabc",
    "numpy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}",
}
