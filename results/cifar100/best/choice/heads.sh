#!/bin/sh
# The choice of the head on the networks of this folder. With --table it only shows what is recorded.
taps=stage2.0,stage2.1,stage2.2,stage2.3,stage2.4,stage3.0,stage3.1,stage3.2,stage3.3,stage3.4
exec acil bench choose --dataset cifar100 --recipe best --order natural --base 50 --splits 0,1,2 \
  --gammas 0.003,0.01,0.03,0.1,0.3 --out "$(dirname "$0")" \
  --try "one view features.mirror=false" \
  --try "mirror rows features.rows=true" \
  --try "mirror and shift rows features.rows=true features.shift=2" \
  --try "mirror and shift 1 features.shift=1" \
  --try "mirror and shift 2 features.shift=2" \
  --try "shift 2 without mirror features.shift=2 features.mirror=false" \
  --try "grid 3 features.grid=3" \
  --try "stage 1 too features.taps=stage1.2,stage1.4,$taps" \
  --try "width 8192 expansion_size=8192" \
  --try "width 32768 expansion_size=32768" \
  --try "shift 2, grid 3 features.shift=2 features.grid=3" \
  --try "mirror and shift rows, grid 3 features.rows=true features.shift=2 features.grid=3" "$@"
