"""The pages of the app, in the order of the menu."""

import streamlit as st

PAGES = {
    "Explore a prompt": [
        ("overview", "Overview", "dashboard"),
        ("lens", "Logit lens", "layers"),
        ("heads", "Heads", "grid_view"),
        ("head", "Head", ""),
        ("attention", "Attention", "visibility"),
        ("attribution", "Attribution", "stacked_bar_chart"),
        ("patching", "Patching", "swap_horiz"),
        ("circuits", "Circuits", "account_tree"),
        ("compare", "Compare", "compare_arrows"),
    ],
    "Train and judge": [
        ("runs", "Runs", "play_circle"),
        ("probes", "Probes", "straighten"),
        ("saes", "Sparse autoencoders", "scatter_plot"),
        ("feature", "Feature", ""),
        ("features", "Feature search", "search"),
        ("steering", "Steering", "explore"),
        ("calibration", "Uncertainty", "balance"),
        ("behavior", "Behaviour", "fact_check"),
    ],
    "System": [("stores", "Stores and system", "database"), ("help", "Help", "help")],
}
"""Group -> pages as (file, title, icon); a page without an icon is reached from others and stays out of the menu."""


def menu() -> None:
    """Links to the pages, in groups."""
    for group, listed in PAGES.items():
        with st.container(gap="xxsmall"):
            st.caption(group)
            for name, title, icon in listed:
                if icon:
                    st.page_link(f"views/{name}.py", label=title, icon=f":material/{icon}:")


def navigation() -> dict[str, list[st.Page]]:
    """What `st.navigation` takes."""
    return {group: [_page(*each) for each in listed] for group, listed in PAGES.items()}


def _page(name: str, title: str, icon: str) -> st.Page:
    return st.Page(
        f"views/{name}.py",
        title=title,
        icon=f":material/{icon}:" if icon else None,
        default=name == "overview",
        visibility="visible" if icon else "hidden",
    )
