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

// Requests

function why(body, status) {
  if (status === 401) return "Teaching and forgetting need the token of this server: enter it under “Token”.";
  if (typeof body.detail === "string") return body.detail;
  return `The server answered ${status}.`;
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
  if (!response.ok) throw new Error(why(body, response.status));
  return body;
}

function requireAllowed(files) {
  const { images, bytes } = model ? model.limits : { images: Infinity, bytes: Infinity };
  if (files.length > images) throw new Error(`These are ${files.length} images; ${images} go at a time.`);
  const total = files.reduce((sum, file) => sum + file.size, 0);
  if (total > bytes) throw new Error(`These images are too large together (${Math.floor(bytes / 2 ** 20)} MB).`);
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
  return image;
}

function collection(ids, thumbs, onChange = () => {}) {
  const files = [];
  const show = () => {
    $(thumbs).replaceChildren(...files.map((file) => element("li", {}, picture(file, file.name))));
    onChange(files);
  };
  picker(ids, (chosen) => {
    files.push(...chosen);
    show();
  });
  const remove = (gone) => {
    files.splice(0, files.length, ...files.filter((file) => !gone.includes(file)));
    show();
  };
  return { files, remove, clear: () => remove([...files]) };
}

// The model

function showClasses() {
  const rows = model.classes.map(({ name, images }) => {
    const button = element("button", { class: "button quiet", type: "button" }, "Forget …");
    button.setAttribute("aria-label", `Forget images of ${name}`);
    button.disabled = !model.can_learn;
    button.addEventListener("click", () => openForget(name));
    return element("tr", {}, element("th", { scope: "row" }, name),
      element("td", { class: "number" }, String(images)), element("td", { class: "action" }, button));
  });
  document.querySelector("#classes tbody").replaceChildren(...rows);
  $("classes").hidden = !rows.length;
  $("no-classes").hidden = rows.length > 0;
  $("known-classes").replaceChildren(...model.classes.map(({ name }) => element("option", { value: name })));
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
  const own = (measured) => measured.per_class[last.class] ?? null;
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
    + `${counted(model.images, "image", "images")} learnt, network ${model.network}`;
  $("token-section").hidden = !model.protected;
  $("teach-button").disabled = !model.can_learn;
  if (!model.can_learn) say("teach-status", "This model can only predict.");
  showClasses();
  showHeldOut();
}

// Predicting

function bar({ label, probability }) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${100 * probability}%`;
  return element("li", {}, element("span", { class: "name", title: label }, label),
    element("div", { class: "track", "aria-hidden": "true" }, fill),
    element("span", { class: "share" }, percent(100 * probability)));
}

function answer(file, found) {
  const heading = element("h3", {}, found.unknown ? "unknown" : found.label);
  const text = element("div", {}, heading);
  if (found.unknown) {
    heading.className = "unknown";
    text.append(element("p", {}, `Unlike everything taught. Nearest: ${found.top[0].label}.`));
  }
  text.append(element("ul", { class: "bars", "aria-label": "Probabilities" }, ...found.top.map(bar)));
  return element("li", { class: "answer" }, picture(file, file.name), text);
}

async function predict(files) {
  say("predict-status", `Looking at ${counted(files.length, "image", "images")} …`);
  try {
    requireAllowed(files);
    const { predictions } = await ask("/predict", files);
    $("answers").replaceChildren(...predictions.map((found, i) => answer(files[i], found)));
    say("predict-status", predictions.length === 1 ? `This is: ${predictions[0].label}`
      : `${predictions.length} answers`);
  } catch (error) {
    $("answers").replaceChildren();
    say("predict-status", error.message, true);
  }
}

// Teaching and forgetting

function told({ action, images, seconds }, name) {
  const done = action === "learn" ? "Learnt" : "Forgot";
  return `${done} ${counted(images, "image", "images")} of “${name}” in ${seconds.toFixed(1)} s, and saved.`;
}

async function change(place, button, path, files, name, done) {
  try {
    if (!files.length) throw new Error("Choose at least one image.");
    requireAllowed(files);
    button.disabled = true;
    say(place, `Sending ${counted(files.length, "image", "images")} …`);
    const report = await ask(path, files);
    done(report);
    await refresh();
  } catch (error) {
    say(place, error.message, true);
  } finally {
    button.disabled = false;
  }
}

const teaching = collection(["teach-files", "teach-camera"], "teach-thumbs", (files) => {
  $("teach-clear").hidden = !files.length;
  if (files.length) say("teach-status", counted(files.length, "image chosen", "images chosen"));
});
const forgetting = collection(["forget-files"], "forget-thumbs");
let forgottenName = "";

function openForget(name) {
  forgottenName = name;
  $("forget-name").textContent = name;
  say("forget-dialog-status", "");
  forgetting.clear();
  $("forget-dialog").showModal();
}

$("teach-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("class-name").value.trim();
  const path = `/classes/${encodeURIComponent(name)}`;
  const sent = [...teaching.files];
  await change("teach-status", $("teach-button"), path, sent, name, (report) => {
    // Only what was sent: more may have been chosen meanwhile.
    teaching.remove(sent);
    if ($("class-name").value.trim() === name) $("class-name").value = "";
    $("class-name").focus();
    say("teach-status", told(report, name));
  });
});
$("teach-clear").addEventListener("click", () => {
  teaching.clear();
  say("teach-status", "");
});
$("forget-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const path = `/classes/${encodeURIComponent(forgottenName)}/forget`;
  const [name, sent] = [forgottenName, [...forgetting.files]];
  await change("forget-dialog-status", $("forget-button"), path, sent, name, (report) => {
    $("forget-dialog").close();
    say("forget-status", told(report, name));
  });
});
$("forget-cancel").addEventListener("click", () => $("forget-dialog").close());
$("predict-form").addEventListener("submit", (event) => event.preventDefault());
picker(["predict-files", "predict-camera"], predict);

// A file dropped beside a field would otherwise replace the page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("token").value = sessionStorage.getItem("acil-token") ?? "";
$("token").addEventListener("change", () => sessionStorage.setItem("acil-token", $("token").value));

refresh().catch((error) => {
  $("model-facts").textContent = error.message;
});
