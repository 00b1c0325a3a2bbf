"""Steer by a latent of an SAE (Templeton et al. 2024): train a small one, look for birds, and watch them appear."""

import interp

model, site = interp.load("smollm2-135m"), "resid_post:14"
texts = [each for name in ("animals", "books") for each in interp.load_dataset(name)][::4]
store = interp.record(model, texts, site, progress=False)
config = interp.SAEConfig(k=16, width=512, lr=3e-3, batch_size=512, epochs=6)
sae = interp.train_sae(store, config, site=site)
features = interp.sae_features(sae, store, model=model)
latent = int(interp.search_by_token(features, " bird").query("role == 'reads' and density > 0.005")["latent"].iloc[0])
print(features.latents.loc[latent, ["latent", "density", "max", "top_tokens"]])

add = interp.SteerLatent(sae, latent, value=2, unit="max", features=features)
push = interp.Steer(interp.latent_direction(sae, latent), 0.5)  # in typical norms of the site, as any direction
for each in ([], [add], [push]):
    with model.intervene(*each):
        print(*map(repr, model.generate(["Yesterday in the garden we saw", "My favourite animal is"], 14).text))
