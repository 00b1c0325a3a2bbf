"""Inference-time intervention (Li et al. 2023, arXiv 2306.03341): heads that tell true from false are pushed towards true."""

import interp

model = interp.load("smollm2-135m")
statements = interp.load_dataset("animals")
fit, held_out = interp.grouped_split([each.group for each in statements], (0.7, 0.3))
heads = interp.head_vectors(statements.take(fit), model=model, top=24)
print(heads.to_frame()[["layer", "head", "accuracy", "test_accuracy", "test_low", "test_high"]].head())

completions = interp.completion_pairs(statements.take(held_out), max_pairs=30)
pairs = [interp.ContrastPair(each.prompt, each.true, each.false, each.group) for each in completions]
push = {"unit": "sd", "where": "generated"}
report = interp.steering_experiment(model, heads, pairs=pairs, strengths=[10], n_random=3, **push)
print(report.summary())  # the preference is log p(true) - log p(false)
with model.intervene(interp.Steer(heads, 10, **push)):
    print(model.generate("The whale is a kind of", 12).text)
