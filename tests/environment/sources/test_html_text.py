"""The text of HTML mail, however malformed or hostile."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.sources.html_text import html_to_text


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>One</p><p>Two<br>lines</p>", "One\n\nTwo\nlines"),
        ("<div>a<div>b</div></div>c", "a\nb\nc"),
        ("<style>p {}</style><script>x < y</script><title>t</title>text", "text"),
        ("<title>never closed<body>text", "text"),
        ("a&nbsp;&lt;b&gt; &copy; \n c", "a <b> © c"),
        ("<table><tr><td>Room</td><td>4B</td></tr><tr><td>Day</td><td>Monday</td></tr></table>", "Room 4B\nDay Monday"),
        ("<pre>a\n  b</pre>c", "a\n  b\n\nc"),
        ("Yes.<blockquote>Shall <b>we</b>?<br>Ann</blockquote>Bye", "Yes.\n\n> Shall we?\n> Ann\n\nBye"),
        ("<ul><li>one<li>two</ul>", "one\ntwo"),
        ("a<br/>b<!-- hidden -->c<![endif]>d<![foo[ bar]]>e", "a\nbcde"),
        ("a < b and <unknown>c</unknown>", "a < b and c"),
        ("<div style='color:red; DISPLAY : NONE'>a<div>b</div>c</div>d", "d"),
        ("<p hidden><b>a<p>b", "b"),
        ("<p style='height:0;overflow:hidden'>a<p style='text-indent:-9999px'>b<p style='left:-999px'>c<p>d", "d"),
        ("<p style='height:0.5em;overflow:hidden'>a", "a"),
        ("<table><td><span style='visibility:hidden'>a</td><td>b</table>", "b"),
        ("<ul><li hidden>a<li>b</ul>", "b"),
        ("<span style='font-size:0'>a</span><span style='font-size:0.9em'>b</span>", "b"),
        (
            "<td style='font-size:0px;padding:9px'><div style='font-family:Arial;font-size:13px'>Room <b>4B</b></div>x</td>",
            "Room 4B",
        ),
        ("<p style='font:0/0 a'>a<i style='font-size:2em'>b</i><i style='font:bold 12px/1.5 Arial'>c<img alt=d>", "cd"),
        ("<div style='mso-hide:all'>a<div style='margin-top:-120px;backface-visibility:hidden'>b", "a\nb"),
        ("<s>9:00</s> <strike>9:30</strike> <ins>10:00</ins>", "10:00"),
        (
            "<a href='https://x.example/a'>plan</a> <a href='https://x.example'>X.example</a>",
            "plan <https://x.example/a> X.example",
        ),
        ("<a href='https://x.example/" + "a" * 200 + "'>plan</a><a href='https://x.example'></a>", "plan"),
        (
            "<a href='mailto:jo@x.example?subject=Hi'>Jo</a> <a href='MAILTO:al@x.example'>Al@x.example</a>",
            "Jo <jo@x.example> Al@x.example",
        ),
        (
            "<a href='tel:+49301234'>Call</a> <a href='tel:+49301234'>+49 (30) 12-34</a> <a href='data:x'>x</a>",
            "Call <+49301234> +49 (30) 12-34 x",
        ),
        ("Room <img alt=4B> <img alt=secret hidden>", "Room 4B"),
        ("2<sup>10</sup>, the 1<sup>st</sup>, m<sup>2</sup>, 10<sup>-3</sup>", "2^10, the 1st, m^2, 10^-3"),
        ("a<!-- b --!>c<!-->d<!--->e", "acde"),
        ("&#847;&zwnj;x&#8203;y", "xy"),
        ("<font>" * 600 + "<div hidden>no</div>Room</font>" + "<p>4B", "Room\n\n4B"),
    ],
)
def test_html_becomes_the_text_that_a_reader_sees(html: str, expected: str) -> None:
    assert html_to_text(html) == expected


@given(st.lists(st.sampled_from(["<p>", "</p>", "<!--", "<![", "]>", "<blockquote>", "<script", "&#", "<pre>\n", "x"])))
def test_no_html_is_too_malformed(pieces: list[str]) -> None:
    html_to_text("".join(pieces))


@pytest.mark.timeout(300)  # against days
@pytest.mark.parametrize("piece", ["<!--", "<a ", "<![", "<a b='>", "&#1", "<blockquote>x", "<p"])
def test_hostile_html_takes_no_longer(piece: str) -> None:
    assert len(html_to_text(piece * 100_000)) < 10_000_000


@pytest.mark.parametrize("html", ["<em>" * 50_000, "".join(f"<x{n}>" for n in range(50_000))])
def test_elements_that_are_never_closed_take_no_memory(html: str) -> None:
    tracemalloc.start()
    html_to_text(html)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
