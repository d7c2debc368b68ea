"""Values that no method takes."""

import pytest

from acil.bench.methods import resolve
from acil.errors import InputError
from support.replay_problem import make_context

#: Method → setting → values that it does not take.
WRONG = {
    "lda": {"lda_shrinkage": (-0.1, "much"), "lda_priors": ("none",)},
    "slda": {"slda_shrinkage": (0, 1.5)},
    "fecam": {"fecam_tukey": (0,), "fecam_gamma1": (-1,), "fecam_gamma2": ("x",)},
    "fetril": {"fetril_classifier": ("tree",), "fetril_similarity": (1,), "fetril_C": (0,)},
    "ds-al": {"ds_al_compensation": (-1,), "ds_al_gamma": ("small",)},
    "lwf": {"lwf_temperature": (float("inf"),)},
    "icarl": {"icarl_temperature": (0,), "icarl_distillation": (-1,), "memory_rule": ("many", 5)},
    "ewc": {"ewc_penalty": (-1,), "ewc_clip": (0,)},
    "rotated-ewc": {"rotated_ewc_penalty": (-1,), "rotated_ewc_clip": (0,)},
    "aef-ocl": {"aef_ocl_noise": (-1,)},
    "anacp": {"anacp_draws": (0,), "anacp_shrinkage": (0,)},
    "klda": {"klda_shrinkage": (0, 2)},
    "mergan": {"mergan_form": ("both",), "mergan_alignment": (-1,), "mergan_latent": (0,)},
    "bic": {"bic_held_out": (0.0, 1.0), "bic_beta_decay": (-1,)},
    "eeil": {"eeil_balanced_epochs": (-1,), "eeil_balanced_rate": (0,), "eeil_temperature": (0,)},
    "lfl": {"lfl_distance": (-1,)},
    "dgr": {"dgr_drawn": (0,), "dgr_latent": (0,), "dgr_generator_epochs": (0,)},
    "lucir": {"lucir_candidates": (0,), "lucir_balanced_epochs": (-1,), "lucir_ranking": (-1,)},
    "podnet": {"podnet_proxies": (0,), "podnet_spatial": (-1,), "podnet_gradient_limit": (0,)},
    "lucir+aanets": {"aanets_share": (2,)},
    "lucir+mnemonics": {"mnemonics_rate": (-1,)},
    "lucir+rmm": {"rmm_actions": ([0.5, 1.0],)},
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_out_of_range_are_refused_by_name(name):
    for setting, values in WRONG[name].items():
        for value in values:
            with pytest.raises(InputError, match=setting.removeprefix(name.replace("-", "_") + "_")):
                resolve(name)(make_context(settings={setting: value}, phase_sizes=(10, 10)))
