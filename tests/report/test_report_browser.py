"""The report in a real browser: it renders, what is drawn are the run's numbers, and nothing leaves the machine."""

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from report_fixture import FLAGS, LAWS, Visit, classifier, decoder_laws, write_hostile, write_run, write_study

from conserved import LawSet, load_run
from conserved.report import write_report
from conserved.report.data import CURVES


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One headless Chromium with an empty profile."""
    executable = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("no chromium is installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser (extra [test])")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=executable, headless=True, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Callable[..., Any]:
    """Open a page from disk: `with visit(path, width=360) as seen`."""

    @contextmanager
    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Generator[Visit, None, None]:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        seen = Visit(page, [], [])
        page.on("console", lambda message: seen.problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        try:
            page.goto(path.resolve().as_uri())
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            yield seen
        finally:
            context.close()

    return opened


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of every kind."""
    root = tmp_path_factory.mktemp("pages")

    def partly(record: dict[str, Any]) -> None:
        record["residual"][2] = record["predicted"][2] = None

    runs = {
        "run": write_run(root / "run", LAWS, work=0.3, change=partly),
        "study": write_study(root / "study", LAWS),
        "hostile": write_hostile(root / "hostile"),
        "empty": write_run(root / "empty", LawSet(), range(3)),
        "single": write_run(root / "single", LawSet.of([classifier()]), range(3), ledger=None),
        "silent": write_run(root / "silent", LAWS, range(3), change=lambda record: record.update(dict.fromkeys(CURVES))),
        "large": write_run(root / "large", decoder_laws(12), range(0, 50, 10)),
    }
    return {name: write_report(run) for name, run in runs.items()}


KINDS = ("run", "study", "hostile", "empty", "single", "silent", "large")


@pytest.mark.parametrize("kind", KINDS)
def test_renders_on_phone_and_desktop_without_errors_or_requests(visit: Any, pages: dict[str, Path], kind: str) -> None:
    with visit(pages[kind], width=360) as seen:
        seen.require_no_sideways_scroll()
        if kind not in ("empty", "silent"):
            assert seen.page.locator("#plot-drift .scatterlayer path.js-line").count() >= 1
            assert seen.page.locator("#plot-drift .xtitle").text_content() == "training step k (steps)"
            assert "units of h" in seen.page.locator("#plot-drift .ytitle").text_content()
        seen.page.set_viewport_size({"width": 1200, "height": 800})
        seen.wait_until("[...document.querySelectorAll('.main-svg')].every(figure => figure.clientWidth === 0 || figure.clientWidth > 900)")
        seen.require_no_sideways_scroll()
        seen.check()


def test_plotted_numbers_are_the_runs(visit: Any, pages: dict[str, Path]) -> None:
    table = load_run(pages["run"].parent)
    with visit(pages["run"]) as seen:
        seen.choose("family", "rope")
        for column in ("drift", "predicted"):
            drawn = seen.curves("plot-drift", column)
            assert list(drawn) == [f"layers.{layer}.attention.rope" for layer in range(3)]
            for law, values in drawn.items():
                recorded = table.filter(pl.col("law") == law)[column].to_list()
                assert values == [value if value else None for value in recorded]  # step 0 has no place on a logarithmic axis
        parts = {trace["column"]: trace["y"] for trace in seen.plotted("plot-split")}
        assert set(parts) == {"drift", "step_size", "decay", "work", "rounding"}
        largest = table.filter((pl.col("step") == 200) & (pl.col("family") == "rope")).sort("drift")["law"][-1]
        for column, values in parts.items():
            assert values == table.filter(pl.col("law") == largest)[column].to_list()
        assert (
            seen.curves("plot-residual", "residual")["layers.0.attention.rope"]
            == table.filter(pl.col("law") == "layers.0.attention.rope")["residual"].to_list()
        )
        assert set(seen.curves("plot-control")) == {"control", "layers.2.mlp.glu"}


def test_choosing_changes_what_is_plotted(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        assert list(seen.curves("plot-drift")) == [f"layers.{layer}.attention.rope" for layer in range(3)]
        seen.choose("family", "glu")
        assert list(seen.curves("plot-drift")) == [f"layers.{layer}.mlp.glu" for layer in range(3)]
        assert seen.page.locator("#select-layer option").all_text_contents() == ["all layers", "layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]
        seen.choose("layer", "layers.1.mlp")
        assert list(seen.curves("plot-drift")) == ["layers.1.mlp.glu"]
        assert list(seen.curves("plot-residual", "residual")) == ["layers.1.mlp.glu"]
        assert {trace["law"] for trace in seen.plotted("plot-split")} == {"layers.1.mlp.glu"}
        assert seen.page.locator("#table-final tbody tr:visible th").all_text_contents() == ["layers.1.mlp.glu"]
        seen.choose("family", "all families")
        seen.choose("layer", "layers.0.mlp")
        assert set(seen.curves("plot-drift")) == {"layers.0.mlp.glu", "control"}
        assert "1 law: predicted drift not evaluated" in seen.page.locator("#plot-drift-note").text_content()
        seen.choose("layer", "all layers")
        assert "the law with the largest final drift of each of 6 families, of 14 laws" in seen.page.locator("#plot-drift-note").text_content()
        assert len(seen.curves("plot-drift")) == 6
        seen.check()


def test_selects_work_by_keyboard(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        seen.page.focus("#select-family")
        seen.page.keyboard.press("ArrowDown")
        assert all(law.endswith("value_output") for law in seen.curves("plot-drift"))
        seen.page.keyboard.press("Tab")
        seen.page.keyboard.press("ArrowDown")
        assert list(seen.curves("plot-drift")) == ["layers.0.attention.value_output"]


def test_study_changes_with_the_run(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["study"]) as seen:
        before = seen.curves("plot-drift")["layers.0.attention.rope"]
        seen.choose("run", "learning rate 0.03 (lr-0.03)")
        after = seen.curves("plot-drift")["layers.0.attention.rope"]
        assert after[-1] == load_run(pages["study"].parent / "lr-0.03").filter(pl.col("law") == "layers.0.attention.rope")["drift"][-1]
        assert after != before
        points = {trace["family"]: trace for trace in seen.plotted("plot-scaling") if trace["column"] == "drift"}
        assert points["rope"]["x"] == [0.001, 0.003, 0.01, 0.03]
        assert points["rope"]["name"] == "rope (slope 2.00)"
        assert points["classifier"]["visible"] == "legendonly"
        assert seen.page.locator("#table-final tbody tr:visible").count() == 3
        seen.check()


def test_negative_parts_are_dotted_on_a_logarithmic_axis(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        assert min(value for trace in seen.plotted("plot-split") for value in trace["y"]) < 0
        seen.choose("scale", "absolute value, logarithmic")
        names = [trace["name"] for trace in seen.plotted("plot-split")]
        assert "weight decay, negative" in names
        assert seen.page.evaluate("document.getElementById('plot-split').layout.yaxis.type") == "log"


def test_legend_hides_curves(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        toggles = seen.page.locator("#plot-drift .legendtoggle")
        toggles.first.click()
        seen.wait_until("document.getElementById('plot-drift').data[0].visible === 'legendonly'")
        toggles.last.click()  # "predicted"
        hidden = "document.getElementById('plot-drift').data.filter(trace => trace.meta.column === 'predicted').every(trace => trace.visible === false)"
        seen.wait_until(hidden)
        seen.check()


def test_hover_tells_the_number(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        box = seen.page.locator("#plot-residual .nsewdrag").first.bounding_box()
        seen.page.locator("#plot-residual").scroll_into_view_if_needed()
        box = seen.page.locator("#plot-residual .nsewdrag").first.bounding_box()
        for part in range(20, 100, 4):
            seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * part / 100)
            if seen.page.locator("#plot-residual .hoverlayer .hovertext").count():
                break
        assert "step" in seen.page.locator("#plot-residual .hoverlayer .hovertext").first.text_content()


def test_dark_mode_changes_page_and_figures(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        light = seen.colors()
        seen.page.emulate_media(color_scheme="dark")
        seen.wait_until(f"document.getElementById('plot-drift').layout.paper_bgcolor !== '{light[2]}'")
        assert all(before != after for before, after in zip(light, seen.colors(), strict=True))
    with visit(pages["run"], scheme="dark") as dark:
        assert all(before != after for before, after in zip(light, dark.colors(), strict=True))


def contrast(first: str, second: str) -> float:
    """WCAG contrast of two CSS colours rgb(…)."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_have_contrast(visit: Any, pages: dict[str, Path], scheme: str) -> None:
    script = """() => { const probe = document.body.appendChild(document.createElement("i"));
        const rgb = name => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
        return Object.fromEntries(["card", "ground", "ink", "quiet", "accent", "good", "good-ground", "bad", "bad-ground", "warn", "warn-ground",
            ...Array.from({ length: 10 }, (_, index) => `c${index}`)].map(name => [name, rgb(name)])); }"""
    with visit(pages["run"], scheme=scheme) as seen:
        colors = seen.page.evaluate(script)
    for text, ground in [("ink", "card"), ("ink", "ground"), ("quiet", "card"), ("quiet", "ground"), ("accent", "ground"), ("warn", "card"), ("bad", "card")]:
        assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for tag in ("good", "bad", "warn"):
        assert contrast(colors[tag], colors[f"{tag}-ground"]) >= 4.5, tag
    for curve in range(10):
        assert contrast(colors[f"c{curve}"], colors["card"]) >= 3, curve
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)


def test_unevaluated_cells_look_different(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"]) as seen:
        look = "element => getComputedStyle(element).backgroundImage"
        unseen = seen.page.locator("#table-residuals td[data-state='not evaluated']")
        assert unseen.count() == 1
        assert "repeating-linear-gradient" in unseen.first.evaluate(look)
        value = seen.page.locator("#table-residuals td[data-state='value']").first
        assert value.evaluate(look) == "none"
        color = "element => getComputedStyle(element).backgroundColor"
        assert value.evaluate(color) != seen.page.locator("#table-residuals td[data-family='control']").first.evaluate(color)


def test_nothing_to_draw_is_said(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["silent"]) as seen:
        for figure in ("plot-drift", "plot-split", "plot-residual", "plot-control"):
            assert not seen.page.locator(f"#{figure}").is_visible()
            assert seen.page.locator(f"#{figure}-empty").is_visible()
        assert "drift not evaluated" in seen.page.locator("#plot-drift-empty").text_content()


def test_hostile_names_do_nothing(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["hostile"]) as seen:
        for option in seen.page.locator("#select-family option").all_text_contents():
            seen.choose("family", option)
        assert seen.page.evaluate("window.pwned") is None
        assert seen.page.locator("img").count() == 0
        assert "<script>window.pwned=1</script>" in seen.page.locator("#plot-drift .legendtext").first.text_content()
        seen.check()


def test_printing_is_light_whatever_the_screen(visit: Any, pages: dict[str, Path]) -> None:
    with visit(pages["run"], scheme="dark") as seen:
        dark = seen.colors()
        seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        printed = seen.colors()
        assert printed[2] == "#ffffff"
        seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert seen.colors() == dark


# ---------------------------------------------------------------------------------------------- the helpers must be able to fail


@pytest.mark.parametrize(
    "body",
    [
        "<script>undefinedFunction()</script>",
        "<script>console.error('broken')</script>",
        "<script>Promise.reject(new Error('late'))</script>",
        "<img src='http://127.0.0.1:9/pixel.png'>",
        "<link rel='stylesheet' href='file:///nonexistent.css'>",
    ],
)
def test_check_sees_errors_and_requests(visit: Any, tmp_path: Path, body: str) -> None:
    file = tmp_path / "bad.html"
    file.write_text(f"<!DOCTYPE html><title>bad</title>{body}")
    with visit(file) as seen:
        seen.page.wait_for_timeout(100)
        with pytest.raises(AssertionError):
            seen.check()


def test_check_passes_a_good_page(visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "good.html"
    file.write_text("<!DOCTYPE html><title>good</title><link rel='icon' href='data:,'><p>good")
    with visit(file) as seen:
        seen.check()
        seen.require_no_sideways_scroll()


def test_sideways_scroll_is_seen(visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "wide.html"
    file.write_text("<!DOCTYPE html><meta name='viewport' content='width=device-width'><div style='width:500px'>wide</div>")
    with visit(file, width=360) as seen, pytest.raises(AssertionError, match="px wide"):
        seen.require_no_sideways_scroll()


def test_a_broken_report_is_flagged_and_injected_code_is_not_run(visit: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["run"].read_text(encoding="utf-8")
    injected = tmp_path / "injected.html"
    injected.write_text(text.replace("</main>", "<script>window.pwned = 1</script></main>"), encoding="utf-8")
    with visit(injected) as seen:
        assert seen.page.evaluate("window.pwned") is None  # the page's policy runs no script but its own
        with pytest.raises(AssertionError):
            seen.check()
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace('id="select-family"', 'id="select-other"'), encoding="utf-8")
    with visit(broken) as seen, pytest.raises(AssertionError):
        seen.check()
