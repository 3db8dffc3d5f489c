"""The built-in losses: policy losses, and preference losses."""

from __future__ import annotations

from agentrl.registry.settings import NoSettings
from agentrl.training.losses.loss import Loss, PreferenceLoss
from agentrl.training.losses.settings import (
    Alol,
    Awr,
    Cispo,
    Dapo,
    Dpo,
    Dppo,
    DppoKl,
    EntropySft,
    Gmpo,
    Gspo,
    Kto,
    Nft,
    Pacs,
    Paired,
    PpoClip,
    Rec,
    Sapo,
    Simpo,
    Tea,
    Tpo,
    Trpa,
    WithSft,
)

_VERL = "volcengine/verl@b178a3c core_algos"
_DPPO = "arXiv:2602.04879; verl core_algos.compute_policy_loss_dppo_"

ppo_clip = Loss(
    "ppo_clip",
    "clipped:ppo_clip",
    PpoClip,
    "-min(w A, clip(w) A)",
    "arXiv:1707.06347; dual clip arXiv:1912.09729",
    "token",
)
dapo = Loss(
    "dapo", "clipped:ppo_clip", Dapo, "ppo_clip, 0.2 below and 0.28 above", "arXiv:2503.14476; " + _VERL, "token"
)
cispo = Loss("cispo", "clipped:cispo", Cispo, "-sg(clip(w)) A l", "arXiv:2506.13585; " + _VERL, "token")
sapo = Loss(
    "sapo",
    "clipped:sapo",
    Sapo,
    "-(4 / tau) sigmoid(tau (w - 1)) A",
    "arXiv:2511.20347; " + _VERL,
    "token",
    "seq_mean_token_mean",
)
dppo_tv = Loss(
    "dppo_tv", "clipped:dppo_tv", Dppo, "-sg(min(w, max)) A l, masked beyond |p - p_old|", _DPPO + "tv", "token"
)
dppo_kl = Loss(
    "dppo_kl",
    "clipped:dppo_kl",
    DppoKl,
    "-sg(min(w, max)) A l, masked beyond KL(p_old || p) of the token",
    _DPPO + "kl",
    "token",
)
gspo = Loss(
    "gspo",
    "sequence:gspo",
    Gspo,
    "-min(s A, clip(s) A), s = exp(mean log w)",
    "arXiv:2507.18071",
    "step",
    "seq_mean_token_mean",
)
gspo_token = Loss(
    "gspo_token",
    "sequence:gspo_token",
    Gspo,
    "as gspo, s = sg(s) w / sg(w)",
    "arXiv:2507.18071; " + _VERL,
    "step",
    "seq_mean_token_mean",
)
gmpo = Loss(
    "gmpo",
    "sequence:gmpo",
    Gmpo,
    "-A exp(mean of clipped log w)",
    "arXiv:2507.20673; " + _VERL,
    "step",
    "seq_mean_token_mean",
)
a_lol = Loss(
    "a_lol",
    "sequence:a_lol",
    Alol,
    "-sg(clip(w)) A l, w = policy / reference of the episode",
    "arXiv:2305.14718; abaheti95/LoL-RL@223df72 lolrl_qlora_llama_hh.py",
    "step",
    "seq_mean_token_sum",
    needs=("reference",),
)
reinforce = Loss("reinforce", "clipped:reinforce", NoSettings, "-A l", "Williams, 1992", "token")
rec = Loss(
    "rec",
    "clipped:rec",
    Rec,
    "-A l, 0 where clipped; plus a regulariser",
    "arXiv:2509.24203; modelscope/Trinity-RFT rec_policy_loss.py (read in yanxi-chen/Trinity-RFT@17f2a40)",
    "token",
)
gpg = Loss(
    "gpg", "clipped:reinforce", NoSettings, "-A l (its scale is in credit `gpg`)", "arXiv:2504.02546; " + _VERL, "token"
)
cross_entropy = Loss(
    "cross_entropy", "clipped:reinforce", NoSettings, "-A l, A = 1 in demonstrations", "maximum likelihood", "token"
)
awr = Loss(
    "awr",
    "clipped:awr",
    Awr,
    "-min(exp(A / beta), max_weight) l",
    "arXiv:1910.00177",
    "token",
)
pacs = Loss(
    "pacs",
    "outcome:pacs",
    Pacs,
    "BCE(psi - mean of the others, R), psi = beta sum log w",
    "arXiv:2509.02522; ritzz-ai/PACS@bbe1dc6",
    "group",
    "seq_mean_token_mean",
)
nft = Loss(
    "nft",
    "outcome:nft",
    Nft,
    "right: -log w; wrong: -log((1 - r w) / (1 - r))",
    "arXiv:2505.18116; NVlabs/NFT@ed8e5b0 dp_actor.py",
    "group",
)
tea = Loss(
    "tea",
    "entropy:tea",
    Tea,
    "ppo_clip - min(bound, scale softmax(cov)) entropy",
    "arXiv:2508.03178; Qihoo360/Light-IF core_algos.compute_entropy_with_cov",
    needs=("entropy",),
)
entropy_sft = Loss(
    "entropy_sft",
    "entropy:entropy_sft",
    EntropySft,
    "-A l of the tokens with the largest -l - coef entropy",
    "arXiv:2508.03178; Qihoo360/Light-IF custom_entropy_trainer.py",
    needs=("entropy",),
)
trpa = Loss(
    "trpa",
    "trpa:trpa",
    Trpa,
    "-log sigmoid(beta (d_better - d_worse)) + trust k3(old policy)",
    "arXiv:2504.04524; XueruiSu/Trust-Region-Preference-Approximation",
    "group",
    needs=("reference",),
)
dpo = PreferenceLoss(
    "dpo", "preference:dpo", Dpo, "-log sigmoid(beta (d_c - d_r))", "arXiv:2305.18290", "group", "seq_mean_token_mean"
)
ipo = PreferenceLoss(
    "ipo",
    "preference:ipo",
    Paired,
    "(mean d_c - mean d_r - 1 / (2 beta))^2",
    "arXiv:2310.12036",
    "group",
    "seq_mean_token_mean",
)
hinge = PreferenceLoss(
    "hinge",
    "preference:hinge",
    Paired,
    "max(0, 1 - beta (d_c - d_r))",
    "arXiv:2309.06657 (RSO)",
    "group",
    "seq_mean_token_mean",
)
apo_zero = PreferenceLoss(
    "apo_zero",
    "preference:apo_zero",
    Paired,
    "1 - sigmoid(beta d_c) + sigmoid(beta d_r)",
    "arXiv:2408.06266",
    "group",
    "seq_mean_token_mean",
)
simpo = PreferenceLoss(
    "simpo",
    "preference:simpo",
    Simpo,
    "-log sigmoid(beta (mean l_c - mean l_r) - gamma)",
    "arXiv:2405.14734",
    "group",
    "seq_mean_token_mean",
    needs=(),
)
cpo = PreferenceLoss(
    "cpo",
    "preference:cpo",
    WithSft,
    "-log sigmoid(beta (l_c - l_r)) + sft * cross-entropy",
    "arXiv:2401.08417",
    "group",
    "seq_mean_token_mean",
    needs=(),
)
orpo = PreferenceLoss(
    "orpo",
    "preference:orpo",
    WithSft,
    "-beta log sigmoid(log odds_c - log odds_r) + cross-entropy",
    "arXiv:2403.07691",
    "group",
    "seq_mean_token_mean",
    needs=(),
)
tpo = PreferenceLoss(
    "tpo",
    "preference:tpo",
    Tpo,
    "-log sigmoid(beta (l_c - l_r) - gamma) + alpha * cross-entropy of the gold reply",
    "arXiv:2405.16681",
    "group",
    "seq_mean_token_mean",
    needs=(),
    gold=True,
)
kto = PreferenceLoss(
    "kto",
    "preference:kto",
    Kto,
    "good: 1 - sigmoid(beta (d - z)); bad: 1 - sigmoid(beta (z - d))",
    "arXiv:2402.01306",
    "group",
    "seq_mean_token_mean",
    paired=False,
    baseline=True,
)
