from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import set_options
from gnnkit.ui.cards import Card, Table
from tests.ui.budgets import MAX_HTML_BYTES

VOID = {"circle", "path"}
NASTY = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            "</style><b>",
            "{{ 7 * 7 }}",
            "\"'><img src=x onerror=alert(1)>",
            "&amp;",
            "\x1b[31mred\r\n",
            "\udcff",
            "--></div>",
        ]
    ),
)
TABLES = st.builds(Table, st.lists(NASTY, max_size=4), st.lists(st.lists(NASTY, max_size=5), max_size=4))
CARDS = st.builds(
    Card,
    NASTY,
    NASTY,
    st.lists(st.tuples(NASTY, NASTY), max_size=6),
    st.none() | NASTY,
    st.lists(st.tuples(NASTY, TABLES), max_size=3),
)


class Reader(HTMLParser):
    """Collects tags and text, and checks that every tag is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(data.strip())


EXAMPLE = Card(
    "GraphLoader ogbn-products",
    "ready",
    [("nodes", "2,449,029"), ("batches", "193")],
    "synthetic sample, not OGB's data",
    [("Parts", Table(["part", "bytes", "host"], [["0", "812 MB", "a"], ["1", "81 MB", "b"]]))],
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(CARDS)
def test_nothing_a_card_is_given_becomes_markup(card: Card) -> None:
    html = card.to_html()
    read = Reader(html)
    assert set(read.tags) <= {
        "div",
        "style",
        "svg",
        "g",
        "path",
        "circle",
        "span",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
    }
    assert not {name for name in read.attributes if name.startswith("on") or name in ("src", "href")}
    assert len(html.encode()) < MAX_HTML_BYTES
    for text in (card.to_text(), *card.to_block().splitlines()):
        assert text.isprintable()
    assert card.to_text().startswith("<") and card.to_text().endswith(">")


def test_the_texts_arrive_as_they_were() -> None:
    read = Reader(Card("a < b & 'c'", "x > y", [("k", "</table>")], "{{ notice }}").to_html())
    assert read.texts == ["a < b & 'c'", "x > y", "{{ notice }}", "k", "</table>"]


def test_a_huge_card_stays_small_and_says_what_is_missing() -> None:
    rows = [(f"name {i} " + "&" * 500, "<" * 5000) for i in range(500)]
    table = Table([f"column {i}" for i in range(40)], [["\N{GRINNING FACE}" * 900] * 40 for _ in range(700)])
    html = Card("'" * 9000, "'" * 9000, rows, '"' * 9000, [(f"table {i}", table) for i in range(30)]).to_html()
    assert len(html.encode()) < MAX_HTML_BYTES
    assert "more" in html
    Reader(html)


def test_a_moderate_card_is_shown_whole() -> None:
    rows = [(f"name {i}", f"value {i}") for i in range(30)]
    texts = Reader(Card("t", "ready", rows, None, [("Parts", Table(["p"], [[f"part {i}"] for i in range(32)]))]).to_html()).texts
    assert {"value 29", "part 31"} <= set(texts)


def test_the_line_holds_title_state_facts_and_always_the_notice() -> None:
    assert EXAMPLE.to_text() == "<GraphLoader ogbn-products (ready): nodes 2,449,029, batches 193; synthetic sample, not OGB's data>"
    long = Card("t", "ready", [("k" * 30, "v" * 70)] * 20, "synthetic sample, not OGB's data").to_text()
    assert len(long) <= 490
    assert long.endswith("; synthetic sample, not OGB's data>")
    assert Card("Store", "").to_text() == "<Store>"


def test_the_block_is_aligned() -> None:
    assert EXAMPLE.to_block().splitlines() == [
        "GraphLoader ogbn-products (ready)",
        "  ! synthetic sample, not OGB's data",
        "  nodes    2,449,029",
        "  batches  193",
        "",
        "  Parts",
        "    part   bytes  host",
        "       0  812 MB  a",
        "       1   81 MB  b",
    ]


def test_the_card_follows_the_theme_without_scripts_or_requests() -> None:
    html = EXAMPLE.to_html()
    for name in ("--jp-layout-color0", "--jp-ui-font-color0", "--vscode-editor-background", "prefers-color-scheme:dark"):
        assert name in html
    assert "<script" not in html and "http" not in html and "url(" not in html


def test_states_have_tones() -> None:
    tones = {
        state: Card("t", state).to_html().count(f'gk-state {tone}"')
        for state, tone in (("ready", "gk-ok"), ("failed: x", "gk-bad"), ("building", "gk-busy"))
    }
    assert set(tones.values()) == {1}
    assert 'gk-state "' in Card("t", "closed").to_html()


def test_the_bundle_can_be_forced_to_text() -> None:
    assert set(EXAMPLE._repr_mimebundle_()) == {"text/plain", "text/html"}
    with set_options(display="text"):
        assert EXAMPLE._repr_mimebundle_() == {"text/plain": EXAMPLE.to_block()}
