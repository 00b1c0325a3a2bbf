"""The dashboard: navigation, and the frame around every page.

Pages are `views/*.py`, one file each. What they share is `ui/`: `services` is the only place that calls `interp`, `state`
the only place that knows the URL. Start it with `interp app`.
"""

from pathlib import Path

import streamlit as st

from ui import frame, state

PAGES = {
    "Explore a prompt": [
        st.Page("views/overview.py", title="Overview", icon=":material/dashboard:", default=True),
        st.Page("views/lens.py", title="Logit lens", icon=":material/layers:"),
        st.Page("views/heads.py", title="Heads", icon=":material/grid_view:"),
        st.Page("views/attribution.py", title="Attribution", icon=":material/stacked_bar_chart:"),
        st.Page("views/patching.py", title="Patching", icon=":material/swap_horiz:"),
    ],
    "Results of the run": [
        st.Page("views/probes.py", title="Probes", icon=":material/straighten:"),
        st.Page("views/sae.py", title="Sparse autoencoder", icon=":material/scatter_plot:"),
        st.Page("views/steering.py", title="Steering", icon=":material/explore:"),
        st.Page("views/calibration.py", title="Calibration", icon=":material/balance:"),
    ],
}

# A file, since Streamlit fetches icons by name from the network.
st.set_page_config(page_title="interp", page_icon=Path(__file__).parent / "ui" / "icon.png", layout="wide")
page = st.navigation(PAGES)
frame.sidebar()
page.run()
state.to_url()
