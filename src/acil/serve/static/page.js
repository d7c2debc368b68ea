"use strict";

const $ = (id) => document.getElementById(id);
// What the samples of this model are called: an image or a text. One is a File, or a text with a name.
const { one: ONE, many: MANY } = document.body.dataset;
const TEXTS = MANY === "texts";
let model = null;
// Of the last change, if it was refused because the model would do worse.
let worse = null;

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
const samples = (n) => counted(n, ONE, MANY);
const unusable = (n) => `${samples(n)} cannot be used`;
// A name inside a sentence; one that is read from the right must not turn what stands beside it.
const quoted = (name) => (/[\u0590-\u08ff\ufb1d-\ufefc]/.test(name) ? `“\u2068${name}\u2069”` : `“${name}”`);

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
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  $("token").setAttribute("aria-invalid", "true");
  say("token-status", `${wrong}.`, true);
  $("token").focus();
  $("token-section").scrollIntoView({ block: "nearest" });
  return `${wrong}: enter it under “Token”.`;
}

function bodyOf(given) {
  if (TEXTS) return JSON.stringify({ texts: given.map(({ text }) => text) });
  const body = new FormData();
  for (const file of given) body.append("images", file);
  return body;
}

// Ask for an address; with samples, send them there.
async function ask(path, given) {
  const options = { headers: {} };
  if (given) {
    options.method = "POST";
    options.body = bodyOf(given);
    if (TEXTS) options.headers["Content-Type"] = "application/json";
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
  if (!/^[/](model|predict|suggest)/.test(path)) worse = body.comparison ?? null;
  if (response.ok) return body;
  if (worse) showHeldOut();
  const { status } = response;
  const text = status === 401 ? wantToken() : why(body, status);
  throw Object.assign(new Error(text), { status, refused: body.refused });
}

// What a request adds to each sample, at most.
const PART_BYTES = TEXTS ? 16 : 1024;

// Send samples in as few requests as the limits of the server allow; use the answer to each part of them.
// A part of which no sample can be used is for `useNone`; without it, an error.
async function send(path, given, use, useNone = null) {
  // Somebody may be faster than the answer that tells the limits.
  if (!model) await refresh();
  const { [MANY]: number, bytes } = model.limits;
  const parts = [];
  let room = 0;
  for (const one of given) {
    room -= one.size + PART_BYTES;
    if (!parts.length || room < 0 || parts.at(-1).length === number) {
      parts.push([]);
      room = bytes - one.size - PART_BYTES;
    }
    parts.at(-1).push(one);
  }
  while (parts.length) {
    const part = parts.shift();
    try {
      // Alone in its part. The server would hang up before it has all of it.
      if (part[0].size > bytes) {
        const [size, most] = [part[0].size, bytes].map((n) => n.toLocaleString("en"));
        const text = `It has ${size} bytes, more than ${most}. Make it smaller.`;
        const refused = [{ place: 0, error: text }];
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

// Choosing images: by file, by camera, by dropping; and texts: what is written in a box

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

function figure(one, text) {
  if (TEXTS) return element("blockquote", { dir: "auto" }, one.text);
  return picture(one, text);
}

function picture(file, text) {
  const image = element("img", { alt: text });
  image.src = URL.createObjectURL(file);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  image.addEventListener("error", () => image.classList.add("broken"), { once: true });
  return image;
}

// Characters of a text that name it.
const NAME = 60;

function textOf(text) {
  // Marks that change the direction would turn what stands beside it, too.
  const line = text.replace(/[\s\p{Cc}]+/gu, " ").replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "").trim();
  const name = line.length > NAME ? `${line.slice(0, NAME - 1)}…` : line;
  return { text, name, size: new Blob([JSON.stringify(text)]).size };
}

// The texts of a box: its lines, or all of it as one.
function writing(id, onChange = () => {}) {
  const box = $(`${id}-text`);
  const split = $(`${id}-lines`);
  const parts = () => (split.checked ? box.value.split("\n") : [box.value]);
  const given = () => parts().filter((text) => text.trim()).map(textOf);
  const changed = () => onChange(given().length);
  box.addEventListener("input", changed);
  split.addEventListener("change", changed);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    box.form.requestSubmit();
  });
  const remove = (gone) => {
    const left = parts();
    for (const { text } of gone) {
      const place = left.indexOf(text);
      if (place >= 0) left.splice(place, 1);
    }
    box.value = left.join("\n");
    changed();
  };
  return { given, remove, clear: () => remove(given()) };
}

// The samples of one purpose.
function collection(id, onChange) {
  return TEXTS ? writing(id, onChange) : pictures([`${id}-files`, `${id}-camera`].filter($), `${id}-thumbs`, onChange);
}

function pictures(ids, thumbs, onChange = () => {}) {
  // Each file and its place in the list.
  const shown = new Map();
  const given = () => [...shown.keys()];
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
  return { given, remove, clear: () => remove(given()) };
}

// The model

// A class with fewer samples is marked; a list with more classes can be searched.
const FEW = 5;
const LONG_LIST = 10;

function showClasses() {
  const rows = model.classes.map(({ name, [MANY]: number }) => {
    const button = (text, title, open) => {
      const made = element("button", { class: "button quiet", type: "button", title, "aria-label": title }, text);
      made.disabled = !model.can_learn;
      made.addEventListener("click", () => open(name));
      return made;
    };
    const actions = [button("✎", `Rename ${name}`, openRename),
      button("Forget …", `Forget ${MANY} of ${name}`, openForget)];
    const few = number < FEW ? [element("span", { class: "few" }, "few")] : [];
    return element("tr", {}, element("th", { scope: "row", dir: "auto" }, name),
      element("td", { class: "number" }, ...few, String(number)), element("td", { class: "action" }, ...actions));
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

// Classes that a change would make worse, and that are named.
const MOST_LOST = 5;
// What a change of the history was.
const WHAT = {
  learn: ({ class: name }) => `teaching ${quoted(name)}`,
  forget: ({ class: name }) => `forgetting ${MANY} of ${quoted(name)}`,
  rename: ({ class: name, to }) => `${quoted(name)} was renamed ${quoted(to)}`,
  merge: ({ class: name, to }) => `${quoted(name)} became part of ${quoted(to)}`,
};

function showHeldOut() {
  $("held-out").hidden = model.held_out === null;
  if (model.held_out === null) return;
  const { accuracy, [MANY]: number } = model.held_out;
  $("accuracy").textContent = percent(accuracy);
  $("accuracy-note").textContent = number
    ? `of ${samples(number)} of the classes known now`
    : `no ${ONE} of a class known now`;
  $("gate-note").hidden = model.max_drop === null;
  $("gate-note").textContent = `A change that would lose more than ${model.max_drop} points is refused.`;
  const last = model.history.at(-1);
  $("comparison").hidden = !last && !worse;
  if (worse) showRefusal();
  else if (last) showChange(last);
}

function showRefusal() {
  $("comparison-heading").textContent = "The last change was refused";
  const lost = Object.entries(worse.per_class).filter(([, { before, after }]) => after < before)
    .sort(([, a], [, b]) => (b.before - b.after) * b.samples - (a.before - a.after) * a.samples);
  const rows = [["Classes known at both times", worse], ...lost.slice(0, MOST_LOST)];
  $("comparison-rows").replaceChildren(...rows.map(([name, { before, after }]) => row(name, before, after)));
  $("verdict").textContent = "It would have been worse. Nothing was changed.";
  $("verdict").className = "verdict less";
}

function showChange(last) {
  const { before, after, kept } = last.held_out;
  $("comparison-heading").textContent = `Before and after ${WHAT[last.action](last)}`;
  const rows = [row("Classes known at both times", kept.accuracy_before, kept.accuracy_after)];
  // A class may be called "constructor", which every object has.
  const share = ({ per_class: all }, name) => (Object.hasOwn(all, name) ? all[name] : null);
  const now = last.to ?? last.class;
  const own = [share(before, last.action === "rename" ? last.class : now), share(after, now)];
  if (own.some((value) => value !== null)) rows.push(row(now, ...own));
  rows.push(row("All classes known at the time", before.accuracy, after.accuracy));
  $("comparison-rows").replaceChildren(...rows);
  const both = kept[MANY];
  const good = both > 0 && kept.lost === 0;
  $("verdict").textContent = !both ? "No class was known at both times."
    : good ? `Nothing forgotten: of ${samples(both)}, all that were right still are.`
      : `Right before and not now: ${kept.lost} of ${samples(both)}.`;
  $("verdict").className = `verdict ${good ? "good" : both ? "less" : ""}`;
}

async function refresh() {
  model = await ask("/model");
  $("model-name").textContent = model.name;
  document.title = `acil · ${model.name}`;
  $("model-facts").textContent = `${counted(model.classes.length, "class", "classes")}, `
    + `${samples(model[MANY])} learnt, network ${model.network}`
    + (TEXTS ? `, which reads the first ${model.limits.tokens} parts of words of a text` : "")
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
  return element("li", {}, element("span", { class: "name", dir: "auto" }, label),
    element("span", { class: "share" }, percent(100 * probability)),
    element("div", { class: "track", "aria-hidden": "true" }, fill));
}

// Bars of an answer, and classes that the server should name to tell what teaching has changed.
const SHOWN = 3;
const ALL = 100;

// What teaching a sample under a name has changed in the answer to it.
function changed(before, now, name) {
  const share = ({ top }) => top.find(({ label }) => label === name)?.probability;
  const text = before.label === now.label ? `The answer is still ${quoted(now.label)}`
    : `The answer was ${quoted(before.label)} and is now ${quoted(now.label)}`;
  const [was, is] = [share(before), share(now)];
  if (is === undefined) return `${text}.`;
  return `${text}; ${quoted(name)} has ${percent(100 * is)}${was === undefined ? "" : `, before ${percent(100 * was)}`}.`;
}

// "Wrong? It is …": the other likely classes are one click away, any other name can be typed. Of what is
// to be taught next, all likely classes are; `taught` is told when one is.
function correction(one, found, item, taught) {
  const status = element("p", { class: "status", role: "status" });
  const learn = async (name) => {
    status.textContent = `Teaching ${quoted(name)} …`;
    status.classList.remove("bad");
    try {
      const { [MANY]: number, misplaced } = await ask(pathOf(name), [one]);
      if (!number) throw new Error(`This ${ONE} was taught before${misplaced ? elsewhere("it") : "."}`);
      const { predictions: [now] } = await ask(`/predict?top=${ALL}`, [one]);
      const again = answer(one, now);
      item.replaceWith(again);
      taught?.();
      again.querySelector("h3").focus();
      // Screen readers tell what changes in the page, not what comes with it.
      again.querySelector(".status").textContent = `Learnt as ${quoted(name)}, and saved. ${changed(found, now, name)}`;
      await refresh();
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("bad");
    }
  };
  const likely = found.top.slice(0, SHOWN).filter(({ label }) => taught || label !== found.label);
  const others = likely.map(({ label }) => {
    const button = element("button", { class: "button quiet", type: "button" }, label);
    button.addEventListener("click", () => learn(label));
    return button;
  });
  const name = element("input", { type: "text", maxlength: "200", autocomplete: "off", required: "",
    list: "known-classes", placeholder: "other name", "aria-label": `Right name of ${one.name}` });
  const teach = element("button", { class: "button", "aria-label": `Teach ${one.name} under this name` }, "Teach");
  const form = element("form", { class: "choices" }, ...others, element("div", { class: "other" }, name, teach));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    learn(name.value.trim());
  });
  return element("div", { class: "correction" },
    element("p", {}, found.unknown || taught ? "It is …" : "Wrong? It is …"), form, status);
}

function answer(one, found, taught = null) {
  if (found.error) {
    const name = TEXTS ? [] : [element("h3", {}, one.name)];
    const told = element("div", {}, ...name, element("p", { class: "bad" }, found.error));
    return element("li", { class: "answer" }, figure(one, ""), told);
  }
  const heading = element("h3", { tabindex: "-1", dir: "auto" }, found.unknown ? "unknown" : found.label);
  const text = element("div", {}, heading);
  if (found.unknown) {
    heading.className = "unknown";
    text.append(element("p", {}, "Unlike everything taught. If it is one of the classes:"));
  }
  text.append(element("ul", { class: "bars", "aria-label": "Probabilities" }, ...found.top.slice(0, SHOWN).map(bar)));
  const item = element("li", { class: "answer" }, figure(one, one.name), text);
  if (model?.can_learn) text.append(correction(one, found, item, taught));
  return item;
}

async function predict(given) {
  say("predict-status", `Looking at ${samples(given.length)} …`);
  $("answers").replaceChildren();
  const found = [];
  const show = (answers, part) => {
    found.push(...answers);
    $("answers").append(...answers.map((each, i) => answer(part[i], each)));
    if (found.length < given.length) say("predict-status", `${found.length} of ${given.length} answers …`);
  };
  try {
    await send("/predict", given, ({ predictions }, part) => show(predictions, part), show);
    const good = found.filter(({ error }) => !error);
    const told = good.length === 1 ? [`This is: ${good[0].label}`] : good.length ? [`${good.length} answers`] : [];
    if (good.length < found.length) told.push(`${unusable(found.length - good.length)}.`);
    say("predict-status", told.join(". "), !good.length);
  } catch (error) {
    say("predict-status", error.message, true);
  }
}

// What to teach next

const NEXT = 10;
// All that were given, and those of them that have been taught.
let waiting = [];
const taught = new Set();
const left = () => waiting.filter((one) => !taught.has(one));

function offerAgain() {
  const number = left().length;
  $("suggest-again").hidden = !number;
  $("suggest-again").textContent = `Order the ${samples(number)} that are left`;
}

async function suggest(given) {
  waiting = given;
  taught.clear();
  const list = $("suggestions");
  list.replaceChildren();
  $("suggest-again").hidden = true;
  say("suggest-status", `Looking at ${samples(given.length)} …`);
  let [best, known, bad] = [[], 0, 0];
  const use = (report, part) => {
    known += report.known;
    bad += report.refused.length;
    best.push(...report.suggestions.map((found) => ({ found, one: part[found.place] })));
  };
  const useNone = (refused, part) => use({ suggestions: [], known: 0, refused }, part);
  try {
    // The best of all are among the best of each part.
    await send(`/suggest?number=${NEXT}`, given, use, useNone);
    best.sort(({ found: a }, { found: b }) => b.closeness - a.closeness || b.novelty - a.novelty);
    best = best.slice(0, NEXT);
    list.append(...best.map(({ one, found }) => answer(one, found, () => {
      taught.add(one);
      offerAgain();
    })));
    const told = [best.length ? `${samples(best.length)} to teach next, the best first.` : "Nothing to teach here."];
    if (known) told.push(`${counted(known, "was", "were")} taught before, or came twice.`);
    if (bad) told.push(`${unusable(bad)}.`);
    say("suggest-status", told.join(" "), !best.length && bad > 0);
  } catch (error) {
    say("suggest-status", error.message, true);
  }
}

// Answers that are shown are those of an earlier model.
function outdated() {
  for (const id of ["answers", "suggestions"]) $(id).replaceChildren();
  for (const id of ["predict-status", "suggest-status"]) say(id, "");
  taught.clear();
  offerAgain();
}

// Teaching and forgetting

const pathOf = (name) => `/classes/${encodeURIComponent(name)}`;

const elsewhere = (them) => ` as another class; correct that by forgetting ${them} there first.`;

// Teach or forget; `saved` takes the samples of each part that is done, and whether it is the last.
// Those that cannot be used are added to `refused`; without it, one of them stops it all.
async function change(verb, tell, button, path, given, name, saved, refused = null) {
  let [sent, number, repeated, misplaced, duplicates, seconds] = [0, 0, 0, 0, 0, 0];
  const chosen = button.form.querySelector(TEXTS ? "textarea" : ".thumbs");
  const use = (report, part) => {
    number += report[MANY];
    repeated += report.repeated - report.misplaced;
    misplaced += report.misplaced;
    duplicates += report.duplicates;
    sent += part.length;
    seconds += report.seconds;
    refused?.push(...report.refused.map(({ place, error }) => ({ name: part[place].name, error })));
    const none = !number && refused?.length > 0;
    const done = `${verb} ${samples(number)} of ${quoted(name)} in ${seconds.toFixed(1)} s`;
    const told = [none ? "Nothing was learnt." : `${done}${number ? ", and saved" : ""}.`];
    if (repeated) told.push(`${counted(repeated, "was", "were")} taught before and left out.`);
    if (misplaced) {
      const them = misplaced === 1 ? "it" : "them";
      told.push(`${counted(misplaced, "was", "were")} taught before${elsewhere(them)}`);
    }
    if (duplicates) told.push(`${counted(duplicates, "came", "came")} more than once; each time counts.`);
    if (sent < given.length) told.push(`${given.length - sent} to go …`);
    if (refused?.length) told.push(`${unusable(refused.length)}:`);
    saved(part, sent === given.length);
    tell(told.join(" "), none);
  };
  const useNone = (bad, part) => use({ [MANY]: 0, repeated: 0, misplaced: 0, duplicates: 0, seconds: 0, refused: bad }, part);
  try {
    if (!given.length) throw new Error(`${TEXTS ? "Write" : "Choose"} at least one ${ONE}.`);
    // What is on its way is not taken out by removing its picture.
    button.disabled = chosen.inert = true;
    tell(`Sending ${samples(given.length)} …`);
    await send(path, given, use, refused && useNone);
  } catch (error) {
    tell(sent ? `${error.message} (${sent} of ${given.length} ${MANY} are done.)` : error.message, true);
  } finally {
    button.disabled = chosen.inert = false;
  }
  if (sent) await refresh().catch((error) => tell(error.message, true));
}

const teaching = collection("teach", (number) => {
  $("teach-clear").hidden = !number;
  say("teach-status", number ? `${samples(number)} ${TEXTS ? "written" : "chosen"}` : "");
  $("teach-refused").replaceChildren();
});
function openRename(name) {
  $("rename-name").textContent = name;
  $("new-name").value = name;
  say("rename-dialog-status", "");
  $("rename-button").textContent = "Rename";
  $("rename-dialog").showModal();
  $("new-name").select();
}

// The class that a name belongs to, if it is not the one that is renamed.
const other = (to) => model.classes.find(({ name }) => name === to && name !== $("rename-name").textContent);

const forgetting = collection("forget");
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
      ({ name: called, error }) => element("li", {}, element("strong", { dir: "auto" }, called), `: ${error}`)));
  };
  const saved = (part, all) => {
    // Only what was sent: more may have been chosen meanwhile.
    teaching.remove(part);
    if (!all) return;
    if (refused.length < sent.length && $("class-name").value.trim() === name) $("class-name").value = "";
    $("class-name").focus();
  };
  const sent = teaching.given();
  await change("Learnt", tell, $("teach-button"), pathOf(name), sent, name, saved, refused);
});
$("teach-clear").addEventListener("click", teaching.clear);
$("forget-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = forgottenName;
  const tell = (text, bad) => say($("forget-dialog").open ? "forget-dialog-status" : "classes-status", text, bad);
  const saved = (part, all) => {
    forgetting.remove(part);
    if (all) $("forget-dialog").close();
  };
  const path = `${pathOf(name)}/forget`;
  await change("Forgot", tell, $("forget-button"), path, forgetting.given(), name, saved);
});
$("undo").addEventListener("click", async () => {
  $("undo").disabled = true;
  try {
    await ask("/undo", []);
    say("classes-status", "The last change is taken back.");
    outdated();
    await refresh();
  } catch (error) {
    say("classes-status", error.message, true);
  } finally {
    $("undo").disabled = false;
  }
});
$("new-name").addEventListener("input", () => {
  const same = other($("new-name").value.trim());
  $("rename-button").textContent = same ? "Make them one class" : "Rename";
  say("rename-dialog-status", same ? `There is a class ${quoted(same.name)} of ${samples(same[MANY])}. Both become `
    + "one, as if all had been taught under this name." : "");
});
$("rename-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const dialog = $("rename-dialog");
  const name = $("rename-name").textContent;
  const to = $("new-name").value.trim();
  const same = other(to);
  $("rename-button").disabled = true;
  try {
    if (to !== name) {
      await ask(`${pathOf(name)}/${same ? "merge" : "rename"}?to=${encodeURIComponent(to)}`, []);
      say("classes-status", `${quoted(name)} is ${same ? "part of" : "called"} ${quoted(to)} now, and saved.`);
      outdated();
    }
    dialog.close();
    await refresh();
  } catch (error) {
    say(dialog.open ? "rename-dialog-status" : "classes-status", error.message, true);
  } finally {
    $("rename-button").disabled = false;
  }
});
$("rename-cancel").addEventListener("click", () => $("rename-dialog").close());
$("forget-dialog").addEventListener("cancel", forgetting.clear);
$("forget-cancel").addEventListener("click", () => {
  forgetting.clear();
  $("forget-dialog").close();
});
$("suggest-again").addEventListener("click", () => suggest(left()));
// Samples that are used as soon as they are chosen, or asked about.
for (const [id, use] of [["predict", predict], ["suggest", suggest]]) {
  if (TEXTS) {
    const box = writing(id);
    $(`${id}-form`).addEventListener("submit", (event) => {
      event.preventDefault();
      const given = box.given();
      if (given.length) use(given);
      else say(`${id}-status`, "Write at least one text.", true);
    });
  } else picker([`${id}-files`, `${id}-camera`].filter($), use);
}

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
