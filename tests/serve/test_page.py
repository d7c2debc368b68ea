"""The page in a real browser: teach, predict, teach more, forget, reload."""

import re

import pytest

from acil.serve.settings import Settings
from support.pages import DESKTOP, PHONE, WIDE, contrasts, launched, pages, playwright, says, totals
from support.pictures import COLOURS
from support.serving import TOKEN, images_of, learn


@pytest.fixture(scope="module")
def browser():
    with launched() as made:
        yield made


@pytest.fixture
def opened(browser, place, tmp_path):
    """A function that opens the page of a new server of images."""
    network = f"onnx:{place / 'network.onnx'}"
    with pages(browser) as shown:

        def make(viewport=DESKTOP, dark=False, **options):
            # The small network gives colours features of very different length: novelty is far above its
            # usual bound for some that are known, and ten times farther for those that are not.
            made = Settings(tmp_path / "m.acil", network, unknown_above=20, **options)
            return shown(made, viewport, dark)

        yield make


def files(name, number, seed=0):
    images = images_of(name, number, seed)
    return [
        {"name": f"{name} {i}.png", "mimeType": "image/png", "buffer": image}
        for i, image in enumerate(images)
    ]


def bad_file(name):
    return {"name": name, "mimeType": "image/png", "buffer": b"hello"}


def send(page, name, images):
    """Teach images, and say nothing of what comes of it."""
    page.get_by_label("Name of the class").fill(name)
    page.set_input_files("#teach-files", images)
    page.get_by_role("button", name="Teach", exact=True).click()


def rows(page, number):
    playwright.expect(page.locator("#classes tbody tr:visible")).to_have_count(number)


def teach(page, *names, number=15):
    for name in names:
        send(page, name, files(name, number))
        says(page, "teach", f"Learnt {number} images of “{name}”")


def forget(page, name, images):
    page.get_by_role("button", name=f"Forget images of {name}").click()
    dialog = page.get_by_role("dialog")
    playwright.expect(dialog).to_contain_text(name)
    page.set_input_files("#forget-files", images)
    dialog.get_by_role("button", name="Forget", exact=True).click()
    says(page, "classes", f"Forgot {len(images)} images")


def predicted(page, *names):
    """Show one image of each, and return the answers; those taught come first and are known."""
    page.set_input_files("#predict-files", [file for name in names for file in files(name, 1)])
    expected = "This is" if len(names) == 1 else f"{len(names)} answers"
    says(page, "predict", expected)
    return page.locator("#answers h3").all_inner_texts()


def shares(page):
    return page.locator("#answers .share").all_inner_texts()


def classes(page):
    return page.locator("#classes tbody th").all_inner_texts()


def test_teach_predict_teach_more_forget_reload(opened, place):
    page = opened(held_out=place / "held-out")
    playwright.expect(page.locator("#no-classes")).to_be_visible()
    teach(page, "red", "blue")
    rows(page, 2)
    assert classes(page) == ["blue", "red"]
    assert predicted(page, "red", "blue") == ["red", "blue"]
    assert predicted(page, "green") == ["unknown"]

    teach(page, "green")
    assert predicted(page, "red", "blue", "green") == ["red", "blue", "green"]
    playwright.expect(page.locator("#verdict")).to_contain_text("Nothing forgotten")
    playwright.expect(page.locator("#accuracy")).to_have_text("100.0 %")
    answers = shares(page)

    forget(page, "green", files("green", 15))
    rows(page, 2)
    assert predicted(page, "green") == ["unknown"]

    teach(page, "green")
    page.reload()
    rows(page, 3)
    assert predicted(page, "red", "blue", "green") == ["red", "blue", "green"]
    assert shares(page) == answers


def test_refusals_are_shown_and_nothing_changes(opened):
    page = opened()
    send(page, "red", [])
    playwright.expect(page.locator("#teach-status")).to_have_text("Choose at least one image.")
    send(page, "red", [bad_file("a.png")])
    playwright.expect(page.locator("#teach-status.bad")).to_contain_text("Nothing was learnt. 1 image")
    playwright.expect(page.locator("#teach-refused")).to_contain_text("a.png: It is not an image")
    playwright.expect(page.get_by_label("Name of the class")).to_have_value("red")
    send(page, "a/b", files("red", 1))
    says(page, "teach", "The class name 'a/b' reads like a path. Rename the class.")
    page.get_by_role("button", name="Remove these images").click()
    playwright.expect(page.locator("#teach-status")).to_be_empty()
    page.set_input_files("#predict-files", files("red", 1))
    says(page, "predict", "Teach a class first")
    assert totals(page) is None


def test_names_are_text_and_never_code(opened):
    page = opened()
    name = "<img src=x onerror=alert(1)>"
    teach(page, name, "blue")
    rows(page, 2)
    assert classes(page) == [name, "blue"]
    predicted(page, name)
    assert page.locator("main img[src=x]").count() == 0


def test_a_name_is_not_taken_for_one_of_the_language(opened, place):
    page = opened(held_out=place / "held-out")
    send(page, "constructor", files("red", 2))
    playwright.expect(page.locator("#verdict")).to_have_text("No class was known at both times.")


def test_token_is_asked_for_and_kept_for_the_tab(opened):
    page = opened(token=TOKEN)
    send(page, "red", files("red", 2))
    says(page, "teach", "enter it under “Token”")
    page.locator("#token").fill(TOKEN)
    page.locator("#token").blur()
    page.reload()
    teach(page, "red", number=2)
    assert totals(page) == {"red": 2}


def test_the_token_is_asked_for_where_it_is_entered(opened):
    """The field is focused, marked, and on the screen; a dialog in front of it closes."""
    page = opened(PHONE, token=TOKEN)
    page.evaluate("token => sessionStorage.setItem('acil-token', token)", TOKEN)
    page.reload()
    teach(page, "red", "blue", number=2)
    page.locator("#token").fill("wrong")
    field = page.get_by_label("Teaching and forgetting need the token")
    images = files("red", 1)

    def wanted(what):
        says(page, what, "not the token of this server: enter it under “Token”")
        playwright.expect(field).to_be_focused()
        playwright.expect(field).to_be_in_viewport(ratio=1)
        playwright.expect(field).to_have_attribute("aria-invalid", "true")
        playwright.expect(page.locator("#token-status")).to_be_in_viewport(ratio=1)
        says(page, "token", "This is not the token of this server.")
        field.fill("still wrong")
        playwright.expect(page.locator("#token-status")).to_be_empty()
        playwright.expect(field).not_to_have_attribute("aria-invalid", "true")

    send(page, "red", images)
    wanted("teach")
    page.get_by_role("button", name="Undo the last change").click()
    wanted("classes")
    page.get_by_role("button", name="Forget images of red").click()
    page.set_input_files("#forget-files", images)
    forget_it = page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True)
    forget_it.click()
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    wanted("classes")
    field.fill(TOKEN)
    # What was chosen is still there.
    page.get_by_role("button", name="Forget images of red").click()
    forget_it.click()
    says(page, "classes", "Forgot 1 image of “red”")
    assert totals(page) == {"blue": 2, "red": 1}


def test_token_of_the_printed_address_is_used_and_leaves_the_address(opened):
    page = opened(token=TOKEN)
    page.goto(f"{page.url}#token={TOKEN}")
    page.reload()
    assert TOKEN not in page.url
    teach(page, "red", number=2)
    assert totals(page) == {"red": 2}


def test_wrong_answer_is_corrected_in_one_click(opened):
    page = opened()
    teach(page, "red", "blue")
    page.set_input_files("#predict-files", files("red", 2, seed=9))
    says(page, "predict", "2 answers")
    first = page.locator(".answer").first
    assert first.locator("h3").inner_text() == "red"
    first.get_by_role("button", name="blue", exact=True).click()
    status = first.locator(".status")
    playwright.expect(status).to_contain_text("Learnt as “blue”, and saved.")
    # The answer that is shown is the new one, and what is said of it is true.
    label = first.locator("h3").inner_text()
    image = files("red", 1, seed=9)[0]["buffer"]
    now = page.service.store.reader.prepare([image], "any").features
    (expected,) = page.service.store.published.snapshot.classify(now, ["image"], 3, 20)
    assert label == expected.label
    before = "still “red”" if label == "red" else f"“red” and is now “{label}”"
    assert before in status.inner_text()
    share = dict(expected.top)["blue"]
    playwright.expect(status).to_contain_text(f"“blue” has {100 * share:.1f} %, before 0.0 %.")
    assert f"{100 * share:.1f} %" in first.locator(".share").all_inner_texts()
    playwright.expect(first.locator("h3")).to_be_focused()
    playwright.expect(page.locator("#classes tbody tr").first).to_contain_text("16")
    assert totals(page) == {"blue": 16, "red": 15}
    # A name that nobody has thought of yet.
    second = page.locator(".answer").nth(1)
    second.get_by_label("Right name").fill("carmine")
    second.get_by_role("button", name="Teach").click()
    playwright.expect(second.locator(".status")).to_contain_text("Learnt as “carmine”")
    playwright.expect(second.locator(".status")).to_contain_text(
        re.compile("“carmine” has [0-9.]+ %[.]$")
    )
    assert totals(page)["carmine"] == 1
    # It has been learnt now: one click does not move it to another class.
    second.get_by_role("button", name="blue", exact=True).click()
    playwright.expect(second.locator(".status.bad")).to_contain_text("before as another class; correct")
    second.get_by_label("Right name").fill("a/b")
    second.get_by_role("button", name="Teach").click()
    playwright.expect(second.locator(".status.bad")).to_contain_text("The class name 'a/b'")


def test_last_change_is_undone_by_a_button(opened):
    page = opened()
    playwright.expect(page.locator("#classes-heading")).to_be_visible()
    playwright.expect(page.locator("#undo")).to_be_hidden()
    teach(page, "red", "blue")
    rows(page, 2)
    page.get_by_role("button", name="Undo the last change").click()
    says(page, "classes", "taken back")
    rows(page, 1)
    assert totals(page) == {"red": 15}
    # What is taught again is left out, and said.
    send(page, "red", files("red", 16))
    says(page, "teach", "Learnt 1 image of “red”")
    says(page, "teach", "15 were taught before and left out")
    send(page, "blue", files("red", 1))
    says(page, "teach", "1 was taught before as another class; correct that by forgetting it")


def rename(page, name, to):
    page.get_by_role("button", name=f"Rename {name}", exact=True).click()
    page.get_by_label("New name").fill(to)
    return page.get_by_role("dialog")


def test_a_class_is_renamed_and_becomes_part_of_another(opened, place):
    page = opened(PHONE, held_out=place / "held-out")
    teach(page, "red", "blue", number=6)
    predicted(page, "red")
    name = "<b>rose 10"
    rename(page, "red", name).get_by_role("button", name="Rename", exact=True).click()
    says(page, "classes", f"“red” is called “{name}” now, and saved.")
    playwright.expect(page.locator("#classes tbody tr").first).to_contain_text(name)
    assert classes(page) == [name, "blue"]
    assert totals(page) == {name: 6, "blue": 6}
    # What is shown as an answer is of another model.
    playwright.expect(page.locator("#answers li")).to_have_count(0)
    playwright.expect(page.locator("#comparison-heading")).to_contain_text(f"“red” was renamed “{name}”")
    playwright.expect(page.locator("#verdict")).to_contain_text("Nothing forgotten: of 8 images")
    teach(page, "rose 9", number=2)
    rows(page, 3)
    assert classes(page) == [name, "blue", "rose 9"]
    dialog = rename(page, "rose 9", "a/b")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    says(page, "rename-dialog", "The class name 'a/b' reads like a path")
    page.get_by_label("New name").fill(f" {name} ")
    says(page, "rename-dialog", f"There is a class “{name}” of 6 images. Both become one")
    dialog.get_by_role("button", name="Make them one class").click()
    says(page, "classes", f"“rose 9” is part of “{name}” now, and saved.")
    assert totals(page) == {name: 8, "blue": 6}
    playwright.expect(page.locator("#comparison-heading")).to_contain_text("became part of")
    page.get_by_role("button", name="Undo the last change").click()
    says(page, "classes", "taken back")
    assert totals(page) == {name: 6, "blue": 6, "rose 9": 2}


def test_a_name_that_stays_is_no_change_and_without_the_token_none_is_made(opened):
    page = opened(token=TOKEN)
    page.evaluate("token => sessionStorage.setItem('acil-token', token)", TOKEN)
    page.reload()
    teach(page, "red", number=2)
    rename(page, "red", "red").get_by_role("button", name="Rename", exact=True).click()
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    playwright.expect(page.locator("#classes-status")).to_be_empty()
    page.locator("#token").fill("wrong")
    rename(page, "red", "rose").get_by_role("button", name="Rename", exact=True).click()
    says(page, "classes", "enter it under “Token”")
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    playwright.expect(page.locator("#token")).to_be_focused()
    assert totals(page) == {"red": 2}


def suggested(page, images, status):
    page.set_input_files("#suggest-files", images)
    says(page, "suggest", status)
    return [text.split()[0] for text in page.locator("#suggestions img").evaluate_all(ALTS)]


ALTS = "all => all.map(e => e.alt)"


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_what_to_teach_next_comes_first_and_is_taught_in_one_click(opened, viewport):
    page = opened(viewport, max_images=4)
    teach(page, "red", "blue")
    page.get_by_text("Teach these next").click()
    learnt, plain = files("red", 2), [*files("blue", 7, seed=3), *files("red", 7, seed=3)]
    given = [*learnt, *plain, bad_file("a.txt"), *files("between", 2)]
    status = "10 images to teach next, the best first. 2 were taught before, or came twice. 1 image"
    order = suggested(page, given, f"{status} cannot be used.")
    # As the library orders all of them at once.
    images = [file["buffer"] for file in given if file["name"] != "a.txt"]
    names = [file["name"] for file in given if file["name"] != "a.txt"]
    store = page.service.store
    expected = store.published.snapshot.suggest(store.reader.prepare(images))[:10]
    shown = page.locator("#suggestions img").evaluate_all(ALTS)
    assert shown == [names[int(one.image.split()[1]) - 1] for one in expected]
    assert order[0] == "between"
    first = page.locator("#suggestions .answer").first
    likely = first.locator(".bars .name").all_inner_texts()
    assert first.locator(".correction .quiet").all_inner_texts() == likely
    first.get_by_role("button", name=likely[0], exact=True).click()
    playwright.expect(first.locator(".status")).to_contain_text(f"Learnt as “{likely[0]}”, and saved.")
    assert sum(totals(page).values()) == 31
    again = page.get_by_role("button", name="Order the 18 images that are left")
    again.click()
    says(page, "suggest", "10 images to teach next")
    assert shown[0] not in page.locator("#suggestions img").evaluate_all(ALTS)
    # Taken back, it may be taught again.
    page.get_by_role("button", name="Undo the last change").click()
    says(page, "classes", "taken back")
    playwright.expect(page.locator("#suggestions li")).to_have_count(0)
    page.get_by_role("button", name="Order the 18 images that are left").click()
    says(page, "suggest", "10 images to teach next")
    suggested(page, learnt, "Nothing to teach here. 2 were taught before")


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_change_that_is_refused_for_what_it_would_lose_is_shown_as_such(opened, place, viewport):
    page = opened(viewport, held_out=place / "held-out", max_drop=2.5)
    playwright.expect(page.locator("#gate-note")).to_contain_text("lose more than 2.5 points is refused")
    teach(page, "red", "blue", "green", number=5)
    send(page, "grass", files("green", 3, seed=5))  # the same images under another name
    says(page, "teach", "This change was refused, and nothing was changed: on 12 held-out samples")
    playwright.expect(page.locator("#comparison-heading")).to_have_text("The last change was refused")
    lines = page.locator("#comparison-rows tr").all_inner_texts()
    assert [line.split("\t")[:2] for line in lines] == [
        ["Classes known at both times", "100.0 %"],
        ["green", "100.0 %"],
    ]
    playwright.expect(page.locator("#verdict.less")).to_contain_text("It would have been worse")
    assert totals(page) == {"blue": 5, "green": 5, "red": 5}
    # Asking changes nothing of it, the next change does.
    predicted(page, "red")
    playwright.expect(page.locator("#comparison-heading")).to_have_text("The last change was refused")
    page.get_by_role("button", name="Remove these images").click()
    teach(page, "white", number=5)
    playwright.expect(page.locator("#comparison-heading")).to_contain_text("after teaching “white”")


def test_more_images_than_a_request_may_have_are_sent_in_parts(opened):
    page = opened(max_images=4, max_bytes=8_000)
    # Also before the limits are known
    page.evaluate("() => { model = null; }")
    send(page, "red", files("red", 11))
    says(page, "teach", "Learnt 11 images of “red”")
    playwright.expect(page.locator("#teach-thumbs li")).to_have_count(0)
    teach(page, "blue", number=9)
    page.set_input_files("#predict-files", files("red", 6) + files("blue", 4))
    playwright.expect(page.locator("#predict-status")).to_have_text("10 answers")
    assert page.locator("#answers h3").all_inner_texts() == ["red"] * 6 + ["blue"] * 4
    forget(page, "red", files("red", 11))
    assert totals(page) == {"blue": 9}


def test_parts_are_halved_until_their_pixels_are_few_enough(opened):
    """An image has 144 pixels, a request takes 1200: of 20 images five go at a time."""
    page = opened(max_pixels=150, max_images=30)
    send(page, "red", files("red", 20))
    says(page, "teach", "Learnt 20 images")
    assert totals(page) == {"red": 20}


def test_part_that_fails_is_told_and_the_rest_can_be_sent_again(opened):
    page = opened(max_images=2)
    asked = []

    def fail(route):
        asked.append(route)
        route.continue_() if len(asked) == 1 else route.fulfill(status=503, json={"detail": "Later."})

    page.route("**/classes/red", fail)
    send(page, "red", files("red", 4))
    says(page, "teach", "Later. (2 of 4 images are done.)")
    playwright.expect(page.locator("#teach-thumbs li")).to_have_count(2)
    rows(page, 1)
    page.unroute("**/classes/red")
    page.get_by_role("button", name="Teach", exact=True).click()
    says(page, "teach", "Learnt 2 images")
    assert totals(page) == {"red": 4}


def test_bad_files_are_named_beside_the_answers_to_the_others(opened):
    """Also if no file of a request can be used, as in the first and in the third here."""
    page = opened(max_images=2)
    teach(page, "red", "blue")
    names = ["a.txt", "b.txt", "<img src=x onerror=alert(1)>.jpg", "d.txt"]
    first, second, third, fourth = map(bad_file, names)
    images = [first, second, *files("red", 1), third, fourth, *files("blue", 1)]
    page.set_input_files("#predict-files", images)
    says(page, "predict", "2 answers. 4 images cannot be used.")
    told = ["a.txt", "b.txt", "red", names[2], "d.txt", "blue"]
    assert page.locator("#answers h3").all_inner_texts() == told
    assert page.locator("#answers .bad").count() == 4
    playwright.expect(page.locator(".answer").nth(3)).to_contain_text("It is not an image")
    assert page.locator("main img[src=x]").count() == 0
    page.set_input_files("#predict-files", [first])
    playwright.expect(page.locator("#predict-status.bad")).to_have_text("1 image cannot be used.")
    page.set_input_files("#predict-files", [first, *files("red", 1)])
    says(page, "predict", "This is: red. 1 image cannot be used.")


def test_teaching_learns_the_good_files_and_names_the_bad_ones(opened):
    page = opened(max_images=2)
    name = "<b>.txt"
    send(page, "red", [bad_file("a.txt"), bad_file(name), *files("red", 3), bad_file("c.txt")])
    says(page, "teach", "Learnt 3 images of “red”")
    says(page, "teach", "3 images cannot be used:")
    items = page.locator("#teach-refused li")
    playwright.expect(items).to_have_count(3)
    assert [text.partition(": It is")[0] for text in items.all_inner_texts()] == ["a.txt", name, "c.txt"]
    playwright.expect(page.locator("#teach-thumbs li")).to_have_count(0)
    assert totals(page) == {"red": 3}
    # They are not told of what is chosen next.
    page.set_input_files("#teach-files", files("blue", 1))
    playwright.expect(items).to_have_count(0)
    # Who asks to forget gets all of it or an error.
    page.get_by_role("button", name="Forget images of red").click()
    page.set_input_files("#forget-files", [*files("red", 1), bad_file("a.txt")])
    page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()
    says(page, "forget-dialog", "1 of 2 images cannot be used; nothing was changed. a.txt: It is not an")
    page.get_by_role("dialog").get_by_role("button", name="Remove a.txt").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()
    says(page, "classes", "Forgot 1 image")
    assert totals(page) == {"red": 2}


def test_a_file_that_is_too_large_is_named_and_holds_up_no_other(opened):
    page = opened(max_bytes=8_000)
    large = {**bad_file("large.bmp"), "buffer": b"BM" + bytes(9_000)}
    told = "large.bmp: It has 9,002 bytes, more than 8,000."
    send(page, "red", [large, *files("red", 2), large, *files("blue", 1)])
    says(page, "teach", "Learnt 3 images of “red”")
    playwright.expect(page.locator("#teach-refused li")).to_have_count(2)
    playwright.expect(page.locator("#teach-refused li").first).to_contain_text(told)
    page.set_input_files("#predict-files", [*files("red", 1), large, *files("red", 1)])
    says(page, "predict", "2 answers. 1 image cannot be used.")
    assert page.locator("#answers h3").all_inner_texts() == ["red", "large.bmp", "red"]
    page.get_by_role("button", name="Forget images of red").click()
    page.set_input_files("#forget-files", [large])
    page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()
    says(page, "forget-dialog", told)
    assert totals(page) == {"red": 3}


def test_images_are_taken_out_one_by_one(opened):
    page = opened()
    page.get_by_label("Name of the class").fill("red")
    page.set_input_files("#teach-files", files("red", 4))
    thumbs = page.locator("#teach-thumbs")
    buttons = thumbs.get_by_role("button")
    playwright.expect(buttons).to_have_count(4)
    thumbs.get_by_role("button", name="Remove red 1.png").click()
    says(page, "teach", "3 images chosen")
    sizes = "all => all.flatMap(e => [e.offsetWidth, e.offsetHeight])"
    assert min(buttons.evaluate_all(sizes)) >= 24, "large enough for a finger"
    # By keyboard, too: the next image has the focus, behind the last the one before it.
    playwright.expect(thumbs.get_by_role("button", name="Remove red 2.png")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    playwright.expect(thumbs.get_by_role("button", name="Remove red 2.png")).to_be_focused()
    playwright.expect(buttons).to_have_count(2)
    page.get_by_role("button", name="Teach", exact=True).click()
    says(page, "teach", "Learnt 2 images")
    report = page.service.store.reader.prepare([file["buffer"] for file in files("red", 4)], "red")
    tracker = page.service.store.published.snapshot.tracker
    assert tracker.repeated(report.digests) == [0, 2]
    page.set_input_files("#teach-files", files("red", 1))
    buttons.click()
    playwright.expect(page.locator("#teach-status")).to_be_empty()
    playwright.expect(page.locator("#teach-files")).to_be_focused()
    playwright.expect(page.get_by_role("button", name="Remove these images")).to_be_hidden()


@pytest.mark.parametrize(
    ("viewport", "screens"), [(PHONE, 2.4), (DESKTOP, 1.5)], ids=["phone", "desktop"]
)
def test_page_with_many_classes_is_as_high_as_with_a_dozen(opened, place, viewport, screens):
    page = opened(viewport, token=TOKEN, held_out=place / "held-out")
    store = page.service.store

    def add(names):
        images = [image for name in names for image in images_of(name, 1)]
        learn(store, images, names)
        page.reload()
        playwright.expect(page.locator("#classes tbody tr")).to_have_count(len(totals(page)))
        return page.evaluate("() => document.documentElement.scrollHeight")

    add(["red", "blue"])
    few = add([f"kind {i:03}" for i in range(10, 22)])
    many = add([f"kind {i:03}" for i in range(22, 210)])
    assert many == few
    assert many <= screens * viewport["height"]
    top = "e => e.getBoundingClientRect().top"
    of_list = page.locator("#class-list").evaluate(top)
    for what in ("class-search", "undo", "accuracy", "token"):
        playwright.expect(page.locator(f"#{what}")).to_be_visible()
        assert page.locator(f"#{what}").evaluate(top) < of_list
    # The list scrolls by keyboard, and under its head.
    page.locator("#class-list").focus()
    page.keyboard.press("End")
    playwright.expect(page.get_by_role("button", name="Forget images of red")).to_be_in_viewport()
    playwright.expect(page.get_by_role("columnheader", name="Images")).to_be_in_viewport()
    page.get_by_label("Search").fill("kind 15")
    rows(page, 10)
    page.get_by_role("button", name="Forget images of kind 150").click()
    playwright.expect(page.get_by_role("dialog")).to_contain_text("kind 150")


def test_long_lists_are_searched_and_small_classes_marked(opened):
    page = opened(PHONE)
    names = [f"kind {i}" for i in range(12)]
    for number, name in enumerate(names):
        learn(page.service.store, images_of(name, 3 + number % 3), name)
    page.reload()
    rows(page, 12)
    playwright.expect(page.locator("#classes .few")).to_have_count(8)
    playwright.expect(page.locator("#few-note")).to_be_visible()
    page.get_by_label("Search").fill("KIND 1")
    rows(page, 3)
    playwright.expect(page.locator("#search-status")).to_have_text("3 classes found")
    page.get_by_label("Search").fill("")
    rows(page, 12)


def test_names_are_not_cut_off_on_a_phone(opened):
    page = opened(PHONE)
    teach(page, "red-bellied woodpecker (juvenile)", "blue")
    predicted(page, "blue", "blue")
    cut = """() => [...document.querySelectorAll('.bars .name, #classes th, .answer h3')]
        .filter(e => e.scrollWidth > e.clientWidth || e.getBoundingClientRect().right > innerWidth)
        .map(e => e.textContent)"""
    assert page.evaluate(cut) == []
    assert page.locator(".bars .name").first.evaluate("e => e.clientWidth") >= 120
    lines = "e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"
    longest = page.locator(".bars .name", has_text="woodpecker").first
    assert longest.evaluate(lines) < 3.5


def test_keyboard_reaches_everything_and_everything_has_a_name(opened):
    page = opened()
    teach(page, "red", "blue")
    rows(page, 2)
    page.locator("body").click(position={"x": 1, "y": 1})
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => (document.activeElement.getAttribute('aria-label') || document.activeElement.id "
                "|| document.activeElement.textContent).trim()"
            )
        )
    wanted = ["predict-files", "predict-camera", "class-name", "teach-files", "teach-camera"]
    wanted += ["teach-button", "Teach these next", "Rename blue", "Forget images of blue"]
    wanted += ["Rename red", "Forget images of red"]
    places = [reached.index(name) for name in wanted]
    assert places == sorted(places)
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('input, button, section, dialog, table, img')].filter(e => "
        "!(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label') || e.alt)).length"
    )
    assert unnamed == 0
    page.get_by_role("button", name="Forget images of red").press("Enter")
    playwright.expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert focused == "Forget images of red"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_page_fits_and_is_readable(opened, place, viewport, dark):
    """Nothing sticks out, targets are large enough for a finger, and text stands out from its ground."""
    page = opened(viewport, dark, held_out=place / "held-out")
    teach(page, *COLOURS)
    predicted(page, "red", "blue")
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= viewport["width"]
    small = page.evaluate(
        "() => [...document.querySelectorAll('.button')].filter(e => e.offsetParent)"
        ".filter(e => e.offsetHeight < 34 || e.offsetWidth < 44).map(e => e.textContent)"
    )
    assert small == []
    # No word is broken into lines.
    teach_buttons = page.locator(".correction .other .button")
    assert max(teach_buttons.evaluate_all("all => all.map(e => e.offsetHeight)")) <= 48
    named = page.locator(".correction input")
    assert min(named.evaluate_all("all => all.map(e => e.clientWidth)")) >= 130, "a name can be read"
    assert min(contrasts(page)) >= 4.5


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_long_name_stays_inside_the_page(opened, place, viewport):
    page = opened(viewport, held_out=place / "held-out")
    name = "x" * 120
    teach(page, "red", name)
    assert predicted(page, name, name) == [name, name]
    playwright.expect(page.locator("#comparison-heading")).to_contain_text(name)
    assert page.evaluate(WIDE) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= viewport["width"]
    page.get_by_role("button", name=f"Forget images of {name}").click()
    playwright.expect(page.locator("#forget-name")).to_have_text(name)
    assert page.evaluate(WIDE) == []


def test_description_of_the_interface_is_shown(opened):
    page = opened()
    page.get_by_role("link", name="HTTP interface").click()
    playwright.expect(page.get_by_role("heading", name="POST /predict")).to_be_visible()
    playwright.expect(page.locator("main section")).to_have_count(10)
    undo = page.locator("section", has=page.get_by_role("heading", name="POST /undo"))
    playwright.expect(undo).to_contain_text('curl -H "Authorization: Bearer $ACIL_TOKEN" -X POST http')
