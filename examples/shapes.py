"""Draw a small set of images to try `acil learn` on: coloured shapes on noisy ground.

    python examples/shapes.py shapes

makes shapes/train (circle, square, triangle), shapes/new (star) and shapes/test (all four). The drawings
depend on nothing but this file.
"""

import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIZE = 128
#: Corners of each shape, as multiples of its radius; the circle has many.
CORNERS = {"circle": 48, "square": 4, "triangle": 3, "star": 10}


def draw(shape, generator):
    """Return one image: a shape of random place, size, turn and colour."""
    ground = generator.integers(0, 90, (SIZE, SIZE, 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    radius = generator.uniform(0.25, 0.42) * SIZE
    x, y = generator.uniform(0.44, 0.56, 2) * SIZE
    turn = generator.uniform(0, 2 * math.pi)
    colour = tuple(int(level) for level in generator.integers(120, 256, 3))
    corners = []
    for corner in range(CORNERS[shape]):
        angle = turn + 2 * math.pi * corner / CORNERS[shape]
        reach = radius * (0.45 if shape == "star" and corner % 2 else 1.0)
        corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
    ImageDraw.Draw(image).polygon(corners, fill=colour)
    return image


def main(folder):
    """Draw everything into a folder."""
    generator = np.random.default_rng(0)
    plan = [
        ("train", ("circle", "square", "triangle"), 20),
        ("new", ("star",), 20),
        ("test", CORNERS, 10),
    ]
    for part, shapes, number in plan:
        for shape in shapes:
            place = folder / part / shape
            place.mkdir(parents=True, exist_ok=True)
            for index in range(number):
                draw(shape, generator).save(place / f"{shape}{index:02}.png")
    print(f"{folder}: train, new and test")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/shapes.py FOLDER")
    main(Path(sys.argv[1]))
