"""What every score in the app means: in words, as a formula, and which function computes it. Fixed texts, no data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A score."""

    name: str
    area: str
    words: str
    """Markdown."""
    formula: str
    """LaTeX; empty where a formula says nothing more."""
    function: str
    """In the module `interp`."""


TERMS = (
    Term("surprisal", "Tokens",
         "How unexpected a token is given those before it, in nats. 0: it was certain.",
         r"s_t = -\log p(x_t \mid x_{<t})", "token_uncertainty"),
    Term("entropy", "Tokens",
         "How undecided the model is about the next token, in nats: 0 where it is sure, $\\ln V$ where all $V$ tokens "
         "are alike.",
         r"H = -\sum_v p_v \log p_v", "token_uncertainty"),
    Term("varentropy", "Tokens",
         "How unequal the surprises are: high where a few tokens compete with a long tail.",
         r"\sum_v p_v \left(\log p_v + H\right)^2", "token_uncertainty"),
    Term("margin", "Tokens",
         "Lead of the most probable next token over the second.",
         r"p_{(1)} - p_{(2)}", "token_uncertainty"),
    Term("rank", "Tokens",
         "Place of the token that follows among all predictions; 0 is the first.",
         r"\left|\{v : p_v > p_{x_{t+1}}\}\right|", "token_uncertainty"),
    Term("logit lens", "Lenses",
         "What would be predicted if the model stopped after layer $l$: the final norm, computed for that row, then "
         "the unembedding.",
         r"p^{(l)} = \mathrm{softmax}\left(W_U\,\mathrm{norm}(h^{(l)})\right)", "logit_lens"),
    Term("tuned lens", "Lenses",
         "The same after an affine map that was trained, per layer, to come close to the final prediction.",
         r"p^{(l)} = \mathrm{softmax}\left(W_U\,\mathrm{norm}(h^{(l)} + A_l h^{(l)} + b_l)\right)", "train_tuned_lens"),
    Term("KL to the final prediction", "Lenses",
         "How far a layer's prediction is from the last one, in nats; 0 at the end.",
         r"\mathrm{KL}\left(p^{(L)} \,\|\, p^{(l)}\right) = \sum_v p^{(L)}_v \log \frac{p^{(L)}_v}{p^{(l)}_v}", "logit_lens"),
    Term("settle layer", "Lenses",
         "First layer from which the first prediction stays the final one.",
         r"\min\{l : \arg\max p^{(k)} = \arg\max p^{(L)}\ \forall k \ge l\}", "logit_lens"),
    Term("induction score", "Heads",
         "On a random sequence that is repeated: mean attention from a token of the second copy to the place *after* "
         "its earlier occurrence.",
         r"\frac{1}{|Q|}\sum_{t \in Q} A_{t,\;t-N+1}", "head_scores"),
    Term("previous-token score", "Heads",
         "Mean attention to the token just before.",
         r"\frac{1}{|Q|}\sum_{t \in Q} A_{t,\;t-1}", "head_scores"),
    Term("duplicate-token score", "Heads",
         "Mean attention to the earlier occurrence of the same token.",
         r"\frac{1}{|Q|}\sum_{t \in Q} A_{t,\;t-N}", "head_scores"),
    Term("attention to the first token", "Heads",
         "What a head puts on position 0, the *sink*, where it has nothing to look for.",
         r"\frac{1}{|Q|}\sum_{t \in Q} A_{t,0}", "head_scores"),
    Term("attention entropy", "Heads",
         "How spread a head's attention is, in nats.",
         r"-\sum_s A_{t,s} \log A_{t,s}", "head_scores"),
    Term("mean distance", "Heads",
         "How far back a head looks, in tokens.",
         r"\sum_s A_{t,s}\,(t - s)", "head_scores"),
    Term("effect of ablation", "Heads",
         "What is lost without a head: rise of the next-token loss on the second copy, in nats.",
         r"\mathcal{L}(\text{without the head}) - \mathcal{L}", "head_report"),
    Term("composition", "Heads",
         "How much of what one head writes a later one reads, beyond what random matrices of that rank would show; X "
         "is what the later one reads with: QK for queries or keys, OV for values.",
         r"\frac{\|W_{OV}^{\text{earlier}}\,X^{\text{later}}\|_F}{\|W_{OV}^{\text{earlier}}\|_F\,\|X^{\text{later}}\|_F}",
         "head_composition"),
    Term("value-weighted attention", "Attention",
         "Attention times the length of what it moves: a sink is looked at much and gives little.",
         r"A_{t,s}\,\|v_s\|", "value_weighted_attention"),
    Term("direct logit attribution", "Attribution",
         "A logit as the sum of what each part wrote into the stream, with the final norm's scale held. Leaves out "
         "what later layers make of a part.",
         r"z_v = \sum_c \langle w_c,\; u_v \rangle + b", "direct_logit_attribution"),
    Term("recovery", "Patching",
         "Share of the difference between two prompts that one patched place brings back: 0 as the corrupted prompt, 1"
         " as the clean one.",
         r"\frac{m(\text{patched}) - m(\text{corrupted})}{m(\text{clean}) - m(\text{corrupted})}", "patch_sweep"),
    Term("faithfulness", "Circuits",
         "The same with every edge outside the circuit patched from the corrupted prompt: 1 where the circuit alone "
         "does what the model does.",
         r"\frac{m(\text{circuit}) - m(\text{corrupted})}{m(\text{model}) - m(\text{corrupted})}", "circuit_report"),
    Term("edge attribution", "Circuits",
         "First-order estimate of what patching an edge would change: one backward pass for all of them.",
         r"\left(a_{\text{corrupted}} - a_{\text{clean}}\right) \cdot \nabla_a m", "edge_attribution"),
    Term("AUROC", "Probes",
         "Probability that a true example gets a higher score than a false one; 0.5 is chance.",
         r"P(s_+ > s_-) + \tfrac{1}{2} P(s_+ = s_-)", "probe_sweep"),
    Term("mass-mean probe", "Probes",
         "The direction from the mean of the false rows to that of the true ones.",
         r"w = \mu_+ - \mu_-", "fit_probe"),
    Term("logistic probe", "Probes",
         "A linear score, fitted with an L2 penalty.",
         r"p = \sigma(w \cdot x + b)", "fit_probe"),
    Term("transfer", "Probes",
         "A probe trained on one data set and judged on another: a direction for truth should carry over.",
         "", "probe_transfer"),
    Term("FVU", "Autoencoders",
         "Share of the variance that is not explained: one ratio over all rows.",
         r"\frac{\sum \|y - \hat y\|^2}{\sum \|y - \bar y\|^2}", "evaluate_sae"),
    Term("L0", "Autoencoders",
         "Mean number of latents that are active at a token.",
         r"\mathbb{E}\left[\,|\{i : f_i(x) > 0\}|\,\right]", "evaluate_sae"),
    Term("density", "Autoencoders",
         "Share of the tokens at which a latent is active. Above 1 % it is hardly about one thing; at 0 it is *dead*.",
         r"P(f_i(x) > 0)", "sae_features"),
    Term("loss recovered", "Autoencoders",
         "Loss with the reconstruction in place of the site, between that with zeros (0) and the model's own (1).",
         r"\frac{\mathcal{L}_{0} - \mathcal{L}_{\hat y}}{\mathcal{L}_{0} - \mathcal{L}_{y}}", "evaluate_in_model"),
    Term("steering strength", "Steering",
         "Length of what is added, as a share of the typical norm of the site, so that layers and models can be "
         "compared.",
         r"h \leftarrow h + \alpha\, \|h\|_{\text{typical}}\, \hat v", "steering_vector"),
    Term("steering effect", "Steering",
         "What changes with the vector, beside random directions of the same length.",
         r"\mathbb{E}\left[m_\alpha - m_0\right]", "steering_experiment"),
    Term("perplexity", "Steering",
         "How odd the model finds a text: e to the mean surprisal per token.",
         r"\exp\left(\tfrac{1}{n}\sum_t s_t\right)", "score_tokens"),
    Term("ECE", "Calibration",
         "Mean distance between stated and observed frequency, over bins. Never 0 by chance: compare it with the null "
         "band.",
         r"\sum_b \frac{n_b}{n} \left|\mathrm{acc}_b - \mathrm{conf}_b\right|", "calibration_report"),
    Term("Brier score", "Calibration",
         "Mean squared error of stated probabilities.",
         r"\frac{1}{n}\sum_i (p_i - y_i)^2", "calibration_report"),
    Term("NLL", "Calibration",
         "Mean negative log-likelihood of what happened, in nats.",
         r"-\frac{1}{n}\sum_i \left(y_i \log p_i + (1-y_i)\log(1-p_i)\right)", "calibration_report"),
    Term("null band", "Calibration",
         "What a perfectly calibrated source would show with the same stated probabilities and the same n.",
         r"y_i \sim \mathrm{Bernoulli}(p_i)", "calibration_report"),
    Term("temperature", "Calibration",
         "One number that divides all logits: above 1 the model was too sure.",
         r"p = \mathrm{softmax}(z / T)", "fit_temperature"),
    Term("semantic entropy", "Calibration",
         "How many meanings sampled answers have, and how evenly they are spread, in nats.",
         r"-\sum_c P(c) \log P(c)", "semantic_entropy"),
    Term("coverage and risk", "Calibration",
         "Share of the questions that are answered, and of those the share that is wrong.",
         r"\mathrm{risk}(\tau) = P(\text{wrong} \mid s \ge \tau)", "selective_report"),
    Term("typical norm", "Stores",
         "Median norm of the rows that are neither special, nor first in their text, nor outliers.",
         r"\mathrm{median}_{\text{typical}}\ \|x\|", "open_store"),
    Term("outlier", "Stores",
         "A row whose norm is over ten times the median of the ordinary rows of its shard.",
         r"\|x\| > 10\cdot \mathrm{median}\,\|x\|", "open_store"),
)  # fmt: skip


def matching(words: str) -> list[Term]:
    """The terms that hold all these words, whatever the case, in name, area, text or function."""
    wanted = words.lower().split()
    return [
        each
        for each in TERMS
        if all(word in f"{each.name} {each.area} {each.words} {each.function}".lower() for word in wanted)
    ]
