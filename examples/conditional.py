"""Conditional steering (Lee et al. 2024, arXiv 2409.05907): cheer up what a probe calls gloomy, and leave the rest as it is."""

import interp

model, site = interp.load("smollm2-135m"), "resid_post:14"
sides = [each for p in interp.load_pairs("sentiment") for each in ((p, p.negative, 0), (p, p.positive, 1))]
texts = [interp.Example(pair.prompt + text, label, group=pair.group) for pair, text, label in sides]
store = interp.record(model, texts, sites=site, tokens="mean", progress=False)
X, frame = store.pooled(site, tokens="mean")
probe = interp.fit_probe(X, frame["label"], groups=frame["group"], site=site)
vector = interp.steering_vector(store, model=model, site=site, tokens="mean")

prompts = ["The hotel was filthy and the food horrible. I felt", "The hotel was lovely and the food delicious. I felt"]
plain = model.generate(prompts, 12).text
cheer_up = interp.Steer(vector, 0.3, where="generated", when=interp.Condition(probe, below=0.5))
with interp.watch_interventions(model, cheer_up) as applied:
    steered = model.generate(prompts, 12).text
print(*zip(plain, steered), applied, sep="\n")  # [+...] are the tokens that were steered
