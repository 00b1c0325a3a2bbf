"""Directional ablation (Arditi et al. 2024, arXiv 2406.11717): without one direction of the stream the Spanish is gone."""

import interp

model = interp.load("smollm2-135m")
spanish, english = (interp.load_dataset(name).select(label=1) for name in ("capitals_es", "capitals"))
known = [interp.Example(each.text, label=1, group=each.group) for each in spanish.take(range(60))]
known += [interp.Example(each.text, label=0, group=each.group) for each in english.take(range(60))]
vector = interp.steering_vector(known, model=model, site="resid_post:15")

hooked, changed = interp.Steer(vector, kind="ablate", site="writes"), interp.orthogonalise_weights(model, vector)
for text in ("El perro es un animal que ladra a los extraños.", "The dog is an animal that barks at strangers."):
    with model.intervene(hooked):
        logits, loss = model(text), float(model.loss(text))
    apart = float((logits - changed(text)).abs().max())
    print(
        f"{text} loss {float(model.loss(text)):.2f}, ablated {loss:.2f}; in the weights: logits differ by {apart:.0e}"
    )
print(*(repr(each.generate("El perro es un animal que", 14).text) for each in (model, changed)), sep="\n")
