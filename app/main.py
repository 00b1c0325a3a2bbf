"""The dashboard: navigation, and the frame around every page.

Pages are `views/*.py`, one file each. What they share is `ui/`: `services` is the only place that calls `interp`, `state`
the only place that knows the URL, `library` the only place that knows what lies in the workspace. Start it with
`interp app`.
"""

from pathlib import Path

import streamlit as st

from ui import access, frame, pages, state

# A file, since Streamlit fetches icons by name from the network.
st.set_page_config(page_title="interp", page_icon=Path(__file__).parent / "ui" / "icon.png", layout="wide")
# The menu stands under the prompt (`frame.sidebar`): its own place would push the prompt below the fold.
page = st.navigation(pages.navigation(), position="hidden")
access.gate()  # after the pages are known, so that a deep link leads there after the login; nothing is drawn before it
frame.sidebar()
page.run()
state.to_url()
