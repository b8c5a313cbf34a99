#!/usr/bin/env python3
"""Writes small PNG and JPEG files next to this script, and rgb.pkl: what Pillow's convert("RGB") makes of each, (H, W, 3)."""
import os
import pickle
import struct
import zlib

import numpy
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
H, W = 13, 19


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, depth, colour, rows, *others, width=W):
    """Kinds that Pillow doesn't write. `rows` are the bytes of each."""
    body = zlib.compress(b"".join(b"\x00" + bytes(row) for row in rows))
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
                   + b"".join(others) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def main():
    y, x = numpy.mgrid[:H, :W]
    smooth = numpy.stack([x * 13, y * 19, 255 - x * 6 - y * 10], 2).astype(numpy.uint8)
    rng = numpy.random.default_rng(0)
    noise = rng.integers(0, 256, (H, W, 4), dtype=numpy.uint8)
    rgb, rgba = Image.fromarray(smooth), Image.fromarray(noise, "RGBA")

    def save(image, name, **options):
        image.save(os.path.join(HERE, name), **options)

    save(rgb, "rgb.png")
    save(rgba, "rgba.png")
    save(rgba.convert("L"), "grey.png")
    save(rgba.convert("LA"), "grey_alpha.png")
    save(rgba.convert("1"), "one_bit.png")
    save(rgb.quantize(13), "palette_4_bits.png")
    save(rgb.quantize(200), "palette_transparent.png", transparency=3)
    save(rgb, "transparent_colour.png", transparency=(0, 0, 255))
    save(Image.fromarray((x * 3001 + y * 211).astype(numpy.uint16)), "grey_16.png")
    deep = rng.integers(0, 256, (H, W * 6), dtype=numpy.uint8)
    png("rgb_16.png", 16, 2, deep)
    png("rgba_16.png", 16, 6, rng.integers(0, 256, (H, W * 8), dtype=numpy.uint8))
    png("grey_alpha_16.png", 16, 4, rng.integers(0, 256, (H, W * 4), dtype=numpy.uint8))
    png("grey_2_bits.png", 2, 0, rng.integers(0, 256, (H, 5), dtype=numpy.uint8))
    png("grey_4_bits.png", 4, 0, rng.integers(0, 256, (H, 10), dtype=numpy.uint8))
    png("gamma.png", 8, 2, smooth.reshape(H, -1), chunk(b"gAMA", struct.pack(">I", 100000)))
    for sampling in (0, 1, 2):
        save(rgb, f"rgb_{('444', '422', '420')[sampling]}.jpg", subsampling=sampling, quality=90)
    save(rgb, "progressive.jpg", progressive=True)
    save(rgb.convert("L"), "grey.jpg")
    save(rgb, "stored_as_rgb.jpg", keep_rgb=True)
    save(rgb.convert("CMYK"), "cmyk.JPEG")
    # YCCK: the CMYK file, said to be transformed.
    bytes_ = bytearray(open(os.path.join(HERE, "cmyk.JPEG"), "rb").read())
    bytes_[bytes_.index(b"Adobe") + 11] = 2
    open(os.path.join(HERE, "ycck.jpg"), "wb").write(bytes_)

    values = {}
    for name in sorted(os.listdir(HERE)):
        if name.lower().endswith((".png", ".jpg", ".jpeg")):
            with Image.open(os.path.join(HERE, name)) as image:
                values[name] = numpy.array(image.convert("RGB"))
                print(name, image.mode, image.size)
    with open(os.path.join(HERE, "rgb.pkl"), "wb") as file:
        pickle.dump(values, file, 4)


if __name__ == "__main__":
    main()
