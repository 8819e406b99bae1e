// Farrier's console: keyboard, theme, relative times. Every page works without it; charts are in charts.js.
"use strict";

// ---- times: «3 min ago», the exact UTC stays in the title ---------------------------------------------------------

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

function spoken(seconds) {
  // The same wording as the server's `ago` (apps/lib/templatetags/farrier.py), so that a poll changes nothing.
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  const at = UNITS.findIndex(([length]) => size >= length);
  const [length, name] = UNITS[at];
  let text = `${Math.floor(size / length)} ${name}`;
  if (name === "h" && size < 36000) {
    const minutes = Math.floor((size % 3600) / 60);
    if (minutes) text += ` ${minutes} min`;
  }
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

function tellTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[datetime]:not([data-exact])")) {
    const text = spoken((now - Date.parse(element.dateTime)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

setInterval(tellTimes, 5000);

// ---- theme: system → light → dark, kept in a cookie so that the server draws it right at once ---------------------

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("farrier:theme"));
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-theme-form]")) return;
  event.preventDefault();
  const dark =
    document.documentElement.dataset.theme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "light" : "dark";
  document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=lax`;
  showTheme(theme);
});

// ---- keyboard -----------------------------------------------------------------------------------------------------

const isTyping = (element) => element.matches("input, textarea, select, [contenteditable]");

function moveInList(step) {
  const rows = [...document.querySelectorAll("[data-list] > li, [data-list] tbody tr")].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const current = rows.findIndex((row) => row.contains(document.activeElement));
  rows[Math.min(rows.length - 1, Math.max(0, current + step))].querySelector("a")?.focus();
}

function decide(kind) {
  // One key never decides by itself: without a reason it leads to the reason, with one it presses the named button.
  const button = document.querySelector(`[data-decision="${kind}"]:not(:disabled)`);
  if (!button) return;
  const reason = button.form.querySelector("textarea");
  document.querySelectorAll("[data-decision]").forEach((other) => other.classList.toggle("meant", other === button));
  if (reason.value.trim()) button.focus();
  else reason.focus();
}

function act(key) {
  // An action of the row that has the focus, else of the page: what may be undone needs no reason first.
  const row = document.activeElement?.closest("[data-list] tr, [data-list] > li");
  const button = row?.querySelector(`[data-hotkey="${key}"]`) ?? document.querySelector(`.title [data-hotkey="${key}"]`);
  button?.click();
  return Boolean(button);
}

function press(key) {
  if (key === "?") document.getElementById("keys")?.showModal();
  else if (key === "/") document.querySelector("[data-search]")?.focus();
  else if (key === "j") moveInList(1);
  else if (key === "k") moveInList(-1);
  else if ((key === "a" || key === "s") && act(key)) return true;
  else if (key === "a") decide("approve");
  else if (key === "r") decide("reject");
  else return false;
  return true;
}

let leader = false; // «g» was pressed: the next key names a page

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) {
    document.querySelector(".meant:not(:disabled)")?.click();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  if (leader) {
    leader = false;
    document.querySelector(`.nav a[data-key="${event.key}"]`)?.click();
    return;
  }
  if (event.key === "g") leader = true;
  else if (press(event.key)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  const dialog = opener && document.getElementById(opener.dataset.opens);
  if (dialog) {
    event.preventDefault(); // a link has the same form on a page of its own, for those without JavaScript
    dialog.showModal();
    dialog.querySelector("textarea")?.focus();
  }
  for (const menu of document.querySelectorAll("details.who[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

document.addEventListener("click", async (event) => {
  const source = event.target.closest("[data-copy]");
  if (!source || !navigator.clipboard) return;
  await navigator.clipboard.writeText(source.dataset.copy);
  const before = source.textContent;
  source.textContent = "copied";
  setTimeout(() => (source.textContent = before), 1200);
});

// A filter form sends itself; without JavaScript its button does.
document.addEventListener("change", (event) => {
  if (event.target.matches("select") && event.target.form?.matches("[data-filter]")) event.target.form.requestSubmit();
});

// ---- begin -----------------------------------------------------------------------------------------------------------

function ready() {
  document.documentElement.dataset.js = "";
  tellTimes();
}

document.addEventListener("htmx:after:swap", tellTimes);
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", ready);
else ready();
