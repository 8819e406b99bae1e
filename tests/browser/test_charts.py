"""Charts in a real browser: drawn, alive, over one time that the address keeps, by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, expect

from apps.fleet.models import Node
from tests.browser.conftest import World
from tests.observability import gpu_history

# A chart's pixels by how it looks, not by what it was told; copied first, since Chromium warns of a second read.
_PIXELS = """
    const drawn = figure.querySelector("canvas");
    const canvas = Object.assign(document.createElement("canvas"), { width: drawn.width, height: drawn.height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(drawn, 0, 0);
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
"""
INKED = f"""(figure) => {{{_PIXELS}
    let inked = 0;
    for (let at = 3; at < data.length; at += 4) if (data[at]) inked += 1;
    return inked;
}}"""
COLOURS = f"""(figure) => {{{_PIXELS}
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) {{
        if (data[at + 3] === 255) seen.add(data.slice(at, at + 3).join(" "));
    }}
    return [...seen];
}}"""


def drawn(page: Page, at: int = 0) -> Locator:
    figure = page.locator("[data-chart]").nth(at)
    expect(figure).to_have_attribute("data-state", "drawn")
    return figure


def test_a_nodes_gpus_are_drawn(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/fleet/nodes/gpu-a01/")
    expect(page.locator("[data-chart]")).to_have_count(4)
    figure = drawn(page)
    assert int(figure.get_attribute("data-points") or 0) > 8 * 50
    assert figure.evaluate(INKED) > 2_000
    expect(figure.locator(".chart-keys li")).to_have_count(8)
    expect(figure.locator(".chart-keys b").first).to_have_text(re.compile(r"^\d\d\.\d °C$"))
    expect(figure.locator(".badge")).to_have_text("simulated")
    expect(figure.locator(".plot")).to_have_attribute(
        "aria-label", re.compile("Chart of Temperature, simulated; newest: ")
    )


def test_a_models_requests_are_drawn_and_have_a_table(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/models/minilm-embedder/?range=6h")
    expect(page.locator("[data-chart]")).to_have_count(3)
    figure = drawn(page)
    figure.get_by_role("link", name="As a table").click()
    expect(page.locator("#points thead")).to_contain_text("minilm-embedder v2")


def test_a_band_stands_behind_the_line(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?gpu=GPU-00000000-0000-0000-0000-000000000005&band=1&range=1h")
    figure = drawn(page)
    expect(figure.locator(".key-band")).to_have_text("expected band")
    with_band = figure.evaluate(INKED)
    page.get_by_role("checkbox", name="Expected band").click()
    page.wait_for_url(lambda url: "band" not in url)
    expect(drawn(page).locator(".key-band")).to_have_count(0)
    assert drawn(page).evaluate(INKED) < with_band


def test_dragging_picks_a_part_for_all_charts_and_the_address(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/fleet/nodes/gpu-a01/?range=6h")
    figure, other = drawn(page), drawn(page, 1)
    before = int(other.get_attribute("data-points") or 0)
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50, steps=5)
    page.mouse.up()
    page.wait_for_url(lambda url: "from=" in url and "to=" in url)
    expect(other).not_to_have_attribute("data-points", str(before))
    assert 0 < int(other.get_attribute("data-points") or 0) < before
    expect(page.locator("[data-zoomed]")).to_be_visible()
    csv = figure.get_by_role("link", name="Data as CSV")
    assert "from=" in (csv.get_attribute("href") or "")
    page.reload()
    assert 0 < int(drawn(page, 1).get_attribute("data-points") or 0) < before
    page.get_by_role("link", name="6 h").click()
    page.wait_for_url("**range=6h")
    expect(other).to_have_attribute("data-points", re.compile(r"\d{4}"))


def test_a_double_click_goes_back_and_so_does_the_browser(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?node=gpu-a01&range=6h")
    figure = drawn(page)
    whole = figure.get_attribute("data-points") or ""
    figure.locator(".plot").focus()
    page.keyboard.press("+")
    page.wait_for_url(lambda url: "from=" in url)
    expect(figure).not_to_have_attribute("data-points", whole)
    figure.locator(".u-over").dblclick()
    page.wait_for_url(lambda url: "range=6h" in url and "from=" not in url)
    expect(figure).to_have_attribute("data-points", re.compile(r"\d{4}"))
    page.go_back()
    page.wait_for_url(lambda url: "from=" in url)


def test_a_chart_is_read_by_keyboard(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/fleet/nodes/gpu-a01/")
    figure, other = drawn(page), drawn(page, 1)
    figure.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    expect(figure.locator(".chart-at")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:00 UTC$"))
    first = figure.locator(".chart-at").inner_text()
    page.keyboard.press("PageUp")
    expect(figure.locator(".chart-at")).not_to_have_text(first)
    # the same moment in every chart of the page
    expect(other.locator(".chart-at")).to_have_text(figure.locator(".chart-at").inner_text())


def test_a_line_is_hidden_by_its_key(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?node=gpu-a01&range=1h")
    figure = drawn(page)
    before = len(figure.evaluate(COLOURS))
    key = figure.get_by_role("button", name="GPU 0")
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    page.wait_for_timeout(200)
    assert len(figure.evaluate(COLOURS)) != before


def test_news_are_appended(world: World, visit: Callable[..., Page]) -> None:
    node = Node.objects.get(name="gpu-a01")
    page = visit("lead", "/explore/?node=gpu-a01&range=15m")
    figure = drawn(page)
    before = int(figure.get_attribute("data-points") or 0)
    moment = datetime.now(UTC).timestamp()
    gpu_history.send(node, list(node.gpus.order_by("index")), np.array([moment]))
    with page.expect_response(lambda answer: "after=" in answer.url and answer.status == 200):
        pass
    expect(figure).not_to_have_attribute("data-points", str(before))


def test_a_chart_without_news_answers_204(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?metric=requests&model=minilm-embedder&range=1h")
    drawn(page)
    with page.expect_response(lambda answer: "after=" in answer.url and answer.status == 204):
        pass


def test_colours_follow_the_theme(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?node=gpu-a01&range=1h&index=0", color_scheme="light")
    figure = drawn(page)
    assert "47 95 179" in figure.evaluate(COLOURS)  # --c0 of the light theme
    page.locator("details.who summary").click()
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert "122 167 255" in figure.evaluate(COLOURS)


def test_nodes_are_chosen_on_the_page(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/")
    expect(page.get_by_text("Nothing is chosen yet")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Nodes to compare")).to_be_focused()
    page.keyboard.type("gpu-a01")
    page.keyboard.press("Enter")
    page.wait_for_url("**node=gpu-a01**")
    drawn(page)
    page.get_by_role("checkbox", name="3", exact=True).click()
    page.wait_for_url("**index=3**")
    expect(drawn(page).locator(".chart-keys li")).to_have_count(1)
    page.get_by_label("Metric").select_option("power_w")
    page.wait_for_url("**metric=power_w**")
    assert "index=3" in page.url
    page.get_by_role("checkbox", name="gpu-a01").click()  # it leads to a page without itself
    expect(page.get_by_text("Nothing is chosen yet")).to_be_visible()


def test_explore_works_without_javascript(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/explore/?node=gpu-a01&range=15m", java_script_enabled=False)
    page.get_by_role("link", name="As a table").click()
    expect(page.locator("#points tbody tr").nth(5)).to_contain_text(":")
    page.get_by_label("Metric").select_option("power_w")
    page.get_by_role("button", name="Draw").click()
    assert "metric=power_w" in page.url


def test_the_grid_says_what_each_gpu_is(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/fleet/")
    hot: Any = page.get_by_role("link", name="gpu-a01 GPU 5: hot, simulated")
    expect(hot).to_have_text("H")
    expect(page.locator("#results .legend")).to_contain_text(re.compile(r"hot \d"))
    hot.click()
    page.wait_for_url("**/fleet/nodes/gpu-a01/")
    expect(page.locator("#gpus tr", has_text="GPU 5")).to_contain_text("Hot")
