#!/bin/sh
# The search behind this folder. As it stands it trains the networks that are missing; with --table it only shows
# what is recorded.
# Several at a time, in one folder, share out the work.
copy="training.auxiliary.copies=1"
exec acil bench choose --dataset cifar100 --recipe strong --order natural --base 50 \
  --set expansion_size=8192 --gammas 0.003,0.01,0.03,0.1,0.3 --out "$(dirname "$0")" \
  --try "rotation $copy" \
  --try "rotation, 600 epochs $copy training.epochs=600" \
  --try "rotation, 3 copies training.auxiliary.copies=3" \
  --try "rotation, mixup $copy training.auxiliary.mixup=0.5" \
  --try "rotation, colours $copy training.auxiliary.colours=3" \
  --try "rotation, contrast 0.5 $copy training.auxiliary.contrast=0.5" \
  --try "rotation, decay 3e-4 $copy training.weight_decay=0.0003" \
  --try "rotation, colours crossed $copy training.auxiliary.colours=3 training.auxiliary.crossed=true" \
  --try "rotation, weight 0.5 $copy training.auxiliary.weight=0.5" \
  --try "rotation, weight 2 $copy training.auxiliary.weight=2" \
  --try "rotation, batch 128 $copy training.batch_size=128 training.learning_rate=0.25" \
  --try "rotation, 2 angles $copy training.auxiliary.angles=2" \
  --try "rotation, 1,000 epochs $copy training.epochs=1000" \
  --try "rotation, one teacher $copy training.auxiliary.distillation=0.5 training.auxiliary.teachers=1" \
  --try "rotation, two teachers $copy training.auxiliary.distillation=0.5 training.auxiliary.teachers=2" "$@"
