"use strict";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function command(method, path, operation) {
  const url = `${location.origin}${path.replace("{name}", "NAME")}`;
  if (method === "get") return `curl ${url}`;
  const token = path === "/predict" ? "" : ' -H "Authorization: Bearer $ACIL_TOKEN"';
  const kinds = Object.keys(operation.requestBody?.content ?? {});
  const sent = kinds.includes("multipart/form-data") ? "-F images=@one.jpg -F images=@two.jpg"
    : kinds.length ? `-H "Content-Type: ${kinds[0]}" -d '{"texts": ["one", "two"]}'` : "-X POST";
  return `curl${token} ${sent} ${url}`;
}

// A schema as an example: its fields, and what is in each.
function sketch(schema, all) {
  if (schema.$ref) return sketch(all[schema.$ref.split("/").at(-1)], all);
  const { anyOf } = schema;
  if (anyOf) return sketch(anyOf[0], all);
  if (schema.type === "array") return [sketch(schema.items, all)];
  if (schema.properties) {
    return Object.fromEntries(Object.entries(schema.properties).map(([key, value]) => [key, sketch(value, all)]));
  }
  return schema.const ?? (schema.enum ? schema.enum.join(" or ") : schema.type);
}

function route(path, method, operation, all) {
  const section = element("section", { class: "card" },
    element("h2", {}, `${method.toUpperCase()} ${path}`),
    element("p", {}, operation.description ?? operation.summary),
    element("pre", {}, command(method, path, operation)));
  const parameters = (operation.parameters ?? []).filter((parameter) => parameter.in === "query");
  if (parameters.length) {
    section.append(element("h3", {}, "Parameters"), element("ul", {}, ...parameters.map(
      ({ name, description }) => element("li", {}, element("code", {}, name), `: ${description}`))));
  }
  const schema = operation.responses["200"].content?.["application/json"]?.schema;
  if (schema) {
    section.append(element("h3", {}, "Answer"), element("pre", {}, JSON.stringify(sketch(schema, all), null, 2)));
  }
  return section;
}

async function show() {
  const description = await (await fetch("/openapi.json")).json();
  const { schemas } = description.components;
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      document.getElementById("routes").append(route(path, method, operation, schemas));
    }
  }
}

show().catch(() => document.getElementById("routes").append("The description cannot be loaded."));
