#!/bin/sh
# The rows of the analytic family: `run.sh heads` or `run.sh trained`, from the root of the repository.
# DATA is the folder of CIFAR-100, OUT takes the records, PYTHON has acil and torch.
# Side by side on one GPU; of frozen features every row can also be had on a CPU, one after the other.
set -u
DATA=${DATA:-data} OUT=${OUT:-runs/family} PYTHON=${PYTHON:-python}
export OMP_NUM_THREADS=2
mkdir -p "$OUT"

bench() {  # name, then arguments
    name=$1
    shift
    $PYTHON -m acil bench run --dataset cifar100 --root "$DATA" "$@" --out "$OUT/runs/n/$name" \
        >"$OUT/runs/$name.log" 2>&1 || echo "$name failed: $(tail -n 1 "$OUT/runs/$name.log")"
    cp "$OUT/runs/n/$name/records.jsonl" "$OUT/$name.jsonl"
}

FAMILY=acil,g-air,ds-al,gkeal,klda,anacp,ranpac,aef-ocl,lda,ncm
mkdir -p "$OUT/runs/n"
case $1 in
heads)
    for seed in 0 1 2; do
        # Equal width, γ by cross-validation over the sums (ranpac: its own choice)
        for recipe in paper strong; do
            bench $recipe-$seed --recipe $recipe --order natural --seeds $seed --phases 5,10,25 --method $FAMILY \
                --backbone results/cifar100/$recipe/natural-$seed.safetensors --expansion-size 8192 --gamma auto \
                --set joint_check=false &
        done
    done
    wait
    ;;
trained)
    for seed in 0 1 2; do
        # The authors' settings: D = 8192, γ = 0.1 for kernels; ds-al with the recipe's γ
        bench authors-gkeal-$seed --recipe authors --order natural --seeds $seed --phases 25 --method gkeal \
            --backbone results/cifar100/authors/natural-$seed.safetensors --gamma 0.1 &
        bench authors-$seed --recipe authors --order natural --seeds $seed --phases 25 --method acil,ds-al \
            --backbone results/cifar100/authors/natural-$seed.safetensors --set joint_check=false &
    done
    base="--recipe paper --order seed1993 --seeds 0 --phases 5 --backbone results/cifar100/paper/seed1993-0.safetensors"
    bench rotated-ewc $base --method ewc,rotated-ewc &
    bench mergan-replay $base --method mergan --set settings.mergan_drawn=100 \
        --set settings.mergan_generator_epochs=20 &
    bench mergan-alignment $base --method mergan --set settings.mergan_form=alignment \
        --set settings.mergan_drawn=100 --set settings.mergan_generator_epochs=30 &
    wait
    cat "$OUT"/authors-*.jsonl >"$OUT/authors.jsonl" && rm "$OUT"/authors-*-?.jsonl "$OUT"/authors-?.jsonl
    ;;
esac
# Base networks, features and logs stay beside the records
for log in "$OUT"/runs/*.log; do echo "== $log"; tail -n 3 "$log"; done
rm -rf "$OUT/runs"
