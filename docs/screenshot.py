"""The picture in the README: the top of a real report.

    conserved demo -o runs/picture
    python docs/screenshot.py runs/picture/report.html

Needs playwright (extra [test]) and a chromium on the path.
"""

import argparse
import shutil
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "report.png"
SIZE = (1200, 1900)


def main() -> None:
    """Open the page as a reader does, and keep its top."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Write docs/images/report.png from a report.")
    parser.add_argument("report", type=Path, help="report.html of a `conserved demo`")
    page_url = parser.parse_args().report.resolve().as_uri()
    width, height = SIZE
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.goto(page_url)
        page.wait_for_selector("#plot-drift .main-svg")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"wrote {PICTURE} ({PICTURE.stat().st_size // 1000} kB)")


if __name__ == "__main__":
    main()
