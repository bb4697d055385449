(() => {
// Everything works without this file. It swaps parts of the page that the server has rendered anew, shows moments in
// local time, opens questions in a dialog, and knows some keys.
const root = document.documentElement, body = document.body, ask = document.getElementById("ask");
const stored = (value) => { try { return value === undefined ? localStorage.getItem("theme") : localStorage.setItem("theme", value); } catch { return null; } };
if (stored()) root.dataset.theme = stored();
const theme = document.querySelector("[data-theme-switch]");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  stored(root.dataset.theme = dark ? "light" : "dark");
});

// Moments
let ahead = body.dataset.now ? body.dataset.now * 1000 - Date.now() : 0;   // the clock of the server
const two = (number) => String(number).padStart(2, "0");
function span(seconds) {
  seconds = Math.max(0, Math.round(seconds));
  if (seconds < 60) return `${seconds} s`;
  for (const [size, name, below, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]])
    if (seconds >= size) { const rest = Math.floor(seconds % size / below); return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${small}` : ""}`; }
}
function local(date, now) {
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (date.toDateString() === now.toDateString()) return `${time}:${two(date.getSeconds())}`;
  const month = date.toLocaleDateString("en", { month: "short" });
  return `${date.getDate()} ${month}${date.getFullYear() === now.getFullYear() ? "" : ` ${date.getFullYear()}`} ${time}`;
}
function tick() {
  const now = new Date(Date.now() + ahead);
  for (const time of document.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime), seconds = (now - date) / 1000, kind = Object.keys(time.dataset)[0];
    const text = kind === "at" ? local(date, now) : kind === "clock" ? `${two(date.getHours())}:${two(date.getMinutes())}` : kind === "for" ? span(seconds)
      : kind === "in" ? (seconds > 0 ? `${span(seconds)} late` : `in ${span(-seconds)}`) : `${span(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}
tick();
setInterval(tick, 1000);

// Parts of the page that update themselves
const where = body.dataset.liveFrom, status = document.getElementById("live");
let source;
const show = (kind, text) => { if (status) { status.firstElementChild.className = `dot ${kind}`; status.lastElementChild.textContent = text; } };
function listen() {
  if (!where || source || document.hidden) return;
  source = new EventSource(where);
  source.addEventListener("look", (e) => {
    const { interval, now } = JSON.parse(e.data);
    ahead = now * 1000 - Date.now();
    show("", interval > 1.5 ? `live, every ${Math.round(interval)} s` : "live, every second");
  });
  source.addEventListener("fragment", (e) => {
    const { name, html } = JSON.parse(e.data), old = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
    // Never under a focused field, an open list or a selected text.
    if (!old || (old.contains(document.activeElement) && document.activeElement !== body) || old.querySelector("details[open], :checked[data-pick]")) return;
    const holder = document.createElement("template");
    holder.innerHTML = html;
    old.replaceWith(holder.content);
    tick();
  });
  source.addEventListener("away", (e) => show("dead", `Redis away since ${local(new Date(JSON.parse(e.data).since), new Date())}`));
  source.addEventListener("end", () => { source.close(); source = undefined; show("dead", "not live"); setTimeout(listen, 2000); });
  source.onerror = () => { show("dead", "not live"); if (source?.readyState === 2) { source = undefined; setTimeout(listen, 30000); } };
}
function hush() { source?.close(); source = undefined; show("none", "paused"); }
document.addEventListener("visibilitychange", () => document.hidden ? hush() : listen());
addEventListener("pagehide", hush);
addEventListener("pageshow", listen);
listen();

// Questions in a dialog: without this, they are pages.
addEventListener("click", async (e) => {
  const close = e.target.closest("#ask [data-close]"), link = e.target.closest("a[data-ask]"), copy = e.target.closest("[data-copy]");
  if (close) { e.preventDefault(); ask.close(); }
  else if (copy) {
    const text = document.getElementById(copy.dataset.copy);
    try { await navigator.clipboard.writeText(text.textContent); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(text); }                       // without HTTPS
  } else if (link && !e.ctrlKey && !e.metaKey && !e.shiftKey) {
    e.preventDefault();
    const answer = await fetch(link.href).catch(() => null);
    const found = answer?.ok ? new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("form.ask") : null;
    if (!found) { location = link.href; return; }
    found.setAttribute("action", link.href);
    ask.replaceChildren(document.adoptNode(found));
    for (const one of ask.querySelectorAll("[data-file]")) one.hidden = false;
    ask.showModal();
    tick();
  }
});
for (const one of document.querySelectorAll("[data-copy], [data-file]")) one.hidden = false;
addEventListener("change", async (e) => {
  if (e.target.matches("[data-into]")) e.target.form.elements[e.target.dataset.into].value = await e.target.files[0].text();
  if (e.target.matches("[data-pick-all]")) for (const box of e.target.closest("table").querySelectorAll("[data-pick]")) box.checked = e.target.checked;
});

// Keys
let last = "";
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|TEXTAREA|SELECT/.test(e.target.tagName) || ask.open) return;
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a")), at = rows.indexOf(document.activeElement.closest?.("tr"));
  const go = (place) => rows[Math.max(0, Math.min(rows.length - 1, place))]?.querySelector("a").focus();
  const to = last === "g" && document.querySelector(`[data-key="${CSS.escape(e.key)}"]`);
  last = e.key;
  if (to) location = to.href;
  else if (e.key === "/") { e.preventDefault(); document.querySelector("[name=q]")?.focus(); }
  else if (e.key === "j") go(at + 1);
  else if (e.key === "k") go(at < 0 ? 0 : at - 1);
  else if (e.key === "x") { const box = rows[at]?.querySelector("[data-pick]"); if (box) box.checked = !box.checked; }
  else if (e.key === "?") { ask.innerHTML = `<div class="ask"><div class="body"><h2>Keys</h2><dl class="facts"><dt><kbd>/</kbd></dt><dd>search</dd><dt><kbd>g</kbd> <kbd>q</kbd></dt><dd>go to queues; o overview, j jobs, d dead, t tasks, s schedules, e executors, h health, a audit</dd><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next and previous row</dd><dt><kbd>x</kbd></dt><dd>pick the row</dd></dl></div><footer><button data-close>Close</button></footer></div>`; ask.showModal(); }
});
})();
