"""The page of a model of texts in a real browser: ask, correct, teach, forget, hostile texts."""

import re

import pytest

from acil.encoders.text import bert
from acil.serve.settings import Settings
from support.pages import (
    DESKTOP,
    PHONE,
    WIDE,
    contrasts,
    launched,
    pages,
    playwright,
    says,
    totals,
)
from support.serving import TOKEN
from support.texts import TOPICS, sentences


@pytest.fixture(scope="module")
def browser():
    with launched() as made:
        yield made


@pytest.fixture
def opened(browser, desk):
    """A function that opens the page of a new server of texts."""
    with pages(browser) as shown:
        yield lambda viewport=DESKTOP, dark=False, **options: shown(desk(**options), viewport, dark)


def write(page, what, texts):
    page.locator(f"#{what}-text").fill("\n".join(texts))


def teach(page, name, texts):
    page.get_by_label("Name of the class").fill(name)
    write(page, "teach", texts)
    says(page, "teach", "written")
    page.get_by_role("button", name="Teach", exact=True).click()


def asked(page, *texts):
    """Ask about texts, and return the answers."""
    write(page, "predict", texts)
    page.get_by_role("button", name="Ask").click()
    # Not "8 of 11 answers"
    told = re.compile("^This is" if len(texts) == 1 else f"^{len(texts)} answers")
    playwright.expect(page.locator("#predict-status")).to_have_text(told)
    return page.locator("#answers h3").all_inner_texts()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_ask_teach_correct_forget_undo(opened, viewport, tmp_path):
    table = tmp_path / "held-out.csv"
    rows = [f"{text},{topic}" for topic in ("card", "travel") for text in sentences(topic, 3)]
    table.write_text("\n".join(["text,label", *rows]))
    page = opened(viewport, held_out=table)
    # The small network knows what it has learnt.
    card, travel, rain = (sentences(topic, 12) for topic in ("card", "travel", "weather"))
    assert asked(page, card[0], travel[0]) == ["card", "travel"]
    assert page.locator("#answers blockquote").all_inner_texts() == [card[0], travel[0]]
    teach(page, "weather", rain)
    says(page, "teach", "Learnt 12 texts of “weather”")
    assert asked(page, *rain[:2]) == ["weather", "weather"]
    playwright.expect(page.locator("#comparison-heading")).to_contain_text("teaching “weather”")
    playwright.expect(page.locator("#verdict")).to_contain_text("of 6 texts")
    teach(page, "weather", rain)
    says(page, "teach", "12 were taught before and left out")
    # One click says what it is.
    first = page.locator(".answer").first
    first.get_by_role("button", name="card", exact=True).click()
    playwright.expect(first.locator(".status")).to_contain_text("Learnt as “card”, and saved.")
    assert totals(page) == {"card": 15, "travel": 14, "weather": 12}
    page.get_by_role("button", name="Forget texts of weather").click()
    write(page, "forget", rain)
    page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()
    says(page, "classes", "Forgot 12 texts of “weather”")
    page.get_by_role("button", name="Undo the last change").click()
    says(page, "classes", "taken back")
    page.reload()
    playwright.expect(page.locator("#classes tbody tr")).to_have_count(3)
    assert totals(page) == {"card": 15, "travel": 14, "weather": 12}


def test_names_have_room_beside_the_buttons_on_a_phone(opened):
    name = opened(PHONE).locator("#classes tbody th").first
    lines = """cell => {
      cell.textContent = "accept_reservations";
      const all = document.createRange();
      all.selectNodeContents(cell);
      return all.getClientRects().length;
    }"""
    assert name.evaluate(lines) <= 2


def test_lines_are_texts_of_their_own_unless_one_says_otherwise(opened):
    page = opened()
    write(page, "predict", ["my card", "", "  ", "a flight"])
    page.get_by_role("button", name="Ask").click()
    says(page, "predict", "2 answers")
    page.locator("#predict-lines").uncheck()
    page.locator("#predict-text").press("Control+Enter")
    says(page, "predict", "This is")
    assert "a flight" in page.locator("#answers blockquote").inner_text()
    write(page, "predict", [" "])
    page.get_by_role("button", name="Ask").click()
    playwright.expect(page.locator("#predict-status.bad")).to_have_text("Write at least one text.")


def test_more_texts_than_a_request_may_have_are_sent_in_parts(opened):
    page = opened(max_texts=4)
    texts = sentences("card", 6) + sentences("travel", 5)
    assert asked(page, *texts) == ["card"] * 6 + ["travel"] * 5
    teach(page, "weather", sentences("weather", 11))
    says(page, "teach", "Learnt 11 texts of “weather”")
    playwright.expect(page.locator("#teach-text")).to_have_value("")
    assert totals(page)["weather"] == 11


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>document.title = 'taken'</script> & &amp; {{ 7 * 7 }}",
    "\u202egnp.exe my card \u2066 is it \u202d",
    "بطاقتي لا تعمل card",
    "card" * 200,
    "my\0 card \x1b[31m is\x07 \x85 lost",
    "👩‍👩‍👧 e\u0301" + "\u0301" * 50 + " card",
]


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_hostile_texts_are_shown_as_texts_and_stay_inside_the_page(opened, viewport):
    page = opened(viewport)
    asked(page, *HOSTILE)
    shown = page.locator("#answers blockquote").evaluate_all("all => all.map(e => e.textContent)")
    assert shown == HOSTILE
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "acil · desk.acil"
    assert page.evaluate("() => document.documentElement.scrollWidth") <= viewport["width"]
    clamped = "e => !e.matches('blockquote')"  # what is long is shown by its beginning, on purpose
    assert page.evaluate(WIDE.replace(".map(", f".filter({clamped}).map(")) == []
    # What names a text elsewhere turns nothing around.
    names = page.locator(".correction input").evaluate_all("all => all.map(e => e.ariaLabel)")
    assert not any(mark in name for name in names for mark in "\u202e\u202d\u2066\0\x1b")
    teach(page, "travel", HOSTILE)
    says(page, "teach", f"Learnt {len(HOSTILE)} texts of “travel”")
    teach(page, "\u202eevil", ["my card"])
    says(page, "teach", "cannot be printed")


def test_texts_that_cannot_be_used_are_told_beside_the_others(opened):
    page = opened(max_characters=40)
    long = "my card " * 10
    write(page, "predict", ["my card", long, "\x07"])
    page.get_by_role("button", name="Ask").click()
    says(page, "predict", "This is: card. 2 texts cannot be used.")
    playwright.expect(page.locator("#answers .bad").first).to_contain_text("80 characters, more than 40")
    teach(page, "card", ["a lost card", "\u202e" + long])
    says(page, "teach", "Learnt 1 text of “card”")
    told = page.locator("#teach-refused li")
    playwright.expect(told).to_contain_text("It has 81 characters")
    assert "\u202e" not in told.inner_text()


def test_what_to_teach_next_is_named_in_one_click(opened):
    page = opened()
    page.get_by_text("Teach these next").click()
    write(page, "suggest", [*sentences("card", 3, seed=2), "card flight today"])
    page.get_by_role("button", name="Order", exact=True).click()
    says(page, "suggest", "4 texts to teach next, the best first.")
    first = page.locator("#suggestions .answer").first
    text = first.locator("blockquote").inner_text()
    first.get_by_role("button", name="travel", exact=True).click()
    playwright.expect(first.locator(".status")).to_contain_text("Learnt as “travel”, and saved.")
    page.get_by_role("button", name="Order the 3 texts that are left").click()
    says(page, "suggest", "3 texts to teach next")
    assert text not in page.locator("#suggestions blockquote").all_inner_texts()
    assert totals(page) == {"card": 14, "travel": 15}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_page_fits_and_is_readable(opened, viewport, dark):
    page = opened(viewport, dark, token=TOKEN)
    page.get_by_text("Teach these next").click()
    asked(page, "my card", "a flight")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= viewport["width"]
    small = page.evaluate(
        "() => [...document.querySelectorAll('.button, .check')].filter(e => e.offsetParent)"
        ".filter(e => e.offsetHeight < 34 || e.offsetWidth < 44).map(e => e.textContent)"
    )
    assert small == []
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('input, textarea, button, section, dialog, table')]"
        ".filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label')))"
        ".map(e => e.id)"
    )
    assert unnamed == []
    assert min(contrasts(page)) >= 4.5


#: Milliseconds, of a model of full width on a busy machine.
PATIENCE = 300_000


@pytest.mark.slow
def test_the_page_with_the_default_network(browser, tmp_path):
    """From no file to an answer, with the network that users have."""
    pytest.importorskip(bert.PACKAGE)
    with pages(browser) as shown:
        page = shown(Settings(tmp_path / "new.acil", texts=True), PHONE)
        for topic in TOPICS:
            teach(page, topic, sentences(topic, 6))
            says(page, "teach", f"Learnt 6 texts of “{topic}”", PATIENCE)
        questions = ["they refused my credit card", "when does my flight leave", "a storm is coming"]
        write(page, "predict", questions)
        page.get_by_role("button", name="Ask").click()
        says(page, "predict", "3 answers", PATIENCE)
        bars = page.locator("#answers .bars")
        best = [bars.nth(place).locator(".name").first.inner_text() for place in range(3)]
        assert best == ["card", "travel", "weather"]
        playwright.expect(page.locator("#model-facts")).to_contain_text("reads the first 256")
