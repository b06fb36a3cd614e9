// Keys, the time that a pair was looked at, and patience with a lost connection. The page works without it.
"use strict";
const form = document.getElementById("answer");
const byId = (id) => document.getElementById(id);

if (form) {
  let seen = 0, since = document.hidden ? 0 : performance.now(), sending = false;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && since) { seen += performance.now() - since; since = 0; }
    if (!document.hidden && !since) since = performance.now();
  });
  const secondsSeen = () => ((seen + (since ? performance.now() - since : 0)) / 1000).toFixed(1);
  const tell = (text) => { byId("problem").textContent = text; byId("problem").hidden = !text; };
  const wait = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

  async function send(choice) {
    if (sending) return;
    sending = true;
    const fields = new URLSearchParams(new FormData(form));
    fields.set("choice", choice);
    fields.set("seconds", secondsSeen());
    form.setAttribute("aria-busy", "true");
    byId("status").textContent = "Saving…";
    for (let delay = 500; ; delay = Math.min(delay * 2, 5000)) {
      try {
        const answer = await fetch(form.action, {
          method: "POST", body: fields, headers: { accept: "application/json" }, signal: AbortSignal.timeout(15000),
        });
        const reply = await answer.json();
        if (answer.ok) { removeEventListener("beforeunload", warn); location.assign(reply.next); return; }
        tell(reply.problem);
        byId("status").textContent = "";
        if (reply.next) {
          const link = document.createElement("a");
          link.href = reply.next;
          link.textContent = "Go on";
          byId("problem").append(" ", link);
        }
        break;
      } catch {
        tell("Not saved yet: there is no connection. Leave this page open: it tries again by itself.");
        addEventListener("beforeunload", warn);
        await wait(delay);
      }
    }
    removeEventListener("beforeunload", warn);
    form.removeAttribute("aria-busy");
    sending = false;
  }
  const warn = (event) => event.preventDefault();

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(event.submitter ? event.submitter.value : "");
  });

  const switched = byId("keys");
  try { switched.checked = localStorage.getItem("afarm-keys") !== "off"; } catch { /* no storage: keys stay on */ }
  switched.addEventListener("change", () => {
    try { localStorage.setItem("afarm-keys", switched.checked ? "on" : "off"); } catch { /* for this page alone */ }
  });
  const reason = form.elements.reason;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("textarea, input:not([type=checkbox]), select");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || !switched.checked || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = document.querySelector(`[aria-keyshortcuts="${CSS.escape(event.key.toLowerCase())}"]`);
    if (!pressed) return;
    event.preventDefault();
    if (pressed === reason) reason.focus();
    else pressed.click();
  });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}
