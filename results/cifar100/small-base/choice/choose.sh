#!/bin/sh
# Small bases: training and head, chosen on training images of the first ten classes of the order natural.
# With --table it only shows what is recorded. Several at a time, in one folder, share out the work.
taps=stage2.0,stage2.1,stage2.2,stage2.3,stage2.4,stage3.0,stage3.1,stage3.2,stage3.3,stage3.4
exec ${ACIL:-acil} bench choose --dataset cifar100 --recipe best --order natural --base 10 --splits 0,1,4 \
  --set expansion_size=8192 --gammas 0.003,0.01,0.03,0.1,0.3 --out "${OUT_DIR:-$(dirname "$0")}" \
  --try "1,200 epochs training.epochs=1200" \
  --try "3 copies training.auxiliary.copies=3" \
  --try "shift 2 features.shift=2" \
  --try "stage 1 too features.taps=stage1.2,stage1.4,$taps" \
  --try "all of stage 1 too features.taps=stage1.0,stage1.1,stage1.2,stage1.3,stage1.4,$taps" \
  --try "grid 3 features.grid=3" \
  --try "stage 1 too, shift 2 features.taps=stage1.2,stage1.4,$taps features.shift=2" "$@"
