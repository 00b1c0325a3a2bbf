"""Contrastive activation addition (Rimsky et al. 2024, arXiv 2312.06681): praise against blame, tried on words it never saw."""

import interp

model = interp.load("smollm2-135m")
pairs = interp.load_pairs("sentiment")
fit, held_out = interp.grouped_split([pair.group for pair in pairs], (0.8, 0.2))
vector = interp.steering_vector([pairs[i] for i in fit], model=model, site="resid_post:16")

for strength in (-0.15, 0, 0.15):  # of the typical norm there
    with model.intervene(interp.Steer(vector, strength)):
        texts = model.generate(["I must say that the food", "My week at work has been"], 16).text
    print(f"{strength:+.2f}", *map(repr, texts), sep="\n    ")

held_out, other = [pairs[i] for i in held_out], [text[:300] for text in interp.load_corpus("python_docs").texts[:8]]
report = interp.steering_experiment(model, vector, pairs=held_out, texts=other, strengths=[0.15], n_random=4)
print(report.summary())
