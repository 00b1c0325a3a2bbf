"""Steer by a latent of a sparse autoencoder (Templeton et al. 2024): train a small one, look for birds, and watch them appear."""

import interp

model, site = interp.load("smollm2-135m"), "resid_post:14"
texts = [each for name in ("animals", "books", "companies") for each in interp.load_dataset(name)][::4]
store = interp.record(model, texts, site, progress=False)
config = interp.SAEConfig(k=16, width=512, lr=3e-3, batch_size=512, epochs=8)
sae = interp.train_sae(store, config, site=site)
features = interp.sae_features(sae, store, model=model)
hits = interp.search_by_token(features, " bird").query("role == 'reads'")
print(hits.head(3))

latent = int(hits["latent"].iloc[0])
add = interp.SteerLatent(sae, latent, value=2, unit="max", features=features)
push = interp.Steer(interp.latent_direction(sae, latent), 0.5)  # in typical norms of the site, as any direction
for each in ([], [add], [push]):
    with model.intervene(*each):
        print(
            *map(repr, model.generate(["Yesterday in the garden we saw", "I went to the market and bought"], 14).text)
        )
