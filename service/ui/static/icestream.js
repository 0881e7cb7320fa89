// Everything works without this script, except for being live: it fetches the page again when something
// happened, and replaces those parts (data-live) whose HTML has changed. How often it does so depends on what
// the page costs the service (paced).
"use strict";

const TIMES = {
  today: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
  earlier: new Intl.DateTimeFormat(undefined, {
    day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
  }),
  otherYear: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
};

function inViewersZone(moment) {
  const now = new Date();
  if (moment.toDateString() === now.toDateString()) return TIMES.today.format(moment);
  return (moment.getFullYear() === now.getFullYear() ? TIMES.earlier : TIMES.otherYear).format(moment);
}

function duration(seconds) {
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [Math.floor(seconds) % 60, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0\u00a0s";
  return parts.slice(first, first + 2).filter(([value]) => value > 0)
    .map(([value, unit]) => `${value}\u00a0${unit}`).join(" ");
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain HTTP from another machine has no clipboard API.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

function enliven(part) {
  for (const time of part.querySelectorAll("time")) {
    time.textContent = inViewersZone(new Date(time.dateTime));
  }
  for (const control of part.querySelectorAll("button.copy, #choose-all")) control.hidden = false;
  // Of a table's latest jobs, Tab stops at the last one, and arrows lead to the others.
  for (const cell of part.querySelectorAll(".cells a:not(:last-child)")) cell.tabIndex = -1;
  part.dispatchEvent(new Event("enlivened", { bubbles: true }));
}

function tick() {
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = duration((Date.now() - Date.parse(element.dataset.since)) / 1000);
  }
}

const served = new Map();

function remember(page) {
  for (const part of page.querySelectorAll("[data-live]")) served.set(part.id, part.outerHTML);
}

const NAMES = ["id", "href", "name", "value", "aria-label"];

// Those elements of a part that another one can be taken for after the part was replaced.
function alike(part, element) {
  return [...part.querySelectorAll(element.localName)].filter((other) =>
    NAMES.every((name) => other.getAttribute(name) === element.getAttribute(name)));
}

function replaceChanged(page) {
  for (const fresh of page.querySelectorAll("main [data-live]")) {
    const shown = document.getElementById(fresh.id);
    if (!shown || served.get(fresh.id) === fresh.outerHTML) continue;
    served.set(fresh.id, fresh.outerHTML);
    const focused = shown.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? alike(shown, focused).indexOf(focused) : -1;
    // The element itself stays, so that screen readers announce what changes in it.
    const opened = new Set([...shown.querySelectorAll("details[open]")].map((one) => one.id));
    const named = (box) => `${box.name}=${box.value}`;
    const checked = new Set([...shown.querySelectorAll("input:checked")].map(named));
    const scrolled = [...shown.querySelectorAll(".scroll, .log")].map((box) => [
      box.scrollLeft, box.scrollTop, box.scrollTop + box.clientHeight > box.scrollHeight - 8,
    ]);
    shown.replaceChildren(...document.importNode(fresh, true).childNodes);
    for (const box of shown.querySelectorAll("input[type=checkbox]")) box.checked = checked.has(named(box));
    for (const one of shown.querySelectorAll("details[id]")) one.open = opened.has(one.id);
    // Whoever reads a log stays where they are, at its end if they were there.
    shown.querySelectorAll(".scroll, .log").forEach((box, number) => {
      const [left, top, atEnd] = scrolled[number] ?? [0, 0, false];
      box.scrollTo(left, atEnd ? box.scrollHeight : top);
    });
    enliven(shown);
    if (place >= 0) (alike(shown, focused)[place] ?? alike(shown, focused).at(-1))?.focus({ preventScroll: true });
  }
  document.title = page.title;
}

// The next look replaces it, even with what was served before.
function isTold(shown) {
  served.delete(shown.closest("[data-live]").id);
}

// What polls have found: figures of tables by id, and of all together. They are shown without another look.
function showPending({ tables, all }) {
  const count = (number) => number.toLocaleString("en");
  for (const shown of document.querySelectorAll("[data-pending]")) {
    const told = shown.dataset.pending === "all" ? all : tables[shown.dataset.pending];
    if (!told) continue;
    const [deletes, files, lag] = told;
    const texts = shown.localName === "tr" ? {
      "[data-label='Pending deletes']": count(deletes), "[data-label='Delete files']": count(files),
      "[data-label=Lag]": files ? duration(lag) : "\u2014",
    } : { ".value": count(deletes), ".detail": `in ${count(files)}\u00a0${files === 1 ? "file" : "files"}` };
    for (const [place, text] of Object.entries(texts)) shown.querySelector(place).textContent = text;
    isTold(shown);
  }
  for (const shown of document.querySelectorAll("[data-lag]")) {
    const told = shown.dataset.lag === "all" ? all : tables[shown.dataset.lag];
    if (!told) continue;
    const [, files, lag] = told;
    shown.querySelector(".value").textContent = files ? duration(lag) : "none";
    shown.querySelector(".detail").textContent = files ? shown.dataset.some : shown.dataset.none;
    isTold(shown);
  }
  document.dispatchEvent(new CustomEvent("pending", { detail: tables }));
}

// Looks of a page may cost the service so much processor time for each second that somebody watches, which with
// the stream stays below a millisecond, and what was not used up to then, but for a limit: after a quiet time
// what happens is seen at once.
const EARNED_MS = 0.25;
const SAVED_MS = 200;
// What no event tells of, such as a worker that has gone, is seen so late.
const UNTOLD_MS = 90_000;
// What a look costs besides the page itself: the request, who asks, the session.
const REQUEST_MS = 12;
// A look that failed is tried again so late.
const AGAIN_MS = 5000;
const RELOAD_MS = 60_000;

// Its parts and this script may not fit each other.
function isOfAnotherRelease(page) {
  const script = "script[src^='/static/'][src$='/icestream.js']";
  return page.querySelector(script)?.getAttribute("src") !== document.querySelector(script).getAttribute("src");
}

// Once in a while: while a new release is rolled out, replicas of both answer.
function mayReload() {
  if (isTyped() || Date.now() - remembered("reloaded", 0) < RELOAD_MS) return false;
  keepInMind("reloaded", Date.now());
  return true;
}

// For the session of a tab; some browsers have no place for it.
function keepInMind(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch { /* then it is not kept */ }
}

function remembered(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function isTyped() {
  return [...document.querySelectorAll("form input:not([type=hidden]), form textarea, form select")].some((field) =>
    field === document.activeElement || (field.defaultValue ?? field.value) !== field.value ||
    (field.checked ?? false) !== (field.defaultChecked ?? false));
}

function paced() {
  let [left, at] = [SAVED_MS, performance.now()];

  function settle() {
    const now = performance.now();
    left = Math.min(left + (now - at) / 1000 * EARNED_MS, SAVED_MS);
    at = now;
  }

  return {
    pay(answer) {
      settle();
      const cost = REQUEST_MS + Number(/cpu;dur=([\d.]+)/.exec(answer.headers.get("Server-Timing"))?.[1] ?? 0);
      // No more than this look is owed: some come unpaid, and a page that says it is live is to be so.
      left = Math.max(left - cost, -Math.max(cost, EARNED_MS * UNTOLD_MS / 1000));
    },
    // Milliseconds until another look is paid for.
    wait() {
      settle();
      return Math.max(-left / EARNED_MS * 1000, 0);
    },
  };
}

function follow(main) {
  const pace = paced();
  const connection = document.getElementById("connection");
  const words = document.getElementById("connection-words");
  const isOfOneJob = main.dataset.events.includes("job_id=");
  let source = null;
  let fetching = false;
  let again = null;
  let later = 0;
  let lookedAt = performance.now();
  let ended = false;

  function show(state, text) {
    connection.hidden = false;
    connection.className = `connection ${state}`;
    words.textContent = text;
  }

  // isUrgent: also if it is not paid for yet.
  function refresh(isUrgent = false) {
    if (document.hidden || ended) return;
    // A burst of events needs one more look, not one each.
    if (fetching) again = { isUrgent: isUrgent || again?.isUrgent };
    else if (isUrgent || !pace.wait()) {
      clearTimeout(later);
      later = 0;
      look();
    } else {
      const wait = pace.wait();
      later ||= setTimeout(() => refresh(true), wait);
      if (wait > 60_000 && source?.readyState === EventSource.OPEN)
        show("live", `Live, next look in ${Math.ceil(wait / 60_000)} min`);
    }
  }

  async function look() {
    [fetching, again, lookedAt] = [true, null, performance.now()];
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected) return ended || location.reload();
      pace.pay(answer);
      if (!answer.ok) return missed(`Out of date (error ${answer.status})`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (isOfAnotherRelease(page) && mayReload()) return location.reload();
      replaceChanged(page);
      tick();
      if (source?.readyState === EventSource.OPEN) show("live", "Live");
      if (!page.querySelector("main").dataset.events) end();
    } catch {
      missed("Reconnecting");
    } finally {
      setTimeout(() => {
        fetching = false;
        if (again) refresh(again.isUrgent);
      }, 400);
    }
  }

  // Or the page of the login would ask who has just left to come back, if a look is under way.
  document.querySelector("form[action='/logout']")?.addEventListener("submit", () => end());

  // What is shown is older than it says, until a look succeeds.
  function missed(words) {
    show("lost", words);
    later ||= setTimeout(() => refresh(true), AGAIN_MS * (1 + Math.random()));
  }

  function open() {
    if (source || ended) return;
    source = new EventSource(main.dataset.events);
    let isLost = false;
    source.onopen = () => {
      // After a restart of the service not all who watch ask at once.
      setTimeout(() => refresh(true), isLost ? Math.random() * AGAIN_MS : 0);
      isLost = false;
    };
    source.onerror = () => {
      isLost = true;
      show("lost", "Reconnecting");
      // A browser tries again by itself unless it got an answer, as from a proxy of a service that restarts.
      if (source?.readyState === EventSource.CLOSED) {
        close();
        setTimeout(() => !document.hidden && open(), 2000);
      }
    };
    source.addEventListener("pending", (event) => showPending(JSON.parse(event.data)));
    source.addEventListener("changed", () => refresh());
    // A job has few turns; elsewhere there may be many.
    source.addEventListener("turned", () => refresh(isOfOneJob));
  }

  function close() {
    source?.close();
    source = null;
  }

  function end() {
    ended = true;
    close();
    connection.hidden = true;
  }

  // A hidden tab would hold one of the few connections that a browser has for a host.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  // A browser that has no network knows it before a request has failed, and knows when to try again.
  addEventListener("offline", () => {
    if (ended) return;
    close();
    show("lost", "Reconnecting");
  });
  addEventListener("online", () => !document.hidden && open());
  setInterval(() => performance.now() - lookedAt >= UNTOLD_MS && refresh(), UNTOLD_MS / 4);
  if (!document.hidden) open();
}

// What the search page finds; null without an answer.
async function found(asked) {
  const answer = await fetch(`/search?${new URLSearchParams({ search: asked })}`).catch(() => null);
  if (!answer?.ok || answer.redirected) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("found");
}

// What is typed as a table's name is completed with those that the search finds.
function completeTables(typed) {
  let waiting = 0;
  // Else it would press the first button of the form, which saves.
  typed.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    typed.closest("fieldset").querySelector("button").click();
  });
  typed.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const asked = typed.value.trim();
      const results = asked && (await found(asked));
      if (!results || asked !== typed.value.trim()) return;
      const names = [...results.querySelectorAll("[data-tables] a[href^='/tables/']")].map((one) => one.textContent);
      typed.list.replaceChildren(...[...new Set(names)].map((name) => new Option("", name)));
    }, 150);
  });
}

// The search page, over any page: what is typed is asked for as that page asks for it.
function offerSearch(dialog, link) {
  const words = document.getElementById("find-words");
  const results = document.getElementById("find-results");
  let waiting = 0;

  async function search() {
    const asked = words.value;
    const answer = await found(asked);
    // An answer that was overtaken is none to what is typed now.
    if (asked !== words.value) return;
    if (answer) return results.replaceChildren(...document.importNode(answer, true).childNodes);
    // The page stays, with whatever its form has.
    const told = document.createElement("p");
    told.className = "detail";
    told.textContent = "The search could not be answered: try again.";
    results.replaceChildren(told);
  }

  // Of what is typed now, which may not have been asked for yet.
  async function openFirst() {
    clearTimeout(waiting);
    const asked = words.value;
    await search();
    if (asked === words.value) results.querySelector("a")?.click();
  }

  function open() {
    if (!dialog.open) dialog.showModal();
    words.select();
  }

  words.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 150);
  });
  dialog.addEventListener("keydown", (event) => {
    const stops = [words, ...results.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      stops.at((stops.indexOf(document.activeElement) + step) % stops.length).focus();
    } else if (event.key === "Enter" && !event.isComposing && document.activeElement === words) {
      openFirst();
    }
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
  link.addEventListener("click", (event) => {
    event.preventDefault();
    open();
  });
  const key = document.createElement("kbd");
  key.textContent = navigator.platform.startsWith("Mac") ? "\u2318K" : "Ctrl K";
  link.append(" ", key);
}

const THEMES = ["system", "light", "dark"];

// Kept in a cookie, so that the next page comes with it and does not flash.
function offerThemes(button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const shown = document.documentElement.dataset.theme ?? "system";
    const theme = THEMES[(THEMES.indexOf(shown) + 1) % THEMES.length];
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    document.cookie = `theme=${theme}; path=/; max-age=${theme === "system" ? 0 : 31536000}; samesite=lax`;
    button.textContent = `Theme: ${theme}`;
  });
}

// As they were served: what follows changes them.
remember(document);
// What is typed as a time is the viewer's, and sent with its zone; what the page comes with is in UTC.
for (const typed of document.querySelectorAll("input[type=datetime-local]")) {
  const sent = document.createElement("input");
  sent.type = "hidden";
  sent.name = typed.name;
  typed.removeAttribute("name");
  typed.after(sent);
  if (typed.value) {
    const time = new Date(`${typed.value}Z`);
    sent.value = time.toISOString();
    typed.value = new Date(time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  }
  typed.addEventListener("change", () => { sent.value = typed.value && new Date(typed.value).toISOString(); });
  document.getElementById(`${typed.id}-zone`).textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
}
// What hangs over the page goes away as people expect; what asks in the midst of it is left open by a click, which
// would move what was clicked at.
function closeOthers(event) {
  for (const open of document.querySelectorAll(".confirm[open]")) {
    const isLeft = event.type === "click" && open.matches(".title *") && !open.contains(event.target);
    if (event.key === "Escape" && open.contains(document.activeElement)) open.querySelector("summary").focus();
    if (event.key === "Escape" || isLeft) open.open = false;
  }
}
// In the grid of jobs, which end at the right: by as many to the left of the end, a row up or down.
document.addEventListener("keydown", (event) => {
  const cell = event.target.closest(".cells a");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const rows = [...document.querySelectorAll(".cells:has(a)")].map((row) => [...row.querySelectorAll("a")].reverse());
  const row = rows.findIndex((cells) => cells.includes(cell));
  const place = rows[row].indexOf(cell);
  const [down, back] = {
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, 1], ArrowRight: [0, -1], Home: [0, Infinity], End: [0, -Infinity],
  }[event.key] ?? [0, 0];
  if (!down && !back) return;
  event.preventDefault();
  const cells = rows[Math.min(Math.max(row + down, 0), rows.length - 1)];
  cells[Math.min(Math.max(place + back, 0), cells.length - 1)].focus();
});
document.addEventListener("click", closeOthers);
document.addEventListener("keydown", closeOthers);
enliven(document);
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const shown = button.previousElementSibling;
  await copy(shown.title || shown.textContent);
  button.classList.add("done");
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.classList.remove("done");
    button.setAttribute("aria-label", button.title);
  }, 1500);
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "choose-all") return;
  for (const box of document.querySelectorAll("input[name=job_ids]")) box.checked = event.target.checked;
});
// A form sent twice by an impatient double click would ask twice.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button) setTimeout(() => { button.disabled = button.dataset.sent = true; });
});
// Back from the next page, which may have been kept as it was left.
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("button[data-sent]")) {
    button.disabled = false;
    delete button.dataset.sent;
  }
});
offerThemes(document.getElementById("theme"));
const dialog = document.getElementById("find");
if (dialog) offerSearch(dialog, document.getElementById("find-link"));
for (const typed of document.querySelectorAll("[data-completes=tables]")) completeTables(typed);
const main = document.querySelector("main");
if (main.dataset.events) follow(main);
tick();
setInterval(tick, 1000);
