#!/bin/sh
# Small bases: training and head, with ten of the fifty base classes of the order natural as the base of a split.
# With --table it only shows what is recorded. Several at a time, in one folder, share out the work.
taps=stage1.2,stage1.4,stage2.0,stage2.1,stage2.2,stage2.3,stage2.4,stage3.0,stage3.1,stage3.2,stage3.3,stage3.4
more="training.auxiliary.copies=3"
exec ${ACIL:-acil} bench choose --dataset cifar100 --recipe best --order natural --base 50 --split-base 10 \
  --splits ${SPLITS:-0,1,2} --gammas 0.003,0.01,0.03,0.1,0.3 --out "${OUT_DIR:-$(dirname "$0")}" \
  --try "shift 2 features.shift=2" \
  --try "grid 3 features.grid=3" \
  --try "shift 2, grid 3 features.shift=2 features.grid=3" \
  --try "stage 1 too, shift 2, grid 3 features.taps=$taps features.shift=2 features.grid=3" \
  --try "3 copies $more" \
  --try "3 copies, shift 2 $more features.shift=2" \
  --try "3 copies, grid 3 $more features.grid=3" \
  --try "3 copies, shift 2, grid 3 $more features.shift=2 features.grid=3" \
  --try "3 copies, stage 1 too, shift 2, grid 3 $more features.taps=$taps features.shift=2 features.grid=3" "$@"
