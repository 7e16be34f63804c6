// Everything works without this: it keeps pages current, shows times as the reader's own, and saves some clicks.
const root = document.documentElement;

// --- theme: the system's, light, dark
const THEMES = ["auto", "light", "dark"];
const theme = document.querySelector("[data-theme-toggle]");
if (theme) {
  const show = () => { theme.textContent = `◐ ${root.dataset.theme || "auto"}`; theme.setAttribute("aria-label", `Theme: ${root.dataset.theme || "auto"}`); };
  theme.hidden = false;
  show();
  theme.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme || "auto") + 1) % THEMES.length];
    if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
    try { localStorage.setItem("penstock-theme", next); } catch { /* it holds for this page */ }
    show();
  });
}

// --- times
const SHORT = new Intl.DateTimeFormat(undefined, { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
function ago(then, now) {
  const seconds = Math.round((now - then) / 1000);
  const future = seconds < 0;
  const size = Math.abs(seconds);
  const said = size < 60 ? `${size} s` : size < 3600 ? `${Math.floor(size / 60)} min` : size < 86400
    ? `${Math.floor(size / 3600)} h ${Math.floor((size % 3600) / 60)} min` : null;
  if (said === null) return SHORT.format(then);
  return future ? `in ${said}` : size < 5 ? "just now" : `${said} ago`;
}
function localTimes(within) {
  const now = new Date();
  for (const element of within.querySelectorAll("time[datetime]")) {
    const then = new Date(element.dateTime);
    element.title = FULL.format(then);
    element.textContent = element.dataset.as === "ago" ? ago(then, now) : FULL.format(then);
  }
}
localTimes(document);
setInterval(() => localTimes(document), 10000);

// --- live parts: the server sends a part's markup when it has changed
const source = document.querySelector("[data-live-source]");
const says = document.querySelector("[data-live-state]");
if (source && window.EventSource) {
  const feed = new EventSource(source.dataset.liveSource);
  const tell = (text) => { if (says && says.textContent !== text) says.textContent = text; };
  feed.addEventListener("open", () => tell("Live"));
  feed.addEventListener("error", () => tell("Connection lost, trying again…"));
  feed.addEventListener("parts", (event) => {
    const { parts, actions } = JSON.parse(event.data);
    for (const [name, markup] of Object.entries(parts)) {
      const place = document.querySelector(`[data-live="${name}"]`);
      if (!place || place.contains(document.activeElement)) continue;
      place.innerHTML = markup;
      localTimes(place);
    }
    if (actions) for (const part of document.querySelectorAll("[data-action]")) part.hidden = !actions.includes(part.dataset.action);
  });
  feed.addEventListener("end", () => { feed.close(); tell("Up to date"); });
  addEventListener("pagehide", () => feed.close());
}

// --- forms
for (const box of document.querySelectorAll("[data-pick-all]")) {
  const all = () => document.querySelectorAll(`input[type=checkbox][name="${box.dataset.pickAll}"]`);
  box.hidden = false;
  box.addEventListener("change", () => { for (const each of all()) each.checked = box.checked; });
}
for (const form of document.querySelectorAll("form[data-auto]")) {
  for (const field of form.querySelectorAll("select")) field.addEventListener("change", () => form.requestSubmit());
}
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", () => setTimeout(() => {
    for (const button of form.querySelectorAll("button")) button.disabled = true;
  }));
}
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const button of document.querySelectorAll("form button")) button.disabled = false;
});
for (const zone of document.querySelectorAll(".drop")) {
  const input = zone.querySelector("input[type=file]");
  const mark = (on) => zone.classList.toggle("over", on);
  zone.addEventListener("dragover", (event) => { event.preventDefault(); mark(true); });
  zone.addEventListener("dragleave", () => mark(false));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    if (event.dataTransfer.files.length) input.files = event.dataTransfer.files;
  });
}

// --- keyboard: / goes to the search field, Escape closes menus
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  }
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  const search = document.querySelector("[data-search]");
  if (search) { event.preventDefault(); search.focus(); search.select(); }
});
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
