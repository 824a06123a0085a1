// Requests the plan on every change of the form, and the choice of Auto after a pause. The server renders both, and
// this script replaces these parts of the page.
"use strict";

const form = document.querySelector("form");
const plan = document.getElementById("plan");
const auto = document.getElementById("auto");
const told = document.getElementById("status");
const PAUSE_MS = 400;

let request = new AbortController();
let pause = 0;

async function fill(element, query, signal) {
  const answer = await fetch(`${element.id}?${query}`, { signal });
  if (!answer.ok) throw new Error(answer.statusText);
  const content = await answer.text();
  signal.throwIfAborted();
  element.innerHTML = content;
  element.removeAttribute("aria-busy");
}

// Reports a failed request, unless a later change has aborted it.
function tell(signal) {
  if (!signal.aborted) told.textContent = "Not connected: what is shown is older than the form.";
}

async function update() {
  clearTimeout(pause);
  request.abort();
  request = new AbortController();
  const { signal } = request;
  const query = new URLSearchParams(new FormData(form));
  const started = performance.now();
  auto.setAttribute("aria-busy", "true");
  try {
    await fill(plan, query, signal);
  } catch {
    return tell(signal);
  }
  told.textContent = `Simulated in ${Math.ceil(performance.now() - started)} ms.`;
  history.replaceState(null, "", `?${query}`);
  pause = setTimeout(() => fill(auto, query, signal).catch(() => tell(signal)), PAUSE_MS);
}

form.addEventListener("input", update);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  update();
});

plan.addEventListener("click", async (event) => {
  const lines = document.getElementById(event.target.dataset.copy);
  if (!lines) return;
  try {
    await navigator.clipboard.writeText(lines.textContent);
    event.target.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(lines);
  }
});

// with scripts, the page shows the buttons that copy and hides the button that submits the form
document.documentElement.classList.add("scripted");
