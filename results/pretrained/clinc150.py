"""Write features of CLINC150 by MiniLM, as `acil bench run --dataset features:DIR` reads them.

    .venv/bin/python results/pretrained/clinc150.py clinc150.json.gz DIR

The file is an object {split: [[text, intent], …]} with the splits "train" (100 sentences of each of 150
intents) and "test" (30); sentences out of scope and for validation take no part.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np

from acil.encoders.text import open_encoder

given, out = map(Path, sys.argv[1:])
with gzip.open(given, "rt", encoding="utf-8") as file:
    splits = json.load(file)
encoder = open_encoder("minilm")
out.mkdir(parents=True, exist_ok=True)
for split in ("train", "test"):
    texts, intents = zip(*splits[split], strict=True)
    np.savez(out / f"{split}.npz", features=encoder.encode(texts).features, labels=np.array(intents))
    print(f"{split}: {len(texts)} texts of {len(set(intents))} intents")
