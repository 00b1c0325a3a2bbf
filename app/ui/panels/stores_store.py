"""One store: its sites, its texts, the tokens of a text, and what its statistics leave out."""

import streamlit as st

from interp import plot
from ui import figure, library, text
from ui.panels import job_status
from ui.services import recorded

NUMBER = st.column_config.NumberColumn
SHARE = NUMBER("share", format="percent")


def sites(entry: library.Entry) -> None:
    """A row per site, with what its statistics leave out."""
    what = (
        "One row per recorded site. **Typical norm** is the median norm of the typical rows: it is the unit in which steering "
        "strengths are given. **Left out** counts the rows that the statistics do without: special tokens, the first token of "
        "each text, and outliers (norm over ten times the median), which would otherwise drown all else."
    )
    with figure.card("store_sites", "Sites", what) as card:
        frame = recorded.sites(entry.key)
        card.table(
            frame.loc[:, ["site", "layer", "shape", "dtype", "rows", "typical_norm", "left_out", "share"]],
            code=_code(entry, "print(store.to_frame())"),
            caption=f"{len(frame):,} {'site' if len(frame) == 1 else 'sites'}. Norms in the model's own units.",
            columns={
                "rows": NUMBER("rows", format="localized"),
                "typical_norm": NUMBER("typical norm", format="%.4g"),
                "left_out": NUMBER("left out", format="localized"),
                "share": SHARE,
            },
            height=_height(len(frame), 320),
        )


def texts(entry: library.Entry) -> int | None:
    """The recorded texts, a page at a time; the number of the chosen one."""
    what = (
        "The texts that the model read, with their labels and whatever else came with them. Search looks into every column "
        "that holds text. **Click a row** for its tokens."
    )
    with figure.card("store_texts", "Texts", what) as card:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            search = st.text_input(
                "Search",
                key="stores_search",
                max_chars=200,
                bind="query-params",
                width=320,
                placeholder="part of a text",
            )
            page = st.number_input("Page", min_value=1, step=1, key="stores_page", bind="query-params", width=140)
        frame, n = recorded.examples(entry.key, search or "", int(page or 1) - 1)
        if frame.empty and n:
            frame, n = recorded.examples(entry.key, search or "", (n - 1) // recorded.PAGE)
            st.caption(f"There are {-(-n // recorded.PAGE):,} pages; here is the last one.")
        if not n:
            st.caption("No text holds that.")
            return None
        picked = card.table(
            frame,
            code=_code(entry, "print(store.examples)"),
            caption=f"{n:,} texts{' hold it' if search else ''}, {recorded.PAGE} on a page.",
            columns={"text": st.column_config.TextColumn("text", width="large")},
            height=_height(len(frame), 360),
            key=f"stores_rows_{page}",
            on_select="rerun",
            selection_mode="single-row",
        )
        rows = picked["selection"]["rows"] if picked else []
        return int(frame["number"].iloc[rows[0] if rows and rows[0] < len(frame) else 0])


def tokens(entry: library.Entry, number: int) -> None:
    """The tokens of a text: which were kept, which are typical, and how long each row is."""
    what = (
        "What the model read of this text, and what the store keeps of it at the chosen site. A token without a norm was not "
        "kept: the recording rule left it out. **Typical** rows are those that the statistics use."
    )
    with figure.card("store_tokens", "Tokens of the text", what) as card:
        site = site_box(entry)
        frame, n = recorded.tokens(entry.key, number, site)
        notes = [f"Text {number:,}: {n:,} tokens, {frame['kept'].to_numpy().sum():,} kept at {site}."]
        if n > len(frame):
            notes.append(f"The first {len(frame):,} are shown.")
        if "token" in frame:
            frame["token"] = [plot.token_label(str(each)) for each in frame["token"]]
        else:
            notes.append("Their texts are shown while the model that made the store is in memory.")
        card.table(
            frame,
            code=_code(entry, f"print(store.token_ids({number}))\nprint(store.tokens.query('text == {number}'))"),
            caption=text.plain(" ".join(notes)),
            columns={"norm": NUMBER("norm", format="%.4g"), "token_id": NUMBER("token id", format="%d")},
            height=_height(len(frame), 320),
        )


def left_out(entry: library.Entry) -> None:
    """The report on sinks: which rows are outliers, and where."""
    what = (
        "Transformers put much of their attention on the first token, and its residual stream grows to many times the length "
        "of any other (an *attention sink*). One such row can outweigh thousands. The statistics of a store leave these rows "
        "out; here is which and why. A row can have several reasons."
    )
    with figure.card("store_sinks", "Outliers and sinks", what) as card:
        site = site_box(entry, "stores_sink_site")
        found = recorded.left_out(entry.key, site)
        unit = f"typical norm {found.typical_norm:.4g}" if found.typical_norm is not None else "no typical row"
        card.table(
            found.reasons,
            code=_code(entry, f"stats = store.stats({site!r})\nprint(stats.left_out, stats.typical_norm)"),
            caption=text.plain(f"{site}: {found.left_out:,} of {found.n_rows:,} rows left out, {unit}."),
            columns={"rows": NUMBER("rows", format="localized"), "share": SHARE},
        )
        places, strongest = st.columns(2)
        with places:
            st.caption("By position in the text")
            st.dataframe(
                found.positions,
                hide_index=True,
                height=_height(len(found.positions), 320),
                column_config={"share": SHARE, "times_typical": NUMBER("median norm / typical", format="%.2f")},
            )
        with strongest:
            st.caption("Rows of the largest norm")
            st.dataframe(
                found.strongest,
                hide_index=True,
                height=_height(len(found.strongest), 320),
                column_config={"norm": NUMBER(format="%.4g"), "times_typical": NUMBER("norm / typical", format="%.2f")},
            )


def verify(entry: library.Entry) -> None:
    """Hash every file of the store again, as a job."""
    what = "Hashes every file again and compares it with what was recorded. Large stores take a while, so it is a job."
    with figure.card("store_verify", "Is it whole?", what):
        job_status.start_button(
            "Verify",
            kind="store verify",
            argv=["store", "verify", str(entry.path)],
            title=f"verify {entry.title[:60]}",
            key="stores_verify",
        )


def site_box(entry: library.Entry, key: str = "stores_site") -> str:
    """The chosen site; the middle one at first."""
    names = recorded.sites(entry.key)["site"].tolist()
    picked = st.selectbox(
        "Site", names, index=len(names) // 2, format_func=text.printable, key=key, bind="query-params", width=320
    )
    return str(picked) if picked in names else names[len(names) // 2]


def _code(entry: library.Entry, line: str) -> str:
    return f"import interp\n\nstore = interp.open_store({str(entry.path)!r})\n{line}"


def _height(n: int, most: int) -> int:
    """Of a table, in pixels: all its rows, or `most`."""
    return min(most, 38 + 35 * max(1, n))
