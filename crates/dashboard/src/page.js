// Keeps the live page up to date: replaces the parts of the page that the server sends, and requests other steps on a
// zoom. The server renders all parts, and computes the link of each zoom.
"use strict";

const fragments = [...document.querySelectorAll("[data-fragment]")];
const plots = [...document.querySelectorAll(".plot")];
const links = [...document.querySelectorAll("[data-zoom]")];
const connection = document.getElementById("connection");
const RETRY_MS = 3000;
const RESIZE_MS = 200;
const LEAST_DRAG_PX = 6;
const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all" };

let view = location.search;
let width = 0;
let source = null;
let retry = 0;
let selection = null;

const plotWidth = () => Math.floor(plots[0].clientWidth);

function follow() {
  clearTimeout(retry);
  source?.close();
  width = plotWidth();
  const query = new URLSearchParams(view);
  query.set("width", width);
  source = new EventSource("events?" + query);
  for (const fragment of fragments) {
    source.addEventListener(fragment.id, (event) => {
      fragment.innerHTML = event.data;
      connection.textContent = "";
      if (fragment.id === "loss") updateLinks();
    });
  }
  source.onerror = () => {
    connection.textContent = "Not connected: what is shown may be old. Trying again.";
    // an EventSource does not reconnect after a response that is no stream, such as the one for too many readers
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(follow, RETRY_MS);
  };
}

const chartOf = (plot) => plot.querySelector(".chart");

function updateLinks() {
  const chart = chartOf(plots[0]);
  for (const link of links) link.href = chart?.dataset[link.dataset.zoom] ?? "?";
}

function show(query) {
  if (query === undefined) return;
  view = query;
  history.replaceState(null, "", query === "?" ? location.pathname : query);
  follow();
}

for (const link of links) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    show(link.getAttribute("href"));
  });
}

// Returns the step at the x coordinate of a pointer, from the bounds in the chart's data attributes.
function stepAt(plot, clientX) {
  const chart = chartOf(plot);
  const { first, last, left, right } = chart.dataset;
  const box = chart.getBoundingClientRect();
  const x = ((clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
  const share = Math.min(1, Math.max(0, (x - left) / (right - left)));
  return Math.round(Number(first) + share * (last - first));
}

function endDrag() {
  selection?.remove();
  selection = null;
}

for (const plot of plots) {
  let start = null;
  plot.addEventListener("keydown", (event) => {
    const zoom = KEYS[event.key];
    if (!zoom || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(chartOf(plot)?.dataset[zoom]);
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || !chartOf(plot)) return;
    start = event.clientX;
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (start === null) return;
    if (!selection) {
      selection = document.createElement("div");
      selection.className = "selection";
      plot.append(selection);
    }
    const box = plot.getBoundingClientRect();
    selection.style.left = Math.min(start, event.clientX) - box.left + "px";
    selection.style.width = Math.abs(event.clientX - start) + "px";
  });
  plot.addEventListener("pointercancel", () => {
    start = null;
    endDrag();
  });
  plot.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, event.clientX].sort((a, b) => a - b).map((x) => stepAt(plot, x));
    const isDrag = Math.abs(event.clientX - start) >= LEAST_DRAG_PX && to > from;
    start = null;
    endDrag();
    if (isDrag) show(`?from=${from}&to=${to}`);
  });
}

let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    if (plotWidth() !== width) follow();
  }, RESIZE_MS);
});

follow();
