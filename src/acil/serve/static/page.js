"use strict";

const $ = (id) => document.getElementById(id);
let model = null;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function say(id, text, bad = false) {
  const place = $(id);
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

const percent = (value) => (value === null ? "–" : `${value.toFixed(1)} %`);
const counted = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const unusable = (n) => `${counted(n, "image", "images")} cannot be used`;

// Requests

function why(body, status) {
  if (typeof body.detail === "string") return body.detail;
  return `The server answered ${status}.`;
}

// Say what is wrong with the token where it is entered; return what to say elsewhere.
function wantToken() {
  const wrong = $("token").value.trim() ? "This is not the token of this server"
    : "Teaching and forgetting need the token of this server";
  // Nothing outside of an open dialog can be filled in.
  $("forget-dialog").close();
  $("token").setAttribute("aria-invalid", "true");
  say("token-status", `${wrong}.`, true);
  $("token").focus();
  $("token-section").scrollIntoView({ block: "nearest" });
  return `${wrong}: enter it under “Token”.`;
}

async function ask(path, files) {
  const options = { headers: {} };
  if (files) {
    options.method = "POST";
    options.body = new FormData();
    for (const file of files) options.body.append("images", file);
    const token = $("token").value.trim();
    if (token) options.headers.Authorization = `Bearer ${token}`;
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server cannot be reached. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const { status } = response;
  const text = status === 401 ? wantToken() : why(body, status);
  throw Object.assign(new Error(text), { status, refused: body.refused });
}

// What each part of a multipart request adds to its file, at most.
const PART_BYTES = 1024;

// Send files in as few requests as the limits of the server allow; use the answer to each part of them.
// A part of which no file can be used is for `useNone`; without it, an error.
async function send(path, files, use, useNone = null) {
  // Somebody may be faster than the answer that tells the limits.
  if (!model) await refresh();
  const { images, bytes } = model.limits;
  const parts = [];
  let room = 0;
  for (const file of files) {
    room -= file.size + PART_BYTES;
    if (!parts.length || room < 0 || parts.at(-1).length === images) {
      parts.push([]);
      room = bytes - file.size - PART_BYTES;
    }
    parts.at(-1).push(file);
  }
  while (parts.length) {
    const part = parts.shift();
    try {
      // Alone in its part. The server would hang up before it has all of it.
      if (part[0].size > bytes) {
        const [size, most] = [part[0].size, bytes].map((n) => n.toLocaleString("en"));
        const text = `It has ${size} bytes, more than ${most}. Make it smaller.`;
        const refused = [{ place: 0, image: part[0].name, error: text }];
        throw Object.assign(new Error(`${part[0].name}: ${text}`), { refused });
      }
      use(await ask(path, part), part);
    } catch (error) {
      if (error.refused && useNone) {
        useNone(error.refused, part);
        continue;
      }
      // Too many pixels together, which only the server can count.
      if (error.status !== 413 || error.refused || part.length === 1) throw error;
      const half = Math.ceil(part.length / 2);
      parts.unshift(part.slice(0, half), part.slice(half));
    }
  }
}

// Choosing images: by file, by camera, by dropping

function picker(ids, onChoose) {
  for (const id of ids) {
    const input = $(id);
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = ""; // the same file may be chosen again
      if (files.length) onChoose(files);
    });
  }
  const zone = document.querySelector(`[data-drop="${ids[0]}"]`);
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    const files = [...event.dataTransfer.files];
    if (files.length) onChoose(files);
  });
}

function picture(file, text) {
  const image = element("img", { alt: text });
  image.src = URL.createObjectURL(file);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  image.addEventListener("error", () => image.classList.add("broken"), { once: true });
  return image;
}

function collection(ids, thumbs, onChange = () => {}) {
  // Each file and its place in the list.
  const shown = new Map();
  const files = () => [...shown.keys()];
  const remove = (gone) => {
    for (const file of gone) {
      shown.get(file)?.remove();
      shown.delete(file);
    }
    onChange(shown.size);
  };
  const thumb = (file) => {
    const button = element("button", { class: "remove", type: "button", "aria-label": `Remove ${file.name}` }, "×");
    const item = element("li", {}, picture(file, file.name), button);
    button.addEventListener("click", () => {
      // Who uses the keyboard goes on at the next image.
      const next = item.nextElementSibling ?? item.previousElementSibling;
      remove([file]);
      (next ? next.querySelector("button") : $(ids[0])).focus();
    });
    return item;
  };
  picker(ids, (chosen) => {
    for (const file of chosen) shown.set(file, thumb(file));
    $(thumbs).append(...chosen.map((file) => shown.get(file)));
    onChange(shown.size);
  });
  return { files, remove, clear: () => remove(files()) };
}

// The model

// A class with fewer images is marked; a list with more classes can be searched.
const FEW = 5;
const LONG_LIST = 10;

function showClasses() {
  const rows = model.classes.map(({ name, images }) => {
    const button = element("button", { class: "button quiet", type: "button" }, "Forget …");
    button.setAttribute("aria-label", `Forget images of ${name}`);
    button.disabled = !model.can_learn;
    button.addEventListener("click", () => openForget(name));
    const few = images < FEW ? [element("span", { class: "few" }, "few")] : [];
    return element("tr", {}, element("th", { scope: "row" }, name),
      element("td", { class: "number" }, ...few, String(images)), element("td", { class: "action" }, button));
  });
  document.querySelector("#classes tbody").replaceChildren(...rows);
  $("classes").hidden = !rows.length;
  $("no-classes").hidden = rows.length > 0;
  $("few-note").hidden = !document.querySelector("#classes .few");
  $("search").hidden = rows.length <= LONG_LIST;
  // So that arrow keys scroll it.
  $("class-list").tabIndex = rows.length > LONG_LIST ? 0 : -1;
  search();
  $("known-classes").replaceChildren(...model.classes.map(({ name }) => element("option", { value: name })));
}

function search() {
  const wanted = $("class-search").value.trim().toLowerCase();
  let shown = 0;
  for (const line of document.querySelectorAll("#classes tbody tr")) {
    line.hidden = !line.querySelector("th").textContent.toLowerCase().includes(wanted);
    shown += !line.hidden;
  }
  say("search-status", wanted ? `${counted(shown, "class", "classes")} found` : "");
}

function row(name, before, after) {
  return element("tr", {}, element("th", { scope: "row" }, name),
    element("td", { class: "number" }, percent(before)), element("td", { class: "number" }, percent(after)));
}

function showHeldOut() {
  $("held-out").hidden = model.held_out === null;
  if (model.held_out === null) return;
  const { accuracy, images } = model.held_out;
  $("accuracy").textContent = percent(accuracy);
  $("accuracy-note").textContent = images
    ? `of ${counted(images, "image", "images")} of the classes known now`
    : "no image of a class known now";
  const last = model.history.at(-1);
  $("comparison").hidden = !last;
  if (!last) return;
  const { before, after, kept } = last.held_out;
  $("comparison-heading").textContent = last.action === "learn"
    ? `Before and after teaching “${last.class}”` : `Before and after forgetting images of “${last.class}”`;
  const rows = [row("Classes known at both times", kept.accuracy_before, kept.accuracy_after)];
  // A class may be called "constructor", which every object has.
  const own = ({ per_class: all }) => (Object.hasOwn(all, last.class) ? all[last.class] : null);
  if (own(before) !== null || own(after) !== null) rows.push(row(last.class, own(before), own(after)));
  rows.push(row("All classes known at the time", before.accuracy, after.accuracy));
  $("comparison-rows").replaceChildren(...rows);
  const good = kept.images > 0 && kept.lost === 0;
  $("verdict").textContent = !kept.images ? "No class was known at both times."
    : good ? `Nothing forgotten: of ${counted(kept.images, "image", "images")}, all that were right still are.`
      : `Right before and not now: ${kept.lost} of ${counted(kept.images, "image", "images")}.`;
  $("verdict").className = `verdict ${good ? "good" : kept.images ? "less" : ""}`;
}

async function refresh() {
  model = await ask("/model");
  $("model-name").textContent = model.name;
  document.title = `acil · ${model.name}`;
  $("model-facts").textContent = `${counted(model.classes.length, "class", "classes")}, `
    + `${counted(model.images, "image", "images")} learnt, network ${model.network}`
    + (model.tells_unknown ? "" : ". It cannot tell what is unknown");
  $("token-section").hidden = !model.protected;
  $("undo").hidden = !model.undo_left;
  $("teach-button").disabled = !model.can_learn;
  if (!model.can_learn) say("teach-status", "This model can only predict.");
  showClasses();
  showHeldOut();
}

// Predicting

function bar({ label, probability }) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${100 * probability}%`;
  return element("li", {}, element("span", { class: "name" }, label),
    element("span", { class: "share" }, percent(100 * probability)),
    element("div", { class: "track", "aria-hidden": "true" }, fill));
}

// Bars of an answer, and classes that the server should name to tell what teaching has changed.
const SHOWN = 3;
const MANY = 100;

// What teaching an image under a name has changed in the answer to it.
function changed(before, now, name) {
  const share = ({ top }) => top.find(({ label }) => label === name)?.probability;
  const text = before.label === now.label ? `The answer is still “${now.label}”`
    : `The answer was “${before.label}” and is now “${now.label}”`;
  const [was, is] = [share(before), share(now)];
  if (is === undefined) return `${text}.`;
  return `${text}; “${name}” has ${percent(100 * is)}${was === undefined ? "" : `, before ${percent(100 * was)}`}.`;
}

// "Wrong? It is …": the other likely classes are one click away, any other name can be typed.
function correction(file, found, item) {
  const status = element("p", { class: "status", role: "status" });
  const learn = async (name) => {
    status.textContent = `Teaching “${name}” …`;
    status.classList.remove("bad");
    try {
      const { images, misplaced } = await ask(pathOf(name), [file]);
      if (!images) throw new Error(`This image was taught before${misplaced ? elsewhere("it") : "."}`);
      const { predictions: [now] } = await ask(`/predict?top=${MANY}`, [file]);
      const again = answer(file, now);
      item.replaceWith(again);
      again.querySelector("h3").focus();
      // Screen readers tell what changes in the page, not what comes with it.
      again.querySelector(".status").textContent = `Learnt as “${name}”, and saved. ${changed(found, now, name)}`;
      await refresh();
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("bad");
    }
  };
  const others = found.top.slice(0, SHOWN).filter(({ label }) => label !== found.label).map(({ label }) => {
    const button = element("button", { class: "button quiet", type: "button" }, label);
    button.addEventListener("click", () => learn(label));
    return button;
  });
  const name = element("input", { type: "text", maxlength: "200", autocomplete: "off", required: "",
    list: "known-classes", placeholder: "other name", "aria-label": `Right name of ${file.name}` });
  const teach = element("button", { class: "button", "aria-label": `Teach ${file.name} under this name` }, "Teach");
  const form = element("form", { class: "choices" }, ...others, name, teach);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    learn(name.value.trim());
  });
  return element("div", { class: "correction" },
    element("p", {}, found.unknown ? "It is …" : "Wrong? It is …"), form, status);
}

function answer(file, found) {
  if (found.error) {
    const told = element("div", {}, element("h3", {}, found.image), element("p", { class: "bad" }, found.error));
    return element("li", { class: "answer" }, picture(file, ""), told);
  }
  const heading = element("h3", { tabindex: "-1" }, found.unknown ? "unknown" : found.label);
  const text = element("div", {}, heading);
  if (found.unknown) {
    heading.className = "unknown";
    text.append(element("p", {}, "Unlike everything taught. If it is one of the classes:"));
  }
  text.append(element("ul", { class: "bars", "aria-label": "Probabilities" }, ...found.top.slice(0, SHOWN).map(bar)));
  const item = element("li", { class: "answer" }, picture(file, file.name), text);
  if (model?.can_learn) text.append(correction(file, found, item));
  return item;
}

async function predict(files) {
  say("predict-status", `Looking at ${counted(files.length, "image", "images")} …`);
  $("answers").replaceChildren();
  const found = [];
  const show = (answers, part) => {
    found.push(...answers);
    $("answers").append(...answers.map((one, i) => answer(part[i], one)));
    if (found.length < files.length) say("predict-status", `${found.length} of ${files.length} answers …`);
  };
  try {
    await send("/predict", files, ({ predictions }, part) => show(predictions, part), show);
    const good = found.filter(({ error }) => !error);
    const told = good.length === 1 ? [`This is: ${good[0].label}`] : good.length ? [`${good.length} answers`] : [];
    if (good.length < found.length) told.push(`${unusable(found.length - good.length)}.`);
    say("predict-status", told.join(". "), !good.length);
  } catch (error) {
    say("predict-status", error.message, true);
  }
}

// Teaching and forgetting

const pathOf = (name) => `/classes/${encodeURIComponent(name)}`;

const elsewhere = (them) => ` as another class; correct that by forgetting ${them} there first.`;

// Teach or forget; `saved` takes the files of each part that is done, and whether it is the last.
// Files that cannot be used are added to `refused`; without it, one of them stops it all.
async function change(verb, tell, button, path, files, name, saved, refused = null) {
  let [sent, images, repeated, misplaced, seconds] = [0, 0, 0, 0, 0];
  const thumbs = button.form.querySelector(".thumbs");
  const use = (report, part) => {
    images += report.images;
    repeated += report.repeated - report.misplaced;
    misplaced += report.misplaced;
    sent += part.length;
    seconds += report.seconds;
    refused?.push(...report.refused);
    const none = !images && refused?.length > 0;
    const done = `${verb} ${counted(images, "image", "images")} of “${name}” in ${seconds.toFixed(1)} s`;
    const told = [none ? "Nothing was learnt." : `${done}${images ? ", and saved" : ""}.`];
    if (repeated) told.push(`${counted(repeated, "was", "were")} taught before and left out.`);
    if (misplaced) {
      const them = misplaced === 1 ? "it" : "them";
      told.push(`${counted(misplaced, "was", "were")} taught before${elsewhere(them)}`);
    }
    if (sent < files.length) told.push(`${files.length - sent} to go …`);
    if (refused?.length) told.push(`${unusable(refused.length)}:`);
    saved(part, sent === files.length);
    tell(told.join(" "), none);
  };
  const useNone = (bad, part) => use({ images: 0, repeated: 0, misplaced: 0, seconds: 0, refused: bad }, part);
  try {
    if (!files.length) throw new Error("Choose at least one image.");
    // What is on its way is not taken out by removing its picture.
    button.disabled = thumbs.inert = true;
    tell(`Sending ${counted(files.length, "image", "images")} …`);
    await send(path, files, use, refused && useNone);
  } catch (error) {
    tell(sent ? `${error.message} (${sent} of ${files.length} images are done.)` : error.message, true);
  } finally {
    button.disabled = thumbs.inert = false;
  }
  if (sent) await refresh().catch((error) => tell(error.message, true));
}

const teaching = collection(["teach-files", "teach-camera"], "teach-thumbs", (number) => {
  $("teach-clear").hidden = !number;
  say("teach-status", number ? counted(number, "image chosen", "images chosen") : "");
  $("teach-refused").replaceChildren();
});
const forgetting = collection(["forget-files"], "forget-thumbs");
let forgottenName = "";

function openForget(name) {
  // Those chosen before are still there if only the token was missing.
  if (name !== forgottenName) forgetting.clear();
  forgottenName = name;
  $("forget-name").textContent = name;
  say("forget-dialog-status", "");
  $("forget-dialog").showModal();
}

$("teach-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("class-name").value.trim();
  const refused = [];
  const tell = (text, bad) => {
    say("teach-status", text, bad);
    $("teach-refused").replaceChildren(...refused.map(
      ({ image, error }) => element("li", {}, element("strong", {}, image), `: ${error}`)));
  };
  const saved = (part, all) => {
    // Only what was sent: more may have been chosen meanwhile.
    teaching.remove(part);
    if (!all) return;
    if (refused.length < sent.length && $("class-name").value.trim() === name) $("class-name").value = "";
    $("class-name").focus();
  };
  const sent = teaching.files();
  await change("Learnt", tell, $("teach-button"), pathOf(name), sent, name, saved, refused);
});
$("teach-clear").addEventListener("click", teaching.clear);
$("forget-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = forgottenName;
  const tell = (text, bad) => say($("forget-dialog").open ? "forget-dialog-status" : "forget-status", text, bad);
  const saved = (part, all) => {
    forgetting.remove(part);
    if (all) $("forget-dialog").close();
  };
  const path = `${pathOf(name)}/forget`;
  await change("Forgot", tell, $("forget-button"), path, forgetting.files(), name, saved);
});
$("undo").addEventListener("click", async () => {
  $("undo").disabled = true;
  try {
    await ask("/undo", []);
    say("forget-status", "The last change is taken back.");
    $("answers").replaceChildren();
    say("predict-status", "");
    await refresh();
  } catch (error) {
    say("forget-status", error.message, true);
  } finally {
    $("undo").disabled = false;
  }
});
$("forget-dialog").addEventListener("cancel", forgetting.clear);
$("forget-cancel").addEventListener("click", () => {
  forgetting.clear();
  $("forget-dialog").close();
});
picker(["predict-files", "predict-camera"], predict);

// A file dropped beside a field would otherwise replace the page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("class-search").addEventListener("input", search);
// The address that `acil serve` prints has the token; it must not stay in the address bar.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("acil-token", decodeURIComponent(location.hash.slice("#token=".length)));
  history.replaceState(null, "", location.pathname);
}
$("token").value = sessionStorage.getItem("acil-token") ?? "";
$("token").addEventListener("input", () => {
  $("token").removeAttribute("aria-invalid");
  say("token-status", "");
});
$("token").addEventListener("change", () => sessionStorage.setItem("acil-token", $("token").value));

refresh().catch((error) => {
  $("model-facts").textContent = error.message;
});
