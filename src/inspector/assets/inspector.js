// The inspector works without this script, except for live updates. Pages request behaviour by
// attributes:
//
//   data-live="/live?…" data-part="#id"   after an append, fetches this page again and replaces #id
//   form data-instant="#id"               does the same while typing, with the form's address
//   details#id                            stays open or closed, by path and id
//   data-item, with a[data-open]          j, k, Enter and o; a[data-own] is the item's own page if
//                                         Enter unfolds the item
//   a[rel=next], a[rel=prev]              where j and k continue
//   a[data-go=start], a[data-go=end]      g and G, if there is more than the page shows
//   data-end                              opens at its end
//   ol.lines[data-at]                     a click on a line sets `at=`
//   input[data-search]                    /
//   time[data-ago]                        is kept up to date
//   button[data-copy="TEXT"]              copies
//   form[data-auto]                       submits itself when a field changes
//   form[data-comes-back]                 its field `to` gets the fragment of the address
//   data-keep, with data-told="/…"        a pending call: stays while it is the same; data-told is
//                                         the address of its outcome
"use strict";

const base = document.body.dataset.base || "";

/* ---- parts of a page ---- */

async function part(address, signal) {
  const answer = await fetch(address, { headers: { "x-fragment": "1" }, signal, credentials: "same-origin" });
  const text = await answer.text();
  const made = new DOMParser().parseFromString(text, "text/html");
  return { made, ok: answer.ok };
}

// Replaces content without moving what the reader looks at: equal elements stay, with their focus
// and their folds.
function put(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) {
    old.dataset.filled = "1";
    return;
  }
  const before = new Map();
  for (const item of old.querySelectorAll("[id]")) before.set(item.id, item);
  const isFirst = !old.dataset.filled;
  for (const item of [...fresh.querySelectorAll("[id]")]) {
    const same = before.get(item.id);
    if (same && same.outerHTML === item.outerHTML) continue;
    if (same && same.tagName === "DETAILS") item.open = same.open;
    if (!same && !isFirst && item.matches("[data-item]")) item.classList.add("fresh");
  }
  const isRead = old.hasAttribute("data-follow");
  const follows = isRead && isAtEnd();
  const come = fresh.querySelectorAll("[data-item].fresh").length;
  for (const name of ["data-again"]) {
    if (fresh.hasAttribute(name)) old.setAttribute(name, ""); else old.removeAttribute(name);
  }
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const at = old.querySelector("[data-item].at");
  const all = isRead && !follows ? [...old.querySelectorAll("[data-item][id]")] : [];
  const read = all.find((item) => item.getBoundingClientRect().bottom > 80);
  const top = read?.getBoundingClientRect().top;
  const stood = places(old);
  keep(old, fresh);
  old.replaceChildren(...fresh.childNodes);
  settle(old, stood);
  say(fresh);
  old.dataset.filled = "1";
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (at && at.id) document.getElementById(at.id)?.classList.add("at");
  unfold(old);
  times();
  // Elements removed above must not move what is being read.
  const still = read && document.getElementById(read.id);
  if (still) scrollBy(0, still.getBoundingClientRect().top - top);
  if (follows) toEnd(); else if (isRead && come) tellBelow(come);
}

function isAtEnd() {
  return innerHeight + scrollY >= document.body.scrollHeight - 120;
}
function toEnd() {
  scrollTo(0, document.body.scrollHeight);
}

// Shows how many items were added below the visible part.
let unseen = 0;
const below = document.createElement("button");
below.type = "button";
below.addEventListener("click", toEnd);
function tellBelow(number) {
  unseen += number;
  if (!below.isConnected) {
    const told = document.createElement("p");
    told.className = "below";
    told.setAttribute("role", "status");
    told.append(below);
    document.getElementById("main").append(told);
  }
  below.textContent = unseen + " new below";
  below.parentElement.hidden = false;
}
addEventListener("scroll", () => {
  if (!unseen || !isAtEnd()) return;
  unseen = 0;
  below.parentElement.hidden = true;
}, { passive: true });

// Keeps elements that somebody may be typing into while they are the same (data-keep). One that is
// gone keeps its place and says so, so that nothing moves under the pointer.
function keep(old, fresh) {
  const now = new Map([...fresh.querySelectorAll("[data-keep]")].map((item) => [item.id, item]));
  let last = null;
  for (const item of [...old.querySelectorAll("[data-keep]")]) {
    const same = now.get(item.id);
    const isKept = same && same.dataset.keep === item.dataset.keep && !item.classList.contains("gone");
    if (isKept) {
      same.replaceWith(item);
    } else if (same) {
      last = same;
      continue;
    } else {
      if (!item.classList.contains("gone")) end(item);
      const first = fresh.querySelector("[data-keep]");
      if (last) last.after(item); else if (first) first.before(item); else fresh.append(item);
    }
    last = item;
  }
}
// Ends a call that is no longer pending: its buttons stay where they are, disabled. Fetches its
// outcome (data-told), unless it is known.
function end(item, known) {
  item.classList.add("gone");
  for (const field of item.querySelectorAll("input, textarea, button")) field.disabled = true;
  if (known) { item.append(known); return; }
  const note = document.createElement("p");
  note.className = "notice";
  note.setAttribute("role", "status");
  note.textContent = "No longer waiting.";
  item.append(note);
  if (!item.dataset.told) return;
  part(item.dataset.told).then(({ made, ok }) => {
    const told = ok && made.querySelector("[data-decided]");
    if (told) note.replaceWith(told);
  }).catch((error) => console.warn(error));
}

// Buttons that moved are inactive for a moment: a click was meant for what was there before.
const SETTLES_MS = 1000;
let settled;
function places(within) {
  const cards = [...within.querySelectorAll("[data-keep]:not(.gone)")];
  return new Map(cards.map((card) => [card.id, card.getBoundingClientRect().top]));
}
function settle(within, stood) {
  const now = places(within);
  const moved = [...now].some(([id, top]) => Math.abs(top - (stood.get(id) ?? top)) > 4);
  if (!moved) return;
  within.classList.add("settling");
  clearTimeout(settled);
  settled = setTimeout(() => within.classList.remove("settling"), SETTLES_MS);
}

// Updates the tab title and the live indicator from a part (data-title, data-status).
function say(part) {
  if (part.dataset?.title) document.title = part.dataset.title;
  const sign = document.querySelector(".live");
  if (sign && part.dataset?.status) sign.textContent = "live: " + part.dataset.status;
}

const asking = new Map();
async function renew(selector, address) {
  asking.get(selector)?.abort();
  const mine = new AbortController();
  asking.set(selector, mine);
  try {
    const { made, ok } = await part(address, mine.signal);
    const old = document.querySelector(selector);
    const fresh = ok ? made.querySelector(selector) : made.body;
    if (old && fresh) put(old, fresh);
    if (!typed.has(selector)) searching(selector, false, "");
  } catch (error) {
    if (error.name === "AbortError") return;
    console.warn(error);
    if (!typed.has(selector)) searching(selector, undefined, "no answer: retry");
  }
}

// Marks results as outdated during a search. `typed` has the input that was not sent yet.
const typed = new Map();
function searching(selector, isBusy, word) {
  const said = document.querySelector(`form[data-instant="${selector}"] [data-searching]`);
  if (!said) return;
  const found = document.querySelector(selector);
  if (isBusy) found?.setAttribute("aria-busy", "true");
  if (isBusy === false) found?.removeAttribute("aria-busy");
  if (said.textContent !== word) said.textContent = word;
}

/* ---- live ---- */

for (const place of document.querySelectorAll("[data-live]")) {
  const sign = document.querySelector(".live");
  const say = (state, word) => {
    if (!sign) return;
    sign.dataset.state = state;
    sign.textContent = word;
  };
  const look = () => renew(place.dataset.part, location.pathname + location.search);
  // A hidden page closes its connection: browsers allow only six per server.
  let source;
  const close = () => { source?.close(); source = undefined; say("lost", "not live"); };
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(place.dataset.live);
    // The stream does not report appends from before it opened, so look once.
    source.addEventListener("open", () => { say("open", "live"); look(); });
    source.addEventListener("error", () => say("lost", "not live"));
    source.addEventListener("changed", look);
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

for (const place of document.querySelectorAll("[data-every]")) {
  setInterval(() => {
    if (!document.hidden) renew(place.dataset.part, location.pathname + location.search);
  }, Math.max(1, Number(place.dataset.every)) * 1000);
}

// Fetches numbers that were not counted yet when the page was made.
let again = 0;
function lookAgain() {
  const place = document.querySelector("[data-again]");
  if (!place || again >= 40) return;
  again += 1;
  setTimeout(() => renew(place.dataset.part, location.pathname + location.search).then(lookAgain), 400);
}
lookAgain();

/* ---- forms ---- */

for (const form of document.querySelectorAll("form[data-instant]")) {
  const list = form.dataset.instant;
  const ask = () => {
    clearTimeout(typed.get(list));
    typed.delete(list);
    const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const address = form.getAttribute("action") + (fields.size ? "?" + fields : "");
    history.replaceState(null, "", address);
    searching(list, true, "searching…");
    renew(list, address);
  };
  form.addEventListener("input", () => {
    clearTimeout(typed.get(list));
    typed.set(list, setTimeout(ask, 180));
    searching(list, true, "searching…");
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
}

for (const form of document.querySelectorAll("form[data-auto]")) {
  let soon;
  form.addEventListener("change", ({ target }) => {
    clearTimeout(soon);
    // A slider that is moved by keys changes several times in a row.
    soon = setTimeout(() => {
      sessionStorage.setItem("focus", target.id);
      form.requestSubmit();
    }, target.type === "range" ? 350 : 0);
  });
  // A slider that was not moved must not select a revision.
  form.addEventListener("submit", () => {
    const isNow = !new URLSearchParams(location.search).has("at");
    const still = [...form.querySelectorAll("input[type=range]")].filter((one) => one.value === one.defaultValue);
    if (!isNow) return;
    for (const slider of still) slider.disabled = true;
    setTimeout(() => { for (const slider of still) slider.disabled = false; });
  });
}

// A decided call keeps its place in the list and shows the outcome: if the page were reloaded, the
// next call would move under the pointer.
document.addEventListener("submit", async (event) => {
  const form = event.target.closest("#waiting form.decide");
  if (!form || !event.submitter) return;
  event.preventDefault();
  const card = form.closest("[data-keep]");
  const fields = new URLSearchParams(new FormData(form));
  fields.set(event.submitter.name, event.submitter.value);
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  card.querySelector("[data-refused]")?.remove();
  try {
    const headers = { "x-fragment": "1" };
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields, headers, credentials: "same-origin" });
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    const told = made.querySelector("[data-decided]");
    if (answer.ok) {
      if (!card.classList.contains("gone")) end(card, told);
      card.querySelector("[data-decided]")?.focus({ preventScroll: true });
      return;
    }
    refuse(form, made.querySelector(".failure .what")?.textContent, made.querySelector(".failure .hint")?.textContent);
  } catch (error) {
    console.warn(error);
    refuse(form, "The server did not answer.", "Check whether it was decided before you retry.");
  }
  if (!card.classList.contains("gone")) for (const button of buttons) button.disabled = false;
});
function refuse(form, what, hint) {
  const note = document.createElement("p");
  note.className = "notice bad";
  note.setAttribute("role", "alert");
  note.dataset.refused = "";
  note.textContent = [what || "It was refused.", hint].filter(Boolean).join(" — ");
  form.append(note);
}

// After the login, return to the fragment of the original link too.
for (const form of document.querySelectorAll("form[data-comes-back]")) {
  const to = form.elements.to;
  const path = to.value;
  const name = () => { to.value = path + location.hash; };
  addEventListener("hashchange", name);
  name();
}

for (const slider of document.querySelectorAll("input[type=range]")) {
  const shown = document.querySelector(`output[for="${slider.id}"]`);
  slider.addEventListener("input", () => { if (shown) shown.value = "#" + slider.value; });
}

/* ---- folds ---- */

const folds = "fold:" + location.pathname + ":";
function unfold(within) {
  for (const fold of within.querySelectorAll("details[id]")) {
    const kept = sessionStorage.getItem(folds + fold.id);
    if (kept !== null) fold.open = kept === "1";
  }
}
document.addEventListener("toggle", (event) => {
  const fold = event.target;
  if (fold.tagName === "DETAILS" && fold.id) sessionStorage.setItem(folds + fold.id, fold.open ? "1" : "0");
}, true);
unfold(document);

// Unfolds the target of a link.
function reveal() {
  const id = decodeURIComponent(location.hash.slice(1));
  const place = id && document.getElementById(id);
  if (!place) return;
  for (let up = place; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  mark(place.closest("[data-item]"));
  place.scrollIntoView({ block: place.closest(".thread") ? "start" : "center" });
}
addEventListener("hashchange", () => { reveal(); moveLine(); });

// When another line is selected by the fragment, sets `at` to it, so that the address does not name
// two lines.
function moveLine() {
  const lines = document.querySelector("ol.lines[data-at]");
  const line = lines && /^#L(\d+)$/.exec(location.hash);
  const address = new URL(location.href);
  if (!line || !address.searchParams.has("at")) return;
  address.searchParams.set("at", line[1]);
  history.replaceState(null, "", address);
  for (const hit of lines.querySelectorAll(".hit")) hit.classList.remove("hit");
  document.getElementById("L" + line[1])?.classList.add("hit");
}

/* ---- keys ---- */

const items = () => [...document.querySelectorAll("[data-item]")].filter((item) => item.offsetParent);
const marked = () => document.querySelector("[data-item].at");
function mark(item) {
  if (!item) return;
  marked()?.classList.remove("at");
  item.classList.add("at");
}
function step(by) {
  const all = items();
  if (!all.length) return;
  const at = all.indexOf(marked());
  const first = all.findIndex((item) => item.getBoundingClientRect().bottom > 80);
  if (at >= 0 && !all[at + by]) {
    follow(document.querySelector(`main a[rel=${by > 0 ? "next" : "prev"}]`), by > 0 ? "first" : "last");
    return;
  }
  stand(all[at < 0 ? Math.max(0, first) : at + by], "nearest");
}
// Selects and focuses an item: its link, an own tab stop, or the summary that Enter unfolds.
function stand(item, block) {
  mark(item);
  item.scrollIntoView({ block });
  const own = item.hasAttribute("tabindex") ? item : item.querySelector("summary");
  (item.querySelector("a[data-open]") || own || item).focus({ preventScroll: true });
}

// Goes to another part and selects its first or last item there.
function follow(link, where) {
  if (!link) return false;
  sessionStorage.setItem("arrive", where);
  location.assign(link.href);
  return true;
}
function taken(name) {
  const value = sessionStorage.getItem(name);
  sessionStorage.removeItem(name);
  return value;
}
function arrive() {
  const kind = performance.getEntriesByType("navigation")[0]?.type;
  const isNew = kind !== "reload" && kind !== "back_forward";
  if (isNew && !location.hash && document.querySelector("[data-end]")) toEnd();
  const where = taken("arrive");
  const all = where ? items() : [];
  if (where === "first" && all.length) stand(all[0], "start");
  if (where === "last" && all.length) { stand(all[all.length - 1], "end"); toEnd(); }
  const focused = taken("focus");
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
const keys = {
  j: () => step(1),
  k: () => step(-1),
  o: () => {
    const at = marked();
    (at?.querySelector("a[data-open], a[data-own]") || at?.querySelector("a.rev"))?.click();
  },
  "/": () => {
    const all = [...document.querySelectorAll("[data-search]")];
    const field = all[all.length - 1];
    field?.focus();
    field?.select();
  },
  g: () => {
    if (follow(document.querySelector("a[data-go=start]"), "first")) return;
    scrollTo(0, 0);
    mark(items()[0]);
  },
  G: () => {
    if (follow(document.querySelector("a[data-go=end]"), "last")) return;
    toEnd();
    mark(items().pop());
  },
  "?": () => document.getElementById("keys")?.showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest("input, select, textarea");
  if (field && field.type !== "checkbox" && field.type !== "range") {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key === "Enter" && (event.target === document.body || event.target.matches("[data-item]"))) {
    const at = event.target.matches("[data-item]") ? event.target : marked();
    const folds = at?.matches("details") ? [at] : [...at?.querySelectorAll("details") ?? []];
    const isOpen = folds.every((fold) => fold.open);
    for (const fold of folds) fold.open = !isOpen;
    if (!folds.length) at?.querySelector("a[data-open]")?.click();
    return;
  }
  const done = keys[event.key];
  if (done && !document.querySelector("dialog[open]")) { event.preventDefault(); done(); }
});

/* ---- times, copies ---- */

function since(then) {
  const seconds = Math.floor((Date.now() - then) / 1000);
  const some = (number, one, many) => `${number} ${number === 1 ? one : many} ago`;
  if (seconds < 0 || seconds >= 604800) return new Date(then).toISOString().slice(0, 10);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return some(Math.floor(seconds / 60), "min", "min");
  if (seconds < 86400) return some(Math.floor(seconds / 3600), "h", "h");
  return some(Math.floor(seconds / 86400), "day", "days");
}
function times() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = since(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(times, 20000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy || location.href);
    button.textContent = "copied";
  } catch {
    button.textContent = "not copied";
  }
  setTimeout(() => { button.textContent = said; }, 1200);
});

for (const hidden of document.querySelectorAll("[data-script-only]")) hidden.hidden = false;
reveal();
arrive();
