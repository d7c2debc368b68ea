#!/bin/sh
# The rows of the analytic family: `run.sh heads`, `own`, `authors`, `tails`, `stream`, `trained` or `strict`, from
# the root of the repository. DATA is the folder of CIFAR-100, OUT takes the records, PYTHON has acil and torch.
# Side by side on one GPU; of frozen features every row can also be had on a CPU, one after the other.
set -u
DATA=${DATA:-data} OUT=${OUT:-runs/family} PYTHON=${PYTHON:-python}
export OMP_NUM_THREADS=2
mkdir -p "$OUT/runs/n"

bench() {  # name, then arguments
    name=$1
    shift
    $PYTHON -m acil bench run --dataset cifar100 --root "$DATA" "$@" --out "$OUT/runs/n/$name" \
        >"$OUT/runs/$name.log" 2>&1 || echo "$name failed: $(tail -n 1 "$OUT/runs/$name.log")"
    cp "$OUT/runs/n/$name/records.jsonl" "$OUT/$name.jsonl"
}

networks=results/cifar100
case $1 in
heads)
    # Equal width, γ by cross-validation over the sums (ranpac: its own choice)
    for seed in 0 1 2; do
        for recipe in paper strong; do
            bench $recipe-$seed --recipe $recipe --order natural --seeds $seed --phases 5,10,25 \
                --method acil,g-air,ds-al,gkeal,klda,anacp,ranpac,aef-ocl,lda,ncm --expansion-size 4096 \
                --gamma auto --set joint_check=false --backbone $networks/$recipe/natural-$seed.safetensors &
        done
    done
    ;;
own)
    # Widths and choices as published
    for seed in 0 1 2; do
        for recipe in paper strong; do
            bench own-$recipe-$seed --recipe $recipe --order natural --seeds $seed --phases 5,10,25 \
                --method ranpac,klda --set joint_check=false \
                --backbone $networks/$recipe/natural-$seed.safetensors &
        done
    done
    ;;
authors)
    # γ is the recipe's, of gkeal its own
    for seed in 0 1 2; do
        for methods in acil,ds-al gkeal; do
            bench $methods-authors-$seed --recipe authors --order natural --seeds $seed --phases 25 \
                --method $methods --set joint_check=false \
                --backbone $networks/authors/natural-$seed.safetensors &
        done
    done
    ;;
tails)
    for seed in 0 1 2; do
        for order in natural seed1993; do
            bench $order-$seed --protocol long-tailed --recipe paper --order $order --seeds $seed --phases 5,10 \
                --method acil,air,g-air,lda,ncm,klda,aef-ocl --expansion-size 2048 --gamma auto &
        done
    done
    ;;
stream)
    bench si-blurry --protocol si-blurry --recipe paper --order natural --phases 5 --base 50 --seeds 0,1,2,3,4 \
        --method acil,g-air,lda,slda,ncm --expansion-size 1024 --gamma auto \
        --backbone $networks/paper/natural-0.safetensors
    ;;
trained)
    base="--recipe paper --order seed1993 --seeds 0 --phases 5 --backbone $networks/paper/seed1993-0.safetensors"
    bench rotated-ewc $base --method rotated-ewc &
    for form in replay alignment; do
        bench mergan-$form $base --method mergan --set settings.mergan_form=$form \
            --set settings.mergan_drawn=100 --set settings.mergan_generator_epochs=20 &
    done
    ;;
strict)
    bench strict-seed1993-0 --recipe paper --order seed1993 --seeds 0 --phases 5,10,25 --memory strict \
        --method icarl,bic,lucir,podnet --jobs 4
    ;;
esac
wait
# Base networks, features and logs stay beside the records
for log in "$OUT"/runs/*.log; do echo "== $log"; tail -n 3 "$log"; done
rm -rf "$OUT/runs"
